// Training over several ranks against training alone, step by step, in the same process.
#include "tests/ranks/training.h"

#include "core/files.h"
#include "core/safetensors.h"

namespace grt::test {

TEST_SUITE("ranks") {
  TEST_CASE("training over several ranks is that of one rank: every architecture, drawn depths, accumulation") {
    for (const char* name : {"dense", "grt", "poisson", "mor", "rrt", "ouro"}) {
      CAPTURE(name);
      const TempDir own;
      const SharedDir shared;
      Training training;
      training.model = name;
      if (kSanitized) training.steps = 6;
      const Trained alone = train(training, grt::alone(), own / "alone");
      check_same(alone, train(training, world(), shared / "together"));
      if (std::string(name) == "grt") CHECK(alone.log[0]["depth"] != alone.log[1]["depth"]);
    }
  }

  TEST_CASE("the gradient of 8 micro-batches over several ranks is that of one rank") {
    const TempDir own;
    const SharedDir shared;
    Training training;
    training.grad_accum = 8;
    training.grad_clip = 0;  // which would take a common factor out
    train(training, grt::alone(), own / "alone", 1);
    train(training, world(), shared / "together", 1);
    // After one step AdamW's first moment is the gradient, times 1 - beta1.
    const Safetensors alone(own / "alone/step-00000001/optimizer.safetensors");
    const Safetensors together(shared / "together/step-00000001/optimizer.safetensors");
    int compared = 0;
    for (const auto& [name, entry] : alone.entries()) {
      if (!name.starts_with("m.")) continue;
      CAPTURE(name);
      const std::vector<std::int64_t>& s = entry.shape;
      const Shape shape = s.size() == 1 ? Shape{s[0]} : Shape{s.at(0), s.at(1)};
      const Tensor a = Tensor::empty(shape, DType::f32, cpu()), b = Tensor::like(a),
                   none = Tensor::zeros(shape, DType::f32, cpu());
      alone.read(name, a);
      together.read(name, b);
      CHECK(largest_difference(a, b) <= 1e-6 * largest_difference(a, none));
      ++compared;
    }
    CHECK(compared > 20);
  }

  // AdamW hardly sees a factor that all gradients have, but this one changes from step to step; the norm itself is
  // compared everywhere.
  TEST_CASE("gradients are clipped by their norm over all ranks, with moments sharded or not") {
    const TempDir own;
    const SharedDir shared;
    Training training;
    training.steps = 10;
    const Trained free = train(training, grt::alone(), own / "free");
    training.grad_clip = 0.1;
    const Trained alone = train(training, grt::alone(), own / "alone");
    CHECK(largest_difference_of(free.log, alone.log, "loss") > 1e-4);  // it acts
    for (const bool sharded : {false, true}) {
      training.sharded = sharded;
      check_same(alone, train(training, world(), shared / (sharded ? "sharded" : "whole")));
    }
  }

  TEST_CASE("weights that a rank's micro-batches do not reach are summed rightly, and ranks may have nothing to do") {
    const TempDir own;
    const SharedDir shared;
    Training training;
    training.changes = {{"r_min", 0}};  // at depth 0 neither core nor gate has a gradient
    training.depth_sampler = "uniform";
    training.depth = 1;
    training.grad_accum = 3;
    const Trained alone = train(training, grt::alone(), own / "alone");
    check_same(alone, train(training, world(), shared / "together"));
    bool all_zero = false, mixed = false;  // steps without any gradient of the core, and with one from some
    for (const Json& step : alone.log) {
      all_zero |= step["depth"] == 0.0;
      mixed |= step["depth"].get<double>() > 0 && step["depth"].get<double>() < 0.99;
    }
    CHECK(all_zero);
    CHECK(mixed);

    training.grad_accum = 1;
    check_same(train(training, grt::alone(), own / "single"), train(training, world(), shared / "single"));
  }

  TEST_CASE("a router that the last micro-batch of a step does not reach is summed rightly") {
    const TempDir own;
    const SharedDir shared;
    Training training;
    training.model = "mor";
    training.depth_sampler = "uniform";
    const Trained alone = train(training, grt::alone(), own / "alone");
    CHECK(ends_shallow(alone));
    check_same(alone, train(training, world(), shared / "together"));
  }

  TEST_CASE("sharded moments change nothing, bit for bit, in weights, moments and logs") {
    const SharedDir shared;
    Training training;
    const Trained whole = train(training, world(), shared / "whole");
    training.sharded = true;
    const Trained sharded = train(training, world(), shared / "sharded");
    CHECK(same_bits(whole.weights, sharded.weights));
    CHECK(same_on_all_ranks(sharded.weights));
    CHECK(largest_difference_of(whole.log, sharded.log, "grad_norm") == 0);
    for (const char* file : {"model.safetensors", "optimizer.safetensors"})
      CHECK(read_file(shared / "whole/step-00000020" / file) == read_file(shared / "sharded/step-00000020" / file));
  }

  TEST_CASE("a run goes on over another number of ranks where it stopped, with moments sharded or not") {
    const TempDir own;
    const SharedDir shared;
    Training training;
    const Trained whole = train(training, grt::alone(), own / "whole");
    // All ranks, one, all again: each of the two by itself repeats the part that is one's alone.
    training.sharded = true;
    train(training, world(), shared / "cut", 7);
    if (world().rank() == 0) train(training, grt::alone(), shared / "cut", 13);
    world().barrier();
    training.sharded = false;
    check_same(whole, train(training, world(), shared / "cut"));

    // On the same ranks it is the same to the bit.
    const Trained uncut = train(training, world(), shared / "uncut");
    training.sharded = true;
    train(training, world(), shared / "same", 7);
    training.sharded = false;
    const Trained cut = train(training, world(), shared / "same");
    CHECK(same_bits(cut.weights, uncut.weights));
  }

  TEST_CASE("many steps at drawn depths keep the weights of all ranks equal, bit for bit") {
    const SharedDir shared;
    Training training;
    training.steps = kSanitized ? 30 : 200;
    training.grad_accum = 4;
    const Trained run = train(training, world(), shared / "long");
    CHECK(static_cast<std::int64_t>(run.log.size()) == training.steps);
    CHECK(same_on_all_ranks(run.weights));
  }
}

}  // namespace grt::test
