#!/usr/bin/env python3
"""Fetches the public data sets of eval's zero-shot tasks and writes each as DIR/NAME.jsonl.

Needs a network and the Python package `datasets` of Hugging Face. The split is the one that is evaluated: test where
its labels are public, else validation. A file that is there is kept.
"""
import argparse
import json
import pathlib
import sys

# name: data set, configuration, split, documents, fields
TASKS = {
    "arc_challenge": ("allenai/ai2_arc", "ARC-Challenge", "test", 1172, "id question choices answerKey"),
    "arc_easy": ("allenai/ai2_arc", "ARC-Easy", "test", 2376, "id question choices answerKey"),
    "boolq": ("super_glue", "boolq", "validation", 3270, "question passage idx label"),
    "hellaswag": ("Rowan/hellaswag", None, "validation", 10042, "ind activity_label ctx_a ctx_b endings label"),
    "lambada_openai": ("EleutherAI/lambada_openai", "default", "test", 5153, "text"),
    "lambada_standard": ("cimec/lambada", None, "test", 5153, "text"),
    "openbookqa": ("allenai/openbookqa", "main", "test", 500, "id question_stem choices answerKey"),
    "piqa": ("baber/piqa", None, "validation", 1838, "goal sol1 sol2 label"),
    "winogrande": ("allenai/winogrande", "winogrande_xl", "validation", 1267, "sentence option1 option2 answer"),
}


def write_lines(path, documents, fields):
    """One JSON object a line; the file appears under its name when it is complete. Returns the number of lines."""
    partial = path.with_name(path.name + ".part")
    count = 0
    with open(partial, "w", encoding="utf-8") as out:
        for document in documents:
            out.write(json.dumps({field: document[field] for field in fields}, ensure_ascii=False) + "\n")
            count += 1
    partial.rename(path)
    return count


def fetch(name, directory, load_dataset):
    """Writes one task's file, and refuses one that has another number of documents than the task."""
    source, configuration, split, expected, fields = TASKS[name]
    path = directory / (name + ".jsonl")
    if path.exists():
        print(f"{name}: {path} is there")
        return
    documents = load_dataset(source, configuration, split=split)
    if len(documents) != expected:
        raise ValueError(f"{source} ({split}) has {len(documents)} documents, expected {expected}")
    print(f"{name}: {write_lines(path, documents, fields.split())} documents in {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", metavar="DIR", type=pathlib.Path)
    parser.add_argument("--tasks", default="all", help="all, or a list such as piqa,boolq (default: all)")
    arguments = parser.parse_args()
    names = list(TASKS) if arguments.tasks == "all" else arguments.tasks.split(",")
    unknown = [name for name in names if name not in TASKS]
    if unknown:
        sys.exit(f"fetch_tasks: there is no task {unknown[0]}; there are {', '.join(TASKS)}")
    try:
        from datasets import load_dataset
    except ImportError:
        sys.exit("fetch_tasks: the Python package `datasets` is missing; install it, or put the files there by hand")
    arguments.directory.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in names:
        try:
            fetch(name, arguments.directory, load_dataset)
        except Exception as error:  # whatever the package or the network throws: the other tasks may still come
            print(f"fetch_tasks: {name}: {error}", file=sys.stderr)
            failed += 1
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
