#!/usr/bin/env bash
# From a bare Debian to a trained model: installs what is missing, builds, fetches real prose, trains grt-nano and its
# dense twin for a fixed time, and shows what recurring is worth. Safe to run again: what is finished is reused, what
# was interrupted goes on.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
text=
out=$root/out/quickstart
minutes=14
threads=$(nproc)

novels="six novels of Jane Austen"
held_out_most=1000000      # bytes of --text that are held out at most
prompt="She had not expected"

# Many small steps matter more than large batches in so short a time.
recipe=(--batch-size 4 --lr 4e-3)  # sequences of the preset's 256 bytes
calibration_steps=60
eval_batches=32            # of every validation while training; the last evaluation reads all of the held-out text
grt_share=65               # percent of the training time

usage() {
  cat << END
usage: tools/quickstart.sh [--text FILE] [--out DIR] [--minutes M] [--threads N]
  --text FILE   train on this plain text instead of six novels of Jane Austen, and download nothing; its last tenth
                (1 MB at most) is held out
  --out DIR     where text, models and picture go (default: out/quickstart)
  --minutes M   time until the result is shown, installing and building included (default: $minutes)
  --threads N   threads to compute with (default: all CPUs, here $threads)
END
}

fail() { echo "quickstart: $1" >&2; exit 1; }

parse() {
  while [[ $# -gt 0 ]]; do
    case $1 in
      --help | -h) usage; exit 0 ;;
      --text | --out | --minutes | --threads) [[ $# -ge 2 ]] || fail "$1 needs a value" ;;&
      --text) text=$(realpath -m -- "$2") ;;
      --out) out=$(realpath -m -- "$2") ;;
      --minutes) minutes=$2 ;;
      --threads) threads=$2 ;;
      *) fail "unknown option $1; --help lists the options" ;;
    esac
    shift 2
  done
  [[ $minutes =~ ^[1-9][0-9]{0,3}$ ]] || fail "--minutes must be a whole number from 1 on, not '$minutes'"
  [[ $threads =~ ^[1-9][0-9]{0,3}$ ]] || fail "--threads must be a whole number from 1 on, not '$threads'"
  [[ $minutes -ge 8 ]] || echo "--minutes $minutes is short: the models will have learned little"
  [[ -z $text || -r $text && -f $text ]] || fail "--text $text: no such file, or it cannot be read"
}

heading() { printf '\n== %s (%d:%02d of %d:00)\n' "$1" $((SECONDS / 60)) $((SECONDS % 60)) "$minutes"; }

# quietly WHAT COMMAND...: the output goes to a log, of which the end is shown when the command fails.
quietly() {
  local what=$1 log=$out/log/${1// /-}.log
  shift
  "$@" > "$log" 2>&1 < /dev/null && return
  tail -n 15 "$log" >&2
  fail "$what failed; all it said is in $log"
}

# What the demo runs; the other programs wait until its result is shown. Where there is a GPU all is built at once, for
# its part is needed.
build() {
  local first=() needed=(--target train eval generate tokenize)
  [[ -e build/CMakeCache.txt ]] || first=(-G Ninja -DGRT_TESTS=OFF)
  quietly configuring cmake -S . -B build "${first[@]}" -DCMAKE_BUILD_TYPE=Release
  if timeout 20 nvidia-smi -L > /dev/null 2>&1; then needed=(); fi
  quietly building cmake --build build --parallel "$(nproc)" "${needed[@]}"
  echo "built: build/bin"
}

build_the_rest() {
  quietly "building the rest" cmake --build build --parallel "$(nproc)"
  echo "built: all of build/bin"
}

split_text() {
  local size held
  size=$(stat --dereference --format %s -- "$text")
  held=$((size / 10 < held_out_most ? size / 10 : held_out_most))
  [[ $held -ge 1000 ]] || fail "--text $text has $size bytes; at least 10,000 are needed"
  head -c $((size - held)) -- "$text" > "$out/data/train.txt"
  tail -c "$held" -- "$text" > "$out/data/val.txt"
  echo "split: $((size - held)) bytes to train on, the last $held bytes held out"
}

# data/source.txt says what text the directory holds, and is written last.
prepare_text() {
  local source=${text:-$novels} data=$out/data part
  local found=$data/source.txt
  if [[ -e $found ]]; then
    [[ $(< "$found") == "$source" ]] || fail "$out holds the text $(< "$found"), not $source; choose another --out"
    echo "reused: $data"
  else
    if [[ -n $text ]]; then split_text; else tools/novels.sh "$data"; fi
    for part in train val; do
      rm -f "$data/$part.bin"
      quietly tokenizing build/bin/tokenize --tokenizer bytes --input "$data/$part.txt" --output "$data/$part.bin"
    done
    quietly "counting n-grams" \
      python3 tools/ngram.py --train "$data/train.txt" --val "$data/val.txt" --json "$data/ngram.json"
    echo "$source" > "$found"
  fi
}

train() {  # train PRESET RUN STEPS FLAGS...
  local preset=$1 run=$2 steps=$3
  shift 3
  build/bin/train --model "$preset" --data-train "$out/data/train.bin" --data-val "$out/data/val.bin" --out "$run" \
    --steps "$steps" --warmup-steps $((steps / 20)) --threads "$threads" "${recipe[@]}" "$@"
}

milliseconds() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); }

# Seconds that an evaluation of all of the held-out text takes, measured on its first part.
evaluation_seconds() {  # evaluation_seconds PRESET EVAL_FLAGS...
  local preset=$1 begin part=$out/calibration/part.bin
  shift
  head -c 65538 "$out/data/val.bin" > "$part"
  begin=$(milliseconds)
  quietly "measuring the evaluation" build/bin/eval --checkpoint "$out/calibration/$preset" \
    --data "$part" --threads "$threads" "$@"
  echo $((($(milliseconds) - begin) * $(stat --format %s "$out/data/val.bin") / $(stat --format %s "$part") / 1000 + 1))
}

