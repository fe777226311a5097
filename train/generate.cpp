#include "train/generate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "train/host.h"
#include "train/optimizer.h"
#include "train/routes.h"

namespace grt {
namespace {

constexpr std::uint32_t kSampleSite = 0x73616d70;  // "samp": no site of a model's noise or of the data
constexpr std::int64_t kMostTokens = 1'000'000'000'000;
constexpr int kMostSamples = 65536;

double log_sum_exp(std::span<const double> logits, double largest) {
  double sum = 0;
  for (const double l : logits) sum += std::exp(l - largest);
  return largest + std::log(sum);
}

// Zeroes the weights of all ids but the top_k likeliest, and of these all but the likeliest that make up top_p.
void narrow(std::vector<double>& weights, std::span<const double> logits, const Sampling& sampling) {
  const auto V = static_cast<std::int64_t>(logits.size());
  const std::int64_t k = sampling.top_k > 0 ? std::min(sampling.top_k, V) : V;
  if (k == V && sampling.top_p >= 1) return;
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + k, order.end(),
                    [&](int a, int b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  double wanted = 0, sum = 0;
  for (std::int64_t i = 0; i < k; ++i) wanted += sampling.top_p * weights[order[i]];
  std::int64_t kept = 0;
  while (kept < k && (kept == 0 || sum < wanted)) sum += weights[order[kept++]];
  for (std::int64_t i = kept; i < V; ++i) weights[order[i]] = 0;
}

// The id at which the running sum of the weights passes u times their sum; u in [0, 1).
int id_at(double u, std::span<const double> weights) {
  const double target = u * std::accumulate(weights.begin(), weights.end(), 0.0);
  double sum = 0;
  int last = 0;
  for (std::size_t id = 0; id < weights.size(); ++id) {
    if (weights[id] == 0) continue;
    last = static_cast<int>(id);
    sum += weights[id];
    if (sum > target) break;
  }
  return last;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

void check_generation(const GenerateOptions& options) {
  const Sampling& s = options.sampling;
  check(std::isfinite(s.temperature) && s.temperature >= 0,
        "--temperature: must be a finite number from 0 on (0 is greedy), not {}", s.temperature);
  check(s.top_k >= 0, "--top-k: must be 0 (all tokens) or more, not {}", s.top_k);
  check(s.top_p > 0 && s.top_p <= 1, "--top-p: must be above 0 and at most 1, not {}", s.top_p);
  check(options.tokens >= 0 && options.tokens <= kMostTokens, "--tokens: must be 0..{}, not {}", kMostTokens,
        options.tokens);
  check(options.samples >= 1 && options.samples <= kMostSamples, "--samples: must be 1..{}, not {}", kMostSamples,
        options.samples);
}

NewToken choose(std::span<const double> logits, const Sampling& sampling, int sample, std::int64_t position) {
  const auto best = std::max_element(logits.begin(), logits.end());  // the first of equals
  int id = static_cast<int>(best - logits.begin());
  if (sampling.temperature > 0) {
    std::vector<double> weights(logits.size());
    for (std::size_t i = 0; i < logits.size(); ++i) weights[i] = std::exp((logits[i] - *best) / sampling.temperature);
    narrow(weights, logits, sampling);
    const NoiseKey key{sampling.seed, static_cast<std::uint32_t>(sample), kSampleSite};
    id = id_at(random_unit(key, static_cast<std::uint64_t>(position)), weights);
  }
  return {id, logits[id] - log_sum_exp(logits, *best)};
}

Decoder::Decoder(const LanguageModel& model, const DecodeOptions& options, std::int64_t most_tokens)
    : model_(model),
      options_(options),
      depth_(options.depth.value_or(model.depths().full)),
      context_(model.config().context_length),
      capacity_(std::clamp<std::int64_t>(most_tokens, 1, context_)) {
  model.check_depth(depth_);
  model.check_kv(options.kv);
  check(options.cached || options.kv == KvStrategy::full, "decoder: without a cache nothing can be kept by {}",
        name_of(options.kv));
  check(options.slide || most_tokens <= context_,
        "the prompt and what follows take {} tokens of context, but the model's context_length is {}: shorten them, or "
        "drop the oldest half each time with --overflow slide",
        most_tokens, context_);
}

std::vector<double> Decoder::start(std::span<const int> prompt) {
  check(!prompt.empty(), "the prompt is empty: give at least one token");
  for (std::size_t i = 0; i < prompt.size(); ++i) check_id(prompt[i], static_cast<std::int64_t>(i));
  windows_ = {{prompt.begin(), prompt.end()}};
  steps_ = {{}};
  dropped_ = 0;
  drop_oldest();
  cache_.reset();
  return feed_last(static_cast<std::int64_t>(windows_[0].size()));
}

void Decoder::fork(int sequences) {
  check(windows_.size() == 1, "decoder: {} sequences cannot be forked", windows_.size());
  windows_.resize(static_cast<std::size_t>(sequences), windows_[0]);
  steps_.resize(windows_.size(), steps_[0]);
  if (!cache_) return;
  KvCache forked = model_.make_cache(sequences, capacity_, depth_, options_.kv);
  forked.repeat(*cache_);
  cache_.emplace(std::move(forked));
}

std::vector<double> Decoder::next(std::span<const int> ids) {
  check(ids.size() == windows_.size(), "decoder: {} ids for {} sequences", ids.size(), windows_.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    check_id(ids[i], dropped_ + static_cast<std::int64_t>(windows_[i].size()));
    windows_[i].push_back(ids[i]);
  }
  if (drop_oldest()) cache_.reset();
  return feed_last(cache_ ? 1 : static_cast<std::int64_t>(windows_[0].size()));
}

// Runs the last `count` tokens of each window; those before them are in the cache.
std::vector<double> Decoder::feed_last(std::int64_t count) {
  const auto sequences = static_cast<std::int64_t>(windows_.size());
  std::vector<std::int32_t> ids;
  for (const std::vector<int>& window : windows_) ids.insert(ids.end(), window.end() - count, window.end());
  if (options_.cached && !cache_) cache_.emplace(model_.make_cache(sequences, capacity_, depth_, options_.kv));

  Pass pass;
  pass.cache = cache_ ? &*cache_ : nullptr;
  pass.key.seed = options_.seed;
  pass.causal_routing = true;
  const Tensor tokens = Tensor::from<std::int32_t>({sequences, count}, ids, model_.device());
  Routes routes;
  if (options_.count_steps) pass.look = routes.next(sequences, count);
  const Tensor z = model_.hidden(tokens, depth_, pass).value();
  if (options_.count_steps) keep_steps(routes.steps(), count);
  if (cache_) cache_->past += count;
  return logits_of(z);
}

// Of the last `count` tokens of each sequence; a model that routes nothing takes each through all steps.
void Decoder::keep_steps(const std::vector<int>& fed, std::int64_t count) {
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const std::size_t end = static_cast<std::size_t>(dropped_) + windows_[i].size();
    steps_[i].resize(end);
    for (std::int64_t t = 0; t < count; ++t) {
      const auto row = static_cast<std::size_t>(static_cast<std::int64_t>(i) * count + t);
      steps_[i][end - static_cast<std::size_t>(count - t)] = fed.empty() ? depth_ : fed[row];
    }
  }
}

// Of the last position of each sequence; z is (sequences, time, d).
std::vector<double> Decoder::logits_of(const Tensor& z) const {
  const std::int64_t sequences = z.dim(0), time = z.dim(1);
  const Tensor last = Tensor::empty({sequences, z.dim(2)}, z.dtype(), z.device());
  for (std::int64_t i = 0; i < sequences; ++i) {
    const Tensor from = z.rows(i * time + time - 1, 1);
    z.device().copy(last.rows(i, 1).raw(), from.raw(), from.bytes());
  }
  const std::vector<double> padded = host_values(model_.logits(last));

  const std::int64_t V = model_.config().vocab_size, Vp = model_.config().padded_vocab_size;
  std::vector<double> logits;
  for (std::int64_t i = 0; i < sequences; ++i)
    logits.insert(logits.end(), padded.begin() + i * Vp, padded.begin() + i * Vp + V);
  check_finite(logits);
  return logits;
}

void Decoder::check_finite(std::span<const double> logits) const {
  const auto bad = std::find_if(logits.begin(), logits.end(), [](double l) { return !std::isfinite(l); });
  if (bad == logits.end()) return;
  fail("the logit of id {} is {} after {} tokens; {}", (bad - logits.begin()) % model_.config().vocab_size, *bad,
       dropped_ + static_cast<std::int64_t>(windows_[0].size()), blame_weights(model_.params()));
}

// Halves of a full context, as many as are needed, so that its oldest tokens go a few times in a long text and not at
// each token.
bool Decoder::drop_oldest() {
  const std::int64_t excess = static_cast<std::int64_t>(windows_[0].size()) - context_;
  if (excess <= 0) return false;
  check(options_.slide, "the context is above the model's context_length {}", context_);
  const std::int64_t half = (context_ + 1) / 2, count = (excess + half - 1) / half * half;
  for (std::vector<int>& window : windows_) window.erase(window.begin(), window.begin() + count);
  dropped_ += count;
  return true;
}

void Decoder::check_id(int id, std::int64_t position) const {
  check(id >= 0 && id < model_.config().vocab_size, "token {}: id {} is outside [0, {}), the model's vocabulary",
        position, id, model_.config().vocab_size);
}

std::int64_t Decoder::cache_bytes() const { return cache_ ? cache_->bytes() : 0; }

GenerateStats generate(const LanguageModel& model, std::span<const int> prompt, const GenerateOptions& options,
                       const OnToken& on_token) {
  check_generation(options);
  const auto prompt_tokens = static_cast<std::int64_t>(prompt.size());
  GenerateStats stats;
  stats.prompt_tokens = prompt_tokens;
  // The last token is chosen, not fed.
  Decoder decoder(model, options.decode, prompt_tokens + std::max<std::int64_t>(0, options.tokens - 1));
  auto start = std::chrono::steady_clock::now();
  const std::vector<double> first = decoder.start(prompt);
  decoder.fork(options.samples);
  stats.prompt_seconds = seconds_since(start);

  start = std::chrono::steady_clock::now();
  const std::size_t V = first.size();
  std::vector<double> logits;
  for (int i = 0; i < options.samples; ++i) logits.insert(logits.end(), first.begin(), first.end());
  std::vector<int> ids(options.samples, -1);
  std::vector<std::size_t> lengths(options.samples, prompt.size());
  for (std::int64_t t = 0; t < options.tokens; ++t) {
    if (t > 0) logits = decoder.next(ids);
    bool all_ended = true;
    for (int i = 0; i < options.samples; ++i) {
      if (options.stop_id && ids[i] == *options.stop_id) continue;  // ended: goes on with the same id, unheard
      const NewToken token = choose(std::span(logits).subspan(i * V, V), options.sampling, i, prompt_tokens + t);
      ids[i] = token.id;
      if (options.stop_id && token.id == *options.stop_id) continue;
      all_ended = false;
      ++lengths[i];
      ++stats.new_tokens;
      on_token(i, token);
    }
    if (all_ended) break;
  }
  stats.seconds = seconds_since(start);
  stats.cache_bytes = decoder.cache_bytes();
  stats.steps = decoder.steps();
  for (int i = 0; i < options.samples; ++i)  // an ended sample went on unheard
    if (stats.steps[i].size() > lengths[i]) stats.steps[i].resize(lengths[i]);
  return stats;
}

std::vector<double> score(const LanguageModel& model, std::span<const int> prompt, std::span<const int> ids,
                          const DecodeOptions& options) {
  check(!ids.empty(), "--score-ids: no ids to score");
  Decoder decoder(model, options, static_cast<std::int64_t>(prompt.size() + ids.size()) - 1);
  std::vector<double> logprobs, logits = decoder.start(prompt);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    check(ids[i] >= 0 && ids[i] < static_cast<int>(logits.size()),
          "--score-ids: id {} is outside [0, {}), the model's vocabulary", ids[i], logits.size());
    logprobs.push_back(logits[ids[i]] - log_sum_exp(logits, *std::max_element(logits.begin(), logits.end())));
    if (i + 1 < ids.size()) logits = decoder.next(ids.subspan(i, 1));
  }
  return logprobs;
}

}  // namespace grt
