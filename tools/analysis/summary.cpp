#include "tools/analysis/summary.h"

#include <map>

namespace grt {
namespace {

std::string number(const Json& value, const char* format = "{:.4f}") {
  return value.is_number() ? fmt::format(fmt::runtime(format), value.get<double>()) : "-";
}

std::string heading(const Json& a) {
  return fmt::format("{} {}, {} tokens of {} in {} windows\n", a["architecture"].get<std::string>(),
                     a["layout"].get<std::string>(), a["tokens"].get<std::int64_t>(), a["data"].get<std::string>(),
                     a["windows"].get<std::int64_t>());
}

std::string exits(const Json& a) {
  std::string text =
      fmt::format("\n{:>6}  {:>9}  {:>12}  {:>9}  {:>14}\n", "depth", "loss", "KL to final", "share", "MFLOP a token");
  for (const Json& e : a["exits"])
    text += fmt::format("{:>6}  {:>9}  {:>12}  {:>9}  {:>14}\n", e["depth"].get<int>(), number(e["loss"]),
                        number(e["kl_to_final"]), e["share"].is_null() ? "-" : number(e["share"], "{:.3f}"),
                        fmt::format("{:.3f}", e["flops_per_token"].get<double>() / 1e6));
  return text;
}

std::string steps(const Json& a) {
  std::string text = fmt::format("\n{:>6}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}  {:>8}  {:>9}\n", "step", "state",
                                 "proposal", "update", "cos", "gain", "gate", "open");
  for (std::size_t i = 0; i < a["dynamics"]["steps"].size(); ++i) {
    const Json& s = a["dynamics"]["steps"][i];
    const Json gate = a.contains("gates") ? a["gates"]["steps"][i] : Json::object();
    text += fmt::format("{:>6}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}  {:>8}  {:>9}\n", s["step"].get<int>(),
                        number(s["state_norm"]), number(s["proposal_norm"]), number(s["update_norm"]),
                        number(s["cos_new_old"]), number(s["gain"], "{:.3f}"), number(gate.value("mean", Json())),
                        number(gate.value("effective_openness", Json())));
  }
  return text + "state, proposal, update: norms; cos: of the new state and the old one; open: update / proposal\n";
}

std::string ablations(const Json& a) {
  std::string text;
  if (a.contains("gates")) {
    text += "\nloss with the gate forced to";
    for (const Json& f : a["gates"]["forced"])
      text += fmt::format("  {}: {}", number(f["gate"], "{:g}"), number(f["loss"]));
    text += fmt::format("  learned: {}\n", number(a["gates"]["learned_loss"]));
  }
  if (a.contains("reinjection")) {
    text += "loss with the anchor";
    for (const Json& r : a["reinjection"])
      text += fmt::format("  {}: {}", r["anchor"].get<std::string>(), number(r["loss"]));
    text += "\n";
  }
  return text;
}

std::string movement_and_heads(const Json& a) {
  std::string text = "\n";
  if (a["dynamics"].contains("classification")) {
    text += fmt::format("tokens after {} steps:", a["dynamics"]["extended_steps"].get<int>());
    for (const Json& c : a["dynamics"]["classification"])
      text += fmt::format("  {} {}", c["kind"].get<std::string>(), number(c["share"], "{:.3f}"));
    text += "\n";
  }
  const Json& deciles = a["difficulty"]["deciles"];
  text += fmt::format("improvement from the first exit: easiest tenth {}, hardest {}; line r2 {}\n",
                      number(deciles.front()["improvement"]), number(deciles.back()["improvement"]),
                      number(a["difficulty"]["r2"]));
  std::map<std::string, int> kinds;
  int changes = 0;
  for (const Json& head : a["heads"]["list"]) {
    ++kinds[head["steps"].back()["kind"].get<std::string>()];
    changes += head["changes"].get<bool>();
  }
  text += "heads:";
  for (const auto& [kind, count] : kinds) text += fmt::format("  {} {}", kind, count);
  text += fmt::format("; {} change their kind over the steps\n", changes);
  if (a.contains("weights") && a["weights"].contains("gate"))
    text += fmt::format("gate's first layer, largest singular value: anchor / state {}\n",
                        number(a["weights"]["gate"]["ratio"], "{:.3f}"));
  return text;
}

}  // namespace

std::string summary(const Json& analysis) {
  return heading(analysis) + exits(analysis) + steps(analysis) + ablations(analysis) + movement_and_heads(analysis);
}

}  // namespace grt
