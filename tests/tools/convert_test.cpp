// The convert binary: weights of other programs come in right or not at all, and ours come back bit for bit. Foreign
// files are written here, independently of the code under test.
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <sstream>

#include "core/safetensors.h"
#include "tests/support.h"
#include "tests/train/oracle_models.h"

namespace grt::test {
namespace {

using Words = std::vector<std::string>;

Outcome convert(const std::string& from, const std::string& to, const fs::path& in, const fs::path& out,
                const Words& more = {}) {
  Words words = {"--from", from, "--to", to, in.string(), out.string()};
  words.insert(words.end(), more.begin(), more.end());
  return run_tool("convert", words);
}

void convert_well(const std::string& from, const std::string& to, const fs::path& in, const fs::path& out,
                  const Words& more = {}) {
  const Outcome outcome = convert(from, to, in, out, more);
  REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
}

// The one line of a conversion that must fail and leave nothing behind.
std::string refused(const std::string& from, const std::string& to, const fs::path& in, const fs::path& out,
                    const Words& more = {}) {
  const Outcome outcome = convert(from, to, in, out, more);
  CHECK(outcome.code == 1);
  CHECK(outcome.out.empty());
  CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
  CHECK(!fs::exists(out));
  for (const auto& entry : fs::directory_iterator(out.parent_path())) CHECK(!contains(entry.path(), ".tmp-"));
  return outcome.err;
}

bool turned(const std::string& name) {
  for (const char* part : {"attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight"})
    if (name.ends_with(part)) return true;
  return false;
}

// A dense model's tensors as GPT2LMHeadModel has them: [in, out] where Conv1D stands, no padding of the vocabulary.
std::vector<NamedTensor> gpt2_tensors(const LanguageModel& model, const std::string& prefix = "transformer.") {
  std::vector<NamedTensor> all;
  for (const Param& p : model.params().all()) {
    Tensor t = p.var.value();
    if (p.name == "wte.weight") t = t.rows(0, model.config().vocab_size);
    if (turned(p.name)) {
      t = Tensor::empty({p.shape[1], p.shape[0]}, DType::f32, cpu());
      for (std::int64_t i = 0; i < t.numel(); ++i)
        t.data<float>()[i] = p.var.value().data<float>()[i % p.shape[0] * p.shape[1] + i / p.shape[0]];
    }
    all.push_back({prefix + p.name, t});
  }
  return all;
}

Json gpt2_config(const BackboneConfig& c, int layers) {
  return {{"model_type", "gpt2"},
          {"architectures", {"GPT2LMHeadModel"}},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", 1e-05},
          {"n_inner", nullptr},
          {"resid_pdrop", 0.1},
          {"n_positions", c.context_length},
          {"n_embd", c.d_model},
          {"n_head", c.n_heads},
          {"n_layer", layers},
          {"vocab_size", c.vocab_size}};
}

// A folder of the reference model with biases and tanh, which a change may spoil.
struct Folder {
  std::unique_ptr<LanguageModel> model = oracle_model("dense_bias_tanh");
  Json config = gpt2_config(model->config(), 2);
  std::vector<NamedTensor> tensors = gpt2_tensors(*model);

