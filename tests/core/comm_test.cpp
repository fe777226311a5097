// One rank by itself, the shares of many, and what a launcher leaves in the environment.
#include "core/comm.h"

#include <cstdlib>

#include "core/files.h"
#include "core/plugin.h"
#include "core/threads.h"
#include "tests/support.h"

namespace grt::test {
namespace {

// Of any size, to ask about shares.
class Sized final : public Comm {
 public:
  explicit Sized(int size) : Comm(0, size, 0, size) {}
  void sum(std::span<double>) override {}
  void sum(std::span<std::int64_t>) override {}
  void broadcast(const Tensor&) override {}
  void reduce_scatter(const Tensor&) override {}
  void all_gather(const Tensor&) override {}
  void collect(const Tensor&, const Tensor&) override {}
  void abort(int) override {}
};

// An environment variable with another value for a while.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* was = std::getenv(name)) was_ = was;
    setenv(name, value, 1);
  }
  ~Variable() { was_ ? setenv(name_, was_->c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> was_;
};

}  // namespace

TEST_SUITE("core") {
  TEST_CASE("shares lie side by side, begin at multiples of 16 and cover everything") {
    for (const int ranks : {1, 2, 3, 7, 64}) {
      const Sized comm(ranks);
      for (const std::int64_t n : {std::int64_t{1}, std::int64_t{16}, std::int64_t{1000}, std::int64_t{773582080}}) {
        std::int64_t end = 0, largest = 0;
        for (int r = 0; r < ranks; ++r) {
          const auto [begin, count] = comm.share(n, r);
          CHECK(begin == end);
          CHECK((begin % 16 == 0 || begin == n));
          end = begin + count;
          largest = std::max(largest, count);
        }
        CHECK(end == n);
        CHECK(largest <= n / ranks + 16);
      }
    }
  }

  TEST_CASE("a rank alone has all sums already, and its shares are everything") {
    Comm& one = alone();
    CHECK(one.size() == 1);
    const Tensor t = randn({40}, 1), before = t.clone();
    one.all_reduce(t);
    one.broadcast(t);
    CHECK(same_bits(t, before));
    const Tensor whole = Tensor::zeros({40}, DType::f64, cpu());
    one.collect(t, whole);
    CHECK(same_bits(t, whole));
    CHECK(one.gather(2.5) == std::vector<double>{2.5});
    CHECK(threads_per_rank(one) == allowed_cpus());
  }

  TEST_CASE("the number of ranks is what a launcher says, and one where none does") {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE"}) {
      const Variable launcher(name, "5");
      CHECK(launched_ranks() == 5);
      CHECK(launch_command(3) == (std::string(name).starts_with("SLURM") ? "srun -n 3 " : "mpirun -np 3 "));
    }
    if (launched_ranks() > 1) return;  // under a launcher
    const Variable odd("PMI_SIZE", "many"), allocation("SLURM_NTASKS", "8");
    CHECK(launched_ranks() == 1);
    CHECK(open_comm()->size() == 1);
    CHECK(launch_command(1).empty());
  }

  TEST_CASE("a part that is not there is named, with what the system says and what helps") {
    const std::string error = error_of([] { Plugin("nothing", "ask for less"); });
    CHECK(contains(error, "libgrt_nothing.so"));
    CHECK(contains(error, "No such file"));
    CHECK(contains(error, "ask for less"));
  }

  TEST_CASE("a part that was copied in part is named, and no more than that happens") {
    const TempDir dir;
    const std::string whole = read_file("/proc/self/exe");  // as good as a library
    for (const std::size_t size : {100, 5000}) {
      const std::string file = dir / "libgrt_torn.so";
      write_file(file, whole.substr(0, size));
      const Variable named("GRT_TORN_LIBRARY", file.c_str());
      const std::string error = error_of([] { Plugin("torn", "copy it again"); });
      CHECK(error.starts_with(fmt::format("libgrt_torn.so: {}: has {} bytes of at least ", file, size)));
      CHECK(error.ends_with(": it was copied in part; copy it again"));
    }
  }
}

}  // namespace grt::test
