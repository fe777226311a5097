#include "train/exit_rule.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "train/distribution.h"
#include "train/host.h"

namespace grt {
namespace {

constexpr const char* kNames[] = {"kl", "gate", "prob"};

const char* name_of(HaltKind kind) { return kNames[static_cast<int>(kind)]; }

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// The log-probabilities of each row's exit.
std::vector<std::vector<double>> log_probabilities(const LanguageModel& model, const Tensor& z) {
  const std::vector<double> padded = host_values(model.logits(z));
  const std::int64_t V = model.config().vocab_size, Vp = model.config().padded_vocab_size;
  std::vector<std::vector<double>> rows;
  for (auto row = padded.begin(); row != padded.end(); row += Vp) log_softmax(rows.emplace_back(row, row + V));
  return rows;
}

}  // namespace

ExitRule exit_rule(const std::string& text) {
  const std::size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  const auto known = std::find(std::begin(kNames), std::end(kNames), name);
  check(colon != text.npos && known != std::end(kNames), "--exit: must be kl:x, gate:x or prob:x, not \"{}\"", text);
  ExitRule rule{static_cast<HaltKind>(known - std::begin(kNames)), 0};
  const char *first = text.data() + colon + 1, *last = text.data() + text.size();
  const auto [stop, error] = std::from_chars(first, last, rule.threshold);
  const double most = rule.kind == HaltKind::prob ? 1 : std::numeric_limits<double>::max();
  check(error == std::errc{} && stop == last && rule.threshold >= 0 && rule.threshold <= most,
        "--exit: the threshold of {} must be a number from 0 {}, not \"{}\"", name,
        rule.kind == HaltKind::prob ? "to 1" : "on", text.substr(colon + 1));
  return rule;
}

std::string text_of(const ExitRule& rule) { return fmt::format("{}:{}", name_of(rule.kind), rule.threshold); }

void check_exit(const LanguageModel& model, const ExitRule& rule) {
  constexpr const char* kWhose[] = {"grt and poisson", "grt with its gate", "ouro"};
  check(model.halts(rule.kind), "--exit: {} is a rule of {}, not of this {} model", name_of(rule.kind),
        kWhose[static_cast<int>(rule.kind)], model.config().architecture);
}

ExitMeter::ExitMeter(const LanguageModel& model, HaltKind kind) : model_(model), kind_(kind) {
  if (kind == HaltKind::gate) temperature_ = model.config_json().at("gate_temperature");
  look_ = [this](std::string_view what, int, const Tensor& value) {
    if (what == (kind_ == HaltKind::gate ? "gate_logit" : "exit_logit")) shown_ = value;
  };
}

std::vector<double> ExitMeter::read(const Tensor& z) {
  switch (kind_) {
    case HaltKind::kl:
      return divergences(z);
    case HaltKind::gate:
      return openness();
    case HaltKind::prob:
      break;
  }
  return stopped(static_cast<std::size_t>(z.shape().rows()));
}

void ExitMeter::keep(std::span<const std::int32_t> rows) {
  std::vector<std::vector<double>> kept;
  for (const std::int32_t row : rows)
    if (!now_.empty()) kept.push_back(std::move(now_.at(row)));
  now_ = std::move(kept);
}

std::vector<double> ExitMeter::divergences(const Tensor& z) {
  std::vector<std::vector<double>> rows = log_probabilities(model_, z);
  std::vector<double> list(rows.size(), std::numeric_limits<double>::infinity());
  for (std::size_t i = 0; i < now_.size(); ++i) list[i] = kl_divergence(now_[i], rows.at(i));
  now_ = std::move(rows);
  return list;
}

std::vector<double> ExitMeter::openness() const {
  const std::vector<double> logits = host_values(shown_);
  const std::int64_t width = shown_.shape().last();
  std::vector<double> means(shown_.shape().rows());
  for (std::size_t i = 0; i < logits.size(); ++i)
    means[i / width] += sigmoid(-logits[i] / temperature_) / static_cast<double>(width);
  return means;
}

std::vector<double> ExitMeter::stopped(std::size_t rows) {
  if (now_.empty()) now_.assign(rows, {1.0});
  const std::vector<double> logits = host_values(shown_);
  std::vector<double> list;
  for (std::size_t i = 0; i < rows; ++i) {
    now_.at(i)[0] *= sigmoid(-logits.at(i));
    list.push_back(1 - now_[i][0]);
  }
  return list;
}

Halt::Halt(const LanguageModel& model, const ExitRule& rule) : rule_(rule), meter_(model, rule.kind) {
  halting_.sees_exits = meter_.sees_exits();
  halting_.depths = &depths_;
  halting_.going = [this](int, const Tensor& seen) {
    const std::vector<double> values = meter_.read(seen);
    std::vector<std::int32_t> rows;
    for (std::size_t i = 0; i < values.size(); ++i)
      if (!stops(values[i])) rows.push_back(static_cast<std::int32_t>(i));
    meter_.keep(rows);
    return rows;
  };
}

bool Halt::stops(double value) const {
  if (rule_.kind == HaltKind::prob) return rule_.threshold < 1 && value >= rule_.threshold;
  return value < rule_.threshold;
}

void Halt::enter(Pass& pass) {
  pass.halting = &halting_;
  pass.look = meter_.look();
}

}  // namespace grt