  void write(const fs::path& to) const {
    make_directories(to);
    write_file(to / "config.json", config.dump());
    write_safetensors(to / "model.safetensors", tensors, {{"format", "pt"}});
  }
  NamedTensor& operator[](const std::string& name) {
    return *std::find_if(tensors.begin(), tensors.end(), [&](const NamedTensor& t) { return t.name == name; });
  }
  void erase(const std::string& name) {
    std::erase_if(tensors, [&](const NamedTensor& t) { return t.name == name; });
  }
};

bool same_weights(const LanguageModel& a, const LanguageModel& b) {
  if (a.params().all().size() != b.params().all().size()) return false;
  for (const Param& p : a.params().all()) {
    const Param* q = b.params().find(p.name);
    if (!q || !same_bits(p.var.value(), q->var.value())) return false;
  }
  return true;
}

void check_oracle_logits(const fs::path& checkpoint) {
  const Json expected = oracle_values("dense_bias_tanh")["logits"];
  const auto model = load_model(checkpoint, cpu());
  const std::int64_t T = model->config().context_length;
  std::vector<std::int32_t> ids(T);
  const std::string bytes = read_file(oracle("dense_bias_tanh") / "tokens.bin");
  for (std::int64_t i = 0; i < T; ++i)
    ids[i] = static_cast<unsigned char>(bytes[2 * i]) + 256 * static_cast<unsigned char>(bytes[2 * i + 1]);
  const Tensor logits = model->logits(model->hidden(Tensor::from<std::int32_t>({1, T}, ids, cpu()), 2, {}).value());
  REQUIRE(expected["positions"].size() > 0);
  for (std::size_t i = 0; i < expected["positions"].size(); ++i)
    for (std::int64_t id = 0; id < 97; ++id)
      CHECK(std::abs(logits.data<float>()[expected["positions"][i].get<std::int64_t>() * logits.shape().last() + id] -
                     expected["rows"][i][id].get<double>()) < kLogitTolerance);
}

// A float with 11 significant bits in the normal range of F16, or zero.
float half_exact(float x) {
  if (std::abs(x) < 0x1p-14f) return 0;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0xffffe000u);
}

// A safetensors file of F16, of values that are exact in it.
void write_halves(const fs::path& path, const std::vector<NamedTensor>& tensors) {
  nlohmann::json header;
  std::string data;
  for (const NamedTensor& t : tensors) {
    std::vector<std::int64_t> shape;
    for (int i = 0; i < t.tensor.shape().rank(); ++i) shape.push_back(t.tensor.dim(i));
    const std::size_t begin = data.size();
    for (const double value : values(t.tensor)) {
      const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
      const std::uint32_t exponent = (bits >> 23 & 255) - 112;
      const auto half =
          static_cast<std::uint16_t>(value == 0 ? 0 : (bits >> 16 & 0x8000) | exponent << 10 | (bits >> 13 & 1023));
      data += static_cast<char>(half & 255);
      data += static_cast<char>(half >> 8);
    }
    header[t.name] = {{"dtype", "F16"}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> 8 * i & 255);
  write_file(path, length + text + data);
}

// A model file of llm.c, version 3 or 5.
std::string llmc_file(const LanguageModel& model, int layers, std::int32_t version) {
  const BackboneConfig& c = model.config();
  std::vector<std::int32_t> header(256);
  const std::int64_t fields[] = {20240326, version,   c.context_length, c.vocab_size,
                                 layers,   c.n_heads, c.d_model,        c.padded_vocab_size};
  std::copy(std::begin(fields), std::end(fields), header.begin());
  std::string text(reinterpret_cast<const char*>(header.data()), 1024);
  const auto put = [&](const std::string& name) {
    for (const double value : values(model.params().find(name)->var.value())) {
      const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
      for (int byte = version == 3 ? 0 : 2; byte < 4; ++byte) text += static_cast<char>(bits >> 8 * byte & 255);
    }
  };
  put("wte.weight");
  put("wpe.weight");
  for (const std::string kind : {"ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"})
    for (const char* part : {".weight", ".bias"})
      for (int l = 0; l < layers; ++l) put(fmt::format("h.{}.{}{}", l, kind, part));
  put("ln_f.weight");
  put("ln_f.bias");
  return text;
}

std::string poked(std::string file, std::size_t field, std::int32_t value) {
  std::memcpy(file.data() + 4 * field, &value, 4);
  return file;
}

}  // namespace

TEST_SUITE("tools") {
  TEST_CASE("a GPT-2 folder gives the reference's logits: with or without prefix, head, buffers; in shards") {
    const TempDir dir;
    for (const std::string variant : {"plain", "bare", "head", "buffers", "wrapped", "shards"}) {
      CAPTURE(variant);
      Folder folder;
      if (variant == "bare") folder.tensors = gpt2_tensors(*folder.model, "");
      if (variant == "wrapped") folder.tensors = gpt2_tensors(*folder.model, "module._orig_mod.transformer.");
      if (variant == "head") folder.tensors.push_back({"lm_head.weight", folder["transformer.wte.weight"].tensor});
      if (variant == "buffers")
        for (const char* name : {"transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias"})
          folder.tensors.push_back({name, Tensor::zeros({1, 1, 29, 29}, DType::f32, cpu())});
      folder.write(dir / variant);
      if (variant == "shards") {
        Json map = Json::object();
        for (std::size_t part = 0; part < 2; ++part) {
          const std::string file = fmt::format("model-0000{}-of-00002.safetensors", part + 1);
          std::vector<NamedTensor> some;
          for (std::size_t i = part; i < folder.tensors.size(); i += 2) {
            some.push_back(folder.tensors[i]);
            map[folder.tensors[i].name] = file;
          }
          write_safetensors(dir / variant / file, some);
        }
        fs::remove(dir / variant / "model.safetensors");
        write_file(dir / variant / "model.safetensors.index.json", Json{{"weight_map", map}}.dump());
      }
      const fs::path out = dir / (variant + "-ours");
      convert_well("hf", "grt", dir / variant, out);
      CHECK(same_weights(*load_model(out, cpu()), *folder.model));
      check_oracle_logits(out);
    }
  }

  TEST_CASE("F16 and BF16 weights come in as the numbers they are") {
    const TempDir dir;
    Folder folder;
    for (const Param& p : folder.model->params().all())
      for (std::int64_t i = 0; i < p.shape.numel(); ++i)
        p.var.value().data<float>()[i] = half_exact(p.var.value().data<float>()[i]);
    folder.write(dir / "f16");
    write_halves(dir / "f16" / "model.safetensors", gpt2_tensors(*folder.model));
    convert_well("hf", "grt", dir / "f16", dir / "f16-ours");
    CHECK(same_weights(*load_model(dir / "f16-ours", cpu()), *folder.model));

    convert_well("hf", "hf", dir / "f16", dir / "bf16", {"--dtype", "bf16"});
    convert_well("hf", "grt", dir / "bf16", dir / "bf16-ours");
    const auto rounded = load_model(dir / "bf16-ours", cpu());
    for (const Param& p : rounded->params().all())
      for (std::int64_t i = 0; i < p.shape.numel(); ++i) {
        const float was = folder.model->params().find(p.name)->var.value().data<float>()[i],
                    is = p.var.value().data<float>()[i];
        REQUIRE((std::bit_cast<std::uint32_t>(is) & 0xffff) == 0);
        REQUIRE(std::abs(is - was) <= std::abs(was) * 0x1p-8f);
      }
  }

  TEST_CASE("a tensor that is missing, misshapen, left over or another head is named") {
    const TempDir dir;
    int n = 0;
    const auto error = [&](const std::function<void(Folder&)>& spoil) {
      Folder folder;
      spoil(folder);
      const fs::path in = dir / fmt::format("in{}", n++);
      folder.write(in);
      return refused("hf", "grt", in, dir / "out");
    };
    CHECK(contains(error([](Folder& f) { f.erase("transformer.h.1.mlp.c_fc.bias"); }),
                   "model.safetensors: 1 of the model's tensors is missing: h.1.mlp.c_fc.bias (160)"));
    CHECK(contains(error([](Folder& f) {
                     Tensor& t = f["transformer.h.0.attn.c_attn.weight"].tensor;
                     t = t.view({120, 40});
                   }),
                   "tensor transformer.h.0.attn.c_attn.weight must be (40, 120) (ours, transposed), not (120, 40)"));
    CHECK(contains(error([](Folder& f) {
                     Tensor& t = f["transformer.wte.weight"].tensor;
                     t = t.rows(0, 96);
                   }),
                   "tensor transformer.wte.weight must be (128, 40), not (96, 40)"));
    CHECK(contains(error([](Folder& f) {
                     f.tensors.push_back({"score.weight", randn({2, 40}, 1, DType::f32)});
                   }),
                   "1 tensor belongs to no part of the model: score.weight (2, 40)"));
    for (const std::string name : {"transformer.h.9.attn.bias", "transformer.h.0.foo.attn.bias"})  // no layer's mask
      CHECK(contains(error([&](Folder& f) {
                       f.tensors.push_back({name, Tensor::zeros({1}, DType::f32, cpu())});
                     }),
                     "1 tensor belongs to no part of the model: " + name));
    Folder().write(dir / "contradicted");
    for (const auto& [flag, value] : {std::pair{"--n-heads", "1"}, {"--gelu", "erf"}})
      CHECK(contains(refused("hf", "grt", dir / "contradicted", dir / "out", {flag, value}), "and cannot become"));
    CHECK(contains(error([](Folder& f) { f.config["n_layer"] = 1; }),
                   "12 tensors belong to no part of the model: transformer.h.1.attn.c_attn.bias (120)"));
    CHECK(contains(error([](Folder& f) {
                     Tensor head = f["transformer.wte.weight"].tensor.clone();
                     head.data<float>()[5] += 1;
                     f.tensors.push_back({"lm_head.weight", head});
                   }),
                   "lm_head.weight differs from wte.weight, but our head is tied to the embedding"));
    CHECK(contains(error([](Folder& f) {
                     f.tensors.push_back({"wpe.weight", f["transformer.wpe.weight"].tensor});
                   }),
                   "transformer.wpe.weight and wpe.weight are one name"));
  }

  TEST_CASE("a plain reader in Python computes the logits of a trained model from what is exported") {
    const fs::path reader = fs::path(GRT_TEST_DIR) / "tools/read_gpt2.py";
    const std::vector<std::int32_t> ids{5, 9, 2, 60, 96, 0, 33};
    for (const char* gelu : {"erf", "tanh"}) {
      const TempDir dir;
      const Outcome trained = run_tool("train", {"--model",        (oracle("dense") / "config.json").string(),
                                                 "--bias",         "true",
                                                 "--gelu",         gelu,
                                                 "--data-train",   (oracle("dense") / "tokens.bin").string(),
                                                 "--out",          (dir / "run").string(),
                                                 "--steps",        "3",
                                                 "--lr",           "0.03",
                                                 "--warmup-steps", "1",
                                                 "--batch-size",   "2",
                                                 "--device",       "cpu"});
      REQUIRE_MESSAGE(trained.code == 0, trained.err);
      convert_well("grt", "hf", dir / "run", dir / "hf");
      Words words{(dir / "hf").string()};
      for (const std::int32_t id : ids) words.push_back(std::to_string(id));
      const Outcome read = run_tool(reader.string(), words);
      REQUIRE_MESSAGE(read.code == 0, read.err);

      const auto model = load_model((dir / "run").string(), cpu(), DType::f64);
      const Tensor tokens = Tensor::from<std::int32_t>({1, 7}, ids, cpu());
      const Tensor last =
          model->hidden(tokens, model->depths().full, {}).value().view({7, model->config().d_model}).rows(6, 1);
      const std::vector<double> expected = values(model->logits(last));
      std::istringstream lines(read.out);
      double logit = 0;
      std::size_t count = 0;
      for (; lines >> logit; ++count) CHECK(std::abs(logit - expected.at(count)) < 1e-5);
      CHECK(static_cast<std::int64_t>(count) == model->config().vocab_size);
    }
  }

  TEST_CASE("a configuration that our model cannot follow is an error that names the key") {
    const TempDir dir;
    int n = 0;
    const auto error = [&](const std::string& key, const Json& value) {
      Folder folder;
      folder.config[key] = value;
      const fs::path in = dir / fmt::format("in{}", n++);
      folder.write(in);
      return refused("hf", "grt", in, dir / "out");
    };
    CHECK(contains(error("activation_function", "relu"), "activation_function must be gelu (erf) or one of gelu_new"));
    CHECK(contains(error("layer_norm_epsilon", 1e-6), "layer_norm_epsilon must be 1e-05, not 1e-06"));
    CHECK(contains(error("tie_word_embeddings", false), "tie_word_embeddings is false, but"));
    CHECK(contains(error("model_type", "llama"), "model_type must be \"gpt2\", not \"llama\""));
    CHECK(contains(error("n_inner", 80), "n_inner must be 160, not 80"));
    CHECK(contains(error("scale_attn_by_inverse_layer_idx", true), "scale_attn_by_inverse_layer_idx must be false"));
    CHECK(contains(error("n_head", 7), "d_model 40 is not a multiple of n_heads 7"));
    CHECK(contains(error("n_head", 0), "n_heads must be 1..65536, not 0"));
    CHECK(contains(error("n_layer", 100000), "n_layers must be 1..4096, not 100000"));
    CHECK(contains(error("n_positions", 1ll << 31), "n_positions = 2147483648 is too large"));
    CHECK(contains(error("n_embd", "40"), "n_embd must be a whole number, not \"40\""));
    CHECK(contains(error("vocab_size", -3), "vocab_size must be 2..65536, not -3"));
  }

  TEST_CASE("shards lie in the folder and hold what the index says") {
    const TempDir dir;
    Folder folder;
    folder.write(dir / "in");
    fs::rename(dir / "in" / "model.safetensors", dir / "in" / "a.safetensors");
    const auto error = [&](const std::function<void(Json&)>& change) {
      Json map = Json::object();
      for (const NamedTensor& t : folder.tensors) map[t.name] = "a.safetensors";
      change(map);
      write_file(dir / "in" / "model.safetensors.index.json", Json{{"weight_map", map}}.dump());
      return refused("hf", "grt", dir / "in", dir / "out");
    };
    fs::create_directory(dir / "in" / "sub");
    for (const std::string name : {"../in/a.safetensors", "/etc/passwd", "sub/a.safetensors", "..", "a.bin"})
      CHECK(contains(error([&](Json& map) { map["transformer.wpe.weight"] = name; }),
                     "a shard must be a .safetensors file of the same folder, not \"" + name + "\""));
    CHECK(contains(error([](Json& map) { map["more"] = "b.safetensors"; }), "b.safetensors: "));
    CHECK(contains(error([](Json& map) { map.erase("transformer.wpe.weight"); }),
                   "a.safetensors: holds transformer.wpe.weight, which"));
    CHECK(contains(error([](Json& map) { map["more"] = "a.safetensors"; }), "tensor more is not in a.safetensors"));
    CHECK(contains(error([](Json& map) { map["more"] = 7; }), "the shard of more must be a string"));
    write_file(dir / "in" / "model.safetensors.index.json", "{}");
    CHECK(contains(refused("hf", "grt", dir / "in", dir / "out"), "has no object weight_map"));
    fs::remove(dir / "in" / "model.safetensors.index.json");
    write_file(dir / "in" / "pytorch_model.bin", "PK");
    CHECK(contains(refused("hf", "grt", dir / "in", dir / "out"), "pickled weights (.bin, .pt) are not read"));
  }

  TEST_CASE("what is exported has GPT-2's names and shapes, zero biases where there were none, and comes back equal") {
    const TempDir dir;
    for (const std::string name : {"dense", "dense_bias_tanh"}) {
      CAPTURE(name);
      const auto model = oracle_model(name);
      convert_well("grt", "hf", oracle(name), dir / name);
      const Safetensors file(dir / name / "model.safetensors");
      CHECK(file.metadata().at("format") == "pt");  // without it transformers refuses the file
      for (const NamedTensor& t : gpt2_tensors(*model)) {
        REQUIRE_MESSAGE(file.contains(t.name), t.name);
        const Tensor stored = Tensor::like(t.tensor);
        file.read(t.name, stored);
        CHECK_MESSAGE(same_bits(stored, t.tensor), t.name);
      }
      const int layers = model->config_json()["n_layers"];
      CHECK(file.entries().size() == static_cast<std::size_t>(12 * layers + 4));
      const std::int64_t d = model->config().d_model;
      const Tensor bias = Tensor::empty({4 * d}, DType::f32, cpu());
      file.read("transformer.h.0.mlp.c_fc.bias", bias);
      const std::vector<double> biases = values(bias);
      CHECK(std::all_of(biases.begin(), biases.end(), [](double x) { return x == 0; }) == !model->config().bias);
      const Json config = read_json((dir / name / "config.json").string());
      CHECK(config["activation_function"] == (name == "dense" ? "gelu" : "gelu_new"));
      CHECK(config["architectures"] == Json::array({"GPT2LMHeadModel"}));
      for (const auto& [theirs, ours] : {std::pair{"n_embd", "d_model"},
                                         {"n_head", "n_heads"},
                                         {"n_layer", "n_layers"},
                                         {"n_positions", "context_length"},
                                         {"vocab_size", "vocab_size"}})
        CHECK(config[theirs] == model->config_json()[ours]);

      convert_well("hf", "grt", dir / name, dir / (name + "-back"));
      const auto back = load_model(dir / (name + "-back"), cpu());
      CHECK(back->config_json() == model->config_json());
      CHECK(same_weights(*back, *model));
    }
  }

  TEST_CASE("an exported model whose zero biases were trained elsewhere keeps them") {
    const TempDir dir;
    Folder folder;
    folder.config["grt"] = {{"bias", false}};
    folder.write(dir / "in");
    convert_well("hf", "grt", dir / "in", dir / "out");
    CHECK(same_weights(*load_model(dir / "out", cpu()), *folder.model));
  }

  TEST_CASE("a recurrent model does not become a GPT-2 folder") {
    const TempDir dir;
    CHECK(contains(refused("grt", "hf", oracle("grt"), dir / "out"), "--to hf: transformers' GPT-2 is a dense model"));
  }

  TEST_CASE("our checkpoints come back byte for byte, of a run too; bf16 rounds once") {
    const TempDir dir;
    for (const std::string& name : kOracleModels) {
      CAPTURE(name);
      convert_well("grt", "grt", oracle(name), dir / name);
      convert_well("grt", "grt", dir / name, dir / (name + "2"));
      CHECK(same_weights(*load_model(dir / (name + "2"), cpu()), *oracle_model(name)));
      CHECK(read_file(dir / name / "model.safetensors") == read_file(dir / (name + "2") / "model.safetensors"));
    }
    const std::string run = (dir / "run").string(), tokens = (oracle("grt") / "tokens.bin").string();
    REQUIRE(run_tool("train", {"--model", (oracle("grt") / "config.json").string(), "--data-train", tokens, "--out",
                               run, "--steps", "1", "--batch-size", "1"})
                .code == 0);
    convert_well("grt", "grt", run, dir / "copy");
    for (const char* file : {"config.json", "model.safetensors"})
      CHECK(read_file(dir / "copy" / file) == read_file(dir / "run" / "step-00000001" / file));

    convert_well("grt", "grt", run, dir / "narrow", {"--dtype", "bf16"});
    CHECK(Safetensors(dir / "narrow" / "model.safetensors").entries().at("wte.weight").dtype == "BF16");
    convert_well("grt", "grt", dir / "narrow", dir / "narrow2", {"--dtype", "bf16"});
    CHECK(read_file(dir / "narrow" / "model.safetensors") == read_file(dir / "narrow2" / "model.safetensors"));
    const Outcome eval = run_tool("eval", {"--checkpoint", (dir / "narrow").string(), "--data", tokens});
    CHECK_MESSAGE(eval.code == 0, eval.err);
  }

  TEST_CASE("a checkpoint under other names comes in by a map, with R from the command line") {
    const TempDir dir;
    const auto model = oracle_model("grt_concat_norm");
    std::vector<NamedTensor> theirs;
    for (const Param& p : model->params().all()) {
      std::string name = p.name;
      if (name.starts_with("core.")) name = "blocks." + name.substr(5);
      if (name == "inject.weight") name = "W_proj";
      theirs.push_back({name, p.var.value()});
      if (name != "gate.fc_out.weight") continue;
      const Tensor t = Tensor::like(p.var.value());
      for (std::int64_t i = 0; i < t.numel(); ++i)
        t.data<float>()[i] = p.var.value().data<float>()[i % p.shape[0] * p.shape[1] + i / p.shape[0]];
      theirs.back() = {"gate_out", t};
    }
    Json config = model->config_json();
    config.erase("n_recurrences");
    make_directories(dir / "in");
    write_safetensors(dir / "in" / "model.safetensors", theirs);
    write_file(dir / "in" / "config.json", config.dump());

    const std::string R = model->config_json()["n_recurrences"].dump();
    CHECK(
        contains(refused("grt", "grt", dir / "in", dir / "out"), "does not say n_recurrences, which no tensor shows"));
    const std::string listed = refused("grt", "grt", dir / "in", dir / "out", {"--n-recurrences", R});
    CHECK(contains(listed, "of the model's tensors are missing: "));
    CHECK(contains(listed, "inject.weight (24, 48)"));
    CHECK(contains(listed, "tensors belong to no part of the model: "));
    CHECK(contains(listed, "W_proj (24, 48)"));

    const std::string map = (dir / "map.json").string();
    write_file(map, R"({"core.*.ln_1.weight": "blocks.*.ln_1.weight", "core.*.ln_2.weight": "blocks.*.ln_2.weight",
                        "core.*.attn.c_attn.weight": "blocks.*.attn.c_attn.weight",
                        "core.*.attn.c_proj.weight": "blocks.*.attn.c_proj.weight",
                        "core.*.mlp.c_fc.weight": "blocks.*.mlp.c_fc.weight",
                        "core.*.mlp.c_proj.weight": "blocks.*.mlp.c_proj.weight", "inject.weight": "W_proj",
                        "gate.fc_out.weight": {"name": "gate_out", "transpose": true}})");
    convert_well("grt", "grt", dir / "in", dir / "out", {"--n-recurrences", R, "--map", map});
    const auto back = load_model(dir / "out", cpu());
    CHECK(same_weights(*back, *model));
    CHECK(back->config_json() == model->config_json());

    // Where config.json says nothing that we know, --model does.
    write_file(dir / "in" / "config.json", R"({"n_layer": 3})");
    CHECK(contains(refused("grt", "grt", dir / "in", dir / "out2", {"--map", map}), "is no configuration of ours"));
    convert_well("grt", "grt", dir / "in", dir / "out2",
                 {"--map", map, "--model", (oracle("grt_concat_norm") / "config.json").string()});
    CHECK(same_weights(*load_model(dir / "out2", cpu()), *model));

    const auto map_error = [&](const std::string& text) {
      write_file(map, text);
      return refused("grt", "grt", dir / "in", dir / "out3",
                     {"--map", map, "--model", (oracle("grt_concat_norm") / "config.json").string()});
    };
    CHECK(contains(map_error(R"({"cor.*.ln_1.weight": "a.*"})"), "\"cor.*.ln_1.weight\": names no tensor"));
    CHECK(contains(map_error(R"({"core.*.ln_1.weight": "a"})"), "has 1 *, \"a\" must have as many"));
    CHECK(contains(map_error(R"({"inject.weight": {"nam": "a"}})"), "must be a name or {\"name\": ..."));
    CHECK(contains(map_error(R"({"ln_f.weight": {"name": "a", "transpose": true}})"), "cannot be transposed"));
    CHECK(contains(map_error(R"([])"), "must be an object of names"));
  }

