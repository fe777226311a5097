#!/bin/sh
# The architecture test: a folder includes only folders below it, no file is too long, and third-party headers stay in
# their places. Of the levels of ops/cpu/, whose archive is the first argument, no code leaks into the rest.
archive=$1
cd "$(dirname "$0")/.." || exit 1
fail=0
allow() {  # allow FOLDER "floors it may include"
  for f in $(find "$1" -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' 2>/dev/null); do
    for inc in $(sed -n 's/^#include "\([a-z]*\)\/.*/\1/p' "$f"); do
      case " $1 $2 " in *" $inc "*) ;; *) echo "$f includes $inc/, which is not below $1/"; fail=1 ;; esac
    done
  done
}
allow core     ""
allow autograd "core"
allow ops      "core autograd"
allow cuda     "core ops"
allow nn       "core autograd ops"
allow models   "core autograd ops nn"
allow train    "core autograd ops nn models"
allow tools    "core autograd ops nn models train"

for f in $(find core autograd ops cuda nn models train tools tests \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.sh' -o -name '*.py' \)); do
  lines=$(wc -l < "$f")
  [ "$lines" -le 600 ] || { echo "$f has $lines lines; 600 is the limit"; fail=1; }
done

# Eigen and CLI11 stay out of the library's headers: what another program includes has no alignment-dependent type.
for f in $(grep -rlE '#include <(Eigen|CLI)/' core autograd ops nn models train --include='*.h'); do
  echo "$f includes Eigen or CLI11 in a header"; fail=1
done
if grep -rnE '^ *#(define|ifdef|ifndef|if) ' core autograd ops nn models train tools --include='*.h' --include='*.cpp'; then
  echo "the library uses no macros"; fail=1
fi
# A level may show its table alone: a weak symbol compiled for AVX-512 could be linked into what runs everywhere.
if [ -n "$archive" ]; then
  for isa in $(ar t "$archive" | sed -n 's/^kernels_\(.*\)\.o$/\1/p'); do
    shown=$(nm --defined-only --extern-only "$archive" 2>/dev/null | sed -n "/^kernels_$isa.o:/,/^$/p" | grep -c ' [A-Za-z] ')
    [ "$shown" = 1 ] || { echo "kernels_$isa.o shows $shown symbols; its table alone is meant to be visible"; fail=1; }
  done
fi
[ $fail = 0 ] && echo "floors: every include points downwards, no file is over 600 lines"
exit $fail
