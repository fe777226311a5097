// The log of a run, the memory plan and the small parts of the trainer that stand by themselves.
#include "train/log.h"

#include <set>

#include "ops/hold.h"
#include "tests/support.h"
#include "train/config.h"
#include "train/memory_plan.h"
#include "train/run_directory.h"

namespace grt {
namespace {

TEST_SUITE("train") {
  TEST_CASE("numbers in the log give the double back, and CSV has the same") {
    const test::TempDir dir;
    const double odd = 0.1 + 0.2;
    {
      RunLog log(dir.path, 0);
      log.write({{"step", 1}, {"loss", odd}, {"lr", 1e-300}, {"mfu", nullptr}});
      log.write({{"step", 1}, {"val_loss", 1.0 / 3}, {"val_loss_by_depth", {{"1", 2.5}}}});
    }
    const std::string text = read_file(dir / "train.jsonl");
    const Json first = Json::parse(text.substr(0, text.find('\n')));
    CHECK(first["loss"].get<double>() == odd);
    CHECK(first["lr"].get<double>() == 1e-300);
    const std::string csv = read_file(dir / "train.csv");
    CHECK(csv ==
          "step,loss,lr,grad_norm,depth,tokens,tokens_per_second,flops,mfu,val_loss\n"
          "1,0.30000000000000004,1e-300,,,,,,,\n1,,,,,,,,,0.3333333333333333\n");
  }

  TEST_CASE("continuing after a step cuts later lines and half a line off both files") {
    const test::TempDir dir;
    {
      RunLog log(dir.path, 0);
      for (int step = 1; step <= 5; ++step) log.write({{"step", step}, {"loss", step * 1.5}});
    }
    write_file(dir / "train.jsonl", read_file(dir / "train.jsonl") + "{\"step\": 2, \"lo");
    {
      RunLog log(dir.path, 3);
      log.write({{"step", 4}, {"loss", 9.0}});
    }
    CHECK(read_file(dir / "train.jsonl") ==
          "{\"step\":1,\"loss\":1.5}\n{\"step\":2,\"loss\":3.0}\n"
          "{\"step\":3,\"loss\":4.5}\n{\"step\":4,\"loss\":9.0}\n");
    CHECK(test::contains(read_file(dir / "train.csv"), "3,4.5,,,,,,,,\n4,9.0,,,,,,,,\n"));
  }

  TEST_CASE("what is no record of a step is left out of a log that goes on") {
    const test::TempDir dir;
    constexpr std::size_t kDeep = 300000;  // would overflow the stack
    const std::string good = "{\"step\":1,\"loss\":1.5}\n", deep = std::string(kDeep, '[') + std::string(kDeep, ']');
    write_file(dir / "train.jsonl", good + "{\"step\":1,\"loss\":" + deep + "}\n" + deep + "\n7\n[1]\n{\"step\":-1}\n" +
                                        "{\"step\":18446744073709551615}\n{\"loss\":1}\n\"step\"\n");
    RunLog log(dir.path, 3);
    CHECK(read_file(dir / "train.jsonl") == good);
  }

  TEST_CASE("a directory with an earlier run is refused, or emptied of that run alone") {
    const test::TempDir dir;
    claim_directory(dir / "new/run", false);
    write_file(dir / "new/run/notes.txt", "mine");
    claim_directory(dir / "new/run", false);  // nothing of ours in it
    write_file(dir / "new/run/train.jsonl", "");
    make_directories(dir / "new/run/step-00000001");
    CHECK(test::error_of([&] {
            claim_directory(dir / "new/run", false);
          }).ends_with(", but no file `latest`); use --overwrite to remove it"));
    write_file(dir / "new/run/latest", "step-00000001\n");
    CHECK(test::error_of([&] {
            claim_directory(dir / "new/run", false);
          }).ends_with("); use --resume to go on with it or --overwrite to remove it"));
    claim_directory(dir / "new/run", true);
    CHECK(fs::exists(dir / "new/run/notes.txt"));
    CHECK_FALSE(fs::exists(dir / "new/run/step-00000001"));
    write_file(dir / "file", "");
    CHECK(test::contains(test::error_of([&] { claim_directory(dir / "file/run", false); }), "file"));
    // Readers would take its weights for those of the run.
    for (const char* file : {"config.json", "model.safetensors"}) write_file(dir / "new/run" / file, "");
    for (const bool overwrite : {false, true})
      CHECK(test::error_of([&] {
              claim_directory(dir / "new/run", overwrite);
            }).ends_with("new/run: is a checkpoint, which a run's directory cannot be"));
  }

  TEST_CASE("the memory plan is what a step on the CPU takes, to the byte, with and without recomputation") {
    Json json = find_model("grt-nano");
    json["context_length"] = 32;
    for (const bool recompute : {false, true}) {
      const MemoryPlan plan = plan_memory({json, DType::f32, 2, {1, 6}, recompute});
      auto device = open_cpu();
      {
        auto model = make_model(json, "test");
        model->params().allocate(*device, DType::f32);
        CHECK(static_cast<std::int64_t>(device->in_use()) == plan.weights);
        model->params().allocate_gradients();
        CHECK(static_cast<std::int64_t>(device->in_use()) == plan.weights + plan.gradients);
        model->params().initialize(1);
        const Tensor tokens = Tensor::zeros({2, 32}, DType::i32, *device);
        for (const int depth : {1, 6}) {
          const auto before = static_cast<std::int64_t>(device->in_use());
          device->reset_peak();
          Tape tape;
          Var loss;
          {
            Record on(&tape);
            loss = model->loss(tokens, tokens, depth, {.training = true, .recompute = recompute});
          }
          const float one = 1;
          tape.backward(loss, Tensor::from<float>({1}, std::span(&one, 1), *device));
          CHECK(static_cast<std::int64_t>(device->peak()) - before == plan.activations.at(depth));
        }
      }
    }
  }

  TEST_CASE("the memory plan counts the packed weights that recurrences share, to the byte, and dense has none") {
    Json json = find_model("grt-nano");
    json["context_length"] = 32;
    for (const bool recompute : {false, true}) {
      CAPTURE(recompute);
      MemoryNeeds needs{json, DType::f32, 2, {1, 6}, recompute};
      const auto alone = plan_memory(needs).activations;
      needs.keeps = Keeps::panels;
      const MemoryPlan plan = plan_memory(needs);
      CHECK(plan.activations == alone);
      auto device = open_cpu();
      auto model = make_model(json, "test");
      model->params().allocate(*device, DType::f32);
      model->params().allocate_gradients();
      model->params().initialize(1);
      const Tensor tokens = Tensor::zeros({2, 32}, DType::i32, *device);
      const auto before = static_cast<std::int64_t>(device->in_use());
      for (const int depth : {1, 6, 6}) {
        const Hold forward(model->params().values());
        Tape tape;
        Var loss;
        {
          Record on(&tape);
          loss = model->loss(tokens, tokens, depth, {.training = true, .recompute = recompute});
        }
        const float one = 1;
        const Hold backward(model->params().values());
        tape.backward(loss, Tensor::from<float>({1}, std::span(&one, 1), *device));
      }
      CHECK(plan.held > 0);
      const std::int64_t held = static_cast<std::int64_t>(device->in_use()) - before;
      if (cpu_level() == "portable")
        CHECK(held < plan.held);  // Eigen packs for itself
      else
        CHECK(held == plan.held);
      needs.model = find_model("dense-nano");
      needs.depths = {8};
      CHECK(plan_memory(needs).held == 0);
    }
  }

  TEST_CASE("with recomputation a further recurrence costs one state; without it, its activations") {
    Json json = find_model("grt-nano");
    const auto bytes = [&](int depth, bool recompute) {
      return plan_memory({json, DType::f32, 4, {depth}, recompute}).activations.at(depth);
    };
    const std::int64_t state = 4 * 256 * 128 * 4;
    CHECK(bytes(12, true) - bytes(11, true) == state);
    CHECK(bytes(12, false) - bytes(11, false) > 10 * state);
  }

  TEST_CASE("a run that cannot fit is refused with the need, what there is, and the batch size that fits") {
    const MemoryNeeds needs{find_model("gpt2-small"), DType::f32, 4096, {12}, false};
    const MemoryPlan plan = plan_memory(needs);
    const std::string error = test::error_of([&] { check_fits(plan, needs, 24'000'000'000); });
    CHECK(test::contains(error, "--batch-size 4096"));
    CHECK(test::contains(error, "24 GB"));
    CHECK(test::contains(error, "fits"));
    CHECK(test::contains(test::error_of([&] { check_fits(plan, needs, 1000); }), "not even a batch of 1"));
    check_fits(plan, needs, plan.total());
  }

  TEST_CASE("on a GPU the plan leaves room for what is beside tensors, and says so") {
    MemoryNeeds needs{find_model("grt-nano"), DType::f32, 2, {4}, false};
    const MemoryPlan tensors = plan_memory(needs);
    needs.gpu = true;
    const MemoryPlan plan = plan_memory(needs);
    CHECK(plan.total() == tensors.total() + plan.reserve);
    const std::int64_t validation = plan.reserve - kGpuReserve;
    CHECK(validation > std::int64_t{2} * 256 * 4 * 128 * 4);  // at least what an MLP computes
    CHECK(validation < tensors.activations.at(4));
    needs.moment_shares = 2;
    CHECK(plan_memory(needs).reserve == kGpuReserve + std::max(validation, 2 * plan.weights));
    needs.moment_shares = 1;
    CHECK(test::contains(describe(plan), "GPU libraries and validation 1 GB, "));
    CHECK_FALSE(test::contains(describe(tensors), "GPU"));
    check_fits(tensors, needs, tensors.total());
    const std::string error = test::error_of([&] { check_fits(plan, needs, plan.total() - 1); });
    CHECK(test::contains(error, "(1 GB of it for the GPU's libraries and validation)"));
    CHECK(test::contains(error, "--batch-size 1 fits"));
  }

  TEST_CASE("the loss in chunks takes less memory than the whole logits would") {
    const MemoryPlan plan = plan_memory({find_model("gpt2-small"), DType::f32, 8, {12}, true});
    CHECK(plan.activations.at(12) < std::int64_t{8} * 1024 * 50304 * 4);
  }

  TEST_CASE("depth lists are sorted, made unique, and checked against the model") {
    const auto model = make_model(find_model("grt-nano"), "test");
    CHECK(parse_depths("all", *model, "--d") == std::vector<int>{0, 1, 2, 3, 4, 5, 6});
    CHECK(parse_depths("full", *model, "--d") == std::vector<int>{6});
    CHECK(parse_depths("4,1,4,12", *model, "--d") == std::vector<int>{1, 4, 12});
    for (const char* bad : {"", "1,", ",1", "1,,2", "x", "1 2", "1.5", "99999999999"})
      CHECK(test::contains(test::error_of([&] { parse_depths(bad, *model, "--d"); }), "--d"));
    CHECK(test::contains(test::error_of([&] { parse_depths("-1", *model, "--d"); }), "--d -1"));
  }
}

}  // namespace
}  // namespace grt
