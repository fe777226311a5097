#include "train/huggingface.h"

#include <algorithm>

namespace grt {
namespace {

constexpr double kEpsilon = 1e-5;
constexpr const char* kOurs = "grt";  // the key under which their config.json keeps what only we distinguish
const std::vector<std::string> kTanh = {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"};

bool is_conv1d(const std::string& name) {
  return name.ends_with("attn.c_attn.weight") || name.ends_with(".c_proj.weight") || name.ends_with("mlp.c_fc.weight");
}

bool has_bias(const std::string& weight) {
  return weight.ends_with(".weight") && !weight.starts_with("wte.") && !weight.starts_with("wpe.");
}

std::string bias_of(const std::string& weight) { return weight.substr(0, weight.size() - 6) + "bias"; }

std::int64_t whole(const Json& theirs, const char* key, const std::string& where) {
  check(theirs.contains(key) && theirs[key].is_number_integer(), "{}: {} must be a whole number, not {}", where, key,
        theirs.contains(key) ? to_text(theirs[key], -1) : "absent");
  check(!theirs[key].is_number_unsigned() || theirs[key].get<std::uint64_t>() < 1ull << 31, "{}: {} = {} is too large",
        where, key, to_text(theirs[key], -1));
  return theirs[key].get<std::int64_t>();
}

void must_be(const Json& theirs, const char* key, const Json& expected, const std::string& where) {
  if (const auto it = theirs.find(key); it != theirs.end())
    check(*it == expected, "{}: {} must be {}, not {}", where, key, to_text(expected, -1), to_text(*it, -1));
}

std::string gelu_of(const Json& theirs, const std::string& where) {
  const auto it = theirs.find("activation_function");
  if (it == theirs.end()) return "tanh";  // their default is gelu_new
  check(it->is_string(), "{}: activation_function must be a string, not {}", where, to_text(*it, -1));
  const auto name = it->get<std::string>();
  if (name == "gelu") return "erf";
  check(std::find(kTanh.begin(), kTanh.end(), name) != kTanh.end(),
        "{}: activation_function must be gelu (erf) or one of {} (tanh), not \"{}\"", where, fmt::join(kTanh, ", "),
        name);
  return "tanh";
}

// Their Conv1D [in, out] of our Linear [out, in].
Tensor transposed(const Tensor& w) {
  const std::int64_t out = w.dim(0), in = w.dim(1);
  const Tensor t = Tensor::empty({in, out}, w.dtype(), w.device());
  for (std::int64_t o = 0; o < out; ++o)
    for (std::int64_t i = 0; i < in; ++i) t.data<float>()[i * out + o] = w.data<float>()[o * in + i];
  return t;
}

Json huggingface_config(const Json& ours, DType dtype) {
  const bool gpt2 = ours["tokenizer"] == "gpt2";
  const Json end = gpt2 ? 50256 : 256, end_or_none = end < ours["vocab_size"] ? end : Json(nullptr);
  return {
      {"model_type", "gpt2"},
      {"architectures", {"GPT2LMHeadModel"}},
      {"activation_function", ours["gelu"] == "tanh" ? "gelu_new" : "gelu"},
      {"vocab_size", ours["vocab_size"]},
      {"n_positions", ours["context_length"]},
      {"n_ctx", ours["context_length"]},
      {"n_embd", ours["d_model"]},
      {"n_layer", ours["n_layers"]},
      {"n_head", ours["n_heads"]},
      {"n_inner", nullptr},
      {"layer_norm_epsilon", kEpsilon},
      {"initializer_range", 0.02},
      {"attn_pdrop", 0.0},
      {"embd_pdrop", 0.0},
      {"resid_pdrop", 0.0},
      {"scale_attn_weights", true},
      {"scale_attn_by_inverse_layer_idx", false},
      {"reorder_and_upcast_attn", false},
      {"tie_word_embeddings", true},
      {"bos_token_id", end_or_none},
      {"eos_token_id", end_or_none},
      {"use_cache", true},
      {"torch_dtype", dtype == DType::bf16 ? "bfloat16" : "float32"},
      {kOurs,
       {{"bias", ours["bias"]}, {"tokenizer", ours["tokenizer"]}, {"padded_vocab_size", ours["padded_vocab_size"]}}}};
}

}  // namespace

Json config_from_huggingface(const Json& theirs, const std::string& where) {
  check(theirs.is_object(), "{}: must be a JSON object", where);
  must_be(theirs, "model_type", "gpt2", where);
  must_be(theirs, "layer_norm_epsilon", kEpsilon, where);
  must_be(theirs, "scale_attn_weights", true, where);
  must_be(theirs, "scale_attn_by_inverse_layer_idx", false, where);
  must_be(theirs, "add_cross_attention", false, where);
  const std::int64_t width = whole(theirs, "n_embd", where), vocab = whole(theirs, "vocab_size", where);
  if (theirs.contains("n_inner") && !theirs["n_inner"].is_null()) must_be(theirs, "n_inner", 4 * width, where);
  Json ours{{"architecture", "dense"},
            {"tokenizer", vocab == 50257 ? "gpt2" : "bytes"},
            {"vocab_size", vocab},
            {"context_length", whole(theirs, theirs.contains("n_positions") ? "n_positions" : "n_ctx", where)},
            {"d_model", width},
            {"n_heads", whole(theirs, "n_head", where)},
            {"bias", true},
            {"gelu", gelu_of(theirs, where)},
            {"n_layers", whole(theirs, "n_layer", where)}};
  if (const auto hints = theirs.find(kOurs); hints != theirs.end() && hints->is_object())
    for (const char* key : {"tokenizer", "padded_vocab_size"})
      if (hints->contains(key)) ours[key] = (*hints)[key];
  return ours;
}

Origins huggingface_origins(const Params& params) {
  Origins origins;
  for (const Param& p : params.all()) origins[p.name] = {p.name, is_conv1d(p.name)};
  return origins;
}

bool is_huggingface_buffer(const std::string& name, int layers) {
  for (int i = 0; i < layers; ++i)
    if (name == fmt::format("h.{}.attn.bias", i) || name == fmt::format("h.{}.attn.masked_bias", i)) return true;
  return false;
}

std::unique_ptr<LanguageModel> without_written_biases(std::unique_ptr<LanguageModel> model, const Json& theirs) {
  const auto hints = theirs.find(kOurs);
  const bool had_none =
      hints != theirs.end() && hints->is_object() && hints->contains("bias") && (*hints)["bias"] == false;
  if (!had_none || !model->config().bias) return model;
  for (const Param& p : model->params().all()) {
    const float* values = p.var.value().data<float>();
    if (p.name.ends_with(".bias") && std::any_of(values, values + p.shape.numel(), [](float x) { return x != 0; }))
      return model;  // trained further, elsewhere
  }
  Json config = model->config_json();
  config["bias"] = false;
  std::unique_ptr<LanguageModel> plain = make_model(config, "config.json");
  plain->params().allocate(model->device(), DType::f32);
  for (const Param& p : plain->params().all())
    plain->device().copy(p.var.value().raw(), model->params().find(p.name)->var.value().raw(), p.var.value().bytes());
  return plain;
}

void write_huggingface(const fs::path& out, const LanguageModel& model, DType dtype) {
  check(model.config().architecture == "dense",
        "--to hf: transformers' GPT-2 is a dense model; this one is {}, which only --to grt can hold",
        model.config().architecture);
  std::vector<NamedTensor> tensors;
  for (const Param& p : model.params().all()) {
    const Tensor value = p.var.value(), used = p.shape.rank() == 2 ? value.rows(0, p.used_rows) : value;
    tensors.push_back({"transformer." + p.name, stored_as(is_conv1d(p.name) ? transposed(value) : used, dtype)});
    if (model.config().bias || !has_bias(p.name)) continue;
    const Tensor zeros = Tensor::zeros({p.shape[0]}, DType::f32, model.device());
    tensors.push_back({"transformer." + bias_of(p.name), stored_as(zeros, dtype)});
  }
  const Json config = huggingface_config(model.config_json(), dtype);
  check_new(out);
  DirectoryWriter directory(out);
  write_file(directory / "config.json", to_text(config, 2) + "\n");
  write_safetensors(directory / "model.safetensors", tensors, {{"format", "pt"}});
  directory.commit();
}

}  // namespace grt
