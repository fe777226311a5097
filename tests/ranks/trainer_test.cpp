// Training over several ranks against training alone, step by step, in the same process.
#include "train/trainer.h"

#include <fcntl.h>
#include <unistd.h>

#include <sstream>

#include "tests/ranks/world.h"
#include "tests/train/oracle_models.h"

namespace grt::test {
namespace {

struct Result {
  std::vector<Json> log;  // of the steps
  std::vector<Json> validations;
  Tensor weights;
};

struct Options {
  std::string model = "grt";
  std::string config_key = {};  // a key of config.json to change, and its value
  Json value = nullptr;
  std::int64_t steps = 20, grad_accum = 5;
  std::optional<std::string> depth_sampler = {};
  std::optional<int> depth = {};
  bool sharded = false;
};

// A process prints what it trains; here nobody reads it.
class Quiet {
 public:
  Quiet() { std::fflush(stdout), keep_ = dup(1), reopen("/dev/null"); }
  ~Quiet() { std::fflush(stdout), dup2(keep_, 1), close(keep_); }

 private:
  static void reopen(const char* file) {
    const int fd = open(file, O_WRONLY);
    dup2(fd, 1);
    close(fd);
  }
  int keep_;
};

// A run into `out` from its beginning, or from the checkpoint that is there.
Result train(const Options& options, Comm& comm, const fs::path& out, std::int64_t until = 0) {
  Json json = read_json((oracle(options.model) / "config.json").string());
  if (!options.config_key.empty()) json[options.config_key] = options.value;
  const auto model = make_model(json, "test");
  TrainConfig config;
  config.out = out.string();
  config.steps = until > 0 ? until : options.steps;
  config.lr_decay_steps = options.steps;
  config.warmup_steps = 2;
  config.batch_size = 2;
  config.grad_accum = options.grad_accum;
  config.lr = 1e-3;
  config.eval_every = options.steps / 2;  // each is the best, and saved
  config.depth_sampler = options.depth_sampler;
  config.depth = options.depth;
  config.shard_optimizer = options.sharded;
  TrainPlan plan = resolve(config, *model);
  model->params().allocate(cpu(), DType::f32);
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
  const auto data = [&] { return oracle_tokens(options.model, model->config().vocab_size); };
  Trainer trainer(plan, *model, data(), data(), start, "", nullptr, comm);
  if (resumed) trainer.load_moments(checkpoint);
  {
    const Quiet quiet;
    CHECK(trainer.run() == 0);
  }
  comm.barrier();  // the log is written

  Result result{{}, {}, model->params().values()};
  std::istringstream text(read_file(out / "train.jsonl"));
  for (std::string line; std::getline(text, line);) {
    const Json record = Json::parse(line);
    if (record.contains("grad_norm"))
      result.log.push_back(record);
    else if (record["step"].get<std::int64_t>() % *config.eval_every == 0)  // not those at the end of a part of a run
      result.validations.push_back(record);
  }
  return result;
}

double largest_difference_of(const std::vector<Json>& a, const std::vector<Json>& b, const char* key) {
  CHECK(a.size() == b.size());
  double worst = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    worst = std::max(worst, std::abs(a[i][key].get<double>() - b[i][key].get<double>()));
  return worst;
}

void check_same(const Result& alone, const Result& together) {
  REQUIRE(together.log.size() == alone.log.size());
  CHECK(largest_difference_of(alone.log, together.log, "loss") < 1e-5);
  CHECK(largest_difference_of(alone.validations, together.validations, "val_loss") < 1e-5);
  CHECK(largest_difference_of(alone.log, together.log, "depth") == 0);
  CHECK(largest_difference_of(alone.log, together.log, "tokens") == 0);
  CHECK(largest_difference_of(alone.log, together.log, "flops") == 0);
  CHECK(together.log[0]["loss"] == alone.log[0]["loss"]);  // before any update nothing has been rounded differently
  CHECK(same_on_all_ranks(together.weights));
  CHECK(largest_difference(alone.weights, together.weights) < 1e-4);
}

}  // namespace

TEST_SUITE("ranks") {
  TEST_CASE("20 steps over several ranks are those of one rank: every architecture, drawn depths, accumulation") {
    for (const char* name : {"dense", "grt", "poisson", "mor", "rrt", "ouro"}) {
      CAPTURE(name);
      const TempDir own;
      const SharedDir shared;
      Options options;
      options.model = name;
      const Result alone = train(options, grt::alone(), own / "alone");
      check_same(alone, train(options, world(), shared / "together"));
      if (std::string(name) == "grt") CHECK(alone.log[0]["depth"] != alone.log[1]["depth"]);
    }
  }

  TEST_CASE("weights that a rank's micro-batches do not reach are summed rightly, and ranks may have nothing to do") {
    const TempDir own;
    const SharedDir shared;
    Options options;
    options.config_key = "r_min";
    options.value = 0;  // at depth 0 neither core nor gate has a gradient
    options.depth_sampler = "uniform";
    options.depth = 1;
    options.grad_accum = 3;
    const Result alone = train(options, grt::alone(), own / "alone");
    check_same(alone, train(options, world(), shared / "together"));
    bool all_zero = false, mixed = false;  // steps without any gradient of the core, and with one from some
    for (const Json& step : alone.log) {
      all_zero |= step["depth"] == 0.0;
      mixed |= step["depth"].get<double>() > 0 && step["depth"].get<double>() < 0.99;
    }
    CHECK(all_zero);
    CHECK(mixed);

    options.grad_accum = 1;
    check_same(train(options, grt::alone(), own / "single"), train(options, world(), shared / "single"));
  }

  TEST_CASE("sharded moments change nothing, bit for bit, in weights, moments and logs") {
    const SharedDir shared;
    Options options;
    const Result whole = train(options, world(), shared / "whole");
    options.sharded = true;
    const Result sharded = train(options, world(), shared / "sharded");
    CHECK(same_bits(whole.weights, sharded.weights));
    CHECK(same_on_all_ranks(sharded.weights));
    CHECK(largest_difference_of(whole.log, sharded.log, "grad_norm") == 0);
    for (const char* file : {"model.safetensors", "optimizer.safetensors"})
      CHECK(read_file(shared / "whole/step-00000020" / file) == read_file(shared / "sharded/step-00000020" / file));
  }

  TEST_CASE("a run goes on over another number of ranks where it stopped, with moments sharded or not") {
    const TempDir own;
    const SharedDir shared;
    Options options;
    const Result whole = train(options, grt::alone(), own / "whole");
    // All ranks, one, all again: each of the two by itself repeats the part that is one's alone.
    options.sharded = true;
    train(options, world(), shared / "cut", 7);
    if (world().rank() == 0) train(options, grt::alone(), shared / "cut", 13);
    world().barrier();
    options.sharded = false;
    check_same(whole, train(options, world(), shared / "cut"));

    // On the same ranks it is the same to the bit.
    const Result uncut = train(options, world(), shared / "uncut");
    options.sharded = true;
    train(options, world(), shared / "same", 7);
    options.sharded = false;
    const Result cut = train(options, world(), shared / "same");
    CHECK(same_bits(cut.weights, uncut.weights));
  }

  TEST_CASE("200 steps at drawn depths keep the weights of all ranks equal, bit for bit") {
    const SharedDir shared;
    Options options;
    options.steps = 200;
    options.grad_accum = 4;
    const Result run = train(options, world(), shared / "long");
    CHECK(run.log.size() == 200);
    CHECK(same_on_all_ranks(run.weights));
  }
}

}  // namespace grt::test
