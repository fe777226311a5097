// Which launcher started this process, if any, is told by the variables that launchers set.
#include "core/comm.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "core/plugin.h"
#include "core/threads.h"

namespace grt {
namespace {

// One rank by itself: every sum is there already.
class Alone final : public Comm {
 public:
  Alone() : Comm(0, 1, 0, 1) {}
  void sum(std::span<double>) override {}
  void sum(std::span<std::int64_t>) override {}
  void broadcast(const Tensor&) override {}
  void reduce_scatter(const Tensor&) override {}
  void all_gather(const Tensor&) override {}
  void collect(const Tensor& share, const Tensor& whole) override {
    whole.device().copy(whole.raw(), share.raw(), share.bytes());
  }
  void abort(int code) override { std::_Exit(code); }
};

struct Launcher {
  const char* size;     // the environment variable that holds the number of ranks
  const char* command;  // and what starts that many
};

// Of a job step, not of an allocation: SLURM_NTASKS is also there where a batch script runs one process.
constexpr Launcher kLaunchers[] = {{"OMPI_COMM_WORLD_SIZE", "mpirun -np"},  // Open MPI's mpirun
                                   {"SLURM_STEP_NUM_TASKS", "srun -n"},     // srun, whichever the plug-in
                                   {"PMI_SIZE", "mpirun -np"}};             // MPICH, Intel MPI

int ranks_in(const char* variable) {
  const char* text = std::getenv(variable);
  int n = 0;
  if (text) std::from_chars(text, text + std::strlen(text), n);
  return n;
}

}  // namespace

Comm& alone() {
  static Alone one;  // has no state
  return one;
}

int launched_ranks() {
  int most = 1;
  for (const Launcher& launcher : kLaunchers) most = std::max(most, ranks_in(launcher.size));
  return most;
}

std::unique_ptr<Comm> open_comm() {
  const int launched = launched_ranks();
  if (launched == 1) return std::make_unique<Alone>();
  const Plugin mpi("mpi", fmt::format("the launcher started {} ranks, which takes a build with MPI (Debian: "
                                      "libopenmpi-dev; then configure and build again)",
                                      launched));
  std::unique_ptr<Comm> comm(mpi.function<Comm*()>("grt_open_mpi")());
  check(comm->size() == launched,
        "the launcher started {} ranks, but MPI knows of {}: the launcher must be that of the same MPI (with srun: "
        "--mpi=pmix)",
        launched, comm->size());
  return comm;
}

std::string launch_command(int ranks) {
  if (ranks == 1) return "";
  for (const Launcher& launcher : kLaunchers)
    if (ranks_in(launcher.size) > 1) return fmt::format("{} {} ", launcher.command, ranks);
  return fmt::format("mpirun -np {} ", ranks);
}

int threads_per_rank(Comm& comm) {
  const std::vector<std::int64_t> sets = comm.gather(cpu_set_id());
  const auto sharers = static_cast<int>(std::count(sets.begin(), sets.end(), sets[comm.rank()]));
  return std::max(1, allowed_cpus() / sharers);
}

}  // namespace grt
