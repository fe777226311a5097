#include "train/decoder.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "train/host.h"
#include "train/optimizer.h"
#include "train/routes.h"

namespace grt {

std::unique_ptr<Hold> hold_rounded(const LanguageModel& model) {
  if (model.device().kernels().keeps() != Keeps::rounded) return nullptr;
  return std::make_unique<Hold>(model.params().values());
}

Decoder::Decoder(const LanguageModel& model, const DecodeOptions& options, std::int64_t most_tokens)
    : model_(model),
      options_(options),
      depth_(options.depth.value_or(model.depths().full)),
      context_(model.config().context_length),
      capacity_(std::clamp<std::int64_t>(most_tokens, 1, context_)) {
  model.check_depth(depth_);
  model.check_kv(options.kv);
  check(options.cached || (options.kv == KvStrategy::full && !options.exit),
        "decoder: without a cache nothing can be kept by {}, and no token can stop before others", name_of(options.kv));
  if (options.exit) {
    check_exit(model, *options.exit);
    check(depth_ >= 1, "--exit: at --depth {} there is no step to stop before", depth_);
  }
  check(options.slide || most_tokens <= context_,
        "the prompt and what follows take {} tokens of context, but the model's context_length is {}: shorten them, or "
        "drop the oldest half each time with --overflow slide",
        most_tokens, context_);
}

std::vector<double> Decoder::start(std::span<const int> prompt) {
  const std::vector<int> one(prompt.begin(), prompt.end());
  return start(std::span(&one, 1));
}

std::vector<double> Decoder::start(std::span<const std::vector<int>> prompts) {
  sequences_.assign(prompts.size(), {});
  graphs_.reset();
  cache_.reset();
  if (options_.cached)
    use(model_.make_cache(static_cast<std::int64_t>(prompts.size()), capacity_, depth_, options_.kv));
  std::vector<Fresh> parts;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    check(!prompts[i].empty(), "the prompt is empty: give at least one token");
    parts.push_back(append({static_cast<std::int64_t>(i), prompts[i]}));
  }
  return after(parts);
}

void Decoder::fork(int copies) {
  if (copies == 1) return;
  std::vector<Sequence> forked;
  for (const Sequence& sequence : sequences_) forked.insert(forked.end(), copies, sequence);
  sequences_ = std::move(forked);
  if (!cache_) return;
  const auto all = static_cast<std::int64_t>(sequences_.size());
  KvCache copied = model_.make_cache(all, capacity_, depth_, options_.kv);
  for (std::int64_t i = 0; i < all; ++i) copied.copy_sequence(i, *cache_, i / copies);
  use(std::move(copied));
}

void Decoder::use(KvCache cache) {
  graphs_ = std::make_unique<Graphs>(model_.device());
  cache_.emplace(std::move(cache));
  const std::int64_t n = cache_->sequences();
  step_tokens_ = Tensor::empty({1, n}, DType::i32, model_.device());
  step_logits_ =
      Tensor::empty({n, model_.config().padded_vocab_size}, model_.params().values().dtype(), model_.device());
}

std::vector<double> Decoder::next(std::span<const int> ids) {
  check(ids.size() == sequences_.size(), "decoder: {} ids for {} sequences", ids.size(), sequences_.size());
  std::vector<std::int64_t> all(ids.size());
  std::iota(all.begin(), all.end(), 0);
  return next(all, ids);
}

std::vector<double> Decoder::next(std::span<const std::int64_t> sequences, std::span<const int> ids) {
  check(ids.size() == sequences.size(), "decoder: {} ids for {} sequences", ids.size(), sequences.size());
  std::vector<Fresh> parts;
  for (std::size_t i = 0; i < ids.size(); ++i) parts.push_back(append({sequences[i], {ids[i]}}));
  return after(parts);
}

