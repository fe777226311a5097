// Shared with the kernels are the random numbers alone (core/philox.h).
#include "ops/reference.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace grt::reference {

using std::int64_t;

Values each(const Tensor& x, const std::function<double(double)>& f) {
  Values y(x.numel());
  for (int64_t i = 0; i < x.numel(); ++i) y[i] = f(x.data<double>()[i]);
  return y;
}

Values each(const Tensor& a, const Tensor& b, const std::function<double(double, double)>& f) {
  Values y(a.numel());
  for (int64_t i = 0; i < a.numel(); ++i) y[i] = f(a.data<double>()[i], b.data<double>()[i]);
  return y;
}

double silu(double x) { return x / (1 + std::exp(-x)); }

double gelu(double x, Gelu kind) {
  if (kind == Gelu::erf) return x * 0.5 * (1 + std::erf(x / std::numbers::sqrt2));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

Values truncated_normal(const Shape& shape, float std, const NoiseKey& key, int64_t first) {
  Values y;
  for (int64_t r = 0; r < shape.rows(); ++r)
    for (int64_t c = 0; c < shape.last(); ++c)
      y.push_back(static_cast<double>(std) *
                  static_cast<double>(random_truncated_normal(key, static_cast<std::uint64_t>(first + r),
                                                              static_cast<std::uint64_t>(c))));
  return y;
}

Values concat(const Tensor& a, const Tensor& b) {
  Values y;
  for (int64_t r = 0; r < a.shape().rows(); ++r)
    for (const Tensor& part : {a, b}) {
      const double* row = part.data<double>() + r * part.shape().last();
      y.insert(y.end(), row, row + part.shape().last());
    }
  return y;
}

Values linear(const Tensor& x, const Tensor& w, int64_t begin, const Tensor& plus) {
  const int64_t rows = x.shape().rows(), in = x.shape().last(), out = w.dim(0);
  Values y(rows * out);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t o = 0; o < out; ++o) {
      double sum = plus ? plus.data<double>()[plus.numel() == out ? o : r * out + o] : 0;
      for (int64_t i = 0; i < in; ++i) sum += x.data<double>()[r * in + i] * w.data<double>()[o * w.dim(1) + begin + i];
      y[r * out + o] = sum;
    }
  return y;
}

Values layernorm(const Tensor& x, const Tensor& w, const Tensor& b, double eps) {
  const int64_t width = x.shape().last();
  Values y(x.numel());
  for (int64_t r = 0; r < x.shape().rows(); ++r) {
    const double* row = x.data<double>() + r * width;
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < width; ++i) mean += row[i] / width;
    for (int64_t i = 0; i < width; ++i) variance += (row[i] - mean) * (row[i] - mean) / width;
    for (int64_t i = 0; i < width; ++i)
      y[r * width + i] =
          (row[i] - mean) / std::sqrt(variance + eps) * w.data<double>()[i] + (b ? b.data<double>()[i] : 0);
  }
  return y;
}

Values embedding(const Tensor& tokens, const Tensor& wte, const Tensor& wpe, int64_t first) {
  const int64_t time = tokens.dim(1), width = wte.dim(1);
  Values y;
  for (int64_t i = 0; i < tokens.numel(); ++i)
    for (int64_t c = 0; c < width; ++c)
      y.push_back(wte.data<double>()[tokens.data<std::int32_t>()[i] * width + c] +
                  wpe.data<double>()[(first + i % time) * width + c]);
  return y;
}

namespace {

// The k and v of one head at every position: `past` of them in the cache, the others in qkv.
struct Head {
  const Tensor &qkv, &keys, &values;
  int64_t batch, head, heads, past;

  int64_t size() const { return qkv.shape().last() / (3 * heads); }
  const double* fresh(int which, int64_t t) const {  // which: 0 q, 1 k, 2 v
    return qkv.data<double>() + (batch * qkv.dim(1) + t) * qkv.dim(2) + (which * heads + head) * size();
  }
  const double* cached(const Tensor& cache, int64_t t) const {
    return cache.data<double>() + ((batch * heads + head) * cache.dim(2) + t) * size();
  }
  const double* key(int64_t t) const { return t < past ? cached(keys, t) : fresh(1, t - past); }
  const double* value(int64_t t) const { return t < past ? cached(values, t) : fresh(2, t - past); }

  // softmax(q k^T / sqrt(D)) v of new token t, added to out (D), which is zero.
  void attend(int64_t t, double* out) const {
    const double* q = fresh(0, t);
    Values p(past + t + 1, 0.0);
    for (std::size_t s = 0; s < p.size(); ++s) {
      for (int64_t d = 0; d < size(); ++d) p[s] += q[d] * key(s)[d];
      p[s] /= std::sqrt(static_cast<double>(size()));
    }
    const double largest = *std::max_element(p.begin(), p.end());
    double total = 0;
    for (double& x : p) total += x = std::exp(x - largest);
    for (std::size_t s = 0; s < p.size(); ++s)
      for (int64_t d = 0; d < size(); ++d) out[d] += p[s] / total * value(s)[d];
  }
};

}  // namespace

Values attention(const Tensor& qkv, int heads, const Tensor& keys, const Tensor& values, int64_t past) {
  const int64_t batch = qkv.dim(0), time = qkv.dim(1), width = qkv.dim(2) / 3;
  Values out(batch * time * width, 0.0);
  for (int64_t b = 0; b < batch; ++b)
    for (int h = 0; h < heads; ++h)
      for (int64_t t = 0; t < time; ++t)
        Head{qkv, keys, values, b, h, heads, past}.attend(t, out.data() + (b * time + t) * width + h * (width / heads));
  return out;
}

