// The statistics of `analyze` on cases whose answers are known.
#include <Eigen/Dense>

#include <cmath>
#include <numbers>
#include <numeric>

#include "core/threads.h"
#include "ops/ops.h"
#include "tests/support.h"
#include "tools/analysis/cka.h"
#include "tools/analysis/gain.h"
#include "tools/analysis/heads.h"
#include "tools/analysis/spectrum.h"
#include "tools/analysis/statistics.h"
#include "tools/analysis/trajectory.h"

namespace grt::test {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Matrix matrix(const Tensor& t) { return Eigen::Map<const Matrix>(t.data<double>(), t.dim(0), t.dim(1)); }
Tensor tensor(const Matrix& m) {
  return Tensor::from<double>({m.rows(), m.cols()}, std::span(m.data(), static_cast<std::size_t>(m.size())), cpu());
}
Matrix rotation(int width, std::uint32_t site) {
  return matrix(randn({width, width}, site)).householderQr().householderQ();
}

// The estimator as Song et al. write it, over one mini-batch.
double hsic_by_traces(Matrix k, Matrix l) {
  k.diagonal().setZero();
  l.diagonal().setZero();
  const double n = static_cast<double>(k.rows());
  return ((k * l).trace() + k.sum() * l.sum() / ((n - 1) * (n - 2)) - 2 / (n - 2) * (k * l).sum()) / (n * (n - 3));
}

States repeated(const std::function<std::vector<double>(const std::vector<double>&)>& map, std::vector<double> h,
                int steps) {
  States states = {h};
  for (int r = 0; r < steps; ++r) states.push_back(h = map(h));
  return states;
}
States repeated(const Matrix& m, const std::vector<double>& from, int steps) {
  return repeated(
      [&](const std::vector<double>& h) {
        const Eigen::VectorXd y = m * Eigen::Map<const Eigen::VectorXd>(h.data(), static_cast<int>(h.size()));
        return std::vector<double>(y.data(), y.data() + y.size());
      },
      from, steps);
}
Matrix turn(double angle) {
  Matrix m(2, 2);
  m << std::cos(angle), -std::sin(angle), std::sin(angle), std::cos(angle);
  return m;
}

double gain_of(const Matrix& m) {
  const Var w = tensor(m);
  const auto width = static_cast<std::int64_t>(m.cols());
  return largest_gain([&](const Var& x) { return linear(x, w); }, randn({1, width}, 40), {1e-14, 2000}).value;
}

}  // namespace

