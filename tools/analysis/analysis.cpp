#include "tools/analysis/analysis.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "tools/analysis/alike.h"
#include "tools/analysis/attention.h"
#include "tools/analysis/definitions.h"
#include "tools/analysis/exits.h"
#include "tools/analysis/motion.h"
#include "tools/analysis/prompts.h"
#include "tools/analysis/steps.h"
#include "tools/analysis/weights.h"
#include "train/checkpoint.h"
#include "train/config.h"
#include "train/describe.h"
#include "train/evaluate.h"
#include "train/optimizer.h"
#include "train/progress.h"

namespace grt {
namespace {

constexpr double kForcedGates[] = {0, 0.25, 0.5, 0.75, 1};
constexpr std::pair<const char*, Reinjection> kReinjections[] = {{"prelude", Reinjection::prelude},
                                                                 {"state", Reinjection::state},
                                                                 {"embedding", Reinjection::embedding},
                                                                 {"zero", Reinjection::zero}};

// A live line of its own for one part of the work.
Shown shown(const std::string& what) {
  return [what, progress = std::make_shared<Progress>(2)](std::int64_t done, std::int64_t all) {
    progress->live(fmt::format("{}: {}/{}", what, done, all), done, all);
  };
}

// The last part of the path; for OUT/step-N the run's name, too.
std::string short_name(const std::string& checkpoint) {
  fs::path path = fs::path(checkpoint).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const std::string last = path.filename().string();
  return step_number(last) ? path.parent_path().filename().string() + "/" + last : last;
}

// The exits within the trained depth, and those beyond.
std::vector<int> chosen_depths(const LanguageModel& model, const std::optional<std::string>& beyond) {
  const DepthRange range = model.depths();
  std::vector<int> depths = parse_depths("all", model, "--depth-beyond");
  std::vector<int> deeper;
  if (beyond && *beyond != "none") {
    deeper = parse_depths(*beyond, model, "--depth-beyond");
    check(deeper.front() > range.full, "--depth-beyond: {} is not beyond the trained depth {}", deeper.front(),
          range.full);
  } else if (!beyond && range.highest == kAnyDepth) {
    for (int third = 1; third <= 3; ++third) deeper.push_back(range.full + (third * range.full + 2) / 3);
  }
  depths.insert(depths.end(), deeper.begin(), deeper.end());
  depths.erase(std::unique(depths.begin(), depths.end()), depths.end());
  return depths;
}

void check_same_text(const char* flag, const std::string& name, const LanguageModel& model,
                     const LanguageModel& other) {
  const BackboneConfig &a = model.config(), &b = other.config();
  check(a.tokenizer == b.tokenizer && a.vocab_size == b.vocab_size,
        "{} {}: its tokens are {} of {} ids, those of --checkpoint {} of {}", flag, name, b.tokenizer, b.vocab_size,
        a.tokenizer, a.vocab_size);
}

void check_finite_loss(double loss, int depth, const std::string& where, const LanguageModel& model) {
  if (!std::isfinite(loss))
    fail("{}: the loss at depth {} is {}; {}", where, depth, loss, blame_weights(model.params()));
}

// One pass over the text, which everything that it shows is taken from.
struct Survey {
  ExitTally exits;
  StepTally steps;
  StateSimilarity alike;
};

void run_survey(Survey& survey, const Source& source, const LanguageModel* twin) {
  const Look look = [&](std::string_view what, int step, const Tensor& value) {
    survey.steps.see(what, step, value);
    survey.alike.see(what, step, value);
  };
  const Look twin_look = [&](std::string_view what, int step, const Tensor& value) {
    survey.alike.see_twin(what, step, value);
  };
  Pass pass = source.pass(), twin_pass = source.pass();
  pass.look = &look;
  twin_pass.look = &twin_look;
  source.for_batches(shown("states and exits, window"), [&](const Batch& batch, std::span<const Window>) {
    std::map<int, Tensor> hidden;
    source.model.exits(batch.tokens, survey.exits.depths(), pass,
                       [&](int depth, const Var& z) { hidden[depth] = z.value(); });
    survey.exits.add(hidden, batch.targets);
    if (twin) twin->hidden(batch.tokens, twin->depths().full, twin_pass);
    survey.alike.end_batch(batch.tokens.numel());
  });
  for (const int depth : survey.exits.depths())
    check_finite_loss(survey.exits.mean(depth), depth, source.data.name(), source.model);
}

Json gate_section(const Source& source, const Survey& survey) {
  const int full = source.model.depths().full;
  Json forced = Json::array();
  for (const double gate : kForcedGates) {
    Pass pass = source.pass();
    pass.forced_gate = static_cast<float>(gate);
    const double loss = source.mean_loss(full, pass, shown(fmt::format("gate forced to {}, window", gate)));
    forced.push_back({{"gate", gate}, {"loss", loss}});
  }
  return {{"steps", survey.steps.gates()}, {"forced", forced}, {"learned_loss", survey.exits.mean(full)}};
}

Json reinjection_section(const Source& source, double loss) {
  Json rows = Json::array();
  for (const auto& [name, anchor] : kReinjections) {
    Pass pass = source.pass();
    pass.reinjection = anchor;
    const bool usual = anchor == Reinjection::prelude;
    const auto other = [&] {
      return source.mean_loss(source.model.depths().full, pass, shown(fmt::format("anchor {}, window", name)));
    };
    rows.push_back({{"anchor", name}, {"loss", usual ? loss : other()}});
  }
  return rows;
}

// The model again in f64, for what is differentiated by differences: on the CPU, which alone computes in it.
Json dynamics_section(const AnalysisConfig& config, const Source& source, const StepTally& steps) {
  Json json{{"initial_norm", steps.initial_norm()}, {"steps", steps.dynamics()}};
  if (source.model.config().architecture == "dense") return json;
  const std::unique_ptr<Device> cpu = open_cpu();
  const auto exact = load_model(*config.checkpoint, *cpu, DType::f64);
  const Source again{*exact, source.data, source.batch_size, source.seed};
  const std::vector<double> gains = step_gains(again, shown("gain, step"));
  for (std::size_t r = 0; r < gains.size(); ++r) json["steps"][r]["gain"] = gains[r];
  const Fates fates = classify_tokens(again, shown("repeated steps, window"));
  if (fates.classification.is_null()) return json;
  json["classification"] = fates.classification;
  json["extended_steps"] = fates.steps;
  return json;
}

Json early_exits(const std::string& name, const LanguageModel& model, const Json& points) {
  return {{"name", name}, {"architecture", model.config().architecture}, {"points", points}};
}

Json early_exits_of_other(const AnalysisConfig& config, const std::string& name, const std::string& checkpoint,
                          const Source& source) {
  const auto other = load_model(checkpoint, source.model.device(), source.model.params().values().dtype());
  EvalOptions options{.depths = parse_depths("all", *other, "--compare"), .batch_size = config.batch_size};
  options.seed = config.seed;
  options.progress = [show = shown(fmt::format("exits of {}, window", name))](std::int64_t done, std::int64_t all) {
    show(done, all);
    return true;
  };
  Json points = Json::array();
  for (const auto& [depth, loss] : evaluate(*other, source.data, options).by_depth) {
    check_finite_loss(loss.mean, depth, checkpoint, *other);
    points.push_back({{"depth", depth}, {"flops_per_token", executed_flops(*other, depth)}, {"loss", loss.mean}});
  }
  return early_exits(name, *other, points);
}

// The checkpoint, its twin and those to compare with.
std::vector<std::string> checkpoints_of(const AnalysisConfig& config) {
  std::vector<std::string> places = {*config.checkpoint};
  if (config.twin) places.push_back(*config.twin);
  places.insert(places.end(), config.compare.begin(), config.compare.end());
  return places;
}

// One row for each, by the name that was `given` for it. A name that is not the only one of its kind is the whole path.
Json early_exit_section(const AnalysisConfig& given, const AnalysisConfig& config, const Source& source,
                        const ExitTally& exits) {
  const std::vector<std::string> typed = checkpoints_of(given), places = checkpoints_of(config);
  std::vector<std::string> names;
  for (const std::string& place : typed) names.push_back(short_name(place));
  const auto label = [&](std::size_t i) {
    return std::count(names.begin(), names.end(), names[i]) == 1 ? names[i] : typed[i];
  };
  Json rows = Json::array({early_exits(label(0), source.model, exits.early_exit_points())});
  for (std::size_t i = 1; i < places.size(); ++i)
    rows.push_back(early_exits_of_other(config, label(i), places[i], source));
  return rows;
}

Json trajectories_section(const AnalysisConfig& config, const Source& source) {
  const BackboneConfig& c = source.model.config();
  const auto tokenizer = make_tokenizer(c.tokenizer);
  const bool fits = tokenizer->vocab_size() == c.vocab_size;
  check(fits || !config.prompt, "--prompt: the tokenizer {} has {} ids, but the model's vocab_size is {}", c.tokenizer,
        tokenizer->vocab_size(), c.vocab_size);
  return fits ? measure_trajectories(source, *tokenizer, config.prompt, config.target) : Json(nullptr);
}

void check_config(const AnalysisConfig& config) {
  check(config.checkpoint.has_value(), "--checkpoint: expected the directory of a checkpoint");
  check(config.data.has_value(), "--data: expected a token file");
  check(config.batch_size >= 1, "--batch-size: must be at least 1, not {}", config.batch_size);
  check(!config.prompt || !config.prompt->empty(), "--prompt: expected a text, not an empty one");
  check(!config.target || config.prompt, "--target: expected --prompt, which it follows");
  check(!config.target || !config.target->empty(), "--target: expected a text, not an empty one");
}

// With the directories of steps in the place of their runs', whose `latest` may move on meanwhile.
AnalysisConfig resolved(AnalysisConfig config) {
  config.checkpoint = resolve_checkpoint(*config.checkpoint).string();
  if (config.twin) config.twin = resolve_checkpoint(*config.twin).string();
  for (std::string& other : config.compare) other = resolve_checkpoint(other).string();
  return config;
}

Json header(const AnalysisConfig& config, const Source& source) {
  return {{"checkpoint", *config.checkpoint},
          {"data", *config.data},
          {"tokens", source.data.size() - 1},
          {"windows", source.windows().size()},
          {"architecture", source.model.config().architecture},
          {"layout", layout(source.model.config_json())},
          {"config", source.model.config_json()},
          {"full_depth", source.model.depths().full},
          {"seed", config.seed}};
}

}  // namespace

Json analyze(const AnalysisConfig& given, Device& device, DType dtype) {
  check_config(given);
  const AnalysisConfig config = resolved(given);
  const auto model = load_model(*config.checkpoint, device, dtype);
  const std::vector<int> depths = chosen_depths(*model, config.depth_beyond);
  auto twin = config.twin ? load_model(*config.twin, device, dtype) : nullptr;
  if (twin) {
    check_same_text("--twin", *config.twin, *model, *twin);
    check(twin->config().context_length == model->config().context_length,
          "--twin {}: its context is {} tokens, that of --checkpoint {}", *config.twin, twin->config().context_length,
          model->config().context_length);
  }
  for (const std::string& other : config.compare) {
    const std::string file = (fs::path(other) / "config.json").string();
    check_same_text("--compare", other, *model, *make_model(read_json(file), file));
  }
  const TokenData data = first_tokens(*config.data, model->config().vocab_size, config.tokens);
  const Source source{*model, data, config.batch_size, config.seed};

  Json json = header(config, source);
  const Json trajectories = trajectories_section(config, source);  // first: a prompt may be too long
  Survey survey{ExitTally(*model, depths), StepTally(*model), StateSimilarity(*model, twin.get(), data.size() - 1)};
  run_survey(survey, source, twin.get());
  twin.reset();

  json["exits"] = survey.exits.exits();
  json["total_reduction"] = survey.exits.total_reduction();
  if (survey.steps.gated()) json["gates"] = gate_section(source, survey);
  if (model->reinjects()) json["reinjection"] = reinjection_section(source, survey.exits.mean(model->depths().full));
  json["dynamics"] = dynamics_section(config, source, survey.steps);
  if (Json alike = survey.alike.result(); !alike.is_null()) json["cka"] = alike;
  json["difficulty"] = survey.exits.difficulty();
  if (survey.steps.gated())
    json["difficulty"]["gate_correlation"] = survey.steps.gate_correlations(survey.exits.first_losses());
  if (Json weights = measure_weights(*model); !weights.empty()) json["weights"] = weights;
  json["heads"] = measure_heads(source, shown("heads, window"));
  if (!trajectories.is_null()) json["trajectories"] = trajectories;
  json["early_exit"] = early_exit_section(given, config, source, survey.exits);
  json["definitions"] = definitions();
  return parse_json(to_text(json), "analysis.json");  // as a reader will find it: what is not defined is null
}

}  // namespace grt
