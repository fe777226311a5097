#include "ops/distillation_cases.h"

#include <numeric>

#include "ops/reference.h"

namespace grt {
namespace {

// Constants of standard deviation `std`, functions of their site: uniform, by a hash so cheap that bench does not time
// it.
Tensor constant(const Shape& shape, std::uint32_t site, double std, const Tensor& like) {
  return visit_real(like.dtype(), [&]<class T>() {
    std::vector<T> values(shape.numel());
    const T step = static_cast<T>(static_cast<float>(std * 1.7320508 / 512));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::uint32_t mixed = (static_cast<std::uint32_t>(i) + site * 977) * 2654435761u;
      values[i] = step * static_cast<T>(static_cast<int>(mixed >> 22) - 512);
    }
    const Tensor t = Tensor::from<T>(shape, values, like.device());
    like.device().sync();  // before `values` dies
    return t;
  });
}

}  // namespace

OpCase distillation_case(std::string variant, Shape z, std::int64_t teacher_width, std::int64_t padded,
                         std::int64_t vocab, Distillation rule, std::int64_t chunk_bytes) {
  const Shape targets = z.rank() == 3 ? Shape{z[0], z[1]} : Shape{z[0]};
  const Shape teacher_z = z.with_last(teacher_width), teacher_w{padded, teacher_width};
  const double rows = static_cast<double>(z.rows()), width = static_cast<double>(z.last()),
               taught = static_cast<double>(teacher_width), ids = static_cast<double>(padded);
  // The logits of both; backward, the student's two products besides.
  const Work forward{2 * rows * ids * (width + taught), rows * (width + taught + 2 * ids) + ids * (width + taught)};
  const Work products{4 * rows * ids * width, 2 * (rows * width + rows * ids + ids * width)};
  return {.op = "distillation",
          .variant = std::move(variant),
          .inputs = {{z}, {{padded, z.last()}, 0.5}, {targets, 0, vocab}},
          .run =
              [=](std::span<const Var> v) {
                return distillation(v[0], v[1], v[2].value(), constant(teacher_z, 1, 1, v[0].value()),
                                    constant(teacher_w, 2, 0.5, v[0].value()), vocab, rule, chunk_bytes);
              },
          .reference =
              [=](std::span<const Tensor> t) {
                const reference::Values losses = reference::distillation(
                    t[0], t[1], t[2], constant(teacher_z, 1, 1, t[0]), constant(teacher_w, 2, 0.5, t[0]), vocab, rule);
                return reference::Values{std::accumulate(losses.begin(), losses.end(), 0.0) / rows};
              },
          .forward = forward,
          .backward = {forward.flops + products.flops, forward.elements + products.elements},
          .gradient_in_forward = true};
}

std::vector<OpCase> distillation_cases() {
  return {
      distillation_case("", {2, 3, 5}, 7, 16, 11, {0.5, 1}),
      distillation_case("the teacher alone, temperature", {2, 3, 5}, 7, 16, 11, {1, 2.5}),
      distillation_case("no teacher", {2, 3, 5}, 7, 16, 11, {0, 2}),
      distillation_case("chunks of one row", {7, 5}, 3, 16, 11, {0.3, 0.7}, 1),
      distillation_case("several chunks, the last shorter", {2, 9, 5}, 6, 67, 67, {0.7, 2}, 5 * 67 * 4),
  };
}

}  // namespace grt
