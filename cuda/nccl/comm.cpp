// Ranks with a GPU each, by NCCL: the library libgrt_nccl.so, opened by core/cuda.cpp when several ranks compute on
// GPUs. It carries tensors alone: values of the host, and the end of all ranks, are left to the Comm that the launcher
// gave, over which NCCL's ranks find each other. It holds nothing of libgrt but what headers define.
#include "core/comm.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <array>
#include <cstring>
#include <exception>
#include <thread>

namespace grt {
namespace {

void cuda_check(cudaError_t e, const char* what) {
  check(e == cudaSuccess, "NCCL: {}: {}", what, cudaGetErrorString(e));
}

void nccl_check(ncclResult_t result, const char* what, ncclComm_t comm = nullptr) {
  if (result == ncclSuccess) [[likely]]
    return;
  const char* const details = ncclGetLastError(comm);
  fail("NCCL: {}: {}{}{}", what, ncclGetErrorString(result), details && *details ? ": " : "", details ? details : "");
}

// NCCL itself would refuse two ranks on one GPU without saying which.
void check_own_gpus(Comm& ranks) {
  int ordinal = 0;
  cudaDeviceProp properties;
  cuda_check(cudaGetDevice(&ordinal), "asking for the device");
  cuda_check(cudaGetDeviceProperties(&properties, ordinal), "asking for its properties");
  std::array<std::int64_t, 2> id{};  // unique in the world
  static_assert(sizeof id == sizeof properties.uuid);
  std::memcpy(id.data(), &properties.uuid, sizeof id);
  const std::vector<std::int64_t> high = ranks.gather(id[0]), low = ranks.gather(id[1]);
  for (std::size_t b = 1; b < high.size(); ++b)
    for (std::size_t a = 0; a < b; ++a)
      check(high[a] != high[b] || low[a] != low[b],
            "ranks {} and {} have the same GPU, and NCCL needs one for each: start no more ranks on a machine than it "
            "has GPUs, or give --device cpu",
            a, b);
}

// That of rank 0, on all.
ncclUniqueId shared_id(Comm& ranks) {
  ncclUniqueId id{};
  if (ranks.rank() == 0) nccl_check(ncclGetUniqueId(&id), "starting it");
  std::array<std::int64_t, sizeof id / sizeof(std::int64_t)> words{};
  std::memcpy(words.data(), &id, sizeof id);
  ranks.sum(words);  // the others' are 0
  std::memcpy(&id, words.data(), sizeof id);
  return id;
}

class NcclComm final : public Comm {
 public:
  NcclComm(Comm& ranks, Device& device, cudaStream_t stream)
      : Comm(ranks.rank(), ranks.size(), ranks.local_rank(), ranks.local_size()),
        ranks_(ranks),
        device_(device),
        stream_(stream) {
    check_own_gpus(ranks);
    const ncclUniqueId id = shared_id(ranks);
    nccl_check(ncclCommInitRank(&nccl_, size(), id, rank()), "bringing the ranks together");
  }
  // ncclCommDestroy waits for the other ranks, which after an error on this one do not come.
  ~NcclComm() override { std::uncaught_exceptions() > 0 ? ncclCommAbort(nccl_) : ncclCommDestroy(nccl_); }

  void sum(std::span<double> values) override { ranks_.sum(values); }
  void sum(std::span<std::int64_t> values) override { ranks_.sum(values); }
  void abort(int code) override { ranks_.abort(code); }

  void broadcast(const Tensor& t) override {
    const ncclDataType_t type = type_of(t);
    together("handing out rank 0's values", [&] {
      return ncclBroadcast(t.raw(), t.raw(), static_cast<std::size_t>(t.numel()), type, 0, nccl_, stream_);
    });
  }

  void reduce_scatter(const Tensor& t) override {
    const ncclDataType_t type = type_of(t);
    together("summing shares", [&] {
      return for_shares(t.numel(), [&](int r, std::int64_t begin, std::size_t count) {
        void* const p = element(t, begin);
        return ncclReduce(p, r == rank() ? p : nullptr, count, type, ncclSum, r, nccl_, stream_);
      });
    });
  }

  void all_gather(const Tensor& t) override {
    const ncclDataType_t type = type_of(t);
    together("handing out shares", [&] {
      return for_shares(t.numel(), [&](int r, std::int64_t begin, std::size_t count) {
        void* const p = element(t, begin);
        return ncclBroadcast(p, p, count, type, r, nccl_, stream_);
      });
    });
  }

  void collect(const Tensor& share, const Tensor& whole) override {
    std::int64_t n = share.numel();
    sum(std::span(&n, 1));
    const ncclDataType_t type = type_of(share);
    if (rank() == 0) device_.copy(whole.raw(), share.raw(), share.bytes());  // its share is the first
    together("collecting shares", [&] {
      return for_shares(n, [&](int r, std::int64_t begin, std::size_t count) {
        if (r == 0) return ncclSuccess;
        if (rank() == 0) return ncclRecv(element(whole, begin), count, type, r, nccl_, stream_);
        return r == rank() ? ncclSend(share.raw(), count, type, 0, nccl_, stream_) : ncclSuccess;
      });
    });
  }

 private:
  ncclDataType_t type_of(const Tensor& t) const {
    check(&t.device() == &device_, "NCCL: takes tensors on {}, not on {}", device_.name(), t.device().name());
    check(t.dtype() == DType::f32 || t.dtype() == DType::f64, "NCCL: sums f32 and f64, not {}", name_of(t.dtype()));
    return t.dtype() == DType::f32 ? ncclFloat32 : ncclFloat64;
  }

  static void* element(const Tensor& t, std::int64_t i) {
    return t.data<char>() + static_cast<std::size_t>(i) * size_of(t.dtype());
  }

  // call(rank, begin, count) for each share of n elements that is not empty, up to the first failure.
  template <class F>
  ncclResult_t for_shares(std::int64_t n, F&& call) const {
    for (int r = 0; r < size(); ++r) {
      const auto [begin, count] = share(n, r);
      if (count == 0) continue;
      if (const ncclResult_t e = call(r, begin, static_cast<std::size_t>(count)); e != ncclSuccess) return e;
    }
    return ncclSuccess;
  }

  // Enqueues what `calls` calls as one group and waits for it: looking for errors meanwhile, after which a plain wait
  // might never end.
  template <class F>
  void together(const char* what, F&& calls) {
    nccl_check(ncclGroupStart(), what, nccl_);
    const ncclResult_t called = calls(), ended = ncclGroupEnd();  // an open group would hold up its abortion
    nccl_check(called, what, nccl_);
    nccl_check(ended, what, nccl_);
    for (;;) {
      ncclResult_t state = ncclSuccess;
      nccl_check(ncclCommGetAsyncError(nccl_, &state), what, nccl_);
      nccl_check(state, what, nccl_);
      const cudaError_t e = cudaStreamQuery(stream_);
      if (e == cudaSuccess) return;
      if (e != cudaErrorNotReady) cuda_check(e, what);
      std::this_thread::yield();
    }
  }

  Comm& ranks_;
  Device& device_;
  cudaStream_t stream_;
  ncclComm_t nccl_ = nullptr;
};

}  // namespace
}  // namespace grt

extern "C" {

const char* grt_nccl_interface() { return GRT_INTERFACE; }

grt::Comm* grt_nccl_open(grt::Comm* ranks, grt::Device* device, void* stream) {
  return new grt::NcclComm(*ranks, *device, static_cast<cudaStream_t>(stream));
}
}