TEST_SUITE("tools") {
  TEST_CASE("analysis: norms, distances and cosines of constructed vectors") {
    const std::vector<double> a{3, 4}, b{-4, 3}, c{6, 8}, zero{0, 0};
    CHECK(norm(a) == 5);
    CHECK(distance(a, c) == 5);
    CHECK(cosine(a, b) == 0);
    CHECK(cosine(a, c) == 1);
    CHECK(cosine(a, std::vector<double>{-3, -4}) == -1);
    CHECK(cosine(a, std::vector<double>{1, 0}) == doctest::Approx(0.6));
    CHECK(std::isnan(cosine(a, zero)));
  }

  TEST_CASE("analysis: a mean passes over what is not defined, and of nothing is not defined") {
    Mean mean;
    CHECK(std::isnan(mean.value()));
    for (const double x : {1.0, std::nan(""), 3.0, 8.0}) mean.add(x);
    CHECK(mean.value() == 4);
    CHECK(mean.deviation() == doctest::Approx(std::sqrt(26.0 / 3)));
  }

  TEST_CASE("analysis: a histogram counts its upper edge in its last part") {
    Histogram h(0, 1, 4);
    for (const double x : {0.0, 0.2499, 0.25, 0.5, 1.0, 1.5, -3.0, std::nan("")}) h.add(x);
    CHECK(h.shares() == std::vector<double>{3.0 / 7, 1.0 / 7, 1.0 / 7, 2.0 / 7});
  }

  TEST_CASE("analysis: a line through points that lie on one has r2 1, through noise far less") {
    const std::vector<double> x{1, 2, 4, 7}, on{1, -1, -5, -11}, flat{2, 2, 2, 2}, off{1, -1, 1, -1};
    const Line line = fit_line(x, on);
    CHECK(line.slope == doctest::Approx(-2));
    CHECK(line.intercept == doctest::Approx(3));
    CHECK(line.r2 == doctest::Approx(1));
    CHECK(std::isnan(fit_line(x, flat).r2));
    CHECK(fit_line(x, off).r2 == doctest::Approx(16.0 / 84).epsilon(1e-12));
    CHECK(pearson(x, on) == doctest::Approx(-1));
    CHECK(pearson(x, off) == doctest::Approx(-std::sqrt(16.0 / 84)));
    CHECK(std::isnan(pearson(x, flat)));
  }

  TEST_CASE("analysis: deciles of synthetic losses") {
    std::vector<double> first(1005), full(1005);
    for (std::size_t i = 0; i < first.size(); ++i) {
      first[i] = static_cast<double>((i * 677) % 1005);  // each of 0..1004 once
      full[i] = first[i] / 4;
    }
    const std::vector<Decile> all = deciles(first, full);
    REQUIRE(all.size() == 10);
    std::int64_t tokens = 0;
    for (const Decile& d : all) {
      const double mean = static_cast<double>(tokens) + static_cast<double>(d.tokens - 1) / 2;
      CHECK(d.loss_first == doctest::Approx(mean));
      CHECK(d.improvement() == doctest::Approx(0.75 * mean));
      CHECK((d.tokens == 100 || d.tokens == 101));
      tokens += d.tokens;
    }
    CHECK(tokens == 1005);
  }

  TEST_CASE("analysis: CKA is 1 for equal, rotated, scaled and moved data, and about 0 for independent data") {
    Cka cka;
    const Matrix q = rotation(6, 3);
    for (std::uint32_t batch = 0; batch < 40; ++batch) {
      const Matrix x = matrix(randn({64, 6}, 100 + batch));
      const Matrix moved = (3 * x * q).array() + 50;
      cka.add(std::vector<Tensor>{tensor(x), tensor(x), tensor(moved), randn({64, 9}, 900 + batch)});
    }
    const auto m = cka.matrix();
    CHECK(cka.batches() == 40);
    for (int i = 0; i < 3; ++i)
      for (int j = 0; j < 3; ++j) CHECK(m[i][j] == doctest::Approx(1).epsilon(1e-9));
    CHECK(m[3][3] == doctest::Approx(1).epsilon(1e-12));
    // Independent: its mean is 0; the biased estimate would be about d / n = 0.1.
    CHECK(std::abs(m[0][3]) < 0.02);
  }

  TEST_CASE("analysis: CKA over mini-batches is made of the trace form of HSIC") {
    Cka cka;
    double xy = 0, xx = 0, yy = 0;
    for (std::uint32_t batch = 0; batch < 3; ++batch) {
      const Matrix x = matrix(randn({12, 5}, 10 + batch));
      const Matrix y = x.leftCols(3) * 2 + matrix(randn({12, 3}, 20 + batch));
      cka.add(std::vector<Tensor>{tensor(x), tensor(y)});
      const Matrix k = x * x.transpose(), l = y * y.transpose();
      xy += hsic_by_traces(k, l);
      xx += hsic_by_traces(k, k);
      yy += hsic_by_traces(l, l);
    }
    CHECK(cka.matrix()[0][1] == doctest::Approx(xy / std::sqrt(xx * yy)).epsilon(1e-10));
    CHECK(contains(error_of([&] { cka.add(std::vector<Tensor>{randn({3, 2}, 1)}); }), "at least 4 tokens"));
  }

  TEST_CASE("analysis: singular values are Eigen's, and those of a constructed matrix its own") {
    for (const auto& [rows, columns] : {std::pair(40, 40), std::pair(17, 40), std::pair(40, 17)}) {
      const Matrix m = matrix(randn({rows, columns}, 7));
      const std::vector<double> ours =
          singular_values(std::span(m.data(), static_cast<std::size_t>(m.size())), rows, columns);
      const Eigen::VectorXd theirs = Eigen::JacobiSVD<Eigen::MatrixXd>(m).singularValues();
      REQUIRE(static_cast<int>(ours.size()) == theirs.size());
      for (int i = 0; i < theirs.size(); ++i) CHECK(ours[i] == doctest::Approx(theirs[i]).epsilon(1e-10));
    }
    const Matrix known = rotation(3, 5) * Eigen::Vector3d(1, 9.5, 4).asDiagonal() * rotation(3, 6);
    const std::vector<double> values = singular_values(std::span(known.data(), 9), 3, 3);
    CHECK(values[0] == doctest::Approx(9.5));
    CHECK(values[2] == doctest::Approx(1));
  }

  TEST_CASE("analysis: the halves of a matrix and the cosines of its rows' halves") {
    const std::vector<double> m{1, 0, 2, 0, 0, 1, 0, -3, 1, 0, 0, 5};
    CHECK(half_cosines(m, 3) == std::vector<double>{1, -1, 0});
    CHECK(columns_of(m, 3, 2, 2) == std::vector<double>{2, 0, 0, -3, 0, 5});
  }

  TEST_CASE(
      "analysis: the gain of a linear map is its largest singular value, not its spectral radius or largest "
      "element") {
    const Matrix random = matrix(randn({24, 24}, 8));
    CHECK(gain_of(random) == doctest::Approx(random.bdcSvd().singularValues()[0]).epsilon(1e-7));
    CHECK(gain_of(0.5 * Matrix::Identity(5, 5)) == doctest::Approx(0.5).epsilon(1e-9));
    CHECK(gain_of(turn(0.7)) == doctest::Approx(1).epsilon(1e-9));
    CHECK(gain_of(Eigen::Vector2d(0.9, -0.95).asDiagonal()) == doctest::Approx(0.95).epsilon(1e-7));
    Matrix shear(2, 2);
    shear << 0.5, 10, 0, 0.5;  // eigenvalues 0.5, but one step may grow a change twentyfold
    CHECK(gain_of(shear) == doctest::Approx(shear.bdcSvd().singularValues()[0]).epsilon(1e-9));
    CHECK(gain_of(Matrix::Zero(3, 3)) == 0);
  }

  TEST_CASE("analysis: the gain of a map that is not linear is that of its derivative at the point") {
    const Tensor at = randn({1, 4}, 9);
    Eigen::VectorXd slope(4);
    for (int i = 0; i < 4; ++i) {
      const double x = at.data<double>()[i], s = 1 / (1 + std::exp(-x));
      slope[i] = s * (1 + x * (1 - s));
    }
    const Matrix w = matrix(randn({4, 4}, 12)), jacobian = w * slope.asDiagonal();
    const Var weight = tensor(w);
    const Gain gain = largest_gain([&](const Var& x) { return linear(silu(x), weight); }, at, {1e-14, 2000});
    CHECK(gain.value == doctest::Approx(jacobian.bdcSvd().singularValues()[0]).epsilon(1e-7));
  }

  TEST_CASE("analysis: what becomes of a state under maps that are known") {
    const std::vector<double> from{1, 2};
    const States halved = repeated(0.5 * Matrix::Identity(2, 2), from, 16);
    CHECK(classify(halved) == Fate::fixed_point);
    for (const double ratio : update_ratios(halved)) CHECK(ratio == 0.5);
    for (const double angle : turning_angles(halved)) CHECK(angle == doctest::Approx(0).epsilon(1e-7));

    for (const double angle : {0.6, 1.3, 2.1, 3.0}) {
      CAPTURE(angle);
      const States turned = repeated(turn(angle), from, 32);
      CHECK(classify(turned) == Fate::orbit);
      for (const double ratio : update_ratios(turned)) CHECK(ratio == doctest::Approx(1));
      for (const double a : turning_angles(turned)) CHECK(a == doctest::Approx(angle));
    }

    CHECK(classify(repeated(Matrix::Identity(2, 2), from, 8)) == Fate::fixed_point);
    const States flipped = repeated(-Matrix::Identity(2, 2), from, 8);  // period 2
    CHECK(classify(flipped) == Fate::orbit);
    for (const double a : turning_angles(flipped)) CHECK(a == doctest::Approx(std::numbers::pi));

    const auto drift = [](std::vector<double> h) {
      h[0] += 0.25;
      h[1] -= 1;
      return h;
    };
    CHECK(classify(repeated(drift, from, 16)) == Fate::slider);
    CHECK(classify(repeated(1.1 * Matrix::Identity(2, 2), from, 16)) == Fate::slider);
    CHECK(classify(repeated(1.1 * turn(1.3), from, 40)) == Fate::other);
    CHECK(classify(repeated(0.95 * turn(1.3), from, 40)) == Fate::fixed_point);  // a spiral inwards
    CHECK(contains(error_of([&] { classify(repeated(turn(1), from, 7)); }), "9 are needed"));
  }

  TEST_CASE("analysis: an orbit is one wherever in it the steps end, though they are not equally long") {
    const States corners = {{5, 5}, {6, 5}, {6, 8}};
    for (int length = 30; length < 36; ++length) {
      States states;
      for (int r = 0; r < length; ++r) states.push_back(corners[r % 3]);
      CHECK(classify(states) == Fate::orbit);
    }
  }

  TEST_CASE("analysis: a matrix with eigenvalues 0.9 and -0.95 converges at 0.95, back and forth") {
    const Matrix basis = matrix(randn({2, 2}, 13));
    const Matrix m = basis * Eigen::Vector2d(0.9, -0.95).asDiagonal() * basis.inverse();
    const States states = repeated(m, {1, 2}, 600);
    CHECK(classify({states.begin(), states.begin() + 100}) == Fate::fixed_point);
    CHECK(update_ratios(states).back() == doctest::Approx(0.95).epsilon(1e-9));
    CHECK(turning_angles(states).back() == doctest::Approx(std::numbers::pi).epsilon(1e-6));
  }

  TEST_CASE("analysis: a random walk in many dimensions is neither fixed, an orbit nor a slider") {
    States states = {std::vector<double>(200)};
    for (std::uint32_t r = 0; r < 32; ++r) {
      const std::vector<double> step = values(randn({200}, 60 + r));
      states.push_back(states.back());
      std::transform(step.begin(), step.end(), states.back().begin(), states.back().begin(), std::plus<>());
    }
    CHECK(classify(states) == Fate::other);
  }

  TEST_CASE("analysis: heads are told apart by where their attention lies") {
    const std::int64_t T = 12;
    const auto head = [&](auto&& weight) {
      std::vector<double> w(T * T);
      for (std::int64_t t = 0; t < T; ++t)
        for (std::int64_t s = 0; s <= t; ++s) w[t * T + s] = weight(t, s);
      return head_mass(w, T);
    };
    const auto previous = head([](auto t, auto s) { return t == 0 || s == t - 1 ? 1.0 : 0.0; });
    CHECK(previous.previous == 1);
    CHECK(previous.self == 0);
    CHECK(previous.queries == T - kFirstQuery);
    CHECK(head_kind(previous) == "previous");
    CHECK(head_kind(head([](auto t, auto s) { return s == t ? 1.0 : 0.0; })) == "self");
    CHECK(head_kind(head([](auto, auto s) { return s == 0 ? 1.0 : 0.0; })) == "broadcast");
    CHECK(head_kind(head([](auto t, auto) { return 1.0 / static_cast<double>(t + 1); })) == "other");
    // Just enough, and just too little.
    const auto mostly = [&](double share) {
      return head_kind(head([&](auto t, auto s) {
        return s == t - 1 ? share : (1 - share) / static_cast<double>(std::max<std::int64_t>(t, 1));
      }));
    };
    CHECK(mostly(kHeadMass + 1e-9) == "previous");
    CHECK(mostly(kHeadMass - 1e-9) == "other");

    HeadMass sum = previous;
    sum.add({0, 1, 0.5, 2 * previous.queries});
    CHECK(sum.previous == doctest::Approx(1.0 / 3));
    CHECK(sum.self == doctest::Approx(2.0 / 3));
  }

  TEST_CASE("analysis: attention weights applied to the values are what the attention operation gives") {
    const std::int64_t T = 7, C = 6;
    const int heads = 3;
    const Tensor qkv = randn({1, T, 3 * C}, 30);
    const std::vector<double> all = values(qkv), out = values(attention(qkv, heads).value());
    for (int head = 0; head < heads; ++head) {
      const std::vector<double> w = attention_weights(all, T, heads, head);
      for (std::int64_t t = 0; t < T; ++t)
        for (std::int64_t i = head * 2; i < head * 2 + 2; ++i) {
          double y = 0;
          for (std::int64_t s = 0; s < T; ++s) y += w[t * T + s] * all[s * 3 * C + 2 * C + i];
          CHECK(y == doctest::Approx(out[t * C + i]).epsilon(1e-12));
        }
    }
  }
}

}  // namespace grt::test
