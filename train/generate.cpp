#include "train/generate.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace grt {
namespace {

constexpr std::int64_t kMostTokens = 1'000'000'000'000;
constexpr std::int64_t kMostSamples = 65536;

// Adds the seconds that it lives.
class Stopwatch {
 public:
  explicit Stopwatch(double& to) : to_(to), start_(std::chrono::steady_clock::now()) {}
  ~Stopwatch() { to_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& to_;
  std::chrono::steady_clock::time_point start_;
};

// All continuations of a call, of which those that have ended take no further part.
class Generation {
 public:
  Generation(const LanguageModel& model, std::span<const std::vector<int>> prompts, const GenerateOptions& options,
             const OnToken& on_token)
      : options_(options),
        on_token_(on_token),
        V_(static_cast<std::size_t>(model.config().vocab_size)),
        decoder_(model, options.decode, most_tokens(prompts, options)) {
    if (options.speculation) speculator_.emplace(model, *options.speculation, options.sampling, decoder_);
    if (options.compare) {
      DecodeOptions full = options.decode;
      full.exit.reset();
      full_depth_.emplace(model, full, most_tokens(prompts, options));
    }
    start(prompts);
  }

  // Of one sequence: the last token is chosen, not fed.
  static std::int64_t most_tokens(std::span<const std::vector<int>> prompts, const GenerateOptions& options) {
    std::size_t longest = 0;
    for (const std::vector<int>& prompt : prompts) longest = std::max(longest, prompt.size());
    return static_cast<std::int64_t>(longest) + std::max<std::int64_t>(0, options.tokens - 1);
  }

  GenerateStats finish() {
    while (!active_.empty()) {
      if (speculator_) {
        speculate();
      } else {
        step();
      }
    }
    stats_.decoded += stats_.new_tokens;
    if (full_depth_)
      stats_.agreement =
          static_cast<double>(agreed_) / static_cast<double>(std::max<std::int64_t>(1, stats_.new_tokens));
    if (speculator_) stats_.speculation = speculator_->stats();
    stats_.cache_bytes = decoder_.cache_bytes();
    stats_.substituted = decoder_.substituted();
    stats_.steps = decoder_.steps();
    for (std::size_t i = 0; i < stats_.steps.size(); ++i)  // drafts may have gone on beyond the end
      if (stats_.steps[i].size() > lengths_[i]) stats_.steps[i].resize(lengths_[i]);
    return stats_;
  }

 private:
  struct Active {
    std::int64_t sequence;
    std::int64_t position, left;  // tokens before the next one; new ones wanted
    int last = -1;
  };

  int sample(const Active& a) const { return static_cast<int>(a.sequence % options_.samples); }

  // The prompts, and the first token of each sample.
  void start(std::span<const std::vector<int>> prompts) {
    std::vector<double> once;
    {
      const Stopwatch time(stats_.prompt_seconds);
      once = decoder_.start(prompts);
      decoder_.fork(options_.samples);
    }
    const std::vector<int> exits = decoder_.exit_depths();
    std::vector<double> compared;
    if (full_depth_) {
      compared = full_depth_->start(prompts);
      full_depth_->fork(options_.samples);
    }
    for (std::size_t p = 0; p < prompts.size(); ++p) {
      const auto length = static_cast<std::int64_t>(prompts[p].size());
      stats_.prompt_tokens += length;
      lengths_.insert(lengths_.end(), options_.samples, prompts[p].size());
      for (int i = 0; i < options_.samples && options_.tokens > 0; ++i) {
        Active a{static_cast<std::int64_t>(active_.size()), length, options_.tokens};
        take(a, choose(of(once, p), options_.sampling, i, length), exits[p], of(compared, p));
        active_.push_back(a);
      }
    }
    stats_.decoded = -stats_.new_tokens;
    drop_ended();
  }

  std::span<const double> of(const std::vector<double>& logits, std::size_t row) const {
    return logits.empty() ? std::span<const double>() : std::span(logits).subspan(row * V_, V_);
  }

  // `compared`: the logits of full depth, if they are wanted.
  void take(Active& a, const NewToken& token, int depth, std::span<const double> compared = {}) {
    a.last = token.id;
    if (options_.stop_id && token.id == *options_.stop_id) {
      a.left = 0;
      return;
    }
    if (!compared.empty()) agreed_ += choose(compared, options_.sampling, sample(a), a.position).id == token.id;
    ++a.position;
    --a.left;
    ++stats_.depths[depth];
    ++stats_.new_tokens;
    ++lengths_[a.sequence];
    on_token_(static_cast<int>(a.sequence), token);
  }

  void step() {
    std::vector<std::int64_t> sequences;
    std::vector<int> ids;
    for (const Active& a : active_) {
      sequences.push_back(a.sequence);
      ids.push_back(a.last);
    }
    std::vector<NewToken> tokens;
    {
      const Stopwatch time(stats_.seconds);
      const std::vector<double> logits = decoder_.next(sequences, ids);
      for (std::size_t i = 0; i < active_.size(); ++i)
        tokens.push_back(choose(of(logits, i), options_.sampling, sample(active_[i]), active_[i].position));
    }
    const std::vector<double> compared = full_depth_ ? full_depth_->next(sequences, ids) : std::vector<double>();
    for (std::size_t i = 0; i < active_.size(); ++i)
      take(active_[i], tokens[i], decoder_.exit_depths()[i], of(compared, i));
    drop_ended();
  }

