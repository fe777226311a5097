#!/usr/bin/env python3
"""Tests of the Python scripts in tools/: small inputs, of which the right answer is known by other means."""
import argparse
import json
import math
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
import xml.etree.ElementTree
import zlib

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
sys.dont_write_bytecode = True

import austen  # noqa: E402
import demo  # noqa: E402
import fetch_tasks  # noqa: E402
import gpu_check  # noqa: E402
import ngram  # noqa: E402
import plot  # noqa: E402
import studies  # noqa: E402
import study_report  # noqa: E402


def record(strings):
    body = b"".join(struct.pack(">II", 0x40009, len(s)) + s for s in strings)
    inflated = b"X\n" + austen.STRING_VECTOR + struct.pack(">I", len(strings)) + body
    return struct.pack(">I", len(inflated)) + zlib.compress(inflated)


def write_log(directory, steps, depths):
    directory.mkdir()
    with open(directory / "train.jsonl", "w") as log:
        for step in range(1, steps + 1):
            line = {"step": step, "loss": 1 + 4 / step, "tokens": 8 * step, "tokens_per_second": 4 if step % 2 else 12}
            log.write(json.dumps(line) + "\n")
        log.write(json.dumps({"step": steps, "val_loss": 1.5, "val_loss_by_depth": depths}) + "\n")


