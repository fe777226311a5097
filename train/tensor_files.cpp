#include "train/tensor_files.h"

#include "core/error.h"
#include "core/json.h"

namespace grt {
namespace {

constexpr const char* kWeights = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kPrefixes[] = {"_orig_mod.", "module.", "transformer."};

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// Which shard each tensor is in. A shard is a file of the folder itself.
std::map<std::string, std::string> read_index(const std::string& file) {
  const Json json = read_json(file);
  check(json.is_object() && json.contains("weight_map") && json["weight_map"].is_object(),
        "{}: has no object weight_map", file);
  std::map<std::string, std::string> shards;
  for (const auto& [tensor, shard] : json["weight_map"].items()) {
    check(shard.is_string(), "{}: weight_map: the shard of {} must be a string", file, tensor);
    const auto name = shard.get<std::string>();
    check(name.ends_with(".safetensors") && fs::path(name).filename() == name && name.find('\\') == name.npos,
          "{}: weight_map: a shard must be a .safetensors file of the same folder, not \"{}\"", file, name);
    shards[tensor] = name;
  }
  check(!shards.empty(), "{}: weight_map is empty", file);
  return shards;
}

}  // namespace

TensorFiles::TensorFiles(const fs::path& folder) {
  if (is_file(folder / kWeights)) {
    where_ = (folder / kWeights).string();
    add(folder / kWeights, nullptr);
    metadata_ = files_.front().metadata();
    return;
  }
  where_ = (folder / kIndex).string();
  check(is_file(where_),
        "{}: holds neither {} nor {}; pickled weights (.bin, .pt) are not read: save them as safetensors",
        folder.string(), kWeights, kIndex);
  const std::map<std::string, std::string> index = read_index(where_);
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : index) shards.insert(shard);
  for (const std::string& shard : shards) add(folder / shard, &index);
  std::size_t found = 0;
  for (const Safetensors& file : files_) found += file.entries().size();
  for (const auto& [tensor, shard] : index) {
    bool there = false;
    for (const auto& [name, stored] : all_) there |= stored.name == tensor;
    check(there, "{}: tensor {} is not in {}", where_, tensor, shard);
  }
  check(found == index.size(), "{}: lists {} tensors, the shards hold {}", where_, index.size(), found);
}

void TensorFiles::add(const fs::path& path, const std::map<std::string, std::string>* index) {
  const Safetensors& file = files_.emplace_back(path);
  for (const auto& [stored, entry] : file.entries()) {
    if (index) {
      const auto it = index->find(stored);
      check(it != index->end() && it->second == path.filename(), "{}: holds {}, which {} does not say", path.string(),
            stored, where_);
    }
    std::string name = stored;
    for (bool again = true; again;) {
      again = false;
      for (const std::string prefix : kPrefixes) {
        if (!name.starts_with(prefix)) continue;
        name.erase(0, prefix.size());
        prefixes_.insert(prefix);
        again = true;
      }
    }
    const auto [it, fresh] = all_.emplace(name, Stored{&file, path.string(), stored});
    check(fresh, "{}: {} and {} are one name, {}", path.string(), it->second.name, stored, name);
  }
}

const TensorFiles::Stored* TensorFiles::find(const std::string& name) const {
  const auto it = all_.find(name);
  return it == all_.end() ? nullptr : &it->second;
}

}  // namespace grt
