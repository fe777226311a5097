// tests/cuda/modes.h on a GPU, which has an order of threads of its own: blocks kept, and every tensor an allocation of
// its own exact size, whose ends compute-sanitizer watches.
#include "tests/cuda/modes.h"

#include "core/plugin.h"

namespace grt::test {

std::string Mode::name() const { return keep_blocks ? "GPU, blocks kept" : "GPU"; }

std::vector<Mode> modes() { return {{.keep_blocks = true}, {.keep_blocks = false}}; }

Emulated::Emulated(const Mode& mode, DType products) {
  static auto* const open = Plugin("cuda").function<Device*(int, DType, bool)>("grt_cuda_open");
  device_.reset(open(0, products, mode.keep_blocks));
}
Emulated::~Emulated() = default;

}  // namespace grt::test
