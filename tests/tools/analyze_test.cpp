// The analyze binary: its numbers against computations made here, its files and its errors.
#include <Eigen/Dense>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "models/recurrent.h"
#include "ops/ops.h"
#include "tests/models/toys.h"
#include "tests/support.h"
#include "tests/tools/analyze_run.h"
#include "tests/train/oracle_models.h"
#include "tools/analysis/heads.h"

namespace grt::test {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Of a reference model on its tokens.
Json analyze(const std::string& model, const std::vector<std::string>& more) {
  const TempDir dir;
  const Outcome outcome =
      run_tool("analyze", arguments(oracle(model), oracle(model) / "tokens.bin", dir / "out", more));
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(outcome.err.empty());
  return read_json((dir / "out/analysis.json").string());
}

// The same, made once however many tests look at it.
const Json& analysis(const std::string& model, const std::vector<std::string>& more) {
  static std::map<std::pair<std::string, std::vector<std::string>>, Json> made;
  const auto at = made.find({model, more});
  return at != made.end() ? at->second : made[{model, more}] = analyze(model, more);
}

// --- an independent computation ------------------------------------------------------------------------------------

// What all windows of the reference text show, as matrices (tokens, width) by name and step.
struct Seen {
  std::map<std::pair<std::string, int>, Matrix> values;
  std::map<int, Matrix> logits;  // by depth
  std::vector<int> targets;

  const Matrix& at(const std::string& what, int step) const { return values.at({what, step}); }
};

void append(Matrix& all, const Matrix& more) {
  const Matrix before = all;
  all.resize(before.rows() + more.rows(), more.cols());
  if (before.rows() > 0) all.topRows(before.rows()) = before;
  all.bottomRows(more.rows()) = more;
}

Matrix rows(const Tensor& t) { return Eigen::Map<const Matrix>(t.data<double>(), t.shape().rows(), t.shape().last()); }

Seen see(const LanguageModel& model, const TokenData& data, const std::vector<int>& depths) {
  Seen seen;
  const Look look = [&](std::string_view what, int step, const Tensor& value) {
    append(seen.values[{std::string(what), step}], rows(value));
  };
  Pass pass;
  pass.look = &look;
  for (const Window& window : evaluation_windows(data.size(), model.config().context_length)) {
    const Batch batch = evaluation_batch(data, std::span(&window, 1), cpu());
    model.exits(batch.tokens, depths, pass, [&](int depth, const Var& z) {
      append(seen.logits[depth], rows(model.logits(z.value())).leftCols(model.config().vocab_size));
    });
    for (std::int64_t i = 0; i < window.targets; ++i) seen.targets.push_back(batch.targets.data<std::int32_t>()[i]);
  }
  return seen;
}

Matrix softmax(const Matrix& logits) {
  Matrix p = (logits.colwise() - logits.rowwise().maxCoeff()).array().exp();
  return p.array().colwise() / p.rowwise().sum().array();
}

Eigen::VectorXd losses(const Seen& seen, int depth) {
  const Matrix p = softmax(seen.logits.at(depth));
  Eigen::VectorXd loss(p.rows());
  for (int i = 0; i < p.rows(); ++i) loss[i] = -std::log(p(i, seen.targets[i]));
  return loss;
}

double mean_cosine(const Matrix& a, const Matrix& b) {
  return ((a.array() * b.array()).rowwise().sum() / (a.rowwise().norm().array() * b.rowwise().norm().array())).mean();
}

// tr(K L) etc. with the diagonals gone, as Song et al. write it.
double hsic(const Matrix& x, const Matrix& y) {
  Matrix k = x * x.transpose(), l = y * y.transpose();
  k.diagonal().setZero();
  l.diagonal().setZero();
  const double n = static_cast<double>(x.rows());
  return (k.cwiseProduct(l).sum() + k.sum() * l.sum() / ((n - 1) * (n - 2)) - 2 / (n - 2) * (k * l).sum()) /
         (n * (n - 3));
}

// The Jacobian of step r on one window, a row at a time, then its norm by many plain iterations.
double norm_of_jacobian(const RecurrentModel::Unrolled& unrolled, const Tensor& h, int r) {
  const std::int64_t n = h.numel();
  Eigen::MatrixXd jacobian(n, n);
  for (std::int64_t i = 0; i < n; ++i) {
    const Var x = Var::leaf(h);
    Tape tape;
    Var y;
    {
      const Record on(&tape);
      y = unrolled.step(x, r);
    }
    const Tensor seed = Tensor::zeros(h.shape(), DType::f64, cpu());
    seed.data<double>()[i] = 1;
    tape.backward(y, seed);
    jacobian.row(i) = Eigen::Map<const Eigen::RowVectorXd>(x.grad().data<double>(), n);
  }
  Eigen::VectorXd v = Eigen::VectorXd::Ones(n).normalized();
  for (int i = 0; i < 1000; ++i) v = (jacobian.transpose() * (jacobian * v)).normalized();
  return (jacobian * v).norm();
}

// Every number of two analyses within `tolerance`, everything else equal.
void check_alike(const Json& a, const Json& b, double tolerance, const std::string& where) {
  CAPTURE(where);
  if (a.is_number_float() && b.is_number_float()) {
    CHECK(std::abs(number(a) - number(b)) <= tolerance);
  } else if (a.is_structured() && a.size() == b.size()) {
    for (const auto& [key, value] : a.items())
      check_alike(value, a.is_array() ? b[static_cast<std::size_t>(std::stoi(key))] : b[key], tolerance,
                  where + "/" + key);
  } else {
    CHECK(a == b);
  }
}

}  // namespace

