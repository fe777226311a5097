// Command-line flags, read into plain structs.
//
// A config is a struct with default values and one list of its fields:
//
//   struct OptimizerConfig {
//     double lr = 6e-4;
//     template <class V> void fields(V&& v) { v("lr", lr, "peak learning rate"); }
//   };
//
// Reading flags, the help text, --config files and the log of a run all walk that list. A field may be bool (a switch:
// --recompute, or --recompute=false), int, std::int64_t, std::uint64_t, double, std::string, std::vector<std::string>
// (several values), or, without a default, std::optional of int, std::int64_t, double or std::string.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/json.h"

namespace grt {

class Flags {
 public:
  Flags(std::string program, std::string purpose);
  ~Flags();
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;

  // Declares a flag for each field of `config`, which must outlive parse().
  template <class Config>
  void add(Config& config) {
    config.fields([this](const char* name, auto& value, const char* help) { declare(name, value, help); });
  }

  // Reads the command line. Throws Error (one line) for an unknown flag (naming the nearest known one), a malformed or
  // missing value, a flag given twice, or a stray word. False: --help was given and has been printed.
  // A program that declares a string flag "config" can be given a JSON object {"flag": value, ...} by --config FILE: it
  // counts as if typed, but the command line wins. There null means "not given", and the key "config" is passed over,
  // so that what values_of() returns can be read back.
  bool parse(int argc, const char* const* argv);

  bool given(const std::string& name) const;  // was --name on the command line (or in the --config file)?

  void declare(const std::string& name, bool& value, const std::string& help);
  void declare(const std::string& name, int& value, const std::string& help);
  void declare(const std::string& name, std::int64_t& value, const std::string& help);
  void declare(const std::string& name, std::uint64_t& value, const std::string& help);
  void declare(const std::string& name, double& value, const std::string& help);
  void declare(const std::string& name, std::string& value, const std::string& help);
  void declare(const std::string& name, std::vector<std::string>& value, const std::string& help);
  void declare(const std::string& name, std::optional<int>& value, const std::string& help);
  void declare(const std::string& name, std::optional<std::int64_t>& value, const std::string& help);
  void declare(const std::string& name, std::optional<double>& value, const std::string& help);
  void declare(const std::string& name, std::optional<std::string>& value, const std::string& help);
  // Takes the words that belong to no flag. Without it they are an error.
  void positional(const std::string& name, std::vector<std::string>& value, const std::string& help);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

namespace detail {
template <class T>
void put_value(Json& to, const char* name, const T& value) {
  to[name] = value;
}
template <class T>
void put_value(Json& to, const char* name, const std::optional<T>& value) {
  to[name] = value ? Json(*value) : Json(nullptr);
}
}  // namespace detail

// The fields of the configs and their values now, in order: for --print-config and the log of a run.
template <class... Configs>
Json values_of(Configs... configs) {
  Json all = Json::object();
  (configs.fields([&all](const char* name, auto& value, const char*) { detail::put_value(all, name, value); }), ...);
  return all;
}

}  // namespace grt
