#!/usr/bin/env python3
"""Checks and times what the products of djinn-cuda decide, on an NVIDIA GPU with 139 GiB, in a few minutes.

    python3 scripts/bench_products.py --djinn BINARY --conformance BINARY --json OUT.json [--seconds 280]

The binaries are those of scripts/bench_gpu.py. In order of importance, until the seconds are over: every operation
against the CPU reference; Mixtral 8x7B resident; the checkpoints against transformers, and equal logits for every
placement; Llama-2-13B resident and at 20 GiB; Mixtral streamed at 40 GiB, with the tokens of the resident one;
Llama-3-8B. The report is written after each step, with its failure if it has one; steps that were not reached are
absent.
"""

import argparse
import datetime
import json
import re
import sys
import time
from pathlib import Path

import bench_gpu
import results

ROOT = Path(__file__).resolve().parent.parent
MIXTRAL = "synthetic:mixtral-8x7b"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for binary in ("djinn", "conformance"):
        parser.add_argument(f"--{binary}", required=True)
    parser.add_argument("--json", required=True, type=Path)
    parser.add_argument("--seconds", type=int, default=280)
    args = parser.parse_args()
    started = time.monotonic()
    report = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": bench_gpu.commit(args.djinn),
        "gpu": bench_gpu.nvidia("name"),
        "driver": bench_gpu.nvidia("driver_version"),
        "command": "scripts/bench_products.py " + " ".join(a for a in sys.argv[1:] if "/" not in a),
        "failures": {},
        "results": [],
    }

    def conformance():
        text = bench_gpu.command(args.conformance)
        report["conformance"] = re.search(r"\d+ checks passed, \d+ failed", text).group(0)
        report["link_gbps"] = float(re.search(r"host to device ([\d.]+) GB/s", text).group(1))
        report["linear"] = [line for line in text.splitlines() if line.startswith("linear")]
        return report["conformance"]

    def checkpoints():
        report["checkpoints"] = bench_gpu.check_checkpoints(args.djinn, ROOT / "djinn-models/tests/checkpoints")
        return f"{len(report['checkpoints'])} within their bounds"

    def placements():
        report["equal_placements"] = bench_gpu.check_placements(args.djinn)
        return f"{report['equal_placements']} equal"

    def speed(model, runs, tokens, *more):
        result = bench_gpu.sample(args.djinn, model, runs, tokens, *more)
        moved = result["samples"][0]["streamed_bytes_per_token"]
        result["share_of_link"] = moved / report["link_gbps"] / 1e6 / result["tpot_ms"]
        report["results"].append(result)
        return f"TTFT(512) {result['ttft_ms']:.1f} ms, {result['tpot_ms']:.2f} ms/token"

    def mixtral_streamed():
        told = speed(MIXTRAL, 1, 9, "--vram", "40GiB")
        resident, streamed = (r["samples"][0]["tokens"] for r in report["results"] if r["model"] == MIXTRAL)
        if streamed != resident[: len(streamed)]:
            raise RuntimeError("streaming changed the tokens")
        return told + ", the tokens of the resident one"

    steps = {
        "conformance": conformance,
        "Mixtral": lambda: speed(MIXTRAL, 1, 33),
        "checkpoints": checkpoints,
        "placements": placements,
        "13B": lambda: speed("synthetic:llama-2-13b", 2, 51),
        "13B at 20 GiB": lambda: speed("synthetic:llama-2-13b", 1, 51, "--vram", "20GiB"),
        "Mixtral at 40 GiB": mixtral_streamed,
        "8B": lambda: speed("synthetic:llama-3-8b", 2, 51),
    }
    for name, step in steps.items():
        before = time.monotonic()
        if before - started > args.seconds:
            break
        try:
            told = step()
        except Exception as error:
            told = report["failures"][name] = str(error)
        results.write(args.json, report, bench_gpu.markdown(report))
        print(f"{name}, {time.monotonic() - before:.0f} s: {told}", flush=True)
        if name == "conformance" and report["failures"]:
            break
    sys.exit(bool(report["failures"]))


if __name__ == "__main__":
    main()
