#include "train/interchange.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/json.h"
#include "train/checkpoint.h"

namespace grt {
namespace {

constexpr const char* kEmbedding = "wte.weight";

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("({})", fmt::join(shape, ", ")); }

// "a (3, 4), b (7) and 12 more"
std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 8;
  const std::size_t shown = std::min(names.size(), kMost);
  std::string text =
      fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

// Is `stored` a table without the rows of padding that `p` has?
bool without_padding(const Param& p, const std::vector<std::int64_t>& stored) {
  return p.used_rows < p.shape[0] && stored == std::vector<std::int64_t>{p.used_rows, p.shape[1]};
}

bool fits(const Param& p, const std::vector<std::int64_t>& stored, bool transposed) {
  if (!transposed && without_padding(p, stored)) return true;
  std::vector<std::int64_t> ours;
  for (int i = 0; i < p.shape.rank(); ++i) ours.push_back(p.shape[i]);
  if (transposed) std::reverse(ours.begin(), ours.end());
  return stored == ours;
}

void read_transposed(const TensorFiles::Stored& from, const Tensor& to) {
  const std::int64_t rows = to.dim(0), columns = to.dim(1);
  const Tensor turned = Tensor::empty({columns, rows}, DType::f32, to.device());
  from.read(turned);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c) to.data<float>()[r * columns + c] = turned.data<float>()[c * rows + r];
}

void read_one(const TensorFiles::Stored& from, bool transposed, const Param& p) {
  const Tensor to = p.var.value();
  if (transposed) return read_transposed(from, to);
  if (without_padding(p, from.shape())) return from.read(to.rows(0, p.used_rows));
  from.read(to);
  if (p.used_rows == p.shape[0]) return;
  const Tensor padding = to.rows(p.used_rows, p.shape[0] - p.used_rows);
  padding.device().zero(padding.raw(), padding.bytes());
}

void check_tied_head(const TensorFiles::Stored& head, const Param& wte) {
  const auto& shape = head.shape();
  check(fits(wte, shape, false), "{}: tensor {} must be {}, not {}", head.path, head.name, wte.shape,
        shape_text(shape));
  const Tensor values = Tensor::empty({shape[0], shape[1]}, DType::f32, wte.var.device());
  head.read(values);
  const std::int64_t used = wte.used_rows * shape[1];
  check(std::equal(values.data<float>(), values.data<float>() + used, wte.var.value().data<float>()),
        "{}: {} differs from {}, but our head is tied to the embedding", head.path, head.name, kEmbedding);
}

// The numbers in `name` that the stars of `pattern` stand for; nothing if it does not match.
std::optional<std::vector<std::string>> match(const std::string& pattern, const std::string& name) {
  std::vector<std::string> numbers;
  std::size_t at = 0;
  for (const char c : pattern) {
    if (c != '*') {
      if (at == name.size() || name[at++] != c) return {};
      continue;
    }
    const std::size_t begin = at;
    while (at < name.size() && name[at] >= '0' && name[at] <= '9') ++at;
    if (at == begin) return {};
    numbers.push_back(name.substr(begin, at - begin));
  }
  return at == name.size() ? std::optional(numbers) : std::nullopt;
}

std::string filled(const std::string& pattern, const std::vector<std::string>& numbers) {
  std::string name;
  std::size_t next = 0;
  for (const char c : pattern) c == '*' ? name += numbers[next++] : name += c;
  return name;
}

Origin parse_origin(const Json& value, const std::string& where) {
  if (value.is_string()) return {value.get<std::string>()};
  check(value.is_object() && value.contains("name") && value["name"].is_string(),
        "{}: must be a name or {{\"name\": ..., \"transpose\": true}}, not {}", where, to_text(value, -1));
  for (const auto& [key, ignored] : value.items())
    check(key == "name" || key == "transpose", "{}: unknown key \"{}\"", where, key);
  const bool given = value.contains("transpose");
  check(!given || value["transpose"].is_boolean(), "{}: transpose must be true or false", where);
  return {value["name"].get<std::string>(), given && value["transpose"].get<bool>()};
}

}  // namespace

Origins same_names(const Params& params) {
  Origins origins;
  for (const Param& p : params.all()) origins[p.name] = {p.name};
  return origins;
}

