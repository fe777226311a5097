#!/usr/bin/env python3
"""Runs a comparison of the paper at a chosen scale: equal budgets, equal seeds, one table and one picture.

  study.py --scale nano --comparison isoflop        the six methods at equal block applications, on 2 CPU cores
  study.py --scale nano --comparison ablation       ... and the GRT built up part by part; finished runs are shared
  study.py --scale small --comparison isoflop --data-train 'fineweb_train_*.bin' --data-val fineweb_val.bin

Every run is a directory OUT/SCALE/CASE-seedN. What is finished is reused, what was interrupted goes on from its last
checkpoint. Results: OUT/SCALE/COMPARISON.md, .svg and .json. Needs the binaries (build/bin) and nothing but Python;
`nano` without --data-train fetches six novels (tools/novels.sh).
"""
import argparse
import glob
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import studies
import study_report

TOOLS = pathlib.Path(__file__).resolve().parent
ROOT = TOOLS.parent


def fail(message):
    sys.exit(f"study: {message}")


def terminated(number, frame):
    raise KeyboardInterrupt(number)


def read_json(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        fail(f"{path}: {error}")


def write_json(path, value):
    """Whole or not at all."""
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(value, indent=1) + "\n")
    new.replace(path)


class Study:
    def __init__(self, options):
        self.options = options
        self.scale = studies.SCALES[options.scale]
        self.steps = options.steps or self.scale.steps
        self.out = options.out / options.scale
        self.threads = ("--threads", str(options.threads)) if options.threads else ()

    def binary(self, name):
        path = self.options.bin / name
        if not os.access(path, os.X_OK):
            fail(f"--bin: {path} is not there; build first, or name the directory of the binaries")
        return str(path)

    def quietly(self, command, what):
        """Its output is shown if it fails."""
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode != 0:
            fail(f"{what}: {(done.stderr or done.stdout).strip().splitlines()[-1]}")

    # --- what all runs share ------------------------------------------------------------------------------------------

    def prepare(self):
        self.out.mkdir(parents=True, exist_ok=True)
        if self.options.fetched:
            self.fetch_novels()
        recipe = {"steps": self.steps, "flags": [*self.scale.recipe, "--lr", self.scale.lr]}
        for name in ("data_train", "data_val"):
            data = getattr(self.options, name)
            if not glob.glob(str(data)):
                fail(f"--{name.replace('_', '-')}: {data}: there is no such file")
            recipe[name] = str(pathlib.Path(data).resolve())
        place = self.out / "recipe.json"
        if place.exists():
            before = read_json(place)
            for key, value in recipe.items():
                if before.get(key) != value:
                    fail(f"{place}: the runs there have {key} {before.get(key)}, not {value}; choose another --out")
        write_json(place, recipe)

    def fetch_novels(self):
        data = self.out / "data"
        for part in ("train", "val"):
            tokens = data / f"{part}.bin"
            if not tokens.exists():
                if not (data / f"{part}.txt").exists():
                    self.quietly([TOOLS / "novels.sh", data], "fetching the novels")
                text = data / f"{part}.txt"
                if part == "val" and self.scale.held_out:
                    text = data / "held_out.txt"
                    text.write_bytes((data / "val.txt").read_bytes()[: self.scale.held_out])
                self.quietly([self.binary("tokenize"), "--tokenizer", "bytes", "--input", text, "--output", tokens],
                             f"{text}")
        self.options.data_train, self.options.data_val = data / "train.bin", data / "val.bin"

    # --- one run ------------------------------------------------------------------------------------------------------

    def run(self, case, seed):
        """Trains and evaluates what is missing of a run; returns what its row needs."""
        run = self.out / f"{case.name(self.steps)}-seed{seed}"
        result = run / "result.json"
        if not result.exists():
            self.train(case, seed, run)
            model = self.inspect(run)
            self.evaluate(model, run)
            write_json(result, self.summary(model, run))
        return read_json(result)

    def train(self, case, seed, run):
        steps = case.run_steps(self.steps)
        command = [
            self.binary("train"), "--model", case.preset, "--data-train", self.options.data_train, "--data-val",
            self.options.data_val, "--out", run, "--seed", seed, *self.scale.recipe, *self.lr(case), "--steps", steps,
            "--warmup-steps", max(1, steps // 10), "--eval-every", max(1, steps // 10), "--eval-batches",
            self.scale.validation, "--eval-depths", "full", "--save-every", max(1, steps // 5), "--keep", 1,
            "--device", self.options.device, *self.threads, *case.flags,
        ]
        if (run / "latest").exists():
            command.append("--resume")
        elif run.exists():
            command.append("--overwrite")
        self.options.log.write(" ".join(str(word) for word in command) + "\n")
        self.options.log.flush()
        begin = self.options.log.tell()
        child = subprocess.Popen([str(word) for word in command], stdout=self.options.log, stderr=subprocess.STDOUT)
        try:
            _, status, usage = os.wait4(child.pid, 0)
        except KeyboardInterrupt as interrupt:  # from the terminal train has it too, and saves
            if interrupt.args:
                child.terminate()
            os.wait4(child.pid, 0)
            raise
        code = os.waitstatus_to_exitcode(status)
        if code != 0:
            said = pathlib.Path(self.options.log.name).read_bytes()[begin:].decode(errors="replace").strip()
            fail(f"{run.name}: train ended with exit code {code}: {said.splitlines()[-1] if said else 'it said nothing'}")
        place = run / "usage.json"  # of all the processes that a run took
        before = read_json(place)["peak_bytes"] if place.exists() else 0
        write_json(place, {"peak_bytes": max(before, usage.ru_maxrss * 1024)})

    def lr(self, case):
        return () if "--lr" in case.flags else ("--lr", self.scale.lr)

    def inspect(self, run):
        """Layout, parameters, FLOPs and full depth of a run's model."""
        place = run / "model.json"
        self.quietly([self.binary("inspect"), run, "--json", place], f"inspecting {run.name}")
        return read_json(place)

    def evaluate(self, model, run):
        depths = self.depths(model)
        self.quietly([self.binary("eval"), "--checkpoint", run, "--data", self.options.data_val, "--batch-size", 16,
                      "--depths", ",".join(map(str, depths)), "--json", run / "eval.json", "--device",
                      self.options.device, *self.threads], f"evaluating {run.name}")

    def depths(self, model):
        full = model["depth"]
        if model["architecture"] == "dense":
            return [full]
        first = 0 if model["architecture"] == "grt" else 1
        beyond = [round(full * factor) for factor in studies.BEYOND] if model["architecture"] in ("grt", "poisson") else []
        return [*range(first, full + 1), *beyond]

    def summary(self, model, run):
        evaluation = read_json(run / "eval.json")
        log = [json.loads(line) for line in (run / "train.jsonl").read_text().splitlines()]
        steps = [line for line in log if "loss" in line]
        done, curve = {}, []
        flops = 0.0
        for line in steps:
            flops += line["flops"]
            done[line["step"]] = flops
        for line in log:
            if "val_loss" in line:
                curve.append([done[line["step"]], line["val_loss"]])
        per_step = steps[-1]["tokens"] / steps[-1]["step"]
        executed = model["flops_per_token"]
        return {
            "loss": evaluation["loss"],
            "loss_by_depth": evaluation["loss_by_depth"],
            "loss_causal": evaluation.get("loss_causal"),
            "evaluated": evaluation["tokens"],
            "curve": curve,
            "tokens": steps[-1]["tokens"],
            "training_flops": flops,
            "train_seconds": sum(per_step / line["tokens_per_second"] for line in steps),
            "peak_bytes": read_json(run / "usage.json")["peak_bytes"],
            "parameters": model["parameters"],
            "flops_per_token": executed["executed_body"] + executed["executed_head"],
            "layout": model["layout"],
            "depth": model["depth"],
        }

    # --- all of them --------------------------------------------------------------------------------------------------

    def run_all(self, cases):
        jobs = [(case, seed) for seed in range(1, self.options.seeds + 1) for case in cases]
        results = {}
        if len({case.name(self.steps) for case in cases}) < len(cases):
            fail(f"--steps {self.steps}: so few that cases of different length would be the same run")
        for i, (case, seed) in enumerate(jobs, 1):
            begin = time.monotonic()
            row = self.run(case, seed)
            results.setdefault(case.name(self.steps), []).append(row)
            print(f"{i:>3}/{len(jobs)}  {case.name(self.steps)} seed {seed}: loss {row['loss']:.4f} "
                  f"({time.monotonic() - begin:.0f} s)", flush=True)
        return [(case, results[case.name(self.steps)]) for case in cases]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=studies.SCALES, required=True)
    parser.add_argument("--comparison", choices=studies.COMPARISONS, required=True,
                        help="; ".join(f"{name}: {question}" for name, question in studies.QUESTIONS.items()))
    parser.add_argument("--seeds", type=int, default=2, help="runs of each case, with seeds 1, 2, ... (default: 2)")
    parser.add_argument("--steps", type=int, help="optimizer steps of a run (default: the scale's)")
    parser.add_argument("--data-train", help="token file, directory of shards or glob (nano: six novels)")
    parser.add_argument("--data-val", help="token file, directory of shards or glob")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out/study", help="default: out/study")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/bin", help="default: build/bin")
    parser.add_argument("--threads", type=int, help="of the binaries (default: all allowed CPUs)")
    parser.add_argument("--device", default="auto", help="of the binaries (default: auto)")
    options = parser.parse_args()
    if bool(options.data_train) != bool(options.data_val):
        parser.error("--data-train and --data-val: give both or neither")
    if not options.data_train and options.scale != "nano":
        parser.error(f"--data-train: scale {options.scale} needs tokens to train on (see tokenize)")
    options.fetched = not options.data_train
    for name in ("seeds", "steps", "threads"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            parser.error(f"--{name}: must be 1 or more, not {getattr(options, name)}")
    return options


def main():
    options = parse()
    try:
        cases = studies.cases(options.comparison, options.scale)
    except ValueError as error:
        fail(error)
    study = Study(options)
    signal.signal(signal.SIGTERM, terminated)
    try:
        study.prepare()
        with open(study.out / "train.log", "a") as options.log:
            rows = study.run_all(cases)
        files = study_report.write(study.out / options.comparison, options, study.scale, study.steps, rows)
    except OSError as error:
        fail(error)
    except KeyboardInterrupt as interrupt:
        print("study: interrupted; the same command goes on", file=sys.stderr)
        sys.exit(128 + (interrupt.args[0] if interrupt.args else signal.SIGINT))
    print(files[0].read_text())
    print("wrote", ", ".join(map(str, files)))


if __name__ == "__main__":
    main()
