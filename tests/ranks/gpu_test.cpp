// Ranks with a GPU each: what every rank of `mpirun -np N grt_tests --test-suite=ranks_gpu` runs, all in step. The
// environment names an emulated backend, NCCL's part included, with as many devices as there are ranks.
#include <algorithm>

#include "core/cuda.h"
#include "core/files.h"
#include "tests/ranks/training.h"

namespace grt::test {
namespace {

Device& gpu() {
  static const std::unique_ptr<Device> device = open_cuda(world().local_rank());
  return *device;
}

Tensor moved(const Tensor& t, Device& device) {
  const Tensor there = Tensor::empty(t.shape(), t.dtype(), device);
  gpu().copy(there.raw(), t.raw(), t.bytes());
  gpu().sync();
  return there;
}

Tensor part(std::int64_t n, int rank) { return randn({n}, 100 + static_cast<std::uint32_t>(rank), DType::f32); }

// A few short steps: a launch costs the emulator what the GPU gives to a thousand.
Training short_training() {
  Training training;
  training.changes = {{"context_length", 8}};
  training.steps = 6;
  training.device = &gpu();
  return training;
}

// By rank 0 alone; the others get nothing.
std::optional<Trained> train_alone(const Training& training, const std::filesystem::path& out) {
  if (world().rank() == 0) return train(training, grt::alone(), out);
  return std::nullopt;
}

void check_as_alone(const std::optional<Trained>& alone, const Trained& together) {
  if (alone) check_same_runs(*alone, together);
  CHECK(same_on_all_ranks(together.weights));
}

}  // namespace

TEST_SUITE("ranks_gpu") {
  TEST_CASE("sums, shares and broadcasts of tensors on GPUs are those on the CPU, with the same bits everywhere") {
    const std::unique_ptr<Comm> comm = open_nccl(world(), gpu());
    for (const std::int64_t n : {std::int64_t{16}, std::int64_t{48}, std::int64_t{1000}, std::int64_t{100003}}) {
      CAPTURE(n);
      const Tensor here = part(n, world().rank()), sum = moved(here, gpu()), mine = moved(here, gpu());
      const Tensor expected = here.clone();
      world().all_reduce(expected);
      comm->all_reduce(sum);
      const Tensor all = moved(sum, cpu());
      CHECK(largest_difference(all, expected) < 1e-5);
      CHECK(same_on_all_ranks(all));

      comm->reduce_scatter(mine);
      const auto [begin, count] = comm->share(n);
      const Tensor back = moved(mine, cpu());
      for (std::int64_t i = 0; i < n; ++i) {
        const bool own = begin <= i && i < begin + count;
        if (back.data<float>()[i] != (own ? all : here).data<float>()[i]) FAIL("element " << i << " of " << n);
      }

      const Tensor share = moved(here.range(begin, {count}), gpu());
      const Tensor whole = world().rank() == 0 ? Tensor::zeros({n}, DType::f32, gpu()) : Tensor();
      comm->collect(share, whole);
      if (whole) {
        for (int r = 0; r < comm->size(); ++r) {
          const auto [first, number] = comm->share(n, r);
          CHECK(same_bits(moved(whole, cpu()).range(first, {number}), part(n, r).range(first, {number})));
        }
      }

      comm->broadcast(sum);
      const Tensor own = moved(here, gpu());
      comm->broadcast(own);
      CHECK(same_bits(own, part(n, 0)));
    }
    CHECK(comm->gather<std::int64_t>(comm->rank()).back() == comm->size() - 1);
  }

  TEST_CASE("tensors that are elsewhere, or of integers, are refused by name") {
    const std::unique_ptr<Comm> comm = open_nccl(world(), gpu());
    CHECK(error_of([&] { comm->broadcast(part(16, 0)); }) ==
          fmt::format("NCCL: takes tensors on {}, not on {}", gpu().name(), cpu().name()));
    CHECK(error_of([&] { comm->all_reduce(Tensor::zeros({16}, DType::i32, gpu())); }) ==
          "NCCL: sums f32 and f64, not i32");
  }

  TEST_CASE("a rank that fails leaves without waiting for the others") {
    const auto leave = [] {
      const std::unique_ptr<Comm> comm = open_nccl(world(), gpu());
      if (world().rank() > 0) world().barrier();  // in which rank 0 is not, until it has left
      fail("rank {} fails", world().rank());
    };
    CHECK(contains(error_of(leave), " fails"));
    if (world().rank() == 0) world().barrier();
  }

  TEST_CASE("steps over several GPUs are those of one: drawn depths, accumulation, moments whole and sharded") {
    const SharedDir shared;
    Training training = short_training();
    const std::optional<Trained> alone = train_alone(training, shared / "alone");
    const std::unique_ptr<Comm> comm = open_nccl(world(), gpu());
    const Trained whole = train(training, *comm, shared / "whole");
    check_as_alone(alone, whole);
    CHECK(whole.log[0]["depth"] != whole.log[1]["depth"]);
    training.sharded = true;
    const Trained sharded = train(training, *comm, shared / "sharded");
    CHECK(same_bits(whole.weights, sharded.weights));
    for (const char* file : {"model.safetensors", "optimizer.safetensors"})
      CHECK(read_file(shared / "whole/step-00000006" / file) == read_file(shared / "sharded/step-00000006" / file));
  }

  TEST_CASE("weights that a rank's micro-batches do not reach are summed rightly on GPUs, too") {
    const SharedDir shared;
    Training training = short_training();
    training.changes["r_min"] = 0;  // at depth 0 neither core nor gate has a gradient
    training.depth_sampler = "uniform";
    training.depth = 1;
    training.grad_accum = 3;
    const std::optional<Trained> alone = train_alone(training, shared / "alone");
    const std::unique_ptr<Comm> comm = open_nccl(world(), gpu());
    const Trained together = train(training, *comm, shared / "together");
    check_as_alone(alone, together);
    CHECK(std::any_of(together.log.begin(), together.log.end(), [](const Json& step) {
      return step["depth"].get<double>() > 0 && step["depth"].get<double>() < 0.99;
    }));
  }

  TEST_CASE("a router that the last micro-batch of a step does not reach is summed rightly on GPUs, too") {
    const SharedDir shared;
    Training training = short_training();
    training.model = "mor";
    training.depth_sampler = "uniform";
    training.steps = 3;
    const std::optional<Trained> alone = train_alone(training, shared / "alone");
    const std::unique_ptr<Comm> comm = open_nccl(world(), gpu());
    const Trained together = train(training, *comm, shared / "together");
    CHECK(ends_shallow(together));
    check_as_alone(alone, together);
  }
}

}  // namespace grt::test
