// How the next token is chosen from a model's logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/philox.h"

namespace grt {

struct Sampling {
  double temperature = 0.8;
  std::int64_t top_k = 0;
  double top_p = 1;
  std::uint64_t seed = 1337;

  template <class V>
  void fields(V&& v) {
    v("temperature", temperature, "divides the logits; 0: always the likeliest token");
    v("top-k", top_k, "choose among so many of the likeliest tokens; 0: all");
    v("top-p", top_p, "choose among the likeliest tokens that make up this share of the probability; 1: all");
    v("seed", seed, "of the random choices, and of a poisson model's initial state");
  }
};

void check_sampling(const Sampling& sampling);  // throws Error naming the flag

struct NewToken {
  int id;
  double logprob;  // nats, of the model's own distribution: temperature and the like have no part in it
};

// One of the ids [0, logits.size()). The random number is a function of (seed, sample, position), where position counts
// the tokens before the new one. Equal logits: the lower id is the likelier. `logits` must be finite.
NewToken choose(std::span<const double> logits, const Sampling& sampling, int sample, std::int64_t position);

// The probabilities by which choose() chooses.
std::vector<double> distribution(std::span<const double> logits, const Sampling& sampling);

double logprob(std::span<const double> logits, int id);

// One of two numbers in [0, 1) besides choose()'s that belong to a position: whether a draft is taken, and what stands
// in the place of one that is not.
enum class Draw { accept, instead };
double random_number(const Sampling& sampling, Draw draw, int sample, std::int64_t position);
// The id at which the running sum of the weights passes u times their sum; u in [0, 1).
int id_at(double u, std::span<const double> weights);

}  // namespace grt
