// Attention by a library of the vendor's, which not every machine has: libgrt_cudnn.so (cuda/cudnn/) fulfils this, and
// is opened when a first attention could be computed with it.
#pragma once

#include <cuda_runtime_api.h>

#include <compare>
#include <cstdint>
#include <memory>
#include <set>
#include <string>

namespace grt::cuda {

enum class Pass { forward, backward };

struct SdpaShape {
  std::int64_t batch, time, heads, width;  // of a head
  auto operator<=>(const SdpaShape&) const = default;
};

// Causal self-attention of bf16 tensors as ops/kernels.h lays them out: qkv, dqkv (B, T, 3C), out, dout (B, T, C); lse
// (B, H, T) is f32. Everything is enqueued on one stream, and gives the same bits every time.
class Sdpa {
 public:
  virtual ~Sdpa() = default;
  // The bytes of scratch that a pass needs; -1 where it cannot be computed, with the reason.
  virtual std::int64_t scratch(Pass pass, const SdpaShape& shape, std::string* reason) = 0;
  virtual void forward(const SdpaShape& shape, void* out, float* lse, const void* qkv, void* scratch) = 0;
  virtual void backward(const SdpaShape& shape, void* dqkv, const void* dout, const void* qkv, const void* out,
                        const float* lse, void* scratch) = 0;
};

// For work on a stream of the current device. Throws Error where there is none.
std::unique_ptr<Sdpa> open_sdpa(cudaStream_t stream);

// Whether attention in bf16 is a library's or this backend's own: GRT_ATTENTION in the environment is cudnn or own;
// without it the library's where there is one that can.
class SdpaChoice {
 public:
  // The library and the bytes of scratch that it wants, or null. Throws Error where the environment wants what cannot
  // be.
  Sdpa* find(Pass pass, const SdpaShape& shape, cudaStream_t stream, std::int64_t* scratch);

  // Of heads for which the library has computed what this backend does (attention_choice.cu).
  std::set<std::int64_t> verified_widths;

 private:
  void seek(cudaStream_t stream);

  std::unique_ptr<Sdpa> library_;
  bool sought_ = false, forced_ = false;
};

}  // namespace grt::cuda
