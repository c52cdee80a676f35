#!/usr/bin/env python3
"""Generates the same tokens many times, and counts how many different logits there are in the end: one, or a kernel is wrong.

    python3 scripts/repeat.py --bench target/release/djinn-bench --commit COMMIT --json results/repeat-h200.json
        [--shapes 256:15:2000,100:2:2000] [--weights lossless] [--rounds 3]

Models have Llama-3.1-8B's shapes and eight different layers; weights are plain, lossless or Q4_K_M. "Q4_K_M experts" are those
of a model with Qwen3-30B-A3B's shapes. An entry of --shapes has the tokens of the prompt, the tokens to generate, and the runs
of one process. A deviation in any step stays in the cache, and so reaches the last logits. Rounds take turns between weights
and shapes.
"""

import argparse
import collections
import datetime
import json
import subprocess
import sys
from pathlib import Path

import results

MODEL, EXPERTS = "synthetic:llama-3.1-8b?distinct=8", "synthetic:qwen3-30b-a3b?distinct=8"
WEIGHTS = {"plain": (MODEL, "plain"), "lossless": (MODEL, "lossless"), "Q4_K_M": (f"{MODEL}&encoding=q4_k_m", "stored"),
           "Q4_K_M experts": (f"{EXPERTS}&encoding=q4_k_m", "stored")}
# Steps of one row; and prompts whose products have up to 128, up to 64 and up to 16 rows.
SHAPES = "256:15:500,100:2:500,40:2:500,16:2:500"


def sample(bench, weights, prompt, tokens, runs, device):
    """The tokens and logits of each run, in one process."""
    model, encoding = WEIGHTS[weights]
    command = [bench, "sample", "--device", device, "--system", "RESIDENT", "--model", model, "--encoding", encoding]
    command += ["--prompt", prompt, "--tokens", tokens, "--runs", runs]
    out = subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True).stdout
    samples = json.loads([line for line in out.splitlines() if line.startswith("{")][-1])["samples"]
    return [(tuple(one["tokens"]), one["logits"]) for one in samples]


def gpu():
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(query, check=True, capture_output=True, text=True).stdout.splitlines()[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", type=Path, required=True)
    parser.add_argument("--shapes", default=SHAPES, help="PROMPT:TOKENS:RUNS, ...")
    parser.add_argument("--rounds", type=int, default=1, help="processes of each case")
    parser.add_argument("--weights", default=",".join(WEIGHTS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--commit", required=True, help="of the program")
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    shapes = [tuple(map(int, shape.split(":"))) for shape in args.shapes.split(",")]
    found = {(weights, *shape): collections.Counter() for weights in args.weights.split(",") for shape in shapes}
    name = gpu() if args.device != "cpu" else "CPU"
    for _ in range(args.rounds):
        for case, kinds in found.items():
            kinds.update(sample(args.bench, *case, args.device))
            print(f"{case}: {kinds.total()} runs, {deviating(kinds)} with other logits", flush=True)
            # What was found so far stays if the next process takes too long.
            save(args, name, found)
    return 1 if any(map(deviating, found.values())) else 0


def deviating(kinds):
    """Runs other than the most frequent kind."""
    return kinds.total() - max(kinds.values(), default=0)


def save(args, name, found):
    rows = [
        {"weights": weights, "prompt": prompt, "tokens": tokens, "runs": kinds.total(), "deviating": deviating(kinds)}
        for (weights, prompt, tokens, _), kinds in found.items()
    ]
    result = {
        "experiment": "repeat",
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": args.commit,
        "machine": {"gpu": name},
        "command": " ".join(["scripts/repeat.py", *(a for a in sys.argv[1:] if "/" not in a)]),
        "rows": rows,
    }
    head = ["weights", "tokens of the prompt", "and more", "runs", "with other logits"]
    table = results.table(1, head, [list(row.values()) for row in rows])
    report = f"Runs with Llama-3.1-8B's shapes, {results.machine(name)}, commit {args.commit}.\n\n{table}"
    results.write(args.json, result, report)


if __name__ == "__main__":
    sys.exit(main())
