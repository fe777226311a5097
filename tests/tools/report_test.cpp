// The analysis as a page: what it shows follows the data, stays inside its boxes, and is text whatever the data hold.
#include "tools/analysis/report.h"

#include <cmath>
#include <map>
#include <regex>
#include <string_view>

#include "core/files.h"
#include "tests/support.h"
#include "tools/analysis/charts.h"

namespace grt::test {
namespace {

constexpr int kSteps = 3;
const std::vector<std::string> kChapters{"exits",   "gates", "reinjection",  "dynamics",   "cka",        "difficulty",
                                         "weights", "heads", "trajectories", "early_exit", "definitions"};

Json exits_sample() {
  Json exits = Json::array();
  for (const int depth : {0, 1, 2, 3, 5, 8})
    exits.push_back({{"depth", depth},
                     {"loss", 2.5 + std::exp(-depth)},
                     {"kl_to_final", depth == kSteps ? 0 : 0.3 / (1 + depth)},
                     {"reduction", depth == 0 ? Json(nullptr) : Json(0.4 / depth)},
                     {"share", depth == 0 ? Json(nullptr) : Json(0.5 / depth)},
                     {"trained", depth > 0 && depth <= kSteps},
                     {"flops_per_token", 1e6 * (depth + 2)}});
  return exits;
}

Json gates_sample() {
  Json steps = Json::array(), forced = Json::array();
  for (int r = 1; r <= kSteps; ++r)
    steps.push_back({{"step", r},
                     {"mean", 0.8 + 0.03 * r},
                     {"std", 0.3},
                     {"above_0.95", 0.2},
                     {"below_0.05", 0.001},
                     {"openness", 0.2 - 0.03 * r},
                     {"effective_openness", 0.18 / r},
                     {"histogram", std::vector<double>(20, 0.05)}});
  for (const double gate : {0.0, 0.5, 1.0}) forced.push_back({{"gate", gate}, {"loss", 9 - 6 * gate}});
  return {{"steps", steps}, {"forced", forced}, {"learned_loss", 2.55}};
}

Json dynamics_sample() {
  Json steps = Json::array();
  for (int r = 1; r <= kSteps; ++r)
    steps.push_back({{"step", r},
                     {"state_norm", 40 * r},
                     {"proposal_norm", 96},
                     {"update_norm", 20.0 / r},
                     {"cos_proposal_state", -0.2 * r},
                     {"cos_new_old", 0.9},
                     {"cos_successive_proposals", nullptr},
                     {"cos_successive_updates", 0.1},
                     {"gain", 1.4 / r},
                     {"ratio", r == 1 ? Json(nullptr) : Json(0.5)}});
  return {{"steps", steps},
          {"classification", {{{"kind", "fixed point"}, {"share", 0.9}}, {{"kind", "orbit"}, {"share", 0.1}}}},
          {"extended_steps", 64}};
}

Json difficulty_sample() {
  Json deciles = Json::array();
  for (int d = 1; d <= 10; ++d)
    deciles.push_back({{"decile", d},
                       {"tokens", 100},
                       {"loss_first_exit", 0.5 * d},
                       {"loss_full", 0.3 * d},
                       {"improvement", 0.2 * d}});
  return {{"deciles", deciles},
          {"slope", 0.4},
          {"intercept", 0.0},
          {"r2", 0.998},
          {"gate_correlation", {{{"step", 1}, {"pearson", -0.4}}, {{"step", 2}, {"pearson", 0.2}}}}};
}

Json heads_sample() {
  Json list = Json::array();
  const std::vector<std::string> kinds{"previous", "broadcast", "self", "other"};
  for (int head = 0; head < 4; ++head) {
    Json steps = Json::array();
    for (int r = 1; r <= kSteps; ++r)
      steps.push_back({{"step", r}, {"kind", kinds[head]}, {"previous", 0.5}, {"self", 0.2}, {"first", 0.1}});
    list.push_back({{"block", "core.0"}, {"head", head}, {"steps", steps}, {"changes", false}});
  }
  return {{"thresholds", {{"previous", 0.5}}}, {"list", list}};
}

Json trajectory(const std::string& prompt, const std::string& target) {
  Json exits = Json::array();
  for (int r = 0; r <= kSteps; ++r)
    exits.push_back(
        {{"depth", r},
         {"probability", 0.1 * r},
         {"rank", 4 - r},
         {"top", {{{"token", target}, {"probability", 0.1 * r}}, {{"token", " the"}, {"probability", 0.05}}}}});
  return {{"class", "knowledge"}, {"prompt", prompt}, {"target", target}, {"exits", exits}};
}

Json sample() {
  const Json curve = {{{"depth", 1}, {"flops_per_token", 2e6}, {"loss", 3.0}},
                      {{"depth", 2}, {"flops_per_token", 3e6}, {"loss", 2.6}}};
  return {
      {"checkpoint", "runs/nano"},
      {"data", "val.bin"},
      {"tokens", 1000},
      {"windows", 4},
      {"architecture", "grt"},
      {"layout", "1+1x3+1"},
      {"full_depth", kSteps},
      {"seed", 1},
      {"exits", exits_sample()},
      {"total_reduction", 0.9},
      {"gates", gates_sample()},
      {"reinjection", {{{"anchor", "prelude"}, {"loss", 2.55}}, {{"anchor", "zero"}, {"loss", 8.0}}}},
      {"dynamics", dynamics_sample()},
      {"cka",
       {{"labels", {"prelude", "1", "2"}},
        {"matrix", {{1, 0.9, 0.2}, {0.9, 1, 0.45}, {0.2, 0.45, 1}}},
        {"twin", {{"labels", {"1", "2"}}, {"matrix", {{0.7, 0.1}, {0.6, 0.3}, {0.0, 0.8}}}}}}},
      {"difficulty", difficulty_sample()},
      {"weights",
       {{"gate", {{"state_singular_values", {9, 4, 1}}, {"anchor_singular_values", {7, 5, 2}}, {"ratio", 0.78}}},
        {"inject",
         {{"row_cosine_mean", -0.2}, {"row_cosine_above_0.5", 0.01}, {"histogram", std::vector<double>(20, 0.05)}}}}},
      {"heads", heads_sample()},
      {"trajectories", Json::array({trajectory("The author was George", " Orwell")})},
      {"early_exit",
       {{{"name", "a"}, {"architecture", "grt"}, {"points", curve}},
        {{"name", "b"}, {"architecture", "dense"}, {"points", curve}}}},
      {"definitions", {{"gain", "largest singular value of the step's Jacobian"}}}};
}

bool has_section(const std::string& page, const std::string& id) {
  return contains(page, "<section id=\"" + id + "\">");
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

// What is wrong with `text` as XML, or nothing: tags that do not close in order, attributes without quotes, a bare "&"
// or "<". Reads the subset that the page uses: no comments, no sections.
std::string malformed(const std::string& text) {
  static const std::regex tag(R"re(<(/?)([a-z][a-z0-9]*)((?: [A-Za-z:-]+="[^"<]*")*)(/?)>)re");
  static const std::regex entity("&(amp|lt|gt|quot|#39);");
  std::vector<std::string> open;
  std::size_t at = text.starts_with("<!DOCTYPE html>") ? 15 : 0;
  while ((at = text.find_first_of("<&", at)) != text.npos) {
    std::smatch match;
    const std::string piece = text.substr(at, text.find('>', at) == text.npos ? 40 : text.find('>', at) - at + 1);
    const bool is_entity = text[at] == '&';
    if (!std::regex_search(piece, match, is_entity ? entity : tag, std::regex_constants::match_continuous))
      return piece;
    at += match[0].length();
    if (is_entity || match[4].length() != 0) continue;
    if (match[1].length() == 0) {
      open.push_back(match[2]);
    } else if (open.empty() || open.back() != match[2]) {
      return piece;
    } else {
      open.pop_back();
    }
  }
  return open.empty() ? "" : "<" + open.back() + "> stays open";
}

// Marks, bars and curves' points of every chart: how many lie inside the box drawn before them, and how many do not.
struct Places {
  int inside = 0, outside = 0;
};
Places places(const std::string& page) {
  static const std::regex element(
      R"re(class="axis box" d="M([\d.-]+) ([\d.-]+)V([\d.-]+)H([\d.-]+)"|class="mark [^"]*" d="M([\d.-]+) ([\d.-]+)m|class="bar [^"]*" x="([\d.-]+)" y="([\d.-]+)" width="([\d.-]+)" height="([\d.-]+)"|class="title")re");
  Places found;
  double left = 0, top = 0, bottom = 0, right = 0;
  bool boxed = false;
  for (std::sregex_iterator it(page.begin(), page.end(), element), end; it != end; ++it) {
    const auto at = [&](int group) { return std::stod((*it)[group]); };
    const auto note = [&](double x, double y) {
      const bool in = x >= left - 0.11 && x <= right + 0.11 && y >= top - 0.11 && y <= bottom + 0.11;  // rounded to 0.1
      ++(in ? found.inside : found.outside);
    };
    if ((*it)[1].matched) {
      left = at(1), top = at(2), bottom = at(3), right = at(4);
      boxed = true;
    } else if ((*it)[5].matched) {
      if (boxed) note(at(5), at(6));  // between title and box there is the legend
    } else if ((*it)[7].matched) {
      note(at(7), at(8));
      note(at(7) + at(9), at(8) + at(10));
    } else {
      boxed = false;
    }
  }
  return found;
}

// All numbers null, texts as they are.
Json without_numbers(const Json& json) {
  if (json.is_number()) return nullptr;
  if (!json.is_structured()) return json;
  Json copy = json;
  for (Json& value : copy) value = without_numbers(value);
  return copy;
}

Json with_numbers(const Json& json, double number) {
  if (json.is_number()) return number;
  if (!json.is_structured()) return json;
  Json copy = json;
  for (Json& value : copy) value = with_numbers(value, number);
  return copy;
}

int lightness(const std::string& colour) {  // of "#rrggbb", 0 to 2550
  const int rgb = std::stoi(colour.substr(1), nullptr, 16);
  return 2 * (rgb >> 16 & 255) + 7 * (rgb >> 8 & 255) + (rgb & 255);
}

}  // namespace

TEST_SUITE("tools") {
  TEST_CASE("the report is one well-formed page that asks for nothing outside itself") {
    const TempDir dir;
    write_report(sample(), dir / "report.html");
    const std::string page = read_file(dir / "report.html");
    CHECK(malformed(page) == "");
    for (const char* outside : {"http:", "https:", "//", "<script", "src=", "url(", "@import", "<link"}) {
      CAPTURE(outside);
      CHECK_FALSE(contains(page, outside));
    }
    CHECK(contains(page, "default-src 'none'"));
    CHECK(contains(page, "@media screen and (prefers-color-scheme: dark)"));
    CHECK(contains(page, "@media print"));
  }

  TEST_CASE("a chapter of the report is there exactly when its data are") {
    const std::string whole = report_html(sample());
    for (const std::string& id : kChapters) {
      CAPTURE(id);
      CHECK(has_section(whole, id));
      CHECK(contains(whole, "href=\"#" + id + "\""));
      for (const Json& nothing : {Json(nullptr), Json::object(), Json::array()}) {
        Json analysis = sample();
        analysis[id] = nothing;
        const std::string page = report_html(analysis);
        CHECK(malformed(page) == "");
        for (const std::string& other : kChapters) CHECK(has_section(page, other) == (other != id));
      }
    }
    const std::string empty = report_html(Json::object());
    CHECK(malformed(empty) == "");
    CHECK(count(empty, "<section") == 0);
  }

  TEST_CASE("a part that is missing within a chapter takes only its own picture away") {
    const std::size_t whole = count(report_html(sample()), "<svg");
    const std::vector<std::pair<std::string, std::size_t>> parts{
        {"/gates/forced", 1},   {"/gates/steps", 4},
        {"/cka/twin", 1},       {"/dynamics/classification", 1},
        {"/weights/inject", 1}, {"/difficulty/gate_correlation", 1}};
    for (const auto& [path, pictures] : parts) {
      CAPTURE(path);
      Json analysis = sample();
      analysis[Json::json_pointer(path)] = nullptr;
      CHECK(count(report_html(analysis), "<svg") == whole - pictures);
    }
  }

  TEST_CASE("hostile texts of an analysis are shown and never become markup") {
    const std::string hostile =
        "</title></style><script>alert(1)</script>\" onload='x' & \x01\x1b\x7f\n\xff\xc3 \xe2\x80\xae";
    Json analysis = sample();
    for (const char* key : {"checkpoint", "data", "layout"}) analysis[key] = hostile;
    analysis["trajectories"] = Json::array({trajectory(hostile, hostile)});
    analysis["trajectories"][0]["class"] = hostile;
    analysis["early_exit"][0]["name"] = hostile;
    analysis["early_exit"][0]["architecture"] = hostile;
    analysis["cka"]["labels"][0] = hostile;
    analysis["cka"]["twin"]["labels"][0] = hostile;
    analysis["heads"]["list"][0]["block"] = hostile;
    analysis["heads"]["list"][0]["steps"][0]["kind"] = hostile;
    analysis["heads"]["thresholds"][hostile] = hostile;
    analysis["reinjection"][0]["anchor"] = hostile;
    analysis["dynamics"]["classification"][0]["kind"] = hostile;
    analysis["definitions"][hostile] = hostile;
    for (const std::string& page : {report_html(analysis), overview_svg(analysis)}) {
      CHECK(malformed(page) == "");
      CHECK_FALSE(contains(page, "<script"));
      CHECK(contains(page, "&lt;script&gt;alert(1)&lt;/script&gt;"));
      for (const char* raw : {"\x01", "\x1b", "\x7f", "\xff", "\xc3 ", "\xe2\x80\xae"})
        CHECK_FALSE(contains(page, raw));
    }
  }

  TEST_CASE("bytes become the text that shows them") {
    CHECK(svg::escape("a<b> & \"c\" 'd'") == "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;");
    CHECK(svg::escape(std::string_view("\0\n\t\x1f\x7f", 5)) == "\\x00\\n\\t\\x1f\\x7f");
    CHECK(svg::escape("\xff|\xe6\x97|\xed\xa0\x80") == "\uFFFD|\uFFFD|\uFFFD\uFFFD\uFFFD");
    CHECK(svg::escape("\xef\xbf\xbf\xc2\x85") == "\uFFFD\uFFFD");
    CHECK(svg::escape("日本 é") == "日本 é");
    CHECK(svg::shortened("日本語日本語", 4) == "日本語…");
    CHECK(svg::shortened("日本語", 3) == "日本語");
  }

  TEST_CASE("numbers of a report are rounded, signed and marked as unknown") {
    CHECK(svg::fixed(-0.0004, 3) == "0.000");
    CHECK(svg::fixed(-1.25, 1) == "−1.2");
    CHECK(svg::fixed(kUnknown, 2) == "–");
    CHECK(svg::fixed(-std::numeric_limits<double>::infinity(), 2) == "–");
    CHECK(svg::number(2.5) == "2.5");
    CHECK(svg::number(100) == "100");
    CHECK(svg::number(0) == "0");
    CHECK(svg::percent(0.123) == "12\u00A0%");
    CHECK(svg::percent(0.0123) == "1.2\u00A0%");
    CHECK(svg::percent(0.0016) == "0.16\u00A0%");
    CHECK(svg::percent(0.00001) == "< 0.01\u00A0%");
    CHECK(svg::percent(0) == "0\u00A0%");
  }

  TEST_CASE("every mark and bar of a report lies inside its axes") {
    const Places usual = places(report_html(sample()));
    CHECK(usual.outside == 0);
    CHECK(usual.inside > 100);
    // Extremes: equal values, one value, wide ranges, signs.
    Json analysis = sample();
    analysis["dynamics"]["steps"][0]["update_norm"] = 1e-4;
    analysis["dynamics"]["steps"][1]["gain"] = 1e7;
    analysis["gates"]["steps"][0]["openness"] = -0.2;
    analysis["exits"][5]["loss"] = 40;
    analysis["early_exit"][0]["points"][0]["flops_per_token"] = 1;
    const Places wide = places(report_html(analysis));
    CHECK(wide.outside == 0);
    CHECK(wide.inside == usual.inside);
    for (const double value : {0.0, 1.0, -3.0, 1e-12, 1e12}) {
      CAPTURE(value);
      const std::string page = report_html(with_numbers(sample(), value));
      CHECK(malformed(page) == "");
      CHECK(places(page).outside == 0);
    }
  }

  TEST_CASE("an analysis without numbers leaves gaps and no nan") {
    const double infinity = std::numeric_limits<double>::infinity();
    for (const Json& analysis :
         {without_numbers(sample()), with_numbers(sample(), kUnknown), with_numbers(sample(), infinity)}) {
      const std::string page = report_html(analysis);
      CHECK(malformed(page) == "");
      CHECK_FALSE(std::regex_search(page, std::regex("=\"[^\"]*\\b(nan|inf)\\b")));
      CHECK(count(page, "class=\"mark ") == count(report_html(analysis), "translate(12 -4)"));  // of legends only
      for (const std::string& id : kChapters) CHECK(has_section(page, id));
    }
  }

  TEST_CASE("an unknown value parts a curve and leaves its mark out") {
    svg::Curves curves{"c", svg::whole_axis("x", {0, 4}), svg::linear_axis("y", {1, 2})};
    curves.series.push_back({"", {{0, 1}, {1, 2}, {2, kUnknown}, {3, 1}, {4, 2}}});
    const std::string body = draw(curves).body;
    CHECK(count(body, "class=\"mark ") == 4);
    std::smatch line;
    REQUIRE(std::regex_search(body, line, std::regex("class=\"curve[^\"]*\" d=\"([^\"]*)\"")));
    CHECK(count(line[1], "M") == 2);
    CHECK(count(line[1], "L") == 2);
  }

  TEST_CASE("the cells of a heat map are the lighter the larger their value") {
    int last = -1;
    for (int i = 0; i <= 100; ++i) {
      const int light = lightness(svg::heat_colour(0.01 * i));
      CHECK(light > last);
      last = light;
    }
    CHECK(svg::heat_colour(-0.3) == svg::heat_colour(0));
    CHECK(svg::heat_colour(1.2) == svg::heat_colour(1));

    const std::vector<std::vector<double>> values{{1, 0.25, kUnknown}, {0.25, 0.5, 0}};
    const std::string body = draw(svg::Heat{"h", "r", "c", "key", {"a", "b"}, {"x", "y", "z"}, values}).body;
    const std::regex cell("<rect class=\"cell\" fill=\"(#[0-9a-f]{6})\"[^>]*><title>(.) / (.): ([^<]*)</title>");
    std::map<std::string, std::string> seen;
    for (std::sregex_iterator it(body.begin(), body.end(), cell), end; it != end; ++it)
      seen[(*it)[2].str() + (*it)[3].str()] = (*it)[1];
    CHECK(seen == std::map<std::string, std::string>{{"ax", svg::heat_colour(1)},
                                                     {"ay", svg::heat_colour(0.25)},
                                                     {"bx", svg::heat_colour(0.25)},
                                                     {"by", svg::heat_colour(0.5)},
                                                     {"bz", svg::heat_colour(0)}});
    CHECK(count(body, "class=\"void\"") == 1);
  }

  TEST_CASE("a head's cell has the colour of its kind at that step") {
    const std::string page = report_html(sample());
    const std::vector<std::pair<std::string, std::string>> kinds{
        {"previous", "f0"}, {"broadcast", "f1"}, {"self", "f2"}, {"other", "void"}};
    for (std::size_t head = 0; head < kinds.size(); ++head)
      for (int step = 1; step <= kSteps; ++step) {
        const std::regex cell(fmt::format("<rect class=\"kind {}\"[^>]*><title>core.0, head {}, step {}: {} ",
                                          kinds[head].second, head, step, kinds[head].first));
        CHECK(std::regex_search(page, cell));
      }
  }

  TEST_CASE("depths that training never used have hollow marks, and only those beyond R a shade") {
    const std::string page = report_html(sample());
    CHECK(count(page, "class=\"mark hollow") == 2 * 3);  // of loss and KL, depths 0, 5 and 8
    CHECK(count(page, "class=\"beyond\"") == 2);
    Json within = sample();
    within["exits"].erase(5);
    within["exits"].erase(4);
    CHECK(count(report_html(within), "class=\"beyond\"") == 0);
  }

  TEST_CASE("an axis with a wide range of positive values is logarithmic, any other is not") {
    CHECK(svg::magnitude_axis("x", {1, 1000}).logarithmic);
    CHECK_FALSE(svg::magnitude_axis("x", {1, 20}).logarithmic);
    CHECK_FALSE(svg::magnitude_axis("x", {0, 1000}).logarithmic);
    CHECK_FALSE(svg::magnitude_axis("x", {}).logarithmic);
    const svg::Axis axis = svg::magnitude_axis("x", {1, 100});
    CHECK(axis.place(10) - axis.place(1) == doctest::Approx(axis.place(100) - axis.place(10)));
    CHECK(contains(axis.title, "logarithmic"));
    for (const svg::Axis& any :
         {axis, svg::linear_axis("y", {-1, 5}), svg::whole_axis("z", {0, 40}), svg::linear_axis("w", {7, 7})}) {
      CHECK(any.marks.size() >= 2);
      CHECK(any.marks.size() <= 21);
      for (const svg::Mark& mark : any.marks) CHECK((any.place(mark.at) >= 0 && any.place(mark.at) <= 1));
    }
  }

  TEST_CASE("the paper's figures are told of the GRT alone") {
    CHECK(contains(report_html(sample()), "for GRT Large"));
    for (const char* other : {"dense", "poisson", "mor", "rrt", "ouro"}) {
      Json analysis = sample();
      analysis["architecture"] = other;
      CHECK_FALSE(contains(report_html(analysis), "paper"));
    }
  }

  TEST_CASE("the overview is a file of its own with one panel for each part that is there") {
    const TempDir dir;
    write_overview_svg(sample(), dir / "overview.svg");
    const std::string picture = read_file(dir / "overview.svg");
    CHECK(malformed(picture) == "");
    CHECK(picture.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
    CHECK(count(picture, "class=\"title\"") == 4);
    CHECK(places(picture).outside == 0);
    Json analysis = sample();
    analysis.erase("gates");
    CHECK(count(overview_svg(analysis), "class=\"title\"") == 3);
  }
}

}  // namespace grt::test