  TEST_CASE("a model file of llm.c has the reference's logits, in f32 bit for bit and in bf16 as stored") {
    const TempDir dir;
    const auto model = oracle_model("dense_bias_tanh");
    write_file(dir / "m.bin", llmc_file(*model, 2, 3));
    convert_well("llmc", "grt", dir / "m.bin", dir / "ours");
    CHECK(same_weights(*load_model(dir / "ours", cpu()), *model));
    check_oracle_logits(dir / "ours");
    convert_well("llmc", "hf", dir / "m.bin", dir / "hf");
    convert_well("hf", "grt", dir / "hf", dir / "back");
    CHECK(same_weights(*load_model(dir / "back", cpu()), *model));

    for (const Param& p : model->params().all())
      for (std::int64_t i = 0; i < p.shape.numel(); ++i) {
        float& x = p.var.value().data<float>()[i];
        x = std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0xffff0000u);
      }
    write_file(dir / "m16.bin", llmc_file(*model, 2, 5));
    convert_well("llmc", "grt", dir / "m16.bin", dir / "ours16");
    CHECK(same_weights(*load_model(dir / "ours16", cpu()), *model));
  }

  TEST_CASE("a model file of llm.c that is not what its header says is refused by name") {
    const TempDir dir;
    const std::string good = llmc_file(*oracle_model("dense_bias_tanh"), 2, 3);
    const auto error = [&](const std::string& file) {
      write_file(dir / "m.bin", file);
      return refused("llmc", "grt", dir / "m.bin", dir / "out");
    };
    CHECK(contains(error(good.substr(0, good.size() - 1)),
                   fmt::format("need {} bytes, but the file has {}", good.size(), good.size() - 1)));
    CHECK(contains(error(good + "x"), "but the file has"));
    CHECK(contains(error(poked(good, 4, 3)), "L 3, C 40, Vp 128, maxT 29 need"));
    CHECK(contains(error(poked(good, 1, 5)), "but the file has"));
    CHECK(contains(error(poked(good, 1, 1)), "version must be 3 (f32) or 5 (bf16), with a padded vocabulary, not 1"));
    CHECK(contains(error(poked(good, 0, 20240520)), "no model file of llm.c: begins with 20240520, not 20240326"));
    CHECK(contains(error(poked(good, 0, static_cast<std::int32_t>(__builtin_bswap32(20240326)))), "other byte order"));
    CHECK(contains(error(poked(good, 5, 0)), "n_heads must be 1..65536, not 0"));
    CHECK(contains(error(poked(good, 5, 7)), "d_model 40 is not a multiple of n_heads 7"));
    CHECK(contains(error(poked(good, 4, 1 << 30)), "n_layers must be 1..4096"));
    CHECK(contains(error(poked(good, 6, 2147483647)), "d_model must be 1..65536"));
    CHECK(contains(error(poked(good, 7, 96)), "padded_vocab_size must be 97..131072, not 96"));
    CHECK(contains(error(poked(good, 3, -1)), "V is -1"));
    CHECK(contains(error(good.substr(0, 1000)), "has 1000 bytes, too few for the header"));
    CHECK(contains(error(""), "has 0 bytes"));

    write_file(dir / "m.bin", good);
    for (const auto& [flag, value] : {std::pair{"--n-heads", "1"}, {"--gelu", "erf"}, {"--vocab-size", "100"}}) {
      const Outcome outcome = convert("llmc", "grt", dir / "m.bin", dir / "out", {flag, value});
      CHECK(outcome.code == 1);
      CHECK(contains(outcome.err, "and cannot become"));
    }
  }

  TEST_CASE("weights that are not finite are converted as they are, and named") {
    const TempDir dir;
    write_spoiled("dense", dir / "in", "h.1.ln_1.weight", std::nanf(""));
    const Outcome outcome = convert("grt", "grt", dir / "in", dir / "out", {"--dtype", "bf16"});
    CHECK(outcome.code == 0);
    CHECK(contains(outcome.out, "NOT FINITE: h.1.ln_1.weight (24) (1 of 24 values are NaN or infinite)"));
    CHECK(std::isnan(load_model(dir / "out", cpu())->params().find("h.1.ln_1.weight")->var.value().data<float>()[0]));
  }

  TEST_CASE("convert refuses a wrong flag, path or combination in one line") {
    const TempDir dir;
    const fs::path in = oracle("dense"), out = dir / "out";
    CHECK(contains(refused("gguf", "grt", in, out), "--from: must be hf, grt or llmc, not \"gguf\""));
    CHECK(contains(refused("grt", "llmc", in, out), "--to: must be grt or hf, not \"llmc\""));
    CHECK(contains(refused("grt", "grt", in, out, {"--dtype", "f16"}), "--dtype: must be f32 or bf16, not \"f16\""));
    CHECK(contains(convert("grt", "grt", in, "").err, "IN OUT: OUT is empty, expected the name of a new directory"));
    CHECK(contains(refused("grt", "grt", in, out, {"extra"}), "IN OUT: two paths are needed, not 3"));
    CHECK(contains(refused("hf", "grt", in, out, {"--map", "m.json"}), "--map: is for --from grt"));
    CHECK(contains(refused("grt", "grt", dir / "nothing", out), "nothing/config.json"));
    CHECK(contains(refused("llmc", "grt", in, out), in.string()));
    make_directories(dir / "full");
    write_file(dir / "full" / "mine", "kept");
    const Outcome full = convert("grt", "grt", in, dir / "full");
    CHECK(full.code == 1);
    CHECK(contains(full.err, "full: exists already; the result goes into a new directory"));
    CHECK(read_file(dir / "full" / "mine") == "kept");
    make_directories(dir / "empty");
    convert_well("grt", "grt", in, dir / "empty");
  }
}

}  // namespace grt::test
