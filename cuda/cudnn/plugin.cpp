// libgrt_cudnn.so: attention by cuDNN. The graphs of a shape are planned once.
#include <cmath>
#include <limits>
#include <map>

#include "core/error.h"
#include "cuda/cudnn/attention.h"

namespace grt::cudnn {
namespace {

using cuda::Pass, cuda::SdpaShape;

constexpr std::size_t kBf16Bytes = 2;

// `count` C elements further.
template <class T>
T* further(T* p, std::int64_t count, const SdpaShape& s) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return static_cast<Byte*>(p) + static_cast<std::size_t>(count * s.heads * s.width) * kBf16Bytes;
}

class CudnnSdpa final : public cuda::Sdpa {
 public:
  explicit CudnnSdpa(cudaStream_t stream) {
    check_status(cudnnCreate(&handle_), "starting it");
    check_status(cudnnSetStream(handle_, stream), "choosing a stream");
  }
  ~CudnnSdpa() override {
    graphs_.clear();
    cudnnDestroy(handle_);
  }
  CudnnSdpa(const CudnnSdpa&) = delete;
  CudnnSdpa& operator=(const CudnnSdpa&) = delete;

  std::int64_t scratch(Pass pass, const SdpaShape& shape, std::string* reason) override {
    const Planned& p = planned(pass, shape);
    if (!p.graph) {
      *reason = p.reason;
      return -1;
    }
    return p.graph->scratch() + (pass == Pass::backward ? delta_bytes(shape) : 0);
  }

  void forward(const SdpaShape& s, void* out, float* lse, const void* qkv, void* scratch) override {
    const float scale = scale_of(s);
    run(Pass::forward, s,
        {{kQ, qkv},
         {kK, further(qkv, 1, s)},
         {kV, further(qkv, 2, s)},
         {kOut, out},
         {kLse, lse},
         {kScale, &scale},
         {kMinusInfinity, &kMasked}},
        scratch);
  }

  void backward(const SdpaShape& s, void* dqkv, const void* dout, const void* qkv, const void* out, const float* lse,
                void* scratch) override {
    const float scale = scale_of(s), one = 1;
    run(Pass::backward, s,
        {{kQ, qkv},
         {kK, further(qkv, 1, s)},
         {kV, further(qkv, 2, s)},
         {kOut, out},
         {kLse, lse},
         {kDout, dout},
         {kDq, dqkv},
         {kDk, further(dqkv, 1, s)},
         {kDv, further(dqkv, 2, s)},
         {kDelta, scratch},
         {kScale, &scale},
         {kMinusInfinity, &kMasked},
         {kOne, &one}},
        static_cast<char*>(scratch) + delta_bytes(s));
  }

 private:
  struct Planned {
    std::unique_ptr<Graph> graph;  // or null, and
    std::string reason;
  };
  static constexpr float kMasked = -std::numeric_limits<float>::infinity();

  static float scale_of(const SdpaShape& s) { return 1 / std::sqrt(static_cast<float>(s.width)); }
  static std::int64_t delta_bytes(const SdpaShape& s) {
    return (s.batch * s.heads * s.time * 4 + 255) / 256 * 256;  // what lies behind is aligned for cuDNN
  }

  const Planned& planned(Pass pass, const SdpaShape& shape) {
    const auto [place, fresh] = graphs_.try_emplace({pass, shape});
    if (!fresh) return place->second;
    try {
      check(shape.width % 8 == 0, "cuDNN takes heads of a multiple of 8 columns, not {}", shape.width);
      Graph g = pass == Pass::forward ? attention_graph(shape) : attention_backward_graph(shape);
      g.plan({handle_, nullptr});
      place->second.graph = std::make_unique<Graph>(std::move(g));
    } catch (const Error& e) {
      place->second.reason = e.what();
    }
    return place->second;
  }

  void run(Pass pass, const SdpaShape& shape, std::initializer_list<std::pair<Uid, const void*>> tensors,
           void* scratch) {
    std::vector<Uid> uids;
    std::vector<const void*> addresses;
    for (const auto& [uid, address] : tensors) {
      uids.push_back(uid);
      addresses.push_back(address);
    }
    planned(pass, shape).graph->run(handle_, uids, addresses, scratch);
  }

  cudnnHandle_t handle_ = nullptr;
  std::map<std::pair<Pass, SdpaShape>, Planned> graphs_;
};

}  // namespace
}  // namespace grt::cudnn

extern "C" {

[[gnu::visibility("default")]] const char* grt_cudnn_interface() { return GRT_INTERFACE; }

[[gnu::visibility("default")]] grt::cuda::Sdpa* grt_cudnn_open(cudaStream_t stream) {
  return new grt::cudnn::CudnnSdpa(stream);
}
}
