#include "cuda/cudnn/graph.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace grt::cudnn {
namespace {

constexpr Uid kFirstTemporary = 1000;
constexpr std::int64_t kAlignment = 16, kMostWays = 16;

std::string last_words() {
  char text[1024] = "";
  cudnnGetLastErrorString(text, sizeof text);
  return text;
}

// Does an engine give other bits another time?
bool is_nondeterministic(const Descriptor& way) {
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.get();
  std::int64_t count = 0;
  check_status(
      cudnnBackendGetAttribute(way.get(), CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw),
      "asking for an engine");
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  check_status(cudnnBackendGetAttribute(raw, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                        std::ssize(notes), &count, notes.data()),
               "asking how an engine computes");
  return std::find(notes.begin(), notes.begin() + count, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) !=
         notes.begin() + count;
}

}  // namespace

void check_status(cudnnStatus_t status, const char* what) {
  check(status == CUDNN_STATUS_SUCCESS, "cuDNN, {}: {}: {}", what, cudnnGetErrorString(status), last_words());
}

Descriptor::Descriptor(cudnnBackendDescriptorType_t type) {
  check_status(cudnnBackendCreateDescriptor(type, &raw_), "making a descriptor");
}
Descriptor::~Descriptor() {
  if (raw_) cudnnBackendDestroyDescriptor(raw_);
}
Descriptor::Descriptor(Descriptor&& d) noexcept : raw_(std::exchange(d.raw_, nullptr)) {}
Descriptor& Descriptor::operator=(Descriptor&& d) noexcept {
  std::swap(raw_, d.raw_);
  return *this;
}

void Descriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const void* values,
                     std::int64_t count) {
  check_status(cudnnBackendSetAttribute(raw_, name, type, count, values), "describing");
}
void Descriptor::set(cudnnBackendAttributeName_t name, const Descriptor& value) {
  const cudnnBackendDescriptor_t raw = value.get();
  set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, &raw);
}
void Descriptor::set(cudnnBackendAttributeName_t name, std::int64_t value) { set(name, CUDNN_TYPE_INT64, &value); }
void Descriptor::finalize(const char* what) { check_status(cudnnBackendFinalize(raw_), what); }

Layout dense(std::array<std::int64_t, 4> n) { return {n, {n[1] * n[2] * n[3], n[2] * n[3], n[3], 1}}; }

Graph::Node Graph::add_tensor(Uid uid, const Layout& layout, cudnnDataType_t type, bool temporary, bool by_value) {
  Descriptor& d = tensors_.emplace_back(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  d.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, uid);
  d.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, &type);
  d.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, layout.extents.data(), 4);
  d.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, layout.strides.data(), 4);
  d.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, kAlignment);
  d.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, &temporary);
  d.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, &by_value);
  d.finalize("a tensor");
  return &d;
}
Graph::Node Graph::tensor(Uid uid, const Layout& layout, cudnnDataType_t type) {
  return add_tensor(uid, layout, type, false, false);
}
Graph::Node Graph::scalar(Uid uid) { return add_tensor(uid, dense({1, 1, 1, 1}), CUDNN_DATA_FLOAT, false, true); }
Graph::Node Graph::temporary(const Layout& layout, cudnnDataType_t type) {
  return add_tensor(kFirstTemporary + static_cast<Uid>(tensors_.size()), layout, type, true, false);
}

Descriptor& Graph::operation(cudnnBackendDescriptorType_t type) { return operations_.emplace_back(type); }
Descriptor& Graph::rule(cudnnBackendDescriptorType_t type) { return rules_.emplace_back(type); }

void Graph::matmul(Node c, Node a, Node b) {
  const cudnnDataType_t precision = CUDNN_DATA_FLOAT;
  Descriptor& product = rule(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  product.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &precision);
  product.finalize("a product");
  Descriptor& o = operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  o.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, product);
  o.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, *a);
  o.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, *b);
  o.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, *c);
  o.finalize("a product");
}

