// The distribution over exits and the loss it weights. A row has few exits, so a thread computes one, in double and
// from logarithms: what is left after many exits keeps its digits, and no probability's logarithm is taken.
#include "cuda/device.cuh"

namespace grt::cuda {
namespace {

// ln sigmoid(x)
__device__ double log_sigmoid(double x) { return x < 0 ? x - log1p(exp(x)) : -log1p(exp(-x)); }

struct Exit {
  double p, log_p;
  double stop, go_on;  // once it is reached; 1 and 0 at the last
};

// `left`: ln of the probability of getting to exit s, afterwards of getting past it.
__device__ Exit exit_at(const float* gates, std::int64_t s, std::int64_t exits, double& left) {
  const bool last = s + 1 == exits;
  const double gate = static_cast<double>(gates[s]);
  const double stop = last ? 0 : log_sigmoid(gate), go_on = last ? 0 : log_sigmoid(-gate);
  const Exit e{exp(left + stop), left + stop, exp(stop), last ? 0 : exp(go_on)};
  left += go_on;
  return e;
}

// w of the exit at `losses`, whose predecessor stands before it.
__device__ double going_on(const float* losses) {
  const double gain = fmax(0.0, static_cast<double>(losses[-1]) - static_cast<double>(losses[0]));
  return exp(log_sigmoid(50 * (gain - 0.005)));
}

__global__ void exit_distribution_kernel(float* p, const float* gates, std::int64_t rows, std::int64_t exits) {
  const std::int64_t row = global_index();
  if (row >= rows) return;
  double left = 0;
  for (std::int64_t s = 0; s < exits; ++s)
    p[row * exits + s] = static_cast<float>(exit_at(gates + row * exits, s, exits, left).p);
}

__global__ void exit_loss_kernel(float* values, const float* gates, const float* losses, std::int64_t rows,
                                 std::int64_t exits, double beta) {
  const std::int64_t row = global_index();
  if (row >= rows) return;
  double left = 0, value = 0;
  for (std::int64_t s = 0; s < exits; ++s) {
    const Exit e = exit_at(gates + row * exits, s, exits, left);
    value += e.p * (static_cast<double>(losses[row * exits + s]) + beta * e.log_p);
  }
  values[row] = static_cast<float>(value);
}

// The derivative stands above exit_loss() in ops/exit.cpp; exits from the last to the first, `later` sums those passed.
// The way to an exit is computed anew for each: subtracting logarithms again would lose digits.
__global__ void exit_loss_backward_kernel(float* dgates, bool add_gates, float* dlosses, bool add_losses,
                                          const float* dy, const float* gates, const float* losses, std::int64_t rows,
                                          std::int64_t exits, double beta) {
  const std::int64_t row = global_index();
  if (row >= rows) return;
  const double share = static_cast<double>(dy[0]) / static_cast<double>(rows);
  const float* const gate = gates + row * exits;
  double later = 0;
  for (std::int64_t s = exits - 1; s >= 0; --s) {
    double left = 0;
    for (std::int64_t q = 0; q < s; ++q) left += log_sigmoid(-static_cast<double>(gate[q]));
    const Exit e = exit_at(gate, s, exits, left);
    const double cost = e.p * (static_cast<double>(losses[row * exits + s]) + beta * e.log_p);
    if (dlosses) put(dlosses + row * exits + s, add_losses, static_cast<float>(share * e.p));
    if (dgates)
      put(dgates + row * exits + s, add_gates,
          s + 1 == exits ? 0.0f : static_cast<float>(share * (e.go_on * cost - e.stop * later)));
    later += cost;
  }
}

__global__ void exit_gate_loss_kernel(float* values, const float* gates, const float* losses, std::int64_t rows,
                                      std::int64_t exits) {
  const std::int64_t row = global_index();
  if (row >= rows) return;
  double value = 0;
  for (std::int64_t at = row * exits + 1; at < (row + 1) * exits; ++at) {
    const double gate = static_cast<double>(gates[at]), w = going_on(losses + at);
    value -= w * log_sigmoid(-gate) + (1 - w) * log_sigmoid(gate);
  }
  values[row] = static_cast<float>(value);
}

__global__ void exit_gate_loss_backward_kernel(float* dgates, bool add, const float* dy, const float* gates,
                                               const float* losses, std::int64_t n, std::int64_t exits) {
  const std::int64_t at = global_index();
  if (at >= n) return;
  const double share = static_cast<double>(dy[0]) / static_cast<double>(n);
  const double stop = exp(log_sigmoid(static_cast<double>(gates[at])));
  put(dgates + at, add, at % exits == 0 ? 0.0f : static_cast<float>(share * (stop - 1 + going_on(losses + at))));
}

}  // namespace

void CudaKernels::exit_distribution(const Tensor& p, const Tensor& gates) {
  const std::int64_t rows = gates.shape().rows();
  launch(stream, "exit_distribution", exit_distribution_kernel, blocks_of(rows, kBlock), kBlock, 0, f32(p), f32(gates),
         rows, gates.shape().last());
}

void CudaKernels::exit_loss(const Tensor& values, const Tensor& gates, const Tensor& losses, double beta) {
  const std::int64_t rows = gates.shape().rows();
  launch(stream, "exit_loss", exit_loss_kernel, blocks_of(rows, kBlock), kBlock, 0, f32(values), f32(gates),
         f32(losses), rows, gates.shape().last(), beta);
}

void CudaKernels::exit_loss_backward(const Into& dgates, const Into& dlosses, const Tensor& dy, const Tensor& gates,
                                     const Tensor& losses, double beta) {
  if (!dgates && !dlosses) return;
  const std::int64_t rows = gates.shape().rows();
  launch(stream, "exit_loss_backward", exit_loss_backward_kernel, blocks_of(rows, kBlock), kBlock, 0, f32(dgates.to),
         dgates.add, f32(dlosses.to), dlosses.add, f32(dy), f32(gates), f32(losses), rows, gates.shape().last(), beta);
}

void CudaKernels::exit_gate_loss(const Tensor& values, const Tensor& gates, const Tensor& losses) {
  const std::int64_t rows = gates.shape().rows();
  launch(stream, "exit_gate_loss", exit_gate_loss_kernel, blocks_of(rows, kBlock), kBlock, 0, f32(values), f32(gates),
         f32(losses), rows, gates.shape().last());
}

void CudaKernels::exit_gate_loss_backward(const Into& dgates, const Tensor& dy, const Tensor& gates,
                                          const Tensor& losses) {
  if (!dgates) return;
  launch(stream, "exit_gate_loss_backward", exit_gate_loss_backward_kernel, blocks_of(gates.numel(), kBlock), kBlock, 0,
         f32(dgates.to), dgates.add, f32(dy), f32(gates), f32(losses), gates.numel(), gates.shape().last());
}

}  // namespace grt::cuda
