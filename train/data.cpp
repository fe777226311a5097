// Finding and checking token files, and cutting their stream into batches.
#include "train/data.h"

#include <glob.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "core/philox.h"
#include "train/fnv.h"

namespace grt {

static_assert(std::endian::native == std::endian::little, "token files are read as they lie: little-endian");

namespace {

constexpr std::size_t kHeaderBytes = kShardHeaderWords * sizeof(std::int32_t);
using Header = std::array<std::int32_t, kShardHeaderWords>;

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// Training and validation shards often share a directory (fineweb_train_000001.bin beside fineweb_val_000000.bin).
// Reading both as one stream would train on the validation data.
void check_unmixed(const std::string& directory, const std::vector<std::string>& paths) {
  const auto one_with = [&](const char* wanted, const char* other) {
    return std::find_if(paths.begin(), paths.end(), [&](const std::string& path) {
      const std::string file = fs::path(path).filename();
      return has(file, wanted) && !has(file, other);
    });
  };
  const auto train = one_with("train", "val"), val = one_with("val", "train");
  check(train == paths.end() || val == paths.end(),
        "{}: holds training and validation files ({} and {}); name a file, or use a glob such as '{}/*train*.bin'",
        directory, train == paths.end() ? "" : *train, val == paths.end() ? "" : *val, directory);
}

std::vector<std::string> files_in(const std::string& directory) {
  std::error_code error;
  std::vector<std::string> paths;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const bool hidden = entry.path().filename().string().starts_with('.');
    if (entry.path().extension() == ".bin" && !hidden && !entry.is_directory()) paths.push_back(entry.path());
  }
  check(!error, "{}: {}", directory, error.message());
  check(!paths.empty(), "{}: the directory has no *.bin token file", directory);
  return paths;
}

std::vector<std::string> files_matching(const std::string& pattern) {
  glob_t found{};
  const int code = ::glob(pattern.c_str(), GLOB_NOSORT | GLOB_ERR, nullptr, &found);
  std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  check(code == 0, "{}: {}", pattern, code == GLOB_NOMATCH ? "no file matches" : "cannot read a directory of the glob");
  return paths;
}

// Does a file without the magic carry a header all the same? Its third word then counts the ids, of 2 or 4 bytes, that
// follow, and zeros fill the rest: no run of text begins so.
bool header_of_another_kind(const Header& header, std::size_t file_bytes) {
  const std::int64_t count = header[2], payload = static_cast<std::int64_t>(file_bytes - kHeaderBytes);
  const bool padded = std::all_of(header.begin() + 3, header.end(), [](std::int32_t word) { return word == 0; });
  return padded && header[0] != 0 && (2 * count == payload || 4 * count == payload);
}

// `begin` is the offset of the first of the ids. The largest first, by a loop that compiles to vector code; the
// position only where that is too large.
void check_ids(const std::string& name, std::int64_t begin, std::span<const std::uint16_t> ids,
               std::int64_t vocab_size) {
  std::uint16_t largest = 0;
  for (const std::uint16_t id : ids) largest = std::max(largest, id);
  if (largest < vocab_size) return;
  const auto bad = std::find_if(ids.begin(), ids.end(), [&](std::uint16_t id) { return id >= vocab_size; });
  fail("{}: id {} at offset {} (in tokens) is not below the vocabulary size {}", name, *bad,
       begin + (bad - ids.begin()), vocab_size);
}

// Row b holds the T + 1 ids from begins[b] on, as inputs and, one later, as targets.
Batch batch_of(const TokenData& data, std::span<const std::int64_t> begins, std::int64_t T, Device& device) {
  const auto B = static_cast<std::int64_t>(begins.size());
  std::vector<std::int32_t> row(T + 1), tokens, targets;
  tokens.reserve(B * T);
  targets.reserve(B * T);
  for (const std::int64_t begin : begins) {
    data.read(begin, row);
    tokens.insert(tokens.end(), row.begin(), row.end() - 1);
    targets.insert(targets.end(), row.begin() + 1, row.end());
  }
  return {Tensor::from<std::int32_t>({B, T}, tokens, device), Tensor::from<std::int32_t>({B, T}, targets, device)};
}

}  // namespace

