#include "tests/ranks/training.h"

#include <sstream>

#include "tests/train/oracle_models.h"
#include "train/deal.h"
#include "train/host.h"
#include "train/trainer.h"

namespace grt::test {

Trained train(const Training& training, Comm& comm, const fs::path& out, std::int64_t until) {
  Json json = read_json((oracle(training.model) / "config.json").string());
  json.update(training.changes);
  const auto model = make_model(json, "test");
  TrainConfig config;
  config.out = out.string();
  config.steps = until > 0 ? until : training.steps;
  config.lr_decay_steps = training.steps;
  config.warmup_steps = 2;
  config.batch_size = 2;
  config.grad_accum = training.grad_accum;
  config.grad_clip = training.grad_clip;
  config.lr = 1e-3;
  config.eval_every = training.steps / 2;  // each is the best, and saved
  config.depth_sampler = training.depth_sampler;
  config.depth = training.depth;
  config.shard_optimizer = training.sharded;
  TrainPlan plan = resolve(config, *model);
  model->params().allocate(*training.device, DType::f32);
  model->params().allocate_gradients();
  const bool resumed = fs::exists(out / "latest");
  const fs::path checkpoint = resumed ? resolve_checkpoint(out) : fs::path();
  comm.barrier();  // rank 0 makes the directory when all have looked
  TrainerState start;
  start.flags = Json::object();
  if (resumed) {
    start = load_trainer_state(checkpoint);
    load_parameters(model->params(), checkpoint / "model.safetensors");
  } else {
    model->params().initialize(7);
    if (comm.rank() == 0) make_directories(out);
  }
  plan.order.first_step = start.step;
  plan.order.first_sequence = start.sequences;
  const auto data = [&] { return oracle_tokens(training.model, model->config().vocab_size); };
  Trainer trainer(plan, *model, data(), data(), start, "", nullptr, comm);
  if (resumed) trainer.load_moments(checkpoint);
  {
    const Quiet quiet;
    CHECK(trainer.run() == 0);
  }
  comm.barrier();  // the log is written

  const Tensor weights = model->params().values();
  Trained result{{}, {}, {}, Tensor::from<float>(weights.shape(), grt::on_host<float>(weights), cpu())};
  std::istringstream text(read_file(out / "train.jsonl"));
  for (std::string line; std::getline(text, line);) {
    const Json record = Json::parse(line);
    if (record.contains("grad_norm"))
      result.log.push_back(record);
    else if (record["step"].get<std::int64_t>() % *config.eval_every == 0)  // not those at the end of a part of a run
      result.validations.push_back(record);
  }
  for (std::int64_t step = 0; step < training.steps; ++step) {
    std::vector<int>& drawn = result.depths.emplace_back();
    for (std::int64_t i = 0; i < training.grad_accum; ++i) drawn.push_back(draw_depth(plan, step, i));
  }
  return result;
}

bool ends_shallow(const Trained& run) {
  for (const std::vector<int>& depths : run.depths)
    for (int rank = 0; rank < world().size(); ++rank) {
      const std::vector<std::int64_t> own = deal(depths, rank, world().size());
      if (own.size() > 1 && depths[own.back()] < depths[own.front()]) return true;
    }
  return false;
}

double largest_difference_of(const std::vector<Json>& a, const std::vector<Json>& b, const char* key, bool relative) {
  CHECK(a.size() == b.size());
  double worst = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double x = a[i][key].get<double>(), y = b[i][key].get<double>();
    const double d = x == y ? 0 : std::abs(x - y) / (relative ? std::abs(x) : 1);
    if (std::isnan(d)) return d;
    worst = std::max(worst, d);
  }
  return worst;
}

void check_same_runs(const Trained& alone, const Trained& together) {
  REQUIRE(together.log.size() == alone.log.size());
  CHECK(largest_difference_of(alone.log, together.log, "loss") < 1e-5);
  CHECK(largest_difference_of(alone.validations, together.validations, "val_loss") < 1e-5);
  CHECK(largest_difference_of(alone.log, together.log, "grad_norm", true) < 1e-5);
  CHECK(largest_difference_of(alone.log, together.log, "depth") == 0);
  CHECK(largest_difference_of(alone.log, together.log, "tokens") == 0);
  CHECK(largest_difference_of(alone.log, together.log, "flops") == 0);
  CHECK(together.log[0]["loss"] == alone.log[0]["loss"]);  // before any update nothing has been rounded differently
  CHECK(largest_difference(alone.weights, together.weights) < 1e-4);
}

void check_same(const Trained& alone, const Trained& together) {
  check_same_runs(alone, together);
  CHECK(same_on_all_ranks(together.weights));
}

}  // namespace grt::test