  void speculate() {
    std::vector<Speculator::Growth> growths;
    for (const Active& a : active_) growths.push_back({a.sequence, sample(a), a.last, a.position, a.left});
    std::vector<std::vector<NewToken>> tokens;
    {
      const Stopwatch time(stats_.seconds);
      tokens = speculator_->advance(growths);
    }
    for (std::size_t i = 0; i < active_.size(); ++i)
      for (std::size_t t = 0; t < tokens[i].size() && active_[i].left > 0; ++t)
        take(active_[i], tokens[i][t], decoder_.depth());
    drop_ended();
  }

  void drop_ended() {
    std::erase_if(active_, [](const Active& a) { return a.left == 0; });
  }

  const GenerateOptions& options_;
  const OnToken& on_token_;
  std::size_t V_;
  Decoder decoder_;
  std::optional<Decoder> full_depth_;
  std::optional<Speculator> speculator_;
  std::vector<Active> active_;
  std::vector<std::size_t> lengths_;  // of each continuation, with its prompt
  GenerateStats stats_;
  std::int64_t agreed_ = 0;
};

}  // namespace

void check_generation(const GenerateOptions& options) {
  check_sampling(options.sampling);
  check(options.tokens >= 0 && options.tokens <= kMostTokens, "--tokens: must be 0..{}, not {}", kMostTokens,
        options.tokens);
  check(options.side_by_side >= 0, "--batch-size: must be 0 (all prompts) or more, not {}", options.side_by_side);
  check(options.samples >= 1 && options.samples <= kMostSamples, "--samples: must be 1..{}, not {}", kMostSamples,
        options.samples);
}

void GenerateStats::add(const GenerateStats& other) {
  if (other.agreement) {
    const double n = static_cast<double>(new_tokens), m = static_cast<double>(other.new_tokens);
    agreement = (agreement.value_or(0) * n + *other.agreement * m) / std::max(1.0, n + m);
  }
  prompt_tokens += other.prompt_tokens;
  new_tokens += other.new_tokens;
  decoded += other.decoded;
  cache_bytes = std::max(cache_bytes, other.cache_bytes);
  prompt_seconds += other.prompt_seconds;
  seconds += other.seconds;
  for (const auto& [depth, tokens] : other.depths) depths[depth] += tokens;
  substituted += other.substituted;
  speculation.passes += other.speculation.passes;
  speculation.drafted += other.speculation.drafted;
  speculation.taken += other.speculation.taken;
  for (const auto& [depth, drafts] : other.speculation.depths) speculation.depths[depth] += drafts;
  steps.insert(steps.end(), other.steps.begin(), other.steps.end());
}

GenerateStats generate(const LanguageModel& model, std::span<const std::vector<int>> prompts,
                       const GenerateOptions& options, const OnToken& on_token) {
  check_generation(options);
  check(!prompts.empty(), "no prompt is given");
  if (options.speculation) check_speculation(model, *options.speculation, options.decode);
  Decoder(model, options.decode, Generation::most_tokens(prompts, options));  // do all fit, before any is continued?
  const std::size_t most = options.side_by_side > 0 ? static_cast<std::size_t>(options.side_by_side) : prompts.size();
  const std::unique_ptr<Hold> hold = hold_rounded(model);
  GenerateStats stats;
  for (std::size_t first = 0; first < prompts.size(); first += most) {
    const OnToken shifted = [&](int sample, const NewToken& token) {
      on_token(static_cast<int>(first) * options.samples + sample, token);
    };
    const auto part = prompts.subspan(first, std::min(most, prompts.size() - first));
    stats.add(Generation(model, part, options, shifted).finish());
  }
  return stats;
}

GenerateStats generate(const LanguageModel& model, std::span<const int> prompt, const GenerateOptions& options,
                       const OnToken& on_token) {
  const std::vector<int> one(prompt.begin(), prompt.end());
  return generate(model, std::span(&one, 1), options, on_token);
}

std::vector<double> score(const LanguageModel& model, std::span<const int> prompt, std::span<const int> ids,
                          const DecodeOptions& options) {
  check(!ids.empty(), "--score-ids: no ids to score");
  const std::unique_ptr<Hold> hold = hold_rounded(model);
  Decoder decoder(model, options, static_cast<std::int64_t>(prompt.size() + ids.size()) - 1);
  std::vector<double> logprobs, logits = decoder.start(prompt);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    check(ids[i] >= 0 && ids[i] < static_cast<int>(logits.size()),
          "--score-ids: id {} is outside [0, {}), the model's vocabulary", ids[i], logits.size());
    logprobs.push_back(logprob(logits, ids[i]));
    if (i + 1 < ids.size()) logits = decoder.next(ids.subspan(i, 1));
  }
  return logprobs;
}

}  // namespace grt
