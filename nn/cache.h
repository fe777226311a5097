// Keys and values of earlier tokens. A layer that is applied R times in a pass has R of them for each token; either all
// are kept, and decoding equals recomputation, or one is.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ops/ops.h"

namespace grt {

// What stays of a repeated layer's keys and values once a token is done: all, or their mean over the steps, or those of
// the last or the first step. While a pass runs, its tokens see one another's keys and values of the same step under
// every strategy, so a prompt in one pass is computed exactly.
enum class KvStrategy { full, mean, last, first };

KvStrategy kv_strategy(const std::string& name);  // throws Error naming --kv
const char* name_of(KvStrategy strategy);

// The applications of attention layers in a pass, in their order: `before` layers once, `core` layers `steps` times,
// `after` layers once.
struct KvLayout {
  int before = 0, core = 0, steps = 0, after = 0;

  int applications() const { return before + core * steps + after; }
  int first_after() const { return before + core * steps; }
  int slots(KvStrategy strategy) const {
    return strategy == KvStrategy::full || steps < 2 ? applications() : before + core + after;
  }
};

struct KvSlot {
  Tensor keys, values;                           // (B, H, capacity, D)
  std::vector<std::vector<std::int32_t>> taken;  // by sequence: the positions in a slot that does not get all (mor)
  Tensor held_keys, held_values;                 // (H, N, D): of a pass's N tokens, what will be kept; within it alone
};

// Sequences grow independently: each has its own length. A pass appends its tokens: they enter(), a layer asks for the
// slot of its application and tells when it has filled it, tokens may halt() before the last step, and leave().
class KvCache {
 public:
  KvCache(const KvLayout& layout, KvStrategy strategy, std::int64_t batch, int heads, std::int64_t capacity,
          std::int64_t head_size, DType dtype, Device& device);

  const KvLayout& layout() const { return layout_; }
  std::int64_t sequences() const { return static_cast<std::int64_t>(lengths_.size()); }
  std::int64_t capacity() const { return slots_.empty() ? 0 : slots_[0].keys.dim(2); }
  std::int64_t bytes() const;  // of keys and values
  std::int64_t length(std::int64_t sequence) const;
  const KvSlot& slot(int application) const;

  // The next rows of the next pass are `count` tokens of a sequence. If nothing is expected, a pass over tokens (B, T)
  // brings T for each of B sequences.
  void expect(std::int64_t sequence, std::int64_t count);
  // Puts the numbers of tokens before each run that is expected into the device's memory, where the next pass reads
  // them: what it enqueues will do for any numbers, a graph's replay included, as long as the sequences are equally
  // long, or not, as when it was enqueued. Not where a pass moves().
  void place_runs();
  // A replay did what a pass over the expected tokens (B, T), of all layers and steps, would have done.
  void replayed(const Shape& tokens);
  // Are keys and values moved about in a pass, from and to places that the number of tokens before decides?
  bool moves() const { return strategy_ == KvStrategy::mean || strategy_ == KvStrategy::first; }
  void forget(std::int64_t sequence, std::int64_t length);  // what came after its first `length` tokens
  // Makes a sequence what one of `from` is, a cache that differs in the number of sequences at most.
  void copy_sequence(std::int64_t sequence, const KvCache& from, std::int64_t original);

  // --- within a pass, by the model ---
  void enter(const Shape& tokens);                             // (B, T)
  const std::vector<TokenRun>& runs() const { return runs_; }  // of the rows under way
  // Until take_all(), these of the rows under way (ascending) are the only ones, for the applications from
  // `application` on. Their keys and values come behind those that it took of each sequence before.
  void take(int application, std::span<const std::int32_t> rows);
  void take_all() { runs_ = runs_of(under_way_); }
  void appended(int application);  // the keys and values of the rows under way are in the slot
  // After `steps` steps, the tokens of all rows but those of `going` (ascending) stop: where a later step looks for
  // their keys and values it finds those of the last step they took. Where a pass moves() none can stop before the
  // first step but all.
  void halt(std::span<const std::int32_t> going, int steps);
  void take_up_all();  // those that stopped as well, for the layers after the core
  void leave();        // the tokens are in the cache

  // Keys and values of a step that a token did not take, which were copied from an earlier step.
  std::int64_t substituted() const { return substituted_; }

 private:
  struct Token {
    std::int64_t sequence, position;
    std::int64_t row, run;  // in the pass as it began
  };

  void check_sequence(std::int64_t sequence) const;
  int place(int application) const;
  static std::vector<TokenRun> runs_of(std::span<const Token> tokens);
  // Elements of token `first` and the count - 1 after it in the same run, of one head.
  static Tensor kept(const Tensor& cache, const Token& first, std::int64_t head, std::int64_t count);
  Tensor held(const Tensor& held, const Token& first, std::int64_t head, std::int64_t count) const;
  void hold(KvSlot& slot, float weight, bool add) const;
  void put_back(KvSlot& slot) const;
  void stop_at(int steps, std::span<const Token> tokens);

  KvLayout layout_;
  KvStrategy strategy_ = KvStrategy::full;
  std::vector<KvSlot> slots_;
  std::vector<std::int64_t> lengths_;
  std::vector<TokenRun> expected_, runs_;
  Tensor places_;  // TokenRun::place of each, i64 in the memory of two i32
  std::vector<Token> entered_, under_way_;
  std::int64_t substituted_ = 0;
  bool routed_ = false;  // there are slots that do not get all tokens
};

}  // namespace grt
