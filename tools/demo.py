#!/usr/bin/env python3
"""The arithmetic of tools/quickstart.sh: how many steps fit into the time, and what came out.

  demo.py steps RUN SECONDS        the steps that fit into so many seconds at the speed logged in RUN/train.jsonl
  demo.py report DIR               the table of losses: the evaluations of DIR beside its n-gram baselines
"""
import argparse
import json
import pathlib
import sys

START_STEPS = 20  # of a calibration: they fill caches and touch memory for the first time
MARGIN = 0.95  # of the time; a machine is not equally fast all the time
FEWEST_STEPS = 20
BARS = ("add-0.1 order 3", "add-0.1 order 4", "Witten-Bell order 4")


def log_lines(run):
    return [json.loads(line) for line in (run / "train.jsonl").read_text().splitlines()]


def steps(run, seconds):
    """Steps of different depth take different time: it is the times that are averaged, not the speeds."""
    log = [line for line in log_lines(run) if "tokens_per_second" in line]
    steady = log[START_STEPS:] or log
    tokens_per_step = log[-1]["tokens"] / log[-1]["step"]
    step_seconds = sum(tokens_per_step / line["tokens_per_second"] for line in steady) / len(steady)
    return max(FEWEST_STEPS, int(MARGIN * seconds / step_seconds))


def trained(run):
    last = [line for line in log_lines(run) if "tokens" in line][-1]
    return f"{last['tokens'] / 1e6:.2f} M tokens"


def verdict(loss, baselines):
    """One line: which of the n-grams lie above the loss."""
    found = [f"{'beats' if loss < baselines[bar] else 'does not beat'} {bar} ({baselines[bar]:.3f})" for bar in BARS]
    return f"grt-nano at full depth, {loss:.3f}, {', '.join(found)}."


def report(out):
    evaluation = {name: json.loads((out / f"{name}.eval.json").read_text()) for name in ("grt-nano", "dense-nano")}
    baselines = json.loads((out / "data/ngram.json").read_text())
    by_depth = sorted((int(depth), loss) for depth, loss in evaluation["grt-nano"]["loss_by_depth"].items())
    full = by_depth[-1][1]
    rows = [(f"grt-nano, depth {depth}", loss) for depth, loss in by_depth]
    rows.append(("dense-nano, 8 layers", evaluation["dense-nano"]["loss"]))
    rows += baselines.items()

    print("Loss on the held-out text, nats per byte (lower is better)")
    for label, loss in rows:
        print(f"  {label:<24}{loss:.3f}")
    print(f"Trained on {trained(out / 'grt-nano')} (grt-nano) and {trained(out / 'dense-nano')} (dense-nano).")
    print(verdict(full, baselines))
    if by_depth[0][0] == 0:
        gain = by_depth[0][1] - full
        print(f"Recurring lowers its loss by {gain:.3f} against depth 0, which is no training depth, and by "
              f"{by_depth[1][1] - full:.3f} against depth 1." if gain > 0 else
              f"Recurring does not lower its loss: depth 0 is better by {-gain:.3f}.")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    steps_parser = commands.add_parser("steps")
    steps_parser.add_argument("run", type=pathlib.Path)
    steps_parser.add_argument("seconds", type=float)
    commands.add_parser("report").add_argument("out", type=pathlib.Path)
    options = parser.parse_args()
    try:
        if options.command == "steps":
            print(steps(options.run, options.seconds))
        else:
            report(options.out)
    except (OSError, ValueError, KeyError, IndexError) as error:
        sys.exit(f"demo: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
