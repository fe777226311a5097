// Graphs: what is made once and launched again does what the same work does part by part.
#include "core/graphs.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "ops/kernels.h"
#include "tests/cuda/modes.h"
#include "tests/train/oracle_models.h"
#include "train/decoder.h"
#include "train/host.h"
#include "train/trainer.h"

namespace grt {
namespace {

using test::error_of;
using Values = std::vector<double>;

// How many graphs were made, and how often one was launched, since this object.
class Counted {
 public:
  std::uint64_t made() const { return emu::counters.graphs - before_.graphs; }
  std::uint64_t launched() const { return emu::counters.graph_launches - before_.graph_launches; }

 private:
  emu::Counters before_ = emu::counters;
};

double difference(const Values& a, const Values& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  return worst;
}

Values noise(Device& device, Scalar<std::uint64_t> seed) {
  const Tensor x = Tensor::zeros({3, 37}, DType::f32, device), y = Tensor::like(x);
  device.kernels().add_noise(y, x, 0.5f, {seed, 2, 3});
  return host_values(y);
}

// A toy with all the noise there is, at depths that are drawn, with validations on the way.
struct Trained {
  Values losses, norms, weights;
};
Trained train(Device& device, const char* architecture, bool recompute = false) {
  const Json json{{"architecture", architecture},
                  {"vocab_size", 13},
                  {"padded_vocab_size", 16},
                  {"context_length", 6},
                  {"d_model", 12},
                  {"n_heads", 3},
                  {"n_recurrences", 2}};
  const auto model = make_model(json, "test");
  const test::TempDir dir;
  TrainConfig config;
  config.out = dir.path.string();
  config.steps = 3;
  config.batch_size = 2;
  config.grad_accum = 3;
  config.lr = 1e-2;
  config.eval_every = 1;
  config.eval_batches = 1;
  config.eval_depths = "full";
  config.recompute = recompute;
  const TrainPlan plan = resolve(config, *model);
  model->params().allocate(device, DType::f32);
  model->params().allocate_gradients();
  model->params().initialize(1);
  std::vector<std::uint16_t> ids(40);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::uint16_t>(random_below({5, 0, 1}, i, 13));
  const auto data = [&] { return TokenData::of(ids, "test", 13); };
  TrainerState start;
  start.flags = Json::object();
  Trainer trainer(plan, *model, data(), data(), start, "");
  {
    const test::Quiet quiet;
    CHECK(trainer.run() == 0);
  }
  Trained trained{{}, {}, host_values(model->params().values())};
  std::istringstream log(read_file(dir / "train.jsonl"));
  for (std::string line; std::getline(log, line);) {
    const Json record = Json::parse(line);
    trained.losses.push_back(record[record.contains("loss") ? "loss" : "val_loss"]);
    if (record.contains("loss")) trained.norms.push_back(record["grad_norm"]);
  }
  return trained;
}

// The logits of a few sequences that grow side by side, equally long or not.
Values decode(Device& device, const std::string& name, KvStrategy kv, bool level) {
  const auto model = load_model(test::oracle(name), device);
  Decoder decoder(*model, {.kv = kv}, 12);
  std::vector<std::vector<int>> prompts{{1, 2, 3}, {4, 5, 6}};
  if (!level) prompts[1].pop_back();
  Values all = decoder.start(prompts);
  for (int t = 0; t < 5; ++t)
    for (const double logit : decoder.next(std::vector<int>{t + 1, 2 * t})) all.push_back(logit);
  return all;
}

TEST_SUITE("cuda") {
  TEST_CASE("a replay reads anew what lies in memory: other noise for another seed") {
    for (const test::Mode& mode : test::modes()) {
      CAPTURE(mode.name());
      test::Emulated emulated(mode);
      Device& device = emulated.device();
      const Counted counted;
      LiveScalar<std::uint64_t> seed(device);
      const Tensor x = Tensor::zeros({3, 37}, DType::f32, device), y = Tensor::like(x);
      Graphs graphs(device);
      for (std::uint64_t s = 1; s <= 5; ++s) {
        seed.set(s);
        const bool called = graphs.run(0, [&] { device.kernels().add_noise(y, x, 0.5f, {seed, 2, 3}); });
        CHECK(called == (s <= 2));
        CHECK(difference(host_values(y), noise(test::cpu(), s)) < 1e-6);
      }
      CHECK(counted.made() == 1);
      CHECK(counted.launched() == 4);
    }
  }

  TEST_CASE("memory that graphs use is given to nobody else while there are graphs, and to all afterwards") {
    test::Emulated emulated({.keep_blocks = true});
    Device& device = emulated.device();
    const Tensor x = Tensor::zeros({1000}, DType::f32, device), y = Tensor::like(x);
    const auto work = [&](std::uint64_t seed) {
      return [&, seed] {
        const Tensor between = Tensor::like(x), further = Tensor::like(x);
        device.kernels().add_noise(between, x, 1, {seed, 0, 0});
        device.kernels().add(Into{further}, between, between);
        device.kernels().copy(Into{y}, further);
      };
    };
    std::size_t calls = 0;
    {
      Graphs graphs(device), others(device);
      graphs.run(0, work(1));
      const Values expected = host_values(y);
      graphs.run(0, work(1));
      calls = device.system_calls();
      graphs.run(1, work(2));
      others.run(0, work(2));
      CHECK(device.system_calls() == calls);  // one after the other they use the same
      const Tensor a = Tensor::zeros({1000}, DType::f32, device), b = Tensor::zeros({1000}, DType::f32, device);
      graphs.run(0, work(1));
      CHECK(host_values(y) == expected);
      CHECK(host_values(a) == Values(1000));
      CHECK(host_values(b) == Values(1000));
      calls = device.system_calls();
    }
    std::vector<Tensor> four;  // as many as a, b and those of the graphs
    while (four.size() < 4) four.push_back(Tensor::like(x));
    CHECK(device.system_calls() == calls);
  }

  TEST_CASE("work that meets the host is done as it comes, without a graph") {
    test::Emulated emulated({});
    Device& device = emulated.device();
    const Counted counted;
    const Tensor x = Tensor::zeros({3}, DType::f32, device);
    Graphs graphs(device);
    std::vector<float> host(3);
    for (float value = 1; value < 5; ++value) {
      CHECK(graphs.run(0, [&] {
        const std::vector<float> values(3, value);
        device.copy(x.raw(), values.data(), x.bytes());
      }));
      CHECK(graphs.run(1, [&] {
        device.copy(host.data(), x.raw(), x.bytes());
        device.sync();
      }));
      CHECK(host == std::vector<float>(3, value));
    }
    CHECK(counted.made() == 0);

    for (int times = 0; times < 5; ++times)  // what only prepares itself by way of the host becomes one later
      CHECK(graphs.run(2, [&] {
        if (times == 0) device.sync();
        device.kernels().multiply({x, true}, x, 1);
      }) == (times < 3));
    CHECK(counted.made() == 1);
    CHECK(host_values(x) == Values(3, 4 * 32));
  }

  TEST_CASE("what cannot be part of a graph is named, and the device goes on") {
    test::Emulated emulated({emu::Order::forward, emu::Streams::lazy});
    Device& device = emulated.device();
    const Tensor x = Tensor::zeros({3}, DType::f32, device);
    std::vector<float> host(3);
    const auto second = [&](std::int64_t key, const std::function<void()>& work) {  // of which the first shows nothing
      Graphs graphs(device);
      graphs.run(key, [&] { device.kernels().multiply({x, true}, x, 2); });
      return error_of([&] { graphs.run(key, work); });
    };
    const std::string start = "cuda:0: work that was done before cannot be made a graph: cuda: ";
    const std::string end = " (--no-graphs does it as it comes)";
    CHECK(second(0, [&] { device.sync(); }) ==
          start + "waiting for the device: operation not permitted when stream is capturing" + end);
    CHECK(second(1, [&] { device.copy(host.data(), x.raw(), x.bytes()); }) ==
          start + "a copy from or to the host is no part of a graph" + end);
    CHECK(second(2, [&] { const Tensor t = Tensor::empty({12345}, DType::f32, device); }) ==
          start + "allocating memory: operation not permitted when stream is capturing" + end);
    Graphs graphs(device);
    Tensor kept;
    const auto keep = [&](bool keeps) {
      return [&, keeps] {
        const Tensor t = Tensor::empty({3}, DType::f32, device);
        if (keeps) kept = t;
      };
    };
    graphs.run(0, keep(false));
    CHECK(error_of([&] { graphs.run(0, keep(true)); }) ==
          "cuda:0: work that is to become a graph keeps memory, to which each replay would write");
    CHECK(noise(device, 3) == noise(device, 3));
  }

  TEST_CASE("work that keeps memory at first becomes a graph once all that it takes besides is there") {
    test::Emulated emulated({.keep_blocks = true});
    Device& device = emulated.device();
    const Counted counted;
    const Tensor x = Tensor::from<float>({3}, std::vector<float>{1, 2, 3}, device);
    Tensor kept[2];
    // What is kept has the size of what goes: one of the blocks that lie idle then.
    const auto work = [&](Tensor& of_it) {
      return [&] {
        {
          const Tensor one = Tensor::like(x), other = Tensor::like(x);
          for (const Tensor* t : {&one, &other}) device.kernels().multiply({*t}, x, -1);
        }
        if (!of_it) device.kernels().multiply({of_it = Tensor::like(x)}, x, 2);
      };
    };
    Graphs graphs(device);
    const auto called = [&](int key) { return graphs.run(key, work(kept[key])); };
    CHECK(called(0));  // keeps
    CHECK(called(0));  // keeps nothing more
    CHECK(called(0));  // a graph
    CHECK(counted.made() == 1);
    CHECK(called(1));  // keeps what 0 writes to
    CHECK(called(0));  // so that is tried again
    CHECK(called(0));  // and made anew
    CHECK(counted.made() == 2);
    CHECK_FALSE(called(0));
    CHECK(called(1));
    CHECK(called(1));
    CHECK_FALSE(called(1));
    CHECK(counted.made() == 3);
    for (const Tensor& t : kept) CHECK(host_values(t) == Values{2, 4, 6});
  }

  TEST_CASE("work that always keeps memory is done as it comes, without a graph") {
    test::Emulated emulated({.keep_blocks = true});
    const Counted counted;
    const Tensor x = Tensor::zeros({3}, DType::f32, emulated.device());
    std::vector<Tensor> kept;
    Graphs graphs(emulated.device());
    for (int i = 0; i < 6; ++i) CHECK(graphs.run(0, [&] { kept.push_back(Tensor::like(x)); }));
    CHECK(counted.made() == 0);
  }

  TEST_CASE("a replay attends to all keys that there are by then") {
    test::Emulated emulated({});
    Device& device = emulated.device();
    const auto there = [&](Shape shape, int seed) {
      const Tensor from = test::randn(shape, seed, DType::f32), to = Tensor::empty(shape, DType::f32, device);
      device.copy(to.raw(), from.raw(), to.bytes());
      return to;
    };
    constexpr std::int64_t kCapacity = 300;
    const Tensor qkv = there({2, 1, 48}, 1), keys = there({2, 2, kCapacity, 8}, 2), values = there(keys.shape(), 3);
    const Tensor out = there({2, 1, 16}, 4), expected = there({2, 1, 16}, 5);
    LiveScalar<std::int64_t> past(device);
    Graphs graphs(device);
    for (const std::int64_t place : {3, 4, 127, 128, 200, 255, 256, 299}) {
      CAPTURE(place);
      past.set(place);
      graphs.run(0, [&] { device.kernels().attention_cached(out, keys, values, qkv, past, 2); });
      device.kernels().attention_cached(expected, keys, values, qkv, place, 2);
      CHECK(test::values(out) == test::values(expected));
    }
  }

  TEST_CASE("training with graphs has the bits of training without, and takes the CPU's way") {
    for (const bool recompute : {false, true}) {
      CAPTURE(recompute);
      test::Emulated emulated({emu::Order::reverse, emu::Streams::lazy, false, !recompute});
      const Counted counted;
      const Trained replayed = train(emulated.device(), "grt", recompute);
      // 9 micro-batches of 2 depths, and 3 updates: the first of each is no graph.
      CHECK(counted.made() == 3);
      CHECK(counted.launched() == 9);
      emulated.device().use_graphs(false);
      const Trained plain = train(emulated.device(), "grt", recompute);
      CHECK(counted.launched() == 9);
      CHECK(replayed.losses == plain.losses);
      CHECK(replayed.norms == plain.norms);
      CHECK(replayed.weights == plain.weights);
      const Trained cpu = train(test::cpu(), "grt", recompute);
      CHECK(difference(replayed.losses, cpu.losses) <= 1e-4);
      CHECK(difference(replayed.weights, cpu.weights) <= 1e-3);
    }
  }

  TEST_CASE("where a router asks the host, a micro-batch is no graph and the update is") {
    test::Emulated emulated({});
    const Counted counted;
    const Trained replayed = train(emulated.device(), "mor");
    CHECK(counted.made() == 1);
    emulated.device().use_graphs(false);
    CHECK(replayed.weights == train(emulated.device(), "mor").weights);
  }

  TEST_CASE("decoding with graphs has the bits of decoding without, of sequences equally long or not") {
    const std::vector<std::pair<std::string, KvStrategy>> cases{
        {"grt", KvStrategy::full}, {"grt", KvStrategy::last}, {"grt", KvStrategy::mean}, {"poisson", KvStrategy::full}};
    for (const auto& [name, kv] : cases)
      for (const bool level : {true, false}) {
        CAPTURE(name);
        CAPTURE(name_of(kv));
        CAPTURE(level);
        test::Emulated emulated({emu::Order::random, emu::Streams::lazy});
        const Counted counted;
        const Values replayed = decode(emulated.device(), name, kv, level);
        CHECK(counted.launched() == (kv == KvStrategy::mean ? 0 : 4));
        emulated.device().use_graphs(false);
        CHECK(replayed == decode(emulated.device(), name, kv, level));
        CHECK(difference(replayed, decode(test::cpu(), name, kv, level)) <= 1e-4);
      }
  }

  // Then the first work that keeps rounded weights is that of a token.
  TEST_CASE("decoding in bf16 from prompts of one token becomes a graph too, of few sequences and of many") {
    for (const int sequences : {1, 2, 8, 16}) {
      CAPTURE(sequences);
      test::Emulated emulated({.keep_blocks = true}, DType::bf16);
      const auto decode = [&] {
        const auto model = load_model(test::oracle("grt"), emulated.device());
        const std::unique_ptr<Hold> hold = hold_rounded(*model);
        REQUIRE(hold);
        Decoder decoder(*model, {}, 12);
        const std::vector<int> ids(sequences, 3);
        Values all = decoder.start(std::vector<std::vector<int>>(sequences, {5}));
        for (int t = 0; t < 5; ++t)
          for (const double logit : decoder.next(ids)) all.push_back(logit);
        return all;
      };
      const Counted counted;
      const Values replayed = decode();
      CHECK(counted.launched() == 4);
      emulated.device().use_graphs(false);
      CHECK(replayed == decode());
    }
  }
}

}  // namespace
}  // namespace grt
