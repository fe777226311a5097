#include "train/speculate.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <set>

namespace grt {
namespace {

std::optional<int> number(const std::string& text, int least) {
  int value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc{} && stop == end && value >= least ? std::optional(value) : std::nullopt;
}

// The probability that a draft from q is taken where p is wanted.
double overlap(std::span<const double> p, std::span<const double> q) {
  double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) sum += std::min(p[i], q[i]);
  return sum;
}

// What p has above q: of what a token that takes the place of a refused draft is chosen.
std::vector<double> rest(const std::vector<double>& p, std::span<const double> q) {
  std::vector<double> weights(p.size());
  double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) sum += weights[i] = std::max(p[i] - q[i], 0.0);
  return sum > 0 ? weights : p;  // equal but for rounding
}

}  // namespace

Speculation speculation(const std::string& text) {
  const std::size_t colon = text.find(':');
  const std::string first = text.substr(0, colon);
  const std::optional<int> tokens = number(first, 1),
                           depth = colon == text.npos ? 0 : number(text.substr(colon + 1), 0);
  check((tokens || first == "auto") && depth,
        "--speculate: must be auto, k, k:r or auto:r, with k tokens from 1 on drafted at depth r, not \"{}\"", text);
  return {tokens, colon == text.npos ? std::nullopt : depth};
}

void check_speculation(const LanguageModel& model, const Speculation& s, const DecodeOptions& options) {
  const int full = options.depth.value_or(model.depths().full), lowest = model.depths().lowest;
  check(options.kv == KvStrategy::full,
        "--speculate: verifies several tokens in one pass, which --kv {} does not compute as token by token: it needs "
        "--kv full",
        name_of(options.kv));
  check(!options.exit, "--speculate: its tokens all take the same steps; it does not go with --exit");
  check(options.cached, "--speculate: needs a cache");
  check(lowest < full, "--speculate: this {} model has no exit before depth {} to draft at",
        model.config().architecture, full);
  check(!s.depth || (lowest <= *s.depth && *s.depth < full), "--speculate: drafts need a depth of {}..{}, not {}",
        lowest, full - 1, s.depth.value_or(0));
}

double expected_tokens(double share, int drafts) {
  double sum = 1, power = 1;
  for (int i = 0; i < drafts; ++i) sum += power *= share;
  return sum;
}

Speculator::Speculator(const LanguageModel& model, const Speculation& speculation, const Sampling& sampling,
                       Decoder& decoder)
    : model_(model), speculation_(speculation), sampling_(sampling), decoder_(decoder) {
  if (speculation.depth) {
    candidates_ = {*speculation.depth};
  } else {
    candidates_.resize(decoder.depth() - model.depths().lowest);
    std::iota(candidates_.begin(), candidates_.end(), model.depths().lowest);
  }
  const auto flops = [&](int depth) {
    const Flops all = model.flops(0, depth);
    return all.executed_body + all.executed_head;
  };
  for (const int depth : candidates_) costs_[depth] = flops(depth) / flops(decoder.depth());
}

Speculator::Plan& Speculator::plan_of(std::int64_t sequence) {
  const auto [place, fresh] = plans_.try_emplace(sequence);
  Plan& plan = place->second;
  if (fresh) {
    for (const int depth : candidates_) plan.shares[depth] = {};
    plan.depth = candidates_.front();
    plan.tokens = speculation_.tokens.value_or(0);
  }
  return plan;
}

bool Speculator::measures(const Plan& plan) const {
  return plan.measured < kMeasured && !(speculation_.tokens && speculation_.depth);
}

double Speculator::rate(const Plan& plan, int depth, int tokens) const {
  return expected_tokens(plan.shares.at(depth).value(), tokens) / (tokens * (costs_.at(depth) + kRowCost) + 1);
}

void Speculator::replan(Plan& plan) const {
  const int least = speculation_.tokens.value_or(0), most = speculation_.tokens.value_or(kMostDrafts);
  double best = 0;
  for (const int depth : candidates_)
    for (int k = least; k <= most; ++k) {
      if (rate(plan, depth, k) <= best) continue;
      best = rate(plan, depth, k);
      plan.depth = depth;
      plan.tokens = k;
    }
}

