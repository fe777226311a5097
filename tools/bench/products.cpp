#include "tools/bench/products.h"

#include <algorithm>

#include "ops/cases.h"

namespace grt {
namespace {

struct Product {
  const char* name;
  std::int64_t m, n, k;
  bool a_transposed, b_transposed, add;
};

// GPT-2 124M at 1024 tokens: y = x w^T (NT), dx = dy w (NN), dw += dy^T x (TN).
constexpr Product kProducts[] = {
    {"square 2048 NN", 2048, 2048, 2048, false, false, false},
    {"c_attn forward NT 1024 x 2304 x 768", 1024, 2304, 768, false, true, false},
    {"c_attn dx NN 1024 x 768 x 2304", 1024, 768, 2304, false, false, false},
    {"c_attn dw TN 2304 x 768 x 1024 +=", 2304, 768, 1024, true, false, true},
    {"c_proj forward NT 1024 x 768 x 768", 1024, 768, 768, false, true, false},
    {"c_fc forward NT 1024 x 3072 x 768", 1024, 3072, 768, false, true, false},
    {"c_fc dw TN 3072 x 768 x 1024 +=", 3072, 768, 1024, true, false, true},
    {"mlp.c_proj forward NT 1024 x 768 x 3072", 1024, 768, 3072, false, true, false},
    {"mlp.c_proj dx NN 1024 x 3072 x 768", 1024, 3072, 768, false, false, false},
    {"c_fc forward NT 4096 x 3072 x 768", 4096, 3072, 768, false, true, false},
    {"head forward NT 1024 x 50304 x 768", 1024, 50304, 768, false, true, false},
    {"head dx NN 1024 x 768 x 50304", 1024, 768, 50304, false, false, false},
    {"head dw TN 50304 x 768 x 1024 +=", 50304, 768, 1024, true, false, true},
    {"d384 c_attn forward NT 2048 x 1152 x 384", 2048, 1152, 384, false, true, false},
    {"d128 c_attn forward NT 2048 x 384 x 128", 2048, 384, 128, false, true, false},
    {"one token c_fc NT 1 x 3072 x 768", 1, 3072, 768, false, true, false},
    {"one token head NT 1 x 50304 x 768", 1, 50304, 768, false, true, false},
};

}  // namespace

void bench_gemm(const RowChoice& choice, Device& device, Report& report) {
  report.begin("gemm");
  for (const Product& p : kProducts) {
    if (!choice.wants(p.name)) continue;
    const OpCase values{.op = "gemm",
                        .variant = p.name,
                        .inputs = {{p.a_transposed ? Shape{p.k, p.m} : Shape{p.m, p.k}},
                                   {p.b_transposed ? Shape{p.n, p.k} : Shape{p.k, p.n}}}};
    const std::vector<Var> factors = make_inputs(values, DType::f32, device);
    const Tensor y = Tensor::zeros({p.m, p.n}, DType::f32, device);
    const Timing time = sample(choice.rounds, [&] {
      return seconds_of([&] {
        device.kernels().matmul({y, p.add}, {}, {factors[0].value(), p.a_transposed},
                                {factors[1].value(), p.b_transposed}, {});
        device.sync();
      });
    });
    const double m = static_cast<double>(p.m), n = static_cast<double>(p.n), k = static_cast<double>(p.k);
    report.add({"gemm", p.name, time, 2 * m * n * k, sizeof(float) * (m * k + k * n + m * n), 0, Json::object()});
  }
}

bool has_product(const RowChoice& choice) {
  return std::any_of(std::begin(kProducts), std::end(kProducts),
                     [&](const Product& p) { return choice.wants(p.name); });
}

}  // namespace grt
