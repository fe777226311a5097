#include "tools/analysis/prompts.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "train/distribution.h"
#include "train/host.h"

namespace grt {
namespace {

constexpr std::size_t kTop = 5;

struct Prompt {
  std::string kind, text, target;
};

const std::vector<Prompt>& built_in() {
  static const std::vector<Prompt> prompts = {
      {"knowledge", "The author of the book 1984 was George", " Orwell"},
      {"knowledge", "The capital of France is", " Paris"},
      {"reasoning", "All birds have wings. A crow is a bird. So a crow has", " wings"},
      {"reasoning", "One, two, three, four, five, six,", " seven"},
      {"open-ended", "It was a dark and stormy", " night"},
      {"open-ended", "She looked at him with a", " smile"},
  };
  return prompts;
}

std::vector<int> exit_depths(const LanguageModel& model) {
  std::vector<int> depths(model.depths().full - model.depths().lowest + 1);
  std::iota(depths.begin(), depths.end(), model.depths().lowest);
  return depths;
}

// log p of the next token in the rows of z from `begin` on.
std::vector<std::vector<double>> predictions(const LanguageModel& model, const Tensor& z, std::int64_t begin) {
  std::vector<std::vector<double>> rows;
  for (std::int64_t t = begin; t < z.shape().rows(); ++t) {
    std::vector<double> row = host_values(model.logits(z.rows(t, 1)));
    row.resize(static_cast<std::size_t>(model.config().vocab_size));
    log_softmax(row);
    rows.push_back(std::move(row));
  }
  return rows;
}

// 1 for the most probable; of equals the one with the smaller id is ahead.
std::int64_t rank_of(const std::vector<double>& log_p, int id) {
  std::int64_t rank = 1;
  for (int other = 0; other < static_cast<int>(log_p.size()); ++other)
    rank += log_p[other] > log_p[id] || (log_p[other] == log_p[id] && other < id);
  return rank;
}

Json top(const std::vector<double>& log_p, const Tokenizer& tokenizer) {
  std::vector<int> ids(log_p.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto end = ids.begin() + static_cast<std::ptrdiff_t>(std::min(kTop, ids.size()));
  std::partial_sort(ids.begin(), end, ids.end(),
                    [&](int a, int b) { return log_p[a] > log_p[b] || (log_p[a] == log_p[b] && a < b); });
  Json list = Json::array();
  for (auto id = ids.begin(); id != end; ++id)
    list.push_back({{"token", std::string(tokenizer.decode(*id))}, {"probability", std::exp(log_p[*id])}});
  return list;
}

Json exit_row(int depth, const std::vector<std::vector<double>>& log_p, std::span<const int> target,
              const Tokenizer& tokenizer) {
  double sum = 0;
  std::int64_t rank = 1;
  for (std::size_t i = 0; i < target.size(); ++i) {
    sum += log_p[i][target[i]];
    rank = std::max(rank, rank_of(log_p[i], target[i]));
  }
  return {{"depth", depth}, {"probability", std::exp(sum)}, {"rank", rank}, {"top", top(log_p[0], tokenizer)}};
}

Tensor input(std::span<const int> ids, Device& device) {
  const std::vector<std::int32_t> narrow(ids.begin(), ids.end());
  const Tensor t = Tensor::from<std::int32_t>({1, static_cast<std::int64_t>(ids.size())}, std::span(narrow), device);
  device.sync();  // before the ids die
  return t;
}

// What the model says next, by itself.
std::vector<int> likeliest(const Source& source, const Pass& pass, std::span<const int> ids) {
  const Tensor tokens = input(ids, source.model.device());
  const Tensor z = source.model.hidden(tokens, source.model.depths().full, pass).value();
  const std::vector<double> log_p = predictions(source.model, z, z.shape().rows() - 1)[0];
  return {static_cast<int>(std::max_element(log_p.begin(), log_p.end()) - log_p.begin())};
}

Json trajectory(const Source& source, const Tokenizer& tokenizer, const Prompt& prompt, bool chosen_by_model) {
  Pass pass = source.pass();
  pass.causal_routing = true;  // mor: as in generation
  std::vector<int> ids = tokenizer.encode(prompt.text);
  const auto first = static_cast<std::int64_t>(ids.size()) - 1;
  const std::vector<int> target = chosen_by_model ? likeliest(source, pass, ids) : tokenizer.encode(prompt.target);
  ids.insert(ids.end(), target.begin(), target.end() - 1);
  Json exits = Json::array();
  source.model.exits(input(ids, source.model.device()), exit_depths(source.model), pass, [&](int depth, const Var& z) {
    exits.push_back(exit_row(depth, predictions(source.model, z.value(), first), target, tokenizer));
  });
  return {{"class", prompt.kind}, {"prompt", prompt.text}, {"target", tokenizer.decode(target)}, {"exits", exits}};
}

std::int64_t length(const Tokenizer& tokenizer, const Prompt& prompt) {
  return static_cast<std::int64_t>(tokenizer.encode(prompt.text + prompt.target).size());
}

}  // namespace

Json measure_trajectories(const Source& source, const Tokenizer& tokenizer, const std::optional<std::string>& prompt,
                          const std::optional<std::string>& target) {
  const std::int64_t context = source.model.config().context_length;
  Json all = Json::array();
  if (prompt) {
    const Prompt given{"given", *prompt, target.value_or("")};
    check(length(tokenizer, given) <= context, "--prompt, --target: {} tokens are more than the model's context of {}",
          length(tokenizer, given), context);
    all.push_back(trajectory(source, tokenizer, given, !target));
  }
  for (const Prompt& p : built_in())
    if (length(tokenizer, p) <= context) all.push_back(trajectory(source, tokenizer, p, false));
  return all;
}

}  // namespace grt
