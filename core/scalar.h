// A number that work on a device needs: a plain one, or the place in the device's memory where it lies when the work is
// done. A graph (core/graphs.h) has the plain ones of its making for ever; the others are read again by each replay.
#pragma once

namespace grt {

template <class T>
class Scalar {
 public:
  constexpr Scalar() = default;
  constexpr Scalar(T value) : value_(value) {}  // implicit on purpose
  // `place` is in the memory of the device that does the work; `value`, what is there now, serves checks on the host.
  constexpr Scalar(const T* place, T value) : value_(value), place_(place) {}

  constexpr T get() const { return place_ ? *place_ : value_; }  // for kernels
  constexpr T known() const { return value_; }                   // for the host
  constexpr bool lives() const { return place_ != nullptr; }     // does it change from replay to replay?

 private:
  T value_ = {};
  const T* place_ = nullptr;
};

}  // namespace grt