std::vector<std::vector<double>> Decoder::feed(std::span<const Feed> feeds, std::span<const int> depths) {
  check(cache_ && options_.kv == KvStrategy::full && !options_.exit,
        "decoder: several tokens or depths at a time need a cache of all keys and values");
  std::vector<Fresh> parts;
  for (const Feed& feed : feeds) {
    const auto count = static_cast<std::int64_t>(feed.ids.size());
    check(count <= room(feed.sequence), "decoder: no room for {} tokens in a context of {}", count, context_);
    parts.push_back(append(feed));
    for (std::int64_t t = 0; t < count; t += kTokensAsAlone)
      cache_->expect(feed.sequence, std::min(kTokensAsAlone, count - t));
  }
  const Tensor tokens = tokens_of(parts);
  Pass pass = this->pass();
  Routes routes;
  if (options_.count_steps) pass.look = routes.next(1, tokens.numel());
  std::vector<std::vector<double>> logits;
  model_.exits(tokens, depths, pass, [&](int, const Var& z) { logits.push_back(logits_of(z.value())); });
  keep_steps(parts, routes.steps());
  const auto V = static_cast<std::size_t>(model_.config().vocab_size);
  std::size_t begin = 0;
  for (const Fresh& part : parts) {
    const std::size_t count = static_cast<std::size_t>(part.count) * V;
    for (const std::vector<double>& exit : logits) check_finite(std::span(exit).subspan(begin, count), part.sequence);
    begin += count;
  }
  return logits;
}

void Decoder::take_back(std::int64_t sequence, std::int64_t count) {
  std::vector<int>& window = sequences_.at(sequence).window;
  window.resize(window.size() - static_cast<std::size_t>(count));
  cache_->forget(sequence, static_cast<std::int64_t>(window.size()));
}

std::vector<std::vector<int>> Decoder::steps() const {
  std::vector<std::vector<int>> all;
  for (const Sequence& sequence : sequences_) all.push_back(sequence.steps);
  return all;
}

std::int64_t Decoder::room(std::int64_t sequence) const {
  return capacity_ - static_cast<std::int64_t>(sequences_.at(sequence).window.size());
}

Decoder::Fresh Decoder::append(const Feed& feed) {
  Sequence& sequence = sequences_.at(feed.sequence);
  std::int64_t position = sequence.length();
  for (const int id : feed.ids) check_id(id, position++);
  sequence.window.insert(sequence.window.end(), feed.ids.begin(), feed.ids.end());
  const auto whole = [&] { return static_cast<std::int64_t>(sequence.window.size()); };
  if (drop_oldest(sequence) && cache_) cache_->forget(feed.sequence, 0);
  return {feed.sequence, cache_ ? whole() - cache_->length(feed.sequence) : whole()};
}

// The logits after the last token of each part.
std::vector<double> Decoder::after(std::span<const Fresh> parts) {
  exit_depths_.assign(parts.size(), depth_);
  if (!cache_) return run_plain(parts);
  for (const Fresh& part : parts) cache_->expect(part.sequence, part.count);
  if (is_step(parts)) return step(parts);
  std::optional<Halt> halt;
  const Tensor tokens = tokens_of(parts);
  Pass pass = this->pass();
  Routes routes;
  if (options_.count_steps) pass.look = routes.next(1, tokens.numel());
  if (options_.exit) halt.emplace(model_, *options_.exit).enter(pass);  // of a model that does not route
  const Tensor z = model_.hidden(tokens, depth_, pass).value();
  keep_steps(parts, halt ? halt->depths() : routes.steps());

  const Tensor last = Tensor::empty({static_cast<std::int64_t>(parts.size()), z.shape().last()}, z.dtype(), z.device());
  std::int64_t row = -1;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    row += parts[i].count;
    const Tensor to = last.rows(static_cast<std::int64_t>(i), 1);
    z.device().copy(to.raw(), z.rows(row, 1).raw(), to.bytes());
    if (halt) exit_depths_[i] = halt->depths().at(row);
  }
  const std::vector<double> logits = logits_of(last);
  check_finite(logits, parts);
  return logits;
}

// One more token of each sequence, with nothing to be decided on the way and every key and value in a place of its own.
bool Decoder::is_step(std::span<const Fresh> parts) const {
  if (options_.exit || options_.count_steps || cache_->moves()) return false;
  if (static_cast<std::int64_t>(parts.size()) != cache_->sequences()) return false;
  std::int64_t next = 0;
  return std::all_of(parts.begin(), parts.end(), [&](const Fresh& p) { return p.sequence == next++ && p.count == 1; });
}

// The same work for every token: its id and place are read from memory.
std::vector<double> Decoder::step(std::span<const Fresh> parts) {
  const std::vector<std::int32_t> ids = ids_of(parts);
  model_.device().copy(step_tokens_.raw(), ids.data(), step_tokens_.bytes());
  cache_->place_runs();
  const bool level = std::all_of(parts.begin(), parts.end(),
                                 [&](const Fresh& p) { return cache_->length(p.sequence) == cache_->length(0); });
  const bool called = graphs_->run(level, [&] {
    const Tensor logits = model_.logits(model_.hidden(step_tokens_, depth_, pass()).value());
    model_.device().copy(step_logits_.raw(), logits.raw(), step_logits_.bytes());
  });
  if (!called) cache_->replayed(step_tokens_.shape());
  const std::vector<double> logits = host_columns(step_logits_, model_.config().vocab_size);
  check_finite(logits, parts);
  return logits;
}

