// The directory of a run: whether a new run may begin in it.
#pragma once

#include "core/files.h"

namespace grt {

// Makes `out` if need be. Throws Error when it holds an earlier run (a checkpoint or a log), unless `overwrite`, which
// removes that run's files and nothing else.
void claim_directory(const fs::path& out, bool overwrite);

}  // namespace grt
