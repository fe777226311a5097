// Work that comes again and again is made a graph once, and then launched as a whole: a device that has graphs spends
// nothing on each of its many small parts any more. Elsewhere, and with --no-graphs, it is done as it comes.
//
// What a graph does is what was enqueued when it was made: the same kernels on the same addresses, with the same
// arguments. So what changes from one time to the next lies in memory that was there before (a LiveScalar for a
// number), results are copied to such memory, and tensors made by the work die with it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <unordered_set>

#include "core/scalar.h"
#include "core/tensor.h"

namespace grt {

// A number in the memory of a device. Work enqueued after set() sees the new value, replays included.
template <class T>
class LiveScalar {
 public:
  explicit LiveScalar(Device& device, T value = {}) : memory_(Tensor::empty({kWords}, DType::i32, device)) {
    set(value);
  }
  void set(T value) {
    value_ = value;
    memory_.device().copy(memory_.raw(), &value_, sizeof value_);
  }
  operator Scalar<T>() const { return {memory_.data<const T>(), value_}; }

 private:
  static_assert(sizeof(T) % size_of(DType::i32) == 0);
  static constexpr std::int64_t kWords = sizeof(T) / size_of(DType::i32);

  Tensor memory_;
  T value_;
};

// Of one caller, who lets them go before the memory that they use.
class Graphs {
 public:
  explicit Graphs(Device& device);
  ~Graphs();
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;

  // Does `work`, which is to do the same whenever the key is the same. The first time it is done as it comes, which
  // also shows whether it can be a graph: not if it waits for the device, copies from or to the host, or keeps memory
  // that it took. That may be for the first time's sake (as copies of weights are kept), so there are further tries;
  // after kTries such work stays without a graph. Other work is made a graph the next time, and from then on that is
  // launched. Memory that is kept may be what other keys' work took before: that is tried anew too. Returns whether
  // `work` was called. Throws Error if work that kept nothing does so when it is made a graph.
  bool run(std::int64_t key, const std::function<void()>& work);

 private:
  static constexpr int kTries = 3;
  struct Entry {
    int unfit = 0;                          // tries that met the host or kept memory
    std::optional<std::size_t> ready = {};  // Device::graph_keeps_ at a try that did neither
    std::unique_ptr<Graph> graph = {};
  };
  class ForGraph;
  class Making;
  using Blocks = std::unordered_set<const void*>;

  bool keeps_more_than(const Blocks& before) const;
  void try_out(Entry& entry, const std::function<void()>& work);
  void make(Entry& entry, const std::function<void()>& work);

  Device& device_;
  std::map<std::int64_t, Entry> entries_;
};

}  // namespace grt
