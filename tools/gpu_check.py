#!/usr/bin/env python3
"""What tools/gpu_check.sh does once everything is built: checks, measurements, the table and gpu_check.json.

Each part is a row: what was looked at, what came, and what it is to be compared with. A part that fails does not end
the others; what the machine refuses, or there is no time left for, is left out with a word. The exit code is 1 if
something is wrong: slow is not wrong, unless it is so slow that it must hang.
"""
import argparse
import datetime
import functools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import time

TOOLS = pathlib.Path(__file__).resolve().parent
PEAK_TFLOPS = 989  # of an H200, dense bf16: NVIDIA's data sheet
STEPS, BATCH = 24, 16
LEAST = 5  # seconds in which a program may still come to something
SMALL, MEDIUM = ("gpt2-small", "grt-small"), ("gpt2-medium", "grt-medium")
LOSS_TOLERANCE = 2e-2  # of losses around 10 in bf16, of the same steps computed otherwise
GRAPH_TOLERANCE = 1e-5  # with and without graphs the same kernels compute


class LeftOut(Exception):
    """What is not there, or there is no time for."""


class Failed(Exception):
    """What is wrong."""


class Check:
    def __init__(self, args):
        self.bin, self.out, self.python, self.gpu = args.bin, args.out, args.python, args.gpu
        self.end = time.monotonic() + args.seconds
        self.rows, self.results, self.file = [], {}, args.out / "gpu_check.json"

    def left(self):
        return self.end - time.monotonic()

    @functools.cached_property
    def torch_is_there(self):
        try:
            self.run("torch", [self.python, "-c", "import torch; assert torch.cuda.is_available()"])
        except Failed:
            return False
        return True

    def need_torch(self):
        if not self.torch_is_there:
            raise LeftOut(f"{self.python} has no PyTorch that sees the GPU")

    def log_of(self, what):
        return self.out / f"{what.replace(' ', '-')}.log"

    def run(self, what, command, most=120, environment=None, codes=(0,), too_long=Failed):
        """The output of a command, which is also kept as a log. What takes longer than `most` seconds hangs, unless
        `too_long` says otherwise; what the time for everything ends is left out."""
        seconds = min(most, self.left())
        if seconds < LEAST:
            raise LeftOut("no time left")
        log = self.log_of(what)
        with log.open("w") as kept:
            process = subprocess.Popen([str(word) for word in command], stdout=kept, stderr=subprocess.STDOUT,
                                       stdin=subprocess.DEVNULL, start_new_session=True,
                                       env={**os.environ, **(environment or {})})
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # with what it started
                process.wait()
                raise (too_long if seconds == most else LeftOut)(f"stopped after {seconds:.1f} s")
        said = log.read_text(errors="replace")
        if code not in codes:
            raise Failed(f"exit code {code}: {(said.strip().splitlines() or ['no output'])[-1]}")
        return said

    def part(self, name, work):
        """One row: `work` returns its text, or several rows by name, and what goes into the file."""
        begin = time.monotonic()
        try:
            text, numbers = work()
            state = "ok"
        except LeftOut as why:
            text, numbers, state = f"left out: {why}", {}, "left out"
        except Failed as why:
            text, numbers, state = f"FAILED: {why}", {}, "failed"
        except Exception as why:  # an answer of another kind than expected: the other parts go on
            text, numbers, state = f"FAILED: {type(why).__name__}: {why}", {}, "failed"
        self.rows.append((name, text))
        self.results[name] = {"state": state, "text": text, "seconds": round(time.monotonic() - begin, 1), **numbers}
        print(f"  {name:<40}{text}", flush=True)
        self.write()

    def write(self):
        """After each part, so that what ends the script loses none before."""
        now = datetime.datetime.now(datetime.timezone.utc)
        text = json.dumps({"date": now.isoformat(timespec="seconds"), "device": self.gpu, "results": self.results},
                          indent=1)
        whole = self.file.with_suffix(".tmp")
        whole.write_text(text + "\n")
        whole.replace(self.file)


def make_data(path, tokens=1 << 20, vocab=251):
    """Token ids that any model has, with something to learn: three in four follow from the one before."""
    draw, ids, last = random.Random(1), [], 0
    for _ in range(tokens):
        last = draw.randrange(vocab) if draw.random() < 0.25 else (last * 31 + 7) % vocab
        ids.append(last)
    path.write_bytes(struct.pack(f"<{tokens}H", *ids))


def read_log(run):
    return [json.loads(line) for line in (run / "train.jsonl").read_text().splitlines() if "tokens_per_second" in line]


