// The tensors of a folder that another program wrote: of its model.safetensors, or of the shards that its
// model.safetensors.index.json lists. Names are those of the file without what wrappers put before them ("module.",
// "_orig_mod.", "transformer.").
#pragma once

#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/safetensors.h"

namespace grt {

class TensorFiles {
 public:
  // Throws Error naming the file: neither kind is there, a shard's name leads out of the folder, a tensor is not in the
  // shard that the index says, or two tensors have one name.
  explicit TensorFiles(const fs::path& folder);

  struct Stored {
    const Safetensors* file;
    std::string path, name;  // of the file, and of the tensor in it
    const std::vector<std::int64_t>& shape() const { return file->entries().at(name).shape; }
    void read(const Tensor& to) const { file->read(name, to); }
  };
  const std::map<std::string, Stored>& all() const { return all_; }
  const Stored* find(const std::string& name) const;
  const std::set<std::string>& prefixes() const { return prefixes_; }               // that were taken off
  const std::map<std::string, std::string>& metadata() const { return metadata_; }  // of model.safetensors
  const std::string& where() const { return where_; }                               // the file or index, for errors

 private:
  void add(const fs::path& path, const std::map<std::string, std::string>* index);

  std::string where_;
  std::deque<Safetensors> files_;
  std::map<std::string, Stored> all_;
  std::set<std::string> prefixes_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace grt
