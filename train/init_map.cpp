#include "train/init_map.h"

#include "core/safetensors.h"

namespace grt {
namespace {

// What a copied weight means depends on these.
constexpr const char* kShared[] = {"tokenizer", "vocab_size", "d_model", "n_heads", "bias", "gelu"};

std::string flag_of(std::string key) {
  for (char& c : key) c = c == '_' ? '-' : c;
  return key;
}

// The first rows of a stored table, whose other rows are positions or padding that the model does not have.
void read_rows(const Safetensors& file, const Param& to, const Shape& stored) {
  const Tensor table = Tensor::empty(stored, to.var.value().dtype(), to.var.device());
  file.read(to.name, table);
  const Tensor rows = to.var.value().rows(0, std::min(to.used_rows, stored[0]));
  to.var.device().copy(rows.raw(), table.raw(), rows.bytes());
  to.var.device().sync();
}

}  // namespace

std::vector<BlockCopy> middle_blocks(const LanguageModel& model, const LanguageModel& dense) {
  const Json to = model.config_json(), from = dense.config_json();
  check(from["architecture"] == "dense" && to["architecture"] != "dense",
        "--init-map middle: makes a recurrent model of a dense one, not {} of {}",
        to["architecture"].get<std::string>(), from["architecture"].get<std::string>());
  for (const char* key : kShared)
    check(to[key] == from[key], "--init-map middle: {} is {} and must be that of the dense model (--{} {})", key,
          to[key].dump(), flag_of(key), from[key].is_string() ? from[key].get<std::string>() : from[key].dump());
  check(to["context_length"] <= from["context_length"],
        "--init-map middle: context_length is {}, the dense model has {} positions", to["context_length"].dump(),
        from["context_length"].dump());

  const int p = to["n_prelude"], b = to["n_core"], c = to["n_coda"], layers = from["n_layers"];
  check(p + b + c <= layers, "--init-map middle: n_prelude {} + n_core {} + n_coda {} are more than {} dense blocks", p,
        b, c, layers);
  std::vector<BlockCopy> copies;
  const auto add = [&](const char* part, int count, int first) {
    for (int i = 0; i < count; ++i) copies.push_back({fmt::format("{}.{}", part, i), fmt::format("h.{}", first + i)});
  };
  add("prelude", p, 0);
  add("core", b, p + (layers - p - c - b) / 2);
  add("coda", c, layers - c);
  return copies;
}

void load_from_dense(LanguageModel& model, const LanguageModel& dense, const fs::path& path) {
  const Safetensors file(path);
  for (const char* name : {"wte.weight", "wpe.weight"})
    read_rows(file, *model.params().find(name), dense.params().find(name)->shape);
  const std::vector<BlockCopy> copies = middle_blocks(model, dense);
  for (const Param& p : model.params().all()) {
    if (p.name.starts_with("ln_f.")) file.read(p.name, p.var.value());
    for (const BlockCopy& copy : copies)
      if (p.name.starts_with(copy.to + ".")) file.read(copy.from + p.name.substr(copy.to.size()), p.var.value());
  }
}

}  // namespace grt
