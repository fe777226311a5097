// What a micro-batch is drawn as: functions of (seed, step, index) that no one's share of the work enters. And how long
// packed weights are kept.
#include "train/trainer.h"

#include <cmath>
#include <functional>
#include <set>
#include <sstream>

#include "core/philox.h"
#include "ops/hold.h"
#include "tests/support.h"

namespace grt::test {
namespace {

TrainPlan plan(const std::string& sampler, bool per_step, std::uint64_t seed = 7) {
  TrainPlan p{};
  p.config.seed = seed;
  p.depth = {sampler, 1, 6};
  p.depth_per_step = per_step;
  return p;
}

std::vector<int> depths(const TrainPlan& p, std::int64_t first_step, std::int64_t steps, std::int64_t micro_batches) {
  std::vector<int> drawn;
  for (std::int64_t s = first_step; s < first_step + steps; ++s)
    for (std::int64_t i = 0; i < micro_batches; ++i) drawn.push_back(draw_depth(p, s, i));
  return drawn;
}

constexpr int kSteps = 2;

// The losses of a toy's steps and validations. `meanwhile` is told each operation of the training, and of which
// micro-batch of all it is.
using Meanwhile = std::function<void(const Params& params, int micro_batch, std::string_view op)>;
std::vector<double> losses(int grad_accum, bool recompute, const Meanwhile& meanwhile) {
  const auto model = make_model({{"architecture", "grt"},
                                 {"vocab_size", 70},
                                 {"padded_vocab_size", 80},
                                 {"context_length", 12},
                                 {"d_model", 64},
                                 {"n_heads", 2},
                                 {"n_recurrences", 3}},
                                "toy");
  const TempDir dir;
  TrainConfig config;
  config.out = dir.path.string();
  config.steps = kSteps;
  config.batch_size = 2;
  config.grad_accum = grad_accum;
  config.lr = 1e-2;
  config.warmup_steps = 0;
  config.eval_every = 1;
  config.eval_batches = 1;
  config.eval_depths = "full";
  config.recompute = recompute;
  const TrainPlan plan = resolve(config, *model);
  model->params().allocate(cpu(), DType::f32);
  model->params().allocate_gradients();
  model->params().initialize(1);
  std::vector<std::uint16_t> ids(100);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::uint16_t>(random_below({5, 0, 1}, i, 70));
  const auto data = [&] { return TokenData::of(ids, "test", 70); };
  TrainerState start;
  start.flags = Json::object();
  Trainer trainer(plan, *model, data(), data(), start, "");
  {
    const Quiet quiet;
    int micro_batch = -1;
    const Observe watch([&](std::string_view op, const Tensor& out) {
      if (!Tape::recording() || &out.device() != &cpu()) return;  // a validation; a rehearsal
      micro_batch += op == "embedding";
      meanwhile(model->params(), micro_batch, op);
    });
    CHECK(trainer.run() == 0);
  }
  std::vector<double> losses;
  std::istringstream log(read_file(dir / "train.jsonl"));
  for (std::string line; std::getline(log, line);) {
    const Json record = Json::parse(line);
    losses.push_back(record[record.contains("loss") ? "loss" : "val_loss"]);
  }
  return losses;
}

void watch_only(const Params&, int, std::string_view) {}

void multiply_matrices(const Params& params, const std::string& prefix, float factor) {
  for (const Param& p : params.all())
    if (p.name.starts_with(prefix) && p.shape.rank() == 2)
      cpu().kernels().multiply({p.var.value()}, p.var.value(), factor);
}

}  // namespace

TEST_SUITE("train") {
  TEST_CASE("the depths of a step are the same however many share its micro-batches, in whatever order") {
    for (const char* sampler : {"uniform", "poisson"}) {
      const TrainPlan p = plan(sampler, false);
      const std::vector<int> alone = depths(p, 0, 50, 12);
      for (const int ranks : {2, 3, 4, 12}) {
        std::vector<int> shared(alone.size());
        for (int rank = ranks - 1; rank >= 0; --rank)
          for (std::int64_t step = 49; step >= 0; --step)
            for (std::int64_t i = rank; i < 12; i += ranks) shared[step * 12 + i] = draw_depth(p, step, i);
        CHECK(shared == alone);
      }
      // A step of fewer micro-batches begins with the same ones.
      for (std::int64_t step = 0; step < 50; ++step) CHECK(depths(p, step, 1, 1)[0] == alone[step * 12]);
    }
  }

  TEST_CASE("seeds, steps and micro-batches draw depths of their own, each equally often") {
    const std::vector<int> drawn = depths(plan("uniform", false), 0, 1000, 6);
    CHECK(drawn != depths(plan("uniform", false, 8), 0, 1000, 6));
    std::vector<int> seen(7), first(7), equal(1);
    for (std::size_t i = 0; i < drawn.size(); ++i) {
      ++seen[drawn[i]];
      if (i % 6 == 0) ++first[drawn[i]];
      if (i > 0) equal[0] += drawn[i] == drawn[i - 1];
    }
    for (int r = 1; r <= 6; ++r) {
      CHECK(std::abs(seen[r] - 1000) < 5 * std::sqrt(6000 / 6 * 5 / 6.0));
      CHECK(std::abs(first[r] - 1000 / 6.0) < 5 * std::sqrt(1000 / 6.0 * 5 / 6));
    }
    CHECK(std::abs(equal[0] - 1000) < 5 * std::sqrt(6000 / 6 * 5 / 6.0));  // neighbours agree as often as by chance
  }

  TEST_CASE("with --depth-scope step all micro-batches of a step have one depth, and steps differ") {
    const TrainPlan p = plan("uniform", true);
    std::set<int> of_steps;
    for (std::int64_t step = 0; step < 40; ++step) {
      const std::vector<int> drawn = depths(p, step, 1, 9);
      CHECK(std::set<int>(drawn.begin(), drawn.end()).size() == 1);
      of_steps.insert(drawn[0]);
    }
    CHECK(of_steps.size() == 6);
  }

  // In the second of a step's micro-batches, or its forward pass alone, matrices have other values: what was packed
  // before does not show that.
  TEST_CASE("the shared core is packed once for all micro-batches of a step, also to compute it again, and only it") {
    if (cpu_level() == "portable") return;  // Eigen packs for itself
    for (const bool recompute : {false, true}) {
      CAPTURE(recompute);
      const auto with_others = [&](const std::string& prefix, std::string_view until) {
        bool changed = false;
        return losses(3, recompute, [&](const Params& params, int micro_batch, std::string_view op) {
          if (changed ? op != until : op != "embedding" || micro_batch % 3 != 1) return;
          multiply_matrices(params, prefix, changed ? 0.5f : 2);
          changed = !changed;
        });
      };
      const std::vector<double> expected = losses(3, recompute, watch_only);
      CHECK(expected.size() == 2 * kSteps);
      CHECK(with_others("core.", "embedding") == expected);
      CHECK(with_others("prelude.", "cross_entropy") != expected);
      CHECK(with_others("coda.", "cross_entropy") != expected);
    }
  }

  TEST_CASE("packed weights are let go before an update: losses are those of a run that keeps none") {
    const Tensor others = Tensor::zeros({1}, DType::f32, cpu());
    const auto let_go = [&](const Params&, int, std::string_view) { const Hold takes_the_place(others); };
    for (const int grad_accum : {1, 3})
      for (const bool recompute : {false, true}) {
        CAPTURE(grad_accum);
        CAPTURE(recompute);
        CHECK(losses(grad_accum, recompute, watch_only) == losses(grad_accum, recompute, let_go));
      }
  }
}

}  // namespace grt::test
