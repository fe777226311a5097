// A device owns memory and one in-order stream of work. What it can compute is its Kernels (ops/kernels.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/dtype.h"

namespace grt {

struct Kernels;  // ops/kernels.h; core only carries the reference

// Work that was kept instead of done, to be enqueued as a whole, as often as wanted.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void launch() = 0;
};

class Device {
 public:
  // keep_blocks: whether memory that is given back waits to be taken again, or every tensor is an allocation of its own
  // exact size, whose ends a tool that checks memory can watch.
  explicit Device(bool keep_blocks = true) : keep_blocks_(keep_blocks) {}
  virtual ~Device() = default;

  virtual std::string name() const = 0;  // "cpu (avx2)", "cuda:0"
  virtual Kernels& kernels() = 0;
  virtual void sync() = 0;  // waits for all work enqueued so far

  // Both are enqueued on the stream. A copy may have one end in host memory: what is read there has been read when the
  // call returns, what is written there is there after sync().
  virtual void zero(void* p, std::size_t bytes) = 0;
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;

  // Blocks come from a cache keyed by rounded size, so a step that repeats an earlier one allocates nothing new and
  // gets the same addresses. Throws Error when the system has no memory left.
  void* take(std::size_t bytes);
  void give_back(void* p, std::size_t bytes) noexcept;

  std::size_t in_use() const { return in_use_; }             // bytes in living tensors
  std::size_t peak() const { return peak_; }                 // the largest in_use() since reset_peak()
  std::size_t reserved() const { return reserved_; }         // bytes obtained from the system and not returned
  std::size_t system_calls() const { return allocations_; }  // how often the system was asked for memory
  virtual std::int64_t available() const;                    // bytes the system could still give
  void reset_peak() { peak_ = in_use_; }
  void release_idle() noexcept;  // returns the cached blocks to the system

  // Does core/graphs.h make graphs here, or is all work done as it comes?
  bool uses_graphs() const { return use_graphs_ && has_graphs(); }
  void use_graphs(bool use) { use_graphs_ = use; }

 protected:
  // What core/graphs.h asks of a device that has graphs. The work from begin_graph() to end_graph() becomes one;
  // memory from the system, waiting for the device and copies from or to the host throw Error meanwhile.
  friend class Graphs;
  virtual bool has_graphs() const { return false; }
  virtual void begin_graph() {}
  virtual std::unique_ptr<Graph> end_graph() { return {}; }
  // Work that is to become a graph is done for the first time, or made one: the device tells when it meets the host.
  bool for_graph() const { return for_graph_; }
  void met_host() { met_host_ = true; }

  virtual void* system_alloc(std::size_t bytes) = 0;  // null when there is none
  virtual void system_free(void* p, std::size_t bytes) noexcept = 0;

 private:
  using Idle = std::unordered_map<std::size_t, std::vector<void*>>;  // by size

  std::size_t block_size(std::size_t bytes) const;
  void keep(Idle& idle, void* p, std::size_t size) noexcept;
  void release_graph_blocks() noexcept;  // to all: there are no graphs any more

  bool keep_blocks_;
  Idle idle_;
  // A graph writes to the same blocks at each replay. What is taken for graphs goes round among them alone; that they
  // share it is no harm, for they work one after the other.
  Idle graph_idle_;
  std::unordered_set<const void*> graph_blocks_;
  std::unordered_set<const void*> graph_blocks_in_use_;  // of those
  std::size_t graph_keeps_ = 0;  // tries that kept some: what was found fit before such a one is tried again
  bool use_graphs_ = true, for_graph_ = false, met_host_ = false;
  int graph_users_ = 0;
  std::size_t reserved_ = 0, in_use_ = 0, peak_ = 0, allocations_ = 0;
};

// The CPU. The factors of the products of f32 tensors (linear layers, the head, and those inside attention but for a
// few queries) are rounded to bf16 if `products` says so, and summed in f32; tensors, gradients and everything else
// stay f32.
std::unique_ptr<Device> open_cpu(DType products = DType::f32);  // ops/cpu/host/device.cpp

// The instruction set that the CPU computes with: the best that program and machine have, or a lower one that the
// environment's GRT_ISA names ("portable", "avx2", "avx512", "avx512bf16"). Throws Error for any other.
std::string cpu_level();

}  // namespace grt