std::vector<std::vector<NewToken>> Speculator::advance(std::span<const Growth> all) {
  std::vector<std::vector<NewToken>> results(all.size());
  std::vector<std::size_t> measured, drafted;
  std::vector<Draft> drafts;
  for (std::size_t i = 0; i < all.size(); ++i) {
    Plan& plan = plan_of(all[i].sequence);
    if (measures(plan) && decoder_.room(all[i].sequence) > 0) {
      measured.push_back(i);
      continue;
    }
    const std::int64_t room = std::min(decoder_.room(all[i].sequence), all[i].most) - 1;
    drafts.push_back({&all[i], &plan, static_cast<int>(std::clamp<std::int64_t>(room, 0, plan.tokens)), {}, {}});
    drafted.push_back(i);
  }
  if (!measured.empty()) measure(all, measured, results);
  if (drafts.empty()) return results;
  draft(drafts);
  std::vector<std::vector<NewToken>> verified = verify(drafts);
  for (std::size_t i = 0; i < drafted.size(); ++i) results[drafted[i]] = std::move(verified[i]);
  return results;
}

void Speculator::measure(std::span<const Growth> all, std::span<const std::size_t> which,
                         std::vector<std::vector<NewToken>>& results) {
  std::vector<Decoder::Feed> feeds;
  for (const std::size_t i : which) feeds.push_back({all[i].sequence, {all[i].last}});
  std::vector<int> depths = candidates_;
  depths.push_back(decoder_.depth());
  const std::vector<std::vector<double>> logits = decoder_.feed(feeds, depths);
  const auto V = static_cast<std::size_t>(model_.config().vocab_size);
  for (std::size_t i = 0; i < which.size(); ++i) {
    const Growth& growth = all[which[i]];
    Plan& plan = plan_of(growth.sequence);
    const auto at = [&](std::size_t exit) { return std::span(logits[exit]).subspan(i * V, V); };
    const std::vector<double> p = distribution(at(candidates_.size()), sampling_);
    for (std::size_t c = 0; c < candidates_.size(); ++c) {
      plan.shares[candidates_[c]].add(overlap(p, distribution(at(c), sampling_)));
    }
    if (++plan.measured == kMeasured) replan(plan);
    results[which[i]] = {choose(at(candidates_.size()), sampling_, growth.sample, growth.position)};
    ++stats_.passes;
  }
}

// One token at a time of all sequences that want another, those of one depth in one pass.
void Speculator::draft(std::vector<Draft>& drafts) {
  const auto V = static_cast<std::size_t>(model_.config().vocab_size);
  for (bool more = true; more;) {
    more = false;
    for (const int depth : candidates_) {
      std::vector<Decoder::Feed> feeds;
      std::vector<Draft*> fed;
      for (Draft& d : drafts) {
        if (d.plan->depth != depth || static_cast<int>(d.ids.size()) >= d.wanted) continue;
        feeds.push_back({d.growth->sequence, {d.ids.empty() ? d.growth->last : d.ids.back()}});
        fed.push_back(&d);
      }
      if (fed.empty()) continue;
      more = true;
      const std::vector<double> logits = decoder_.feed(feeds, std::span(&depth, 1))[0];
      for (std::size_t i = 0; i < fed.size(); ++i) {
        const auto mine = std::span(logits).subspan(i * V, V);
        const auto position = fed[i]->growth->position + static_cast<std::int64_t>(fed[i]->ids.size());
        fed[i]->ids.push_back(choose(mine, sampling_, fed[i]->growth->sample, position).id);
        fed[i]->distributions.push_back(distribution(mine, sampling_));
        ++stats_.depths[depth];
      }
    }
  }
  for (const Draft& d : drafts)
    decoder_.take_back(d.growth->sequence, static_cast<std::int64_t>(d.ids.size()));  // as many as were fed
}

