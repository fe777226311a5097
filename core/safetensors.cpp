// Reading treats the file as hostile: every length is compared with what is left before it is used.
#include "core/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/json.h"

namespace grt {
namespace {

constexpr std::uint64_t kMaxHeader = 100'000'000;
constexpr std::size_t kPrefix = 8;  // bytes of the header's length
constexpr std::size_t kBlock = std::size_t{1} << 20;
constexpr const char* kMetadata = "__metadata__";

std::string quoted(const std::string& name) {
  return name.size() <= 200 ? '"' + name + '"' : '"' + name.substr(0, 200) + "...\"";
}

std::string extents_of(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (std::int64_t d : shape) text += (text.empty() ? "" : ", ") + std::to_string(d);
  return "(" + text + ")";
}

std::uint64_t bits_of(const std::string& dtype) {
  static const std::map<std::string, std::uint64_t> kBits = {
      {"F64", 64}, {"I64", 64},    {"U64", 64},    {"C64", 64},    {"F32", 32},    {"I32", 32},   {"U32", 32},
      {"F16", 16}, {"I16", 16},    {"U16", 16},    {"BF16", 16},   {"I8", 8},      {"U8", 8},     {"BOOL", 8},
      {"F4", 4},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}};
  const auto it = kBits.find(dtype);
  return it == kBits.end() ? 0 : it->second;
}

// Whole bytes of `shape` at `bits` an element; false if they overflow 64 bits or are not whole.
bool bytes_of(const std::vector<std::int64_t>& shape, std::uint64_t bits, std::uint64_t& bytes) {
  std::uint64_t n = bits;
  for (std::int64_t d : shape) {
    if (__builtin_mul_overflow(n, static_cast<std::uint64_t>(d), &n)) return false;
  }
  bytes = n / 8;
  return n % 8 == 0;
}

std::uint64_t natural(const nlohmann::json& value, const std::string& where, const char* what) {
  check(value.is_number_unsigned(), "{}: {} must be whole numbers from 0 on, not {}", where, what,
        value.dump().substr(0, 100));
  const auto n = value.get<std::uint64_t>();
  check(n <= std::uint64_t{1} << 62, "{}: {} hold {}, which is too large", where, what, n);
  return n;
}

SafetensorsEntry parse_entry(const nlohmann::json& json, const std::string& where) {
  check(json.is_object(), "{}: an object is expected", where);
  for (const char* key : {"dtype", "shape", "data_offsets"}) check(json.contains(key), "{}: has no {}", where, key);
  for (const auto& [key, value] : json.items()) {
    check(key == "dtype" || key == "shape" || key == "data_offsets", "{}: unknown field {}", where, quoted(key));
  }
  const auto &dtype = json["dtype"], &shape = json["shape"], &offsets = json["data_offsets"];
  check(dtype.is_string() && shape.is_array(), "{}: dtype must be a string and shape a list", where);
  check(offsets.is_array() && offsets.size() == 2, "{}: data_offsets must be a list of two numbers", where);

  SafetensorsEntry entry;
  entry.dtype = dtype.get<std::string>();
  for (const auto& d : shape) entry.shape.push_back(static_cast<std::int64_t>(natural(d, where, "shape's extents")));
  entry.begin = natural(offsets[0], where, "data_offsets");
  entry.end = natural(offsets[1], where, "data_offsets");
  return entry;
}

void check_entry(const SafetensorsEntry& e, std::uint64_t data_size, const std::string& where) {
  const std::uint64_t bits = bits_of(e.dtype);
  check(bits != 0, "{}: unknown dtype {}", where, quoted(e.dtype));
  std::uint64_t bytes = 0;
  check(bytes_of(e.shape, bits, bytes), "{}: shape {} of {} is no possible number of bytes", where, extents_of(e.shape),
        e.dtype);
  check(e.begin <= e.end, "{}: begins at byte {} and ends at {}", where, e.begin, e.end);
  check(e.end <= data_size, "{}: ends at byte {}, but the file has {} bytes of data", where, e.end, data_size);
  check(e.end - e.begin == bytes, "{}: shape {} of {} needs {} bytes, data_offsets give {}", where, extents_of(e.shape),
        e.dtype, bytes, e.end - e.begin);
}

// The tensors must cover the data section once, from its begin to its end.
void check_cover(const std::map<std::string, SafetensorsEntry>& entries, std::uint64_t data_size,
                 const std::string& file) {
  std::vector<std::pair<const SafetensorsEntry*, const std::string*>> order;
  for (const auto& [name, entry] : entries) order.emplace_back(&entry, &name);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first->begin, a.first->end) < std::pair(b.first->begin, b.first->end);
  });
  std::uint64_t covered = 0;
  for (const auto& [entry, name] : order) {
    check(entry->begin >= covered, "{}: tensor {} begins at byte {}, inside the tensor that ends at {}", file,
          quoted(*name), entry->begin, covered);
    check(entry->begin == covered, "{}: tensor {} begins at byte {}, bytes {} to there belong to no tensor", file,
          quoted(*name), entry->begin, covered);
    covered = entry->end;
  }
  check(covered == data_size, "{}: the tensors end at byte {}, but the file has {} bytes of data", file, covered,
        data_size);
}

