// Byte-pair merges: the bytes of one piece become the ids of GPT-2's tokens.
//
// Ids 0-255 are single bytes in the order of GPT-2's byte table, 256 + r is the result of the merge of rank r. So the
// order of ids is the order of ranks, and the file of merges is the whole tokenizer.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace grt {

class Bpe {
 public:
  // Reads the text of a vocab.bpe: a version line, then one merge a line. Throws Error for a line that is no merge of
  // two tokens known before it.
  explicit Bpe(std::string_view merges);

  int size() const { return static_cast<int>(ends_.size()); }
  std::string_view token(int id) const;    // its bytes; id in [0, size())
  int find(std::string_view bytes) const;  // the token with exactly these bytes; -1 if there is none

  // Appends the ids of one piece. Time O(n log n) and memory O(n) in its bytes. A piece that is itself a token, as most
  // words are, is looked up; a cache of other pieces beside that was measured to gain nothing.
  void encode(std::string_view piece, std::vector<int>& ids) const;
  // The same by merges alone.
  void merge(std::string_view piece, std::vector<int>& ids) const;

 private:
  static constexpr std::uint32_t kNone = ~0u;
  struct Pair {
    std::uint32_t key = kNone;  // left id << 16 | right id
    std::uint32_t merged = 0;   // id
  };

  void add_token(std::string_view left, std::string_view right);
  void add_pair(std::uint32_t left, std::uint32_t right, std::uint32_t merged);
  std::uint32_t merged(std::uint32_t left, std::uint32_t right) const;  // id, or kNone if the pair does not merge
  void merge_short(std::string_view piece, std::vector<int>& ids) const;
  void merge_long(std::string_view piece, std::vector<int>& ids) const;

  std::string bytes_;                // of all tokens, one after another
  std::vector<std::uint32_t> ends_;  // of each token in bytes_
  std::array<std::uint16_t, 256> byte_ids_;
  std::vector<Pair> pairs_;              // open addressing, a power of two
  std::vector<std::uint16_t> by_bytes_;  // open addressing over the tokens' bytes
};

}  // namespace grt
