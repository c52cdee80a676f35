#!/usr/bin/env python3
"""Checks and times Djinn on an NVIDIA GPU, in one run on one machine.

    python3 scripts/bench_gpu.py --djinn BINARY --conformance BINARY --json OUT.json [--runs 5] [--skip-70b]

The binaries are `cargo build --release --features cuda -p djinn-cli` and, of the package djinn-cuda, `--example
conformance`. Needs torch, transformers and the repository's checkpoints. Checks first: every operation against the CPU
reference, tiny checkpoints against transformers, equal logits for every placement, a thousand passes with
--stream-check, a thousand swaps of a session's KV cache. Then times: Llama-2-13B shapes at 20 GiB with the rest of the
card occupied, the same all resident, Llama-2-70B shapes at 80 GiB. Every sample is a fresh process.
"""

import argparse
import datetime
import json
import math
import re
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import results

GIB = 1 << 30
# Against transformers' float32 logits, where transformers itself is exact in the checkpoint's own type.
TOLERANCE = {"f32": 1e-4, "f16": 2e-3, "bf16": 2e-3}


def command(*words, timeout=400):
    result = subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=timeout)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, words))[:200]}: {result.stderr.strip()[-400:]}")
    return result.stdout


def commit(djinn):
    """That of the binary, as it was recorded when it was built."""
    return re.search(r"\(commit (.+)\)", command(djinn, "--version")).group(1)


def nvidia(field):
    return command("nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits").strip().splitlines()[0]


class PeakMemory:
    """The most memory that the card reports while the block runs, in MiB, above what it held before."""

    def __enter__(self):
        self.base, self.peak, self.stop = int(nvidia("memory.used")), 0, threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self):
        while not self.stop.wait(0.2):
            self.peak = max(self.peak, int(nvidia("memory.used")) - self.base)

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


def sanitizer(conformance, tool):
    """The summary of a checker over all conformance checks, or why there is none. Hazards of racecheck are told apart:
    in our kernels, and in cuBLASLt's (nvjet_*), whose synchronisation it does not follow."""
    try:
        text = command("compute-sanitizer", "--tool", tool, "--print-limit", "1000", conformance, "uncapped")
    except FileNotFoundError:
        return "compute-sanitizer is not installed"
    passed = re.search(r"(\d+) checks passed, (\d+) failed", text).group(0)
    places = re.findall(r" at (\w+)\+0x", text)
    foreign = sum(place.startswith("nvjet_") for place in places)
    where = f"; places: {len(places) - foreign} in our kernels, {foreign} in cuBLASLt's" if places else ""
    return f"{passed}; " + re.search(r"(ERROR|RACECHECK) SUMMARY: .*", text).group(0) + where


def logits(djinn, model, tokens, *more):
    tokens = ",".join(map(str, tokens))
    return json.loads(command(djinn, "logits", model, "--tokens", tokens, "--json", "-q", *more))["logits"]


def distance(found, wanted):
    error = math.sqrt(sum((a - b) ** 2 for a, b in zip(found, wanted)))
    return error / math.sqrt(sum(b * b for b in wanted))


def transformers_logits(path, prompts):
    """What transformers says on this GPU with the weights in their stored type."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype="auto").cuda().eval()
    with torch.no_grad():
        return [model(torch.tensor([p], device="cuda")).logits[0].float().tolist() for p in prompts]


def check_checkpoints(djinn, root):
    """Our worst error against float32 is no larger than transformers' own on this GPU, or tiny."""
    worst = {}
    for path in sorted(root.iterdir()):
        cases = json.loads((path / "expected.json").read_text())["cases"]
        theirs = transformers_logits(path, [case["prompt"] for case in cases])
        ours = [logits(djinn, path, case["prompt"], "--device", "cuda") for case in cases]
        errors = [
            max(
                distance(found[position], wanted)
                for case, found in zip(cases, all_logits)
                for position, wanted in zip(case["positions"], case["logits"])
            )
            for all_logits in (ours, theirs)
        ]
        worst[path.name] = {"djinn": errors[0], "transformers": errors[1]}
        if errors[0] > max(errors[1], TOLERANCE[path.name.rsplit("-", 1)[1]]):
            raise RuntimeError(f"{path.name}: relative error {errors[0]:.2e}, transformers {errors[1]:.2e}")
    return worst


FAMILIES = ("gqa", "window", "qwen3", "mixtral", "qwen3-moe", "gpt2", "gptj", "gpt-neox", "falcon", "falcon-rw")


def check_placements(djinn):
    """How many placements gave the logits that all weights on the device give."""
    smollm = [
        ("synthetic:smollm2-135m", ("--resident-fraction", fraction, "--ring", ring))
        for fraction in (0, 0.1, 0.25, 0.5, 0.9)
        for ring in ("9MiB", "17MiB", "40MiB")
    ]
    families = [
        (f"synthetic:tiny-{family}?layers=4", ("--resident-fraction", fraction))
        for family in FAMILIES
        for fraction in (0, 0.5)
    ]
    whole = {}
    for model, more in smollm + families:
        tokens = [(i * 37) % 250 + 5 for i in range(40)]
        if model not in whole:
            whole[model] = logits(djinn, model, tokens, "--device", "cuda")
        if logits(djinn, model, tokens, "--device", "cuda", *more) != whole[model]:
            raise RuntimeError(f"{model}: logits differ with {more}")
    return len(smollm + families)


