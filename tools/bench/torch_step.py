#!/usr/bin/python3
"""The dense model and the GRT in PyTorch, for comparison: the same equations, tensors, batch and optimizer.

  torch_step.py serve --config JSON ...   a training step for each line on stdin, a JSON line on stdout for each: what
                                          `bench train --torch` lets take turns with our own
  torch_step.py decode --config JSON ...  greedy decoding through a cache of keys and values: a JSON line
  torch_step.py check DIR...              loss and gradients against directories of tests/fixtures/oracle, and the
                                          logits of decoding against those of one pass, a line each

The anchor's halves of inject and of the gate's first layer are computed once, as in ours: both do the same work.
"""
import argparse
import json
import math
import pathlib
import resource
import sys
import time

try:
    import torch
    from torch import nn
    from torch.nn import functional as F
except ImportError:
    missing = f"{sys.executable} has no module torch; on Debian: apt-get install python3-torch libopenblas0-openmp"
    print(json.dumps({"error": missing}), flush=True)
    sys.exit(1)


class Norm(nn.Module):
    def __init__(self, width, bias=False):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x):
        return F.layer_norm(x.to(self.weight.dtype), self.weight.shape, self.weight, self.bias)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        width, length = c["d_model"], c["context_length"]
        self.heads = c["n_heads"]
        self.c_attn = nn.Linear(width, 3 * width, bias=c["bias"])
        self.c_proj = nn.Linear(width, width, bias=c["bias"])
        self.register_buffer("future", torch.ones(length, length).triu(1).bool(), persistent=False)

    def forward(self, x, cache=None, positions=None):
        """With a cache x are the tokens at `positions`, which attend to themselves and to what is in the cache."""
        batch, length, width = x.shape
        size = width // self.heads
        q, k, v = (t.view(batch, length, self.heads, size).transpose(1, 2) for t in self.c_attn(x).split(width, dim=2))
        if cache is not None:
            keys, values = (all.index_copy_(2, positions, new) for all, new in zip(cache, (k, v)))
            unseen = torch.arange(keys.shape[2], device=x.device) > positions[:, None]
            if hasattr(F, "scaled_dot_product_attention"):
                out = F.scaled_dot_product_attention(q, keys, values, attn_mask=~unseen)
            else:
                scores = (q @ keys.transpose(-2, -1)) / math.sqrt(size)
                out = scores.masked_fill(unseen, -math.inf).softmax(-1) @ values
        elif hasattr(F, "scaled_dot_product_attention"):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) / math.sqrt(size)
            out = scores.masked_fill(self.future[:length, :length], -math.inf).softmax(-1) @ v
        return self.c_proj(out.transpose(1, 2).reshape(batch, length, width))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        width = c["d_model"]
        self.approximate = "tanh" if c["gelu"] == "tanh" else "none"
        self.c_fc = nn.Linear(width, 4 * width, bias=c["bias"])
        self.c_proj = nn.Linear(4 * width, width, bias=c["bias"])

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate=self.approximate))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln_1, self.attn = Norm(c["d_model"], c["bias"]), Attention(c)
        self.ln_2, self.mlp = Norm(c["d_model"], c["bias"]), Mlp(c)

    def forward(self, x, cache=None, positions=None):
        x = x + self.attn(self.ln_1(x), cache, positions)
        return x + self.mlp(self.ln_2(x))


class Gate(nn.Module):
    def __init__(self, c):
        super().__init__()
        width = c["d_model"]
        self.ln_state, self.ln_anchor = Norm(width), Norm(width)
        self.fc_in = nn.Linear(2 * width, width, bias=False)
        self.fc_out = nn.Linear(width, width)
        self.ln_concat = Norm(2 * width) if c["gate_concat_norm"] else None

    def fix(self, h_pre):
        """The part of the first layer that is the same in every step."""
        normed = self.ln_anchor(h_pre)
        return normed if self.ln_concat else F.linear(normed, self.fc_in.weight[:, normed.shape[-1]:])

    def forward(self, h, fixed):
        state = self.ln_state(h)
        if self.ln_concat:
            hidden = self.fc_in(self.ln_concat(torch.cat([state, fixed], dim=-1)))
        else:
            hidden = F.linear(state, self.fc_in.weight[:, :h.shape[-1]]) + fixed
        return self.fc_out(F.silu(hidden))