TEST_SUITE("tools") {
  TEST_CASE("analyze: exits, forced gates and their sums are those of the reference") {
    const Json expected = oracle_values("grt"), a = analysis("grt", {"--depth-beyond", "5", "--dtype", "f64"});
    CHECK(a["tokens"] == expected["tokens_predicted"]);
    CHECK(a["layout"] == "2+2×3+1");
    double sum = 0, shares = 0;
    for (const Json& exit : a["exits"]) {
      CHECK(std::abs(number(exit["loss"]) -
                     number(expected["loss_by_depth"][std::to_string(exit["depth"].get<int>())])) < 1e-8);
      CHECK(exit["trained"] == (exit["depth"] >= 1 && exit["depth"] <= 3));
      if (exit["share"].is_null()) continue;
      sum += number(exit["reduction"]);
      shares += number(exit["share"]);
    }
    CHECK(a["exits"].size() == 5);
    CHECK(sum == doctest::Approx(number(a["total_reduction"])).epsilon(1e-12));
    CHECK(shares == doctest::Approx(1).epsilon(1e-12));
    for (const Json& forced : a["gates"]["forced"]) {
      const std::string gate = fmt::format("{:g}", number(forced["gate"]));
      if (expected["loss_forced_gate"].contains(gate))
        CHECK(std::abs(number(forced["loss"]) - number(expected["loss_forced_gate"][gate])) < 1e-8);
    }
    CHECK(a["gates"]["forced"].back()["gate"] == 1);
  }

  TEST_CASE("analyze: a gate forced to 1 gives the loss of the prelude alone, bit for bit") {
    for (const char* dtype : {"f32", "f64"}) {
      const Json a = analysis("grt", {"--dtype", dtype});
      CHECK(a["gates"]["forced"].back()["loss"] == a["exits"][0]["loss"]);
      CHECK(a["exits"][0]["depth"] == 0);
    }
  }

  TEST_CASE("analyze: KL, gates, norms, cosines, difficulty and CKA are those of a plain computation") {
    const auto model = oracle_model("grt", DType::f64);
    const Seen seen = see(*model, oracle_tokens("grt", model->config().vocab_size), {0, 1, 2, 3});
    const Json a = analysis("grt", {"--dtype", "f64"});
    const auto near = [](const Json& value, double expected) {
      return std::abs(number(value) - expected) < 1e-6 * std::max(1.0, std::abs(expected));
    };
    const Matrix full = softmax(seen.logits.at(3));
    const Eigen::VectorXd first = losses(seen, 0), last = losses(seen, 3);
    for (int r = 0; r <= 3; ++r) {
      const Matrix p = softmax(seen.logits.at(r));
      CHECK(
          near(a["exits"][r]["kl_to_final"], (full.array() * (full.array() / p.array()).log()).rowwise().sum().mean()));
    }
    CHECK(near(a["dynamics"]["initial_norm"], seen.at("state", 0).rowwise().norm().mean()));
    Matrix last_update;
    for (int r = 1; r <= 3; ++r) {
      CAPTURE(r);
      const Matrix &old = seen.at("state", r - 1), &now = seen.at("state", r), &o = seen.at("proposal", r);
      const Matrix g = (1 + (-seen.at("gate_logit", r).array()).exp()).inverse(), update = now - old;
      const Json &d = a["dynamics"]["steps"][r - 1], &gate = a["gates"]["steps"][r - 1];
      CHECK(near(d["state_norm"], now.rowwise().norm().mean()));
      CHECK(near(d["proposal_norm"], o.rowwise().norm().mean()));
      CHECK(near(d["update_norm"], update.rowwise().norm().mean()));
      const Matrix admitted = (1 - g.array()) * o.array();
      CHECK(near(d["admitted_norm"], admitted.rowwise().norm().mean()));
      CHECK(near(d["cos_proposal_state"], mean_cosine(o, old)));
      CHECK(near(d["cos_new_old"], mean_cosine(now, old)));
      CHECK(d["ratio"].is_null() == (r == 1));
      if (r > 1) {
        CHECK(near(d["cos_successive_proposals"], mean_cosine(o, seen.at("proposal", r - 1))));
        CHECK(near(d["cos_successive_updates"], mean_cosine(update, last_update)));
        CHECK(near(d["ratio"], update.rowwise().norm().mean() / last_update.rowwise().norm().mean()));
      }
      last_update = update;

      CHECK(near(gate["mean"], g.mean()));
      CHECK(near(gate["openness"], 1 - g.mean()));
      CHECK(near(gate["std"], std::sqrt((g.array() - g.mean()).square().mean())));
      CHECK(near(gate["above_0.95"], (g.array() > 0.95).cast<double>().mean()));
      CHECK(near(gate["below_0.05"], (g.array() < 0.05).cast<double>().mean()));
      CHECK(near(gate["effective_openness"], update.rowwise().norm().mean() / o.rowwise().norm().mean()));
      for (int bin = 0; bin < 20; ++bin)
        CHECK(near(gate["histogram"][bin],
                   (g.array() >= bin * 0.05 && g.array() < (bin + 1) * 0.05).cast<double>().mean()));
      const Eigen::VectorXd means = g.rowwise().mean();
      const Eigen::ArrayXd x = means.array() - means.mean(), y = first.array() - first.mean();
      CHECK(near(a["difficulty"]["gate_correlation"][r - 1]["pearson"],
                 (x * y).sum() / std::sqrt(x.square().sum() * y.square().sum())));
    }

    std::vector<int> order(seen.targets.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int i, int j) { return first[i] < first[j]; });
    const auto n = static_cast<int>(order.size()), tenth = n / 10;
    const Json& easiest = a["difficulty"]["deciles"][0];
    CHECK(easiest["tokens"] == tenth);
    double loss = 0, improvement = 0;
    for (int i = 0; i < tenth; ++i) {
      loss += first[order[i]] / tenth;
      improvement += (first[order[i]] - last[order[i]]) / tenth;
    }
    CHECK(near(easiest["loss_first_exit"], loss));
    CHECK(near(easiest["improvement"], improvement));

    for (int i = 0; i <= 3; ++i)
      for (int j = 0; j <= 3; ++j) {
        const Matrix &x = seen.at("state", i), &y = seen.at("state", j);
        CHECK(near(a["cka"]["matrix"][i][j], hsic(x, y) / std::sqrt(hsic(x, x) * hsic(y, y))));
      }
    CHECK(a["cka"]["labels"] == Json({"prelude", "1", "2", "3"}));
  }

  TEST_CASE("analyze: the gain of a step is the norm of its Jacobian") {
    const auto loaded = oracle_model("grt", DType::f64);
    const auto& model = dynamic_cast<const RecurrentModel&>(*loaded);
    const Json a = analysis("grt", {"--tokens", "30"});
    REQUIRE(a["tokens"] == 30);
    const Window window{0, 30};
    const Batch batch = evaluation_batch(oracle_tokens("grt", model.config().vocab_size), std::span(&window, 1), cpu());
    const RecurrentModel::Unrolled unrolled = model.unroll(batch.tokens, {});
    Var h = unrolled.h;
    for (int r = 0; r < 3; ++r) {
      const double gain = number(a["dynamics"]["steps"][r]["gain"]), norm = norm_of_jacobian(unrolled, h.value(), r);
      CHECK(gain <= norm * (1 + 1e-6));
      CHECK(gain >= norm * (1 - 2e-2));
      h = unrolled.step(h, r);
    }
    double shares = 0;
    for (const Json& kind : a["dynamics"]["classification"]) shares += number(kind["share"]);
    CHECK(shares == doctest::Approx(1));
    CHECK(a["dynamics"]["extended_steps"] == 32);
  }

  TEST_CASE("analyze: the anchor's ablations are those of weights changed by hand") {
    const Json a = analysis("grt", {"--dtype", "f64"});
    const TokenData data = oracle_tokens("grt", oracle_model("grt")->config().vocab_size);
    const auto loss_with = [&](auto&& change) {
      const auto model = oracle_model("grt", DType::f64);
      double* w = model->params().find("inject.weight")->var.value().data<double>();
      const std::int64_t d = model->config().d_model;
      for (std::int64_t row = 0; row < d; ++row)
        for (std::int64_t i = 0; i < d; ++i) change(w[row * 2 * d + i], w[row * 2 * d + d + i]);
      return losses(see(*model, data, {3}), 3).mean();
    };
    std::map<std::string, double> loss;
    for (const Json& row : a["reinjection"]) loss[row["anchor"]] = number(row["loss"]);
    CHECK(loss.size() == 4);
    CHECK(loss["prelude"] == a["exits"][3]["loss"]);
    CHECK(loss["zero"] == doctest::Approx(loss_with([](double&, double& anchor) { anchor = 0; })).epsilon(1e-9));
    CHECK(loss["state"] == doctest::Approx(loss_with([](double& state, double& anchor) {
                             state += anchor;
                             anchor = 0;
                           })).epsilon(1e-9));
    CHECK(loss["embedding"] != loss["prelude"]);
  }

  TEST_CASE("analyze: the spectra of the gate and the angles of inject are Eigen's") {
    const auto model = oracle_model("grt", DType::f64);
    const Json weights = analysis("grt", {})["weights"];
    const Matrix gate = rows(model->params().find("gate.fc_in.weight")->var.value());
    const auto d = static_cast<int>(model->config().d_model);
    const Eigen::VectorXd state = Eigen::JacobiSVD<Eigen::MatrixXd>(gate.leftCols(d)).singularValues();
    const Eigen::VectorXd anchor = Eigen::JacobiSVD<Eigen::MatrixXd>(gate.rightCols(d)).singularValues();
    for (int i = 0; i < d; ++i) {
      CHECK(number(weights["gate"]["state_singular_values"][i]) == doctest::Approx(state[i]).epsilon(1e-9));
      CHECK(number(weights["gate"]["anchor_singular_values"][i]) == doctest::Approx(anchor[i]).epsilon(1e-9));
    }
    CHECK(number(weights["gate"]["ratio"]) == doctest::Approx(anchor[0] / state[0]));
    const Matrix inject = rows(model->params().find("inject.weight")->var.value());
    CHECK(number(weights["inject"]["row_cosine_mean"]) ==
          doctest::Approx(mean_cosine(inject.leftCols(d), inject.rightCols(d))));
  }

  TEST_CASE("analyze: heads are measured in every application of their block") {
    const Json a = analysis("grt", {"--tokens", "30", "--dtype", "f64"});
    const auto model = oracle_model("grt", DType::f64);
    CHECK(a["heads"]["list"].size() == 5 * 3);  // blocks, heads
    for (const Json& head : a["heads"]["list"]) {
      const bool core = head["block"].get<std::string>().starts_with("core");
      CHECK(head["steps"].size() == (core ? 3 : 1));
    }
    // The first block's by its weights.
    const Window window{0, 30};
    const Batch batch =
        evaluation_batch(oracle_tokens("grt", model->config().vocab_size), std::span(&window, 1), cpu());
    const auto weight = [&](const char* name) { return Var(model->params().find(name)->var.value()); };
    const Var x =
        layernorm(embedding(batch.tokens, weight("wte.weight"), weight("wpe.weight")), weight("prelude.0.ln_1.weight"));
    const std::vector<double> qkv = values(linear(x, weight("prelude.0.attn.c_attn.weight")).value());
    for (int head = 0; head < 3; ++head) {
      const HeadMass mass = head_mass(attention_weights(qkv, 30, 3, head), 30);
      const Json& step = a["heads"]["list"][head]["steps"][0];
      CHECK(a["heads"]["list"][head]["block"] == "prelude.0");
      CHECK(number(step["previous"]) == doctest::Approx(mass.previous).epsilon(1e-9));
      CHECK(number(step["self"]) == doctest::Approx(mass.self).epsilon(1e-9));
      CHECK(number(step["first"]) == doctest::Approx(mass.first).epsilon(1e-9));
      CHECK(step["kind"] == head_kind(mass));
    }
  }

  TEST_CASE("analyze: neither the batch size nor the number of threads changes a number by 1e-6") {
    const Json one = analysis("grt", {"--batch-size", "1", "--threads", "1", "--twin", oracle("grt").string()});
    const Json many = analysis("grt", {"--batch-size", "5", "--threads", "2", "--twin", oracle("grt").string()});
    check_alike(one, many, 1e-6, "");
    CHECK(one["exits"] == many["exits"]);
    check_alike(analysis("poisson", {"--batch-size", "1"}), analysis("poisson", {"--batch-size", "3"}), 1e-6, "");
    check_alike(analysis("mor", {"--batch-size", "1"}), analysis("mor", {"--batch-size", "3"}), 1e-6, "");
  }

  TEST_CASE("analyze: a model that is its own twin has the same similarities twice, and the same exits") {
    const std::string self = oracle("grt").string();
    const Json a = analysis("grt", {"--twin", self, "--compare", oracle("dense").string(), self});
    CHECK(a["cka"]["twin"]["labels"] == a["cka"]["labels"]);
    check_alike(a["cka"]["twin"]["matrix"], a["cka"]["matrix"], 1e-12, "twin");
    REQUIRE(a["early_exit"].size() == 4);
    CHECK(a["early_exit"][1] == a["early_exit"][0]);
    CHECK(a["early_exit"][3] == a["early_exit"][0]);
    CHECK(a["early_exit"][2]["name"] == "dense");
    CHECK(a["early_exit"][2]["points"].size() == 3);
    const auto model = oracle_model("grt");
    const Flops flops = model->flops(30, 2);
    CHECK(number(a["early_exit"][0]["points"][2]["flops_per_token"]) ==
          doctest::Approx(flops.executed_body + flops.executed_head));
  }

  TEST_CASE("analyze: every architecture has the sections that make sense for it") {
    for (const std::string& name : kOracleModels) {
      CAPTURE(name);
      const Json expected = oracle_values(name), a = analysis(name, {});
      const std::string architecture = expected["architecture"];
      const bool gated = architecture == "grt" && name != "grt_no_gate";
      CHECK(a.contains("gates") == gated);
      CHECK(a["difficulty"].contains("gate_correlation") == gated);
      CHECK(a.contains("reinjection") ==
            ((architecture == "grt" && name != "grt_no_injection") || architecture == "poisson"));
      CHECK(a.contains("weights") == (architecture == "grt" || architecture == "poisson"));
      CHECK(a["dynamics"].contains("classification") == (architecture == "grt" || architecture == "poisson"));
      const Json& step = a["dynamics"]["steps"][0];
      CHECK(step["gain"].is_number() == (architecture != "dense" && architecture != "mor"));
      CHECK(step["proposal_norm"].is_number() == (architecture != "dense" && architecture != "mor"));
      CHECK(step["update_norm"].is_number());
      const auto full = expected["full_depth"].get<std::size_t>();
      CHECK(a["dynamics"]["steps"].size() == full);
      CHECK(a["cka"]["labels"].size() == full + (architecture == "dense" ? 0 : 1));
      CHECK(a.contains("trajectories") == (a["config"]["vocab_size"] == 257));  // other ids are no text
      for (const Json& exit : a["exits"]) {
        const std::string depth = std::to_string(exit["depth"].get<int>());
        if (expected["loss_by_depth"].contains(depth))
          CHECK(std::abs(number(exit["loss"]) - number(expected["loss_by_depth"][depth])) < kLossTolerance);
      }
      CHECK(std::abs(number(a["exits"].back()["depth"]) - (architecture == "grt" || architecture == "poisson"
                                                               ? 2.0 * static_cast<double>(full)
                                                               : static_cast<double>(full))) < 0.5);
    }
  }

  TEST_CASE("analyze: a trajectory has the model's own probabilities") {
    const TempDir dir;
    write_byte_model(dir / "model");
    write_text(dir / "text.bin", 200);
    const Outcome outcome = run_tool(
        "analyze", arguments(dir / "model", dir / "text.bin", dir / "out", {"--prompt", "It was", "--target", " so"}));
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
    const Json all = read_json((dir / "out/analysis.json").string())["trajectories"];
    CHECK(all[0]["class"] == "given");
    CHECK(all[0]["target"] == " so");
    REQUIRE(all[0]["exits"].size() == 3);
    std::vector<std::string> kinds;
    for (const Json& t : all) kinds.push_back(t["class"]);
    for (const char* kind : {"knowledge", "reasoning", "open-ended"})
      CHECK(std::count(kinds.begin(), kinds.end(), kind) == 2);

    const auto model = load_model(dir / "model", cpu());
    const std::string text = "It was so";
    const std::vector<std::int32_t> ids(text.begin(), text.end() - 1);
    const Tensor tokens = Tensor::from<std::int32_t>({1, 8}, std::span(ids), cpu());
    for (int depth = 0; depth <= 2; ++depth) {
      const Tensor logits = model->logits(model->hidden(tokens, depth, {}).value());
      const std::vector<double> flat = values(logits);
      const Matrix p =
          softmax(Eigen::Map<const Matrix>(flat.data(), 8, logits.shape().last()).leftCols(model->config().vocab_size));
      const Json& exit = all[0]["exits"][depth];
      CHECK(number(exit["probability"]) == doctest::Approx(p(5, ' ') * p(6, 's') * p(7, 'o')).epsilon(1e-5));
      std::int64_t worst = 0;
      for (const auto& [row, id] : {std::pair(5, int{' '}), std::pair(6, int{'s'}), std::pair(7, int{'o'})})
        worst = std::max<std::int64_t>(worst, 1 + (p.row(row).array() > p(row, id)).count());
      CHECK(exit["rank"] == worst);
      REQUIRE(exit["top"].size() == 5);
      CHECK(number(exit["top"][0]["probability"]) == doctest::Approx(p.row(5).maxCoeff()).epsilon(1e-5));
      for (int i = 1; i < 5; ++i) CHECK(exit["top"][i - 1]["probability"] >= exit["top"][i]["probability"]);
    }
  }

  TEST_CASE("analyze: without a target a trajectory follows what the model would say") {
    const TempDir dir;
    write_byte_model(dir / "model");
    write_text(dir / "text.bin", 100);
    REQUIRE(run_tool("analyze", arguments(dir / "model", dir / "text.bin", dir / "out", {"--prompt", "It was"})).code ==
            0);
    const Json exits = read_json((dir / "out/analysis.json").string())["trajectories"][0]["exits"];
    CHECK(exits.back()["rank"] == 1);
    CHECK(exits.back()["probability"] == exits.back()["top"][0]["probability"]);
  }
}

}  // namespace grt::test
