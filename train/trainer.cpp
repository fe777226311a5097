#include "train/trainer.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>

#include "ops/hold.h"
#include "train/deal.h"
#include "train/fnv.h"
#include "train/host.h"

namespace grt {
namespace {

constexpr double kCollapsedShare = 0.99;          // of tokens at one depth: worth a warning
constexpr std::uint32_t kDepthSite = 0x64657074;  // "dept"
constexpr std::uint32_t kNoiseSite = 0x6e6f6973;  // "nois"

Tensor scalar(double value, const Tensor& like) {
  return visit_real(like.dtype(), [&]<class T>() {
    const T converted = static_cast<T>(value);
    return Tensor::from<T>({1}, std::span(&converted, 1), like.device());
  });
}

std::int64_t fingerprint(const Tensor& t) {
  constexpr std::int64_t kPiece = 1 << 16;  // on the host at a time
  Fnv fnv;
  for (std::int64_t begin = 0; begin < t.numel(); begin += kPiece)
    for (const double value : host_values(t.range(begin, {std::min(kPiece, t.numel() - begin)})))
      fnv.add(std::bit_cast<std::uint64_t>(value));
  return fnv.value();
}

// The noise of each micro-batch has a seed of its own, so a model is free to use all sites and elements.
std::uint64_t noise_seed(std::uint64_t seed, std::int64_t step, std::int64_t index) {
  const NoiseKey run{seed, static_cast<std::uint32_t>(step), kNoiseSite};
  return random_u64(run, static_cast<std::uint64_t>(index));
}

Batch empty_batch(const TrainingOrder& order, Device& device) {
  const auto ids = [&] { return Tensor::empty({order.batch_size, order.context_length}, DType::i32, device); };
  return {ids(), ids()};
}

}  // namespace

int draw_depth(const TrainPlan& plan, std::int64_t step, std::int64_t index) {
  const std::uint64_t draw = plan.depth_per_step ? 0 : static_cast<std::uint64_t>(index);
  const NoiseKey run{plan.config.seed, static_cast<std::uint32_t>(step), kDepthSite};
  return plan.depth.draw({random_u64(run, draw), 0, kDepthSite});
}

Trainer::Trainer(const TrainPlan& plan, LanguageModel& model, TokenData train, std::optional<TokenData> val,
                 TrainerState start, std::string resume_command, const LanguageModel* teacher, Comm& comm)
    : plan_(plan),
      model_(model),
      teacher_(teacher),
      comm_(comm),
      train_(std::move(train)),
      val_(std::move(val)),
      state_(std::move(start)),
      resume_command_(std::move(resume_command)),
      optimizer_(
          model.params(),
          {plan.config.beta1, plan.config.beta2, plan.config.eps, plan.config.weight_decay, plan.config.grad_clip},
          comm, plan.config.shard_optimizer),
      batch_(empty_batch(plan.order, model.device())),
      noise_seed_(model.device()),
      losses_(Tensor::zeros({plan.config.grad_accum + 1}, model.params().values().dtype(), model.device())),
      share_(scalar(1.0 / static_cast<double>(plan.config.grad_accum), losses_)),
      graphs_(model.device()),
      progress_(1, comm.size() == 1),  // mpirun gives every rank a terminal, wherever the output goes
      first_step_(state_.step),
      saved_step_(state_.step) {}

int Trainer::run() {
  comm_.broadcast(model_.params().values());  // another processor's library may have rounded initial values elsewise
  if (leads()) log_.emplace(plan_.config.out, state_.step);
  if (state_.step >= plan_.steps)
    progress_.line(fmt::format("{} steps are finished, and --steps asks for {}", state_.step, plan_.steps));
  for (;;) {
    if (!finish_step()) return interrupted();
    if (state_.step >= plan_.steps) break;
    const auto begin = std::chrono::steady_clock::now();
    StepStats stats{};
    if (!step(state_.step, stats)) return interrupted();
    log_step(stats, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  progress_.line(
      fmt::format("done after step {}{}; {}", state_.step,
                  state_.best_val_loss ? fmt::format(", best validation loss {:.4f}", *state_.best_val_loss) : "",
                  last_checkpoint()));
  return 0;
}

// The validation and the checkpoint that are due after the last finished step. An interrupted validation is still due
// when the run is resumed.
bool Trainer::finish_step() {
  if (state_.step == 0) return true;
  const bool last = state_.step == plan_.steps;
  bool best = false;
  if (val_ && state_.validated < state_.step && (last || state_.step % plan_.eval_every == 0)) {
    const std::optional<double> best_before = state_.best_val_loss;
    if (!validate()) return false;
    best = state_.best_val_loss != best_before;
    if (saved_step_ == state_.step && leads()) amend_checkpoint(plan_.config.out, state_, best);
  }
  if (saved_step_ != state_.step && (best || last || state_.step % plan_.save_every == 0)) save(best);
  return true;
}

int Trainer::interrupting_signal() {
  for (const std::int64_t signal : comm_.gather<std::int64_t>(signals_.received()))
    if (signal != 0) return static_cast<int>(signal);
  return 0;
}

bool Trainer::step(std::int64_t step, StepStats& stats) {
  const std::int64_t n = plan_.config.grad_accum;
  std::vector<int> depths;
  for (std::int64_t i = 0; i < n; ++i) depths.push_back(draw_depth(plan_, step, i));
  const std::vector<std::int64_t> own = deal(depths, comm_.rank(), comm_.size());
  clear_gradients();
  micro_batches(step, own, depths);
  interrupted_by_ = interrupting_signal();
  if (interrupted_by_ != 0) return false;

  std::vector<double> losses(depths.size());
  const std::vector<double> found = host_values(losses_);
  for (const std::int64_t i : own) {
    losses[i] = found[i];
    if (!std::isfinite(losses[i])) stop_on_bad_loss(step, i, depths[i], losses[i]);
  }
  comm_.sum(losses);  // each is one rank's: the same numbers for any number of ranks
  for (std::int64_t i = 0; i < n; ++i) {
    stats.loss += losses[i] / static_cast<double>(n);
    stats.depth += depths[i] / static_cast<double>(n);
    stats.flops += executed_flops(depths[i]);
  }
  model_.params().complete_gradients();
  optimizer_.reduce_gradients();
  stats.lr = learning_rate(plan_.schedule, step);
  stats.grad_norm = optimizer_.update(step, stats.lr);
  if (!std::isfinite(stats.grad_norm)) stop_on_bad_gradient(step);

  state_.step = step + 1;
  state_.sequences += plan_.config.batch_size * n;
  state_.tokens += plan_.config.batch_size * n * plan_.order.context_length;
  return true;
}

// A graph always does the same: it adds to gradients, whether or not it is the first to reach them.
void Trainer::clear_gradients() {
  model_.params().clear_gradients();
  if (model_.device().uses_graphs()) model_.params().complete_gradients();
}

// `depths`: of all micro-batches of the step. A graph holds weights for itself.
void Trainer::micro_batches(std::int64_t step, const std::vector<std::int64_t>& indices,
                            const std::vector<int>& depths) {
  std::optional<Hold> hold;
  if (!model_.device().uses_graphs()) hold.emplace(model_.params().values(), plan_.config.recompute);
  for (const std::int64_t i : indices) {
    if (signals_.received() != 0) break;
    micro_batch(step, i, depths[i]);
  }
}

// Adds this micro-batch's share to the gradients and puts its loss into losses_. What it does depends on the depth
// alone; tokens and the seed of its noise lie in memory.
void Trainer::micro_batch(std::int64_t step, std::int64_t index, int depth) {
  load_batch(step, index);
  const Tensor last = losses_.range(plan_.config.grad_accum, {1});
  graphs_.run(depth, [&] {
    const Hold forward(model_.params().values(), plan_.config.recompute);
    Tape tape;
    const Var loss = batch_loss(depth, &tape);
    model_.device().copy(last.raw(), loss.value().raw(), last.bytes());
    const Hold backward(model_.params().values(), plan_.config.recompute);
    tape.backward(loss, share_);
  });
  model_.device().copy(losses_.range(index, {1}).raw(), last.raw(), last.bytes());
}

void Trainer::load_batch(std::int64_t step, std::int64_t index) {
  const Batch batch = training_batch(train_, plan_.order, step, index, model_.device());
  model_.device().copy(batch_.tokens.raw(), batch.tokens.raw(), batch.tokens.bytes());
  model_.device().copy(batch_.targets.raw(), batch.targets.raw(), batch.targets.bytes());
  noise_seed_.set(noise_seed(plan_.config.seed, step, index));
}

// Of the batch that is loaded. Recorded on `tape`, if there is one. The teacher's pass never is.
Var Trainer::batch_loss(int depth, Tape* tape) const {
  Pass pass{.training = true,
            .key = {noise_seed_, 0, 0},
            .recompute = tape && plan_.config.recompute,
            .exit_gate_alone = !plan_.trained_prefix.empty()};
  std::optional<Teacher> teacher;
  if (teacher_) pass.teacher = &teacher.emplace(teacher_->teach(batch_.tokens, plan_.distillation));
  const Record on(tape);
  return model_.loss(batch_.tokens, batch_.targets, depth, pass);
}

// Of a micro-batch; rehearsed once for each depth that comes up.
double Trainer::executed_flops(int depth) {
  const auto [it, fresh] = flops_.try_emplace(depth, 0);
  if (fresh) it->second = model_.training_flops(plan_.order.context_length, depth);
  return it->second * static_cast<double>(plan_.config.batch_size * plan_.order.context_length);
}

void Trainer::log_step(const StepStats& stats, double seconds) {
  const double tokens =
      static_cast<double>(plan_.config.batch_size * plan_.config.grad_accum * plan_.order.context_length);
  Json record{{"step", state_.step},
              {"loss", stats.loss},
              {"lr", stats.lr},
              {"grad_norm", stats.grad_norm},
              {"depth", stats.depth},
              {"tokens", state_.tokens},
              {"tokens_per_second", tokens / seconds},
              {"flops", stats.flops}};
  const double peak = plan_.config.peak_tflops.value_or(0) * 1e12;
  record["mfu"] = peak > 0 ? Json(stats.flops / seconds / peak) : Json(nullptr);
  if (!leads()) return;
  log_->write(record);
  progress_.live(
      fmt::format("step {}/{} | loss {:.4f}{} | lr {:.2e} | norm {:.2f} | depth {:.1f} | {:.0f} tokens/s", state_.step,
                  plan_.steps, stats.loss, last_val_, stats.lr, stats.grad_norm, stats.depth, tokens / seconds),
      state_.step, plan_.steps, first_step_);
}

std::optional<EvalResult> Trainer::evaluate_now(std::vector<int> depths, bool causal_routing) {
  EvalOptions options{.depths = std::move(depths),
                      .batch_size = plan_.config.batch_size,
                      .most_batches = plan_.config.eval_batches,
                      .causal_routing = causal_routing};
  options.comm = &comm_;
  options.progress = [&](std::int64_t done, std::int64_t all) {
    progress_.live(fmt::format("step {}/{} | validation {}/{}", state_.step, plan_.steps, done, all), state_.step,
                   plan_.steps, first_step_);
    return signals_.received() == 0;
  };
  EvalResult result = evaluate(model_, *val_, options);
  interrupted_by_ = interrupting_signal();
  if (interrupted_by_ != 0) return std::nullopt;
  return result;
}

bool Trainer::validate() {
  const int full = model_.depths().full;
  const std::optional<EvalResult> result = evaluate_now(plan_.eval_depths, false);
  if (!result) return false;
  const std::vector<Routing> routings = model_.routings();
  const bool routed = std::any_of(routings.begin(), routings.end(), [](const Routing& r) { return r.causal; });
  const std::optional<EvalResult> causal = routed ? evaluate_now({full}, true) : EvalResult{};
  if (!causal) return false;

  Json by_depth = Json::object();
  std::string listed;
  for (const auto& [depth, loss] : result->by_depth) {
    by_depth[std::to_string(depth)] = loss.mean;
    listed += fmt::format(" {}: {:.4f}", depth, loss.mean);
  }
  const auto it = result->by_depth.find(full);
  const double loss = it != result->by_depth.end() ? it->second.mean : result->by_depth.rbegin()->second.mean;
  check(std::isfinite(loss), "step {}: the validation loss is {}; {}", state_.step, loss,
        first_bad_weight(model_.params()));
  Json record{{"step", state_.step}, {"val_loss", loss}, {"val_loss_by_depth", by_depth}};
  last_val_ = fmt::format(" | val {:.4f}", loss);
  progress_.line(fmt::format("step {:>6}  validation loss {:.4f}{}", state_.step, loss,
                             result->by_depth.size() > 1 ? "  by depth" + listed : ""));
  if (routed) record["val_loss_causal"] = causal->by_depth.at(full).mean;
  add_routes(record, *causal);
  warn_of_collapse(causal->depth_histogram);
  if (leads()) log_->write(record);
  if (!state_.best_val_loss || loss < *state_.best_val_loss) state_.best_val_loss = loss;
  state_.validated = state_.step;
  return true;
}

// Routers that treat all tokens alike are of no use.
void Trainer::warn_of_collapse(const std::map<int, double>& depth_histogram) {
  const int full = model_.depths().full;
  for (const auto& [steps, share] : depth_histogram)
    if (full > 1 && share > kCollapsedShare)
      progress_.line(
          fmt::format("warning: step {}: {:.1f} % of the tokens take {} of {} steps under causal routing: the routers "
                      "do not tell them apart",
                      state_.step, 100 * share, steps, full));
}

void Trainer::save(bool best) {
  const std::string bad = first_bad_weight(model_.params());
  check(bad.empty(), "step {}: its update made {}; it is not saved; {}", state_.step, bad, last_checkpoint());
  check_same_weights();
  const Moments moments = optimizer_.whole_moments();
  const std::string left =
      leads() ? save_checkpoint(plan_.config.out, model_, moments, state_, best, plan_.config.keep) : "";
  if (!left.empty()) progress_.line("warning: " + left);
  saved_step_ = state_.step;
}

void Trainer::check_same_weights() {
  if (comm_.size() == 1) return;
  const std::vector<std::int64_t> all = comm_.gather(fingerprint(model_.params().values()));
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    check(all[rank] == all[0], "step {}: rank {} has other weights than rank 0; {}", state_.step, rank,
          last_checkpoint());
}

std::string Trainer::last_checkpoint() const {
  return saved_step_ == 0 ? "no checkpoint was written" : "the last checkpoint is " + step_name(saved_step_);
}

int Trainer::interrupted() {
  const int signal = interrupted_by_;
  if (state_.step != saved_step_) save(false);
  const std::string next = state_.step == 0 ? "nothing to go on from" : fmt::format("to go on:\n  {}", resume_command_);
  progress_.line(fmt::format("interrupted by SIG{} after step {}; {}", sigabbrev_np(signal), state_.step, next));
  return 128 + signal;
}

void Trainer::stop_on_bad_gradient(std::int64_t step) {
  optimizer_.gather_gradients();
  fail("step {}: stopped before the update: {}; {}", step + 1, first_bad_gradient(model_.params()), last_checkpoint());
}

// The pass is a pure function of its key, so it can be run again with someone watching.
void Trainer::stop_on_bad_loss(std::int64_t step, std::int64_t index, int depth, double loss) {
  std::string first = first_bad_weight(model_.params());
  if (first.empty()) {
    load_batch(step, index);
    int count = 0;
    const Observe watch([&](std::string_view op, const Tensor& out) {
      ++count;
      if (first.empty() && out.device().kernels().count_not_finite(out) > 0)
        first = fmt::format("the output {} of {}, operation {} of the forward pass", out.shape(), op, count);
    });
    batch_loss(depth, nullptr);
  }
  fail("step {}: stopped before the update: the loss is {}; the first tensor that is not finite: {}; {}", step + 1,
       loss, first, last_checkpoint());
}

}  // namespace grt
