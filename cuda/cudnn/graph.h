// cuDNN's operation graphs through its backend API: descriptors with owners, and a graph that grows by operations until
// cuDNN plans how to compute it.
#pragma once

#include <cudnn.h>

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

namespace grt::cudnn {

// Throws Error for a call that failed, with cuDNN's words.
void check_status(cudnnStatus_t status, const char* what);

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(cudnnBackendDescriptorType_t type);
  ~Descriptor();
  Descriptor(Descriptor&& d) noexcept;
  Descriptor& operator=(Descriptor&& d) noexcept;

  cudnnBackendDescriptor_t get() const { return raw_; }
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const void* values,
           std::int64_t count = 1);
  void set(cudnnBackendAttributeName_t name, const Descriptor& value);
  void set(cudnnBackendAttributeName_t name, std::int64_t value);
  void finalize(const char* what);

 private:
  cudnnBackendDescriptor_t raw_ = nullptr;
};

// What plans are made for: the device of a handle, or one that is only described (cuDNN 9.8), for which nothing can
// run.
struct Target {
  cudnnHandle_t handle = nullptr;
  const Descriptor* properties = nullptr;
};

// Four extents and their strides, in elements.
struct Layout {
  std::array<std::int64_t, 4> extents, strides;
};
Layout dense(std::array<std::int64_t, 4> extents);

// Who runs a graph gives addresses for these numbers, which are below 1000; temporaries have none.
using Uid = std::int64_t;

class Graph {
 public:
  using Node = const Descriptor*;  // a tensor of the graph

  Node tensor(Uid uid, const Layout& layout, cudnnDataType_t type);
  Node scalar(Uid uid);  // f32, given by an address in host memory
  Node temporary(const Layout& layout, cudnnDataType_t type = CUDNN_DATA_FLOAT);

  void matmul(Node c, Node a, Node b);  // c = a b over the last two extents
  void pointwise(Node y, cudnnPointwiseMode_t mode, Node x, Node b = nullptr);
  void index(Node y, Node x, std::int64_t axis);                 // y = each element's place along an axis
  void not_below(Node y, Node a, Node b);                        // y = a >= b
  void select(Node y, Node condition, Node yes, Node no);        // y = condition ? yes : no
  void reduce(Node y, cudnnReduceTensorOp_t operation, Node x);  // over the extents that y has not
  void reshape(Node y, Node x);

  // Takes the first way that cuDNN proposes, and takes itself, of those that give the same bits every time. Throws
  // Error if there is none.
  void plan(const Target& target);
  std::int64_t scratch() const { return scratch_; }  // bytes that a planned graph needs
  void run(cudnnHandle_t handle, std::span<const Uid> uids, std::span<const void* const> addresses,
           void* scratch) const;

 private:
  Node add_tensor(Uid uid, const Layout& layout, cudnnDataType_t type, bool temporary, bool by_value);
  Descriptor& operation(cudnnBackendDescriptorType_t type);
  Descriptor& rule(cudnnBackendDescriptorType_t type);
  Descriptor& pointwise_operation(cudnnPointwiseMode_t mode, cudnnDataType_t precision, Node y, Node x,
                                  std::int64_t axis = -1);

  std::deque<Descriptor> tensors_, rules_, operations_;  // at addresses that stay
  Descriptor graph_, proposals_, plan_;
  std::vector<Descriptor> ways_;
  std::int64_t scratch_ = 0;
};

}  // namespace grt::cudnn
