#!/ usr / bin / env python3
"""Prints the SHA-256 by which lm-evaluation-harness (v0.3) publishes all requests of a task.

Reads a JSON list that has, for each document in order, the list of its [context, continuation] pairs. The harness
shuffled the documents with Random(42) and hashed json.dumps of all pairs.
"""
import hashlib
import json
import random
import sys

documents = json.load(sys.stdin) if len(sys.argv) < 2 else json.load(open(sys.argv[1], encoding="utf-8"))
random.Random(42).shuffle(documents)
pairs = [pair for document in documents for pair in document]
print(hashlib.sha256(json.dumps(pairs).encode()).hexdigest())
