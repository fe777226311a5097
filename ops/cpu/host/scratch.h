// Scratch memory of a thread's products and attention: whole huge pages, so that panels of megabytes cost few TLB
// entries.
#pragma once

#include <cstddef>
#include <cstdint>

namespace grt::cpu {

// Memory that grows when more is asked for and is otherwise reused; backed by huge pages where the system has them.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // `count` elements, aligned to a page. What an earlier call returned is no longer valid.
  template <class T>
  T* get(std::int64_t count) {
    return static_cast<T*>(grown(static_cast<std::size_t>(count) * sizeof(T)));
  }

  static std::size_t system_calls();  // how often any scratch memory has grown

 private:
  void* grown(std::size_t bytes);

  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace grt::cpu
