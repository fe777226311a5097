// The ranks of a run: processes that compute one training step together, started by a launcher (mpirun, srun).
//
// Sums come out with the same bits on every rank: each element is added up on one rank and handed out from there.
// Which library carries the data is open_comm()'s choice; without a launcher there is one rank, and nothing is opened.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace grt {

class Comm {
 public:
  virtual ~Comm() = default;
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_rank() const { return local_rank_; }  // among the local_size() ranks of this machine
  int local_size() const { return local_size_; }

  // Every function from here to all_gather is called by all ranks, in the same order, with the same shapes.

  // Values of the host, summed in place.
  virtual void sum(std::span<double> values) = 0;
  virtual void sum(std::span<std::int64_t> values) = 0;
  template <class T>
  std::vector<T> gather(T value) {  // that of each rank
    std::vector<T> all(static_cast<std::size_t>(size_));
    all[static_cast<std::size_t>(rank_)] = value;
    sum(std::span<T>(all));
    return all;
  }
  void barrier() { gather<std::int64_t>(0); }

  // The part of n elements that `rank` looks after: begins at a multiple of 16, a cache line of f32. All shares
  // together are the n elements, in the order of the ranks.
  struct Share {
    std::int64_t begin, count;
  };
  Share share(std::int64_t n, int rank) const {
    const auto begin = [&](std::int64_t r) { return std::min(n, (n + 15) / 16 * r / size_ * 16); };
    return {begin(rank), begin(rank + 1) - begin(rank)};
  }
  Share share(std::int64_t n) const { return share(n, rank_); }

  virtual void broadcast(const Tensor& t) = 0;       // from rank 0
  virtual void reduce_scatter(const Tensor& t) = 0;  // this rank's share of t = its sum over ranks; the rest stays
  virtual void all_gather(const Tensor& t) = 0;      // every share of t = that of the rank it belongs to
  void all_reduce(const Tensor& t) {                 // t = its sum over ranks
    reduce_scatter(t);
    all_gather(t);
  }
  // `whole` on rank 0 = the shares of all ranks, side by side. Other ranks need no `whole`.
  virtual void collect(const Tensor& share, const Tensor& whole) = 0;

  // Ends the processes of all ranks at once, whatever they wait for; does not return.
  virtual void abort(int code) = 0;

 protected:
  Comm(int rank, int size, int local_rank, int local_size)
      : rank_(rank), size_(size), local_rank_(local_rank), local_size_(local_size) {}

 private:
  int rank_, size_, local_rank_, local_size_;
};

Comm& alone();  // the one rank of a process that nobody is with

// How many ranks a launcher started, of which this process is one, according to the environment variables that
// launchers set; 1 without one.
int launched_ranks();

// The ranks that the launcher started. With one, alone in effect, and no library is loaded. Throws Error if there are
// more and this build cannot bring them together.
std::unique_ptr<Comm> open_comm();

// The beginning of a shell command that starts so many ranks again: "mpirun -np 2 ", or "" for one.
std::string launch_command(int ranks);

// The threads of each rank: this process's CPUs, divided by the ranks that have the same ones.
int threads_per_rank(Comm& comm);

}  // namespace grt
