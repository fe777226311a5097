// Would cuDNN compute attention on an H200? It plans for a device that is only described; no driver is needed, but a
// library of its name (the toolkit's stub).
#include <array>

#include "core/error.h"
#include "core/files.h"
#include "cuda/cudnn/attention.h"
#include "tests/support.h"

namespace grt {
namespace {

using cuda::SdpaShape;

cudnn::Descriptor described_device(const std::string& file) {
  const std::string properties = read_file(file);
  cudnn::Descriptor d(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  d.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, properties.c_str(), std::ssize(properties) + 1);
  d.finalize("a described device");
  return d;
}

// "" where cuDNN has generated the kernel of a plan, and lacked no more than the driver to load it.
std::string refusal(cudnn::Graph graph) {
  const cudnn::Descriptor h200 = described_device(test::fixture("../cuda/cudnn/h200.json").string());
  try {
    graph.plan({nullptr, &h200});
  } catch (const Error& e) {
    if (!test::contains(e.what(), cudnnGetErrorString(CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER))) return e.what();
  }
  return {};
}

TEST_SUITE("cudnn") {
  TEST_CASE("cuDNN takes the graphs of attention for an H200, and their results are the same bits every time") {
    for (const SdpaShape& shape : {SdpaShape{8, 1024, 20, 64}, SdpaShape{3, 77, 2, 128}}) {
      CAPTURE(shape.time);
      CAPTURE(shape.width);
      CHECK(refusal(cudnn::attention_graph(shape)) == "");
      CHECK(refusal(cudnn::attention_backward_graph(shape)) == "");
    }
  }

  TEST_CASE("what cuDNN cannot compute is refused with a reason") {
    CHECK(test::contains(refusal(cudnn::attention_graph({1, 64, 2, 36})), "cuDNN"));
  }
}

}  // namespace
}  // namespace grt
