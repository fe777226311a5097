#include "tools/bench/products.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>

#include "core/threads.h"
#include "ops/cases.h"
#include "tools/bench/openblas.h"

namespace grt {
namespace {

// y = x w^T (NT), dx = dy w (NN), dw += dy^T x (TN).
struct Product {
  std::string what;
  const char* kind;
  std::int64_t m, n, k;

  bool a_transposed() const { return kind[0] == 'T'; }
  bool b_transposed() const { return kind[1] == 'T'; }
  bool add() const { return a_transposed(); }
  std::string name() const { return fmt::format("{} {} {} x {} x {}{}", what, kind, m, n, k, add() ? " +=" : ""); }
};

// The layers of a block and the head on `rows` tokens, each forward, back to its input and back to its weights.
void add_layers(std::vector<Product>& products, const std::string& model, std::int64_t rows, std::int64_t width,
                std::int64_t vocab) {
  const struct {
    const char* name;
    std::int64_t out, in;
  } layers[] = {{"c_attn", 3 * width, width},
                {"c_proj", width, width},
                {"c_fc", 4 * width, width},
                {"mlp.c_proj", width, 4 * width},
                {"head", vocab, width}};
  for (const auto& [name, out, in] : layers) {
    const std::string layer = model + name;
    products.push_back({layer + " forward", "NT", rows, out, in});
    products.push_back({layer + " dx", "NN", rows, in, out});
    products.push_back({layer + " dw", "TN", out, in, rows});
  }
}

std::vector<Product> all_products() {
  std::vector<Product> products = {{"square", "NN", 2048, 2048, 2048}, {"c_attn forward", "NN", 1024, 2304, 768}};
  add_layers(products, "", 1024, 768, 50304);  // GPT-2 124M
  products.push_back({"c_fc forward", "NT", 4096, 3072, 768});
  products.push_back({"d384 c_attn forward", "NT", 2048, 1152, 384});
  add_layers(products, "d128 ", 2048, 128, 256);
  // One head: scores, what they weigh, and the products on the way back.
  for (const auto& [width, length] : {std::pair<std::int64_t, std::int64_t>{64, 1024}, {32, 256}}) {
    const std::string head = fmt::format("head size {} ", width);
    products.push_back({head + "q k^T", "NT", length, length, width});
    products.push_back({head + "p v", "NN", length, width, length});
    products.push_back({head + "ds^T q", "TN", length, width, length});
  }
  products.push_back({"one token c_fc", "NT", 1, 3072, 768});
  products.push_back({"one token head", "NT", 1, 50304, 768});
  return products;
}

// The factors and two results, ours and the other's.
struct Factors {
  const Product& product;
  std::vector<Var> inputs;
  Tensor ours, theirs;

  Factors(const Product& p, Device& device) : product(p) {
    const OpCase values{.op = "gemm",
                        .variant = p.name(),
                        .inputs = {{p.a_transposed() ? Shape{p.k, p.m} : Shape{p.m, p.k}},
                                   {p.b_transposed() ? Shape{p.n, p.k} : Shape{p.k, p.n}}}};
    inputs = make_inputs(values, DType::f32, device);
    ours = Tensor::zeros({p.m, p.n}, DType::f32, device);
    theirs = Tensor::zeros({p.m, p.n}, DType::f32, device);
  }

  double multiply(Device& device) const {
    return seconds_of([&] {
      device.kernels().matmul({ours, product.add()}, {}, {inputs[0].value(), product.a_transposed()},
                              {inputs[1].value(), product.b_transposed()}, {});
      device.sync();
    });
  }

  double multiply(const OpenBlas& blas) const {
    const auto factor = [](const Tensor& t, bool transposed) {
      return BlasFactor{t.data<float>(), transposed, t.shape().last()};
    };
    return seconds_of([&] {
      blas.multiply(product.m, product.n, product.k, factor(inputs[0].value(), product.a_transposed()),
                    factor(inputs[1].value(), product.b_transposed()), theirs.data<float>(), product.add());
    });
  }

  // That both computed the same: a faster way to something else would be no comparison. Sums of k products of numbers
  // around 1, in whatever order.
  void compare_results(Device& device, const OpenBlas& blas) const {
    device.zero(ours.data<float>(), ours.bytes());
    device.zero(theirs.data<float>(), theirs.bytes());
    multiply(device);
    multiply(blas);
    double largest = 0;
    for (std::int64_t i = 0; i < ours.numel(); ++i)
      largest = std::max(largest, std::abs(static_cast<double>(ours.data<float>()[i]) - theirs.data<float>()[i]));
    check(largest < 1e-4 * std::sqrt(static_cast<double>(product.k)), "bench gemm: {}: OpenBLAS differs by {:.2g}",
          product.name(), largest);
  }
};

}  // namespace

bool has_product(const RowChoice& choice) {
  const std::vector<Product> products = all_products();
  return std::any_of(products.begin(), products.end(), [&](const Product& p) { return choice.wants(p.name()); });
}

void bench_gemm(const RowChoice& choice, const std::string& openblas, Device& device, Report& report) {
  const std::unique_ptr<Device> rounding = open_cpu(DType::bf16);
  const bool cpu = on_cpu(device);
  check(cpu || openblas.empty(), "--openblas: computes on the CPU alone, not with --device {}", device.name());
  std::unique_ptr<OpenBlas> blas;
  if (cpu) blas = openblas.empty() ? OpenBlas::find() : OpenBlas::load(openblas);
  if (blas) blas->set_threads(thread_count());
  report.begin("gemm");
  fmt::print("  beside: {}\n", cpu ? name_of(blas.get()) : "nothing, for OpenBLAS computes on the CPU alone");
  for (const Product& p : all_products()) {
    if (!choice.wants(p.name())) continue;
    const Factors factors(p, device);
    std::vector<std::function<double()>> turns = {[&] { return factors.multiply(device); }};
    if (blas) {
      factors.compare_results(device, *blas);
      turns.push_back([&] { return factors.multiply(*blas); });
    }
    const bool bf16 = report.peak().bf16_flops > 0;
    if (bf16) turns.push_back([&] { return factors.multiply(*rounding); });
    const std::vector<Timing> times = take_turns(choice.rounds, turns);
    const double m = static_cast<double>(p.m), n = static_cast<double>(p.n), k = static_cast<double>(p.k);
    const double flops = 2 * m * n * k, bytes = sizeof(float) * (m * k + k * n + m * n);
    report.add({.group = "gemm",
                .name = p.name(),
                .time = times[0],
                .flops = flops,
                .bytes = bytes,
                .peers = blas ? std::vector<Peer>{{"OpenBLAS", times[1]}} : std::vector<Peer>{}});
    if (bf16)
      report.add({.group = "gemm",
                  .name = p.name() + " bf16",
                  .time = times.back(),
                  .flops = flops,
                  .bytes = bytes,
                  .peers = {{"our f32", times[0]}},
                  .arithmetic = Arithmetic::bf16});
  }
  report.end_comparison();
}

}  // namespace grt
