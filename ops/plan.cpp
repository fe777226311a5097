// Kernels that take the scratch memory of the real ones, count the FLOPs of products, and do nothing else.
#include "ops/plan.h"

#include <map>
#include <tuple>
#include <utility>

#include "ops/hold.h"
#include "ops/kernels.h"

namespace grt {
namespace {

// op(factor)'s number of rows and of columns.
std::pair<double, double> extents(const Factor& f) {
  const Shape& shape = f.tensor.shape();
  const auto rows = static_cast<double>(shape.rows());
  const auto columns = static_cast<double>(f.columns.count < 0 ? shape.last() - f.columns.begin : f.columns.count);
  return f.transposed ? std::pair{columns, rows} : std::pair{rows, columns};
}

// Of one of attention's products, whose result or factor are the scores: `out` (B, n, C) are the tokens after `past`
// earlier ones, each of which sees all before it and itself.
double attention_product(const Tensor& out, std::int64_t past) {
  return 2 * static_cast<double>(out.numel()) * (static_cast<double>(past) + static_cast<double>(out.dim(1) + 1) / 2);
}

// The memory of what is kept of factors (Kernels::keeps). That of held weights is not given back.
class CountedCopies {
 public:
  explicit CountedCopies(Keeps keeps) : keeps_(keeps) {}
  void hold(const Tensor& weights) {
    holds_ = weights_ && weights_.raw() == weights.raw() ? holds_ + 1 : 1;
    weights_ = weights;
    uses_.clear();
  }
  void let_go() {
    if (--holds_ == 0) weights_ = {};
  }
  Keeps keeps() const { return keeps_; }

  // Panels: taken when a second factor comes for the second time in a pass.
  void use_panels(const Factor& b) {
    if (keeps_ != Keeps::panels || !held(b.tensor)) return;
    const auto [k, n] = extents(b);
    const Place place{b.tensor.raw(), b.transposed, b.columns.begin, b.columns.count};
    if (k * n > static_cast<double>(kMostHeld) || ++uses_[place] != 2 || kept_.contains(place)) return;
    kept_[place] = Tensor::empty({static_cast<std::int64_t>(k * n)}, weights_.dtype(), weights_.device());
  }

  // A copy in bf16, for as long as the result lives.
  Tensor round(const Factor& f) {
    if (keeps_ != Keeps::rounded) return {};
    const Shape& shape = f.tensor.shape();
    const auto copy = [&](std::int64_t columns) {
      return Tensor::empty({shape.rows(), rounded_stride(columns)}, DType::bf16, f.tensor.device());
    };
    if (!held(f.tensor)) return copy(f.columns.count < 0 ? shape.last() - f.columns.begin : f.columns.count);
    Tensor& whole = kept_[{f.tensor.raw(), false, 0, shape.last()}];
    if (!whole) whole = copy(shape.last());
    return whole;
  }

 private:
  using Place = std::tuple<const void*, bool, std::int64_t, std::int64_t>;
  bool held(const Tensor& t) const {
    return weights_ && t.raw() >= weights_.raw() && t.raw() < weights_.data<char>() + weights_.bytes();
  }

  const Keeps keeps_;
  Tensor weights_;
  int holds_ = 0;  // of them, one in another
  std::map<Place, int> uses_;
  std::map<Place, Tensor> kept_;
};

struct CountingKernels final : Kernels {
  explicit CountingKernels(Keeps keeps) : copies(keeps) {}
  double flops = 0;  // of the products
  CountedCopies copies;

