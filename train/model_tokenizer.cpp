#include "train/model_tokenizer.h"

#include <algorithm>

#include "core/files.h"

namespace grt {

std::unique_ptr<Tokenizer> model_tokenizer(const BackboneConfig& config, const std::string& cure) {
  std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(config.tokenizer);
  check(tokenizer->vocab_size() == config.vocab_size,
        "the tokenizer {} of config.json has {} ids, but the model's vocab_size is {}: {}", tokenizer->name(),
        tokenizer->vocab_size(), config.vocab_size, cure);
  return tokenizer;
}

std::vector<std::uint16_t> encode_file(const Tokenizer& tokenizer, const std::string& file) {
  constexpr std::size_t kBlock = std::size_t{1} << 20;
  const OpenFile text(file);
  std::vector<std::uint16_t> ids{static_cast<std::uint16_t>(tokenizer.end_of_document())};
  Encoder encoder(tokenizer, SpecialText::ordinary,
                  [&](std::span<const int> part) { ids.insert(ids.end(), part.begin(), part.end()); });
  std::string block;
  for (std::uint64_t begin = 0; begin < text.size(); begin += block.size()) {
    block.resize(std::min<std::uint64_t>(kBlock, text.size() - begin));
    text.read(begin, block.data(), block.size());
    encoder.feed(block);
  }
  encoder.finish();
  return ids;
}

}  // namespace grt
