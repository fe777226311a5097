// A tensor is a dense row-major array on a device: shape, type and a shared block of memory.
// It has no strides and no gradient. A view is (a run of rows of) the same block under another shape.
#pragma once

#include <memory>
#include <span>

#include "core/device.h"
#include "core/dtype.h"
#include "core/shape.h"

namespace grt {

class Tensor {
 public:
  Tensor() = default;  // "no tensor": tests false
  static Tensor empty(Shape shape, DType dtype, Device& device);
  static Tensor zeros(Shape shape, DType dtype, Device& device);
  static Tensor like(const Tensor& t) { return empty(t.shape_, t.dtype_, *t.device_); }
  template <class T>
  static Tensor from(Shape shape, std::span<const T> values, Device& device);  // copies from host memory

  explicit operator bool() const { return block_ != nullptr; }
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  Device& device() const { return *device_; }
  std::int64_t dim(int i) const { return shape_[i]; }
  std::int64_t numel() const { return shape_.numel(); }
  std::size_t bytes() const {
    return bytes_of(dtype_, static_cast<std::size_t>(shape_.rows()), static_cast<std::size_t>(shape_.last()));
  }

  void* raw() const { return block_.get(); }
  template <class T>
  T* data() const {
    return static_cast<T*>(block_.get());
  }

  // Of a packed tensor there are no views but itself.
  Tensor view(Shape shape) const;                             // same elements, other shape; throws unless numel agrees
  Tensor rows(std::int64_t begin, std::int64_t count) const;  // (count, last): rows of the (rows, last) matrix
  Tensor range(std::int64_t begin, Shape shape) const;        // elements from begin on, as `shape`
  Tensor place(std::int64_t begin, Shape shape,
               DType dtype) const;                        // another tensor in this memory, from an element on
  Tensor clone() const;                                   // a copy in memory of its own
  bool shared() const { return block_.use_count() > 1; }  // does another tensor see this memory?

 private:
  std::shared_ptr<void> block_;
  Shape shape_;
  Device* device_ = nullptr;
  DType dtype_ = DType::f32;
};

template <class T>
Tensor Tensor::from(Shape shape, std::span<const T> values, Device& device) {
  check(shape.numel() == static_cast<std::int64_t>(values.size()), "tensor: {} values cannot fill {}", values.size(),
        shape);
  Tensor t = empty(shape, dtype_of<T>(), device);
  device.copy(t.raw(), values.data(), t.bytes());
  return t;
}

// Where a kernel writes a result that may have to be added to what is there.
// Tests false where the result is not wanted; the kernel then skips it.
struct Into {
  Tensor to;
  bool add = false;
  explicit operator bool() const { return static_cast<bool>(to); }
};

}  // namespace grt
