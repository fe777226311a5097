// The tokenizer that a model's configuration names, for commands that read or write text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/config.h"
#include "train/tokenizer.h"

namespace grt {

// Throws Error, naming both sizes, unless the ids of tokenizer and model are the same set: text through another
// vocabulary would be noise. `cure` says what to do without text.
std::unique_ptr<Tokenizer> model_tokenizer(const BackboneConfig& config, const std::string& cure);

// What a model is evaluated on: the ids of a text file as one document, after the id that ends the document before it,
// so that the first token of the text is predicted too, as in a token file.
std::vector<std::uint16_t> encode_file(const Tokenizer& tokenizer, const std::string& file);

}  // namespace grt