std::uint64_t header_bytes(const OpenFile& file) {
  const std::string path = file.path().string();
  check(file.size() > 0, "{}: the file is empty", path);
  Header header{};
  file.read(0, header.data(), std::min<std::uint64_t>(file.size(), kHeaderBytes));
  if (header[0] == kShardMagic) {
    check(file.size() >= kHeaderBytes, "{}: a shard's header takes {} bytes, the file has {}", path, kHeaderBytes,
          file.size());
    check(header[1] == kShardVersion, "{}: shard version is {}, expected {}", path, header[1], kShardVersion);
    const std::int64_t expected = static_cast<std::int64_t>(kHeaderBytes) + 2 * std::int64_t{header[2]};
    check(expected == static_cast<std::int64_t>(file.size()),
          "{}: the header counts {} tokens, which makes {} bytes with the header, but the file has {}", path, header[2],
          expected, file.size());
    return kHeaderBytes;
  }
  check(file.size() < kHeaderBytes || !header_of_another_kind(header, file.size()),
        "{}: begins with a shard header of another kind: its magic is {}, expected {} (uint16 ids)", path, header[0],
        kShardMagic);
  check(file.size() % 2 == 0,
        "{}: has {} bytes, but uint16 ids take an even number (looks like a headerless file: it begins with {}, not "
        "with the magic {} of a shard)",
        path, file.size(), header[0], kShardMagic);
  return 0;
}

std::vector<std::string> token_files(const std::string& where) {
  std::error_code error;
  const fs::file_status status = fs::status(where, error);
  std::vector<std::string> paths;
  if (fs::is_directory(status)) {
    paths = files_in(where);
  } else if (!fs::exists(status) && where.find_first_of("*?[") != std::string::npos) {
    paths = files_matching(where);
  } else {
    paths = {where};
  }
  std::sort(paths.begin(), paths.end());  // by bytes, whatever the locale
  if (fs::is_directory(status)) check_unmixed(where, paths);
  return paths;
}

TokenData::TokenData(std::string name, std::int64_t vocab_size) : name_(std::move(name)), vocab_size_(vocab_size) {}

TokenData TokenData::open(const std::string& where, std::int64_t vocab_size) {
  TokenData data(where, vocab_size);
  for (const std::string& path : token_files(where)) data.append(OpenFile(path));
  data.check_predictable();
  return data;
}

TokenData TokenData::of(std::vector<std::uint16_t> ids, std::string name, std::int64_t vocab_size) {
  TokenData data(std::move(name), vocab_size);
  check_ids(data.name_, 0, ids, vocab_size);
  data.size_ = static_cast<std::int64_t>(ids.size());
  data.own_ = std::move(ids);
  data.check_predictable();
  return data;
}

void TokenData::append(OpenFile file) {
  const std::uint64_t skip = header_bytes(file);
  const auto count = static_cast<std::int64_t>((file.size() - skip) / 2);
  pieces_.push_back({std::move(file), skip, size_, count});
  size_ += count;
  std::vector<std::uint16_t> block(1 << 16);
  for (std::int64_t begin = 0; begin < count; begin += static_cast<std::int64_t>(block.size())) {
    block.resize(std::min(block.size(), static_cast<std::size_t>(count - begin)));
    read(pieces_.back(), begin, block);
  }
}

void TokenData::read(const Piece& piece, std::int64_t begin, std::span<std::uint16_t> to) const {
  piece.file.read(piece.header_bytes + 2 * static_cast<std::uint64_t>(begin), to.data(), to.size_bytes());
  check_ids(piece.file.path().string(), begin, to, vocab_size_);
}

void TokenData::check_predictable() const {
  check(size_ >= 2, "{}: {} token(s) in all; at least 2 are needed to predict one", name_, size_);
}

std::int64_t TokenData::fingerprint() const {
  constexpr std::int64_t kPlaces = 512, kRun = 16;
  Fnv fnv;
  fnv.add(static_cast<std::uint64_t>(size_));
  std::vector<std::int32_t> ids(static_cast<std::size_t>(std::min(kRun, size_)));
  for (std::int64_t place = 0; place < kPlaces; ++place) {
    read((size_ - static_cast<std::int64_t>(ids.size())) * place / (kPlaces - 1), ids);
    for (const std::int32_t id : ids) fnv.add(static_cast<std::uint64_t>(id));
  }
  return fnv.value();
}

