// How many steps of the recurrence each token took, and how sure the routers were: gathered from what a pass shows.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/comm.h"
#include "models/model.h"

namespace grt {

// Of passes of a model that routes its tokens, one after the other; of another model it stays empty.
class Routes {
 public:
  Routes();
  Routes(const Routes&) = delete;  // the look refers to it
  Routes& operator=(const Routes&) = delete;

  // The Pass::look of the next pass, over (B, T) tokens.
  const Look* next(std::int64_t batch, std::int64_t time);
  const std::vector<int>& steps() const { return steps_; }  // of that pass, (B T), row by row; none: nothing was routed
  void share(Comm& comm);                                   // adds the decisions of all ranks up
  // The mean over all passes of the entropy of a router's decision for a token, in nats; none: there was no decision.
  std::optional<double> entropy() const;

 private:
  void count(const Tensor& routed);
  void measure(const Tensor& logits);

  std::int64_t batch_ = 0, time_ = 0, decisions_ = 0, entropy_ = 0;
  std::vector<int> steps_;
  Look look_;
};

}  // namespace grt
