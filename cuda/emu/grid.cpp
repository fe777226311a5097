// One grid at a time: its blocks one after another, their threads as fibers that start when their turn comes, and the
// meetings of threads.
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "cuda/emu/emu.h"
#include "cuda/emu/fiber.h"
#include "cuda/emu/mma.h"
#include "cuda/emu/random.h"
#include "cuda/emu/tsan.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace grt::emu {

namespace {
int devices_asked_for() {
  const char* const text = std::getenv("GRT_EMU_DEVICES");
  return text ? std::atoi(text) : 1;
}
}  // namespace

Config config{.devices = devices_asked_for()};
Counters counters;

namespace {

enum class State { fresh, running, ready, waiting, done };

struct Place {
  const char *kind, *file;
  int line;
};

struct Thread {
  uint3 id;
  unsigned index, lane, warp;
  State state;
  Fiber* fiber;
  Place place;  // where it waits
  unsigned mask;
};

// The copies that a thread has started, the oldest first, and how many groups it has committed.
struct Copies {
  struct Item {
    AsyncCopy copy;
    unsigned group;
  };
  std::deque<Item> items;
  unsigned groups = 0;
};

struct Meeting {
  unsigned mask, arrived;
  const char* kind;
  Meet meet;
  void* arguments[32];
  bool open;
};

struct Warp {
  unsigned alive;
  std::vector<Meeting> meetings;
};

struct SharedVariable {
  const void* key;
  void* memory;
  std::size_t bytes;
};

// The running grid, and of it the running block.
struct Grid {
  const std::function<void()>* body = nullptr;
  Thread* current = nullptr;  // null while the host runs
  Fiber host;
  std::vector<std::unique_ptr<Fiber>> stacks;
  std::vector<Fiber*> idle;  // stacks without a thread
  std::vector<Thread> threads;
  std::vector<unsigned> order;  // in which threads start
  std::vector<Thread*> ready;   // from `first_ready` on
  std::size_t first_ready = 0;
  std::vector<Copies> copies;  // of each thread
  std::vector<Warp> warps;
  std::vector<Thread*> at_barrier;
  unsigned count = 0, started = 0, done = 0;
  void* dynamic = nullptr;
  std::size_t dynamic_bytes = 0;
  std::vector<SharedVariable> shared;
  std::vector<void*> garbage;
  Random random;
  Tsan tsan;
};
Grid grid;

constexpr std::size_t kStackBytes = 256 << 10;  // touched only as far as it is used
constexpr std::size_t kSharedLimit = 227 * 1024;

// The emulator at work on behalf of a CUDA thread.
class Inside {
 public:
  explicit Inside(void* release = nullptr, void* acquire = nullptr) : acquire_(acquire) {
    grid.tsan.release(release);
    grid.tsan.become_host();
  }
  ~Inside() {
    grid.tsan.become_thread(grid.current->index);
    grid.tsan.acquire(acquire_);
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  void* acquire_;
};

// Filled with the bits of a NaN: what reads uninitialized memory shows.
void* allocate_shared(std::size_t bytes) {
  void* const p = operator new[](std::max<std::size_t>(bytes, 1), std::align_val_t(16));
  std::memset(p, 0xff, bytes);
  return p;
}
void free_shared(void* p) {
  if (kTsan)
    grid.garbage.push_back(p);  // a block that freed it would order itself before the others
  else
    operator delete[](p, std::align_val_t(16));
}

[[noreturn]] void report(const char* why) {
  std::fflush(stdout);
  std::fprintf(stderr, "emu: ERROR: %s in block (%u,%u,%u): %u of %u threads have exited; waiting:\n", why, blockIdx.x,
               blockIdx.y, blockIdx.z, grid.done, grid.count);
  std::map<std::string, std::vector<unsigned>> groups;
  for (const Thread& t : grid.threads) {
    if (t.state != State::waiting) continue;
    char text[512];
    std::snprintf(text, sizeof text, "%s at %s:%d mask 0x%08x", t.place.kind, t.place.file, t.place.line, t.mask);
    groups[text].push_back(t.index);
  }
  for (const auto& [text, who] : groups)
    std::fprintf(stderr, "  %zu threads (first %u, last %u) in %s\n", who.size(), who.front(), who.back(),
                 text.c_str());
  std::fflush(stderr);
  std::abort();
}

void make_ready(Thread* t) {
  t->state = State::ready;
  grid.ready.push_back(t);
}

Thread* next_ready() {
  if (config.order == Order::random)
    std::swap(grid.ready[grid.first_ready],
              grid.ready[grid.first_ready + grid.random.below(grid.ready.size() - grid.first_ready)]);
  Thread* t;
  if (config.order == Order::reverse) {
    t = grid.ready.back();
    grid.ready.pop_back();
  } else {
    t = grid.ready[grid.first_ready++];
  }
  if (grid.first_ready == grid.ready.size()) {
    grid.ready.clear();
    grid.first_ready = 0;
  }
  return t;
}

void enter(Fiber* self);

// A stack for the next thread that starts. Under ThreadSanitizer stack k always belongs to its fiber k.
Fiber* stack_for(const Thread& next) {
  if (kTsan) return grid.stacks[grid.tsan.index(next.index)].get();
  if (!grid.idle.empty()) {
    Fiber* const f = grid.idle.back();
    grid.idle.pop_back();
    return f;
  }
  grid.stacks.push_back(std::make_unique<Fiber>());
  create_fiber(grid.stacks.back().get(), kStackBytes, enter);
  return grid.stacks.back().get();
}

void run_as(Thread* t) {
  t->state = State::running;
  grid.current = t;
  threadIdx = t->id;
}

// Leaves `self` for a ready thread, else a new one, else the host.
void dispatch(Fiber* self) {
  Fiber* to;
  if (grid.first_ready < grid.ready.size()) {
    Thread* const t = next_ready();
    run_as(t);
    to = t->fiber;
  } else if (grid.started < grid.count) {
    to = stack_for(grid.threads[grid.order[grid.started]]);
  } else if (grid.done == grid.count) {
    grid.current = nullptr;
    to = &grid.host;
  } else {
    report("deadlock (a barrier that not all reach, or missing lanes)");
  }
  if (to == self) return;
  ++counters.switches;
  switch_fiber(self, to);
}

void wait_at(const Place& place, unsigned mask) {
  Thread* const me = grid.current;
  me->place = place;
  me->mask = mask;
  me->state = State::waiting;
  dispatch(me->fiber);
}

void thread_exits(Thread* t) {
  t->state = State::done;
  ++grid.done;
  Warp& warp = grid.warps[t->warp];
  warp.alive &= ~(1u << t->lane);
  for (const Meeting& m : warp.meetings)
    if (m.open && (m.mask >> t->lane & 1u))
      fatal("lane %u of warp %u exits while others wait for it in %s (mask 0x%08x)", t->lane, t->warp, m.kind, m.mask);
  if (!grid.at_barrier.empty()) report("a thread exits while others wait at a barrier");
}

// Thread after thread on one stack, as long as none has to wait.
void enter(Fiber* self) {
  fiber_entered();
  for (;;) {
    while (grid.started < grid.count) {
      Thread* const t = &grid.threads[grid.order[grid.started++]];
      t->fiber = self;
      run_as(t);
      grid.tsan.become_thread(t->index);
      grid.tsan.thread_begins();
      (*grid.body)();
      grid.tsan.thread_ends();
      grid.tsan.become_host();
      thread_exits(t);
      if (kTsan) break;  // what lies on one stack in turn would seem shared
    }
    if (!kTsan) grid.idle.push_back(self);
    dispatch(self);
  }
}

template <class T>
void shuffle_order(std::vector<T>& x, std::size_t begin) {
  for (std::size_t n = x.size() - begin; n > 1; --n) std::swap(x[begin + n - 1], x[begin + grid.random.below(n)]);
}

// Random: warps in any order, lanes in any order within each.
void order_threads() {
  grid.order.clear();
  std::vector<unsigned> warps(grid.warps.size());
  for (unsigned w = 0; w < warps.size(); ++w) warps[w] = w;
  if (config.order == Order::random) shuffle_order(warps, 0);
  for (const unsigned w : warps) {
    const std::size_t begin = grid.order.size();
    for (unsigned i = w * 32; i < std::min(grid.count, w * 32 + 32); ++i) grid.order.push_back(i);
    if (config.order == Order::random) shuffle_order(grid.order, begin);
  }
  if (config.order == Order::reverse) std::reverse(grid.order.begin(), grid.order.end());
}

void run_block(const Launch& launch, std::size_t block) {
  const dim3 g = launch.grid, b = launch.block;
  blockIdx = make_uint3(static_cast<unsigned>(block % g.x), static_cast<unsigned>(block / g.x % g.y),
                        static_cast<unsigned>(block / g.x / g.y));
  order_threads();
  for (unsigned i = 0; i < grid.count; ++i)
    grid.threads[i] = {
        make_uint3(i % b.x, i / b.x % b.y, i / b.x / b.y), i, i % 32, i / 32, State::fresh, nullptr, {}, 0};
  for (unsigned w = 0; w < grid.warps.size(); ++w) {
    const unsigned lanes = grid.count - w * 32;
    grid.warps[w] = {lanes >= 32 ? 0xffffffffu : (1u << lanes) - 1, {}};
  }
  grid.dynamic_bytes = launch.shared_bytes;
  grid.dynamic = launch.shared_bytes ? allocate_shared(launch.shared_bytes) : nullptr;
  for (Copies& c : grid.copies) c = {};
  grid.started = grid.done = 0;
  ++counters.blocks;
  grid.tsan.begin_block();
  dispatch(&grid.host);
  if (grid.dynamic) free_shared(grid.dynamic);
  for (const SharedVariable& v : grid.shared) free_shared(v.memory);
  grid.shared.clear();
}

}  // namespace

void fatal(const char* format, ...) {
  std::fflush(stdout);
  std::fprintf(stderr, "emu: ERROR: ");
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  if (grid.current)
    std::fprintf(stderr, " [block (%u,%u,%u) thread (%u,%u,%u)]", blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x,
                 threadIdx.y, threadIdx.z);
  std::fprintf(stderr, "\n");
  std::fflush(stderr);
  std::abort();
}

unsigned lane() { return grid.current->lane; }
float* dynamic_memory() { return static_cast<float*>(grid.dynamic); }

void* shared_memory(const void* key, std::size_t bytes) {
  const Inside inside(nullptr, grid.tsan.start());
  std::size_t total = grid.dynamic_bytes + bytes;
  for (const SharedVariable& v : grid.shared) {
    if (v.key == key) return v.memory;
    total += v.bytes;
  }
  if (total > kSharedLimit) fatal("%zu bytes of shared memory in a block, whose limit is %zu", total, kSharedLimit);
  grid.shared.push_back({key, allocate_shared(bytes), bytes});
  grid.tsan.release(grid.tsan.start());
  return grid.shared.back().memory;
}

void block_barrier(const char* file, int line) {
  const Inside inside(grid.tsan.barrier(), grid.tsan.barrier());
  const Place here{"__syncthreads", file, line};
  if (!grid.at_barrier.empty()) {
    const Place& there = grid.at_barrier[0]->place;
    if (there.line != line || std::strcmp(there.file, file) != 0)
      fatal("divergent barrier: %s:%d joins threads that wait at %s:%d", file, line, there.file, there.line);
  }
  grid.at_barrier.push_back(grid.current);
  if (grid.done) report("a barrier after some threads have exited");
  if (grid.at_barrier.size() < grid.count) {
    wait_at(here, 0);
    return;
  }
  for (Thread* t : grid.at_barrier) make_ready(t);  // the last to come included
  grid.at_barrier.clear();
  grid.tsan.barrier_done();
  dispatch(grid.current->fiber);
}

void warp_meeting(unsigned mask, const char* kind, Meet meet, void* argument, bool orders_memory, const char* file,
                  int line) {
  void* const object = orders_memory ? grid.tsan.warp(grid.current->warp) : nullptr;
  const Inside inside(object, object);
  Thread* const me = grid.current;
  Warp& warp = grid.warps[me->warp];
  if (!(mask >> me->lane & 1u))
    fatal("%s at %s:%d: lane %u is not in its mask 0x%08x", kind, file, line, me->lane, mask);
  if (mask & ~warp.alive)
    fatal("%s at %s:%d: mask 0x%08x names lanes that have exited or do not exist (alive: 0x%08x)", kind, file, line,
          mask, warp.alive);
  Meeting* meeting = nullptr;
  for (Meeting& m : warp.meetings) {
    if (!m.open) continue;
    if (m.mask == mask && m.meet == meet)
      meeting = &m;
    else if (m.mask & mask)
      fatal("%s at %s:%d mask 0x%08x overlaps lanes that wait in %s mask 0x%08x", kind, file, line, mask, m.kind,
            m.mask);
  }
  if (!meeting) {
    const auto closed =
        std::find_if(warp.meetings.begin(), warp.meetings.end(), [](const Meeting& m) { return !m.open; });
    meeting = closed == warp.meetings.end() ? &warp.meetings.emplace_back() : &*closed;
    *meeting = {mask, 0, kind, meet, {}, true};
  }
  meeting->arguments[me->lane] = argument;
  meeting->arrived |= 1u << me->lane;
  if (meeting->arrived != mask) {
    wait_at({kind, file, line}, mask);
    return;
  }
  meet(meeting->arguments, mask);
  meeting->open = false;
  if (orders_memory) grid.tsan.warp_done(me->warp);
  for (unsigned rest = mask; rest; rest &= rest - 1)
    make_ready(&grid.threads[me->warp * 32 + static_cast<unsigned>(__builtin_ctz(rest))]);
  dispatch(me->fiber);
}

void start_copy(const AsyncCopy& copy, const char* file, int line) {
  const Inside inside;
  if ((reinterpret_cast<std::uintptr_t>(copy.to) | reinterpret_cast<std::uintptr_t>(copy.from)) % 16 != 0)
    fatal("cp.async at %s:%d: misaligned address, %p from %p", file, line, copy.to, copy.from);
  if (grid.copies.empty()) grid.copies.resize(grid.count);
  Copies& mine = grid.copies[grid.current->index];
  mine.items.push_back({copy, mine.groups});
}
void commit_copies() {
  const Inside inside;
  if (!grid.copies.empty()) ++grid.copies[grid.current->index].groups;
}
bool next_copy(unsigned keep, AsyncCopy* copy) {
  const Inside inside;
  if (grid.copies.empty()) return false;
  Copies& mine = grid.copies[grid.current->index];
  if (mine.items.empty() || mine.items.front().group + keep >= mine.groups) return false;
  *copy = mine.items.front().copy;
  mine.items.pop_front();
  return true;
}

void run_grid(const Launch& launch, const std::function<void()>& thread) {
  if (config.idle) return;
  if (grid.current) fatal("a launch inside a kernel");
  ++counters.launches;
  grid.random = Random(config.seed * 0x9E3779B97F4A7C15u + counters.launches);
  grid.body = &thread;
  grid.count = launch.block.x * launch.block.y * launch.block.z;
  blockDim = launch.block;
  gridDim = launch.grid;
  grid.threads.resize(grid.count);
  grid.warps.resize((grid.count + 31) / 32);
  grid.copies.clear();  // kernels that copy asynchronously make room
  grid.tsan.begin_grid(grid.count, [](std::size_t) {
    grid.stacks.push_back(std::make_unique<Fiber>());
    create_fiber(grid.stacks.back().get(), kStackBytes, enter);
  });
  const std::size_t blocks = std::size_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  std::vector<std::size_t> order(blocks);
  for (std::size_t i = 0; i < blocks; ++i) order[i] = i;
  if (config.order == Order::random) shuffle_order(order, 0);
  if (config.order == Order::reverse) std::reverse(order.begin(), order.end());
  for (const std::size_t block : order) run_block(launch, block);
  grid.tsan.end_grid();
  for (void* p : grid.garbage) operator delete[](p, std::align_val_t(16));
  grid.garbage.clear();
}

}  // namespace grt::emu
