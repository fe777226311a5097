// Token files written whole or not at all: nanoGPT's form or llm.c's shards, with the last part of the tokens in a
// second, validation file if wanted. Memory does not grow with the number of tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/files.h"

namespace grt {

struct TokenOutput {
  fs::path train;
  std::optional<fs::path> validation;
  // Of n tokens the first floor(n (1 - fraction)) go to `train`, the others to `validation`: a document may be cut.
  double validation_fraction = 0.1;
  // Without it each output is one headerless file. With it DIR/NAME.bin becomes the shards DIR/NAME_000000.bin,
  // DIR/NAME_000001.bin, ... of so many tokens, the last one of fewer.
  std::optional<std::int64_t> shard_tokens;
};

// Is `file` one that the output would replace? Of shards there may be any number.
bool replaces(const TokenOutput& output, const fs::path& file);

class TokenWriter {
 public:
  // Throws Error if an output cannot be made, before there is anything to put there.
  explicit TokenWriter(TokenOutput output);
  ~TokenWriter();  // without finish() nothing is left behind
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  void write(std::span<const int> ids);  // each in [0, 65536)
  std::int64_t written() const { return written_; }

  struct File {
    std::string path;
    std::int64_t tokens;
  };
  // Writes all files, then puts them in place, and returns them. Throws Error, leaving what was there, if one cannot be
  // written, or if a part would have no token, or if shards of an earlier run would remain after the last new one.
  std::vector<File> finish();

 private:
  class Spool;

  std::vector<File> plan() const;
  void begin_shard(const File& file);

  TokenOutput output_;
  std::int64_t written_ = 0;
  std::vector<std::unique_ptr<FileWriter>> writers_;  // of the files; those of shards are made at the end
  std::unique_ptr<Spool> spool_;  // the tokens as long as their file is not known: with validation, or shards
};

}  // namespace grt