std::vector<std::vector<NewToken>> Speculator::verify(std::vector<Draft>& drafts) {
  std::vector<std::vector<NewToken>> results(drafts.size());
  std::vector<Decoder::Feed> feeds;
  std::vector<std::size_t> fed;
  for (std::size_t i = 0; i < drafts.size(); ++i) {
    const Growth& growth = *drafts[i].growth;
    ++stats_.passes;
    if (decoder_.room(growth.sequence) < 1) {  // the context slides
      const std::vector<double> logits = decoder_.next(std::span(&growth.sequence, 1), std::span(&growth.last, 1));
      results[i] = judge(drafts[i], logits);
      continue;
    }
    Decoder::Feed feed{growth.sequence, {growth.last}};
    feed.ids.insert(feed.ids.end(), drafts[i].ids.begin(), drafts[i].ids.end());
    feeds.push_back(std::move(feed));
    fed.push_back(i);
  }
  if (feeds.empty()) return results;
  std::set<int> depths = {decoder_.depth()};
  for (const std::size_t i : fed)
    if (const std::optional<int> depth = probed(*drafts[i].plan)) depths.insert(*depth);
  const std::vector<std::vector<double>> logits = decoder_.feed(feeds, std::vector<int>(depths.begin(), depths.end()));
  const auto V = static_cast<std::size_t>(model_.config().vocab_size);
  std::size_t row = 0;
  for (std::size_t i = 0; i < fed.size(); ++i) {
    const std::size_t rows = feeds[i].ids.size();
    const auto at = [&](std::size_t exit) { return std::span(logits[exit]).subspan(row * V, rows * V); };
    std::vector<NewToken>& tokens = results[fed[i]];
    Plan& plan = *drafts[fed[i]].plan;
    const std::optional<int> beside = probed(plan);
    tokens = judge(drafts[fed[i]], at(depths.size() - 1));
    if (beside) {
      const auto exit = static_cast<std::size_t>(std::distance(depths.begin(), depths.find(*beside)));
      look_beside(plan, *beside, at(depths.size() - 1), at(exit), tokens.size());
    }
    decoder_.take_back(feeds[i].sequence, static_cast<std::int64_t>(rows - tokens.size()));
    if (++plan.rounds; plan.tokens > 0) replan(plan);
    row += rows;
  }
  return results;
}

// The depth below or above that of the drafts, in turn.
std::optional<int> Speculator::probed(const Plan& plan) const {
  const int depth = plan.depth + (plan.rounds / kProbe % 2 == 0 ? -1 : 1);
  const bool due = plan.tokens > 0 && plan.rounds % kProbe == kProbe - 1;
  return due && costs_.contains(depth) ? std::optional(depth) : std::nullopt;
}

void Speculator::look_beside(Plan& plan, int depth, std::span<const double> full, std::span<const double> shallow,
                             std::size_t rows) {
  const auto V = static_cast<std::size_t>(model_.config().vocab_size);
  for (std::size_t i = 0; i < rows; ++i)
    plan.shares[depth].add(
        overlap(distribution(full.subspan(i * V, V), sampling_), distribution(shallow.subspan(i * V, V), sampling_)));
}

// `logits` of full depth: after the last token, and after each draft. A draft x stands with probability min(1, p(x) /
// q(x)); the first that does not is replaced by one from what p has above q, so that either way p is what is sampled.
std::vector<NewToken> Speculator::judge(Draft& draft, std::span<const double> logits) {
  const Growth& growth = *draft.growth;
  const auto V = static_cast<std::size_t>(model_.config().vocab_size);
  Share& share = draft.plan->shares[draft.plan->depth];
  stats_.drafted += static_cast<std::int64_t>(draft.ids.size());
  std::vector<NewToken> tokens;
  bool all_stand = true;
  for (std::size_t i = 0; i < draft.ids.size() && all_stand; ++i) {
    const auto mine = logits.subspan(i * V, V);
    const auto position = growth.position + static_cast<std::int64_t>(i);
    const std::vector<double> p = distribution(mine, sampling_), &q = draft.distributions[i];
    int id = draft.ids[i];
    all_stand = random_number(sampling_, Draw::accept, growth.sample, position) * q[id] < p[id];
    if (!all_stand) id = id_at(random_number(sampling_, Draw::instead, growth.sample, position), rest(p, q));
    tokens.push_back({id, logprob(mine, id)});
    share.add(overlap(p, q));
    stats_.taken += all_stand;
  }
  if (all_stand) {
    const std::size_t n = tokens.size();
    tokens.push_back(
        choose(logits.subspan(n * V, V), sampling_, growth.sample, growth.position + static_cast<std::int64_t>(n)));
  }
  return tokens;
}

}  // namespace grt
