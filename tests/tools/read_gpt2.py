#!/usr/bin/env python3
"""An independent reader of a GPT-2 folder as Hugging Face has it, in the standard library alone.

usage: read_gpt2.py FOLDER ID...

Prints the logits after the last of the ids, one a line. Fails where the safetensors file is not as its reference reader
wants it: names sorted, data from a multiple of 8 bytes on, tensors side by side without a gap.
"""

import json
import math
import pathlib
import struct
import sys


def tensors(path):
    data = path.read_bytes()
    size, = struct.unpack_from("<Q", data)
    assert size % 8 == 0, "the data begins at no multiple of 8 bytes"
    header = json.loads(data[8:8 + size])
    assert header.pop("__metadata__")["format"] == "pt"
    end, found = 0, {}
    assert list(header) == sorted(header), "names are not sorted"
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        assert entry["dtype"] == "F32" and entry["data_offsets"][0] == end, name
        end = entry["data_offsets"][1]
        values = struct.unpack_from(f"<{math.prod(entry['shape'])}f", data, 8 + size + entry["data_offsets"][0])
        width = entry["shape"][-1]
        rows = [values[i:i + width] for i in range(0, len(values), width)]
        found[name.removeprefix("transformer.")] = rows if len(entry["shape"]) == 2 else rows[0]
    assert 8 + size + end == len(data), "bytes follow the last tensor"
    return found


def conv1d(x, weight, bias):
    """x W + b; Conv1D keeps W as [in, out]."""
    return [sum(a * row[j] for a, row in zip(x, weight)) + bias[j] for j in range(len(bias))]


def norm(x, weight, bias):
    mean = sum(x) / len(x)
    scale = 1 / math.sqrt(sum((a - mean) ** 2 for a in x) / len(x) + 1e-5)
    return [(a - mean) * scale * w + b for a, w, b in zip(x, weight, bias)]


def gelu(x, name):
    if name == "gelu":
        return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))
    assert name == "gelu_new", name
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def attention(queries, keys, values, heads):
    """Of the last position to all."""
    size, out = len(queries) // heads, []
    for begin in range(0, len(queries), size):
        part = slice(begin, begin + size)
        scores = [sum(a * b for a, b in zip(queries[part], key[part])) / math.sqrt(size) for key in keys]
        weights = [math.exp(s - max(scores)) for s in scores]
        out += [sum(w * v[begin + c] for w, v in zip(weights, values)) / sum(weights) for c in range(size)]
    return out


def logits(config, w, ids):
    width, states = config["n_embd"], [[a + b for a, b in zip(w["wte.weight"][i], w["wpe.weight"][t])]
                                       for t, i in enumerate(ids)]
    for layer in range(config["n_layer"]):
        part = lambda name: (w[f"h.{layer}.{name}.weight"], w[f"h.{layer}.{name}.bias"])
        qkv = [conv1d(norm(x, *part("ln_1")), *part("attn.c_attn")) for x in states]
        for t, x in enumerate(states):
            seen = qkv[:t + 1]
            mixed = attention(qkv[t][:width], [row[width:2 * width] for row in seen], [row[2 * width:] for row in seen],
                              config["n_head"])
            x = [a + b for a, b in zip(x, conv1d(mixed, *part("attn.c_proj")))]
            hidden = [gelu(a, config["activation_function"]) for a in conv1d(norm(x, *part("ln_2")), *part("mlp.c_fc"))]
            states[t] = [a + b for a, b in zip(x, conv1d(hidden, *part("mlp.c_proj")))]
    last = norm(states[-1], w["ln_f.weight"], w["ln_f.bias"])
    return [sum(a * b for a, b in zip(last, row)) for row in w["wte.weight"]]


def main():
    folder = pathlib.Path(sys.argv[1])
    config = json.loads((folder / "config.json").read_text())
    for value in logits(config, tensors(folder / "model.safetensors"), [int(i) for i in sys.argv[2:]]):
        print(repr(value))


if __name__ == "__main__":
    main()
