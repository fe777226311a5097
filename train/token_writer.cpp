// Which file a token belongs to, and what a shard's header counts, is known only at the end. Until then the tokens wait
// in a nameless file beside the output, which vanishes with the process.
#include "train/token_writer.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "core/error.h"
#include "train/data.h"

namespace grt {

namespace {

constexpr std::int64_t kBlock = 1 << 16;  // tokens copied at a time

fs::path directory_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

fs::path shard_path(const fs::path& output, std::int64_t shard) {
  const fs::path stem = output.extension() == ".bin" ? fs::path(output).replace_extension() : output;
  return fmt::format("{}_{:06}.bin", stem.string(), shard);
}

// Is `path` named like a shard of `output`, of whatever number?
bool is_shard_of(const fs::path& output, const fs::path& path) {
  const std::string name = path.filename(), digits = "000000", first = shard_path(output, 0).filename();
  const std::string begin = first.substr(0, first.size() - digits.size() - std::strlen(".bin"));
  return name.size() >= first.size() && name.starts_with(begin) && name.ends_with(".bin") &&
         name.find_first_not_of("0123456789", begin.size()) == name.size() - std::strlen(".bin");
}

}  // namespace

bool replaces(const TokenOutput& output, const fs::path& file) {
  for (const fs::path& path : {output.train, output.validation.value_or(output.train)}) {
    if (!output.shard_tokens) {
      if (same_place(path, file)) return true;
      continue;
    }
    std::error_code missing;
    for (const auto& entry : fs::directory_iterator(directory_of(path), missing))
      if (is_shard_of(path, entry.path()) && same_place(entry.path(), file)) return true;
  }
  return false;
}

class TokenWriter::Spool {
 public:
  explicit Spool(const fs::path& output) : output_(output.string()) {
    std::string name = (directory_of(output) / ".tokens-XXXXXX").string();
    const int fd = mkstemp(name.data());
    ensure(fd >= 0, "create");
    unlink(name.c_str());
    file_.reset(fdopen(fd, "w+b"));
  }

  void write(std::span<const std::uint16_t> ids) {
    ensure(std::fwrite(ids.data(), sizeof ids[0], ids.size(), file_.get()) == ids.size(), "write");
  }

  void rewind() { ensure(std::fseek(file_.get(), 0, SEEK_SET) == 0, "write"); }

  // Moves the next `count` tokens to `to`.
  void copy(std::int64_t count, FileWriter& to) {
    std::vector<std::uint16_t> block(std::min(count, kBlock));
    while (count > 0) {
      const auto n = static_cast<std::size_t>(std::min(count, kBlock));
      ensure(std::fread(block.data(), sizeof block[0], n, file_.get()) == n, "read");
      to.write(block.data(), n * sizeof block[0]);
      count -= static_cast<std::int64_t>(n);
    }
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  // The caller's condition is computed before errno is read here.
  void ensure(bool ok, const char* doing) const {
    check(ok, "{}: cannot {} its temporary file: {}", output_, doing, std::strerror(errno));
  }

  std::string output_;
  std::unique_ptr<std::FILE, Close> file_;
};

TokenWriter::TokenWriter(TokenOutput output) : output_(std::move(output)) {
  std::vector<fs::path> outputs{output_.train};
  if (output_.validation) outputs.push_back(*output_.validation);
  for (fs::path& path : outputs) {
    if (output_.shard_tokens) path = shard_path(path, 0);
    writers_.push_back(std::make_unique<FileWriter>(path));
  }
  check(outputs.size() == 1 || !same_place(outputs[0], outputs[1]),
        "{}: training and validation tokens cannot go to the same file", outputs[0].string());
  if (output_.shard_tokens) writers_.clear();  // that they could be made is all that was asked
  if (output_.shard_tokens || output_.validation) spool_ = std::make_unique<Spool>(outputs[0]);
}

TokenWriter::~TokenWriter() = default;

void TokenWriter::write(std::span<const int> ids) {
  std::array<std::uint16_t, 4096> block;
  written_ += static_cast<std::int64_t>(ids.size());
  while (!ids.empty()) {
    const std::span<const int> part = ids.first(std::min(ids.size(), block.size()));
    std::copy(part.begin(), part.end(), block.begin());
    if (spool_)
      spool_->write({block.data(), part.size()});
    else
      writers_[0]->write(block.data(), part.size() * sizeof block[0]);
    ids = ids.subspan(part.size());
  }
}

// The files in the order of their tokens.
std::vector<TokenWriter::File> TokenWriter::plan() const {
  const std::int64_t kept =
      output_.validation
          ? static_cast<std::int64_t>(std::floor(static_cast<double>(written_) * (1.0 - output_.validation_fraction)))
          : written_;
  std::vector<File> files;
  const auto add = [&](const fs::path& output, std::int64_t tokens) {
    check(tokens > 0,
          "{}: would have none of the {} token(s); more text, or another fraction for validation, is needed",
          output.string(), written_);
    if (!output_.shard_tokens) {
      files.push_back({output.string(), tokens});
      return;
    }
    std::int64_t shard = 0;
    for (; tokens > 0; tokens -= *output_.shard_tokens)
      files.push_back({shard_path(output, shard++).string(), std::min(tokens, *output_.shard_tokens)});
    check(!fs::exists(shard_path(output, shard)),
          "{}: a shard of an earlier run, which would follow the {} new one(s); remove it first",
          shard_path(output, shard).string(), shard);
  };
  add(output_.train, kept);
  if (output_.validation) add(*output_.validation, written_ - kept);
  return files;
}

void TokenWriter::begin_shard(const File& file) {
  const std::array<std::int32_t, kShardHeaderWords> header{kShardMagic, kShardVersion,
                                                           static_cast<std::int32_t>(file.tokens)};
  writers_.push_back(std::make_unique<FileWriter>(file.path));
  writers_.back()->write(header.data(), sizeof header);
}

std::vector<TokenWriter::File> TokenWriter::finish() {
  const std::vector<File> files = plan();
  if (spool_) spool_->rewind();
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (output_.shard_tokens) begin_shard(files[i]);
    if (spool_) spool_->copy(files[i].tokens, *writers_[i]);
    writers_[i]->finish();
  }
  for (const auto& writer : writers_) writer->commit();
  return files;
}

}  // namespace grt
