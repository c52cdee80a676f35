#!/usr/bin/env python3
"""Times two builds of Djinn beside each other: fresh processes that take turns, so that a change of the machine's mood
meets both.

    python3 scripts/compare_builds.py --before FOLDER --after FOLDER --json OUT.json
        [--cases 13b-20gib 13b 8b 1b exp1 | smollm2] [--pairs 5] [--seconds 600] [--model FILE]

Each folder has the binaries `djinn` and, for the cases 8b and exp1, `djinn-bench`. The order within a pair alternates.
The report is written after every pair; the script stops before the seconds are over.

    smollm2     a GGUF file (--model) on two threads of the CPU: 512-token prompt, 64 further tokens
    13b-20gib   synthetic:llama-2-13b in 20 GiB of a GPU: 512-token prompt, 31 tokens
    13b         the same, all resident, 51 tokens
    8b          synthetic:llama-3-8b resident: steps of 1 and of 32 sequences after 512 tokens
    1b          synthetic:llama-3.2-1b resident: 64-token prompt, 401 tokens
    exp1        experiment 1's closed loop of 80 agents on synthetic:llama-2-7b in 63 GiB, policy `signal`, in all pairs
"""

import argparse
import datetime
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import bench_cpu
import bench_gpu
import results


def run(folder, model, tokens, prompt, *more):
    ids = ",".join(map(str, prompt))
    words = ["run", model, "--prompt-tokens", ids, "-n", tokens, "--greedy", "--ignore-eos", "--json", "-q", *more]
    found = json.loads(bench_gpu.command(folder / "djinn", *words))
    stats = found["stats"]
    return {"ttft_ms": stats["ttft_ms"], "tpot_ms": stats["tpot_ms"]}, found["tokens"]


def bench(folder, *words):
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "out.json"
        bench_gpu.command(folder / "djinn-bench", *words, "--json", path)
        return json.loads(path.read_text())


def prompt_13b():
    return [(i * 7919 + 13) % 31999 + 1 for i in range(512)]


def case(name, folder, model):
    """Figures of one process, and what must be the same in both builds."""
    if name == "smollm2":
        return run(folder, model, 64, bench_cpu.prompt_tokens(512), "--threads", "2", "--device", "cpu")
    if name == "13b":
        return run(folder, "synthetic:llama-2-13b?distinct=8", 51, prompt_13b(), "--device", "cuda")
    if name == "13b-20gib":
        cap = ("--device", "cuda", "--vram", "20GiB")
        return run(folder, "synthetic:llama-2-13b?distinct=8", 31, prompt_13b(), *cap)
    if name == "1b":
        return run(folder, "synthetic:llama-3.2-1b", 401, list(range(1, 65)), "--device", "cuda")
    if name == "8b":
        words = "sweep --device cuda --model synthetic:llama-3-8b?distinct=8 --vram 60GiB --skip-resident".split()
        found = bench(folder, *words, "--batch", "1,32", "--prompt", "512", "--tokens", "20")
        batches = found["modes"][0]["batches"]
        return {f"step_of_{b['batch']}_ms": b["pass_ms"] for b in batches}, None
    words = "exp1 --device cuda --vram 63GiB --host-kv 45GiB --agents 80 --policies signal --warm-up 8 --seconds 25"
    found = bench(folder, *words.split())["policies"][0]
    return {key: found[key] for key in ("tokens_per_s", "turns")}, None


def interval(values):
    """Between which two of the values their distribution's median lies, with 95 % or more (order statistics)."""
    values, n = sorted(values), len(values)
    below = lambda k: sum(math.comb(n, i) for i in range(k + 1)) / 2**n
    k = max((k for k in range(n // 2) if below(k) <= 0.025), default=None)
    return None if k is None else [values[k], values[n - 1 - k]]


def summary(pairs):
    """Medians of both builds, and of the ratios of pairs."""
    keys = pairs[0]["before"]
    median = lambda values: statistics.median(values)
    return {
        key: {
            "before": median([p["before"][key] for p in pairs]),
            "after": median([p["after"][key] for p in pairs]),
            "ratio": median([p["after"][key] / p["before"][key] for p in pairs if p["before"][key]] or [1.0]),
            "ratio_95": interval([p["after"][key] / p["before"][key] for p in pairs if p["before"][key]]),
        }
        for key in keys
    }


def markdown(report):
    where = report.get("gpu") or report["machine"]["cpu"]
    rows = []
    for name, found in report["cases"].items():
        equal = {pair["equal_tokens"] for pair in found["pairs"]}
        same = "–" if None in equal else "different" if False in equal else "equal"
        for key, value in found["medians"].items():
            figures = [f"{value['before']:.3f}", f"{value['after']:.3f}", f"{value['ratio']:.4f}"]
            within = value.get("ratio_95")
            figures.append(f"{within[0]:.4f} to {within[1]:.4f}" if within else "–")
            rows.append([f"{name}: {key}", len(found["pairs"]), *figures, same])
    head = ["", "pairs", report["before"], report["after"], "median of ratios", "95 % of it", "tokens"]
    return f"{where}, {report['date']}: `{report['command']}`\n\n" + results.table(1, head, rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--before", required=True, type=Path)
    parser.add_argument("--after", required=True, type=Path)
    parser.add_argument("--json", required=True, type=Path)
    parser.add_argument("--cases", nargs="+", default=["13b-20gib", "13b", "8b", "exp1"])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--model", type=Path)
    args = parser.parse_args()
    started = time.monotonic()
    report = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "before": bench_gpu.commit(args.before / "djinn"),
        "after": bench_gpu.commit(args.after / "djinn"),
        "command": "scripts/compare_builds.py " + " ".join(a for a in sys.argv[1:] if "/" not in a),
        "cases": {},
    }
    if args.cases == ["smollm2"]:
        report["machine"] = bench_cpu.machine()
    else:
        report["gpu"], report["driver"] = bench_gpu.nvidia("name"), bench_gpu.nvidia("driver_version")
    for name in args.cases:
        pairs = []
        for number in range(args.pairs):
            before = time.monotonic()
            if pairs and before - started + pairs[-1]["seconds"] > args.seconds:
                break
            order = ("before", "after") if number % 2 == 0 else ("after", "before")
            found = {build: case(name, getattr(args, build), args.model) for build in order}
            pair = {build: figures for build, (figures, _) in found.items()}
            tokens = found["before"][1], found["after"][1]
            pair["equal_tokens"] = None if tokens[0] is None else tokens[0] == tokens[1]
            pairs.append({**pair, "seconds": round(time.monotonic() - before, 1)})
            report["cases"][name] = {"pairs": pairs, "medians": summary(pairs)}
            report["report"] = markdown(report)
            args.json.write_text(json.dumps(report, indent=1) + "\n")
        for key, value in report["cases"].get(name, {"medians": {}})["medians"].items():
            told = f"{value['before']:.3f} -> {value['after']:.3f}, ratio {value['ratio']:.4f}"
            print(f"{name}, {len(pairs)} pairs, {key}: {told}", flush=True)


if __name__ == "__main__":
    main()
