// Training a small model over several ranks, in the same process as the tests.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "tests/ranks/world.h"

namespace grt::test {

struct Training {
  std::string model = "grt";      // whose config.json it is, of tests/fixtures/oracle
  Json changes = Json::object();  // of that
  std::int64_t steps = 20, grad_accum = 5;
  double grad_clip = 1;
  std::optional<std::string> depth_sampler = {};
  std::optional<int> depth = {};
  bool sharded = false;
  Device* device = &cpu();
};

struct Trained {
  std::vector<Json> log;  // of the steps
  std::vector<Json> validations;
  std::vector<std::vector<int>> depths;  // of each step's micro-batches
  Tensor weights;                        // on the CPU
};

// A run into `out` from its beginning, or from the checkpoint that is there, by all ranks of `comm` together.
Trained train(const Training& training, Comm& comm, const std::filesystem::path& out, std::int64_t until = 0);

// Does some step end with a micro-batch less deep than an earlier one, on the rank that computes both?
bool ends_shallow(const Trained& run);

// The largest difference of a number between two logs, or its share of what `a` has.
double largest_difference_of(const std::vector<Json>& a, const std::vector<Json>& b, const char* key,
                             bool relative = false);

// What ranks do together is what one does, to rounding; and on all ranks the same, to the bit.
void check_same(const Trained& alone, const Trained& together);
// The first half of that: of one rank's concern.
void check_same_runs(const Trained& alone, const Trained& together);

}  // namespace grt::test
