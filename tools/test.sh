#!/usr/bin/env bash
# Builds and tests everything: the release build, its other instruction sets, the build with sanitizers, the installed
# library used by another program, and the source archive. Goes on after a failure, and counts.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
jobs=$(nproc)
passed=0 skipped=0
failed=0
fast=false

usage() {
  echo "usage: tools/test.sh [--fast]"
  echo "Installs what is missing, builds under build/test-* and runs every test; exits non-zero if one fails."
  echo "  --fast   the release build and its tests alone"
}

for argument in "$@"; do
  case $argument in
    --fast) fast=true ;;
    --help | -h) usage; exit 0 ;;
    *) echo "test: unknown option $argument; --help lists the options" >&2; exit 1 ;;
  esac
done

temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
logs=$root/build/test-logs
mkdir -p "$logs"

heading() { printf '\n== %s (after %d:%02d)\n' "$1" $((SECONDS / 60)) $((SECONDS % 60)); }

# check NAME COMMAND...: one test. The output is shown when it fails.
check() {
  local name=$1 log=$logs/${1// /-}.log
  shift
  if "$@" > "$log" 2>&1 < /dev/null; then
    passed=$((passed + 1))
    echo "ok      $name"
  else
    failed=$((failed + 1))
    tail -n 40 "$log"
    echo "FAILED  $name"
    return 1
  fi
}

configure_and_build() {  # configure_and_build SOURCE BINARY TARGET CMAKE_FLAGS...
  local source=$1 binary=$2 target=$3 launcher=()
  shift 3
  if command -v ccache > /dev/null; then launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
  cmake -S "$source" -B "$binary" "${launcher[@]}" "$@" && cmake --build "$binary" --target "$target" --parallel "$jobs"
}

# Runs the tests of a build directory, and adds their numbers up from ctest's closing line:
# "75% tests passed, 2 tests failed out of 8".
run_ctest() {  # run_ctest NAME DIRECTORY CTEST_FLAGS...
  local log=$logs/ctest-$1.log line without
  local count='([0-9]+) tests? failed out of ([0-9]+)'
  ctest --test-dir "$2" --output-on-failure --no-tests=error -j "$jobs" "${@:3}" < /dev/null 2>&1 | tee "$log" || true
  line=$(grep 'tests failed out of' "$log" || true)
  if [[ $line =~ $count ]]; then
    failed=$((failed + BASH_REMATCH[1]))
    without=$(grep --count '\*\*\*Skipped' "$log" || true)  # which ctest counts as passed
    skipped=$((skipped + without))
    passed=$((passed + BASH_REMATCH[2] - BASH_REMATCH[1] - without))
  else
    failed=$((failed + 1))
    echo "FAILED  ctest in $2 ran no test"
  fi
}

release() {
  heading "Release build"
  check "the release build compiles" configure_and_build . build/test-release all -G Ninja -DCMAKE_BUILD_TYPE=Release &&
    run_ctest release build/test-release
}

# A build type of its own: -O1 keeps both the compilation and the run short.
sanitizers() {
  heading "Address and undefined-behaviour sanitizers"
  check "the sanitized build compiles" configure_and_build . build/test-asan all -G Ninja -DGRT_SANITIZE=ON -DGRT_CUDA=OFF \
    -DCMAKE_BUILD_TYPE=Sanitize -DCMAKE_CXX_FLAGS_SANITIZE="-O1 -g1" &&
    UBSAN_OPTIONS=print_stacktrace=1 run_ctest sanitized build/test-asan
}

# The library is loaded, with all that it links, and says why it can do nothing. Where there is a driver it may work.
starts_without_driver() {  # starts_without_driver LIBRARY
  local said
  if [[ -e /dev/nvidia0 ]]; then echo "there is an NVIDIA driver"; return 0; fi
  said=$(GRT_CUDA_LIBRARY=$1 build/test-release/bin/generate --checkpoint tests/fixtures/oracle/grt --device cuda \
    --prompt-ids 1 --tokens 1 2>&1) && { echo "it computed without a driver"; return 1; }
  echo "$said"
  [[ $said == *"--device cuda: no NVIDIA driver is installed"* ]]
}

# With the library for ranks it is the same; that one is loaded with all that it links, and is of the same build.
ranks_start_without_driver() {  # ranks_start_without_driver DIRECTORY
  local said
  python3 - "$1" << 'END' || return 1
import ctypes, os, sys
of = {}
for part in ("cuda", "nccl"):
    library = ctypes.CDLL(f"{sys.argv[1]}/libgrt_{part}.so", mode=os.RTLD_NOW)
    interface = library[f"grt_{part}_interface"]
    interface.restype = ctypes.c_char_p
    of[part] = interface()
sys.exit(of["cuda"] != of["nccl"] and f"of different builds: {of}")
END
  if [[ -e /dev/nvidia0 ]]; then echo "there is an NVIDIA driver"; return 0; fi
  said=$(OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 GRT_CUDA_LIBRARY=$1/libgrt_cuda.so \
    mpirun -np 2 --oversubscribe build/test-release/bin/train --model tests/fixtures/oracle/grt/config.json \
    --data-train tests/fixtures/oracle/grt/tokens.bin --out "$temporary/ranks" --device cuda 2>&1) &&
    { echo "it computed without a driver"; return 1; }
  echo "$said"
  [[ $said == *"rank 0 of 2: --device cuda: no NVIDIA driver is installed"* ]]
}

needs_no_cudnn() {  # needs_no_cudnn LIBRARY
  local needs
  needs=$(readelf --dynamic "$1") || return 1
  ! grep 'NEEDED.*cudnn' <<< "$needs"
}

cuda() {
  heading "CUDA backend without a GPU"
  check "configuring says what is built for a GPU, and what cannot be" tests/configure.sh || true
  if [[ ! -e build/test-release/lib/grt/libgrt_cuda.so ]]; then
    echo "skipped: no nvcc was found, so there is no libgrt_cuda.so"
    return 0
  fi
  check "the CUDA backend loads and says that there is no driver" \
    starts_without_driver "$root/build/test-release/lib/grt/libgrt_cuda.so" || true
  if [[ -e build/test-release/lib/grt/libgrt_nccl.so ]]; then
    check "the library for ranks on GPUs loads, and ranks say that there is no driver" \
      ranks_start_without_driver "$root/build/test-release/lib/grt" || true
  else
    echo "skipped: no NCCL was found, so there is no libgrt_nccl.so"
  fi
  check "the CUDA backend can be loaded without cuDNN" \
    needs_no_cudnn "$root/build/test-release/lib/grt/libgrt_cuda.so"
}

# The other instruction sets that this machine has, in the release build.
other_levels() {
  local default
  default=$(build/test-release/bin/gradcheck --op silu | sed -n '1s/.*(\([a-z0-9]*\)).*/\1/p')
  heading "The library at the levels other than $default"
  run_ctest levels build/test-release --build-config levels --tests-regex '[a-z]-at-' --exclude-regex "-at-$default\$"
}

every_binary_starts() {  # every_binary_starts DIRECTORY
  local binary
  for binary in "$1"/*; do
    "$binary" --help || { echo "$binary does not start"; return 1; }
  done
}

installation() {
  local prefix="$temporary/an installation"
  heading "Installed library"
  check "the release build installs" cmake --install build/test-release --prefix "$prefix" || return 0
  check "every installed binary starts" every_binary_starts "$prefix/bin" || true
  check "another program builds against the installed library" \
    configure_and_build tests/consumer "$temporary/consumer" app -G Ninja -DCMAKE_PREFIX_PATH="$prefix" &&
    check "another program runs with the installed library" "$temporary/consumer/app"
}

# What git would put into an archive: all files it does not ignore. Without git: all but the build directories.
copy_sources() {  # copy_sources TO
  mkdir -p "$1"
  if git rev-parse --is-inside-work-tree > /dev/null 2>&1; then
    git ls-files -z --cached --others --exclude-standard |
      tar c --ignore-failed-read --null --files-from=- | tar x -C "$1"
  else
    tar c --exclude=./.git --exclude='./build*' --exclude=./out --exclude=./data . | tar x -C "$1"
  fi
}

source_archive() {
  local source="$temporary/a source archive" offline=()
  heading "Source archive: no git, a path with spaces, Make, no network"
  if unshare --map-root-user --net true 2> /dev/null; then offline=(unshare --map-root-user --net); fi
  check "the sources can be copied" copy_sources "$source" || return 0
  # Unoptimized, for the sake of time: what it computes is tested above.
  check "the archive configures without a network" "${offline[@]}" cmake -S "$source" -B "$source/build" \
    -G "Unix Makefiles" -DGRT_TESTS=OFF -DCMAKE_BUILD_TYPE=Unoptimized || return 0
  check "the archive builds" "${offline[@]}" cmake --build "$source/build" --target tokenize --parallel "$jobs" &&
    check "the binary of the archive starts" "$source/build/bin/tokenize" --help
}

tools/install.sh
heading "Scripts"
check "the Python scripts do what they say" python3 tests/tools/scripts_test.py || true
if command -v shellcheck > /dev/null; then
  check "shellcheck finds nothing in the shell scripts" shellcheck tools/*.sh tests/configure.sh .ci/run || true
fi
release || true
if ! $fast; then
  cuda || true
  sanitizers || true
  other_levels || true
  installation || true
  source_archive || true
fi

printf '\nTook %d:%02d.\n' $((SECONDS / 60)) $((SECONDS % 60))
echo "$passed passed, $failed failed, $skipped skipped"
[[ $failed == 0 ]]