Origins read_map(const std::string& file, const Params& params) {
  const Json json = read_json(file);
  check(json.is_object(), "{}: must be an object of names", file);
  Origins exact, by_pattern;
  for (const auto& [ours, value] : json.items()) {
    const std::string where = fmt::format("{}: \"{}\"", file, ours);
    const Origin origin = parse_origin(value, where);
    const auto stars = std::count(ours.begin(), ours.end(), '*');
    check(stars == std::count(origin.name.begin(), origin.name.end(), '*'), "{}: has {} *, \"{}\" must have as many",
          where, stars, origin.name);
    bool used = false;
    for (const Param& p : params.all()) {
      const auto numbers = match(ours, p.name);
      if (!numbers) continue;
      used = true;
      check(!origin.transposed || p.shape.rank() == 2, "{}: {} {} cannot be transposed", where, p.name, p.shape);
      const bool fresh = (stars > 0 ? by_pattern : exact)
                             .emplace(p.name, Origin{filled(origin.name, *numbers), origin.transposed})
                             .second;
      check(fresh, "{}: {} is matched by two patterns", where, p.name);
    }
    check(used, "{}: names no tensor of this model", where);
  }
  exact.merge(by_pattern);
  exact.merge(same_names(params));
  return exact;
}

void check_origins(const Params& params, const TensorFiles& files, const Origins& origins,
                   const std::function<bool(const std::string&)>& ignored) {
  std::vector<std::string> missing, unused;
  std::set<std::string> used = {kTiedHead};
  for (const Param& p : params.all()) {
    const Origin& origin = origins.at(p.name);
    used.insert(origin.name);
    const TensorFiles::Stored* stored = files.find(origin.name);
    const std::string theirs = origin.name == p.name ? "" : " from " + origin.name;
    if (!stored) {
      missing.push_back(fmt::format("{}{} {}", p.name, theirs, p.shape));
      continue;
    }
    check(fits(p, stored->shape(), origin.transposed), "{}: tensor {} must be {}{}, not {}", stored->path, stored->name,
          origin.transposed ? Shape{p.shape[1], p.shape[0]} : p.shape, origin.transposed ? " (ours, transposed)" : "",
          shape_text(stored->shape()));
  }
  for (const auto& [name, stored] : files.all())
    if (!used.count(name) && !ignored(name))
      unused.push_back(fmt::format("{} {}", stored.name, shape_text(stored.shape())));
  if (missing.empty() && unused.empty()) return;
  std::string what;
  if (!missing.empty())
    what += fmt::format("{} of the model's tensors {} missing: {}", missing.size(), missing.size() == 1 ? "is" : "are",
                        listed(missing));
  if (!unused.empty())
    what += fmt::format("{}{} to no part of the model: {}", what.empty() ? "" : "; ",
                        unused.size() == 1 ? "1 tensor belongs" : fmt::format("{} tensors belong", unused.size()),
                        listed(unused));
  fail("{}: {}", files.where(), what);
}

void read_tensors(Params& params, const TensorFiles& files, const Origins& origins) {
  for (const Param& p : params.all()) {
    const Origin& origin = origins.at(p.name);
    read_one(*files.find(origin.name), origin.transposed, p);
  }
  const Param* wte = params.find(kEmbedding);
  if (const TensorFiles::Stored* head = files.find(kTiedHead); head && wte) check_tied_head(*head, *wte);
}

Tensor stored_as(const Tensor& f32, DType dtype) {
  if (dtype == DType::f32) return f32;
  check(dtype == DType::bf16, "stored_as: f32 or bf16, not {}", name_of(dtype));
  const Tensor narrow = Tensor::empty(f32.shape(), DType::bf16, f32.device());
  for (std::int64_t i = 0; i < f32.numel(); ++i) {
    const float x = f32.data<float>()[i];
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
    narrow.data<std::uint16_t>()[i] = static_cast<std::uint16_t>((std::isnan(x) ? bits | 0x400000 : rounded) >> 16);
  }
  return narrow;
}

void check_new(const fs::path& out) {
  std::error_code ignored;
  check(!fs::exists(fs::symlink_status(out, ignored)) || (fs::is_directory(out, ignored) && fs::is_empty(out, ignored)),
        "{}: exists already; the result goes into a new directory", out.string());
}

void write_checkpoint(const fs::path& out, const LanguageModel& model, DType dtype,
                      const std::map<std::string, std::string>& metadata) {
  std::vector<NamedTensor> tensors;
  for (const Param& p : model.params().all()) tensors.push_back({p.name, stored_as(p.var.value(), dtype)});
  check_new(out);
  DirectoryWriter directory(out);
  write_file(directory / "config.json", to_text(model.config_json(), 1) + "\n");
  write_safetensors(directory / "model.safetensors", tensors, metadata);
  directory.commit();
}

}  // namespace grt
