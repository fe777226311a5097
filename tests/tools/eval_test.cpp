// The eval binary: its numbers, files and errors.
#include <cmath>
#include <limits>
#include <numbers>

#include "core/safetensors.h"
#include "tests/support.h"
#include "tests/tools/on_cpu.h"
#include "tests/train/oracle_models.h"

namespace grt::test {
namespace {

Outcome eval(const std::string& model, std::vector<std::string> arguments, const std::vector<std::string>& env = {},
             const std::string& directory = "") {
  std::vector<std::string> all = {"--checkpoint", oracle(model).string(), "--data",
                                  (oracle(model) / "tokens.bin").string()};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return run_tool("eval", all, env, directory);
}

// What a test says went wrong with a run that should have succeeded.
Json results(const std::string& model, std::vector<std::string> arguments) {
  const TempDir dir;
  arguments.insert(arguments.end(), {"--json", (dir / "r.json").string()});
  const Outcome outcome = eval(model, arguments);
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  return read_json((dir / "r.json").string());
}

void write_ids(const std::filesystem::path& path, const std::vector<std::uint16_t>& ids) {
  write_file(path, {reinterpret_cast<const char*>(ids.data()), 2 * ids.size()});
}

}  // namespace

TEST_SUITE("tools") {
  TEST_CASE("eval writes the reference losses to its JSON file and its table") {
    for (const std::string& name : kOracleModels) {
      CAPTURE(name);
      const Json expected = oracle_values(name);
      const TempDir dir;
      const Outcome outcome =
          eval(name, {"--depths", "all", "--time", "--device", "cpu", "--json", (dir / "r.json").string()});
      INFO(outcome.err);
      REQUIRE(outcome.code == 0);
      CHECK(outcome.err.empty());
      const Json r = read_json((dir / "r.json").string());
      CHECK(std::abs(r["loss"].get<double>() - expected["loss"].get<double>()) < kLossTolerance);
      CHECK(r["tokens"] == expected["tokens_predicted"]);
      CHECK(r["depth"] == expected["full_depth"]);
      CHECK(r["perplexity"].get<double>() == doctest::Approx(std::exp(r["loss"].get<double>())));
      CHECK(r["bits_per_byte"].get<double>() == doctest::Approx(r["loss"].get<double>() / std::numbers::ln2));
      CHECK(r["config"]["architecture"] == expected["architecture"]);
      CHECK(r["loss_stderr"].get<double>() > 0);
      for (const auto& [depth, loss] : expected["loss_by_depth"].items()) {
        if (std::stoi(depth) > expected["full_depth"].get<int>()) continue;
        REQUIRE(r["loss_by_depth"].contains(depth));
        CHECK(std::abs(r["loss_by_depth"][depth].get<double>() - loss.get<double>()) < kLossTolerance);
        CHECK(contains(outcome.out, fmt::format("{:.6f}", r["loss_by_depth"][depth].get<double>())));
      }
      CHECK(contains(outcome.out, "bits per byte"));
      CHECK(contains(outcome.out, "ms/token"));
      for (const char* key : {"loss_topk", "loss_causal", "loss_expected"}) {
        REQUIRE(r.contains(key) == expected.contains(key));
        if (r.contains(key)) CHECK(std::abs(r[key].get<double>() - expected[key].get<double>()) < kLossTolerance);
      }
      if (r.contains("loss_expected"))
        CHECK(contains(outcome.out, fmt::format("loss_expected: {:.6f}", r["loss_expected"].get<double>())));
      if (!expected.contains("loss_by_depth_causal")) continue;
      for (const auto& [depth, loss] : expected["loss_by_depth_causal"].items()) {
        CHECK(std::abs(r["loss_by_depth_causal"][depth].get<double>() - loss.get<double>()) < kLossTolerance);
        CHECK(contains(outcome.out, fmt::format("{:.6f}", r["loss_by_depth_causal"][depth].get<double>())));
      }
    }
  }

  TEST_CASE("eval --weights keeps the loss in f32, and nearly so in bf16 and int8") {
    const TempDir dir;
    const auto loss = [&](const std::string& weights) {
      const Outcome outcome = eval("grt", {"--json", (dir / "r.json").string(), "--weights", weights});
      REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
      const Json r = read_json((dir / "r.json").string());
      CHECK(r["weights"] == weights);
      return r["loss"].get<double>();
    };
    const double exact = loss("f32"), expected = oracle_values("grt")["loss"];
    CHECK(std::abs(exact - expected) < kLossTolerance);
    for (const char* weights : {"bf16", "int8"}) {
      CHECK(loss(weights) != exact);
      CHECK(std::abs(loss(weights) - exact) < 0.01);
    }
  }

  TEST_CASE("eval reports the loss at --depth, and lists depths once and in order") {
    const Json by_depth = oracle_values("grt")["loss_by_depth"];
    const Json r = results("grt", {"--depths", "5,1,1,0", "--depth", "2"});
    CHECK(r["depth"] == 2);
    CHECK(std::abs(r["loss"].get<double>() - by_depth["2"].get<double>()) < kLossTolerance);
    std::vector<std::string> depths;
    for (const auto& [depth, loss] : r["loss_by_depth"].items()) {
      depths.push_back(depth);
      CHECK(std::abs(loss.get<double>() - by_depth[depth].get<double>()) < kLossTolerance);
    }
    CHECK(depths == std::vector<std::string>{"0", "1", "2", "5"});
  }

  TEST_CASE("eval gives the loss under several strategies of the cache, and of tokens that stop early under each") {
    const TempDir dir;
    const Outcome outcome = eval(
        "grt", {"--kv", "full,mean,last", "--exit", "kl:0.05,gate:0.29,kl:0", "--json", (dir / "r.json").string()});
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
    const Json r = read_json((dir / "r.json").string());
    REQUIRE(r["by_kv"].size() == 3);
    CHECK(r["loss"] == r["by_kv"]["full"]["loss"]);
    CHECK(r["exits"] == r["by_kv"]["full"]["exits"]);
    for (const std::string kv : {"full", "mean", "last"}) {
      CAPTURE(kv);
      const Json alone = results("grt", {"--kv", kv, "--exit", "gate:0.29"}), &under = r["by_kv"][kv];
      CHECK(under["loss"] == alone["loss"]);
      CHECK(under["exits"]["gate:0.29"] == alone["exits"]["gate:0.29"]);
      CHECK(under["exits"]["kl:0"]["mean_depth"] == 3);
      CHECK(under["exits"]["kl:0"]["agreement"] == 1);
      CHECK(under["exits"]["kl:0"]["depths"] == Json{{"3", 1.0}});
      CHECK(std::abs(under["exits"]["kl:0"]["loss"].get<double>() - under["loss"].get<double>()) < kLossTolerance);
      const Json& early = under["exits"]["kl:0.05"];
      CHECK(early["mean_depth"] < 3);
      CHECK(early["agreement"] < 1);
      CHECK(early["depths"].size() == 2);
      CHECK(early["substituted_keys_and_values"] > 0);
      CHECK(contains(outcome.out, fmt::format("{:>12}  {:>12.6f}", "kl:0.05", early["loss"].get<double>())));
    }
    CHECK(contains(eval("grt", {"--kv", "full,full"}).err, "--kv: names full twice"));
    CHECK(contains(eval("grt", {"--exit", "kl:nan"}).err, "--exit: the threshold of kl must be a number"));
    CHECK(contains(eval("grt", {"--exit", "kl:1,"}).err, "--exit: must be kl:x, gate:x or prob:x"));
    CHECK(contains(eval("dense", {"--exit", "kl:1"}).err, "--exit: kl is a rule of grt and poisson"));
  }

  TEST_CASE("eval forces the gate") {
    const Json forced = oracle_values("grt")["loss_forced_gate"];
    for (const auto& [gate, loss] : forced.items())
      CHECK(std::abs(results("grt", {"--forced-gate", gate})["loss"].get<double>() - loss.get<double>()) <
            kLossTolerance);
    CHECK(results("grt", {"--forced-gate", "1"})["loss"] == results("grt", {"--depth", "0"})["loss"]);
  }

  TEST_CASE("eval writes the logits of the first window, real columns only") {
    const TempDir dir;
    for (const std::string name : {"dense", "grt"}) {
      const std::string path = (dir / "logits.safetensors").string();
      REQUIRE(eval(name, {"--logits", path}).code == 0);
      const Json expected = oracle_values(name)["logits"];
      const Safetensors file(path);
      const std::vector<std::int64_t> shape = file.entries().at("logits").shape;
      REQUIRE(shape.size() == 2);
      CHECK(file.entries().at("logits").dtype == "F32");
      CHECK(shape[0] == oracle_model(name)->config().context_length);
      CHECK(shape[1] == 97);
      const Tensor logits = Tensor::empty({shape[0], shape[1]}, DType::f32, cpu());
      file.read("logits", logits);
      for (std::size_t i = 0; i < expected["positions"].size(); ++i)
        for (int id = 0; id < 97; ++id)
          CHECK(std::abs(logits.data<float>()[expected["positions"][i].get<int>() * 97 + id] -
                         expected["rows"][i][id].get<double>()) < kLogitTolerance);
    }
  }

  TEST_CASE("eval gives the same bits whatever the batch size, threads, directory and locale") {
    const TempDir dir;
    const std::string path = (dir / "r.json").string();
    const auto report = [&](const std::vector<std::string>& arguments, const std::vector<std::string>& env,
                            const std::string& directory) {
      std::vector<std::string> all = {"--depths", "all", "--json", path};
      all.insert(all.end(), arguments.begin(), arguments.end());
      const Outcome outcome = eval("grt", all, env, directory);
      CHECK(outcome.code == 0);
      return read_file(path) + outcome.out;
    };
    const std::string usual = report({}, {}, "");
    CHECK(contains(usual, "\"loss\": 5.37"));
    CHECK(report({"--batch-size", "1"}, {}, "") == usual);
    CHECK(report({"--batch-size", "3", "--threads", "1"}, {}, "") == usual);
    CHECK(report({"--threads", "3"}, {}, "/") == usual);
    // Decimal commas, where the locale is installed.
    CHECK(report({}, {"LC_ALL=de_DE.UTF-8", "LANG=de_DE.UTF-8", "LANGUAGE=de"}, "") == usual);

    const auto relative = run_tool("eval", {"--checkpoint", "grt", "--data", "grt/tokens.bin", "--json", path}, {},
                                   fixture("oracle").string());
    CHECK(relative.code == 0);
    CHECK(read_json(path)["loss"] == results("grt", {})["loss"]);
  }

  TEST_CASE("a text is evaluated as its tokens") {
    const TempDir dir;
    const std::string text = "One text, \xC3\xA4 few bytes; and a byte that is no UTF-8: \xFF. Some more of it.\n";
    write_file(dir / "t.txt", text);
    std::vector<std::uint16_t> ids{256};  // the end of the document before
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    write_ids(dir / "t.bin", ids);
    const std::string checkpoint = oracle("grt_concat_norm").string();  // 257 ids: the tokenizer `bytes`
    const auto loss = [&](const char* flag, const char* file) {
      const std::string json = (dir / "r.json").string();
      const Outcome outcome =
          run_tool("eval", {"--checkpoint", checkpoint, flag, (dir / file).string(), "--json", json});
      INFO(outcome.err);
      REQUIRE(outcome.code == 0);
      return read_json(json)["loss"].get<double>();
    };
    CHECK(loss("--text", "t.txt") == loss("--data", "t.bin"));
  }

  TEST_CASE("each token of a text is predicted once, the first too, for any length and batch size") {
    const TempDir dir;
    const std::string checkpoint = oracle("grt_concat_norm").string(), json = (dir / "r.json").string();
    const std::int64_t T = read_json((oracle("grt_concat_norm") / "config.json").string()).at("context_length");
    for (const std::int64_t length : {std::int64_t{1}, T, T + 1, 3 * T - 2}) {
      CAPTURE(length);
      std::string text;
      for (std::int64_t i = 0; i < length; ++i) text += static_cast<char>('a' + i * i % 23);
      write_file((dir / "t.txt").string(), text);
      std::vector<double> losses;
      for (const char* batch_size : {"1", "7"}) {
        const Outcome outcome = run_tool("eval", {"--checkpoint", checkpoint, "--text", (dir / "t.txt").string(),
                                                  "--batch-size", batch_size, "--json", json});
        INFO(outcome.err);
        REQUIRE(outcome.code == 0);
        const Json result = read_json(json);
        CHECK(result["tokens"] == length);
        losses.push_back(result["loss"]);
      }
      CHECK(losses[0] == losses[1]);
    }
  }

  TEST_CASE("a checkpoint with weights that are not finite gives an error and no report") {
    const TempDir dir;
    write_spoiled("grt", dir / "bad", "core.0.attn.c_proj.weight", std::numeric_limits<float>::quiet_NaN());
    const std::string json = (dir / "r.json").string(), logits = (dir / "l.safetensors").string();
    const auto run = [&](const char* checkpoint) {
      return run_tool("eval", {"--checkpoint", (dir / checkpoint).string(), "--data",
                               (oracle("grt") / "tokens.bin").string(), "--json", json, "--logits", logits});
    };
    const Outcome outcome = run("bad");
    CHECK(outcome.code == 1);
    CHECK(contains(outcome.err, "the loss at depth 3 is nan"));
    CHECK(contains(outcome.err, "core.0.attn.c_proj.weight"));
    CHECK(!std::filesystem::exists(json));
    CHECK(!std::filesystem::exists(logits));

    write_spoiled("grt", dir / "large", "ln_f.weight", std::numeric_limits<float>::max());
    CHECK(contains(run("large").err, "; all weights are finite\n"));
  }

  TEST_CASE("eval replaces nothing that it reads, and neither of its results by the other") {
    const TempDir dir;
    const std::string checkpoint = (dir / "C").string(), data = (dir / "x.bin").string();
    const std::string weights = checkpoint + "/model.safetensors", text = (dir / "x.txt").string();
    std::filesystem::copy(oracle("grt"), checkpoint);
    std::filesystem::copy(checkpoint + "/tokens.bin", data);
    std::filesystem::create_symlink(weights, dir / "link");
    write_file(text, "text");
    const std::string weights_before = read_file(weights), data_before = read_file(data);
    const std::vector<std::string> on_data = {"--data", data}, on_text = {"--text", text};
    const struct {
      std::vector<std::string> input, output;
      std::string says;
    } rows[] = {
        {on_data, {"--json", data}, "--json: " + data + " is the input " + data},
        {{"--data", (dir / "*.bin").string()}, {"--logits", (dir / "C/../x.bin").string()}, "is the input " + data},
        {{"--data", dir.path.string()}, {"--json", data}, "is the input " + data},
        {on_text, {"--json", text}, "--json: " + text + " is the input " + text},
        {on_data, {"--logits", weights}, "--logits: " + weights + " lies in the checkpoint " + checkpoint},
        {on_data, {"--logits", (dir / "link").string()}, "lies in the checkpoint " + checkpoint},
        {on_data, {"--json", checkpoint + "/config.json"}, "config.json lies in the checkpoint"},
        {on_data, {"--json", (dir / "o").string(), "--logits", (dir / "./o").string()}, "--json, --logits: both name"},
    };
    for (const auto& row : rows) {
      CAPTURE(row.says);
      std::vector<std::string> arguments = {"--checkpoint", checkpoint};
      arguments.insert(arguments.end(), row.input.begin(), row.input.end());
      arguments.insert(arguments.end(), row.output.begin(), row.output.end());
      const Outcome outcome = run_tool("eval", arguments);
      CHECK(outcome.code == 1);
      CHECK(outcome.out.empty());
      CAPTURE(outcome.err);
      CHECK(contains(outcome.err, row.says));
    }
    CHECK(read_file(weights) == weights_before);
    CHECK(read_file(data) == data_before);
    CHECK(read_file(text) == "text");
    CHECK(!std::filesystem::exists(dir / "o"));
  }

  TEST_CASE("eval ends with one line that names the cause") {
    const TempDir dir;
    const std::string grt = oracle("grt").string(), dense = oracle("dense").string();
    const std::string no_gate = oracle("grt_no_gate").string(), tokens = (oracle("grt") / "tokens.bin").string();
    const std::string file = (dir / "file").string(), bad = (dir / "bad.bin").string();
    write_file(file, "x");
    write_ids(bad, {1, 2, 3, 97, 4});
    write_ids(dir / "one.bin", {1});
    struct Row {
      std::vector<std::string> arguments;
      std::string says;
    };
    const Row rows[] = {
        {{"--data", tokens}, "--checkpoint: expected"},
        {{"--checkpoint", grt}, "--data, --text: expected one of the two, neither is given"},
        {{"--checkpoint", grt, "--data", tokens, "--text", file}, "--data, --text: expected one of the two, not both"},
        {{"--checkpoint", grt, "--data", tokens, "--forced-gat", "1"},
         "--forced-gat: unknown flag; did you mean --forced-gate?"},
        {{"--checkpoint", grt, "--data", tokens, "--task", "all"}, "--task: unknown flag"},
        {{"--checkpoint", grt, "--data", tokens, "stray"}, "\"stray\": a word that belongs to no flag"},
        {{"--checkpoint", (dir / "none").string(), "--data", tokens}, "none: not a directory"},
        {{"--checkpoint", dir.path.string(), "--data", tokens}, "holds neither config.json and model.safetensors"},
        {{"--checkpoint", grt, "--data", (dir / "none.bin").string()}, "none.bin: cannot open: No such file"},
        {{"--checkpoint", grt, "--data", (dir / "one.bin").string()}, "at least 2 are needed"},
        {{"--checkpoint", grt, "--data", bad},
         "bad.bin: id 97 at offset 3 (in tokens) is not below the vocabulary size"},
        {{"--checkpoint", grt, "--text", file},
         "has 257 ids, but the model's vocab_size is 97: evaluate ids with --data"},
        {{"--checkpoint", grt, "--data", tokens, "--depths", "1,x"}, "--depths: must be all, full or a list"},
        {{"--checkpoint", grt, "--data", tokens, "--depths", "1,"}, "--depths: must be all, full or a list"},
        {{"--checkpoint", grt, "--data", tokens, "--depths", ""}, "--depths: must be all, full or a list"},
        {{"--checkpoint", grt, "--data", tokens, "--depths", "1,-1"},
         "--depths -1: this model has exits at 0 and deeper"},
        {{"--checkpoint", dense, "--data", tokens, "--depths", "0,1"}, "--depths 0: this model has exits at 1..3"},
        {{"--checkpoint", dense, "--data", tokens, "--depth", "4"}, "depth 4: this model has exits at 1..3"},
        {{"--checkpoint", grt, "--data", tokens, "--depth", "1.5"}, "--depth: expected a whole number, got \"1.5\""},
        {{"--checkpoint", dense, "--data", tokens, "--forced-gate", "1"},
         "--forced-gate: this dense model has no gate"},
        {{"--checkpoint", no_gate, "--data", tokens, "--forced-gate", "1"},
         "--forced-gate: this grt model has no gate"},
        {{"--checkpoint", grt, "--data", tokens, "--forced-gate", "2"}, "--forced-gate: must be 0..1, not 2"},
        {{"--checkpoint", grt, "--data", tokens, "--forced-gate", "1", "--exit", "kl:1,gate:0.5"},
         "--exit: gate:0.5 looks at the gate, which --forced-gate takes away"},
        {{"--checkpoint", grt, "--data", tokens, "--kv", "least"},
         "--kv: must be full, mean, last or first, not \"least\""},
        {{"--checkpoint", dense, "--data", tokens, "--kv", "mean"}, "--kv: this dense model keeps all"},
        {{"--checkpoint", grt, "--data", tokens, "--kv", "mean", "--logits", (dir / "l").string()},
         "--logits: are those"},
        {{"--checkpoint", grt, "--data", tokens, "--stride", "31"}, "--stride: must be 1..30"},
        {{"--checkpoint", grt, "--data", tokens, "--batch-size", "0"}, "--batch-size: must be at least 1, not 0"},
        {{"--checkpoint", grt, "--data", tokens, "--json", file + "/r.json"},
         "file/r.json: cannot create: Not a directory"},
        {{"--checkpoint", grt, "--data", tokens, "--json", dir.path.string()}, "this is a directory"},
        {{"--checkpoint", grt, "--data", tokens, "--logits", (dir / "no/l").string()}, "cannot create: No such file"},
        {{"--checkpoint", grt, "--data", tokens, "--json", file, "--logits", file}, "--json, --logits: both name"},
        {{"--checkpoint", grt, "--data", tokens, "--device", "tpu"}, "--device: must be auto, cpu, cuda or cuda:N"},
        {{"--checkpoint", grt, "--data", tokens, "--threads", "0"}, "--threads: must be 1..1024, not 0"},
    };
    for (const Row& row : rows) {
      CAPTURE(row.says);
      const Outcome outcome = run_tool("eval", on_cpu(row.arguments));
      CHECK(outcome.code == 1);
      CHECK(outcome.out.empty());
      CAPTURE(outcome.err);
      CHECK(outcome.err.starts_with("eval: "));
      CHECK(contains(outcome.err, row.says));
      CHECK(outcome.err.find('\n') == outcome.err.size() - 1);
    }
    CHECK(read_file(file) == "x");
  }
}

}  // namespace grt::test
