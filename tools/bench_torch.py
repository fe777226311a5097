#!/usr/bin/python3
"""A GPT-2 training step in PyTorch, for comparison with `bench train`: f32, AdamW, clipping, the same shapes.

  bench_torch.py run --shape 124M                            times PyTorch, prints JSON
  bench_torch.py compare --bench build/bin/bench             lets both take turns, prints the ratio of their medians
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

SHAPES = {
    "124M": dict(layers=12, heads=12, width=768, context=1024, batch=1),
    "small": dict(layers=6, heads=6, width=384, context=256, batch=8),
}
VOCAB = 50257


def build(shape):
    """The model, without biases as in the preset gpt2-small, and one function that makes a training step."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Norm(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))

        def forward(self, x):
            return F.layer_norm(x, self.weight.shape, self.weight)

    class Block(nn.Module):
        def __init__(self, width, heads, context):
            super().__init__()
            self.heads = heads
            self.ln_1, self.ln_2 = Norm(width), Norm(width)
            self.c_attn = nn.Linear(width, 3 * width, bias=False)
            self.attn_proj = nn.Linear(width, width, bias=False)
            self.c_fc = nn.Linear(width, 4 * width, bias=False)
            self.mlp_proj = nn.Linear(4 * width, width, bias=False)
            self.register_buffer("future", torch.ones(context, context).triu(1).bool())

        def attention(self, x):
            batch, time_, width = x.shape
            split = lambda t: t.view(batch, time_, self.heads, width // self.heads).transpose(1, 2)
            q, k, v = map(split, self.c_attn(x).split(width, dim=2))
            if hasattr(F, "scaled_dot_product_attention"):
                out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                scores = (q @ k.transpose(-2, -1)) / (width // self.heads) ** 0.5
                out = scores.masked_fill(self.future, float("-inf")).softmax(-1) @ v
            return self.attn_proj(out.transpose(1, 2).reshape(batch, time_, width))

        def forward(self, x):
            x = x + self.attention(self.ln_1(x))
            return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte = nn.Embedding(VOCAB, shape["width"])
            self.wpe = nn.Embedding(shape["context"], shape["width"])
            self.h = nn.Sequential(
                *[Block(shape["width"], shape["heads"], shape["context"]) for _ in range(shape["layers"])])
            self.ln_f = Norm(shape["width"])
            for p in self.parameters():
                if p.dim() > 1:
                    nn.init.normal_(p, std=0.02)

        def forward(self, ids, targets):
            x = self.h(self.wte(ids) + self.wpe.weight)
            logits = self.ln_f(x) @ self.wte.weight.T
            return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))

    torch.manual_seed(1)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)
    ids, targets = (torch.randint(0, VOCAB, (shape["batch"], shape["context"])) for _ in range(2))

    def step():
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        model(ids, targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return time.perf_counter() - begin

    return step


def blas_libraries():
    """What PyTorch multiplies with: reference BLAS, for one, is some 30 times slower than OpenBLAS."""
    with open("/proc/self/maps") as maps:
        return sorted({line.split()[-1] for line in maps if "blas" in line.split()[-1]})


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Own:
    """`bench train --on-request`, which makes one step for each line it is sent."""

    def __init__(self, bench, shape, threads):
        config = {"architecture": "dense", "tokenizer": "gpt2", "context_length": shape["context"],
                  "d_model": shape["width"], "n_heads": shape["heads"], "n_layers": shape["layers"]}
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "model.json")
            with open(path, "w") as f:
                json.dump(config, f)
            self.process = subprocess.Popen(
                [bench, "train", "--on-request", "--model", path, "--batch-size", str(shape["batch"]), "--threads",
                 str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.answer()  # it has read its configuration and is warm

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("bench_torch.py: bench ended early; its message is above")
        self.last = json.loads(line)
        return self.last["seconds"]

    def step(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.answer()


def summary(seconds, tokens, peak):
    median = statistics.median(seconds)
    return {"median_s": median, "best_s": min(seconds), "tokens_per_s": tokens / median, "peak_resident_bytes": peak}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "compare"])
    parser.add_argument("--shape", choices=SHAPES, default="124M")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bench", help="compare: the bench binary")
    args = parser.parse_args()
    try:
        import torch
    except ImportError:
        sys.exit(f"bench_torch.py: {sys.executable} has no module torch; on Debian: apt-get install python3-torch "
                 "libopenblas0-pthread")
    if args.what == "compare" and not args.bench:
        parser.error("compare needs --bench")
    torch.set_num_threads(args.threads)

    shape = SHAPES[args.shape]
    tokens = shape["batch"] * shape["context"]
    # Started first: a child's peak memory includes what its parent held at the fork.
    own = Own(args.bench, shape, args.threads) if args.what == "compare" else None
    theirs_step = build(shape)
    theirs_step()  # memory is taken, pages are touched
    theirs_seconds, own_seconds = [], []
    for _ in range(args.rounds):
        theirs_seconds.append(theirs_step())
        if own:
            own_seconds.append(own.step())

    result = {"shape": args.shape, "batch": shape["batch"], "context": shape["context"], "threads": args.threads,
              "rounds": args.rounds, "torch_version": torch.__version__,
              "blas": blas_libraries(),
              "torch": summary(theirs_seconds, tokens, peak_bytes())}
    if own:
        result["grt"] = summary(own_seconds, tokens, own.last["peak_bytes"])
        result["speed_ratio"] = result["grt"]["tokens_per_s"] / result["torch"]["tokens_per_s"]
        result["memory_ratio"] = result["grt"]["peak_resident_bytes"] / result["torch"]["peak_resident_bytes"]
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
