#!/usr/bin/env python3
"""Simulates experiment 1's closed loop with the times of a run on a GPU, and with some of them changed: what are the
slowest turns made of?

    python3 scripts/exp1_p99.py --bench target/release/djinn-bench --profile results/exp1-signal-h200.json --json OUT.json

Every case runs with the same ten seeds. Takes a few seconds.
"""

import argparse
import copy
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import results

SEEDS = range(1, 11)
LOAD = "--host-kv 45GiB --agents 80 --policies signal".split()
SHORT = "--warm-up 15 --seconds 55".split()
LONG = "--warm-up 30 --seconds 600".split()


def scaled(profile, chunk=1.0, decode=1.0, copies=None):
    """The profile with the times of chunks and of decodes multiplied, and perhaps another slowdown by copies."""
    profile = copy.deepcopy(profile)
    for part, factor in (("chunk", chunk), ("decode", decode)):
        profile[part]["ms"] = [[ms * factor for ms in row] for row in profile[part]["ms"]]
    profile["slowed_by_copies"] = copies or profile["slowed_by_copies"]
    return profile


def cases(profile):
    """Of each case: its name, the profile, and flags."""
    within, all_fit = ["--vram", "63GiB"], ["--vram", "110GiB"]
    yield "as measured", profile, within + SHORT
    yield "the same, 600 s after 30", profile, within + LONG
    yield "all contexts fit the device", profile, all_fit + SHORT
    yield "steps are not slower beside copies", scaled(profile, copies=1.0), within + SHORT
    yield "chunks of prompts take 0.9 of the time", scaled(profile, chunk=0.9), within + SHORT
    yield "chunks of prompts take 0.7 of the time", scaled(profile, chunk=0.7), within + SHORT
    yield "chunks of prompts take no time", scaled(profile, chunk=1e-3), within + SHORT
    yield "decodes take 0.9 of the time", scaled(profile, decode=0.9), within + SHORT
    yield "both take 0.9 of the time", scaled(profile, chunk=0.9, decode=0.9), within + SHORT


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, type=Path)
    parser.add_argument("--profile", required=True, type=Path, help="a result of exp1")
    parser.add_argument("--json", required=True, type=Path)
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    profile = json.loads(args.profile.read_text())["profile"]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder) / "profile.json", Path(folder) / "out.json"
        for name, changed, flags in cases(profile):
            given.write_text(json.dumps(changed))
            rows = []
            for seed in SEEDS:
                command = [args.bench, "exp1", "--simulate", "--profile", given, "--seed", seed, "--json", out, *LOAD, *flags]
                run = subprocess.run(list(map(str, command)), capture_output=True, text=True)
                if run.returncode:
                    sys.exit(f"{name}: {run.stderr.strip()}")
                rows.append(json.loads(out.read_text())["policies"][0])
            p99 = [round(row["p99"]["latency_s"], 3) for row in rows]
            work = round(statistics.mean(row["tokens_per_s"] for row in rows), 1)
            found.append({"case": name, "flags": " ".join(LOAD + flags), "tokens_per_s": work, "p99_s": p99})
    head = ("", "tokens/s", "P99 turn, s: mean", "least", "most")
    rows = []
    for case in found:
        p99 = case["p99_s"]
        rows.append((case["case"], case["tokens_per_s"], *(f"{of(p99):.2f}" for of in (statistics.mean, min, max))))
    report = f"{args.profile.name} simulated, commit {args.commit}: `scripts/exp1_p99.py`, seeds 1 to {SEEDS[-1]}\n\n"
    report += results.table(1, head, rows)
    results.write(args.json, {"commit": args.commit, "cases": found}, report)
    print(report)


if __name__ == "__main__":
    main()
