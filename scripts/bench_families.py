#!/usr/bin/env python3
"""Runs models that are larger than what they may take of one GPU, at their full shapes, and writes the JSON.

    python3 scripts/bench_families.py --djinn BINARY --json OUT.json [--only NAME...]

Needs torch (for the link's rate) beside the driver. Weights are synthetic; prompts have 512 tokens.

    mixtral    Mixtral 8x7B (93 GB) at 40 GiB and all resident: same tokens; bytes streamed for each token against what
               2 of 8 experts make, in the same run
    qwen3-moe  Qwen3-30B-A3B (61 GB) at 24 GiB, as above with 8 of 128 experts, also in chunks of half and of twice the
               size; and in Q4_K_M (19 GB) at 8 GiB. Its 48 layers use the weights of 8
    llama      Llama-2-70B (138 GB) at 80 GiB
    falcon     Falcon-180B (357 GB) at 120 GiB. Its 80 layers use the weights of 8 in turn, because what streams would
               not fit in the host's memory otherwise; on the device each layer has its own bytes, and every pass
               streams what the whole model would
"""

import argparse
import datetime
import json
import sys
from pathlib import Path

import results
from bench_gpu import command, commit, markdown, nvidia, sample

MARGIN = 1.15


def link_gbps():
    """Pinned host memory to the device, by copies of 1 GiB."""
    import torch

    host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    device = torch.empty_like(host, device="cuda")
    best = 0.0
    for _ in range(6):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        device.copy_(host, non_blocking=True)
        end.record()
        end.synchronize()
        best = max(best, host.numel() / begin.elapsed_time(end) / 1e6)
    del device
    torch.cuda.empty_cache()
    return best


def experts(djinn, model, vram, chosen, count):
    """A model of which each row takes some experts: streamed and all resident."""
    budget = ["--vram", vram]
    plan = json.loads(command(djinn, "plan", model, *budget, "--gpu", "h200", "--json"))
    streamed = sample(djinn, model, 1, 33, *budget)
    resident = sample(djinn, model, 1, 33)
    if streamed["samples"][0]["tokens"] != resident["samples"][0]["tokens"]:
        raise RuntimeError("streaming changed the tokens")
    stats = streamed["samples"][0]
    # Everything that streams belongs to experts.
    streamed["needed_bytes_per_token"] = stats["streamed_bytes_per_pass"] * chosen // count
    streamed["planned_bytes_per_token"] = plan["expected_streamed_bytes_per_pass"]
    streamed["over_needed"] = stats["streamed_bytes_per_token"] / streamed["needed_bytes_per_token"]
    if streamed["over_needed"] > MARGIN:
        raise RuntimeError(f"{streamed['over_needed']:.3f} times the bytes that the experts make")
    return [streamed, resident]


def mixtral(djinn):
    return experts(djinn, "synthetic:mixtral-8x7b", "40GiB", 2, 8)


def qwen3_moe(djinn):
    model, vram = "synthetic:qwen3-30b-a3b?distinct=8", "24GiB"
    found = experts(djinn, model, vram, 8, 128)
    found += [sample(djinn, model, 1, 33, "--vram", vram, "--chunk", chunk) for chunk in ("64MiB", "256MiB")]
    if any(result["samples"][0]["tokens"] != found[0]["samples"][0]["tokens"] for result in found):
        raise RuntimeError("chunks changed the tokens")
    return found + [sample(djinn, model + "&encoding=q4_k_m", 1, 33, "--vram", "8GiB")]


def llama(djinn):
    return [sample(djinn, "synthetic:llama-2-70b", 1, 9, "--vram", "80GiB")]


def falcon(djinn):
    return [sample(djinn, "synthetic:falcon-180b?distinct=8", 1, 5, "--vram", "120GiB")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--djinn", required=True)
    parser.add_argument("--json", required=True, type=Path)
    models = {"mixtral": mixtral, "qwen3-moe": qwen3_moe, "llama": llama, "falcon": falcon}
    parser.add_argument("--only", nargs="*", choices=models)
    args = parser.parse_args()
    report = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(args.djinn),
        "gpu": nvidia("name"),
        "driver": nvidia("driver_version"),
        "command": "scripts/bench_families.py " + " ".join(a for a in sys.argv[1:] if "/" not in a),
        "link_gbps": link_gbps(),
        "results": [],
    }
    print(f"link {report['link_gbps']:.1f} GB/s")
    for name in args.only or models:
        for result in models[name](args.djinn):
            stats = result["samples"][0]
            moved = stats["streamed_bytes_per_token"]
            result["share_of_link"] = moved / report["link_gbps"] / 1e6 / result["tpot_ms"]
            report["results"].append(result)
            print(
                f"{result['model']} {' '.join(result['flags'])}: load {stats['load_ms'] / 1e3:.0f} s, "
                f"TTFT(512) {result['ttft_ms']:.1f} ms, {result['tpot_ms']:.2f} ms/token, "
                f"{moved / 1e9:.3f} GB for each token = {result['share_of_link']:.3f} of the link, "
                f"{stats['shared_host_bytes'] / 1e9:.1f} GB shared on the host, "
                f"NVML peak {result['nvml_peak_mib']} MiB",
                flush=True,
            )
            results.write(args.json, report, markdown(report))


if __name__ == "__main__":
    main()
