// Token files, read a piece at a time, and which of their tokens a training step or an evaluation sees.
// The orders are pure functions of position, so a resumed run needs no state and any number of ranks sees the same
// data.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/files.h"
#include "core/tensor.h"

namespace grt {

// An llm.c shard begins with 256 int32 (magic, version, number of tokens, zeros); uint16 ids follow. nanoGPT's files
// are the ids alone. Both little-endian. Source: github.com/karpathy/llm.c, dev/data/data_common.py.
inline constexpr std::int32_t kShardMagic = 20240520;
inline constexpr std::int32_t kShardVersion = 1;
inline constexpr std::size_t kShardHeaderWords = 256;

// The token files that `where` names: a file, a directory (its *.bin files) or a glob; sorted by bytes.
std::vector<std::string> token_files(const std::string& where);

// How many bytes stand before the ids of a token file: those of its header, or none. Throws Error for anything that is
// not a whole token file.
std::uint64_t header_bytes(const OpenFile& file);

// A stream of token ids, all of them below the vocabulary size: files kept open, or ids handed over.
class TokenData {
 public:
  // The files that `where` names are one stream. Throws Error naming the file for anything that is not a whole token
  // file, and for an id >= vocab_size.
  static TokenData open(const std::string& where, std::int64_t vocab_size);
  static TokenData of(std::vector<std::uint16_t> ids, std::string name, std::int64_t vocab_size);

  std::int64_t size() const { return size_; }  // at least 2: something to predict
  const std::string& name() const { return name_; }
  // Copies the ids from `begin` on into `to`, across files. Throws Error if a file has become shorter since, or holds
  // other ids that are not below the vocabulary size.
  void read(std::int64_t begin, std::span<std::int32_t> to) const;
  // Of the number of tokens and of some thousand of them, spread over the stream: it tells other data from the same,
  // but may miss small damage.
  std::int64_t fingerprint() const;
  std::string fingerprint_text() const { return fmt::format("{:016x}", static_cast<std::uint64_t>(fingerprint())); }

 private:
  struct Piece {
    OpenFile file;
    std::uint64_t header_bytes;
    std::int64_t begin, size;  // the place of its ids in the stream
  };

  TokenData(std::string name, std::int64_t vocab_size);
  void append(OpenFile file);
  void read(const Piece& piece, std::int64_t begin, std::span<std::uint16_t> to) const;
  void check_predictable() const;

  std::string name_;
  std::int64_t vocab_size_, size_ = 0;
  std::vector<Piece> pieces_;  // empty: the ids are own_
  std::vector<std::uint16_t> own_;
};

// Inputs are the ids [begin, begin + targets), targets the ids one later.
struct Window {
  std::int64_t begin, targets;
  bool operator==(const Window&) const = default;
};

// The deterministic evaluation: windows side by side, the last one shorter; each id but the first is a target once.
std::vector<Window> evaluation_windows(std::int64_t tokens, std::int64_t context_length);
// Cuts `windows` into runs of at most batch_size windows of equal length: a shorter last window stands alone.
std::vector<std::span<const Window>> evaluation_batches(std::span<const Window> windows, std::int64_t batch_size);

enum class DataOrder { random, sequential };
DataOrder data_order(const std::string& name);  // the values of --data-order; throws for another word

// Random numbers of the data: NoiseKey{seed, step, kDataSite}, index micro_batch 2^32 + row. A model's noise has small
// sites, so the letters keep apart what else a seed is used for.
inline constexpr std::uint32_t kDataSite = 0x64617461;  // "data"

struct TrainingOrder {
  DataOrder kind = DataOrder::random;
  std::uint64_t seed = 1337;
  std::int64_t context_length = 0, batch_size = 0;
  std::int64_t micro_batches = 1;  // in a step, over all ranks
  // Sequential: the window counter stands at first_sequence when first_step begins. Both are 0 in a fresh run; a run
  // resumed with another batch size goes on where it stopped.
  std::int64_t first_step = 0, first_sequence = 0;
};

// The sequences drawn before `step` (0-based), as the sequential counter has it: the data position of a checkpoint.
std::int64_t sequences_before(const TrainingOrder& order, std::int64_t step);

// Where row `row` of a micro-batch (its index within the step over all ranks) begins in a stream of `tokens` ids.
// Random: uniform over all windows of context_length + 1 ids. Sequential: windows 0, 1, 2, ... side by side, each
// whole, under one counter over rows, micro-batches and steps, modulo their number. Throws if not one window fits.
std::int64_t training_start(const TrainingOrder& order, std::int64_t tokens, std::int64_t step,
                            std::int64_t micro_batch, std::int64_t row);

// Throws Error naming the data unless it holds one whole training window.
void check_trainable(const TokenData& data, std::int64_t context_length);

struct Batch {
  Tensor tokens, targets;  // (B, T) i32
};

Batch training_batch(const TokenData& data, const TrainingOrder& order, std::int64_t step, std::int64_t micro_batch,
                     Device& device);
Batch evaluation_batch(const TokenData& data, std::span<const Window> windows, Device& device);  // of equal length

}  // namespace grt