Values token_losses(const Tensor& z, const Tensor& w, const Tensor& targets, int64_t vocab) {
  const Values logits = linear(z, w, 0, {});
  const int64_t columns = w.dim(0);
  Values losses;
  for (int64_t r = 0; r < targets.numel(); ++r) {
    const double* row = logits.data() + r * columns;
    const double largest = *std::max_element(row, row + vocab);
    double total = 0;
    for (int64_t v = 0; v < vocab; ++v) total += std::exp(row[v] - largest);
    losses.push_back(largest + std::log(total) - row[targets.data<std::int32_t>()[r]]);
  }
  return losses;
}

namespace {

Values softmax(const double* logits, int64_t n, double temperature) {
  Values p(logits, logits + n);
  const double largest = *std::max_element(p.begin(), p.end());
  double total = 0;
  for (double& x : p) total += x = std::exp((x - largest) / temperature);
  for (double& x : p) x /= total;
  return p;
}

}  // namespace

Values distillation(const Tensor& z, const Tensor& w, const Tensor& targets, const Tensor& teacher_z,
                    const Tensor& teacher_w, int64_t vocab, const Distillation& rule) {
  const Values student = linear(z, w, 0, {}), teacher = linear(teacher_z, teacher_w, 0, {});
  Values losses = token_losses(z, w, targets, vocab);
  for (std::size_t r = 0; r < losses.size(); ++r) {
    const Values q = softmax(student.data() + static_cast<int64_t>(r) * w.dim(0), vocab, rule.temperature);
    const Values p = softmax(teacher.data() + static_cast<int64_t>(r) * teacher_w.dim(0), vocab, rule.temperature);
    double kl = 0;
    for (std::size_t v = 0; v < p.size(); ++v) kl += p[v] * std::log(p[v] / q[v]);
    losses[r] = (1 - rule.weight) * losses[r] + rule.weight * rule.temperature * rule.temperature * kl;
  }
  return losses;
}

Values exit_distribution(const Tensor& gates) {
  const int64_t exits = gates.shape().last();
  Values p;
  double left = 1;
  for (int64_t i = 0; i < gates.numel(); ++i) {
    const bool first = i % exits == 0, last = i % exits == exits - 1;
    if (first) left = 1;
    p.push_back(last ? left : left / (1 + std::exp(-gates.data<double>()[i])));
    left -= p.back();
  }
  return p;
}

Values exit_losses(const Tensor& gates, const Tensor& losses, double beta) {
  const Values p = exit_distribution(gates);
  Values sums(gates.dim(0), 0.0);
  for (std::size_t i = 0; i < p.size(); ++i)
    sums[i / gates.dim(1)] += p[i] * (losses.data<double>()[i] + beta * std::log(p[i]));
  return sums;
}

double exit_gate_loss(const Tensor& gates, const Tensor& losses) {
  double sum = 0;
  for (int64_t i = 0; i < gates.numel(); ++i) {
    if (i % gates.dim(1) == 0) continue;
    const double gain = losses.data<double>()[i - 1] - losses.data<double>()[i];
    const double w = 1 / (1 + std::exp(-50 * ((gain > 0 ? gain : 0) - 0.005)));
    const double stop = 1 / (1 + std::exp(-gates.data<double>()[i]));
    sum -= w * std::log(1 - stop) + (1 - w) * std::log(stop);
  }
  return sum / static_cast<double>(gates.numel());
}

Values bce_with_logits(const Tensor& z, const Tensor& targets) {
  return each(z, targets,
              [](double x, double t) { return t * std::log(1 + std::exp(-x)) + (1 - t) * std::log(1 + std::exp(x)); });
}

// An element is among the k largest if fewer than k go before it.
Values top_k(const Tensor& scores, int64_t k) {
  Values places;
  for (int64_t b = 0; b < scores.dim(0); ++b)
    for (int64_t i = 0; i < scores.dim(1); ++i) {
      const double* s = scores.data<double>() + b * scores.dim(1);
      int64_t before = 0;
      for (int64_t j = 0; j < scores.dim(1); ++j) before += s[j] > s[i] || (s[j] == s[i] && j < i);
      if (before < k) places.push_back(static_cast<double>(i));
    }
  return places;
}

Values gather_rows(const Tensor& x, const Tensor& index) {
  Values y;
  for (int64_t i = 0; i < index.numel(); ++i) {
    const double* row = x.data<double>() + (i / index.dim(1) * x.dim(1) + index.data<std::int32_t>()[i]) * x.dim(2);
    y.insert(y.end(), row, row + x.dim(2));
  }
  return y;
}

Values gated_scatter(const Tensor& h, const Tensor& index, const Tensor& z, const Tensor& o, float scale) {
  const int64_t width = h.dim(2);
  Values y = each(h, [](double x) { return x; });
  for (int64_t i = 0; i < index.numel(); ++i)
    for (int64_t c = 0; c < width; ++c)
      y[(i / index.dim(1) * h.dim(1) + index.data<std::int32_t>()[i]) * width + c] +=
          static_cast<double>(scale) / (1 + std::exp(-z.data<double>()[i])) * o.data<double>()[i * width + c];
  return y;
}

Values gate_mix(const Tensor& z, const Tensor& h, const Tensor& o, const GateNoise& noise) {
  Values y(z.numel());
  for (int64_t i = 0; i < z.numel(); ++i) {
    const double draw = random_normal(noise.key, static_cast<std::uint64_t>(i / z.shape().last()));
    const double gate = 1 / (1 + std::exp(-(z.data<double>()[i] / noise.tau + noise.sigma * draw)));
    y[i] = gate * h.data<double>()[i] + (1 - gate) * o.data<double>()[i];
  }
  return y;
}

}  // namespace grt::reference
