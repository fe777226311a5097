#!/usr/bin/env bash
# Installs the Debian packages that building, testing and the demo need: the one list of them. Only what is missing is
# installed; when nothing is missing, apt is not called and no network is needed. As root, or through sudo.
set -euo pipefail

packages=(
  g++ cmake ninja-build make   # make: for those who have no ninja, and for the test of that
  libfmt-dev nlohmann-json3-dev libcli11-dev zlib1g-dev
  openmpi-bin libopenmpi-dev   # several processes: without them one process trains as well as ever
  libeigen3-dev                # the product for CPUs without AVX2; singular values
  doctest-dev locales          # the tests alone
  python3                      # the demo: the text, the n-gram baselines, the picture
)

usage() {
  echo "usage: tools/install.sh [--dry-run | --update]"
  echo "Installs those of these Debian packages that are missing: ${packages[*]}."
  echo "  --dry-run   say what is missing and install nothing"
  echo "  --update    only bring apt's lists of packages up to date"
}

fail() { echo "install: $1" >&2; exit 1; }

dry_run=false
update=false
for argument in "$@"; do
  case $argument in
    --dry-run) dry_run=true ;;
    --update) update=true ;;
    --help | -h) usage; exit 0 ;;
    *) fail "unknown option $argument; --help lists the options" ;;
  esac
done

apt() {  # apt ARGUMENTS: silent unless it fails
  local as_root=() log
  if [[ $(id -u) != 0 ]]; then
    command -v sudo > /dev/null || fail "apt-get $1 needs root: run this as root, or install sudo"
    as_root=(sudo)
  fi
  log=$(mktemp)
  if ! "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 "$@" \
      > "$log" 2>&1 < /dev/null; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    fail "apt-get $1 failed; its last lines are above"
  fi
  rm -f "$log"
}

if $update; then
  echo "install: bringing apt's lists of packages up to date"
  apt update
  exit 0
fi
if ! command -v dpkg-query > /dev/null; then
  echo "install: not a Debian system, nothing is installed; what these packages hold is needed: ${packages[*]}"
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2> /dev/null || true)
  [[ $state == installed ]] || missing+=("$package")
done
if [[ ${#missing[@]} == 0 ]]; then
  echo "install: all ${#packages[@]} Debian packages are there"
  exit 0
fi

echo "install: installing ${#missing[@]} missing Debian packages: ${missing[*]}"
if $dry_run; then exit 0; fi

apt update
apt install --yes --no-install-recommends "${missing[@]}"
echo "install: done"