class Model(nn.Module):
    """The module tree gives the tensors of model.safetensors their names. `noise` is on in training."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        width = c["d_model"]
        self.wte = nn.Embedding(c["padded_vocab_size"], width)
        self.wpe = nn.Embedding(c["context_length"], width)
        self.ln_f = Norm(width, c["bias"])
        stack = lambda n: nn.ModuleList(Block(c) for _ in range(n))
        if c["architecture"] == "dense":
            self.h = stack(c["n_layers"])
            self.applications = c["n_layers"]
        else:
            self.prelude, self.core, self.coda = stack(c["n_prelude"]), stack(c["n_core"]), stack(c["n_coda"])
            self.applications = c["n_prelude"] + c["n_core"] * c["n_recurrences"] + c["n_coda"]
            if c["use_injection"]:
                self.inject = nn.Linear(2 * width, width, bias=False)
            if c["use_gate"]:
                self.gate = Gate(c)

    def initialize(self):
        for name, p in self.named_parameters():
            if p.dim() > 1:
                scale = math.sqrt(2 * self.applications) if name.endswith("c_proj.weight") else 1
                nn.init.normal_(p, std=0.02 / scale)
        with torch.no_grad():
            self.wte.weight[self.c["vocab_size"]:] = 0
            if hasattr(self, "gate"):
                self.gate.fc_out.bias.fill_(self.c["gate_bias"])

    def recur(self, h_pre, noise, run):
        c, width, h = self.c, h_pre.shape[-1], h_pre
        injected = F.linear(h_pre, self.inject.weight[:, width:]) if c["use_injection"] else None
        fixed = self.gate.fix(h_pre) if c["use_gate"] else None
        for _ in range(c["n_recurrences"]):
            o = h + c["state_noise"] * torch.randn_like(h) if noise and c["state_noise"] else h
            if c["use_injection"]:
                o = (F.linear(o, self.inject.weight[:, :width]) + injected).to(h.dtype)  # autocast makes it bf16
            o = run(self.core, o)
            if not c["use_gate"]:
                h = o
                continue
            a = self.gate(h, fixed) / c["gate_temperature"]
            if noise and c["gate_noise"]:
                a = a + c["gate_noise"] * torch.randn(*a.shape[:-1], 1, device=a.device)
            g = torch.sigmoid(a)
            h = g * h + (1 - g) * o
        return h

    def logits(self, ids, noise=False, caches=None, positions=None):
        """caches: (keys, values) for each application of a block, in order; `positions` of the ids in the sequence."""
        left = list(caches or [])

        def run(blocks, x):
            for block in blocks:
                x = block(x, left.pop(0) if left else None, positions)
            return x

        x = self.wte(ids) + (self.wpe.weight[:ids.shape[1]] if positions is None else self.wpe(positions))
        if self.c["architecture"] == "dense":
            x = run(self.h, x)
        else:
            x = run(self.coda, self.recur(run(self.prelude, x), noise, run))
        if x.is_cuda:  # whose products want the padded width
            return (self.ln_f(x) @ self.wte.weight.T)[..., :self.c["vocab_size"]]
        return self.ln_f(x) @ self.wte.weight[:self.c["vocab_size"]].T

    def forward(self, ids, targets, noise=False):
        logits = self.logits(ids, noise)
        if logits.dtype == torch.bfloat16:
            logits = logits.float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def make_caches(self, batch, length):
        c, like = self.c, self.wte.weight
        shape = (batch, c["n_heads"], length, c["d_model"] // c["n_heads"])
        return [tuple(like.new_zeros(shape) for _ in range(2)) for _ in range(self.applications)]


def wait_for(device):
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def peak_bytes(device):
    """Of tensors on a GPU, of the process on the CPU."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def place(args):
    """The model of the arguments with random weights where they say."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    model = Model(json.loads(args.config))
    model.initialize()
    return model.to(args.device)


def make_step(model, args):
    """A function that makes one training step and returns its seconds."""
    c, device = model.c, args.device
    kind = device.split(":")[0]
    decayed = [p for p in model.parameters() if p.dim() > 1]
    kept = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decayed}, {"params": kept, "weight_decay": 0}], lr=1e-4,
                                  betas=(0.9, 0.95), weight_decay=0.1, **({"fused": True} if kind == "cuda" else {}))
    ids, targets = (torch.randint(0, c["vocab_size"], (args.batch_size, c["context_length"])).to(device)
                    for _ in range(2))
    run = torch.compile(model) if args.compile else model

    def step():
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=args.dtype == "bf16"):
            loss = run(ids, targets, noise=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        wait_for(device)
        return time.perf_counter() - begin

    return step


def blas_libraries():
    """What PyTorch multiplies with: reference BLAS, for one, is some 30 times slower than OpenBLAS."""
    with open("/proc/self/maps") as maps:
        found = {line.split()[-1] for line in maps if "libopenblas" in line or "libmkl" in line or "/libblas" in line}
    real = sorted(path for path in found if "/libblas" not in path)
    return real or sorted(found) or ["its own BLAS"]


def built_from(device):
    with_what = torch.cuda.get_device_name() if device.startswith("cuda") else ", ".join(blas_libraries())
    return f"PyTorch {torch.__version__}, {with_what}"


def serve(args):
    model = place(args)
    step = make_step(model, args)
    for _ in range(3 if args.compile else 1):
        step()  # memory is taken, pages are touched, what is compiled is compiled

    def answer(more):
        print(json.dumps({"peak_resident_bytes": peak_bytes(args.device), **more}), flush=True)

    answer({"parameters": sum(p.numel() for p in model.parameters()), "built_from": built_from(args.device)})
    for _ in sys.stdin:
        answer({"seconds": step()})


@torch.no_grad()
def decode(args):
    """The median over rounds of the seconds of a token, in the type itself: weights and cache are bf16 with it."""
    model = place(args).eval()
    if args.dtype == "bf16":
        model.bfloat16()
    step = torch.compile(model.logits, mode="reduce-overhead") if args.compile else model.logits
    length = args.prompt + args.tokens
    caches = model.make_caches(args.batch_size, length)
    prompt = torch.randint(0, model.c["vocab_size"], (args.batch_size, args.prompt), device=args.device)
    positions = torch.arange(length, device=args.device)

    def once():
        token = model.logits(prompt, caches=caches, positions=positions[:args.prompt])[:, -1].argmax(-1, keepdim=True)
        wait_for(args.device)
        begin = time.perf_counter()
        for t in range(args.prompt, length):
            logits = step(token, caches=caches, positions=positions[t:t + 1])
            token = logits[:, -1].argmax(-1, keepdim=True)
        wait_for(args.device)
        return (time.perf_counter() - begin) / args.tokens

    once()
    seconds = sorted(once() for _ in range(args.rounds))
    print(json.dumps({"seconds": seconds[len(seconds) // 2], "peak_resident_bytes": peak_bytes(args.device),
                      "built_from": built_from(args.device)}))


def read_safetensors(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        tensors[name] = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.float32).view(entry["shape"])
    return tensors


def check(directory):
    """Windows 0 and 1 as one batch, noise off, full depth, in float64: the fixture's loss and gradients."""
    model = Model(json.loads((directory / "config.json").read_text()))
    model.load_state_dict(read_safetensors(directory / "model.safetensors"))
    model.double()
    length = model.c["context_length"]
    tokens = torch.frombuffer(bytearray((directory / "tokens.bin").read_bytes()), dtype=torch.int16).long()
    windows = tokens[:2 * length + 1]
    loss = model(windows[:-1].view(2, length), windows[1:].view(2, length))
    loss.backward()
    worst = 0
    for name, expected in read_safetensors(directory / "grads.safetensors").items():
        got = dict(model.named_parameters())[name].grad
        worst = max(worst, ((got - expected).abs().max() / expected.abs().max()).item())
    with torch.no_grad():
        whole, caches, error = model.logits(windows[None, :8]), model.make_caches(1, 8), 0
        for begin, end in ((0, 4), (4, 5), (5, 8)):
            part = model.logits(windows[None, begin:end], caches=caches, positions=torch.arange(begin, end))
            error = max(error, (part - whole[:, begin:end]).abs().max().item())
    print(json.dumps({"loss": loss.item(), "largest_gradient_error": worst, "largest_decoding_error": error}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    serving, decoding = what.add_parser("serve"), what.add_parser("decode")
    for timed, run in ((serving, serve), (decoding, decode)):
        timed.add_argument("--config", required=True, help="a whole config.json, as text")
        timed.add_argument("--batch-size", type=int, default=1)
        timed.add_argument("--threads", type=int, default=2)
        timed.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
        timed.add_argument("--device", default="cpu", help="as PyTorch names it: cpu, cuda:0")
        timed.add_argument("--compile", action="store_true", help="with torch.compile")
        timed.set_defaults(run=run)
    decoding.add_argument("--prompt", type=int, default=4)
    decoding.add_argument("--tokens", type=int, default=128)
    decoding.add_argument("--rounds", type=int, default=5)
    checking = what.add_parser("check")
    checking.add_argument("directories", nargs="+", type=pathlib.Path)
    checking.set_defaults(run=lambda args: [check(directory) for directory in args.directories])
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
