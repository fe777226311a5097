// The bench binary on tiny work: that it measures something and says it in JSON. No speed is asserted.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "core/files.h"
#include "core/json.h"
#include "models/model.h"
#include "tests/support.h"

namespace grt {
namespace {

using test::contains;
using test::run_tool;

Json tiny_model(const char* architecture) {
  Json json = {{"architecture", architecture}, {"context_length", 16}, {"d_model", 16}, {"n_heads", 2}};
  json.update(architecture == std::string("dense") ? Json{{"n_layers", 2}} : Json{{"n_recurrences", 2}});
  return json;
}

std::string write_model(const test::TempDir& dir, const char* architecture) {
  const std::filesystem::path path = dir / (std::string(architecture) + ".json");
  write_file(path, tiny_model(architecture).dump());
  return path.string();
}

// Runs bench and returns its rows; every number in them must be finite and positive.
Json rows_of(std::vector<std::string> arguments) {
  const test::TempDir dir;
  const std::string file = (dir / "bench.json").string();
  arguments.insert(arguments.end(), {"--rounds", "2", "--json", file});
  const test::Outcome o = run_tool("bench", arguments);
  REQUIRE_MESSAGE(o.code == 0, o.err);
  Json rows = read_json(file)["results"];
  for (const Json& row : rows)
    for (const auto& [key, value] : row.items()) {
      CAPTURE(row.dump());
      CHECK(
          (value.is_string() || (value.is_number() && std::isfinite(value.get<double>()) && value.get<double>() > 0)));
    }
  return rows;
}

TEST_SUITE("tools") {
  TEST_CASE("bench measures products and single operations") {
    const Json gemm = rows_of({"gemm", "--filter", "one token c_fc"});
    REQUIRE(gemm.size() >= 2);  // a row in bf16 follows where the CPU has an instruction for it
    CHECK(gemm[0]["name"] == "peak");
    CHECK(gemm[0].contains("gb_per_s"));
    CHECK(gemm[1]["name"] == "one token c_fc NT 1 x 3072 x 768");
    CHECK(gemm[1].contains("gflops_share_of_peak"));
    CHECK(gemm[1]["best_s"] <= gemm[1]["median_s"]);

    const Json ops = rows_of({"ops", "--filter", "gate_mix: nano"});
    REQUIRE(ops.size() == 3);
    CHECK(ops[1]["name"] == "gate_mix: nano, noise, forward");
    CHECK(ops[2]["name"] == "gate_mix: nano, noise, backward");
    CHECK(rows_of({"attention", "--filter", "nano"}).size() == 4);  // peak, forward, backward, cache
    CHECK(rows_of({"ops", "--filter", "cross_entropy: nano"})[2]["name"] ==
          "cross_entropy: nano, forward and backward");
  }

  TEST_CASE("bench measures training and decoding, and compares models by their work") {
    const test::TempDir dir;
    const std::string dense = write_model(dir, "dense"), grt = write_model(dir, "grt");
    const Json train = rows_of({"train", "--model", dense, grt, "--batch-size", "2"});
    REQUIRE(train.size() == 5);
    CHECK(train[1]["context_length"] == 16);
    CHECK(train[1].contains("tokens_per_s"));
    CHECK(train[1].contains("peak_resident_bytes"));
    CHECK(train[3]["time_per_work_ratio"] == 1);
    CHECK(train[4]["name"] == grt + " / " + dense);
    CHECK(train[4].contains("executed_flops_ratio"));
  }

  TEST_CASE("bench decode tells time and memory by weights, cache and number of sequences") {
    const test::TempDir dir;
    const std::string dense = write_model(dir, "dense"), grt = write_model(dir, "grt");
    const Json rows = rows_of({"decode", "--model", dense, grt, "--tokens", "5", "--weights", "f32", "int8", "--kv",
                               "full", "mean", "--sequences", "1", "3"});
    std::map<std::string, Json> by_name;
    for (const Json& row : rows) by_name[row["name"]] = row;
    const auto row = [&](const std::string& model, const std::string& rest) -> const Json& {
      REQUIRE_MESSAGE(by_name.count(model + ", " + rest) == 1, rest);
      return by_name.at(model + ", " + rest);
    };
    const Json &one = row(dense, "kv full, 1 x 4+5, f32"), &three = row(dense, "kv full, 3 x 4+5, f32");
    CHECK(one["mean_context"] == 7);
    CHECK(three["cache_bytes"] == 3 * one["cache_bytes"].get<int>());
    CHECK(three["peak_device_bytes"] > one["peak_device_bytes"]);
    CHECK(one["weight_bytes"].get<double>() > 2 * row(dense, "kv full, 1 x 4+5, int8")["weight_bytes"].get<double>());
    CHECK(one.contains("gb_per_s_share_of_peak"));
    CHECK(one.contains("share_of_reading"));
    // Prelude, two steps of the core, coda: 4 keys and values, of which 3 are kept.
    CHECK(row(grt, "kv full, 1 x 4+5, f32")["cache_bytes"].get<double>() * 3 ==
          row(grt, "kv mean, 1 x 4+5, f32")["cache_bytes"].get<double>() * 4);
    CHECK(row(grt, "reduced cache")["core_layer_ratio"] == 2);
    CHECK(row(grt, "reduced cache")["model_ratio"].get<double>() == doctest::Approx(4.0 / 3));
    CHECK(by_name.count(dense + ", kv mean, 1 x 4+5, f32") == 0);
    CHECK(row(grt, "kv mean, 3 x 4+5 / " + dense + ", kv full, 3 x 4+5").contains("time_per_work_ratio"));
  }

  TEST_CASE("bench train --alone has one process at a time, which starts for each turn") {
    const test::TempDir dir;
    const std::string dense = write_model(dir, "dense"), grt = write_model(dir, "grt");
    const Json together = rows_of({"train", "--model", dense, grt}),
               alone = rows_of({"train", "--alone", "--model", dense, grt});
    REQUIRE(alone.size() == together.size());
    CHECK(alone[4]["executed_flops_ratio"] == together[4]["executed_flops_ratio"]);
    CHECK(alone[1]["activation_bytes"] == together[1]["activation_bytes"]);
  }

  TEST_CASE("bench train --scale compares every model with dense, which applies as many blocks") {
    const test::TempDir dir;
    const std::string file = (dir / "bench.json").string();
    const test::Outcome o =
        run_tool("bench", {"train", "--scale", "nano", "--context-length", "8", "--rounds", "1", "--json", file});
    REQUIRE_MESSAGE(o.code == 0, o.err);
    const Json rows = read_json(file)["results"];
    int compared = 0;
    for (const char* family : {"dense", "grt", "poisson", "mor", "rrt", "ouro"}) {
      const std::string name = std::string(family) + "-nano";
      CHECK(contains(o.out, "\n  " + name));
      for (const Json& row : rows) {
        if (row["name"] != name + " / dense-nano") continue;
        ++compared;
        CHECK(row["executed_flops_ratio"].get<double>() > 0.6);
        CHECK(row["executed_flops_ratio"].get<double>() < 2);
      }
    }
    CHECK(compared == 6);
  }

  TEST_CASE("bench --context-length sets the length of a sequence") {
    const test::TempDir dir;
    const Json rows = rows_of({"train", "--model", write_model(dir, "dense"), "--context-length", "8"});
    CHECK(rows[1]["context_length"] == 8);
  }

  TEST_CASE("bench train --torch takes turns with PyTorch and divides the medians") {
    const test::TempDir dir;
    const std::string model = write_model(dir, "grt");
    // Stands for the interpreter: it is given the script and answers as the script does, a thousand seconds a step.
    const auto interpreter = [&](const char* parameters) {
      const std::string path = (dir / parameters).string();
      write_file(path, fmt::format("#!/bin/sh\n"
                                   "echo \"$@\" > {0}/arguments; echo $LD_LIBRARY_PATH > {0}/path\n"
                                   "echo '{{\"parameters\": {1}, \"peak_resident_bytes\": 1000000000, \"built_from\": "
                                   "\"PyTorch of a test\"}}'\n"
                                   "while read line; do echo '{{\"seconds\": 1000, \"peak_resident_bytes\": "
                                   "2000000000}}'; done\n",
                                   dir.path.string(), parameters));
      std::filesystem::permissions(path, std::filesystem::perms::owner_all);
      return path;
    };
    const std::string parameters = std::to_string(make_model(tiny_model("grt"), "test")->params().count());
    const Json rows = rows_of({"train", "--model", model, "--torch", "tuned", "--python",
                               interpreter(parameters.c_str()), "--batch-size", "3"});
    REQUIRE(rows.size() == 3);  // peak, ours, PyTorch
    CHECK(rows[1]["ratio_to_PyTorch tuned"].get<double>() == doctest::Approx(1000 / rows[1]["median_s"].get<double>()));
    CHECK(rows[1]["memory_ratio_to_PyTorch tuned"].get<double>() ==
          doctest::Approx(rows[1]["peak_resident_bytes"].get<double>() / 2e9));
    CHECK(rows[2]["tokens_per_s"].get<double>() == doctest::Approx(3 * 16 / 1000.0));
    const std::string arguments = read_file(dir / "arguments");
    CHECK(contains(arguments, "torch_step.py serve --config {"));
    CHECK(contains(arguments, "\"gate_bias\":4"));  // the whole configuration, defaults included
    CHECK(contains(arguments, "--batch-size 3"));
    CHECK(contains(read_file(dir / "path"), "openblas-openmp"));
    CHECK_FALSE(contains(arguments, "--compile"));
    rows_of({"train", "--model", model, "--torch", "compiled", "--python", interpreter(parameters.c_str())});
    CHECK(contains(read_file(dir / "arguments"), "--dtype f32 --compile"));

    const test::Outcome other =
        run_tool("bench", {"train", "--model", model, "--torch", "installed", "--python", interpreter("12")});
    CHECK(other.code == 1);
    CHECK(contains(other.err, "has 12 parameters in PyTorch installed, not " + parameters));
  }

  TEST_CASE("bench growth: with recomputation a further recurrence keeps one state, without it its activations") {
    const test::TempDir dir;
    const Json rows =
        rows_of({"growth", "--model", write_model(dir, "grt"), "--batch-size", "2", "--context-length", "64"});
    std::map<std::string, Json> by_name;
    for (const Json& row : rows) by_name[row["name"]] = row;
    for (const char* name : {"R --recompute 4", "R --recompute 8", "R --recompute 16"})
      CHECK(by_name.at(name)["states_per_step"] == 1);
    CHECK(by_name.at("R 16")["states_per_step"].get<double>() > 10);
    CHECK(by_name.at("T 256")["flops_growth"].get<double>() > 2);
    CHECK(by_name.at("T 256")["memory_growth"].get<double>() == doctest::Approx(2).epsilon(0.05));
    CHECK(by_name.at("d 64")["flops_growth"].get<double>() > 3);
    CHECK(by_name.at("V 1028")["value"] == 1028);
    CHECK(by_name.contains("threads 1"));
    CHECK_FALSE(by_name.at("T 16").contains("time_growth"));  // the first of its axis
  }

  TEST_CASE("bench train --on-request makes no step until it is asked") {
    const test::TempDir dir;
    const test::Outcome o = run_tool("bench", {"train", "--on-request", "--model", write_model(dir, "dense")});
    CHECK(o.code == 0);
    CHECK(std::count(o.out.begin(), o.out.end(), '\n') == 1);  // stdin is empty: it says that it is ready, and ends
    CHECK(parse_json(o.out, "stdout")["context_length"] == 16);
  }

  TEST_CASE("bench refuses what it cannot measure in one line that names the flag") {
    const auto error = [](const std::vector<std::string>& arguments) {
      const test::Outcome o = run_tool("bench", arguments);
      CHECK(o.code == 1);
      CHECK(std::count(o.err.begin(), o.err.end(), '\n') == 1);
      return o.err;
    };
    CHECK(contains(error({"speed"}),
                   "no benchmark \"speed\"; there are gemm, attention, ops, train, decode, growth, all"));
    CHECK(contains(error({"gemm", "--rounds", "0"}), "--rounds: must be at least 1, not 0"));
    CHECK(contains(error({"train", "--batch-size", "0"}), "--batch-size: must be at least 1, not 0"));
    CHECK(contains(error({"train", "--model", "gpt5"}), "--model gpt5: neither a file nor a preset"));
    CHECK(contains(error({"train", "--scale", "tiny"}), "--scale: must be nano, small, medium, large, not \"tiny\""));
    CHECK(contains(error({"train", "--scale", "nano", "--model", "grt-nano"}), "give one"));
    CHECK(contains(error({"train", "decode", "--on-request"}), "--on-request: goes with train"));
    CHECK(contains(error({"train", "--torch", "eager"}),
                   "--torch: must be installed or tuned or compiled, not \"eager\""));
    CHECK(contains(error({"train", "--torch", "tuned", "--python", "/nowhere"}),
                   "bench: --python: cannot start /nowhere"));
    CHECK(contains(error({"growth", "--scale", "nano"}), "growth: takes one --model, not 6"));
    CHECK(contains(error({"gemm", "--openblas", "/nowhere.so"}), "--openblas: /nowhere.so"));
    CHECK(contains(error({"decode", "--weights", "int4"}), "--weights: must be f32, bf16 or int8, not \"int4\""));
    CHECK(contains(error({"decode", "--sequences", "0"}), "--sequences: must be numbers from 1 on, not \"0\""));
    CHECK(contains(error({"decode", "--kv", "mean"}), "--kv: the first is full"));
    CHECK(contains(error({"decode", "--context-length", "4"}), "--context-length: decoding needs more than the 4 of"));
    CHECK(contains(error({"gemm", "--json", "/nowhere/x.json"}), "/nowhere/x.json"));
    CHECK(contains(error({"gemm", "--filter", "no such row"}), "--filter: no row"));
    CHECK(contains(error({"gemm", "--model", "grt-nano"}), "--model: is for train, decode, growth, not gemm"));
    CHECK(contains(error({"train", "--weights", "int8"}), "--weights: is for decode, not train"));
    CHECK(contains(error({"decode", "gemm", "--recompute"}), "--recompute: is for train, growth, not decode, gemm"));
  }
}

}  // namespace
}  // namespace grt
