// Embedding lookups and the sums of their gradients.
#include "tests/ops/kernel_checks.h"

namespace grt {
namespace {

using namespace test;

// Tokens that repeat, so that gradients meet in a row.
Tensor some_tokens(Shape shape, std::uint64_t vocabulary) {
  std::vector<std::int32_t> v;
  for (std::int64_t i = 0; i < shape.numel(); ++i)
    v.push_back(static_cast<std::int32_t>(random_below({5}, static_cast<std::uint64_t>(i), vocabulary)));
  return integers(shape, v);
}

}  // namespace

TEST_SUITE("ops") {
  TEST_CASE("embedding adds a token's row and its position's") {
    for (DType type : kReals)
      for (std::int64_t width : {1, 13, 64}) {
        const Tensor tokens = some_tokens({3, 5}, 11), wte = randn({11, width}, 1, type),
                     wpe = randn({9, width}, 2, type);
        const Values id = values(tokens), token_rows = values(wte), position_rows = values(wpe);
        Values expected;
        for (std::int64_t i = 0; i < 15; ++i)
          for (std::int64_t c = 0; c < width; ++c)
            expected.push_back(token_rows[static_cast<std::size_t>(static_cast<std::int64_t>(id[i]) * width + c)] +
                               position_rows[static_cast<std::size_t>((4 + i % 5) * width + c)]);
        const Values y =
            written({3, 5, width}, type, [&](const Tensor& to) { kernels().embedding(to, tokens, wte, wpe, 4); });
        CHECK(relative_error(y, expected) < 1e-6);
      }
  }

  TEST_CASE("embedding_backward adds each gradient to the rows it came from") {
    for (DType type : kReals)
      for (std::int64_t width : {1, 13, 64}) {
        const std::int64_t vocabulary = 150, length = 21, first = 3;
        const Tensor tokens = some_tokens({4, length}, vocabulary), dy = randn({4, length, width}, 3, type);
        const Values id = values(tokens), d = values(dy);
        Values dwte(static_cast<std::size_t>(vocabulary * width), 2.5), dwpe(static_cast<std::size_t>(30 * width), 2.5);
        for (std::int64_t i = 0; i < 4 * length; ++i)
          for (std::int64_t c = 0; c < width; ++c) {
            const double e = d[static_cast<std::size_t>(i * width + c)];
            dwte[static_cast<std::size_t>(static_cast<std::int64_t>(id[i]) * width + c)] += e;
            dwpe[static_cast<std::size_t>((first + i % length) * width + c)] += e;
          }
        const Guarded token_rows({vocabulary, width}, type, 2.5), position_rows({30, width}, type, 2.5);
        kernels().embedding_backward(Into{token_rows.inside(), true}, Into{}, dy, tokens, first);
        kernels().embedding_backward(Into{}, Into{position_rows.inside(), true}, dy, tokens, first);
        CHECK(token_rows.intact());
        CHECK(position_rows.intact());
        CHECK(relative_error(values(token_rows.inside()), dwte) < tolerance(type));
        CHECK(relative_error(values(position_rows.inside()), dwpe) < tolerance(type));
      }
  }

  TEST_CASE("embedding_backward does not depend on the number of threads") {
    const Tensor tokens = some_tokens({5, 100}, 7), dy = randn({5, 100, 33}, 4, DType::f32);
    check_thread_independent([&] {
      const Tensor dwte = Tensor::zeros({7, 33}, DType::f32, cpu()), dwpe = Tensor::zeros({100, 33}, DType::f32, cpu());
      kernels().embedding_backward(Into{dwte, true}, Into{dwpe, true}, dy, tokens, 0);
      return std::vector{dwte, dwpe};
    });
  }
}

}  // namespace grt