  void add(const Into&, const Tensor&, const Tensor&) override {}
  void copy(const Into&, const Tensor&) override {}
  void scale(const Into&, const Tensor&, const Tensor&) override {}
  void lerp(const Into&, const Tensor&, const Tensor&, float) override {}
  void multiply(const Into&, const Tensor&, float) override {}
  void scale_rows(const Into&, const Tensor&, const Tensor&) override {}
  void add_noise(const Tensor&, const Tensor&, float, NoiseKey) override {}
  void truncated_normal(const Tensor&, float, NoiseKey, Scalar<std::int64_t>) override {}
  void silu(const Tensor&, const Tensor&) override {}
  void silu_backward(const Into&, const Tensor&, const Tensor&) override {}
  void gelu(const Tensor&, const Tensor&, Gelu) override {}
  void gelu_backward(const Into&, const Tensor&, const Tensor&, Gelu) override {}
  void put_columns(const Tensor&, std::int64_t, const Tensor&) override {}
  void get_columns(const Into&, const Tensor&, std::int64_t) override {}
  void matmul(const Into& y, Columns, const Factor& a, const Factor& b, const Tensor&) override {
    if (!y) return;
    copies.use_panels(b);
    const Tensor left = copies.round(a), right = copies.round(b);
    multiply(a, b);
  }
  void linear_backward(const Into& dx, const Into& dw, const Tensor& dy, const Tensor& x, const Factor& w) override {
    if (!dx && !dw) return;
    const Tensor left = copies.round({dy});
    if (dx) {
      copies.use_panels(w);
      const Tensor right = copies.round(w);
      multiply({dy}, w);
    }
    if (dw) {
      copies.use_panels({x});
      const Tensor right = copies.round({x});
      multiply({dy, true}, {x});
    }
  }
  void hold(const Tensor& weights) override { copies.hold(weights); }
  void let_go() override { copies.let_go(); }
  Keeps keeps() const override { return copies.keeps(); }
  void pack(const Tensor&, const Tensor&) override {}
  void sum_rows(const Into&, const Tensor&) override {}
  void sum(const Into&, const Tensor&, double) override {}
  void sum_squares(const Tensor&, const Tensor&) override {}
  std::int64_t count_not_finite(const Tensor&) override { return 0; }
  void layernorm(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                 float) override {}
  void layernorm_backward(const Into&, const Into&, const Into&, const Tensor&, const Tensor&, const Tensor&,
                          const Tensor&, const Tensor&) override {}
  void add_layernorm(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                     const Tensor&, const Tensor&, float) override {}
  void embedding(const Tensor&, const Tensor&, const Tensor&, const Tensor&, Scalar<std::int64_t>) override {}
  void embedding_backward(const Into&, const Into&, const Tensor&, const Tensor&, std::int64_t) override {}
  void attention(const Tensor& out, const Tensor&, const Tensor&, int) override {
    flops += 2 * attention_product(out, 0);  // the scores; their product with v
  }
  void attention_backward(const Into& dqkv, const Tensor&, const Tensor&, const Tensor& out, const Tensor&,
                          int) override {
    if (dqkv) flops += 5 * attention_product(out, 0);  // the scores once more; those of dout; dq, dk, dv
  }
  void attention_cached(const Tensor& out, const Tensor&, const Tensor&, const Tensor&, Scalar<std::int64_t> past,
                        int) override {
    flops += 2 * attention_product(out, past.known());
  }
  void cross_entropy(const Tensor&, const Into&, const Tensor&, const Tensor&, std::int64_t, double) override {}
  void distillation(const Tensor&, const Into&, const Tensor&, const Tensor&, const Tensor&, std::int64_t,
                    const Distillation&, double) override {}
  void bce_with_logits(const Tensor&, const Tensor&, const Tensor&) override {}
  void bce_with_logits_backward(const Into&, const Tensor&, const Tensor&, const Tensor&, double) override {}
  void top_k(const Tensor&, const Tensor&, const Tensor&) override {}
  void gather_rows(const Tensor&, const Tensor&, const Tensor&) override {}
  void gather_rows_backward(const Into&, const Tensor&, const Tensor&) override {}
  void gated_scatter(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, float) override {}
  void gated_scatter_backward(const Into&, const Into&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                              float) override {}
  void gate_mix(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const GateNoise&) override {}
  void gate_mix_backward(const Into&, const Into&, const Into&, const Tensor&, const Tensor&, const Tensor&,
                         const Tensor&, const GateNoise&) override {}
  void gate_step(const NextState&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const GateNoise&,
                 const StateNoise&, float) override {}
  void gate_step_backward(const Into&, const Into&, const Into&, const Into&, const NextStateGradients&,
                          const NextState&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                          const GateNoise&) override {}
  void exit_distribution(const Tensor&, const Tensor&) override {}
  void exit_loss(const Tensor&, const Tensor&, const Tensor&, double) override {}
  void exit_loss_backward(const Into&, const Into&, const Tensor&, const Tensor&, const Tensor&, double) override {}
  void exit_gate_loss(const Tensor&, const Tensor&, const Tensor&) override {}
  void exit_gate_loss_backward(const Into&, const Tensor&, const Tensor&, const Tensor&) override {}
  void clip_scale(const Tensor&, const Tensor&, double) override {}
  void adamw(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const AdamW&) override {}

 private:
  void multiply(const Factor& a, const Factor& b) {
    const auto [rows, inner] = extents(a);
    flops += 2 * rows * inner * extents(b).second;
  }
};

class CountingDevice final : public PlanDevice {
 public:
  explicit CountingDevice(Keeps keeps) : kernels_(keeps) {}
  ~CountingDevice() override { release_idle(); }
  std::string name() const override { return "plan"; }
  Kernels& kernels() override { return kernels_; }
  double product_flops() const override { return kernels_.flops; }
  void sync() override {}
  void zero(void*, std::size_t) override {}
  void copy(void*, const void*, std::size_t) override {}

 protected:
  // Addresses that are never read: each block gets a stretch of its own.
  void* system_alloc(std::size_t bytes) override {
    return reinterpret_cast<void*>(next_ += (bytes + 4095) / 4096 * 4096);
  }
  void system_free(void*, std::size_t) noexcept override {}

 private:
  CountingKernels kernels_;
  std::uintptr_t next_ = 1 << 20;
};

}  // namespace

std::unique_ptr<PlanDevice> open_plan(Keeps keeps) { return std::make_unique<CountingDevice>(keeps); }

}  // namespace grt
