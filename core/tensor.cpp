// Views share the block by a pointer that owns it, so memory lives as long as its last view.
#include "core/tensor.h"

namespace grt {

Tensor Tensor::empty(Shape shape, DType dtype, Device& device) {
  Tensor t;
  t.shape_ = shape;
  t.dtype_ = dtype;
  t.device_ = &device;
  const std::size_t bytes = t.bytes();
  t.block_ = std::shared_ptr<void>(device.take(bytes), [&device, bytes](void* p) { device.give_back(p, bytes); });
  return t;
}

Tensor Tensor::zeros(Shape shape, DType dtype, Device& device) {
  Tensor t = empty(shape, dtype, device);
  device.zero(t.raw(), t.bytes());
  return t;
}

Tensor Tensor::view(Shape shape) const {
  check(shape.numel() == numel(), "view: {} has {} elements, {} has {}", shape, shape.numel(), shape_, numel());
  check(!is_packed(dtype_) || shape == shape_, "view: {} {} has no other shape", name_of(dtype_), shape_);
  Tensor t = *this;
  t.shape_ = shape;
  return t;
}

Tensor Tensor::rows(std::int64_t begin, std::int64_t count) const {
  check(begin >= 0 && count >= 0 && begin + count <= shape_.rows(), "rows: {}..{} lie outside {}", begin, begin + count,
        shape_);
  return range(begin * shape_.last(), {count, shape_.last()});
}

Tensor Tensor::range(std::int64_t begin, Shape shape) const {
  check(begin >= 0 && begin + shape.numel() <= numel(), "range: {} from {} on lies outside {}", shape, begin, shape_);
  check(!is_packed(dtype_), "range: {} {} has no parts", name_of(dtype_), shape_);
  Tensor t = *this;
  t.shape_ = shape;
  t.block_ = std::shared_ptr<void>(block_, static_cast<char*>(block_.get()) + begin * size_of(dtype_));
  return t;
}

Tensor Tensor::place(std::int64_t begin, Shape shape, DType dtype) const {
  Tensor t = range(begin, {});
  t.shape_ = shape;
  t.dtype_ = dtype;
  check(static_cast<std::size_t>(begin) * size_of(dtype_) + t.bytes() <= bytes(),
        "place: {} {} from {} on lies outside {}", name_of(dtype), shape, begin, shape_);
  return t;
}

Tensor Tensor::clone() const {
  Tensor t = like(*this);
  device_->copy(t.raw(), raw(), bytes());
  return t;
}

}  // namespace grt
