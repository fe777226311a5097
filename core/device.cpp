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
  if (auto& idle = idle_[size]; !idle.empty()) {
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
  }
  in_use_ += size;
  if (in_use_ > peak_) peak_ = in_use_;
  return p;
}

void Device::give_back(void* p, std::size_t bytes) noexcept {
  const std::size_t size = block_size(bytes);
  in_use_ -= size;
  if (!keep_blocks_) {
    system_free(p, size);
    reserved_ -= size;
    return;
  }
  try {
    idle_[size].push_back(p);
  } catch (const std::bad_alloc&) {  // no memory to remember the block by
    system_free(p, size);
    reserved_ -= size;
  }
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
