#include "train/speculate.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

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

// The depths at which to draft.
std::vector<int> candidates(const Speculation& speculation, int lowest, int full) {
  if (speculation.depth) return {*speculation.depth};
  std::vector<int> depths(full - lowest);
  std::iota(depths.begin(), depths.end(), lowest);
  return depths;
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
    : model_(model),
      speculation_(speculation),
      sampling_(sampling),
      decoder_(decoder),
      candidates_(candidates(speculation, model.depths().lowest, decoder.depth())) {
  const auto flops = [&](int depth) {
    const Flops all = model.flops(0, depth);
    return all.executed_body + all.executed_head;
  };
  for (const int depth : candidates_) costs_[depth] = flops(depth) / flops(decoder.depth());
}

Speculator::Choice Speculator::plan(Shares& shares, int most) const {
  Choice best{candidates_.front(), std::min(most, speculation_.tokens.value_or(0))};
  double best_rate = 0;
  for (const int depth : candidates_) {
    const Share& share = shares[depth];
    const int trusted = std::min(kMostDrafts, kTrust + static_cast<int>(std::lround(share.count)));
    const int least = std::min(most, speculation_.tokens.value_or(0));
    const int last = std::min(most, speculation_.tokens.value_or(trusted));
    for (int k = least; k <= last; ++k) {
      const double further_runs = static_cast<double>(k / kTokensAsAlone) * kRunCost;
      const double cost = 1 + k * (costs_.at(depth) + kRowCost) + further_runs;
      const double rate = expected_tokens(share.value(), k) / cost;
      if (rate <= best_rate) continue;
      best_rate = rate;
      best = {depth, k};
    }
  }
  for (auto& [depth, share] : shares)
    if (best.tokens == 0 || depth != best.depth) share.forget();
  return best;
}

std::vector<std::vector<NewToken>> Speculator::advance(std::span<const Growth> all) {
  std::vector<Draft> drafts;
  for (const Growth& growth : all) {
    Shares& shares = shares_[growth.sequence];
    const std::int64_t room = std::min(decoder_.room(growth.sequence), growth.most) - 1;
    const Choice choice = plan(shares, static_cast<int>(std::max<std::int64_t>(room, 0)));
    drafts.push_back({&growth, &shares[choice.depth], choice.depth, choice.tokens});
  }
  draft(drafts);
  return verify(drafts);
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
        if (d.depth != depth || static_cast<int>(d.ids.size()) >= d.wanted) continue;
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
  const int full = decoder_.depth();
  const std::vector<double> logits = decoder_.feed(feeds, std::span(&full, 1))[0];
  const auto V = static_cast<std::size_t>(model_.config().vocab_size);
  std::size_t row = 0;
  for (std::size_t i = 0; i < fed.size(); ++i) {
    const std::size_t rows = feeds[i].ids.size();
    results[fed[i]] = judge(drafts[fed[i]], std::span(logits).subspan(row * V, rows * V));
    decoder_.take_back(feeds[i].sequence, static_cast<std::int64_t>(rows - results[fed[i]].size()));
    row += rows;
  }
  return results;
}

// `logits` of full depth: after the last token, and after each draft. A draft x stands with probability min(1, p(x) /
// q(x)); the first that does not is replaced by one from what p has above q, so that either way p is what is sampled.
std::vector<NewToken> Speculator::judge(Draft& draft, std::span<const double> logits) {
  const Growth& growth = *draft.growth;
  const auto V = static_cast<std::size_t>(model_.config().vocab_size);
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
    draft.share->add(overlap(p, q));
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