def generate(djinn, model, prompt, tokens, *more):
    prompt = ",".join(str((i * 37) % 31000 + 5) for i in range(prompt))
    words = ["--device", "cuda", "--prompt-tokens", prompt, "--max-tokens", tokens, "--greedy", "--ignore-eos"]
    return json.loads(command(djinn, "run", model, *words, "--json", "-q", *more))


def sample(djinn, model, runs, tokens, *more):
    samples = []
    for _ in range(runs):
        with PeakMemory() as memory:
            output = generate(djinn, model, 512, tokens, *more)
        samples.append({**output["stats"], "nvml_peak_mib": memory.peak, "tokens": output["tokens"]})
    if any(s["tokens"] != samples[0]["tokens"] for s in samples):
        raise RuntimeError(f"{model}: runs gave different tokens")
    median = lambda key: statistics.median(s[key] for s in samples)
    return {
        "model": model,
        "flags": list(map(str, more)),
        "ttft_ms": median("ttft_ms"),
        "tpot_ms": median("tpot_ms"),
        "streamed_bytes_per_pass": samples[0]["streamed_bytes_per_pass"],
        "nvml_peak_mib": max(s["nvml_peak_mib"] for s in samples),
        "samples": samples,
    }


def markdown(report):
    """What `djinn-bench report` prints of a report with the link's rate and samples."""
    head = ["model", "flags", "GB streamed per pass, at most", "per token", "TTFT ms", "ms/token", "share of link", "peak MiB (outside)"]
    rows = []
    for r in report["results"]:
        # What moved, where experts make it less than what could have.
        moved = r["samples"][0].get("streamed_bytes_per_token")
        rows.append([
            r["model"], " ".join(r["flags"]), f"{r['streamed_bytes_per_pass'] / 1e9:.3f}",
            "" if moved is None else f"{moved / 1e9:.3f}", f"{r['ttft_ms']:.1f}", f"{r['tpot_ms']:.2f}",
            f"{r['share_of_link']:.3f}", f"{r['nvml_peak_mib']:.0f}",
        ])
    told = [report["conformance"]] if "conformance" in report else []
    told += [f"the link gave {report['link_gbps']:.1f} GB/s."] if "link_gbps" in report else []
    where = ", ".join([report["gpu"], f"driver {report['driver']}", report["date"], f"commit {report['commit']}"])
    text = f"{where}: `{report['command']}`\n\n{'; '.join(told)}\n\n"
    return text + results.table(2, head, rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--djinn", required=True)
    parser.add_argument("--conformance", required=True)
    parser.add_argument("--json", required=True, type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--skip-70b", action="store_true")
    args = parser.parse_args()
    root = Path(__file__).resolve().parent.parent
    report = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(args.djinn),
        "gpu": nvidia("name"),
        "driver": nvidia("driver_version"),
        "command": "scripts/bench_gpu.py " + " ".join(a for a in sys.argv[1:] if "/" not in a),
    }
    text = command(args.conformance)
    print(text)
    report["conformance"] = re.search(r"(\d+) checks passed, (\d+) failed", text).group(0)
    link = float(re.search(r"host to device ([\d.]+) GB/s", text).group(1))
    report["link_gbps"], report["linear"] = link, [l for l in text.splitlines() if l.startswith("linear")]
    for tool in ("memcheck", "racecheck"):
        report[tool] = sanitizer(args.conformance, tool)
        print(f"{tool}: {report[tool]}")
    report["checkpoints"] = check_checkpoints(args.djinn, root / "djinn-models/tests/checkpoints")
    print("checkpoints, worst relative error:", report["checkpoints"])
    report["equal_placements"] = check_placements(args.djinn)
    print(report["equal_placements"], "placements give equal logits")
    checked = generate(args.djinn, "synthetic:smollm2-135m", 8, 1000, "--resident-fraction", 0.25, "--stream-check")
    plain = generate(args.djinn, "synthetic:smollm2-135m", 8, 1000)
    if checked["tokens"] != plain["tokens"]:
        raise RuntimeError("streaming changed the tokens")
    report["stream_checked_passes"] = checked["stats"]["decode_passes"] + 1
    print(report["stream_checked_passes"], "passes with --stream-check")


    import torch

    free, _ = torch.cuda.mem_get_info()
    rest = torch.empty(free - 22 * GIB, dtype=torch.uint8, device="cuda")
    report["occupied_bytes"] = rest.numel()
    samples = [sample(args.djinn, "synthetic:llama-2-13b", args.runs, 51, "--vram", "20GiB")]
    del rest
    torch.cuda.empty_cache()
    samples.append(sample(args.djinn, "synthetic:llama-2-13b", args.runs, 51))
    if not args.skip_70b:
        samples.append(sample(args.djinn, "synthetic:llama-2-70b", 1, 9, "--vram", "80GiB"))
    report["results"] = samples
    for r in samples:
        floor = r["streamed_bytes_per_pass"] / link / 1e6
        r["share_of_link"] = floor / r["tpot_ms"]
        print(
            f"{r['model']} {' '.join(r['flags'])}: TTFT(512) {r['ttft_ms']:.1f} ms, {r['tpot_ms']:.2f} ms/token, "
            f"{r['streamed_bytes_per_pass'] / 1e9:.3f} GB streamed = {r['share_of_link']:.3f} of the link, "
            f"NVML peak {r['nvml_peak_mib']} MiB"
        )
    results.write(args.json, report, markdown(report))


if __name__ == "__main__":
    main()
