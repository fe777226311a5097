#!/usr/bin/env bash
# Six novels of Jane Austen as plain text, out of a Debian package that is downloaded but not installed: five to train
# on (DIR/train.txt) and the last one held out (DIR/val.txt).
set -euo pipefail

package=r-cran-janeaustenr
file=./usr/lib/R/site-library/janeaustenr/data/Rdata.rdb

fail() { echo "novels: $1" >&2; exit 1; }

[[ $# -eq 1 && $1 != -* ]] || { echo "usage: tools/novels.sh DIR"; [[ ${1:-} == --help ]]; exit; }
tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
command -v apt-get > /dev/null || fail "there is no apt-get here to fetch the novels with"
mkdir -p "$1"
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT

download() { (cd "$temporary" && apt-get download "$package") > "$temporary/log" 2>&1; }

if ! download; then
  "$tools/install.sh" --update
  download || { tail -n 5 "$temporary/log" >&2; fail "the package $package cannot be downloaded"; }
fi
dpkg-deb --fsys-tarfile "$temporary/$package"_*.deb | tar xO "$file" > "$temporary/Rdata.rdb" ||
  fail "the package $package has no file $file"
python3 "$tools/austen.py" "$temporary/Rdata.rdb" "$1"
