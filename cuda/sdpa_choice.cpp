#include <cstdlib>

#include "core/error.h"
#include "cuda/sdpa.h"

namespace grt::cuda {

Sdpa* SdpaChoice::find(Pass pass, const SdpaShape& shape, cudaStream_t stream, std::int64_t* scratch) {
  if (!sought_) seek(stream);
  if (!library_) return nullptr;
  std::string reason;
  *scratch = library_->scratch(pass, shape, &reason);
  check(*scratch >= 0 || !forced_, "GRT_ATTENTION=cudnn: {}", reason);
  return *scratch >= 0 ? library_.get() : nullptr;
}

void SdpaChoice::seek(cudaStream_t stream) {
  const char* const named = std::getenv("GRT_ATTENTION");
  const std::string wish = named ? named : "";
  check(wish.empty() || wish == "own" || wish == "cudnn", "GRT_ATTENTION: must be own or cudnn, not \"{}\"", wish);
  forced_ = wish == "cudnn";
  try {
    if (wish != "own") library_ = open_sdpa(stream);
  } catch (const Error& e) {
    check(!forced_, "GRT_ATTENTION=cudnn: {}", e.what());
  }
  sought_ = true;
}

}  // namespace grt::cuda
