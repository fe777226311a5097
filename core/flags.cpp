// Flags by CLI11, which sorts the words, counts them and formats the help. Values are text to it: they are read here,
// without a locale and to the last character.
#include "core/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <numeric>
#include <string_view>
#include <type_traits>
#include <utility>

namespace grt {
namespace {

using Words = std::vector<std::string>;

// Stands before every value on its way through CLI11, so that it takes none for a flag ("-.5") or a list ("[1,2]").
constexpr char kMark = '=';

// How many insertions, deletions and replacements make one word the other.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

template <class T>
void parse_value(const std::string& who, const std::string& text, T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    value = text;
  } else if constexpr (std::is_same_v<T, bool>) {
    check(text == "true" || text == "false", "{}: expected true or false, got \"{}\"", who, text);
    value = text == "true";
  } else {
    const char* kind = std::is_floating_point_v<T> ? "a number" : "a whole number";
    T number{};
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, number);
    check(stop == end && error != std::errc::invalid_argument, "{}: expected {}{}, got \"{}\"", who, kind,
          std::is_unsigned_v<T> ? " from 0 on" : "", text);
    check(error == std::errc{}, "{}: {} is out of range", who, text);
    if constexpr (std::is_floating_point_v<T>) check(std::isfinite(number), "{}: expected {}, got {}", who, kind, text);
    value = number;
  }
}

template <class T>
void parse_value(const std::string& who, const std::string& text, std::optional<T>& value) {
  T inner{};
  parse_value(who, text, inner);
  value = inner;
}

template <class T>
constexpr const char* kind_of(const T&) {
  if constexpr (std::is_floating_point_v<T>) return "X";
  return std::is_integral_v<T> ? "N" : "TEXT";
}
template <class T>
constexpr const char* kind_of(const std::optional<T>&) {
  return kind_of(T{});
}
constexpr const char* kind_of(const bool&) { return "[=true|false]"; }

std::string default_of(const std::string& value) {
  return value.empty() ? "(default empty)" : "(default " + value + ")";
}
std::string default_of(const Words& values) {
  std::string all;
  for (const std::string& v : values) all += (all.empty() ? "" : " ") + v;
  return all.empty() ? "(no default)" : "(default " + all + ")";
}
template <class T>
std::string default_of(const T& value) {
  return fmt::format("(default {})", value);
}
template <class T>
std::string default_of(const std::optional<T>& value) {
  return value ? default_of(*value) : "(no default)";
}

// A value of a config file as it would be typed.
std::string as_typed(const Json& value, const std::string& who) {
  check(value.is_primitive() && !value.is_null(), "{}: expected one value, got {}", who, value.dump().substr(0, 100));
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace

struct Flags::State {
  struct Flag {
    CLI::Option* option = nullptr;
    bool is_bool = false, is_list = false, is_optional = false;
    std::function<void(const std::string& who, const Words& words)> set;
    std::string* text = nullptr;  // where a string flag's value is
    bool given = false;
  };

  CLI::App app;
  std::map<std::string, Flag> flags;
  Flag words;  // the positional ones, if declared

  Flag* find(std::string_view name) {
    const auto it = flags.find(std::string(name));
    return it == flags.end() ? nullptr : &it->second;
  }
  std::string suggestion(const std::string& name) const;
  void take_next(const std::string& name, const Flag& flag, const Words& words, std::size_t& i, Words& out);
  Words mark(const Words& words);
  void read_command_line(const Words& words);
  void read_config(const std::string& file);

  template <class T>
  void declare(const std::string& name, T& value, const std::string& help);
};

// "; did you mean --NAME?" if a known flag is near, else "".
std::string Flags::State::suggestion(const std::string& name) const {
  std::string best;
  std::size_t least = std::max<std::size_t>(2, name.size() / 3) + 1;
  for (const auto& [known, flag] : flags) {
    const std::size_t distance = edit_distance(name, known);
    if (distance < least && distance < known.size()) {
      least = distance;
      best = known;
    }
  }
  return best.empty() ? "" : "; did you mean --" + best + "?";
}

// Writes --name, standing at words[i], with its value from the next word. That word may look like anything but a flag
// of this program.
void Flags::State::take_next(const std::string& name, const Flag& flag, const Words& words, std::size_t& i,
                             Words& out) {
  const bool has_value = i + 1 < words.size() &&
                         !(words[i + 1].starts_with("--") && find(words[i + 1].substr(2, words[i + 1].find('=') - 2)));
  check(has_value, "--{}: a value is missing", name);
  if (flag.is_list) {
    out.push_back("--" + name);
    return;
  }
  out.push_back("--" + name + "=" + kMark + words[++i]);
}

// The words with every value marked and joined to its flag. Throws for an unknown flag.
Words Flags::State::mark(const Words& words) {
  Words out;
  bool only_values = false;  // behind "--"
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const bool looks_like_flag =
        word.size() > 1 && word[0] == '-' && (word[1] == '-' || std::isalpha(static_cast<unsigned char>(word[1])));
    if (only_values || !looks_like_flag) {
      out.push_back(kMark + word);
    } else if (word == "--") {
      only_values = true;
    } else if (word == "-h" || word == "--help") {
      out.push_back(word);
    } else {
      const std::size_t equals = word.find('=');
      const std::string typed = word.substr(0, equals), name = typed.substr(word[1] == '-' ? 2 : 1);
      const Flag* flag = word[1] == '-' ? find(name) : nullptr;
      check(flag != nullptr, "{}: unknown flag{}", typed, suggestion(name));
      if (equals != word.npos) {
        out.push_back("--" + name + "=" + kMark + word.substr(equals + 1));
      } else if (flag->is_bool) {
        out.push_back("--" + name + "=" + kMark + "true");
      } else {
        take_next(name, *flag, words, i, out);
      }
    }
  }
  return out;
}

