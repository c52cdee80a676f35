#!/usr/bin/env python3
"""Generates the same tokens many times, and counts how many different logits there are in the end: one, or a kernel is wrong.

    python3 scripts/repeat.py --bench target/release/djinn-bench --runs 2000 --json results/repeat-h200.json [--rounds 3]

Prompts of 256 tokens and 15 more, of Llama-3.1-8B's shapes with eight different layers, plain, lossless and in Q4_K_M. A
deviation in any step stays in the cache, and so reaches the last logits. Rounds take turns between the weights.
"""

import argparse
import collections
import datetime
import json
import subprocess
import sys
from pathlib import Path

import results

MODEL = "synthetic:llama-3.1-8b?distinct=8"
WEIGHTS = {"plain": (MODEL, "plain"), "lossless": (MODEL, "lossless"), "Q4_K_M": (f"{MODEL}&encoding=q4_k_m", "stored")}
PROMPT, TOKENS = 256, 15


def sample(bench, weights, runs, device):
    """The tokens and logits of each run, in one process."""
    model, encoding = WEIGHTS[weights]
    command = [bench, "sample", "--device", device, "--system", "RESIDENT", "--model", model, "--encoding", encoding]
    command += ["--prompt", PROMPT, "--tokens", TOKENS, "--runs", runs]
    out = subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True).stdout
    samples = json.loads([line for line in out.splitlines() if line.startswith("{")][-1])["samples"]
    return [(tuple(one["tokens"]), one["logits"]) for one in samples]


def gpu():
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(query, check=True, capture_output=True, text=True).stdout.splitlines()[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", type=Path, required=True)
    parser.add_argument("--runs", type=int, required=True, help="of each process")
    parser.add_argument("--rounds", type=int, default=1, help="processes of each kind of weights")
    parser.add_argument("--weights", default=",".join(WEIGHTS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--commit", required=True, help="of the program")
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    found = {weights: [] for weights in args.weights.split(",")}
    for _ in range(args.rounds):
        for weights, runs in found.items():
            runs += sample(args.bench, weights, args.runs, args.device)
    name = gpu() if args.device != "cpu" else "CPU"
    rows = []
    for weights, runs in found.items():
        kinds = collections.Counter(runs).most_common()
        rows.append({"weights": weights, "runs": len(runs), "steps": len(runs) * TOKENS, "deviating": len(runs) - kinds[0][1]})
        print(rows[-1], flush=True)
    result = {
        "experiment": "repeat",
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": args.commit,
        "machine": {"gpu": name},
        "command": " ".join(["python3", *sys.argv]),
        "config": {"prompt": PROMPT, "tokens": TOKENS, "processes": args.rounds},
        "rows": rows,
    }
    head = ["weights", "runs", "steps", "runs with other logits"]
    table = results.table(1, head, [list(row.values()) for row in rows])
    what = f"{PROMPT} tokens and {TOKENS} more, Llama-3.1-8B's shapes, {results.machine(name)}, commit {args.commit}"
    report = f"Runs of {what}.\n\n{table}"
    results.write(args.json, result, report)
    return 1 if any(row["deviating"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
