// What the kernel tests share: inputs of either type, results between sentinels, both ways of an Into, and the promise
// that the number of threads changes no bit. References are plain loops in double, written out in each test.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/threads.h"
#include "ops/kernels.h"
#include "tests/support.h"

namespace grt::test {

using Values = std::vector<double>;

inline constexpr DType kReals[] = {DType::f32, DType::f64};

inline Kernels& kernels() { return cpu().kernels(); }

// Rounding of the type, times what a sum over some hundred terms may gather.
inline double tolerance(DType type) { return type == DType::f32 ? 1e-5 : 1e-12; }

inline Tensor tensor(Shape shape, const Values& v, DType type = DType::f32) {
  if (type == DType::f64) return Tensor::from<double>(shape, v, cpu());
  const std::vector<float> narrow(v.begin(), v.end());
  return Tensor::from<float>(shape, narrow, cpu());
}
inline Tensor integers(Shape shape, const std::vector<std::int32_t>& v) {
  return Tensor::from<std::int32_t>(shape, v, cpu());
}

// The numbers of nested JSON lists, row-major.
inline void append_numbers(const Json& json, Values& to) {
  if (json.is_array())
    for (const Json& item : json) append_numbers(item, to);
  else
    to.push_back(json.get<double>());
}
inline Values numbers(const Json& json) {
  Values v;
  append_numbers(json, v);
  return v;
}
inline Json reference(const std::string& name) { return read_json(fixture("modules.json").string()).at(name); }

// max |got - expected| / max |expected|; infinite where a NaN came.
inline double relative_error(const Values& got, const Values& expected) {
  REQUIRE(got.size() == expected.size());
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(got[i] - expected[i]);
    worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
    largest = std::max(largest, std::abs(expected[i]));
  }
  return largest == 0 ? worst : worst / largest;
}

// Room for a result between sentinels, filled with `fill`.
class Guarded {
 public:
  Guarded(Shape shape, DType type, double fill)
      : all_(tensor({shape.numel() + 2 * kMargin}, Values(shape.numel() + 2 * kMargin, fill), type)),
        inside_(all_.range(kMargin, shape)),
        fill_(fill) {}
  const Tensor& inside() const { return inside_; }
  bool intact() const {
    const Values v = values(all_);
    const auto same = [&](double x) { return x == fill_ || (std::isnan(x) && std::isnan(fill_)); };
    return std::all_of(v.begin(), v.begin() + kMargin, same) && std::all_of(v.end() - kMargin, v.end(), same);
  }

 private:
  static constexpr std::int64_t kMargin = 16;
  Tensor all_, inside_;
  double fill_;
};

// What run(y) writes into y, a tensor that held NaNs; beyond its ends nothing may change.
inline Values written(Shape shape, DType type, const std::function<void(const Tensor&)>& run) {
  const Guarded y(shape, type, std::numeric_limits<double>::quiet_NaN());
  run(y.inside());
  CHECK(y.intact());
  return values(y.inside());
}

// run(into) must set its tensor to `expected`, add it to what is there, and do nothing where the result is not wanted.
inline void check_into(const Values& expected, Shape shape, DType type, const std::function<void(const Into&)>& run) {
  CAPTURE(std::string(name_of(type)));
  CHECK(relative_error(written(shape, type, [&](const Tensor& y) { run(Into{y}); }), expected) < tolerance(type));
  const Guarded y(shape, type, 2.5);
  run(Into{y.inside(), true});
  CHECK(y.intact());
  Values sum = expected;
  for (double& x : sum) x += 2.5;
  CHECK(relative_error(values(y.inside()), sum) < tolerance(type));
  CHECK_NOTHROW(run(Into{}));
}

// run() returns results computed anew; with 1, 2 and 3 threads they must agree in every bit.
inline void check_thread_independent(const std::function<std::vector<Tensor>()>& run) {
  const int before = thread_count();
  set_thread_count(1);
  const std::vector<Tensor> first = run();
  for (int threads : {2, 3}) {
    set_thread_count(threads);
    const std::vector<Tensor> again = run();
    for (std::size_t i = 0; i < first.size(); ++i) CHECK(same_bits(first[i], again[i]));
  }
  set_thread_count(before);
}

}  // namespace grt::test