class Scripts(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.directory = pathlib.Path(self.temporary.name)

    def run_script(self, name, *arguments):
        command = [sys.executable, str(TOOLS / name), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True)

    def test_records_of_an_rdb_file_are_read_one_behind_the_other(self):
        rdb = record([b"one", b""]) + record([b"two"])
        self.assertEqual([list(austen.lines(r)) for r in austen.records(rdb)], [[b"one", b""], [b"two"]])

    def test_a_text_that_is_not_the_novels_is_refused_in_one_line(self):
        (self.directory / "Rdata.rdb").write_bytes(record([b"not by Jane Austen"]))
        result = self.run_script("austen.py", self.directory / "Rdata.rdb", self.directory / "out")
        self.assertNotEqual(result.returncode, 0)
        self.assertEqual(len(result.stderr.splitlines()), 1)
        self.assertIn("sha256", result.stderr)
        self.assertFalse((self.directory / "out").exists())

    def test_add_counts_agree_with_the_formula_applied_byte_by_byte(self):
        train, val = b"abracadabra, abracadabra", b"a cadabra!"
        text, vocab = train + val, len(set(train + val))
        for order in ngram.ADD_ORDERS:
            loss = 0
            for i in range(len(train), len(text)):
                gram, seen = text[i - order : i + 1], 0
                for j in range(order, len(train)):
                    seen += train[j - order : j] == gram[:-1]
                both = sum(train[j - order : j + 1] == gram for j in range(order, len(train)))
                loss -= math.log((both + 0.1) / (seen + 0.1 * vocab))
            self.assertAlmostEqual(ngram.baselines(train, val)[f"add-0.1 order {order}"], loss / len(val))

    def test_witten_bell_probabilities_sum_to_one_after_any_context(self):
        train, vocab, tables = b"she sells sea shells by the sea shore", b"abehlorsty qz", []
        for order in range(5):
            counts = ngram.grams(train, order, 0)
            tables.append((counts, *ngram.contexts(counts)))
        alphabet = set(train) | set(vocab)
        for context in (b" sea", b"qsea", b"zzzz"):
            total = sum(ngram.witten_bell(tables, (*context, byte), len(alphabet)) for byte in alphabet)
            self.assertAlmostEqual(total, 1)

    def test_planned_steps_come_from_the_mean_time_of_a_step(self):
        write_log(self.directory / "run", 60, {})
        # Steps of 8 tokens take 2 s and 2/3 s in turn, 4/3 s in the mean; 95 % of 1000 s are used.
        self.assertEqual(demo.steps(self.directory / "run", 1000), 712)

    def test_the_picture_is_well_formed_and_names_every_run_and_baseline(self):
        write_log(self.directory / "a <run>", 300, {"0": 1.6, "1": 1.5})
        write_log(self.directory / "dense", 200, {"8": 1.7})
        (self.directory / "ngram.json").write_text('{"order 3": 1.598, "order 4": 1.594}')
        output = self.directory / "loss.svg"
        result = self.run_script("plot.py", self.directory / "a <run>", self.directory / "dense", "--output", output,
                                 "--baselines", self.directory / "ngram.json")
        self.assertEqual(result.returncode, 0, result.stderr)
        texts = [e.text for e in xml.etree.ElementTree.parse(output).iter() if e.tag.endswith("}text")]
        for words in ("a <run> training", "dense validation", "order 3: 1.598", "depth (recurrences)"):
            self.assertIn(words, texts)

    def test_labels_that_would_overlap_are_moved_apart_and_stay_inside(self):
        self.assertEqual(plot.spread([10, 12, 40], 15, 0, 100), [10, 25, 40])
        self.assertEqual(plot.spread([95, 99], 15, 0, 100), [85, 100])

    def test_smoothing_means_over_the_last_steps(self):
        points = [(step, step, float(step)) for step in range(1, 11)]
        self.assertEqual(plot.smooth(points, 4)[-1], (10, 10, 8.5))
        self.assertEqual(plot.smooth(points, 4)[0], (1, 1, 1.0))

    def test_a_log_that_is_being_written_is_drawn_without_its_last_line(self):
        write_log(self.directory / "run", 5, {"1": 1.5})
        with open(self.directory / "run/train.jsonl", "a") as log:
            log.write('{"step": 6, "lo')
        self.assertEqual(len(plot.Run(str(self.directory / "run")).train), 5)

    def test_a_missing_run_is_named_in_one_line(self):
        result = self.run_script("plot.py", self.directory / "nothing", "--output", self.directory / "loss.svg")
        self.assertNotEqual(result.returncode, 0)
        self.assertEqual(len(result.stderr.splitlines()), 1)
        self.assertIn("nothing", result.stderr)

    def test_a_fetched_task_is_a_file_of_the_fields_that_eval_reads(self):
        documents = [{"goal": "\u00e9", "sol1": "a", "sol2": "b", "label": 1, "other": 0}] * 1838
        asked = []

        def load(*arguments, **options):
            asked.append((arguments, options))
            return documents

        for _ in range(2):  # the second time the file is there
            fetch_tasks.fetch("piqa", self.directory, load)
        self.assertEqual(asked, [(("baber/piqa", None), {"split": "validation"})])
        lines = (self.directory / "piqa.jsonl").read_text(encoding="utf-8").splitlines()
        self.assertEqual(len(lines), 1838)
        self.assertEqual(json.loads(lines[0]), {"goal": "\u00e9", "sol1": "a", "sol2": "b", "label": 1})

    def test_a_fetched_task_of_another_size_is_refused(self):
        with self.assertRaisesRegex(ValueError, "has 1 documents, expected 500"):
            fetch_tasks.fetch("openbookqa", self.directory, lambda *_, **__: [{}])
        self.assertEqual(list(self.directory.iterdir()), [])

    def test_an_unknown_task_is_not_fetched(self):
        result = self.run_script("fetch_tasks.py", self.directory / "D", "--tasks", "piqa,mmlu")
        self.assertEqual(result.returncode, 1)
        self.assertIn("there is no task mmlu", result.stderr)
        self.assertFalse((self.directory / "D").exists())

    # --- gpu_check ---------------------------------------------------------------------------------------------------

    def write_program(self, name, text):
        path = self.directory / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    def test_gpu_check_says_that_there_is_no_gpu_and_is_content(self):
        self.write_program("nvidia-smi", "echo 'NVIDIA-SMI has failed'; exit 9")
        environment = {**os.environ, "PATH": f"{self.directory}:{os.environ['PATH']}"}
        result = subprocess.run([TOOLS / "gpu_check.sh", "--out", self.directory / "out"], capture_output=True,
                                text=True, env=environment)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("there is no GPU here", result.stdout)
        self.assertFalse((self.directory / "out").exists())

    def run_gpu_check(self, loss, cases="echo '[doctest] test cases:  7 |  7 passed | 0 failed | 1 skipped'",
                      python="exit 1"):
        """Over programs that answer like the real ones, and a Python without PyTorch; the k-th loss is `loss`."""
        self.write_program("python", python)
        self.write_program("grt_gpu_tests", cases)
        self.write_program("train", f"""
            graphs=yes
            case "$*" in
              *--print-config*--steps*) echo '{{"model": {{"d_model": 8}}}}'; exit ;;
              *--print-config*) echo 'train: --steps: is missing' >&2; exit 1 ;;
            esac
            while [ $# -gt 0 ]; do
              case $1 in
                --help) echo '--no-graphs'; exit ;;
                --out) out=$2 ;;
                --no-graphs) graphs=no ;;
              esac
              shift
            done
            mkdir -p "$out"
            for k in 1 2 3 4; do
              echo '{{"loss": '{loss}', "tokens_per_second": '$((100 * k))', "mfu": 0.25}}'
            done > "$out/train.jsonl"
            """)
        self.write_program("bench", """
            other=
            while [ $# -gt 1 ]; do
              case $2 in
                compiled) echo 'bench train: PyTorch compiled ended' >&2; exit 1 ;;
                installed) other=', {"tokens_per_s": 2e5, "peak_resident_bytes": 9e9}' ;;
              esac
              shift
            done
            echo '{"results": [{"name": "peak"}, {"ms_per_token": 1.5, "peak_device_bytes": 3000000},
              {"tokens_per_s": 4e5, "peak_resident_bytes": 5e9, "ratio_to_PyTorch installed bf16": 2}'$other']}' > "$1"
            """)
        result = self.run_script("gpu_check.py", "--bin", self.directory, "--out", self.directory / "out", "--gpu",
                                 "a GPU, 580.1", "--python", self.directory / "python")
        return result, json.loads((self.directory / "out/gpu_check.json").read_text())

    def test_gpu_check_sets_what_it_finds_side_by_side_and_leaves_out_what_is_not_there(self):
        result, file = self.run_gpu_check("$((9 - k))")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(file["device"], "a GPU, 580.1")
        rows = file["results"]
        self.assertEqual(rows["kernels and models beside the CPU"]["text"], "7 test cases passed")
        self.assertEqual(rows["training gpt2-small"]["tokens_per_second"], 350)  # the median of steps 3 and 4
        self.assertIn("without graphs 350 tokens/s, MFU 25.0 %; losses differ by 0", rows["training grt-small"]["text"])
        self.assertIn("1.500 ms/token, 3 MB", rows["decoding gpt2-small"]["text"])
        self.assertEqual(rows["attention, own and cuDNN's"]["text"], "left out: this build has no cuDNN")
        self.assertEqual(rows["a step of grt-medium"]["text"], "400000 tokens/s, 5.0 GB")
        for row in ("grt-medium beside PyTorch installed", "decoding grt-small, PyTorch compiled"):
            self.assertIn("left out:", rows[row]["text"])
            self.assertIn("has no PyTorch that sees the GPU", rows[row]["text"])
        self.assertFalse((self.directory / "out/runs/gpt2-small").exists())

    def test_gpu_check_sets_pytorch_beside_it_and_bears_with_what_it_cannot(self):
        answer = """case $1 in */torch_step.py) echo '{"seconds": 0.002, "peak_resident_bytes": 7e6}' ;; esac"""
        result, file = self.run_gpu_check("$((9 - k))", python=answer)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        rows = {name: row["text"] for name, row in file["results"].items()}
        self.assertEqual(rows["gpt2-medium beside PyTorch installed"],
                         "200000 tokens/s, 9.0 GB; ours 400000 tokens/s, 5.0 GB: 2.00 x as fast")
        self.assertEqual(rows["gpt2-medium beside PyTorch compiled"],
                         "left out: PyTorch compiled: exit code 1: bench train: PyTorch compiled ended")
        self.assertEqual(rows["decoding grt-small, PyTorch installed"], "2.000 ms/token, 7 MB")
        self.assertEqual(rows["decoding grt-small, PyTorch compiled"], "2.000 ms/token, 7 MB")

    def test_gpu_check_takes_what_hangs_for_wrong_and_what_the_end_cuts_for_left_out(self):
        check = gpu_check.Check(argparse.Namespace(bin=self.directory, out=self.directory, python="", gpu="",
                                                   seconds=60))
        with unittest.mock.patch.object(gpu_check, "LEAST", 0):
            with self.assertRaisesRegex(gpu_check.Failed, "stopped after 0.2 s"):
                check.run("sleep", ["sleep", 100], most=0.2)
            with self.assertRaisesRegex(gpu_check.LeftOut, "stopped after 0.2 s"):
                check.run("sleep", ["sleep", 100], most=0.2, too_long=gpu_check.LeftOut)
            check.end = time.monotonic() + 0.3
            with self.assertRaisesRegex(gpu_check.LeftOut, "stopped after|no time left"):
                check.run("sleep", ["sleep", 100], most=50)

    def test_gpu_check_fails_where_losses_differ_and_goes_on(self):
        result, file = self.run_gpu_check("$((9 - k))$([ $graphs = no ] && echo .5)")
        self.assertEqual(result.returncode, 1)
        self.assertIn("losses differ by 0.5; 1e-05 is allowed", file["results"]["training gpt2-small"]["text"])
        self.assertEqual(file["results"]["training beside the CPU"]["state"], "ok")
        self.assertEqual(file["results"]["decoding grt-small"]["state"], "ok")

    def test_gpu_check_is_not_content_with_answers_of_another_kind(self):
        result, file = self.run_gpu_check("$((9 - k))", cases="exit 1")
        self.assertEqual(result.returncode, 1)
        self.assertEqual(file["results"]["kernels and models beside the CPU"]["text"], "FAILED: no output")
        result, file = self.run_gpu_check("nothing")
        self.assertEqual(result.returncode, 1)
        self.assertIn("FAILED: JSONDecodeError", file["results"]["training gpt2-small"]["text"])

    # --- studies ------------------------------------------------------------------------------------------------------

    def study_run(self, loss, depths):
        return {"loss": loss, "loss_by_depth": {str(d): loss + 0.1 * (len(depths) - i) for i, d in enumerate(depths)},
                "curve": [[1e12, loss + 1], [2e12, loss + 0.5], [3e12, loss]], "tokens": 1000, "training_flops": 3e12,
                "train_seconds": 5, "peak_bytes": 1e8, "parameters": 12345, "flops_per_token": 1e6, "layout": "8 blocks",
                "depth": max(depths)}

    def test_cases_of_a_study_share_runs_exactly_when_they_train_the_same(self):
        trained = {}
        for comparison in studies.COMPARISONS:
            for case in studies.cases(comparison, "nano"):
                same = (case.preset, case.flags, case.run_steps(2500))
                self.assertEqual(trained.setdefault(case.name(2500), same), same)
        self.assertEqual(len(set(trained.values())), len(trained))
        ladder, isoflop = studies.cases("ablation", "nano"), studies.cases("isoflop", "nano")
        self.assertEqual(ladder[-1].name(2500), isoflop[1].name(2500))  # row 5 is the GRT

    def test_a_comparison_without_presets_is_refused(self):
        with self.assertRaisesRegex(ValueError, "not at large"):
            studies.cases("ablation", "large")

    def test_the_difference_to_dense_is_taken_seed_by_seed(self):
        dense = [self.study_run(1.5, [8]), self.study_run(1.7, [8])]
        grt = [self.study_run(1.4, [0, 1, 6]), self.study_run(1.65, [0, 1, 6])]
        rows = [(studies.Case("dense", "dense-nano"), dense), (studies.Case("grt", "grt-nano"), grt)]
        table = study_report.table(rows).splitlines()
        self.assertIn("| 1.6000 ± 0.1414 | 1.5000 | 1.7000 |", table[2])
        self.assertIn("| 1.5250 ± 0.1768 | 1.4000 | 1.6500 | -0.0750 ± 0.0354 |", table[3])
        self.assertIn("| 1.8250 | 1.7250 | 1.6250 |", study_report.depth_table(rows))

    def test_each_budget_is_compared_with_its_own_dense_model(self):
        rows = [(case, [self.study_run(1 + i, [1, 2])]) for i, case in enumerate(studies.cases("budget", "nano"))]
        cells = [line.split("|")[9].strip() for line in study_report.table(rows).splitlines()[2:]]
        self.assertEqual(cells, ["", "+1.0000", "+2.0000", "+3.0000"] * 3)

    def test_no_two_curves_of_a_picture_look_alike(self):
        for comparison in studies.COMPARISONS:
            looks = study_report.styles([(case, []) for case in studies.cases(comparison, "nano")])
            self.assertEqual(len(set(looks)), len(looks), comparison)
            self.assertTrue(all(colour < len(study_report.COLOURS) for colour, _ in looks), comparison)

    def test_a_run_with_one_validation_has_a_picture(self):
        run = self.study_run(1.5, [6])
        run["curve"] = run["curve"][:1]
        options = type("Options", (), {"scale": "nano", "comparison": "isoflop"})
        self.assertIn("</svg>", study_report.picture(options, studies.SCALES["nano"], [(studies.Case("dense", "d"), [run])]))

    def test_the_picture_of_a_study_is_whole_and_lies_in_its_box(self):
        rows = [(case, [self.study_run(1.5 + i / 9, [1, 2, 6])]) for i, case in
                enumerate(studies.cases("isoflop", "nano"))]
        options = type("Options", (), {"scale": "nano", "comparison": "isoflop"})
        root = xml.etree.ElementTree.fromstring(study_report.picture(options, studies.SCALES["nano"], rows))
        width, height = (float(root.get(side)) for side in ("width", "height"))
        circles = root.findall(".//{http://www.w3.org/2000/svg}circle")
        self.assertGreater(len(circles), 12)
        for circle in circles:
            self.assertTrue(0 < float(circle.get("cx")) < width and 0 < float(circle.get("cy")) < height)

    def test_the_models_in_pytorch_have_the_reference_loss_and_gradients(self):
        python = "/usr/bin/python3"  # Debian's, whatever runs this test
        if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode:
            self.skipTest("PyTorch is not installed (python3-torch)")
        oracle = TOOLS.parent / "tests" / "fixtures" / "oracle"
        fixtures = [oracle / name for name in ["dense", "dense_bias_tanh", "grt", "grt_concat_norm", "grt_no_gate",
                                               "grt_no_injection", "grt_no_prelude"]]
        result = subprocess.run([python, TOOLS / "bench" / "torch_step.py", "check", *fixtures], capture_output=True,
                                text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.splitlines()
        self.assertEqual(len(lines), len(fixtures))
        for directory, got in zip(fixtures, map(json.loads, lines)):
            expected = json.loads((directory / "expected.json").read_text())
            self.assertAlmostEqual(got["loss"], expected["gradients"]["loss"], delta=1e-8, msg=directory)
            self.assertLess(got["largest_gradient_error"], 1e-6, directory)
            self.assertLess(got["largest_decoding_error"], 1e-10, directory)

    def test_every_model_in_pytorch_trains_in_both_types(self):
        python = "/usr/bin/python3"
        if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode:
            self.skipTest("PyTorch is not installed (python3-torch)")
        for name in ["dense", "grt", "grt_concat_norm", "grt_no_gate", "grt_no_injection"]:
            config = (TOOLS.parent / "tests" / "fixtures" / "oracle" / name / "config.json").read_text()
            for dtype in ["f32", "bf16"]:
                result = subprocess.run([python, TOOLS / "bench" / "torch_step.py", "serve", "--config", config,
                                         "--dtype", dtype, "--threads", "1"], input="\n", capture_output=True, text=True)
                self.assertEqual(result.returncode, 0, f"{name}, {dtype}: {result.stderr}")
                self.assertGreater(json.loads(result.stdout.splitlines()[1])["seconds"], 0)


if __name__ == "__main__":
    unittest.main()
