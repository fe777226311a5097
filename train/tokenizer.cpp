// The two tokenizers, and the encoder's watch for special text that is cut by the border of two chunks.
#include "train/tokenizer.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "train/bpe.h"
#include "train/pretokenizer.h"

extern "C" const char grt_merges_begin[], grt_merges_end[];  // train/merges.S

namespace grt {

namespace {

constexpr std::size_t kPart = std::size_t{1} << 16;  // bytes encoded at a time, which bounds all buffers

constexpr std::array<char, 256> kBytes = [] {
  std::array<char, 256> bytes{};
  for (int i = 0; i < 256; ++i) bytes[i] = static_cast<char>(i);
  return bytes;
}();

void append_bytes(std::string_view text, std::vector<int>& ids) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  ids.insert(ids.end(), bytes, bytes + text.size());
}

class BytePartEncoder : public PartEncoder {
 public:
  void feed(std::string_view part, std::vector<int>& ids) override { append_bytes(part, ids); }
  void finish(std::vector<int>&) override {}
};

class ByteTokenizer : public Tokenizer {
 public:
  std::string name() const override { return "bytes"; }
  int vocab_size() const override { return 257; }
  int end_of_document() const override { return 256; }
  std::string_view end_of_document_text() const override { return {}; }
  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<int>& ids) const override { append_bytes(text, ids); }
  std::unique_ptr<PartEncoder> part_encoder() const override { return std::make_unique<BytePartEncoder>(); }

 private:
  std::string_view token(int id) const override {
    return id < 256 ? std::string_view(&kBytes[id], 1) : std::string_view();
  }
};

class Gpt2PartEncoder : public PartEncoder {
 public:
  explicit Gpt2PartEncoder(const Bpe& bpe) : bpe_(bpe) {}

  void feed(std::string_view part, std::vector<int>& ids) override {
    pending_ += part;
    encode_pending(false, ids);
  }
  void finish(std::vector<int>& ids) override { encode_pending(true, ids); }

 private:
  void encode_pending(bool last, std::vector<int>& ids) {
    std::string_view rest = pending_;
    while (const std::size_t piece = scanner_.next(rest, last)) {
      bpe_.encode(rest.substr(0, piece), ids);
      rest.remove_prefix(piece);
    }
    const std::size_t left = rest.size();
    if (left == pending_.size()) return;
    pending_.erase(0, pending_.size() - left);
    if (pending_.capacity() > 4 * kPart && left <= kPart) pending_.shrink_to_fit();  // after a long run
  }

  const Bpe& bpe_;
  PieceScanner scanner_;
  std::string pending_;  // the beginning of a piece that is not all there yet
};

class Gpt2Tokenizer : public Tokenizer {
 public:
  Gpt2Tokenizer() : bpe_(std::string_view(grt_merges_begin, grt_merges_end - grt_merges_begin)) {}

  std::string name() const override { return "gpt2"; }
  int vocab_size() const override { return bpe_.size() + 1; }
  int end_of_document() const override { return bpe_.size(); }
  std::string_view end_of_document_text() const override { return "<|endoftext|>"; }
  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<int>& ids) const override {
    PieceScanner scanner;
    while (const std::size_t piece = scanner.next(text, true)) {
      bpe_.encode(text.substr(0, piece), ids);
      text.remove_prefix(piece);
    }
  }
  std::unique_ptr<PartEncoder> part_encoder() const override { return std::make_unique<Gpt2PartEncoder>(bpe_); }

 private:
  std::string_view token(int id) const override {
    return id == end_of_document() ? end_of_document_text() : bpe_.token(id);
  }

  Bpe bpe_;
};

}  // namespace

std::vector<int> Tokenizer::encode(std::string_view text) const {
  std::vector<int> ids;
  encode(text, ids);
  return ids;
}

std::string_view Tokenizer::decode(int id) const {
  check(id >= 0 && id < vocab_size(), "{} tokenizer: id {} is outside [0, {})", name(), id, vocab_size());
  return token(id);
}

std::string Tokenizer::decode(std::span<const int> ids) const {
  std::string text;
  for (const int id : ids) text += decode(id);
  return text;
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name) {
  if (name == "bytes") return std::make_unique<ByteTokenizer>();
  if (name == "gpt2") return std::make_unique<Gpt2Tokenizer>();
  fail("unknown tokenizer \"{}\": expected bytes or gpt2", name);
}

Encoder::Encoder(const Tokenizer& tokenizer, SpecialText special, Sink sink)
    : tokenizer_(tokenizer),
      special_(tokenizer.end_of_document_text().empty() ? SpecialText::ordinary : special),
      sink_(std::move(sink)),
      parts_(tokenizer.part_encoder()) {}

void Encoder::begin(std::string document) { document_ = std::move(document); }

void Encoder::feed(std::string_view chunk) {
  while (!chunk.empty()) {
    feed_part(chunk.substr(0, kPart));
    chunk.remove_prefix(std::min(chunk.size(), kPart));
  }
}

void Encoder::feed_part(std::string_view part) {
  if (special_ == SpecialText::ordinary)
    parts_->feed(part, ids_);
  else
    feed_watched(part);
  pass_on();
}

// Encodes up to the last few bytes, which are held back as long as they may begin the special text.
void Encoder::feed_watched(std::string_view part) {
  const std::string_view special = tokenizer_.end_of_document_text();
  held_ += part;
  std::string_view rest = held_;
  for (std::size_t at; (at = rest.find(special)) != rest.npos;) {
    position_ += at;
    check(special_ == SpecialText::allow, "{}: holds the special text {} at byte {}", document_, special, position_);
    parts_->feed(rest.substr(0, at), ids_);
    parts_->finish(ids_);
    ids_.push_back(tokenizer_.end_of_document());
    rest.remove_prefix(at + special.size());
    position_ += special.size();
  }
  std::size_t keep = std::min(rest.size(), special.size() - 1);
  while (!rest.ends_with(special.substr(0, keep))) --keep;
  const std::string_view certain = rest.substr(0, rest.size() - keep);
  parts_->feed(certain, ids_);
  position_ += certain.size();
  held_.erase(0, held_.size() - keep);
}

void Encoder::finish() {
  parts_->feed(held_, ids_);
  parts_->finish(ids_);
  pass_on();
  held_.clear();
  position_ = 0;
}

void Encoder::pass_on() {
  if (!ids_.empty()) sink_(ids_);
  ids_.clear();
  if (ids_.capacity() > 4 * kPart) ids_.shrink_to_fit();  // after a long run
}

}  // namespace grt