void Flags::State::read_command_line(const Words& words) {
  Words marked = mark(words);
  std::reverse(marked.begin(), marked.end());  // as CLI11 wants them
  app.parse(marked);
  check(app.remaining().empty(), "\"{}\": a word that belongs to no flag",
        app.remaining().empty() ? "" : app.remaining()[0].substr(1));
  const auto unmarked = [](const CLI::Option& option) {
    Words values = option.results();
    for (std::string& v : values) v.erase(0, 1);
    return values;
  };
  for (auto& [name, flag] : flags) {
    if (flag.option->count() == 0) continue;
    const Words values = unmarked(*flag.option);
    check(flag.is_list || values.size() == 1, "--{}: given {} times", name, values.size());
    flag.given = true;
    flag.set("--" + name, values);
  }
  if (this->words.option && this->words.option->count()) this->words.set("", unmarked(*this->words.option));
}

void Flags::State::read_config(const std::string& file) {
  const Json config = read_json(file);
  check(config.is_object(), "{}: a config file must hold one JSON object of flags and values", file);
  for (const auto& [name, value] : config.items()) {
    const std::string who = file + ": " + name;
    Flag* flag = find(name);
    check(flag != nullptr, "{}: unknown flag{}", who, suggestion(name));
    if (flag->given || name == "config" || (flag->is_optional && value.is_null())) continue;
    Words values;
    if (flag->is_list && value.is_array()) {
      for (const Json& v : value) values.push_back(as_typed(v, who));
    } else {
      values.push_back(as_typed(value, who));
    }
    flag->given = true;
    flag->set(who, values);
  }
}

template <class T>
void Flags::State::declare(const std::string& name, T& value, const std::string& help) {
  constexpr bool is_list = std::is_same_v<T, Words>;
  check(find(name) == nullptr, "--{}: declared twice", name);
  Flag flag;
  flag.is_bool = std::is_same_v<T, bool>;
  flag.is_list = is_list;
  std::string shown = default_of(value);
  if constexpr (is_list) {
    flag.set = [&value](const std::string&, const Words& words) { value = words; };
  } else {
    flag.set = [&value](const std::string& who, const Words& words) { parse_value(who, words[0], value); };
    flag.is_optional = !std::is_arithmetic_v<T> && !std::is_same_v<T, std::string>;
  }
  if constexpr (std::is_same_v<T, std::string>) flag.text = &value;
  // A help text that says what happens by default ("lr / 10 by default") speaks for itself.
  if (shown == "(no default)" && help.find("default") != help.npos) shown.clear();
  flag.option = app.add_option(
      "--" + name, [](const CLI::results_t&) { return true; }, help + (shown.empty() ? "" : " " + shown));
  flag.option->type_name(kind_of(value));
  if (is_list) {
    flag.option->expected(1, CLI::detail::expected_max_vector_size)->allow_extra_args();
  } else {
    flag.option->expected(1);
  }
  flag.option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  flags[name] = std::move(flag);
}

Flags::Flags(std::string program, std::string purpose) : state_(std::make_unique<State>()) {
  state_->app.name(std::move(program));
  state_->app.description(std::move(purpose));
  state_->app.allow_extras();
  state_->app.set_help_flag("-h,--help", "print this and stop");
  state_->app.get_formatter()->column_width(34);
}

Flags::~Flags() = default;

bool Flags::parse(int argc, const char* const* argv) {
  try {
    state_->read_command_line(Words(argv + std::min(argc, 1), argv + argc));
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", state_->app.help());
    return false;
  } catch (const CLI::Error& e) {
    fail("{}", e.what());
  }
  if (const State::Flag* config = state_->find("config"); config && config->given && config->text) {
    state_->read_config(*config->text);
  }
  return true;
}

bool Flags::given(const std::string& name) const {
  const State::Flag* flag = state_->find(name);
  check(flag != nullptr, "--{}: asked about, but never declared", name);
  return flag->given;
}

void Flags::positional(const std::string& name, std::vector<std::string>& value, const std::string& help) {
  State::Flag& words = state_->words;
  check(words.option == nullptr, "{}: stray words are already declared", name);
  words.option = state_->app.add_option(
      name, [](const CLI::results_t&) { return true; }, help);
  words.option->type_name("TEXT")->expected(1, CLI::detail::expected_max_vector_size)->allow_extra_args();
  words.option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  words.set = [&value](const std::string&, const Words& given) { value = given; };
}

// clang-format off
void Flags::declare(const std::string& n, bool& v, const std::string& h) { state_->declare(n, v, h); }
void Flags::declare(const std::string& n, int& v, const std::string& h) { state_->declare(n, v, h); }
void Flags::declare(const std::string& n, std::int64_t& v, const std::string& h) { state_->declare(n, v, h); }
void Flags::declare(const std::string& n, std::uint64_t& v, const std::string& h) { state_->declare(n, v, h); }
void Flags::declare(const std::string& n, double& v, const std::string& h) { state_->declare(n, v, h); }
void Flags::declare(const std::string& n, std::string& v, const std::string& h) { state_->declare(n, v, h); }
void Flags::declare(const std::string& n, Words& v, const std::string& h) { state_->declare(n, v, h); }
void Flags::declare(const std::string& n, std::optional<int>& v, const std::string& h) { state_->declare(n, v, h); }
void Flags::declare(const std::string& n, std::optional<std::int64_t>& v, const std::string& h) { state_->declare(n, v, h); }
void Flags::declare(const std::string& n, std::optional<double>& v, const std::string& h) { state_->declare(n, v, h); }
void Flags::declare(const std::string& n, std::optional<std::string>& v, const std::string& h) { state_->declare(n, v, h); }
// clang-format on

}  // namespace grt