void TokenData::read(std::int64_t begin, std::span<std::int32_t> to) const {
  const auto count = static_cast<std::int64_t>(to.size());
  check(begin >= 0 && begin <= size_ - count, "{}: tokens [{}, {}) are not within [0, {})", name_, begin, begin + count,
        size_);
  if (pieces_.empty()) {
    std::copy_n(own_.begin() + begin, count, to.begin());
    return;
  }
  auto piece = std::upper_bound(pieces_.begin(), pieces_.end(), begin,
                                [](std::int64_t at, const Piece& p) { return at < p.begin; }) -
               1;
  std::vector<std::uint16_t> ids;
  for (; !to.empty(); ++piece) {
    const std::int64_t first = std::max(begin - piece->begin, std::int64_t{0});
    ids.resize(std::min(to.size(), static_cast<std::size_t>(piece->size - first)));
    read(*piece, first, ids);
    std::copy(ids.begin(), ids.end(), to.begin());
    to = to.subspan(ids.size());
  }
}

std::vector<Window> evaluation_windows(std::int64_t tokens, std::int64_t context_length) {
  check(tokens >= 2 && context_length >= 1, "evaluation: {} token(s) in windows of {} leave nothing to predict", tokens,
        context_length);
  std::vector<Window> windows;
  for (std::int64_t begin = 0; begin < tokens - 1; begin += context_length) {
    windows.push_back({begin, std::min(context_length, tokens - 1 - begin)});
  }
  return windows;
}

std::vector<std::span<const Window>> evaluation_batches(std::span<const Window> windows, std::int64_t batch_size) {
  check(batch_size >= 1, "evaluation: a batch of {} windows is empty", batch_size);
  std::vector<std::span<const Window>> batches;
  while (!windows.empty()) {
    const std::size_t most = std::min(windows.size(), static_cast<std::size_t>(batch_size));
    std::size_t n = 1;
    while (n < most && windows[n].targets == windows[0].targets) ++n;
    batches.push_back(windows.first(n));
    windows = windows.subspan(n);
  }
  return batches;
}

DataOrder data_order(const std::string& name) {
  check(name == "random" || name == "sequential", "--data-order: expected random or sequential, not '{}'", name);
  return name == "random" ? DataOrder::random : DataOrder::sequential;
}

std::int64_t sequences_before(const TrainingOrder& order, std::int64_t step) {
  return order.first_sequence + (step - order.first_step) * order.micro_batches * order.batch_size;
}

std::int64_t training_start(const TrainingOrder& order, std::int64_t tokens, std::int64_t step,
                            std::int64_t micro_batch, std::int64_t row) {
  const std::int64_t T = order.context_length;
  check(T >= 1 && tokens > T, "training: {} tokens hold no window of {} and one more", tokens, T);
  if (order.kind == DataOrder::sequential) {
    const std::int64_t sequence = sequences_before(order, step) + micro_batch * order.batch_size + row;
    return sequence % ((tokens - 1) / T) * T;
  }
  const NoiseKey key{order.seed, static_cast<std::uint32_t>(step), kDataSite};
  const std::uint64_t index = static_cast<std::uint64_t>(micro_batch) << 32 | static_cast<std::uint64_t>(row);
  return static_cast<std::int64_t>(random_below(key, index, static_cast<std::uint64_t>(tokens - T)));
}

void check_trainable(const TokenData& data, std::int64_t context_length) {
  check(context_length >= 1, "--context-length: must be at least 1, not {}", context_length);
  check(data.size() > context_length, "{}: has {} tokens, but training with context length {} needs at least {}",
        data.name(), data.size(), context_length, context_length + 1);
}

Batch training_batch(const TokenData& data, const TrainingOrder& order, std::int64_t step, std::int64_t micro_batch,
                     Device& device) {
  check_trainable(data, order.context_length);
  std::vector<std::int64_t> begins(order.batch_size);
  for (std::int64_t row = 0; row < order.batch_size; ++row) {
    begins[row] = training_start(order, data.size(), step, micro_batch, row);
  }
  return batch_of(data, begins, order.context_length, device);
}

Batch evaluation_batch(const TokenData& data, std::span<const Window> windows, Device& device) {
  check(!windows.empty(), "evaluation: a batch without windows");
  const std::int64_t T = windows[0].targets;
  std::vector<std::int64_t> begins;
  for (const Window& window : windows) {
    check(window.targets == T, "evaluation: windows of {} and {} targets cannot share a batch", T, window.targets);
    begins.push_back(window.begin);
  }
  return batch_of(data, begins, T, device);
}

}  // namespace grt
