// Text to token ids and back: the tokenizers `bytes` and `gpt2` behind one interface, and an encoder for documents that
// arrive in parts. Any byte string is text: bytes that are not valid UTF-8 come back from decode() unchanged.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace grt {

// Encodes one text after another, each given in parts that may be cut anywhere, even inside a character.
class PartEncoder {
 public:
  virtual ~PartEncoder() = default;
  virtual void feed(std::string_view part, std::vector<int>& ids) = 0;  // appends the ids that are certain by now
  virtual void finish(std::vector<int>& ids) = 0;                       // appends the rest; the next text may begin
};

// The const functions may be called by several threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::string name() const = 0;
  virtual int vocab_size() const = 0;
  virtual int end_of_document() const = 0;                    // the id that follows each document of a token file
  virtual std::string_view end_of_document_text() const = 0;  // what may stand for it in a text; empty: nothing can

  // Appends the ids of a text in which nothing is special.
  virtual void encode(std::string_view text, std::vector<int>& ids) const = 0;
  std::vector<int> encode(std::string_view text) const;
  virtual std::unique_ptr<PartEncoder> part_encoder() const = 0;  // must not outlive the tokenizer

  // The exact bytes of one token, which may be a part of a character; valid as long as the tokenizer. The end of a
  // document is its end_of_document_text(). Throws Error for an id outside [0, vocab_size()).
  std::string_view decode(int id) const;
  std::string decode(std::span<const int> ids) const;

 private:
  virtual std::string_view token(int id) const = 0;
};

// "bytes": ids 0-255 are bytes, 256 ends a document. "gpt2": GPT-2's byte-level BPE, 50256 ends a document.
// Throws Error, naming what there is, for any other name.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name);

// What an end_of_document_text() inside a corpus, <|endoftext|> for gpt2, becomes.
enum class SpecialText {
  ordinary,  // ids like those of any other text: a corpus cannot end a document by what it says
  allow,     // end_of_document(); the text before and the text after are encoded each on its own
  error,     // an Error
};

// Encodes documents that arrive in parts and hands the ids on as they become certain. What the sink gets in all does
// not depend on how a document is cut, and equals encode() of the whole. Memory is bounded whatever the length of the
// document, but for one thing: a run of characters of one class (letters, digits, white space, others) is encoded as
// one, so such a run is held whole, at about 20 bytes for each of its own.
class Encoder {
 public:
  using Sink = std::function<void(std::span<const int>)>;
  // The tokenizer must outlive the encoder.
  Encoder(const Tokenizer& tokenizer, SpecialText special, Sink sink);

  void begin(std::string document);  // names the document that follows, for errors; may be left out
  void feed(std::string_view chunk);
  void finish();  // ends the document; no id is added for that. Another one may follow

 private:
  void feed_part(std::string_view part);
  void feed_watched(std::string_view part);
  void pass_on();

  const Tokenizer& tokenizer_;
  SpecialText special_;
  Sink sink_;
  std::unique_ptr<PartEncoder> parts_;
  std::string document_ = "text";
  std::string held_;            // text not encoded yet: shorter than the special text, which it may begin
  std::uint64_t position_ = 0;  // bytes of the document before held_
  std::vector<int> ids_;        // not yet handed on
};

}  // namespace grt
