// The part of NCCL that cuda/nccl/comm.cpp calls, over MPI, for emulated devices: each rank is a process. A group of
// calls is one piece of its stream's work. Streams must be eager: a call waits for the other ranks, and they must not
// wait elsewhere meanwhile. With GRT_EMU_NCCL_ERROR in the environment every look for errors finds one.
#include <mpi.h>
#include <nccl.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "cuda/emu/emu.h"

struct ncclComm {
  MPI_Comm ranks;
};

namespace {

using Requests = std::vector<MPI_Request>;
using Call = std::function<void(Requests& unfinished)>;

struct Group {
  int depth = 0;
  cudaStream_t stream = nullptr;
  std::vector<Call> calls;
};
Group group;

MPI_Datatype mpi_type(ncclDataType_t type) { return type == ncclFloat64 ? MPI_DOUBLE : MPI_FLOAT; }

void run(const std::vector<Call>& calls) {
  Requests unfinished;
  for (const Call& call : calls) call(unfinished);
  MPI_Waitall(static_cast<int>(unfinished.size()), unfinished.data(), MPI_STATUSES_IGNORE);
}

ncclResult_t submit() {
  if (!group.calls.empty()) grt::emu::enqueue(group.stream, [calls = std::exchange(group.calls, {})] { run(calls); });
  return ncclSuccess;
}

ncclResult_t add(ncclDataType_t type, const void* from, const void* to, cudaStream_t stream, Call call) {
  if (type != ncclFloat32 && type != ncclFloat64) return ncclInvalidArgument;
  grt::emu::check_pointer(from, 0);
  grt::emu::check_pointer(to, 1);
  group.stream = stream;
  group.calls.push_back(std::move(call));
  return group.depth > 0 ? ncclSuccess : submit();
}

int rank_in(ncclComm_t comm) {
  int rank = 0;
  MPI_Comm_rank(comm->ranks, &rank);
  return rank;
}

}  // namespace

extern "C" {

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "invalid argument";
  }
}
const char* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  for (char& c : id->internal) c = static_cast<char>(std::rand());
  return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  ncclUniqueId first = id;
  MPI_Bcast(&first, sizeof first, MPI_BYTE, 0, MPI_COMM_WORLD);
  int world_rank = 0, world_size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  if (std::memcmp(&first, &id, sizeof id) != 0 || rank != world_rank || size != world_size) return ncclInvalidArgument;
  *comm = new ncclComm;
  MPI_Comm_dup(MPI_COMM_WORLD, &(*comm)->ranks);
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  MPI_Barrier(comm->ranks);
  MPI_Comm_free(&comm->ranks);
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = std::getenv("GRT_EMU_NCCL_ERROR") ? ncclRemoteError : ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() { return --group.depth == 0 ? submit() : ncclSuccess; }

ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  if (from != to) return ncclInvalidArgument;  // in place is all that is asked for
  return add(type, from, to, stream,
             [=](Requests&) { MPI_Bcast(to, static_cast<int>(count), mpi_type(type), root, comm->ranks); });
}
ncclResult_t ncclReduce(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t operation,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  const bool here = rank_in(comm) == root;
  if (operation != ncclSum || (here && from != to)) return ncclInvalidArgument;
  return add(type, from, to, stream, [=](Requests&) {
    MPI_Reduce(here ? MPI_IN_PLACE : from, to, static_cast<int>(count), mpi_type(type), MPI_SUM, root, comm->ranks);
  });
}
ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add(type, from, nullptr, stream, [=](Requests& unfinished) {
    MPI_Isend(from, static_cast<int>(count), mpi_type(type), peer, 0, comm->ranks, &unfinished.emplace_back());
  });
}
ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add(type, nullptr, to, stream, [=](Requests& unfinished) {
    MPI_Irecv(to, static_cast<int>(count), mpi_type(type), peer, 0, comm->ranks, &unfinished.emplace_back());
  });
}

}  // extern "C"