// The JSON text between the length and the data.
std::string header_of(const OpenFile& opened) {
  const std::string file = opened.path().string();
  check(opened.size() >= kPrefix, "{}: has {} bytes, too few for a safetensors file", file, opened.size());
  std::array<std::uint8_t, kPrefix> prefix;
  opened.read(0, prefix.data(), kPrefix);
  std::uint64_t length = 0;
  for (std::size_t i = kPrefix; i-- > 0;) length = length << 8 | prefix[i];
  check(length <= kMaxHeader, "{}: no safetensors file: its header length is {}, more than {}", file, length,
        kMaxHeader);
  check(length <= opened.size() - kPrefix, "{}: the header has {} bytes, but the file ends after {}", file, length,
        opened.size() - kPrefix);
  std::string header(static_cast<std::size_t>(length), '\0');
  opened.read(kPrefix, header.data(), header.size());
  check(header.starts_with('{'), "{}: no safetensors file: its header does not begin with '{{'", file);
  return header;
}

float half_to_float(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in f32
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
  }
  const std::uint32_t wide = exponent == 31 ? 255 : exponent + (127 - 15);
  return std::bit_cast<float>(sign | wide << 23 | mantissa << 13);
}

// Element i of the unaligned array at `from`.
template <class T>
T element(const std::byte* from, std::size_t i) {
  T value;
  std::memcpy(&value, from + i * sizeof(T), sizeof(T));
  return value;
}

// False if dtype has no conversion to a real number here.
template <class T>
bool convert(const std::string& dtype, const std::byte* from, std::span<T> to) {
  const auto fill = [&](auto value_at) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = static_cast<T>(value_at(i));
    return true;
  };
  if (dtype == "F64") return fill([&](std::size_t i) { return element<double>(from, i); });
  if (dtype == "F32") return fill([&](std::size_t i) { return element<float>(from, i); });
  if (dtype == "F16") return fill([&](std::size_t i) { return half_to_float(element<std::uint16_t>(from, i)); });
  if (dtype != "BF16") return false;
  return fill([&](std::size_t i) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(element<std::uint16_t>(from, i)) << 16);
  });
}

// Fills `to` with what stands at byte `begin`, converted from `dtype` to T. False if there is no such conversion.
template <class T>
bool read_converted(const OpenFile& file, std::uint64_t begin, const std::string& dtype, const Tensor& to) {
  const std::size_t size = dtype == "F64" ? 8 : dtype == "F32" ? 4 : 2;  // of what can be converted
  const auto count = static_cast<std::size_t>(to.numel());
  std::vector<std::byte> stored;
  std::vector<T> values;
  if (!convert<T>(dtype, nullptr, values)) return false;
  for (std::size_t i = 0; i < count; i += values.size()) {
    values.resize(std::min(kBlock / sizeof(T), count - i));
    stored.resize(values.size() * size);
    file.read(begin + i * size, stored.data(), stored.size());
    convert<T>(dtype, stored.data(), values);
    to.device().copy(to.data<T>() + i, values.data(), values.size() * sizeof(T));
  }
  to.device().sync();
  return true;
}

// Fills `to` with the bytes that stand at `begin`.
void read_as_it_is(const OpenFile& file, std::uint64_t begin, const Tensor& to) {
  std::vector<std::byte> block;
  for (std::size_t i = 0; i < to.bytes(); i += block.size()) {
    block.resize(std::min(kBlock, to.bytes() - i));
    file.read(begin + i, block.data(), block.size());
    to.device().copy(static_cast<std::byte*>(to.raw()) + i, block.data(), block.size());
  }
  to.device().sync();
}

// Of what is not packed.
const char* stored_dtype(DType t) { return t == DType::i32 ? "I32" : t == DType::bf16 ? "BF16" : "F32"; }

std::size_t stored_size(DType t) { return t == DType::bf16 ? 2 : 4; }

