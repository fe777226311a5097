#include "train/checkpoint.h"

#include <algorithm>
#include <charconv>

#include "core/safetensors.h"
#include "train/host.h"

namespace grt {
namespace {

std::vector<NamedTensor> flat_parts(const Params& params, const Tensor& block, const std::string& prefix) {
  std::vector<NamedTensor> parts;
  for (const Param& p : params.all()) parts.push_back({prefix + p.name, block.range(p.offset, p.shape)});
  return parts;
}

std::string trainer_json(const TrainerState& state) {
  Json json{
      {"step", state.step}, {"tokens", state.tokens}, {"sequences", state.sequences}, {"validated", state.validated}};
  json["best_val_loss"] = state.best_val_loss ? Json(*state.best_val_loss) : Json(nullptr);
  json["trained_on"] = state.trained_on;
  json["validated_on"] = state.validated_on;
  json["flags"] = state.flags;
  return to_text(json, 1) + "\n";
}

// Some exports store the tied head a second time.
void check_tied_head(const Safetensors& file, const Param& wte, const Tensor& values, const fs::path& path) {
  const Tensor embedding = Tensor::empty(wte.shape, values.dtype(), values.device()), head = Tensor::like(embedding);
  file.read(wte.name, embedding);
  file.read(kTiedHead, head);
  visit_real(head.dtype(), [&]<class T>() {
    const std::int64_t used = wte.used_rows * wte.shape.last();  // rows of padding mean nothing
    const std::vector<T> stored = on_host<T>(head), tied = on_host<T>(embedding);
    check(std::equal(stored.begin(), stored.begin() + used, tied.begin()),
          "{}: {} differs from wte.weight, but the head is tied", path.string(), kTiedHead);
  });
}

void remove_old(const fs::path& out, const std::string& newest, int keep) {
  const std::string best = pointed_to(out, "best");
  std::vector<std::string> steps;
  for (const auto& entry : fs::directory_iterator(out)) {
    const std::string name = entry.path().filename().string();
    // What a process that was killed left behind.
    if (name.starts_with(".step-") || (name.starts_with(".") && name.find(".tmp-") != name.npos))
      fs::remove_all(entry.path());
    if (step_number(name) && name != newest && name != best) steps.push_back(name);
  }
  std::sort(steps.begin(), steps.end(), [](const auto& a, const auto& b) { return *step_number(a) < *step_number(b); });
  const auto surplus = static_cast<std::int64_t>(steps.size()) - std::max(0, keep - 1);
  for (std::int64_t i = 0; i < surplus; ++i) {
    const fs::path doomed = out / ("." + steps[i] + ".removed");  // never half a directory under a checkpoint's name
    fs::rename(out / steps[i], doomed);
    fs::remove_all(doomed);
  }
}

}  // namespace

std::string step_name(std::int64_t step) { return fmt::format("step-{:08}", step); }

std::optional<std::int64_t> step_number(const std::string& name) {
  if (!name.starts_with("step-")) return {};
  std::int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + 5, end, step);
  return error == std::errc{} && stop == end && step >= 0 ? std::optional(step) : std::nullopt;
}

std::string pointed_to(const fs::path& out, const char* name) {
  std::error_code ignored;
  if (!fs::exists(out / name, ignored)) return {};
  std::string text = read_file(out / name, 4096);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  check(step_number(text).has_value(), "{}: must hold the name of a step directory, not \"{}\"", (out / name).string(),
        text);
  return text;
}

bool is_checkpoint(const fs::path& directory) {
  std::error_code ignored;
  return fs::is_regular_file(directory / "config.json", ignored) &&
         fs::is_regular_file(directory / "model.safetensors", ignored);
}

fs::path resolve_checkpoint(const fs::path& where) {
  std::error_code ignored;
  check(fs::is_directory(where, ignored),
        "{}: not a directory; a checkpoint is a directory with config.json and model.safetensors", where.string());
  if (is_checkpoint(where)) return where;
  const std::string latest = pointed_to(where, "latest");
  check(!latest.empty(),
        "{}: holds neither config.json and model.safetensors nor a file `latest` that names a checkpoint",
        where.string());
  check(is_checkpoint(where / latest), "{}: names {}, which holds no config.json and model.safetensors",
        (where / "latest").string(), latest);
  return where / latest;
}

void check_weights(const Params& params, const Safetensors& file, const std::string& where) {
  for (const Param& p : params.all()) {
    const auto it = file.entries().find(p.name);
    check(it != file.entries().end(), "{}: tensor {} {} is missing", where, p.name, p.shape);
    const auto& shape = it->second.shape;
    bool same = static_cast<int>(shape.size()) == p.shape.rank();
    for (int i = 0; same && i < p.shape.rank(); ++i) same = shape[i] == p.shape[i];
    check(same, "{}: tensor {} must be {}, not ({})", where, p.name, p.shape, fmt::join(shape, ", "));
  }
  for (const auto& [name, entry] : file.entries())
    check(params.find(name) || (name == kTiedHead && params.find("wte.weight")),
          "{}: tensor {} belongs to no part of this model", where, name);
}