def has_cudnn(check):
    return (check.bin.parent / "lib" / "grt" / "libgrt_cudnn.so").exists()


def check_cases(check, attention, more=()):
    what = f"cases {attention}"
    said = check.run(what, [check.bin / "grt_gpu_tests", *more], codes=(0, 1), environment={"GRT_ATTENTION": attention})
    cases = re.search(r"test cases:\s+(\d+) \|\s+(\d+) passed", said)
    if not cases:
        raise Failed((said.strip().splitlines() or ["no output"])[-1])
    if cases[1] != cases[2] or cases[1] == "0":
        raise Failed(f"{cases[2]} of {cases[1]} test cases passed; see {check.log_of(what)}")
    return f"{cases[2]} test cases passed", {"passed": int(cases[2])}


def check_sanitizer(check, tool):
    program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.path.exists(program):
        raise LeftOut("there is no compute-sanitizer")
    said = check.run(tool, [program, "--tool", tool, check.bin / "grt_gpu_tests", "--test-case=every kernel gives*"],
                     most=40, codes=range(256), too_long=LeftOut)
    summary = re.search(r"(ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)", said)
    if "not supported" in said or not summary:
        raise LeftOut("the machine refuses it: " + (said.strip().splitlines() or ["no output"])[-1])
    found = int(summary[2] or summary[3] or 0)
    if found:
        raise Failed(f"{summary[0]}; see {check.log_of(tool)}")
    if not re.search(r"test cases:\s+([1-9]\d*) \|\s+\1 passed", said):
        raise Failed(f"nothing found, but not all cases passed; see {check.log_of(tool)}")
    return "nothing found", {}


def train(check, name, model, device="cuda", dtype="bf16", steps=STEPS, batch=BATCH, more=(), environment=None):
    """The log of a short run; its directory is large, and goes."""
    out = check.out / "runs" / name
    command = [check.bin / "train", "--model", model, "--device", device, "--dtype", dtype, "--steps", steps,
               "--batch-size", batch, "--data-train", check.out / "tokens.bin", "--out", out, "--overwrite",
               "--save-every", steps, "--peak-tflops", PEAK_TFLOPS, "--warmup-steps", 4, *more]
    try:
        check.run(f"train {name}", command, environment=environment)
        return read_log(out)
    finally:
        shutil.rmtree(out, ignore_errors=True)


def differ(a, b):
    return max(abs(x["loss"] - y["loss"]) for x, y in zip(a, b))


