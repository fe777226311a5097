// The cache of blocks: none is split or joined, so that what a step takes is what the step before gave back.
#include "core/device.h"

#include <new>

#include "core/error.h"
#include "core/memory.h"

namespace grt {
namespace {

// Small blocks in cache lines, large ones in pages of 64 KiB: sizes that differ little share a block.
constexpr std::size_t round_up(std::size_t n) {
  const std::size_t unit = n < (1u << 20) ? 512 : (1u << 16);
  return n == 0 ? unit : (n + unit - 1) / unit * unit;
}

}  // namespace

std::size_t Device::block_size(std::size_t bytes) const { return keep_blocks_ ? round_up(bytes) : bytes; }

std::int64_t Device::available() const { return available_memory(); }

void* Device::take(std::size_t bytes) {
  const std::size_t size = block_size(bytes);
  void* p = nullptr;
  if (auto& idle = (for_graph_ ? graph_idle_ : idle_)[size]; !idle.empty()) {
    p = idle.back();
    idle.pop_back();
  } else {
    p = system_alloc(size);
    if (!p) {  // blocks of other sizes may lie idle
      release_idle();
      p = system_alloc(size);
    }
    check(p != nullptr, "{}: out of memory: {} bytes wanted, {} in use", name(), size, in_use_);
    reserved_ += size;
    ++allocations_;
    if (for_graph_) graph_blocks_.insert(p);
  }
  if (for_graph_) graph_blocks_in_use_.insert(p);
  in_use_ += size;
  if (in_use_ > peak_) peak_ = in_use_;
  return p;
}

void Device::give_back(void* p, std::size_t bytes) noexcept {
  const std::size_t size = block_size(bytes);
  in_use_ -= size;
  if (graph_blocks_.contains(p)) {
    graph_blocks_in_use_.erase(p);
    return keep(graph_idle_, p, size);
  }
  if (keep_blocks_) return keep(idle_, p, size);
  system_free(p, size);
  reserved_ -= size;
}

void Device::keep(Idle& idle, void* p, std::size_t size) noexcept {
  try {
    idle[size].push_back(p);
  } catch (const std::bad_alloc&) {  // no memory to remember the block by
    system_free(p, size);
    reserved_ -= size;
  }
}

void Device::release_graph_blocks() noexcept {
  for (auto& [size, blocks] : graph_idle_)
    for (void* p : blocks) keep(idle_, p, size);
  graph_idle_.clear();
  graph_blocks_.clear();
  graph_blocks_in_use_.clear();
  if (!keep_blocks_) release_idle();
}

void Device::release_idle() noexcept {
  for (auto& [size, blocks] : idle_) {
    for (void* p : blocks) {
      system_free(p, size);
      reserved_ -= size;
    }
    blocks.clear();
  }
}

}  // namespace grt
