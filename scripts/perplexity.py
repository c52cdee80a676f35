#!/usr/bin/env python3
"""Perplexity of a model over fixed texts with keys and values in each element type.

    python3 scripts/perplexity.py [--djinn target/release/djinn] [--model smollm2] [--json results/kv-dtype-smollm2.json]

A text is read in windows that do not overlap. Each is computed as a prompt from its first token on (`djinn logits`), and
every token but the first is scored. Differences are to the first type. Needs Python 3.9 and numpy.
"""

import argparse
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy
import results
import served
from bench_cpu import commit, machine, shown_command
from int8_quality import negative_log


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--djinn", type=Path, default=Path("target/release/djinn"))
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtypes", nargs="+", default=["f16", "int8", "bf16"])
    parser.add_argument("--texts", nargs="+", default=["LICENSE-APACHE", "ARCHITECTURE.md"], help="of this repository")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def tokens_of(args, texts):
    """The tokens of each text, and what the binary says of itself."""
    with served.Served(str(args.djinn), model=args.model, name=None, patience=900) as server:
        found = []
        for text in texts:
            status, answer = server.ask("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})
            if status != 200:
                sys.exit(f"/tokenize: {status}: {answer[:500]}")
            found.append(json.loads(answer)["tokens"])
        return found


def losses(args, dtype, tokens):
    """Of each token but the first: minus the logarithm of its probability."""
    command = [str(args.djinn), "logits", args.model, f"--device={args.device}", f"--kv-dtype={dtype}", "--json"]
    done = subprocess.run([*command, "--tokens", ",".join(map(str, tokens))], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    # Hundreds of megabytes: row by row.
    start, end = done.stdout.index("[["), done.stdout.rindex("]]")
    rows = done.stdout[start + 2 : end].split("],[")
    if len(rows) != len(tokens):
        sys.exit(f"{len(rows)} rows of logits for {len(tokens)} tokens")
    return [
        negative_log(numpy.array(row.split(","), dtype=numpy.float64), token) for row, token in zip(rows, tokens[1:])
    ]


def main():
    args = arguments()
    texts = [(served.ROOT / name).read_text() for name in args.texts]
    found = []
    for name, text, tokens in zip(args.texts, texts, tokens_of(args, texts)):
        windows = [tokens[at : at + args.window] for at in range(0, len(tokens) - 1, args.window)][: args.windows]
        first = None
        for dtype in args.dtypes:
            scored = [loss for window in windows for loss in losses(args, dtype, window)]
            perplexity = float(numpy.exp(numpy.mean(scored)))
            first = first or perplexity
            row = {"text": name, "kv_dtype": dtype, "tokens": len(scored), "perplexity": perplexity}
            found.append(row | {"difference": perplexity / first - 1})
            print(f"{name}, {dtype}: {perplexity:.4f} of {len(scored)} tokens, {perplexity / first - 1:+.3%}", flush=True)
    if args.json:
        report = {
            "model": args.model,
            "device": args.device,
            "window": args.window,
            "texts": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in zip(args.texts, texts)},
            "commit": commit(args.djinn),
            "command": shown_command(),
            "machine": machine(),
            "rows": found,
        }
        where = f"{report['machine']['cpu']}, commit {report['commit']}: `{report['command']}`"
        head = ["text", "keys and values", "tokens", "perplexity", f"beside {args.dtypes[0]}"]
        rows = [
            [row["text"], row["kv_dtype"], str(row["tokens"]), f"{row['perplexity']:.4f}", f"{row['difference']:+.3%}"]
            for row in found
        ]
        results.write(args.json, report, f"{where}\n\n{results.table(2, head, rows)}")


if __name__ == "__main__":
    main()
