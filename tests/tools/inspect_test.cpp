// The inspect binary: counts against closed formulas and published numbers, what it says of files, and its errors.
#include <cmath>
#include <limits>
#include <map>

#include "core/files.h"
#include "models/config.h"
#include "tests/support.h"
#include "tests/train/oracle_models.h"
#include "train/describe.h"

namespace grt::test {
namespace {

// The report on a configuration, through the binary.
Json inspected(const Json& config, std::vector<std::string> arguments = {}) {
  const TempDir dir;
  write_file(dir / "config.json", config.dump());
  arguments.insert(arguments.end(), {"--model", (dir / "config.json").string(), "--json", (dir / "r.json").string()});
  const Outcome outcome = run_tool("inspect", arguments);
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  return read_json((dir / "r.json").string());
}

const Json* tensor_named(const Json& tensors, const std::string& name) {
  for (const Json& t : tensors)
    if (t["name"] == name) return &t;
  return nullptr;
}

bool is_preset(const std::string& name) {
  const std::vector<std::string> names = preset_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

TEST_SUITE("tools") {
  TEST_CASE("parameter counts are those of the published checkpoints") {
    struct Row {
      std::string preset;
      std::int64_t parameters;
    };
    for (const Row& row : {Row{"grt-medium", 171073536}, Row{"grt-medium-isoparam", 359847936},
                           Row{"grt-large", 290196480}, Row{"grt-large-isoparam", 781780480}}) {
      CAPTURE(row.preset);
      Json config = find_model(row.preset);
      const std::int64_t width = config["d_model"];
      CHECK(inspected(config)["parameters"] == row.parameters - 2 * width);
      config["gate_concat_norm"] = true;
      CHECK(inspected(config)["parameters"] == row.parameters);
    }
  }

  TEST_CASE("counts, initial distributions and FLOPs of the presets are the reference's") {
    int compared = 0;
    const Json modules = read_json(fixture("modules.json").string());
    for (const Json& row : modules["presets"]["rows"]) {
      const std::string preset = row["preset"];
      CAPTURE(preset);
      if (!is_preset(preset)) continue;
      ++compared;
      Json config = find_model(preset);
      if (row.contains("gate_concat_norm")) config["gate_concat_norm"] = row["gate_concat_norm"];
      const Json r = inspected(config);
      CHECK(r["parameters"] == row["parameters"]);
      int applications = 0;
      for (const Json& a : r["applications"]) applications += a["times"].get<int>();
      CHECK(applications == row["block_applications"]);
      const std::string block = r["applications"][0]["block"];
      const Json* proj = tensor_named(r["tensors"], block + ".attn.c_proj.weight");
      REQUIRE(proj != nullptr);
      CHECK((*proj)["init_std"].get<double>() == doctest::Approx(row["c_proj_init_std"].get<double>()).epsilon(1e-9));
      const Json& flops = r["flops_per_token"];
      CHECK(flops["paper_head"].get<double>() == row["head_flops_per_token"].get<double>());
      CHECK(flops["paper_body"].get<double>() ==
            row.value("paper_flops_per_token", row["block_flops_per_token"].get<double>()));
      CHECK(flops["executed_body"].get<double>() < flops["paper_body"].get<double>());
    }
    CHECK(compared >= 15);
  }

  TEST_CASE("parameters are shared: their number does not depend on R, the applications do") {
    Json config = find_model("grt-medium");  // 2+5x4+2
    const Json four = inspected(config);
    config["n_recurrences"] = 9;
    const Json nine = inspected(config, {"--depth", "7"});
    CHECK(four["parameters"] == nine["parameters"]);
    CHECK(four["tensors"].size() == nine["tensors"].size());
    REQUIRE(four["applications"].size() == 9);
    CHECK(four["layout"] == "2+5×4+2");
    CHECK(four["applications"][2] == Json{{"block", "core.0"}, {"times", 4}, {"steps", {3, 8, 13, 18}}});
    CHECK(nine["applications"][2]["times"] == 7);
    CHECK(nine["applications"][2]["steps"].back() == 2 + 6 * 5 + 1);
    CHECK(nine["applications"][0] == Json{{"block", "prelude.0"}, {"times", 1}, {"steps", {1}}});

    const std::string out = run_tool("inspect", {"--model", "grt-small"}).out;
    CHECK(contains(out, "core.0         10 x  as applications 2-11\n"));
    CHECK(contains(out, "parameters: 63610368\nparameters without embeddings: 24190464\n"));
  }

  TEST_CASE("the cache has a slot for each application of a block") {
    const Outcome outcome = run_tool("inspect", {"--model", "grt-medium", "--kv"});
    CHECK(contains(outcome.out, fmt::format("slots: {}", 2 + 5 * 4 + 2)));
    CHECK(contains(outcome.out, fmt::format("bytes per token: {}", 24 * 2 * 1024 * 4)));
    CHECK(contains(outcome.out, fmt::format("mean, last, first: {} slots", 2 + 5 + 2)));
    CHECK(!contains(run_tool("inspect", {"--model", "grt-medium"}).out, "slots"));
    CHECK(!contains(run_tool("inspect", {"--model", "rrt-medium", "--kv"}).out, "strategies"));
    const Json r = inspected(find_model("gpt2-small"));
    CHECK(r["kv_cache"]["slots"] == 12);
  }

  TEST_CASE("describing a model makes no weights") {
    const auto model = make_model(find_model("grt-large-isoparam"), "test");
    CHECK(describe_model(*model, 1024, 6)["parameters"] == 781777920);
    CHECK(!model->params().values());
  }

  TEST_CASE("a checkpoint's tensors are listed with their range") {
    for (const std::string& name : kOracleModels) {
      CAPTURE(name);
      const TempDir dir;
      const Outcome outcome =
          run_tool("inspect", {oracle(name).string(), "--json", (dir / "r.json").string()}, {}, "/");
      INFO(outcome.err);
      REQUIRE(outcome.code == 0);
      CHECK(contains(outcome.out, "all values are finite"));
      const Json r = read_json((dir / "r.json").string());
      const auto model = oracle_model(name);
      CHECK(r["parameters"] == model->params().count());
      CHECK(r["stored"].size() == model->params().all().size());
      for (const Param& p : model->params().all()) {
        const Json* stored = tensor_named(r["stored"], p.name);
        REQUIRE(stored != nullptr);
        const std::vector<double> v = values(p.var.value());
        double squares = 0;
        for (const double x : v) squares += x * x;
        CHECK((*stored)["min"].get<double>() == *std::min_element(v.begin(), v.end()));
        CHECK((*stored)["max"].get<double>() == *std::max_element(v.begin(), v.end()));
        CHECK((*stored)["rms"].get<double>() == doctest::Approx(std::sqrt(squares / static_cast<double>(v.size()))));
      }
    }
  }

  TEST_CASE("values that are not finite are reported") {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      const TempDir dir;
      write_spoiled("grt", dir / "bad", "coda.0.ln_1.weight", bad);
      for (const std::string what : {"bad", "bad/model.safetensors"}) {
        const Outcome outcome = run_tool("inspect", {(dir / what).string()});
        CHECK(outcome.code == 0);
        CHECK(contains(outcome.out, "NOT FINITE: coda.0.ln_1.weight has 1 NaN or infinite values of 24"));
        CHECK(!contains(outcome.out, "all values are finite"));
      }
    }
  }

  TEST_CASE("a file of tensors is listed by itself, whatever their types") {
    const TempDir dir;
    const Tensor numbers = Tensor::from<std::int32_t>({2, 2}, std::vector<std::int32_t>{1, 2, 3, 4}, cpu());
    const Tensor none = Tensor::empty({0, 3}, DType::f32, cpu());
    write_safetensors(dir / "t.safetensors", {{"numbers", numbers}, {"none", none}}, {{"made by", "a test"}});
    const Outcome outcome = run_tool("inspect", {(dir / "t.safetensors").string()});
    CHECK(outcome.code == 0);
    CHECK(contains(outcome.out, "metadata: made by = a test"));
    CHECK(contains(outcome.out, "I32"));
    CHECK(contains(outcome.out, "(0, 3)"));
    CHECK(contains(outcome.out, "elements: 4"));
  }

  TEST_CASE("every preset is listed with its count") {
    const Outcome outcome = run_tool("inspect", {"--presets"});
    CHECK(outcome.code == 0);
    for (const std::string& name : preset_names()) CHECK(contains(outcome.out, name + " "));
    CHECK(contains(outcome.out, "171071488"));
  }

  TEST_CASE("inspect ends with one line that names the cause") {
    const TempDir dir;
    const std::string grt = oracle("grt").string();
    const auto copy_with = [&](const char* name, const char* key, const Json& value) {
      std::filesystem::create_directories(dir / name);
      Json config = read_json((oracle("grt") / "config.json").string());
      config[key] = value;
      write_file(dir / name / "config.json", config.dump());
      std::filesystem::copy_file(oracle("grt") / "model.safetensors", dir / name / "model.safetensors");
      return (dir / name).string();
    };
    write_file(dir / "short.safetensors", "1234");
    write_file(dir / "weights.pt", "PK");
    struct Row {
      std::vector<std::string> arguments;
      std::string says;
    };
    const Row rows[] = {
        {{}, "nothing to inspect is named"},
        {{grt, "--model", "grt-small"}, "name one thing to inspect"},
        {{grt, grt}, "name one thing to inspect"},
        {{"--modle", "grt-small"}, "--modle: unknown flag; did you mean --model?"},
        {{"--model", "grt-tiny"}, "grt-tiny: neither a file nor a preset; the presets: "},
        {{(dir / "none").string()}, "neither a file nor a preset"},
        {{dir.path.string()}, "holds neither config.json and model.safetensors"},
        {{(dir / "short.safetensors").string()}, "short.safetensors"},
        {{copy_with("wide", "d_model", 48)}, "tensor wte.weight must be (128, 48), not (128, 24)"},
        {{copy_with("deep", "n_coda", 2)}, "tensor coda.1.ln_1.weight (24) is missing"},
        {{copy_with("flat", "n_prelude", 1)}, "tensor prelude.1.attn.c_attn.weight belongs to no part of this model"},
        {{copy_with("odd", "colour", 1)}, "has no key \"colour\""},
        {{grt, "--depth", "-1"}, "depth -1: this model has exits at 0 and deeper"},
        {{"--model", "gpt2-small", "--depth", "13"}, "depth 13: this model has exits at 1..12"},
        {{"--model", "gpt2-small", "--context", "1025"}, "--context: must be 1..1024"},
        {{(oracle("grt") / "model.safetensors").string(), "--kv"}, "--kv, --depth, --context: "},
        {{(dir / "weights.pt").string()}, "weights.pt: pickled weights are not read: save them as safetensors"},
        {{"--tables", "--depth", "3"}, "--kv, --depth, --context: "},
    };
    for (const Row& row : rows) {
      CAPTURE(row.says);
      const Outcome outcome = run_tool("inspect", row.arguments);
      CHECK(outcome.code == 1);
      CHECK(outcome.out.empty());
      CAPTURE(outcome.err);
      CHECK(outcome.err.starts_with("inspect: "));
      CHECK(contains(outcome.err, row.says));
      CHECK(outcome.err.find('\n') == outcome.err.size() - 1);
    }
  }

  TEST_CASE("the tables set exact counts beside printed figures and remark on those that do not follow") {
    const TempDir dir;
    const Outcome outcome = run_tool("inspect", {"--tables", "--json", (dir / "t.json").string()});
    REQUIRE(outcome.code == 0);
    const Json tables = read_json((dir / "t.json").string());
    std::map<std::string, Json> rows;
    for (const Json& row : tables["configurations"]) rows[row["preset"].get<std::string>()] = row;
    CHECK(rows.size() == preset_names().size());

    const Json& grt = rows.at("grt-small");
    const double d = 768, blocks = 12, S = 1024, R = 10;
    CHECK(grt["parameters"] == 63610368);
    CHECK(grt["applications"] == 12);
    CHECK(grt["paper_body"].get<double>() == blocks * (24 * d * d + 4 * S * d) + R * 10 * d * d);
    CHECK(grt["printed_parameters"] == 35e6);
    CHECK(contains(grt["remark"].get<std::string>(), "63.6 M"));
    CHECK(contains(outcome.out, "printed parameters: the layout has 63.6 M"));

    const std::string dense = rows.at("gpt2-large")["remark"];
    CHECK(!contains(dense, "parameters"));            // 774 M is right
    CHECK(contains(dense, "printed FLOPs: 13.2 x"));  // 21.1 G against 1.604 G
    CHECK(rows.at("grt-large")["remark"] == "");      // 293 M is within a rounding of 290.2 M
    CHECK(rows.at("rrt-medium")["printed_parameters"].is_null());
  }

  TEST_CASE("the property table says of each architecture what its model has") {
    const TempDir dir;
    REQUIRE(run_tool("inspect", {"--tables", "--json", (dir / "t.json").string()}).code == 0);
    std::map<std::string, Json> models;
    const Json tables = read_json((dir / "t.json").string());
    for (const Json& row : tables["properties"]) models[row["architecture"].get<std::string>()] = row;
    REQUIRE(models.size() == 6);
    for (const auto& [name, row] : models) CHECK(row["weights shared over depth"] == (name == "dense" ? "no" : "yes"));
    CHECK(models["grt"]["input-dependent gate"] == "update, each feature");
    CHECK(models["mor"]["input-dependent gate"] == "route, each token");
    CHECK(models["ouro"]["input-dependent gate"] == "exit, each token");
    CHECK(models["grt"]["exits"] == "0 and deeper");
    CHECK(models["ouro"]["exits"] == "1..10");
    CHECK(models["rrt"]["weights of each step's own"] == "yes");
    CHECK(models["poisson"]["prelude enters every step"] == "yes");
    CHECK(models["ouro"]["prelude enters every step"] == "no");
  }
}

}  // namespace grt::test
