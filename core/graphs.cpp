// The device keeps the blocks of graphs apart, and tells of a try whether it met the host; what follows is decided
// here.
#include "core/graphs.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "core/error.h"

namespace grt {

// While alive, memory comes from the blocks of graphs.
class Graphs::ForGraph {
 public:
  explicit ForGraph(Device& device) : device_(device) { device_.for_graph_ = true; }
  ~ForGraph() { device_.for_graph_ = false; }
  ForGraph(const ForGraph&) = delete;
  ForGraph& operator=(const ForGraph&) = delete;

 private:
  Device& device_;
};

// Work that is being made a graph. What ends otherwise than by end() is dropped: a device must not keep on for ever.
class Graphs::Making {
 public:
  explicit Making(Device& device) : device_(device) { device_.begin_graph(); }
  ~Making() {
    if (ended_) return;
    try {
      device_.end_graph();
    } catch (const std::exception&) {  // what led here says why
    }
  }
  Making(const Making&) = delete;
  Making& operator=(const Making&) = delete;

  std::unique_ptr<Graph> end() {
    ended_ = true;
    return device_.end_graph();
  }

 private:
  Device& device_;
  bool ended_ = false;
};

Graphs::Graphs(Device& device) : device_(device) { ++device_.graph_users_; }

Graphs::~Graphs() {
  entries_.clear();
  if (--device_.graph_users_ == 0) device_.release_graph_blocks();
}

bool Graphs::run(std::int64_t key, const std::function<void()>& work) {
  Entry& entry = entries_[key];
  const bool ready = entry.ready == device_.graph_keeps_;
  if (!ready) entry.graph.reset();  // it may write to what was kept since
  if (entry.graph) {
    entry.graph->launch();
    return false;
  }
  if (!device_.uses_graphs() || entry.unfit == kTries)
    work();
  else if (ready)
    make(entry, work);
  else
    try_out(entry, work);
  return true;
}

bool Graphs::keeps_more_than(const Blocks& before) const {
  const Blocks& now = device_.graph_blocks_in_use_;
  return std::any_of(now.begin(), now.end(), [&](const void* p) { return !before.contains(p); });
}

void Graphs::try_out(Entry& entry, const std::function<void()>& work) {
  const ForGraph blocks(device_);
  const Blocks before = device_.graph_blocks_in_use_;
  device_.met_host_ = false;
  work();
  const bool keeps = keeps_more_than(before);
  device_.graph_keeps_ += keeps;
  if (keeps || device_.met_host_)
    ++entry.unfit;
  else
    entry.ready = device_.graph_keeps_;
}

void Graphs::make(Entry& entry, const std::function<void()>& work) {
  const ForGraph blocks(device_);
  const Blocks before = device_.graph_blocks_in_use_;
  Making graph(device_);
  try {
    work();
  } catch (const Error& e) {
    fail("{}: work that was done before cannot be made a graph: {} (--no-graphs does it as it comes)", device_.name(),
         e.what());
  }
  std::unique_ptr<Graph> made = graph.end();
  check(!keeps_more_than(before), "{}: work that is to become a graph keeps memory, to which each replay would write",
        device_.name());
  entry.graph = std::move(made);
  entry.graph->launch();
}

}  // namespace grt
