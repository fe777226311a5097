// tokenize: text files to token files, and token files back to the bytes they were made of.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/files.h"
#include "core/flags.h"
#include "core/main.h"
#include "train/data.h"
#include "train/signals.h"
#include "train/text_source.h"
#include "train/token_writer.h"
#include "train/tokenizer.h"

namespace grt {

namespace {

struct Options {
  std::string tokenizer = "bytes";
  std::vector<std::string> input;
  std::optional<std::string> output;
  std::optional<std::string> val_output;
  double val_fraction = 0.1;
  std::string special = "ordinary";
  std::optional<std::int64_t> shard_tokens;
  std::optional<std::string> decode;

  template <class V>
  void fields(V&& v) {
    v("tokenizer", tokenizer, "bytes (ids 0-255 are bytes, 256 ends a document) or gpt2 (byte-level BPE, 50257 ids)");
    v("input", input,
      "text files, a document each, or .jsonl files, the \"text\" of each line a document; either may be gzipped");
    v("output", output, "token file to write: uint16 ids without a header, the end-of-document id after each document");
    v("val-output", val_output, "second token file, for the last part of the tokens");
    v("val-fraction", val_fraction, "part of all tokens that goes to --val-output, above 0 and below 1");
    v("special", special,
      "what <|endoftext|> inside a text means to gpt2: ordinary (text like any other), allow (the end of a document) "
      "or error");
    v("shard-tokens", shard_tokens,
      "write llm.c shards of so many tokens instead: NAME.bin becomes NAME_000000.bin, NAME_000001.bin, ...");
    v("decode", decode, "token file or shard to write to standard output as bytes; end-of-document ids are left out");
  }
};

SpecialText special_text(const std::string& name) {
  if (name == "ordinary") return SpecialText::ordinary;
  if (name == "allow") return SpecialText::allow;
  if (name == "error") return SpecialText::error;
  fail("--special: expected ordinary, allow or error, not \"{}\"", name);
}

TokenOutput output_of(const Options& o) { return {*o.output, o.val_output, o.val_fraction, o.shard_tokens}; }

void check_encoding(const Options& options, const Flags& flags) {
  check(!options.input.empty(), "--input: expected the files to read (or --decode with a token file)");
  check(options.output.has_value(), "--output: expected the token file to write");
  check(options.val_output || !flags.given("val-fraction"), "--val-fraction: needs --val-output");
  check(options.val_fraction > 0 && options.val_fraction < 1,
        "--val-fraction: expected a number above 0 and below 1, not {}", options.val_fraction);
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();  // a shard's header counts in int32
  if (options.shard_tokens)
    check(*options.shard_tokens >= 1 && *options.shard_tokens <= kMost, "--shard-tokens: expected 1 to {}, not {}",
          kMost, *options.shard_tokens);
  for (const std::string& input : options.input)
    check(!replaces(output_of(options), input), "{}: is both input and output", input);
}

struct Totals {
  std::int64_t documents = 0, bytes = 0;
};

// A line on a terminal, a few times a second, that is gone at the end.
class Progress {
 public:
  ~Progress() {
    if (terminal_) fmt::print(stderr, "\r\x1b[K");
  }

  void show(const Totals& totals, std::int64_t tokens) {
    const auto now = Clock::now();
    if (!terminal_ || now < next_) return;
    next_ = now + std::chrono::milliseconds(200);
    const double seconds = std::chrono::duration<double>(now - start_).count();
    fmt::print(stderr, "\r{} documents, {:.1f} MB, {} tokens, {:.1f} MB/s ", totals.documents, totals.bytes * 1e-6,
               tokens, totals.bytes * 1e-6 / seconds);
  }

 private:
  using Clock = std::chrono::steady_clock;
  bool terminal_ = isatty(STDERR_FILENO) != 0;
  Clock::time_point start_ = Clock::now(), next_ = start_ + std::chrono::seconds(1);
};

// Ends early on a signal.
Totals encode_documents(TextSource& source, Encoder& encoder, int end_of_document, TokenWriter& writer,
                        const SignalGuard& signals) {
  Totals totals;
  Progress progress;
  while (source.next()) {
    encoder.begin(source.location());
    for (std::string_view part; !(part = source.read()).empty();) {
      if (signals.received()) return totals;
      encoder.feed(part);
      totals.bytes += static_cast<std::int64_t>(part.size());
      progress.show(totals, writer.written());
    }
    encoder.finish();
    writer.write({&end_of_document, 1});
    ++totals.documents;
  }
  return totals;
}

int encode_files(const Options& options, const Flags& flags) {
  check_encoding(options, flags);
  const SpecialText special = special_text(options.special);
  const auto tokenizer = make_tokenizer(options.tokenizer);
  TextSource source(options.input);
  const SignalGuard signals;  // so that what is written so far is removed
  TokenWriter writer(output_of(options));
  Encoder encoder(*tokenizer, special, [&](std::span<const int> ids) { writer.write(ids); });

  const Totals totals = encode_documents(source, encoder, tokenizer->end_of_document(), writer, signals);
  if (signals.received()) {
    fmt::print(stderr, "tokenize: interrupted by SIG{}; nothing is written\n", sigabbrev_np(signals.received()));
    return 128 + signals.received();
  }
  check(totals.documents > 0, "{}: there is no document in the input", options.input.back());
  const auto files = writer.finish();
  fmt::print("documents {}, bytes {}, tokens {}, bytes per token {:.3f}\n", totals.documents, totals.bytes,
             writer.written(), static_cast<double>(totals.bytes) / static_cast<double>(writer.written()));
  for (const auto& file : files) fmt::print("{}: {} tokens\n", file.path, file.tokens);
  return 0;
}

void write_out(std::string_view bytes) {
  const bool written = std::fwrite(bytes.data(), 1, bytes.size(), stdout) == bytes.size() && std::fflush(stdout) == 0;
  check(written, "standard output: cannot be written: {}", std::strerror(errno));
}

void decode_file(const Options& options, const Flags& flags) {
  for (const char* other : {"input", "output", "val-output", "val-fraction", "special", "shard-tokens"})
    check(!flags.given(other), "--decode: cannot be combined with --{}", other);
  const auto tokenizer = make_tokenizer(options.tokenizer);
  const OpenFile file(*options.decode);
  const std::uint64_t begin = header_bytes(file), count = (file.size() - begin) / 2;

  constexpr std::uint64_t kBlock = 1 << 16;
  std::vector<std::uint16_t> ids;
  std::string text;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (i % kBlock == 0) {
      ids.resize(std::min(kBlock, count - i));
      file.read(begin + 2 * i, ids.data(), 2 * ids.size());
      write_out(text);
      text.clear();
    }
    const std::uint16_t id = ids[i % kBlock];
    check(id < tokenizer->vocab_size(), "{}: id {} at offset {} (in tokens) is none of the {} of --tokenizer {}",
          *options.decode, id, i, tokenizer->vocab_size(), tokenizer->name());
    if (id != tokenizer->end_of_document()) text += tokenizer->decode(id);
  }
  write_out(text);
}

int run(int argc, const char* const* argv) {
  Options options;
  Flags flags("tokenize", "Turns text files into token files for training, and token files back into text.");
  flags.add(options);
  if (!flags.parse(argc, argv)) return 0;
  if (!options.decode) return encode_files(options, flags);
  decode_file(options, flags);
  return 0;
}

}  // namespace

}  // namespace grt

int main(int argc, char** argv) {
  return grt::run_main("tokenize", [&] { return grt::run(argc, argv); });
}
