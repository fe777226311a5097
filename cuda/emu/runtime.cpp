// The part of the CUDA runtime that the backend calls: memory, streams whose work waits in queues, events, graphs,
// launch checks.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda/emu/emu.h"
#include "cuda/emu/random.h"

// The runtime's opaque types.
struct CUevent_st {
  CUstream_st* stream = nullptr;
  std::uint64_t recorded = 0, reached = 0;  // how often
};
struct CUstream_st {
  struct Item {
    std::function<void()> work;  // empty: waits for `event` to be reached for the `turn`-th time
    CUevent_st* event = nullptr;
    std::uint64_t turn = 0;
  };
  std::deque<Item> items;
  CUgraph_st* capture = nullptr;  // takes the work meanwhile
};
// In the order in which it came, with the arguments that it came with.
struct CUgraph_st {
  std::vector<CUstream_st::Item> items;
  bool valid = true;
};
struct CUgraphExec_st {
  std::vector<CUstream_st::Item> items;
};

namespace grt::emu {
namespace {

struct Allocation {
  std::size_t bytes;
  void* map;  // null: from the heap
  std::size_t map_bytes;
};
using Allocations = std::map<char*, Allocation>;

struct Runtime {
  Allocations device, pinned;
  std::vector<CUstream_st*> streams;
  std::unordered_map<const void*, int> shared_limits;  // of kernels that asked for more than the default
  int device_ordinal = 0;
  cudaError_t last_error = cudaSuccess;
  bool open = false;  // device memory that is guarded may be touched: a kernel or a copy is at work
  Random random{7};
};
Runtime runtime;

constexpr std::size_t kSharedDefault = 48 * 1024;

int capability_of(int ordinal) { return ordinal == 0 ? config.capability : 90; }

// The most shared memory that a block of the current device may ask for.
int shared_opt_in() {
  switch (capability_of(runtime.device_ordinal)) {
    case 80:
    case 87:
      return 163 * 1024;
    case 86:
    case 89:
    case 120:
      return 99 * 1024;
    default:
      return 227 * 1024;
  }
}

cudaError_t error(cudaError_t e) {
  if (e != cudaSuccess) runtime.last_error = e;
  return e;
}

std::size_t page() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

void open_guarded(bool open) {
  if (runtime.open == open) return;
  runtime.open = open;
  for (const auto& [p, a] : runtime.device)
    if (a.map) mprotect(a.map, a.map_bytes - page(), open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

// Does the first item of a queue, unless it waits for an event that is not reached.
bool do_first(CUstream_st* stream) {
  CUstream_st::Item& first = stream->items.front();
  if (first.event && first.event->reached < first.turn) return false;
  const CUstream_st::Item item = std::move(first);
  stream->items.pop_front();
  if (!item.work) return true;
  open_guarded(true);
  item.work();
  open_guarded(false);
  return true;
}

void do_others_at_random(const CUstream_st* stream) {
  while (config.streams == Streams::random && runtime.random.below(2)) {
    CUstream_st* const other = runtime.streams[runtime.random.below(runtime.streams.size())];
    if (other == stream || other->items.empty()) return;
    do_first(other);
  }
}

// Until no more than `keep` items are left.
void drain(CUstream_st* stream, std::size_t keep = 0) {
  while (stream->items.size() > keep) {
    do_others_at_random(stream);
    if (stream->items.size() <= keep || do_first(stream)) continue;
    const CUevent_st* const event = stream->items.front().event;
    if (!event->stream || event->stream->items.empty()) fatal("a stream waits for an event that nothing will record");
    drain(event->stream, event->stream->items.size() - 1);
  }
}
void drain_all() {
  for (CUstream_st* s : runtime.streams) drain(s);
}

void refuse_null(const CUstream_st* stream) {
  if (!stream) fatal("use of the NULL stream, which waits for all others and all wait for");
}

void push(CUstream_st* stream, CUstream_st::Item item) {
  refuse_null(stream);
  if (stream->capture) return stream->capture->items.push_back(std::move(item));
  stream->items.push_back(std::move(item));
  if (config.streams == Streams::eager) drain(stream);
}

// Of what may not be done while work is captured, and makes the graph void.
cudaError_t not_in_capture() {
  bool captured = false;
  for (const CUstream_st* s : runtime.streams) {
    if (!s->capture) continue;
    s->capture->valid = false;
    captured = true;
  }
  return captured ? error(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

bool within(const Allocations& all, const void* p) {
  auto next = all.upper_bound(static_cast<char*>(const_cast<void*>(p)));
  if (next == all.begin()) return false;
  const auto& [begin, a] = *--next;
  return p < begin + std::max<std::size_t>(a.bytes, 1);
}

// Filled with the bits of a NaN. Guarded: the end lies at a page without access, to 16 bytes. Else of the exact size,
// so that a sanitizer's red zone begins behind the last byte.
cudaError_t allocate(Allocations& all, void** p, std::size_t bytes, bool guard) {
  Allocation a{bytes, nullptr, 0};
  char* begin;
  if (guard) {
    const std::size_t body = std::max<std::size_t>((bytes + page() - 1) / page(), 1) * page();
    a.map_bytes = body + page();
    a.map = mmap(nullptr, a.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (a.map == MAP_FAILED) return error(cudaErrorMemoryAllocation);
    mprotect(static_cast<char*>(a.map) + body, page(), PROT_NONE);
    begin = static_cast<char*>(a.map) + body - (bytes + 15) / 16 * 16;
    std::memset(begin, 0xff, bytes);
    if (!runtime.open) mprotect(a.map, body, PROT_NONE);
  } else {
    void* heap = nullptr;
    if (posix_memalign(&heap, 256, std::max<std::size_t>(bytes, 1)) != 0) return error(cudaErrorMemoryAllocation);
    begin = static_cast<char*>(heap);
    std::memset(begin, 0xff, bytes);
  }
  all[begin] = a;
  *p = begin;
  return cudaSuccess;
}

void release(Allocations& all, void* p) {
  const auto found = all.find(static_cast<char*>(p));
  if (found == all.end()) fatal("%p is freed, which was not allocated, or was freed before", p);
  if (found->second.map)
    munmap(found->second.map, found->second.map_bytes);
  else
    std::free(p);
  all.erase(found);
}

}  // namespace

void enqueue(cudaStream_t stream, std::function<void()> work) { push(stream, {std::move(work)}); }

cudaError_t check_launch(const Launch& launch) {
  if (config.launch_error != cudaSuccess) return error(config.launch_error);
  const dim3 g = launch.grid, b = launch.block;
  const std::size_t threads = std::size_t{b.x} * b.y * b.z;
  if (threads == 0 || threads > 1024 || b.z > 64 || g.x == 0 || g.y == 0 || g.z == 0 || g.x > 0x7fffffffu ||
      g.y > 65535 || g.z > 65535)
    return error(cudaErrorInvalidConfiguration);
  const auto raised = runtime.shared_limits.find(launch.kernel);
  const std::size_t limit =
      raised == runtime.shared_limits.end() ? kSharedDefault : static_cast<std::size_t>(raised->second);
  return launch.shared_bytes > limit ? error(cudaErrorInvalidValue) : cudaSuccess;
}

void check_pointer(const void* p, int argument) {
  if (p && !within(runtime.device, p) && !within(runtime.pinned, p))
    fatal("argument %d of a kernel, %p, is not device memory", argument, p);
}

}  // namespace grt::emu

using namespace grt::emu;

extern "C" {

cudaError_t CUDARTAPI cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaGetDeviceCount(int* count) {
  *count = config.devices;
  return config.devices ? cudaSuccess : error(cudaErrorNoDevice);
}
cudaError_t CUDARTAPI cudaSetDevice(int ordinal) {
  if (ordinal < 0 || ordinal >= config.devices) return error(cudaErrorInvalidDevice);
  runtime.device_ordinal = ordinal;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaGetDevice(int* ordinal) {
  *ordinal = runtime.device_ordinal;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal) {
  *properties = {};
  properties->uuid.bytes[0] = static_cast<char>(ordinal);
  std::snprintf(properties->name, sizeof properties->name, "emulated");
  properties->major = capability_of(ordinal) / 10;
  properties->minor = capability_of(ordinal) % 10;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int ordinal) {
  if (attribute != cudaDevAttrMaxSharedMemoryPerBlockOptin || ordinal != runtime.device_ordinal)
    return error(cudaErrorInvalidValue);
  *value = shared_opt_in();
  return cudaSuccess;
}
const char* CUDARTAPI cudaGetErrorString(cudaError_t e) {
  switch (e) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorNoKernelImageForDevice:
      return "no kernel image is available for execution on the device";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    default:
      return "invalid argument";
  }
}
cudaError_t CUDARTAPI cudaGetLastError() { return std::exchange(runtime.last_error, cudaSuccess); }

cudaError_t CUDARTAPI cudaMalloc(void** p, std::size_t bytes) {
  if (const cudaError_t e = not_in_capture(); e != cudaSuccess) return e;
  *p = nullptr;
  return bytes == 0 ? cudaSuccess : allocate(runtime.device, p, bytes, config.guard);
}
cudaError_t CUDARTAPI cudaMemGetInfo(std::size_t* free, std::size_t* all) {
  *free = *all = std::size_t{8} << 30;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaFree(void* p) {
  if (const cudaError_t e = not_in_capture(); e != cudaSuccess) return e;
  drain_all();
  if (p) release(runtime.device, p);
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaMallocHost(void** p, std::size_t bytes) {
  if (const cudaError_t e = not_in_capture(); e != cudaSuccess) return e;
  return allocate(runtime.pinned, p, bytes, false);
}
cudaError_t CUDARTAPI cudaFreeHost(void* p) {
  drain_all();
  if (p) release(runtime.pinned, p);
  return cudaSuccess;
}

// Pageable memory is read at once, or late as config says, and written before the call returns; pinned memory when the
// stream comes to it.
cudaError_t CUDARTAPI cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                                      cudaStream_t stream) {
  refuse_null(stream);
  const bool to_device = within(runtime.device, to), from_device = within(runtime.device, from);
  if (kind != cudaMemcpyDefault) return error(cudaErrorInvalidValue);  // where addresses lie is known
  const bool pageable = !(to_device || within(runtime.pinned, to)) || !(from_device || within(runtime.pinned, from));
  if (stream->capture && pageable) return not_in_capture();
  if (to_device && pageable && !config.late_reads) {
    const auto* const begin = static_cast<const char*>(from);
    push(stream, {[to, copy = std::vector<char>(begin, begin + bytes)] { std::memcpy(to, copy.data(), copy.size()); }});
    return cudaSuccess;
  }
  push(stream, {[=] { std::memcpy(to, from, bytes); }});
  if (!to_device && !within(runtime.pinned, to)) drain(stream);
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaMemsetAsync(void* p, int value, std::size_t bytes, cudaStream_t stream) {
  check_pointer(p, 0);
  push(stream, {[=] { std::memset(p, value, bytes); }});
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  runtime.streams.push_back(*stream);
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaStreamDestroy(cudaStream_t stream) {
  drain(stream);
  std::erase(runtime.streams, stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaStreamSynchronize(cudaStream_t stream) {
  if (const cudaError_t e = not_in_capture(); e != cudaSuccess) return e;
  drain(stream);
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaStreamQuery(cudaStream_t stream) {
  refuse_null(stream);
  if (const cudaError_t e = not_in_capture(); e != cudaSuccess) return e;
  if (stream->items.empty()) return cudaSuccess;
  do_first(stream);  // time goes by
  return cudaErrorNotReady;
}
cudaError_t CUDARTAPI cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  push(stream, {{}, event, event->recorded});
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaEventDestroy(cudaEvent_t event) {
  drain_all();
  delete event;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaEventSynchronize(cudaEvent_t event) {
  if (const cudaError_t e = not_in_capture(); e != cudaSuccess) return e;
  while (event->reached < event->recorded) drain(event->stream, event->stream->items.size() - 1);
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->stream = stream;
  push(stream, {[event, turn = ++event->recorded] { event->reached = std::max(event->reached, turn); }});
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* p) {
  *attributes = {};
  attributes->type = within(runtime.device, p)   ? cudaMemoryTypeDevice
                     : within(runtime.pinned, p) ? cudaMemoryTypeHost
                                                 : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream->capture) return error(cudaErrorIllegalState);
  stream->capture = new CUgraph_st;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = std::exchange(stream->capture, nullptr);
  if (*graph && (*graph)->valid) return cudaSuccess;
  delete std::exchange(*graph, nullptr);
  return error(cudaErrorStreamCaptureInvalidated);
}
cudaError_t CUDARTAPI cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  *made = new CUgraphExec_st{graph->items};
  ++counters.graphs;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  for (const CUstream_st::Item& item : graph->items) push(stream, item);
  ++counters.graph_launches;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return error(cudaErrorInvalidValue);
  if (value > shared_opt_in()) return error(cudaErrorInvalidValue);
  runtime.shared_limits[kernel] = value;
  return cudaSuccess;
}

}  // extern "C"