def speed(log):
    """Medians of the second half, when everything is warm."""
    half = log[len(log) // 2:]
    numbers = {key: statistics.median(line[key] for line in half) for key in ("tokens_per_second", "mfu")}
    return f"{numbers['tokens_per_second']:.0f} tokens/s, MFU {100 * numbers['mfu']:.1f} %", numbers


def check_same(difference, most):
    if not difference <= most:  # also what is not a number
        raise Failed(f"losses differ by {difference:.2g}; {most:g} is allowed")
    return f"losses differ by {difference:.1g}"


def check_training(check, model):
    fixed = ["--depth-sampler", "fixed"] if model.startswith("grt") else []  # each depth has a graph to be made
    log = train(check, model, model, more=fixed)
    if not log[-1]["loss"] < log[0]["loss"]:
        raise Failed(f"the loss went from {log[0]['loss']:.3f} to {log[-1]['loss']:.3f}")
    text, numbers = speed(log)
    numbers["losses"] = [line["loss"] for line in log]
    if "--no-graphs" in check.run("help", [check.bin / "train", "--help"]):
        plain = train(check, f"{model} without graphs", model, more=["--no-graphs", *fixed])
        numbers["without_graphs"] = speed(plain)[1]
        text += f"; without graphs {speed(plain)[0]}; " + check_same(differ(log, plain), GRAPH_TOLERANCE)
    return text, numbers


def check_beside_cpu(check):
    """In f32, where both compute the same to rounding."""
    logs = [train(check, f"nano {device}", "grt-nano", device, "f32", 8, 4) for device in ("cuda", "cpu")]
    return check_same(differ(*logs), 1e-3), {}


def check_attention(check):
    if not has_cudnn(check):
        raise LeftOut("this build has no cuDNN")
    logs = {}
    for name in ("own", "cudnn"):
        logs[name] = train(check, f"attention {name}", "gpt2-small", steps=12, environment={"GRT_ATTENTION": name})
    text = "; ".join(f"{name} {speed(log)[0]}" for name, log in logs.items())
    difference = check_same(differ(logs["own"], logs["cudnn"]), LOSS_TOLERANCE)
    return f"{text}; {difference}", {name: speed(log)[1] for name, log in logs.items()}


def bench(check, what, words, most=150):
    file = check.out / f"{what}.json"
    check.run(what, [check.bin / "bench", *words, "--device", "cuda", "--json", file], most=most)
    return json.loads(file.read_text())["results"]


def described(row):
    return f"{row['tokens_per_s']:.0f} tokens/s, {row['peak_resident_bytes'] / 1e9:.1f} GB"


def bench_steps(check, what, model, more=()):
    """Training steps in bf16: our row, and those of what takes turns with us."""
    rows = bench(check, what,
                 ["train", "--model", model, "--batch-size", BATCH, "--dtype", "bf16", "--rounds", 5, *more])
    return [row for row in rows if "tokens_per_s" in row]


def check_step(check, model):
    own, = bench_steps(check, f"{model} step", model)
    return described(own), {"own": own}


def of_torch(check, setting, work):
    """A row of PyTorch. That it fails is nothing wrong with what is checked here."""
    check.need_torch()
    try:
        return work()
    except Failed as why:
        raise LeftOut(f"PyTorch {setting}: {why}") from None


def check_beside_torch(check, model, setting):
    """Training steps of both, taking turns: tokens/s and the memory of tensors."""
    own, other = bench_steps(check, f"{model} beside PyTorch {setting}", model,
                             ["--torch", setting, "--python", check.python])
    ratio = own[f"ratio_to_PyTorch {setting} bf16"]
    return f"{described(other)}; ours {described(own)}: {ratio:.2f} x as fast", {"own": own, "PyTorch": other}


def check_decoding(check, model):
    rows = bench(check, f"decode {model}",
                 ["decode", "--model", model, "--tokens", 64, "--rounds", 3, "--weights", "bf16"])
    own = next(row for row in rows if "ms_per_token" in row)
    return f"{own['ms_per_token']:.3f} ms/token, {own['peak_device_bytes'] / 1e6:.0f} MB", {"own": own}


def check_decoding_of_torch(check, model, setting):
    config = json.loads(check.run("config", [check.bin / "train", "--print-config", "--steps", 1, "--device", "cpu",
                                             "--model", model]))["model"]
    said = check.run(f"decode {model} PyTorch {setting}",
                     [check.python, TOOLS / "bench" / "torch_step.py", "decode", "--config", json.dumps(config),
                      "--device", "cuda", "--dtype", "bf16", "--tokens", 64, "--rounds", 3,
                      *(["--compile"] if setting == "compiled" else [])])
    numbers = json.loads(said.strip().splitlines()[-1])
    return (f"{1e3 * numbers['seconds']:.3f} ms/token, {numbers['peak_resident_bytes'] / 1e6:.0f} MB",
            {"PyTorch": numbers})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--gpu", required=True, help="its name, and the driver's version")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has the module torch")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    make_data(args.out / "tokens.bin")
    check = Check(args)

    check.part("kernels and models beside the CPU", lambda: check_cases(check, "own"))
    if has_cudnn(check):
        check.part("cuDNN's attention beside the CPU's",
                   lambda: check_cases(check, "cudnn", ["--test-case=attention in bf16 and its gradient*"]))
    check.part("training beside the CPU", lambda: check_beside_cpu(check))
    for model in SMALL:
        check.part(f"training {model}", lambda: check_training(check, model))
    check.part("attention, own and cuDNN's", lambda: check_attention(check))
    for model in SMALL:
        check.part(f"decoding {model}", lambda: check_decoding(check, model))
    for model in SMALL + MEDIUM:
        check.part(f"a step of {model}", lambda: check_step(check, model))
    for tool in ("memcheck", "racecheck"):
        check.part(f"compute-sanitizer {tool}", lambda: check_sanitizer(check, tool))
    # What may take long comes last, and what runs without being compiled before what does not.
    for setting in ("installed", "compiled"):
        for model in SMALL + MEDIUM:
            check.part(f"{model} beside PyTorch {setting}",
                       lambda: of_torch(check, setting, lambda: check_beside_torch(check, model, setting)))
        for model in SMALL:
            check.part(f"decoding {model}, PyTorch {setting}",
                       lambda: of_torch(check, setting, lambda: check_decoding_of_torch(check, model, setting)))

    print(f"\n{args.gpu}")
    for name, text in check.rows:
        print(f"  {name:<40}{text}")
    print(f"gpu_check: {check.file}")
    states = [result["state"] for result in check.results.values()]
    sys.exit("failed" in states or "ok" not in states)


if __name__ == "__main__":
    main()