Descriptor& Graph::pointwise_operation(cudnnPointwiseMode_t mode, cudnnDataType_t precision, Node y, Node x,
                                       std::int64_t axis) {
  Descriptor& function = rule(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  function.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, &mode);
  function.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, &precision);
  if (axis >= 0) function.set(CUDNN_ATTR_POINTWISE_AXIS, axis);
  function.finalize("a pointwise function");
  Descriptor& o = operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  o.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, function);
  o.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, *x);
  o.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, *y);
  return o;
}
void Graph::pointwise(Node y, cudnnPointwiseMode_t mode, Node x, Node b) {
  Descriptor& o = pointwise_operation(mode, CUDNN_DATA_FLOAT, y, x);
  if (b) o.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b);
  o.finalize("a pointwise operation");
}
void Graph::index(Node y, Node x, std::int64_t axis) {
  pointwise_operation(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, y, x, axis).finalize("an index");
}
void Graph::not_below(Node y, Node a, Node b) {
  Descriptor& o = pointwise_operation(CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, y, a);
  o.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b);
  o.finalize("a comparison");
}
void Graph::select(Node y, Node condition, Node yes, Node no) {
  Descriptor& o = pointwise_operation(CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, y, yes);
  o.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *no);
  o.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, *condition);
  o.finalize("a choice");
}

void Graph::reduce(Node y, cudnnReduceTensorOp_t what, Node x) {
  const cudnnDataType_t precision = CUDNN_DATA_FLOAT;
  Descriptor& reduction = rule(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  reduction.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, &what);
  reduction.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &precision);
  reduction.finalize("a reduction");
  Descriptor& o = operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  o.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, reduction);
  o.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, *x);
  o.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, *y);
  o.finalize("a reduction");
}

void Graph::reshape(Node y, Node x) {
  Descriptor& o = operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  o.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, *x);
  o.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, *y);
  o.finalize("a reshape");
}

void Graph::plan(const Target& target) {
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const Descriptor& o : operations_) raw.push_back(o.get());
  graph_ = Descriptor(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph_.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, raw.data(), std::ssize(raw));
  if (target.handle) graph_.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, &target.handle);
  graph_.finalize("a graph");

  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  proposals_ = Descriptor(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  proposals_.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph_);
  proposals_.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, &mode);
  if (target.properties) proposals_.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *target.properties);
  proposals_.finalize("proposals for a graph");

  raw.clear();
  for (std::int64_t i = 0; i < kMostWays; ++i)
    raw.push_back(ways_.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).get());
  std::int64_t found = 0;
  check_status(cudnnBackendGetAttribute(proposals_.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                        kMostWays, &found, raw.data()),
               "asking for proposals");
  found = std::min<std::int64_t>(found, kMostWays);  // it may say how many there are
  std::string reason = "it proposes none";
  for (std::int64_t i = 0; i < found; ++i) {
    const Descriptor& way = ways_[static_cast<std::size_t>(i)];
    if (is_nondeterministic(way)) {
      reason = "what it proposes gives other bits another time";
      continue;
    }
    Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    if (target.handle) plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, &target.handle);
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, way);
    if (target.properties) plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *target.properties);
    const cudnnStatus_t status = cudnnBackendFinalize(plan.get());
    if (status != CUDNN_STATUS_SUCCESS) {
      reason = fmt::format("{}: {}", cudnnGetErrorString(status), last_words());
      continue;
    }
    std::int64_t count = 0;
    check_status(cudnnBackendGetAttribute(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                                          &count, &scratch_),
                 "asking for a plan's scratch");
    plan_ = std::move(plan);
    return;
  }
  fail("cuDNN has no way to compute a graph of {} operations: {}", operations_.size(), reason);
}

void Graph::run(cudnnHandle_t handle, std::span<const Uid> uids, std::span<const void* const> addresses,
                void* scratch) const {
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, uids.data(), std::ssize(uids));
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, addresses.data(), std::ssize(addresses));
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, &scratch);
  pack.finalize("the tensors of a graph");
  check_status(cudnnBackendExecute(handle, plan_.get(), pack.get()), "computing a graph");
}

}  // namespace grt::cudnn
