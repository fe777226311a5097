#include "train/llmc.h"

#include <array>
#include <bit>
#include <vector>

namespace grt {
namespace {

constexpr std::int32_t kMagic = 20240326, kF32 = 3, kBf16 = 5;
constexpr std::int64_t kHeaderBytes = 256 * 4;
enum Field { kMagicAt, kVersionAt, kMaxT, kV, kL, kNH, kC, kVp, kFields };

// The tensors of a layer, in the file's order; of each, those of all layers follow one another.
constexpr const char* kLayerTensors[] = {
    "ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias",
    "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight",    "mlp.c_fc.bias",    "mlp.c_proj.weight",  "mlp.c_proj.bias"};

std::vector<std::string> names_in_order(std::int64_t layers) {
  std::vector<std::string> names = {"wte.weight", "wpe.weight"};
  for (const char* tensor : kLayerTensors)
    for (std::int64_t l = 0; l < layers; ++l) names.push_back(fmt::format("h.{}.{}", l, tensor));
  names.insert(names.end(), {"ln_f.weight", "ln_f.bias"});
  return names;
}

void check_version(const std::array<std::int32_t, kFields>& header, const std::string& file) {
  check(header[kMagicAt] != static_cast<std::int32_t>(__builtin_bswap32(kMagic)),
        "{}: was written by a machine of the other byte order", file);
  check(header[kMagicAt] == kMagic, "{}: no model file of llm.c: begins with {}, not {}", file, header[kMagicAt],
        kMagic);
  check(header[kVersionAt] == kF32 || header[kVersionAt] == kBf16,
        "{}: version must be {} (f32) or {} (bf16), with a padded vocabulary, not {}", file, kF32, kBf16,
        header[kVersionAt]);
}

}  // namespace

LlmcFile::LlmcFile(const fs::path& path) : file_(path) {
  const std::string name = path.string();
  check(file_.size() >= kHeaderBytes, "{}: has {} bytes, too few for the header of a model file of llm.c", name,
        file_.size());
  std::array<std::int32_t, kFields> header;
  file_.read(0, header.data(), sizeof header);
  check_version(header, name);
  element_ = header[kVersionAt] == kF32 ? 4 : 2;
  config_ = {{"architecture", "dense"},
             {"tokenizer", header[kV] == 50257 ? "gpt2" : "bytes"},
             {"vocab_size", header[kV]},
             {"padded_vocab_size", header[kVp]},
             {"context_length", header[kMaxT]},
             {"d_model", header[kC]},
             {"n_heads", header[kNH]},
             {"bias", true},
             {"gelu", "tanh"},
             {"n_layers", header[kL]}};
  check(header[kV] > 0 && header[kVp] > 0, "{}: V is {} and Vp is {}", name, header[kV], header[kVp]);
  // The ranges of our configuration keep this count far below 2^63.
  const std::int64_t count = make_model(config_, name)->params().count();
  const auto bytes = static_cast<std::uint64_t>(kHeaderBytes + count * element_);
  check(file_.size() == bytes, "{}: L {}, C {}, Vp {}, maxT {} need {} bytes, but the file has {}", name, header[kL],
        header[kC], header[kVp], header[kMaxT], bytes, file_.size());
}

void LlmcFile::read(Params& params) const {
  auto at = static_cast<std::uint64_t>(kHeaderBytes);
  std::vector<std::uint16_t> narrow;
  for (const std::string& name : names_in_order(config_["n_layers"])) {
    const Param& p = *params.find(name);
    const Tensor to = p.var.value();
    const auto n = static_cast<std::size_t>(to.numel());
    if (element_ == 4) {
      file_.read(at, to.raw(), 4 * n);
    } else {
      narrow.resize(n);
      file_.read(at, narrow.data(), 2 * n);
      for (std::size_t i = 0; i < n; ++i)
        to.data<float>()[i] = std::bit_cast<float>(static_cast<std::uint32_t>(narrow[i]) << 16);
    }
    at += n * static_cast<std::size_t>(element_);
    if (p.used_rows == p.shape[0]) continue;
    const Tensor padding = to.rows(p.used_rows, p.shape[0] - p.used_rows);
    padding.device().zero(padding.raw(), padding.bytes());
  }
}

}  // namespace grt