std::vector<double> Decoder::run_plain(std::span<const Fresh> parts) {
  std::vector<double> all;
  for (const Fresh& part : parts) {
    const std::span<const Fresh> alone(&part, 1);
    Pass pass = this->pass();
    Routes routes;
    if (options_.count_steps) pass.look = routes.next(1, part.count);
    const Tensor z = model_.hidden(tokens_of(alone), depth_, pass).value();
    keep_steps(alone, routes.steps());
    const std::vector<double> logits = logits_of(z.rows(part.count - 1, 1));
    check_finite(logits, part.sequence);
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

std::vector<std::int32_t> Decoder::ids_of(std::span<const Fresh> parts) const {
  std::vector<std::int32_t> ids;
  for (const Fresh& part : parts) {
    const std::vector<int>& window = sequences_[part.sequence].window;
    ids.insert(ids.end(), window.end() - part.count, window.end());
  }
  return ids;
}

// (1, N)
Tensor Decoder::tokens_of(std::span<const Fresh> parts) const {
  const std::vector<std::int32_t> ids = ids_of(parts);
  const Tensor tokens = Tensor::from<std::int32_t>({1, static_cast<std::int64_t>(ids.size())}, ids, model_.device());
  model_.device().sync();  // before the ids die
  return tokens;
}

Pass Decoder::pass() {
  Pass pass;
  pass.cache = cache_ ? &*cache_ : nullptr;
  pass.key.seed = options_.seed;
  pass.causal_routing = true;
  return pass;
}

// `of_rows`: of each row of the pass; none where the model routes nothing and takes each token through all steps.
void Decoder::keep_steps(std::span<const Fresh> parts, std::span<const int> of_rows) {
  if (!options_.count_steps) return;
  std::size_t row = 0;
  for (const Fresh& part : parts) {
    Sequence& sequence = sequences_[part.sequence];
    sequence.steps.resize(static_cast<std::size_t>(sequence.length()));
    for (auto i = sequence.steps.end() - part.count; i != sequence.steps.end(); ++i, ++row)
      *i = of_rows.empty() ? depth_ : of_rows[row];
  }
}

// Of each row of z (..., d).
std::vector<double> Decoder::logits_of(const Tensor& z) const {
  return host_columns(model_.logits(z), model_.config().vocab_size);
}

// Of logits after each part.
void Decoder::check_finite(std::span<const double> logits, std::span<const Fresh> parts) const {
  const auto V = static_cast<std::size_t>(model_.config().vocab_size);
  for (std::size_t i = 0; i < parts.size(); ++i) check_finite(logits.subspan(i * V, V), parts[i].sequence);
}

void Decoder::check_finite(std::span<const double> logits, std::int64_t sequence) const {
  constexpr double kMost = std::numeric_limits<double>::max();
  bool finite = true;  // a loop that the compiler turns into vectors
  for (const double l : logits) finite &= std::abs(l) <= kMost;
  if (finite) return;
  const auto bad = std::find_if(logits.begin(), logits.end(), [](double l) { return !std::isfinite(l); });
  fail("the logit of id {} is {} after {} tokens; {}", (bad - logits.begin()) % model_.config().vocab_size, *bad,
       sequences_[sequence].length(), blame_weights(model_.params()));
}

// Halves of a full context, as many as are needed, so that its oldest tokens go a few times in a long text and not at
// each token.
bool Decoder::drop_oldest(Sequence& sequence) const {
  const std::int64_t excess = static_cast<std::int64_t>(sequence.window.size()) - context_;
  if (excess <= 0) return false;
  check(options_.slide, "the context is above the model's context_length {}", context_);
  const std::int64_t half = (context_ + 1) / 2, count = (excess + half - 1) / half * half;
  sequence.window.erase(sequence.window.begin(), sequence.window.begin() + count);
  sequence.dropped += count;
  return true;
}

void Decoder::check_id(int id, std::int64_t position) const {
  check(id >= 0 && id < model_.config().vocab_size, "token {}: id {} is outside [0, {}), the model's vocabulary",
        position, id, model_.config().vocab_size);
}

}  // namespace grt