std::string header_for(const std::vector<const NamedTensor*>& order, const std::map<std::string, std::string>& metadata,
                       const std::string& file) {
  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  std::uint64_t begin = 0;
  for (const NamedTensor* t : order) {
    check(t->name != kMetadata && !header.contains(t->name), "{}: two tensors would be named {}", file,
          quoted(t->name));
    const std::uint64_t end = begin + static_cast<std::uint64_t>(t->tensor.numel()) * stored_size(t->tensor.dtype());
    auto& entry = header[t->name];
    entry["dtype"] = stored_dtype(t->tensor.dtype());
    entry["shape"] = nlohmann::json::array();
    for (int i = 0; i < t->tensor.shape().rank(); ++i) entry["shape"].push_back(t->tensor.dim(i));
    entry["data_offsets"] = {begin, end};
    begin = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception&) {
    fail("{}: a tensor's name or the metadata is not UTF-8", file);
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  check(text.size() <= kMaxHeader, "{}: the header would have {} bytes, more than {}", file, text.size(), kMaxHeader);
  return text;
}

void write_values(FileWriter& file, const Tensor& t) {
  const std::size_t size = size_of(t.dtype()), bytes = t.bytes();
  std::vector<std::byte> block(std::min(bytes, kBlock));
  std::vector<float> rounded;
  for (std::size_t begin = 0; begin < bytes; begin += kBlock) {
    const std::size_t n = std::min(kBlock, bytes - begin);
    t.device().copy(block.data(), t.data<std::byte>() + begin, n);
    t.device().sync();
    if (t.dtype() != DType::f64) {
      file.write(block.data(), n);
      continue;
    }
    rounded.resize(n / size);
    convert<float>("F64", block.data(), rounded);
    file.write(rounded.data(), rounded.size() * sizeof(float));
  }
}

}  // namespace

Safetensors::Safetensors(fs::path path) : path_(std::move(path)), file_(path_) {
  const std::string file = path_.string();
  const std::string text = header_of(file_);
  data_ = kPrefix + text.size();
  const std::uint64_t data_size = file_.size() - data_;

  const nlohmann::json header = parse_sorted_json(text, file);
  for (const auto& [name, value] : header.items()) {
    if (name == kMetadata) {
      check(value.is_object(), "{}: {} must be an object", file, kMetadata);
      for (const auto& [key, entry] : value.items()) {
        check(entry.is_string(), "{}: {} {} must be a string", file, kMetadata, quoted(key));
        metadata_[key] = entry.get<std::string>();
      }
      continue;
    }
    const std::string where = fmt::format("{}: tensor {}", file, quoted(name));
    SafetensorsEntry entry = parse_entry(value, where);
    check_entry(entry, data_size, where);
    entries_.emplace(name, std::move(entry));
  }
  check_cover(entries_, data_size, file);
}

void Safetensors::read(const std::string& name, const Tensor& to) const {
  const auto it = entries_.find(name);
  check(it != entries_.end(), "{}: has no tensor {}", path_.string(), quoted(name));
  const SafetensorsEntry& e = it->second;
  const Shape& shape = to.shape();
  bool same = e.shape.size() == static_cast<std::size_t>(shape.rank());
  for (int i = 0; same && i < shape.rank(); ++i) same = e.shape[static_cast<std::size_t>(i)] == shape[i];
  check(same, "{}: tensor {} must have shape {}, not {}", path_.string(), quoted(name), shape, extents_of(e.shape));

  const std::uint64_t at = data_ + e.begin;
  const bool as_it_is = e.dtype == stored_dtype(to.dtype()) && to.dtype() != DType::f64 && !is_packed(to.dtype());
  if (as_it_is) return read_as_it_is(file_, at, to);
  const bool done = to.dtype() == DType::f32   ? read_converted<float>(file_, at, e.dtype, to)
                    : to.dtype() == DType::f64 ? read_converted<double>(file_, at, e.dtype, to)
                                               : false;
  check(done, "{}: tensor {} is {}, which cannot become {}", path_.string(), quoted(name), e.dtype,
        name_of(to.dtype()));
}

void write_safetensors(const fs::path& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& t : tensors) {
    check(static_cast<bool>(t.tensor), "{}: there is no tensor for {}", path.string(), quoted(t.name));
    check(!is_packed(t.tensor.dtype()), "{}: {} is {}, for which the format has no type", path.string(), quoted(t.name),
          name_of(t.tensor.dtype()));
    order.push_back(&t);
  }
  std::stable_sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    return stored_size(a->tensor.dtype()) > stored_size(b->tensor.dtype());
  });
  const std::string header = header_for(order, metadata, path.string());
  std::string length(kPrefix, '\0');
  for (std::size_t i = 0; i < kPrefix; ++i) length[i] = static_cast<char>(header.size() >> (8 * i) & 255);

  FileWriter file(path);
  file.write(length);
  file.write(header);
  for (const NamedTensor* t : order) write_values(file, t->tensor);
  file.commit();
}

}  // namespace grt
