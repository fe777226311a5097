#!/usr/bin/env bash
# What configuring makes of a machine without a GPU, nvcc or CUDA's headers, and of CMAKE_CUDA_ARCHITECTURES. Builds
# nothing. Without nvcc only what needs none.
set -euo pipefail

source=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
failed=0

# says TEXT FLAGS...: what cmake prints, its line breaks aside, contains TEXT. Into $build, which is emptied before.
says() {
  local text=$1 said
  shift
  rm -rf "${build:?}"/*
  said=$(cmake -S "$source" -B "$build" -G Ninja -DGRT_TOOLS=OFF -DGRT_TESTS=OFF "$@" 2>&1 | tr -s ' \n' ' ') || true
  if [[ $said == *"$text"* ]]; then return 0; fi
  echo "cmake $* does not say: $text"
  echo "$said"
  failed=1
}

# skipped NAME...: these tests of $build exist, and are skipped.
skipped() {
  local name said
  said=$(ctest --test-dir "$build" -R "^($(IFS='|'; echo "$*"))\$" 2>&1) || true
  for name in "$@"; do
    if [[ $said == *" $name ."*"Skipped"* ]]; then continue; fi
    echo "ctest does not say that $name was skipped"
    echo "$said"
    failed=1
  done
}

says "CUDA backend: not built (GRT_CUDA=OFF)" -DGRT_CUDA=OFF
CUDACXX=/nowhere/nvcc says "CUDA backend: not built (no working nvcc was found)"
CUDACXX=/nowhere/nvcc says "GRT_CUDA=ON, but no working nvcc was found" -DGRT_CUDA=ON
says "Emulated CUDA tests: left out (no CUDA headers were found)" -DGRT_CUDA=OFF -DGRT_TESTS=ON \
  -DGRT_CUDA_INCLUDE_DIR=OFF
skipped cuda cuda_tsan cudnn gpu

nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
if [[ -x $nvcc ]]; then
  export CUDACXX=$nvcc
  says "CUDA backend: built for 80-real;90 with CUDA"
  says "CUDA backend: built for 90 with CUDA" -DCMAKE_CUDA_ARCHITECTURES=90
  says "CMAKE_CUDA_ARCHITECTURES: 75-real is too old, the kernels need 80 or later" \
    "-DCMAKE_CUDA_ARCHITECTURES=75-real;90"
  says "CMAKE_CUDA_ARCHITECTURES: $nvcc does not know 99, but " -DCMAKE_CUDA_ARCHITECTURES=99
  says "or 90-virtual, not \"hopper\"" -DCMAKE_CUDA_ARCHITECTURES=hopper
  if [[ ! -e /dev/nvidia0 ]]; then
    says "CMAKE_CUDA_ARCHITECTURES: native asks the GPU, and there is none here" -DCMAKE_CUDA_ARCHITECTURES=native
  fi
fi
exit "$failed"
