// Pieces up to kShort bytes are merged in a small array, longer ones in a linked list, where all places of the pair of
// lowest rank merge in one sweep from left to right; a piece of 10^6 equal characters takes ten milliseconds. Both do
// what the original does: a pair that contains a new token has a higher rank than that token, so no sweep has to stop.
#include "train/bpe.h"

#include <algorithm>
#include <functional>
#include <map>

#include "core/error.h"
#include "train/utf8.h"

namespace grt {

namespace {

constexpr std::size_t kShort = 64;
constexpr std::size_t kTableBits = 17;  // 131,072 places for 50,256 keys
constexpr std::size_t kTableMask = (std::size_t{1} << kTableBits) - 1;
constexpr std::size_t kMaxTokens = std::size_t{1} << 16;  // ids fit 16 bits in the tables
constexpr std::uint16_t kFree = 0xFFFF;

std::size_t place_of_pair(std::uint32_t key) { return key * 0x9E3779B97F4A7C15u >> (64 - kTableBits); }
std::size_t hash_of_bytes(std::string_view bytes) { return std::hash<std::string_view>{}(bytes); }

// The bytes in the order of their ids: first those that GPT-2's table writes as themselves, then the others, which it
// writes as U+0100, U+0101, ...
constexpr bool written_as_itself(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

constexpr std::array<std::uint8_t, 256> kByteOfId = [] {
  std::array<std::uint8_t, 256> bytes{};
  int id = 0;
  for (const bool itself : {true, false})
    for (int byte = 0; byte < 256; ++byte)
      if (written_as_itself(byte) == itself) bytes[id++] = static_cast<std::uint8_t>(byte);
  return bytes;
}();
constexpr int kWrittenAsThemselves = 188;

// The bytes that a symbol of the file stands for; empty if it is not written in the table's characters.
std::string bytes_of_symbol(std::string_view symbol) {
  std::string bytes;
  while (!symbol.empty()) {
    const CodePoint c = first_code_point(symbol);
    if (c.state != CodePoint::State::whole) return {};
    if (c.value < 256 && written_as_itself(static_cast<int>(c.value)))
      bytes += static_cast<char>(c.value);
    else if (c.value >= 256 && c.value - 256 + kWrittenAsThemselves < 256)
      bytes += static_cast<char>(kByteOfId[c.value - 256 + kWrittenAsThemselves]);
    else
      return {};
    symbol.remove_prefix(c.length);
  }
  return bytes;
}

}  // namespace

Bpe::Bpe(std::string_view merges) : pairs_(kTableMask + 1), by_bytes_(kTableMask + 1, kFree) {
  for (int id = 0; id < 256; ++id) {
    byte_ids_[kByteOfId[id]] = static_cast<std::uint16_t>(id);
    const char byte = static_cast<char>(kByteOfId[id]);
    add_token({&byte, 1}, {});
  }
  check(merges.starts_with("#version"), "vocab.bpe: the first line must begin with #version");
  int line_number = 1;
  merges.remove_prefix(std::min(merges.find('\n'), merges.size() - 1) + 1);
  while (!merges.empty()) {  // no line is a comment: eight merges begin with '#'
    ++line_number;
    const std::string_view line = merges.substr(0, merges.find('\n'));
    merges.remove_prefix(std::min(line.size() + 1, merges.size()));
    const std::size_t space = std::min(line.find(' '), line.size());
    const std::string left = bytes_of_symbol(line.substr(0, space));
    const std::string right = bytes_of_symbol(line.substr(std::min(space + 1, line.size())));
    const int left_id = find(left), right_id = find(right);
    check(left_id >= 0 && right_id >= 0 && ends_.size() < kMaxTokens - 1,
          "vocab.bpe:{}: expected two earlier tokens with one space between them, not \"{}\"", line_number, line);
    add_pair(left_id, right_id, static_cast<std::uint32_t>(ends_.size()));
    add_token(left, right);
  }
}

void Bpe::add_token(std::string_view left, std::string_view right) {
  bytes_ += left;
  bytes_ += right;
  const auto id = static_cast<std::uint16_t>(ends_.size());
  ends_.push_back(static_cast<std::uint32_t>(bytes_.size()));
  std::size_t place = hash_of_bytes(token(id)) & kTableMask;
  while (by_bytes_[place] != kFree) place = (place + 1) & kTableMask;
  by_bytes_[place] = id;
}

void Bpe::add_pair(std::uint32_t left, std::uint32_t right, std::uint32_t merged) {
  const std::uint32_t key = left << 16 | right;
  std::size_t place = place_of_pair(key);
  while (pairs_[place].key != kNone) place = (place + 1) & kTableMask;
  pairs_[place] = {key, merged};
}

std::string_view Bpe::token(int id) const {
  const std::uint32_t begin = id == 0 ? 0 : ends_[id - 1];
  return std::string_view(bytes_).substr(begin, ends_[id] - begin);
}

int Bpe::find(std::string_view bytes) const {
  std::size_t place = hash_of_bytes(bytes) & kTableMask;
  while (by_bytes_[place] != kFree) {
    if (token(by_bytes_[place]) == bytes) return by_bytes_[place];
    place = (place + 1) & kTableMask;
  }
  return -1;
}

std::uint32_t Bpe::merged(std::uint32_t left, std::uint32_t right) const {
  const std::uint32_t key = left << 16 | right;
  std::size_t place = place_of_pair(key);
  while (pairs_[place].key != key) {
    if (pairs_[place].key == kNone) return kNone;
    place = (place + 1) & kTableMask;
  }
  return pairs_[place].merged;
}

// A piece that is a token merges to it: true of every token of GPT-2's table.
void Bpe::encode(std::string_view piece, std::vector<int>& ids) const {
  if (const int id = find(piece); id >= 0)
    ids.push_back(id);
  else
    merge(piece, ids);
}

void Bpe::merge(std::string_view piece, std::vector<int>& ids) const {
  if (piece.size() <= kShort)
    merge_short(piece, ids);
  else
    merge_long(piece, ids);
}

void Bpe::merge_short(std::string_view piece, std::vector<int>& ids) const {
  std::array<std::uint32_t, kShort> tokens;
  std::array<std::uint32_t, kShort> candidates;  // what tokens i and i + 1 merge to
  std::size_t n = piece.size();
  for (std::size_t i = 0; i < n; ++i) tokens[i] = byte_ids_[static_cast<unsigned char>(piece[i])];
  for (std::size_t i = 0; i + 1 < n; ++i) candidates[i] = merged(tokens[i], tokens[i + 1]);

  while (n > 1) {
    const auto best = std::min_element(candidates.begin(), candidates.begin() + n - 1);
    if (*best == kNone) break;
    const std::size_t i = best - candidates.begin();
    tokens[i] = *best;
    std::copy(tokens.begin() + i + 2, tokens.begin() + n, tokens.begin() + i + 1);
    std::copy(candidates.begin() + i + 1, candidates.begin() + n - 1, candidates.begin() + i);
    --n;
    if (i > 0) candidates[i - 1] = merged(tokens[i - 1], tokens[i]);
    if (i + 1 < n) candidates[i] = merged(tokens[i], tokens[i + 1]);
  }
  ids.insert(ids.end(), tokens.begin(), tokens.begin() + n);
}

void Bpe::merge_long(std::string_view piece, std::vector<int>& ids) const {
  check(piece.size() < kNone, "gpt2 tokenizer: a run of one class of characters has {} bytes; 2^32 - 2 is the limit",
        piece.size());
  const auto n = static_cast<std::uint32_t>(piece.size());
  struct Node {  // a token of the piece
    std::uint32_t id, previous, next;
  };
  std::vector<Node> nodes(n);
  for (std::uint32_t i = 0; i < n; ++i) nodes[i] = {byte_ids_[static_cast<unsigned char>(piece[i])], i - 1, i + 1};

  std::map<std::uint32_t, std::vector<std::uint32_t>> places;  // where a pair that merges to this id begins
  const auto add_place = [&](std::uint32_t at) {
    if (nodes[at].next == n) return;
    const std::uint32_t id = merged(nodes[at].id, nodes[nodes[at].next].id);
    if (id != kNone) places[id].push_back(at);
  };
  for (std::uint32_t i = 0; i < n; ++i) add_place(i);

  while (!places.empty()) {
    const std::uint32_t id = places.begin()->first;
    std::vector<std::uint32_t> sweep = std::move(places.begin()->second);
    places.erase(places.begin());  // the pairs that this sweep makes have higher ids
    if (!std::is_sorted(sweep.begin(), sweep.end())) std::sort(sweep.begin(), sweep.end());
    for (const std::uint32_t at : sweep) {
      Node& node = nodes[at];
      // Stale when either token of the pair has merged meanwhile.
      if (node.id == kNone || node.next == n || merged(node.id, nodes[node.next].id) != id) continue;
      node.id = id;
      nodes[node.next].id = kNone;
      node.next = nodes[node.next].next;
      if (node.next != n) nodes[node.next].previous = at;
      if (at != 0) add_place(node.previous);
      add_place(at);
    }
  }
  for (std::uint32_t i = 0; i != n; i = nodes[i].next) ids.push_back(static_cast<int>(nodes[i].id));
}

}  // namespace grt