# plan.txt: one line "PRESET STEPS" a model, so that the time fits. It stays when the script is run again.
plan() {
  local preset reserve=15 left share steps grt_seconds dense_seconds  # 15: samples, picture, start-up
  if [[ -e $out/plan.txt ]]; then
    echo "reused: $out/plan.txt"
    return
  fi
  rm -rf "$out/calibration"
  mkdir "$out/calibration"
  for preset in grt-nano dense-nano; do
    quietly "measuring $preset" train "$preset" "$out/calibration/$preset" "$calibration_steps" \
      --eval-every "$calibration_steps" --eval-batches 1
  done
  # Validation while training comes to less than half an evaluation of everything.
  grt_seconds=$(evaluation_seconds grt-nano --depths all)
  dense_seconds=$(evaluation_seconds dense-nano)
  reserve=$((reserve + (grt_seconds + dense_seconds) * 3 / 2))
  left=$((minutes * 60 - SECONDS - reserve))
  [[ $left -ge 20 ]] || { echo "little time is left of $minutes minutes: trains for 20 seconds"; left=20; }
  for preset in grt-nano dense-nano; do
    share=$grt_share
    [[ $preset == grt-nano ]] || share=$((100 - grt_share))
    steps=$(python3 tools/demo.py steps "$out/calibration/$preset" $((left * share / 100)))
    echo "$preset $steps"
  done > "$out/plan.new"
  mv "$out/plan.new" "$out/plan.txt"
  rm -rf "$out/calibration"
  echo "$left seconds of training, $grt_share % of them for grt-nano; $reserve seconds kept for evaluation"
}

# train refuses a directory that holds a run, so: finished, to be resumed, or to be begun.
train_planned() {
  local preset=$1 run=$out/$1 steps how=() done=0 every
  steps=$(awk -v preset="$preset" '$1 == preset { print $2 }' "$out/plan.txt")
  [[ ! -e $run/latest ]] || done=$((10#$(basename "$(< "$run/latest")" | tr -cd 0-9)))
  if [[ $done -ge $steps ]]; then
    echo "reused: $run, all $steps steps are done"
    return
  fi
  if [[ $done -gt 0 ]]; then how=(--resume); elif [[ -e $run ]]; then how=(--overwrite); fi
  every=$(((steps + 7) / 8))
  train "$preset" "$run" "$steps" --eval-every "$every" --eval-batches "$eval_batches" --save-every "$every" \
    "${how[@]}" || fail "training $preset stopped; run the same command again to go on from its last checkpoint"
}

evaluate() {  # evaluate PRESET EVAL_FLAGS...
  local preset=$1 json=$out/$1.eval.json
  local command=(build/bin/eval --checkpoint "$out/$preset" --data "$out/data/val.bin" --json "$json.new"
    --threads "$threads" "${@:2}")
  if [[ $json -nt $out/$preset/latest ]]; then
    echo "reused: $json"
  else
    quietly "evaluating $preset" "${command[@]}"
    mv "$json.new" "$json"
  fi
}

sample() {
  local depth log=$out/log/generating.log
  for depth in 1 2 6; do
    printf -- '-- depth %d: %s' "$depth" "$prompt"
    build/bin/generate --checkpoint "$out/grt-nano" --prompt "$prompt" --tokens 200 --depth "$depth" --seed 1 \
      --threads "$threads" 2> "$log" || { cat "$log" >&2; fail "generating at depth $depth failed"; }
  done
}

draw() {
  python3 tools/plot.py "$out/grt-nano" "$out/dense-nano" --output "$out/loss.svg" --baselines "$out/data/ngram.json" \
    --eval "grt-nano=$out/grt-nano.eval.json" --eval "dense-nano=$out/dense-nano.eval.json" --unit byte \
    --note "Validation while training: the first $eval_batches batches of the held-out text; by depth: all of it."
}

list_files() {
  cat << END
Files in $out:
  loss.svg                         the picture
  grt-nano/, dense-nano/           checkpoints, train.jsonl, train.csv
  grt-nano.eval.json, dense-nano.eval.json
  data/                            the text, its tokens, the n-gram baselines
END
}

what_next() {
  cat << END
Next:
  build/bin/generate --checkpoint $out/grt-nano --prompt "My dear Sir" --tokens 200 --depth 3
  build/bin/eval --checkpoint $out/grt-nano --data $out/data/val.bin --depths 1,3,6
  build/bin/inspect $out/grt-nano
  build/bin/analyze --checkpoint $out/grt-nano --twin $out/dense-nano --data $out/data/val.bin --out $out/analysis
  tools/study.py --scale nano --comparison isoflop
  build/bin/train --help
END
}

main() {
  parse "$@"
  cd "$root"
  mkdir -p "$out/log" "$out/data" || fail "--out $out cannot be made"
  heading "Packages"
  tools/install.sh
  heading "Build"
  build
  heading "Text"
  prepare_text
  heading "Measuring speed, planning steps"
  plan
  heading "Training grt-nano"
  train_planned grt-nano
  heading "Training dense-nano, as many block applications without recurrence"
  train_planned dense-nano
  heading "Evaluation"
  evaluate grt-nano --depths all
  evaluate dense-nano
  python3 tools/demo.py report "$out"
  heading "Samples of grt-nano, same seed"
  sample
  heading "Picture"
  draw
  list_files
  heading "The other programs"
  build_the_rest
  what_next
}

main "$@"
