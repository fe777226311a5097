// Initial values are drawn in f64 and rounded after that: every type holds the same numbers.
#include "nn/params.h"

#include <algorithm>

#include "core/philox.h"
#include "core/threads.h"
#include "ops/kernels.h"

namespace grt {
namespace {

constexpr std::uint32_t kInitSite = 0x696e6974;  // "init"

// Elements of the flat blocks are aligned to 16, a cache line of f32.
constexpr std::int64_t aligned(std::int64_t n) { return (n + 15) / 16 * 16; }

}  // namespace

const Param& Params::declare(std::string name, Shape shape, Init init, std::int64_t used_rows) {
  check(!find(name), "parameter {} is declared twice", name);
  params_.push_back({std::move(name), shape, init, used_rows < 0 ? shape[0] : used_rows});
  return params_.back();
}

const Param* Params::find(const std::string& name) const {
  const auto it = std::find_if(params_.begin(), params_.end(), [&](const Param& p) { return p.name == name; });
  return it == params_.end() ? nullptr : &*it;
}

std::int64_t Params::bytes() const {
  std::int64_t n = 0;
  for (const Param& p : params_) n += static_cast<std::int64_t>(p.var.value().bytes());
  return n;
}

std::int64_t Params::count() const {
  std::int64_t n = 0;
  for (const Param& p : params_) n += p.shape.numel();
  return n;
}

void Params::pack_matrices(DType type, const Param* but) {
  for (Param& p : params_)
    if (p.decayed() && &p != but && p.shape[0] >= static_cast<std::int64_t>(kPanelRows)) p.packed = type;
}

void Params::allocate(Device& device, DType dtype) {
  extent_ = 0;
  for (const bool decayed : {true, false}) {
    for (Param& p : params_) {
      if (p.packed || p.decayed() != decayed) continue;
      p.offset = extent_;
      extent_ += aligned(p.shape.numel());
    }
    if (decayed) decayed_extent_ = extent_;
  }
  values_ = Tensor::zeros({extent_}, dtype, device);
  allocate_packed(device);
  for (Param& p : params_)
    p.var = Var(p.packed ? packed_.place(p.offset, p.shape, *p.packed) : values_.range(p.offset, p.shape));
}

void Params::allocate_packed(Device& device) {
  constexpr std::size_t kWord = size_of(DType::i32);
  std::int64_t words = 0;
  for (Param& p : params_) {
    if (!p.packed) continue;
    p.offset = words;
    words += static_cast<std::int64_t>(
        bytes_of(*p.packed, static_cast<std::size_t>(p.shape.rows()), static_cast<std::size_t>(p.shape.last())) /
        kWord);
  }
  packed_ = Tensor::zeros({words}, DType::i32, device);
}

void Params::fill(const Param& p, const std::function<void(const Tensor&)>& write, const std::string& from) const {
  if (!p.packed) return write(p.var.value());
  Kernels& kernels = values_.device().kernels();
  const Tensor whole = Tensor::empty(p.shape, values_.dtype(), values_.device());
  write(whole);
  const std::int64_t bad = kernels.count_not_finite(whole);
  check(bad == 0, "{}{}{} {}: {} of {} values are NaN or infinite, so it cannot be {}", from, from.empty() ? "" : ": ",
        p.name, p.shape, bad, whole.numel(), name_of(*p.packed));
  kernels.pack(p.var.value(), whole);
}

void Params::allocate_gradients(std::string_view prefix) {
  for (const Param& p : params_)
    check(!p.packed, "{} {}: it is {}, which has no gradient: weights are packed for inference alone", p.name, p.shape,
          name_of(*p.packed));
  gradients_ = Tensor::zeros({extent_}, values_.dtype(), values_.device());
  trained_.clear();
  for (const bool decayed : {true, false}) {
    for (Param& p : params_) {
      if (p.decayed() != decayed) continue;
      const Tensor value = p.var.value();
      p.var = p.name.starts_with(prefix) ? Var::parameter(value, gradients_.range(p.offset, p.shape)) : Var(value);
      if (!p.var.wants_grad()) continue;
      const bool joins = !trained_.empty() && trained_.back().decayed == decayed &&
                         trained_.back().begin + trained_.back().count == p.offset;
      if (!joins) trained_.push_back({p.offset, 0, decayed});
      trained_.back().count += aligned(p.shape.numel());
    }
  }
}

void Params::initialize(std::uint64_t seed) {
  for (const Param& p : params_) {
    const std::int64_t columns = p.shape.numel() / p.shape[0], used = p.used_rows * columns;
    const NoiseKey key{seed, site_of(p.name), kInitSite};
    std::vector<double> host(p.shape.numel(), 0.0);
    parallel_for(used, 1 << 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        host[i] = p.init.mean + (p.init.std != 0 ? p.init.std * random_normal(key, i) : 0);
    });
    fill(p, [&](const Tensor& to) {
      visit_real(to.dtype(), [&]<class T>() {
        const std::vector<T> converted(host.begin(), host.end());
        to.device().copy(to.raw(), converted.data(), converted.size() * sizeof(T));
        to.device().sync();
      });
    });
  }
}

void Params::clear_gradients() {
  for (const Param& p : params_) p.var.clear_grad();
}

void Params::complete_gradients() {
  for (const Param& p : params_)
    if (!p.var.has_grad()) p.var.sink().accumulate();
}

}  // namespace grt
