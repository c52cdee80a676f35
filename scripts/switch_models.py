#!/usr/bin/env python3
"""Asks several models of one `djinn serve` in turn, under a budget that does not hold all of them at once.

    python3 scripts/switch_models.py --djinn target/release/djinn --json OUT.json [--device cuda] [--vram 40GiB]
        [--models a=synthetic:llama-3.1-8b b=synthetic:llama-3.1-8b?seed=2 c=synthetic:llama-2-13b]
        [--order a,b,c,a,b,c,a] [--kv-cache 2GiB] [--prompt 64] [--tokens 8]

Each model's greedy tokens after a prompt are taken first, from a server that has it alone. Then one server has all of them,
and requests come in the given order, one after the other. For each it is told whether the model was on the device, the time
to the first token, and what the server says of the way there: bytes over the link, and milliseconds from when there was room.
A step with the same prompt follows at once, which takes no way: the difference of both first tokens is the cost of the switch.
Tokens must be those of the model alone, and the device's memory (by the server's own count, and by nvidia-smi) must not exceed
the budget. Exits with 1 where one of these does not hold. Needs Python 3.9 and nothing else.
"""

import argparse
import http.client
import json
import random
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import results
from served import Served

MODELS = ["a=synthetic:llama-3.1-8b", "b=synthetic:llama-3.1-8b?seed=2", "c=synthetic:llama-2-13b"]
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def size(text):
    for unit, factor in UNITS.items():
        if text.endswith(unit):
            return int(float(text[:-len(unit)]) * factor)
    return int(text)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--djinn", required=True, type=Path)
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="NAME=MODEL")
    parser.add_argument("--order", help="names with commas; all models in turn, twice and the first again, if not given")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--vram", default="40GiB")
    parser.add_argument("--ram", help="as for djinn serve")
    parser.add_argument("--kv-cache", default="2GiB")
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=30000, help="prompts have ids below this")
    parser.add_argument("--patience", type=float, default=300, help="seconds for a model to be loaded first")
    parser.add_argument("--skip-alone", action="store_true", help="take each model's first answer for its tokens alone")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.models = dict(model.split("=", 1) for model in args.models)
    args.order = args.order.split(",") if args.order else [*args.models] * 2 + [next(iter(args.models))]
    if not set(args.order) <= set(args.models):
        parser.error("--order has names of --models, with commas")
    return args


class Ended(Exception):
    """An answer that is none."""


def ask(port, model, args):
    """The tokens of an answer with their log-probabilities, and milliseconds to the first of them."""
    dice = random.Random(7)
    prompt = [dice.randrange(5, args.vocabulary) for _ in range(args.prompt)]
    # Without a salt of its own, the prompt's keys and values would be found again.
    body = {"model": model, "prompt": prompt, "max_tokens": args.tokens, "temperature": 0, "ignore_eos": True,
            "stream": True, "logprobs": 1, "cache_salt": str(time.monotonic_ns())}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=args.patience)
    try:
        began = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise Ended(response.read().decode(errors="replace"))
        tokens, first = [], None
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            first = first or time.perf_counter() - began
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise Ended(line.decode(errors="replace"))
            tokens += [(choice["text"], choice["logprobs"]) for choice in chunk["choices"]]
        return tokens, first * 1e3
    finally:
        connection.close()


def live(served, model):
    status, page = served.ask("GET", f"/v1/live?model={model}")
    assert status == 200, page
    return json.loads(page)["models"][0]


def card_mib():
    """MiB in use on the first card, where there is one."""
    if not shutil.which("nvidia-smi"):
        return None
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True)
    return int(done.stdout.split()[0]) if done.returncode == 0 else None


class Several(Served):
    """A server of several models."""

    def __init__(self, args, models):
        flags = [f"{name}={place}" for name, place in models[1:]]
        flags += [f"--vram={args.vram}", f"--kv-cache={args.kv_cache}", "--ctx=2048", "--max-num-seqs=4"]
        flags += [f"--ram={args.ram}"] if args.ram else []
        super().__init__(args.djinn, *flags, model="=".join(models[0]), name=None, device=args.device,
                         patience=args.patience)


def alone(args):
    """Each model's tokens without the others."""
    answers = {}
    for name, place in args.models.items():
        with Several(args, [(name, place)]) as served:
            answers[name], _ = ask(served.port, name, args)
    return answers


def main():
    args = arguments()
    before = card_mib()
    expected = {} if args.skip_alone else alone(args)
    faults, rows, peak = [], [], 0
    with Several(args, list(args.models.items())) as served:
        for name in args.order:
            was = live(served, name)
            tokens, first = ask(served.port, name, args)
            now = live(served, name)
            again, warm = ask(served.port, name, args)
            moved = now["loads"]["count"] > was["loads"]["count"]
            held = sum(live(served, other).get("segments", {}).get("total", 0) for other in args.models)
            card = card_mib()
            peak = max(peak, card - before if card is not None else 0)
            rows.append({
                "model": name, "from": was["status"]["weights"], "first_token_ms": first, "warm_first_token_ms": warm,
                "switch_ms": first - warm if moved else 0.0,
                "moved_bytes": now["loads"]["latest_bytes"] if moved else 0,
                "moved_ms": now["loads"]["latest_ms"] if moved else 0.0,
                "device_bytes": held, "card_mib": card,
            })
            print(json.dumps(rows[-1]), flush=True)
            if expected.setdefault(name, tokens) != tokens or again != tokens:
                faults.append(f"{name}: other tokens than alone")
        facts = served.facts()
        complaints = served.complaints()
    faults += complaints
    if peak and peak > size(args.vram) / (1 << 20):
        faults.append(f"{peak} MiB on the card, of {args.vram}")
    returns = [row for row in rows if row["from"] == "host"]
    summary = {
        "returns": len(returns),
        "switch_ms": statistics.median(row["switch_ms"] for row in returns) if returns else None,
        "most_switch_ms": max((row["switch_ms"] for row in returns), default=None),
        "card_peak_mib": peak or None,
    }
    shown = [[row["model"], row["from"], f"{row['first_token_ms']:.0f}", f"{row['warm_first_token_ms']:.0f}",
              f"{row['switch_ms']:.0f}", f"{row['moved_bytes'] / 1e9:.2f}", f"{row['moved_ms']:.0f}"] for row in rows]
    head = ["model", "weights were", "first token, ms", "the same again, ms", "switch, ms", "GB moved", "in ms"]
    report = results.table(2, head, shown)
    print(report)
    print(json.dumps(summary))
    result = {"settings": {key: str(value) for key, value in vars(args).items() if key not in ("json", "djinn")}, **facts,
              "rows": rows, **summary, "faults": faults}
    if args.json:
        results.write(args.json, result, report)
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