void load_parameters(Params& params, const fs::path& path) {
  const Safetensors file(path);
  check_weights(params, file, path.string());
  for (const Param& p : params.all()) {
    params.fill(
        p,
        [&](const Tensor& to) {
          file.read(p.name, to);
          const std::int64_t columns = p.shape.numel() / p.shape[0], padding = p.shape[0] - p.used_rows;
          if (padding > 0) {
            const Tensor rows = to.range(p.used_rows * columns, {padding, columns});
            rows.device().zero(rows.raw(), rows.bytes());
          }
        },
        path.string());
  }
  if (file.contains(kTiedHead)) check_tied_head(file, *params.find("wte.weight"), params.values(), path);
}

std::unique_ptr<LanguageModel> load_model(const fs::path& checkpoint, Device& device, DType dtype,
                                          std::optional<DType> packed) {
  const fs::path dir = resolve_checkpoint(checkpoint);
  const std::string config = (dir / "config.json").string();
  std::unique_ptr<LanguageModel> model = make_model(read_json(config), config);
  const fs::path weights = dir / "model.safetensors";
  check_weights(model->params(), Safetensors(weights), weights.string());  // before memory is taken for a mere claim
  if (packed) model->pack_weights(*packed);
  model->params().allocate(device, dtype);
  load_parameters(model->params(), weights);
  device.release_idle();  // what was packed was larger
  return model;
}

std::string save_checkpoint(const fs::path& out, const LanguageModel& model, const Moments& moments,
                            const TrainerState& state, bool best, int keep) {
  const std::string name = step_name(state.step);
  const Params& params = model.params();
  DirectoryWriter step(out / name);
  write_file(step / "config.json", to_text(model.config_json(), 1) + "\n");
  write_safetensors(step / "model.safetensors", flat_parts(params, params.values(), ""),
                    {{"format", "grt"}, {"step", std::to_string(state.step)}});
  std::vector<NamedTensor> both = flat_parts(params, moments.m, "m.");
  for (NamedTensor& t : flat_parts(params, moments.v, "v.")) both.push_back(std::move(t));
  write_safetensors(step / "optimizer.safetensors", both);
  write_file(step / "trainer.json", trainer_json(state));
  step.replace();
  if (best) write_file(out / "best", name + "\n");  // first: a resumed run would not find it again
  write_file(out / "latest", name + "\n");
  try {
    remove_old(out, name, keep);
  } catch (const fs::filesystem_error& e) {
    return fmt::format("{}: older checkpoints cannot be removed: {}", out.string(), e.code().message());
  }
  return {};
}

void amend_checkpoint(const fs::path& out, const TrainerState& state, bool best) {
  const std::string name = step_name(state.step);
  write_file(out / name / "trainer.json", trainer_json(state));
  if (best) write_file(out / "best", name + "\n");
}

TrainerState load_trainer_state(const fs::path& checkpoint) {
  const std::string file = (checkpoint / "trainer.json").string();
  const Json json = read_json(file);
  const auto entry = [&](const char* key, const char* expected, bool (*fits)(const Json&)) {
    const Json value = json.is_object() && json.contains(key) ? json[key] : Json(nullptr);
    check(fits(value), "{}: {} must be {}, not {}", file, key, expected, value.dump());
    return value;
  };
  const auto count = [&](const char* key) {
    const auto fits = [](const Json& v) { return v.is_number_unsigned() && v.get<std::uint64_t>() <= 1ull << 53; };
    return entry(key, "a whole number from 0 to 2^53", fits).get<std::int64_t>();
  };
  TrainerState state;
  state.step = count("step");
  state.tokens = count("tokens");
  state.sequences = count("sequences");
  state.validated = json.contains("validated") ? count("validated") : state.step;
  const Json best =
      entry("best_val_loss", "a number or null", [](const Json& v) { return v.is_null() || v.is_number(); });
  if (!best.is_null()) state.best_val_loss = best.get<double>();
  for (const auto& [key, text] : {std::pair("trained_on", &state.trained_on), {"validated_on", &state.validated_on}})
    if (json.contains(key)) *text = entry(key, "a text", [](const Json& v) { return v.is_string(); });
  state.flags = entry("flags", "an object", [](const Json& v) { return v.is_object(); });
  if (const std::optional<std::int64_t> named = step_number(checkpoint.filename().string()))
    check(*named == state.step, "{}: step is {}, but that of its directory is {}", file, state.step, *named);
  return state;
}

void load_moments(const Params& params, const Moments& moments, const fs::path& checkpoint) {
  const fs::path path = checkpoint / "optimizer.safetensors";
  const Safetensors file(path);
  for (const char kind : {'m', 'v'})
    for (const auto& [name, tensor] :
         flat_parts(params, kind == 'm' ? moments.m : moments.v, std::string(1, kind) + ".")) {
      file.read(name, tensor);
      const std::string bad = describe_bad(name, tensor);
      check(bad.empty(), "{}: {}", path.string(), bad);
      // The update divides by the square root of v, a mean of squares.
      const double low = kind == 'v' ? least(tensor) : 0;
      check(low >= 0, "{}: {} has {}, where a mean of squares is 0 or more", path.string(), name, low);
    }
}

}  // namespace grt
