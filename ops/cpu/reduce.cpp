// Reductions, in an order that depends on shapes alone.
#include "ops/cpu/reduce.h"

#include <vector>

#include "ops/cpu/cpu.h"

namespace grt::cpu {
namespace {

constexpr std::int64_t kChunk = 16384;  // elements

// The sum over chunks, in their order, of f(first, last), which sums the elements between two pointers.
template <class T, class F>
auto sum_chunks(const Tensor& x, F f) {
  const std::int64_t n = x.numel();
  std::vector<decltype(f(x.data<T>(), x.data<T>()))> parts(static_cast<std::size_t>((n + kChunk - 1) / kChunk));
  parallel_for(n, kChunk, [&](std::int64_t begin, std::int64_t end) {
    parts[static_cast<std::size_t>(begin / kChunk)] = f(x.data<T>() + begin, x.data<T>() + end);
  });
  decltype(f(x.data<T>(), x.data<T>())) total = 0;
  for (auto part : parts) total += part;
  return total;
}

// Sum of f(double(x)), in eight interleaved sums.
template <class T, class F>
double sum_of_each(const T* x, const T* end, F f) {
  constexpr int kSums = 8;
  double sums[kSums] = {};
  for (; x + kSums <= end; x += kSums)
    for (int k = 0; k < kSums; ++k) sums[k] += f(static_cast<double>(x[k]));
  for (int k = 0; x + k < end; ++k) sums[k] += f(static_cast<double>(x[k]));
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

}  // namespace

void CpuKernels::sum_rows(const Into& y, const Tensor& x) {
  if (!y) return;
  visit_real(x.dtype(), [&]<class T>() {
    const std::int64_t rows = x.shape().rows(), width = x.shape().last(), block = row_block(rows);
    const Tensor parts = Tensor::empty({row_blocks(rows), width}, x.dtype(), x.device());
    parallel_for(rows, block, [&](std::int64_t begin, std::int64_t end) {
      add_rows(parts.data<T>() + begin / block * width, false, x.data<T>() + begin * width, end - begin, width, width);
    });
    add_blocks(y, parts.data<T>(), row_blocks(rows), width);
  });
}

void CpuKernels::sum(const Into& y, const Tensor& x, double factor) {
  if (!y) return;
  visit_real(x.dtype(), [&]<class T>() {
    const double total = sum_chunks<T>(
        x, [](const T* begin, const T* end) { return sum_of_each(begin, end, [](double a) { return a; }); });
    T* const to = y.to.data<T>();
    *to = static_cast<T>(factor * total + (y.add ? static_cast<double>(*to) : 0.0));
  });
}

void CpuKernels::sum_squares(const Tensor& y, const Tensor& x) {
  *y.data<double>() = visit_real(x.dtype(), [&]<class T>() {
    return sum_chunks<T>(
        x, [](const T* begin, const T* end) { return sum_of_each(begin, end, [](double a) { return a * a; }); });
  });
}

std::int64_t CpuKernels::count_not_finite(const Tensor& x) {
  return visit_real(x.dtype(), [&]<class T>() {
    return sum_chunks<T>(x, [](const T* begin, const T* end) {
      std::int64_t count = 0;
      for (const T* p = begin; p < end; ++p) count += !(*p - *p == 0);  // infinity - infinity is NaN
      return count;
    });
  });
}

}  // namespace grt::cpu
