#!/usr/bin/env python3
"""How near Djinn is to llama.cpp on a quantised file, with 8-bit and float activations, and llama.cpp to itself.

    python3 scripts/int8_quality.py --djinn target/release/djinn --model SmolLM2-135M-Instruct.Q4_1.gguf --json OUT.json
        [--peer NAME DIR] [--threads 2] [--tokens 64] [--window 128] [--windows 8] [--most 1.25]

Needs llama-cpp-python and numpy. llama.cpp rounds activations to 8 bits, as it does by default; its KV cache is f32 and
its attention is without flash attention, as Djinn's, so that the products are what differs. Djinn's KV cache is f32, its
default on the CPU. All of these are compared with this llama.cpp, which takes one token at a time:

    int8, float       Djinn with --activations int8 and float
    one batch         the same build of llama.cpp, prompt and answer in one batch
    f16 KV, flash     the same build, with the cache and the attention that are llama.cpp's defaults
    NAME              another build of llama.cpp: DIR has its shared object, as LLAMA_CPP_LIB_PATH would say

Rounding makes such comparisons sharp: sums in another order differ by 1e-7, which now and then moves an activation to the
next of its 255 integers, and the layers after it see the whole step. So what llama.cpp's own variants differ by says what
can be expected.

    greedy       llama.cpp's greedy text after each prompt. The others give their logits before each of its tokens: how
                 many tokens come before the first that differs, how many are the same of all, and the spread of the
                 differences in logits (the standard deviation over the vocabulary, mean over the tokens). Where the
                 first differs, two gaps: by how much llama.cpp's choice won over the other's, and by how much the
                 other's won. After the sure prompts every choice of llama.cpp wins by 0.25 logits or more
    perplexity   over windows of a fixed text (this repository's README and ARCHITECTURE), each read from its start;
                 the second half of a window counts

Exits with 1 where int8 does not continue a sure prompt as llama.cpp, where its differences spread more than --most times
as far as those of the variant of llama.cpp that spread furthest, or where its perplexity is further than 0.5 % from
llama.cpp's.
"""

import argparse
import datetime
import json
import math
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import results
from bench_cpu import commit, library_versions, machine, shown_command

PROMPTS = [
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,",
    "100, 99, 98, 97, 96, 95, 94, 93, 92, 91, 90,",
    "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, Monday, Tuesday, Wednesday, Thursday,",
    "January, February, March, April, May, June, July, August, September, October, November, December, "
    "January, February, March, April,",
    "one, two, one, two, one, two, one, two, one, two,",
    "Chapter 1\nChapter 2\nChapter 3\nChapter 4\nChapter 5\nChapter 6\n",
    "<p>one</p>\n<p>one</p>\n<p>one</p>\n<p>one</p>\n<p>one</p>\n",
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "Water boils at 100 degrees Celsius because",
    "A list of the planets of the solar system:\n1.",
    "def fibonacci(n):\n    if n <= 1:\n        return n\n    return fibonacci(n - 1) +",
    "Permission is hereby granted, free of charge, to any person obtaining a copy of this software",
    "The recipe needs two eggs, a cup of flour and",
    "In 1969, the first human to walk on the Moon",
]
# Logits: where llama.cpp's choices win by as much all the way, a prompt is sure.
SURE_GAP = 0.25
MOST_DIFFERENCE = 0.005


