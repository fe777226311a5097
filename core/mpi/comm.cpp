// Ranks by MPI, for tensors in host memory: the library libgrt_mpi.so, opened by core/comm.cpp when a launcher started
// more than one rank. It holds nothing of libgrt but what headers define.
#include "core/comm.h"

#include <mpi.h>

#include <limits>

namespace grt {
namespace {

MPI_Datatype type_of(const Tensor& t) {
  check(t.device().name().starts_with("cpu"), "MPI: sums tensors in host memory, not on {}", t.device().name());
  check(t.dtype() == DType::f32 || t.dtype() == DType::f64, "MPI: sums f32 and f64, not {}", name_of(t.dtype()));
  return t.dtype() == DType::f32 ? MPI_FLOAT : MPI_DOUBLE;
}

int count_of(std::int64_t n) {
  check(n <= std::numeric_limits<int>::max(), "MPI: {} elements are more than it can count", n);
  return static_cast<int>(n);
}

// The ranks that share this one's memory.
struct Local {
  Local() {
    MPI_Comm ranks;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &ranks);
    MPI_Comm_rank(ranks, &rank);
    MPI_Comm_size(ranks, &size);
    MPI_Comm_free(&ranks);
  }
  int rank = 0, size = 1;
};

int world(int (*ask)(MPI_Comm, int*)) {
  int answer = 0;
  ask(MPI_COMM_WORLD, &answer);
  return answer;
}

// Errors of MPI itself end all ranks with its message, which is its default.
class MpiComm final : public Comm {
 public:
  explicit MpiComm(const Local& local) : Comm(world(MPI_Comm_rank), world(MPI_Comm_size), local.rank, local.size) {}
  ~MpiComm() override { MPI_Finalize(); }

  void sum(std::span<double> values) override { sum_host(values.data(), values.size(), MPI_DOUBLE); }
  void sum(std::span<std::int64_t> values) override { sum_host(values.data(), values.size(), MPI_INT64_T); }

  void broadcast(const Tensor& t) override {
    t.device().sync();
    MPI_Bcast(t.raw(), count_of(t.numel()), type_of(t), 0, MPI_COMM_WORLD);
  }

  // Out of place: in place MPI would put the sum at the beginning of t.
  void reduce_scatter(const Tensor& t) override {
    const Shares shares = shares_of(t.numel());
    const Share mine = share(t.numel());
    std::vector<char> sum(static_cast<std::size_t>(mine.count) * size_of(t.dtype()));
    t.device().sync();
    MPI_Reduce_scatter(t.raw(), sum.data(), shares.counts.data(), type_of(t), MPI_SUM, MPI_COMM_WORLD);
    t.device().copy(t.data<char>() + static_cast<std::size_t>(mine.begin) * size_of(t.dtype()), sum.data(), sum.size());
  }

  void all_gather(const Tensor& t) override {
    const Shares shares = shares_of(t.numel());
    t.device().sync();
    MPI_Allgatherv(MPI_IN_PLACE, 0, type_of(t), t.raw(), shares.counts.data(), shares.begins.data(), type_of(t),
                   MPI_COMM_WORLD);
  }

  void collect(const Tensor& share, const Tensor& whole) override {
    std::int64_t n = share.numel();
    sum(std::span(&n, 1));
    const Shares shares = shares_of(n);
    share.device().sync();
    MPI_Gatherv(share.raw(), count_of(share.numel()), type_of(share), rank() == 0 ? whole.raw() : nullptr,
                shares.counts.data(), shares.begins.data(), type_of(share), 0, MPI_COMM_WORLD);
  }

  void abort(int code) override { MPI_Abort(MPI_COMM_WORLD, code); }

 private:
  struct Shares {
    std::vector<int> counts, begins;
  };
  Shares shares_of(std::int64_t n) const {
    Shares shares;
    for (int r = 0; r < size(); ++r) {
      shares.counts.push_back(count_of(share(n, r).count));
      shares.begins.push_back(count_of(share(n, r).begin));
    }
    return shares;
  }

  static void sum_host(void* values, std::size_t n, MPI_Datatype type) {
    MPI_Allreduce(MPI_IN_PLACE, values, count_of(static_cast<std::int64_t>(n)), type, MPI_SUM, MPI_COMM_WORLD);
  }
};

}  // namespace
}  // namespace grt

extern "C" grt::Comm* grt_open_mpi() {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  return new grt::MpiComm(grt::Local());
}
