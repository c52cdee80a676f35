#!/usr/bin/env python3
"""What int8 keys and values lose where a few channels of the keys are large: a simulation of one head of attention.

    python3 scripts/int8_keys.py [--json results/int8-keys.json]

Numbers are normal, with a fixed seed; some channels of all keys are shifted, as a bias does. Keys and values have one scale for
each token, the greatest size divided by 127. Errors are those of attention's output, relative to its norm, beside f16's.
Needs Python 3.9 and numpy.
"""

import argparse
from pathlib import Path

import numpy
import results
from bench_cpu import shown_command

DIM, TOKENS, QUERIES, SHIFTED = 128, 1024, 64, 2
SHIFTS = [0, 5, 10, 20, 50, 100, 200]


def int8(x):
    scale = numpy.abs(x).max(-1, keepdims=True) / 127
    return numpy.round(x / scale) * scale


def f16(x):
    return x.astype(numpy.float16).astype(numpy.float64)


def attention(queries, keys, values):
    scores = queries @ keys.T / DIM**0.5
    weights = numpy.exp(scores - scores.max(-1, keepdims=True))
    return weights @ values / weights.sum(-1, keepdims=True)


def errors(random, shift):
    """Relative errors of int8 and f16."""
    keys, values = random.standard_normal((2, TOKENS, DIM))
    queries = random.standard_normal((QUERIES, DIM)) * 1.5
    keys[:, random.choice(DIM, SHIFTED, replace=False)] += shift * random.choice([-1, 1], SHIFTED)
    exact = attention(queries, keys, values)
    wrong = [attention(queries, kept(keys), kept(values)) - exact for kept in (int8, f16)]
    return [float(numpy.linalg.norm(x) / numpy.linalg.norm(exact)) for x in wrong]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    random = numpy.random.default_rng(0)
    rows = [dict(zip(("shift", "int8", "f16"), [shift, *errors(random, shift)])) for shift in SHIFTS]
    head = ["shift, standard deviations", "error of int8", "of f16"]
    table = results.table(0, head, [[row["shift"], f"{row['int8']:.2%}", f"{row['f16']:.2%}"] for row in rows])
    print(table)
    if args.json:
        sizes = {"dim": DIM, "tokens": TOKENS, "queries": QUERIES, "shifted_channels": SHIFTED}
        results.write(args.json, sizes | {"command": shown_command(), "rows": rows}, f"`{shown_command()}`\n\n{table}")


if __name__ == "__main__":
    main()
