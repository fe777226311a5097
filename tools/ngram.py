#!/usr/bin/env python3
"""How well do plain counts predict a text? The bar that a trained model has to clear.

Counts the bytes of --train and prints the mean loss on --val in nats per byte, for
  add-0.1      of orders 2, 3, 4:  p(w | h) = (c(hw) + 0.1) / (c(h) + 0.1 V)
  Witten-Bell  of order 4:         p(w | h) = (c(hw) + t(h) p(w | h')) / (c(h) + t(h))
An order k looks at the k bytes h before w; h' is h without its first byte, t(h) how many different bytes followed h,
V how many different bytes occur in the two files. The first bytes of --val are predicted from the end of --train.
"""
import argparse
import collections
import json
import math
import pathlib
import sys

ADD = 0.1
ADD_ORDERS = (2, 3, 4)
WITTEN_BELL_ORDER = 4


def grams(text, order, first):
    """How often each run of order + 1 bytes ends at or behind the position `first`."""
    start = max(first - order, 0)
    return collections.Counter(zip(*(text[start + i :] for i in range(order + 1))))


def contexts(counts):
    """c(h) and t(h) of every context h of the counted runs."""
    seen, kinds = collections.Counter(), collections.Counter()
    for gram, count in counts.items():
        seen[gram[:-1]] += count
        kinds[gram[:-1]] += 1
    return seen, kinds


def add_loss(counts, seen, asked, vocab):
    total = sum(n * math.log((counts[g] + ADD) / (seen[g[:-1]] + ADD * vocab)) for g, n in asked.items())
    return -total / sum(asked.values())


def witten_bell(tables, gram, vocab):
    """p(last byte | the bytes before it), built up from the uniform distribution over the bytes that occur."""
    p = 1 / vocab
    for order, (counts, seen, kinds) in enumerate(tables):
        suffix = gram[len(gram) - order - 1 :]
        context = suffix[:-1]
        if context not in seen:
            break  # no longer context has been seen either
        p = (counts[suffix] + kinds[context] * p) / (seen[context] + kinds[context])
    return p


def baselines(train, val):
    """Label -> nats per byte."""
    vocab, text, first = len(set(train) | set(val)), train + val, len(train)
    tables, losses = [], {}
    for order in range(max(*ADD_ORDERS, WITTEN_BELL_ORDER) + 1):
        counts = grams(train, order, 0)
        seen, kinds = contexts(counts)
        tables.append((counts, seen, kinds))
        if order in ADD_ORDERS:
            losses[f"add-{ADD} order {order}"] = add_loss(counts, seen, grams(text, order, first), vocab)
    asked = grams(text, WITTEN_BELL_ORDER, first)
    total = sum(n * math.log(witten_bell(tables[: WITTEN_BELL_ORDER + 1], g, vocab)) for g, n in asked.items())
    losses[f"Witten-Bell order {WITTEN_BELL_ORDER}"] = -total / sum(asked.values())
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", metavar="FILE", type=pathlib.Path, required=True, help="the text to count")
    parser.add_argument("--val", metavar="FILE", type=pathlib.Path, required=True, help="the text to predict")
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path, help="also write {label: nats per byte}")
    options = parser.parse_args()
    try:
        train, val = options.train.read_bytes(), options.val.read_bytes()
    except OSError as error:
        sys.exit(f"ngram: {error}")
    for path, text in ((options.train, train), (options.val, val)):
        if len(text) <= WITTEN_BELL_ORDER:
            sys.exit(f"ngram: {path} has {len(text)} bytes; more than {WITTEN_BELL_ORDER} are needed")

    losses = baselines(train, val)
    for label, loss in losses.items():
        print(f"{label:<22}{loss:.3f} nats/byte")
    if options.json:
        options.json.write_text(json.dumps(losses, indent=2) + "\n")


if __name__ == "__main__":
    main()
