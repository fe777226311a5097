// Named parameters. A model first declares them all (names, shapes, initial distributions), which costs no memory;
// allocate() then lays them into one flat block: the tensors with two or more dimensions first, which weight decay
// applies to, then the others. Gradients lie in a second block in the same order, so the optimizer, the norm and a
// reduction over ranks are single passes over contiguous memory.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/tape.h"

namespace grt {

// Initial values: mean + std N(0,1).
struct Init {
  double mean = 0, std = 0.02;  // GPT-2's default for weights
};
inline constexpr Init kZeros{0, 0}, kOnes{1, 0};

struct Param {
  std::string name;
  Shape shape;
  Init init;
  std::int64_t used_rows;            // rows from here on are padding and stay zero
  std::int64_t offset = 0;           // within the flat blocks, in elements; of a packed one, in words of its block
  Var var = {};                      // valid after allocate()
  std::optional<DType> packed = {};  // stored by itself, in a type for inference alone

  bool decayed() const { return shape.rank() >= 2; }
};

class Params {
 public:
  Params() = default;
  Params(const Params&) = delete;  // layers point into it
  Params& operator=(const Params&) = delete;

  // Throws when the name is taken. `used_rows` < 0: all of them. The reference stays valid.
  const Param& declare(std::string name, Shape shape, Init init, std::int64_t used_rows = -1);

  // Before allocate(): matrices of at least a panel's rows will be stored as `type`, a packed one, but for `but`.
  void pack_matrices(DType type, const Param* but);
  void allocate(Device& device, DType dtype);  // zeros; fill by initialize() or from a checkpoint
  // Has `write` give the values of one of them; what is packed is written to memory that lives as long as this call.
  // Throws Error, which begins with `from`, where values that are not finite would be packed.
  void fill(const Param& p, const std::function<void(const Tensor&)>& write, const std::string& from = "") const;
  // For training: every Var becomes a trained weight, or those whose name begins with `prefix`; the others are
  // constants.
  void allocate_gradients(std::string_view prefix = {});
  // Values drawn from a function of (seed, name, element): another layer beside it changes nothing.
  void initialize(std::uint64_t seed);
  void clear_gradients();     // the next backward pass stores its gradients
  void complete_gradients();  // zeroes what no backward pass has reached since clear_gradients()

  const std::deque<Param>& all() const { return params_; }
  const Param* find(const std::string& name) const;
  std::int64_t count() const;  // stored elements, each tensor once

  // The trained weights' stretches of the flat blocks; all of them lie in two, one that decay applies to.
  struct Run {
    std::int64_t begin, count;
    bool decayed;
  };
  const std::vector<Run>& trained() const { return trained_; }

  std::int64_t bytes() const;  // of all values

  const Tensor& values() const { return values_; }  // but the packed ones
  const Tensor& gradients() const { return gradients_; }
  std::int64_t decayed_extent() const { return decayed_extent_; }  // elements of the blocks that decay applies to
  std::int64_t extent() const { return extent_; }                  // elements of the blocks, gaps included

 private:
  void allocate_packed(Device& device);

  std::deque<Param> params_;
  std::int64_t extent_ = 0, decayed_extent_ = 0;
  Tensor values_, gradients_;
  Tensor packed_;  // the packed parameters: one block, whose memory pages are as large as can be
  std::vector<Run> trained_;
};

// A path prefix: Linear(scope / "proj", ...) declares "....proj.weight".
struct Scope {
  Params* params;
  std::string path;

  Scope operator/(const std::string& name) const { return {params, path.empty() ? name : path + "." + name}; }
  Scope operator/(int index) const { return *this / std::to_string(index); }
  const Param* operator()(const std::string& name, Shape shape, Init init, std::int64_t used_rows = -1) const {
    return &params->declare((*this / name).path, shape, init, used_rows);
  }
};

}  // namespace grt
