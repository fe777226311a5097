// The checkpoint file format: 8 bytes little-endian header length, a JSON header, the tensors' bytes.
// Source: github.com/huggingface/safetensors (the format's README). Rules enforced when reading: header at most
// 100,000,000 bytes and beginning with '{'; no duplicate keys; known dtype; the byte range of each tensor equals its
// shape times its dtype, computed without overflow; ranges cover the data section without holes or overlaps, to its
// end; `__metadata__` maps strings to strings. Empty tensors, rank 0, any data order and padding spaces after the
// header are legal.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/files.h"
#include "core/tensor.h"

namespace grt {

struct SafetensorsEntry {
  std::string dtype;                 // "F32", "BF16", ...
  std::vector<std::int64_t> shape;   // as in the file: any rank
  std::uint64_t begin = 0, end = 0;  // bytes within the data section
};

// An open file. Every error is an Error that names the file, and the tensor where there is one.
class Safetensors {
 public:
  explicit Safetensors(fs::path path);

  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool contains(const std::string& name) const { return entries_.count(name) != 0; }

  // Copies tensor `name` into `to` (f32 or f64 on any device), converting from F64, F32, F16 or BF16; I32 into i32 and
  // BF16 into bf16 as they are. Throws if it is missing, its shape is not to.shape(), or its dtype cannot be converted.
  void read(const std::string& name, const Tensor& to) const;

 private:
  fs::path path_;
  OpenFile file_;
  std::map<std::string, SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
  std::uint64_t data_ = 0;  // where the data section begins
};

struct NamedTensor {
  std::string name;
  Tensor tensor;  // f32, i32, bf16, or f64, which is rounded to F32
};

// Writes whole or not at all; the same input gives the same bytes. Tensors lie in the order given, but those of 2-byte
// elements last: so each lies at a multiple of its element size. Throws for a name that occurs twice.
void write_safetensors(const fs::path& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace grt
