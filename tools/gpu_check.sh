#!/usr/bin/env bash
# Everything that only a GPU can show, in a few minutes: builds for it, compares it with the CPU case by case, watches
# its memory, and measures training and decoding beside PyTorch. One table, and the numbers as JSON.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=$root/out/gpu_check
minutes=5
headers=${GRT_HEADERS:-}

usage() {
  cat << END
usage: tools/gpu_check.sh [--out DIR] [--minutes M] [--headers DIR]
       tools/gpu_check.sh --collect-headers DIR
  --out DIR              where the build, the logs and gpu_check.json go (default: out/gpu_check)
  --minutes M            time for everything; what there is no time left for is left out (default: $minutes)
  --headers DIR          for a machine without the packages of tools/install.sh: the headers of fmt, nlohmann-json,
                         CLI11, Eigen, doctest and zlib (default: \$GRT_HEADERS)
  --collect-headers DIR  fills such a directory from this machine's packages, and does nothing else
END
}

fail() { echo "gpu_check: $1" >&2; exit 1; }

# Of Debian's packages: libraries of headers alone, and zlib, whose library is everywhere.
collect_headers() {
  local to=$1 from=/usr/include name
  mkdir -p "$to"
  for name in fmt nlohmann CLI eigen3/Eigen doctest zlib.h zconf.h; do
    local found=$from/$name
    [[ -e $found ]] || found=$(find "$from" -maxdepth 2 -path "*-linux-gnu/$name" | head -n 1)
    [[ -n $found && -e $found ]] || fail "$from/$name is not there: tools/install.sh installs its package"
    cp -rL "$found" "$to/"
  done
  echo "gpu_check: the headers are in $to ($(du -sh "$to" | cut -f 1)); give them as --headers or GRT_HEADERS"
}

while [[ $# -gt 0 ]]; do
  case $1 in
    --help | -h) usage; exit 0 ;;
    --out | --minutes | --headers | --collect-headers) [[ $# -ge 2 ]] || fail "$1 needs a value" ;;&
    --out) out=$(realpath -m -- "$2") ;;
    --minutes) minutes=$2 ;;
    --headers) headers=$2 ;;
    --collect-headers) collect_headers "$2"; exit 0 ;;
    *) fail "unknown option $1; --help lists the options" ;;
  esac
  shift 2
done
[[ $minutes =~ ^[1-9][0-9]{0,2}$ ]] || fail "--minutes must be a whole number from 1 to 999, not '$minutes'"

if gpu=$(timeout 20 nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2> /dev/null); then
  gpu=$(sed -n 1p <<< "$gpu")
elif [[ $? == 124 ]]; then
  fail "nvidia-smi does not answer within 20 s"
else
  gpu=
fi
if [[ -z $gpu ]]; then
  echo "gpu_check: there is no GPU here (nvidia-smi names none); nothing was checked"
  exit 0
fi
echo "gpu_check: $gpu"
mkdir -p "$out"
build=$out/build

# A toolkit may hold the compiler alone: then cuBLASLt and cuDNN are taken from where PyTorch's packages have them.
library_flags() {
  local toolkit packages header library
  toolkit=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")")
  packages=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia
  found() { find -L "$1" -name "$2" -print -quit 2> /dev/null || true; }
  header=$(found "$packages" cublasLt.h)
  library=$(found "$packages" 'libcublasLt.so.*')
  if [[ -z $(found "$toolkit" libcublasLt.so) && -n $header && -n $library ]]; then
    echo "-DCUDA_cublasLt_LIBRARY=$library"
    echo "-DGRT_CUDA_INCLUDE_DIR=$(dirname "$header")"
    echo "-DCMAKE_CXX_FLAGS=-isystem $(dirname "$header")"
    echo "-DCMAKE_CUDA_FLAGS=-isystem $(dirname "$header")"
  fi
  header=$(found "$packages" cudnn_graph.h)
  library=$(found "$packages" 'libcudnn.so.*')
  if [[ -z $(found "$toolkit" libcudnn.so) && -n $header && -n $library ]]; then
    echo "-DGRT_CUDNN_INCLUDE_DIR=$(dirname "$header")"
    echo "-DGRT_CUDNN_FILE=$library"
  fi
}

in_time() { timeout $((60 * minutes > SECONDS ? 60 * minutes - SECONDS : 1)) "$@"; }

compile() {
  local targets more capability
  capability=$(timeout 20 nvidia-smi --query-gpu=compute_cap --format=csv,noheader | sed -n '1s/\.//p')
  local flags=(-DCMAKE_BUILD_TYPE=Release "-DCMAKE_CUDA_ARCHITECTURES=${capability:-90}" -DGRT_CUDA=ON "-DGRT_HEADERS=$headers")
  if command -v ninja > /dev/null; then flags+=(-G Ninja); fi
  mapfile -t more < <(library_flags)
  in_time cmake -S "$root" -B "$build" "${flags[@]}" "${more[@]}" || return
  targets=(train bench grt_cuda grt_gpu_tests)
  if cmake --build "$build" --target help | grep grt_cudnn > /dev/null; then targets+=(grt_cudnn); fi
  in_time cmake --build "$build" --parallel "$(nproc)" --target "${targets[@]}"
}

if ! compile > "$out/build.log" 2>&1; then
  tail -n 30 "$out/build.log"
  [[ $SECONDS -lt $((60 * minutes)) ]] || fail "the build did not end within $minutes minutes; see $out/build.log"
  fail "the build failed; its last lines are above, all of it is in $out/build.log"
fi
echo "gpu_check: built in $SECONDS s"
exec python3 "$root/tools/gpu_check.py" --bin "$build/bin" --out "$out" --gpu "$gpu" \
  --seconds $((60 * minutes - SECONDS))
