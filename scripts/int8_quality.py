#!/usr/bin/env python3
"""What --activations int8 changes: greedy text and perplexity of a quantised file, beside llama.cpp and float activations.

    python3 scripts/int8_quality.py --djinn target/release/djinn --model SmolLM2-135M-Instruct.Q4_1.gguf --json OUT.json
        [--threads 2] [--tokens 64] [--window 128] [--windows 8] [--near 0.15]

Needs llama-cpp-python and numpy. llama.cpp rounds activations to 8 bits, as it does by default; its KV cache is f32 and its
attention is without flash attention, as Djinn's, so that the products are what differs.

    greedy       for each prompt, how many leading tokens of Djinn's greedy text llama.cpp's has too; the gap is by how much
                 llama.cpp's choice won, in logits, where they part. In the sure prompts, which count and repeat, every
                 choice wins clearly. In the others two tokens are close somewhere: there two builds of llama.cpp, for AVX2
                 and for AVX-512, part as well (at gaps of up to 0.13)
    perplexity   over windows of a fixed text (this repository's README and ARCHITECTURE), each read from its start;
                 the second half of a window counts

Exits with 1 where int8's greedy text parts from llama.cpp's for a sure prompt, or for another at a gap above --near, or where
its perplexity is further than 0.5 % from llama.cpp's.
"""

import argparse
import datetime
import json
import math
import subprocess
import sys
from pathlib import Path

import results
from bench_cpu import commit, library_versions, machine, shown_command

SURE = [
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,",
    "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, Monday, Tuesday, Wednesday, Thursday,",
]
OPEN = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "Water boils at 100 degrees Celsius because",
    "A list of the planets of the solar system:\n1.",
]
MOST_DIFFERENCE = 0.005


def djinn(arguments, activations, *words):
    command = [str(arguments.djinn), *words, "--activations", activations, "--device", "cpu"]
    done = subprocess.run(
        [*command, "--threads", str(arguments.threads), "--json"], capture_output=True, text=True, timeout=600
    )
    if done.returncode != 0:
        sys.exit(f"djinn {words[0]} ended with status {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout)


def greedy(arguments, activations, prompt):
    ids = ",".join(map(str, prompt))
    flags = ["--prompt-tokens", ids, "--max-tokens", str(arguments.tokens), "--greedy", "--ignore-eos"]
    return djinn(arguments, activations, "run", str(arguments.model), *flags)["tokens"]


def llama_greedy(model, prompt, count):
    """Tokens, and by how much each one won."""
    import numpy as np

    model.reset()
    logits, tokens, gaps = model.decode(prompt), [], []
    for _ in range(count):
        second, best = np.partition(logits, -2)[-2:]
        tokens.append(int(logits.argmax()))
        gaps.append(float(best - second))
        logits = model.decode(tokens[-1:])
    return tokens, gaps


def negative_log(logits, token):
    """Of the token's probability; each a list of floats or an array."""
    import numpy as np

    row = np.asarray(logits, dtype=np.float64)
    top = row.max()
    return float(top + math.log(np.exp(row - top).sum()) - row[token])


def windows(arguments, tokens):
    size = arguments.window
    found = [tokens[i : i + size] for i in range(0, len(tokens) - size + 1, size)][: arguments.windows]
    if len(found) < arguments.windows:
        sys.exit(f"the text has {len(tokens)} tokens: fewer than {arguments.windows} windows of {size}")
    return found


def perplexity(all_windows, rows):
    """`rows` gives the logits of each position of a window."""
    losses = []
    for window in all_windows:
        logits = rows(window)
        losses += [negative_log(logits[i], window[i + 1]) for i in range(len(window) // 2, len(window) - 1)]
    return math.exp(sum(losses) / len(losses)), len(losses)


def llama_rows(model):
    def rows(window):
        model.reset()
        half = len(window) // 2
        out = [None] * half
        model.decode(window[:half])
        for token in window[half:]:
            out.append(model.decode([token]).copy())
        return out

    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--djinn", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--near", type=float, default=0.15, help="logits within which two tokens are one choice")
    arguments = parser.parse_args()
    from oracle_llama_cpp import Model

    model = Model(arguments.model, arguments.threads, exact=True, context=1024)
    report = {"settings": {key: getattr(arguments, key) for key in ("threads", "tokens", "window", "windows")}}
    report["greedy"], good = [], True
    for text in SURE + OPEN:
        prompt = model.tokenize(text)
        theirs, gaps = llama_greedy(model, prompt, arguments.tokens)
        entry = {"prompt": text, "text": model.detokenize(theirs), "tokens": theirs, "min_gap": min(gaps)}
        for activations in ("int8", "float"):
            ours = greedy(arguments, activations, prompt)
            equal = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), arguments.tokens)
            entry[activations] = {"equal": equal, "gap": gaps[equal] if equal < arguments.tokens else None}
        parted = entry["int8"]["gap"]
        good &= parted is None or text in OPEN and parted < arguments.near
        report["greedy"].append(entry)
        print(f"{text!r}: int8 {entry['int8']}, float {entry['float']} of {arguments.tokens}")
    root = Path(__file__).resolve().parent.parent
    tokens = model.tokenize("".join((root / name).read_text() for name in ("README.md", "ARCHITECTURE.md")))
    chosen = windows(arguments, tokens)
    found = {"llama.cpp": perplexity(chosen, llama_rows(model))[0]}
    for activations in ("int8", "float"):

        def rows(window, activations=activations):
            ids = ",".join(map(str, window))
            return djinn(arguments, activations, "logits", str(arguments.model), "--tokens", ids)["logits"]

        found[activations], report["perplexity_tokens"] = perplexity(chosen, rows)
    report["perplexity"] = found
    difference = found["int8"] / found["llama.cpp"] - 1
    report["perplexity_difference"] = difference
    print(f"perplexity {found}: int8 differs from llama.cpp by {difference:+.3%}")
    report |= {"commit": commit(arguments.djinn), "command": shown_command(), "machine": machine()}
    report["date"] = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    report["versions"] = library_versions()
    where = f"{report['machine']['cpu']}, {report['date']}, commit {report['commit']}: `{report['command']}`"
    rows = [[repr(e["prompt"]), e["int8"]["equal"], e["float"]["equal"]] for e in report["greedy"]]
    text = results.table(1, ["greedy tokens that llama.cpp has too", "int8", "float"], [[str(c) for c in r] for r in rows])
    numbers = [[name, f"{value:.4f}"] for name, value in found.items()]
    text = f"{where}\n\n{text}\n" + results.table(1, ["perplexity", ""], numbers)
    results.write(arguments.json, report, text)
    sys.exit(0 if good and abs(difference) <= MOST_DIFFERENCE else 1)


if __name__ == "__main__":
    main()
