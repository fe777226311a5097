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

fs::path shard_path(const fs::path& output, std::int64_t shard) {
  const fs::path stem = output.extension() == ".bin" ? fs::path(output).replace_extension() : output;
  return fmt::format("{}_{:06}.bin", stem.string(), shard);
}

// One spelling for each place, whether there is a file or not.
fs::path canonical_form(const fs::path& path) { return fs::weakly_canonical(fs::absolute(path)); }

// Files put in place one by one; unless all are, those that were are removed.
class InPlace {
 public:
  void commit(FileWriter& writer, const std::string& path) {
    writer.commit();
    paths_.push_back(path);
  }
  void keep() { paths_.clear(); }
  ~InPlace() {
    std::error_code ignored;
    for (const std::string& path : paths_) fs::remove(path, ignored);
  }

 private:
  std::vector<std::string> paths_;
};

}  // namespace

class TokenWriter::Spool {
 public:
  explicit Spool(const fs::path& output) : output_(output.string()) {
    const fs::path directory = output.has_parent_path() ? output.parent_path() : fs::path(".");
    std::string name = (directory / ".tokens-XXXXXX").string();
    const int fd = mkstemp(name.data());
    check(fd >= 0, "{}: cannot create a temporary file beside it: {}", output_, std::strerror(errno));
    unlink(name.c_str());
    file_.reset(fdopen(fd, "w+b"));
  }

  void write(std::span<const std::uint16_t> ids) {
    check(std::fwrite(ids.data(), sizeof ids[0], ids.size(), file_.get()) == ids.size(),
          "{}: cannot write its temporary file: {}", output_, std::strerror(errno));
  }

  void rewind() {
    check(std::fseek(file_.get(), 0, SEEK_SET) == 0, "{}: cannot write its temporary file: {}", output_,
          std::strerror(errno));
  }

  // Moves the next `count` tokens to `to`.
  void copy(std::int64_t count, FileWriter& to) {
    std::vector<std::uint16_t> block(std::min(count, kBlock));
    while (count > 0) {
      const auto n = static_cast<std::size_t>(std::min(count, kBlock));
      check(std::fread(block.data(), sizeof block[0], n, file_.get()) == n, "{}: cannot read its temporary file: {}",
            output_, std::strerror(errno));
      to.write(block.data(), n * sizeof block[0]);
      count -= static_cast<std::int64_t>(n);
    }
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string output_;
  std::unique_ptr<std::FILE, Close> file_;
};

TokenWriter::TokenWriter(TokenOutput output) : output_(std::move(output)) {
  std::vector<fs::path> outputs{output_.train};
  if (output_.validation) outputs.push_back(*output_.validation);
  for (fs::path& path : outputs) {
    if (output_.shard_tokens) path = shard_path(path, 0);
    whole_.push_back(std::make_unique<FileWriter>(path));
  }
  check(outputs.size() == 1 || canonical_form(outputs[0]) != canonical_form(outputs[1]),
        "{}: training and validation tokens cannot go to the same file", outputs[0].string());
  if (output_.shard_tokens) whole_.clear();  // that they could be made is all that was asked
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
      whole_[0]->write(block.data(), part.size() * sizeof block[0]);
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

std::vector<TokenWriter::File> TokenWriter::finish() {
  const std::vector<File> files = plan();
  InPlace in_place;
  if (spool_) spool_->rewind();
  if (output_.shard_tokens) {
    for (const File& file : files) {
      FileWriter writer(file.path);
      const std::array<std::int32_t, kShardHeaderWords> header{kShardMagic, kShardVersion,
                                                               static_cast<std::int32_t>(file.tokens)};
      writer.write(header.data(), sizeof header);
      spool_->copy(file.tokens, writer);
      in_place.commit(writer, file.path);
    }
  } else {
    for (std::size_t i = 0; spool_ && i < files.size(); ++i) spool_->copy(files[i].tokens, *whole_[i]);
    for (std::size_t i = 0; i < files.size(); ++i) in_place.commit(*whole_[i], files[i].path);
  }
  in_place.keep();
  return files;
}

}  // namespace grt