def of_djinn(arguments, activations, prompt, tokens):
    """Logits before each of the tokens, which come after the prompt."""
    import numpy as np

    ids = ",".join(map(str, prompt + tokens[:-1]))
    flags = ["--activations", activations, "--device", "cpu", "--threads", str(arguments.threads), "--json"]
    command = [str(arguments.djinn), "logits", str(arguments.model), "--tokens", ids, *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"djinn logits ended with status {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    return np.array(json.loads(done.stdout)["logits"][-len(tokens) :], dtype=np.float32)


def token_by_token(model, prompt, tokens):
    """The same of llama.cpp."""
    import numpy as np

    model.reset()
    rows = [model.decode(prompt).copy()]
    rows += [model.decode([token]).copy() for token in tokens[:-1]]
    return np.stack(rows)


def in_one_batch(model, prompt, tokens):
    model.reset()
    return model.decode_all(prompt + tokens[:-1], len(prompt) - 1)


def of_build(path, arguments, how, exact, cases):
    """llama.cpp's logits for pairs of a prompt and tokens, from the build in `path`: in a process of its own."""
    context = multiprocessing.get_context("spawn")
    before = os.environ.get("LLAMA_CPP_LIB_PATH")
    if path:
        os.environ["LLAMA_CPP_LIB_PATH"] = str(path)
    try:
        with context.Pool(1) as pool:
            return pool.apply(follow, (arguments, how, exact, cases))
    finally:
        if path:
            os.environ.pop("LLAMA_CPP_LIB_PATH")
            if before:
                os.environ["LLAMA_CPP_LIB_PATH"] = before


def follow(arguments, how, exact, cases):
    from oracle_llama_cpp import Model

    model = Model(arguments.model, arguments.threads, exact=exact, context=1024)
    return [how(model, prompt, tokens) for prompt, tokens in cases]


def llama_greedy(model, prompt, count):
    """Tokens, and the logits before each."""
    import numpy as np

    model.reset()
    rows = [model.decode(prompt).copy()]
    while len(rows) < count:
        rows.append(model.decode([int(rows[-1].argmax())]).copy())
    return [int(row.argmax()) for row in rows], np.stack(rows)


def compare(theirs, ours):
    """What another's logits say of a prompt, beside llama.cpp's."""
    best, own = theirs.argmax(-1), ours.argmax(-1)
    different = (best != own).nonzero()[0]
    first = int(different[0]) if len(different) else len(best)
    gaps = None
    if len(different):
        gaps = [
            float(theirs[first][best[first]] - theirs[first][own[first]]),
            float(ours[first][own[first]] - ours[first][best[first]]),
        ]
    spread = float((ours - theirs).std(-1).mean())
    return {"equal": first, "gaps": gaps, "in_common": len(best) - len(different), "spread": spread}


def negative_log(logits, token):
    """Of the token's probability; each a list of floats or an array."""
    import numpy as np

    row = np.asarray(logits, dtype=np.float64)
    top = row.max()
    return float(top + math.log(np.exp(row - top).sum()) - row[token])


def windows(arguments, tokens):
    """The first half of each window, with one token more, and the others."""
    size = arguments.window
    found = [tokens[i : i + size] for i in range(0, len(tokens) - size + 1, size)][: arguments.windows]
    if len(found) < arguments.windows:
        sys.exit(f"the text has {len(tokens)} tokens: fewer than {arguments.windows} windows of {size}")
    return [(window[: size // 2 + 1], window[size // 2 + 1 :]) for window in found]


def perplexity(cases, all_rows):
    """`all_rows` has the logits before the tokens of each window."""
    losses = [
        negative_log(row, token)
        for (_, tokens), rows in zip(cases, all_rows, strict=True)
        for row, token in zip(rows, tokens, strict=True)
    ]
    return math.exp(sum(losses) / len(losses))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--djinn", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--peer", nargs=2, action="append", default=[], help="another build of llama.cpp")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--most", type=float, default=1.25)
    arguments = parser.parse_args()
    from oracle_llama_cpp import Model

    model = Model(arguments.model, arguments.threads, exact=True, context=1024)
    prompts = [model.tokenize(text) for text in PROMPTS]
    answers = [llama_greedy(model, prompt, arguments.tokens) for prompt in prompts]
    root = Path(__file__).resolve().parent.parent
    text = "".join((root / name).read_text() for name in ("README.md", "ARCHITECTURE.md"))
    read = windows(arguments, model.tokenize(text))
    found = {"llama.cpp": perplexity(read, [token_by_token(model, *case) for case in read])}

    cases = [(prompt, tokens) for prompt, (tokens, _) in zip(prompts, answers, strict=True)]
    greedy = []
    for text, (tokens, rows) in zip(PROMPTS, answers, strict=True):
        ordered = rows.copy()
        ordered.sort(-1)
        least = float((ordered[:, -1] - ordered[:, -2]).min())
        written = model.detokenize(tokens)
        greedy.append({"prompt": text, "text": written, "least_gap": least, "sure": least >= SURE_GAP})
    variants = {"one batch": (None, in_one_batch, True), "f16 KV, flash": (None, token_by_token, False)}
    variants |= {name: (path, token_by_token, True) for name, path in arguments.peer}
    names = ["int8", "float", *variants]
    summary = {}
    for name in names:
        if name in variants:
            path, how, exact = variants[name]
            every = of_build(path, arguments, how, exact, cases + read)
        else:
            every = [of_djinn(arguments, name, *case) for case in cases + read]
        for entry, (_, rows), ours in zip(greedy, answers, every, strict=False):
            entry[name] = compare(rows, ours)
        found[name] = perplexity(read, every[len(cases) :])
        all_of = [entry[name] for entry in greedy]
        summary[name] = {
            "prompts_equal": sum(one["equal"] == arguments.tokens for one in all_of),
            "in_common": sum(one["in_common"] for one in all_of) / (len(all_of) * arguments.tokens),
            "spread": sum(one["spread"] for one in all_of) / len(all_of),
            "perplexity": found[name],
        }
        print(f"{name}: {summary[name]}", flush=True)
    difference = found["int8"] / found["llama.cpp"] - 1
    print(f"perplexity: int8 differs from llama.cpp by {difference:+.3%}")
    report = {"settings": {key: getattr(arguments, key) for key in ("threads", "tokens", "window", "windows")}}
    report |= {"greedy": greedy, "summary": summary, "perplexity": found, "perplexity_difference": difference}
    report["perplexity_tokens"] = sum(len(tokens) for _, tokens in read)
    report |= {"commit": commit(arguments.djinn), "command": shown_command(), "machine": machine()}
    report["date"] = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    report["versions"] = library_versions()
    results.write(arguments.json, report, as_text(report, names))
    limit = arguments.most * max(summary[name]["spread"] for name in variants)
    good = summary["int8"]["spread"] <= limit and abs(difference) <= MOST_DIFFERENCE
    good &= all(entry["int8"]["equal"] == arguments.tokens for entry in greedy if entry["sure"])
    sys.exit(0 if good else 1)


def as_text(report, names):
    where = f"{report['machine']['cpu']}, {report['date']}, commit {report['commit']}: `{report['command']}`"
    tokens = report["settings"]["tokens"]

    def cell(one):
        return str(one["equal"]) if one["gaps"] is None else "{} ({:.3f}, {:.3f})".format(one["equal"], *one["gaps"])

    rows = [
        [repr(e["prompt"]), "yes" if e["sure"] else "no", f"{e['least_gap']:.3f}", *(cell(e[name]) for name in names)]
        for e in report["greedy"]
    ]
    head = [f"of {tokens} greedy tokens, those before the first that differs (gaps)", "sure", "least gap", *names]
    text = f"{where}\n\n{results.table(2, head, rows)}\n"
    numbers = [
        [
            name,
            f"{one['prompts_equal']} of {len(report['greedy'])}",
            f"{one['in_common']:.1%}",
            f"{one['spread']:.3f}",
            f"{one['perplexity']:.4f}",
        ]
        for name, one in report["summary"].items()
    ]
    numbers.insert(0, ["llama.cpp", "", "", "", f"{report['perplexity']['llama.cpp']:.4f}"])
    return text + results.table(
        1, ["", "all tokens equal", "tokens in common", "spread of differences", "perplexity"], numbers
    )


if __name__ == "__main__":
    main()
