#!/usr/bin/env python3
"""Runs the tiny GPTQ, AWQ and FP8 checkpoints of the tests through the engine on a GPU, in a minute.

    python3 scripts/quantised_checkpoints.py --djinn BINARY --json OUT.json

For each checkpoint: how far the logits of the last position are, in relative norm, from those in float64 of the decoded weights
(expected.json), with the weights as stored and decoded to 16 bits on the same GPU; how far these two are apart, which may be
1e-3; and whether streaming every weight gives the bits of keeping them.
"""

import argparse
import json
from pathlib import Path

import results
from bench_gpu import commit, distance, logits, nvidia

CHECKPOINTS = Path(__file__).resolve().parent.parent / "djinn-models" / "tests" / "quantised"
MOST_APART = 1e-3


def last(djinn, path, prompt, *more):
    return logits(djinn, path, prompt, "--device", "cuda", *more)[-1]


def check(djinn, path):
    row = {"checkpoint": path.name, "stored": 0.0, "decoded": 0.0, "apart": 0.0, "streaming_equal": True}
    for case in json.loads((path / "expected.json").read_text())["cases"]:
        stored = last(djinn, path, case["prompt"], "--encoding", "stored")
        decoded = last(djinn, path, case["prompt"], "--encoding", "plain")
        streamed = last(djinn, path, case["prompt"], "--encoding", "stored", "--resident-fraction", "0")
        row["stored"] = max(row["stored"], distance(stored, case["logits"]))
        row["decoded"] = max(row["decoded"], distance(decoded, case["logits"]))
        row["apart"] = max(row["apart"], distance(stored, decoded))
        row["streaming_equal"] &= streamed == stored
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--djinn", required=True)
    parser.add_argument("--json", required=True, type=Path)
    args = parser.parse_args()
    rows = [check(args.djinn, path) for path in sorted(CHECKPOINTS.iterdir())]
    lines = [
        (row["checkpoint"], *(f"{row[key]:.1e}" for key in ("stored", "decoded", "apart")), "yes" if row["streaming_equal"] else "no")
        for row in rows
    ]
    head = ["checkpoint", "error, as stored", "error, decoded to 16 bits", "apart", "streamed: equal bits"]
    failures = [row["checkpoint"] for row in rows if not row["apart"] <= MOST_APART or not row["streaming_equal"]]
    facts = {"commit": commit(args.djinn), "gpu": nvidia("name"), "driver": nvidia("driver_version"), "rows": rows, "failures": failures}
    report = f"{results.machine(facts['gpu'])}, commit {facts['commit']}\n\n" + results.table(1, head, lines)
    results.write(args.json, facts, report)
    print(report)
    raise SystemExit(bool(failures))


if __name__ == "__main__":
    main()
