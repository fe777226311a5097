// The distribution over exits and the loss it weights. A row has few exits, so each is computed in double and from
// logarithms: what is left after many exits keeps its digits, and no probability's logarithm is taken.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/threads.h"
#include "ops/cpu/cpu.h"

namespace grt::cpu {
namespace {

constexpr std::int64_t kRows = 512;  // of a chunk

// ln sigmoid(x)
double log_sigmoid(double x) { return x < 0 ? x - std::log1p(std::exp(x)) : -std::log1p(std::exp(-x)); }

struct ExitProbability {
  double p, log_p;
  double stop, go_on;  // once this exit is reached; 1 and 0 at the last
};

// Calls f(first element, probabilities) for every row of gates (R, S).
template <class T, class F>
void for_rows(const Tensor& gates, F&& f) {
  const std::int64_t exits = gates.shape().last();
  parallel_for(gates.shape().rows(), kRows, [&](std::int64_t begin, std::int64_t end) {
    std::vector<ExitProbability> row(static_cast<std::size_t>(exits));
    for (std::int64_t at = begin * exits; at < end * exits; at += exits) {
      double left = 0;  // ln of the probability of getting here
      for (std::int64_t s = 0; s < exits; ++s) {
        const bool last = s + 1 == exits;
        const double gate = static_cast<double>(gates.data<T>()[at + s]);
        const double stop = last ? 0 : log_sigmoid(gate), go_on = last ? 0 : log_sigmoid(-gate);
        row[s] = {std::exp(left + stop), left + stop, std::exp(stop), last ? 0 : std::exp(go_on)};
        left += go_on;
      }
      f(at, row);
    }
  });
}

template <class T>
void put(const Into& into, std::int64_t at, double value) {
  if (!into) return;
  T& to = into.to.data<T>()[at];
  to = static_cast<T>(into.add ? static_cast<double>(to) + value : value);
}

// w of the exit at `losses`, whose predecessor stands before it.
template <class T>
double going_on(const T* losses) {
  const double gain = std::max(0.0, static_cast<double>(losses[-1]) - static_cast<double>(losses[0]));
  return std::exp(log_sigmoid(50 * (gain - 0.005)));
}

}  // namespace

void CpuKernels::exit_distribution(const Tensor& p, const Tensor& gates) {
  visit_real(gates.dtype(), [&]<class T>() {
    for_rows<T>(gates, [&](std::int64_t at, const std::vector<ExitProbability>& row) {
      for (std::size_t s = 0; s < row.size(); ++s) p.data<T>()[at + s] = static_cast<T>(row[s].p);
    });
  });
}

void CpuKernels::exit_loss(const Tensor& values, const Tensor& gates, const Tensor& losses, double beta) {
  visit_real(gates.dtype(), [&]<class T>() {
    for_rows<T>(gates, [&](std::int64_t at, const std::vector<ExitProbability>& row) {
      double value = 0;
      for (std::size_t s = 0; s < row.size(); ++s)
        value += row[s].p * (static_cast<double>(losses.data<T>()[at + s]) + beta * row[s].log_p);
      values.data<T>()[at / static_cast<std::int64_t>(row.size())] = static_cast<T>(value);
    });
  });
}

// The derivative stands above exit_loss() in ops/exit.cpp; exits from the last to the first, `later` sums those passed.
void CpuKernels::exit_loss_backward(const Into& dgates, const Into& dlosses, const Tensor& dy, const Tensor& gates,
                                    const Tensor& losses, double beta) {
  if (!dgates && !dlosses) return;
  visit_real(gates.dtype(), [&]<class T>() {
    const double share = static_cast<double>(dy.data<T>()[0]) / static_cast<double>(gates.shape().rows());
    for_rows<T>(gates, [&](std::int64_t at, const std::vector<ExitProbability>& row) {
      double later = 0;
      for (std::size_t s = row.size(); s-- > 0;) {
        const auto& [p, log_p, stop, go_on] = row[s];
        const double cost = p * (static_cast<double>(losses.data<T>()[at + s]) + beta * log_p);
        put<T>(dlosses, at + s, share * p);
        put<T>(dgates, at + s, s + 1 == row.size() ? 0 : share * (go_on * cost - stop * later));
        later += cost;
      }
    });
  });
}

void CpuKernels::exit_gate_loss(const Tensor& values, const Tensor& gates, const Tensor& losses) {
  visit_real(gates.dtype(), [&]<class T>() {
    const std::int64_t exits = gates.shape().last();
    parallel_for(gates.shape().rows(), kRows, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        double value = 0;
        for (std::int64_t at = r * exits + 1; at < (r + 1) * exits; ++at) {
          const double gate = static_cast<double>(gates.data<T>()[at]), w = going_on(losses.data<T>() + at);
          value -= w * log_sigmoid(-gate) + (1 - w) * log_sigmoid(gate);
        }
        values.data<T>()[r] = static_cast<T>(value);
      }
    });
  });
}

void CpuKernels::exit_gate_loss_backward(const Into& dgates, const Tensor& dy, const Tensor& gates,
                                         const Tensor& losses) {
  if (!dgates) return;
  visit_real(gates.dtype(), [&]<class T>() {
    const std::int64_t exits = gates.shape().last();
    const double share = static_cast<double>(dy.data<T>()[0]) / static_cast<double>(gates.numel());
    parallel_for(gates.shape().rows(), kRows, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t at = begin * exits; at < end * exits; ++at) {
        const double stop = std::exp(log_sigmoid(static_cast<double>(gates.data<T>()[at])));
        put<T>(dgates, at, at % exits == 0 ? 0 : share * (stop - 1 + going_on(losses.data<T>() + at)));
      }
    });
  });
}

}  // namespace grt::cpu
