#!/usr/bin/env python3
"""Structured output against Python's `jsonschema`: 200 schemas, answers sampled at random, over HTTP.

    pip install jsonschema==4.26.0
    python3 scripts/structured.py --djinn target/release/djinn --json results/structured.json [--model smollm2] [--seed 1]

Every answer that ends by itself must be valid, and 95 % must end within 512 tokens. One that was cut short is asked for
again with the same seed and more tokens: it must begin with the same text and end in a valid value. Then the time of a
token with a schema is compared with that of one without, in turns.
"""

import argparse
import concurrent.futures
import http.client
import json
import random
import statistics
import sys
import time
from pathlib import Path

import jsonschema

import results
from served import Served

MOST_TOKENS, MORE_TOKENS = 512, 1600
SHARE_THAT_ENDS, MOST_RATIO = 0.95, 1.1
WORDS = ["name", "city", "count", "price", "kind", "tags", "items", "owner", "active", "code", "note", "size"]
PATTERNS = ["^[a-z]{3,8}$", "^[A-Z]{2}-[0-9]{4}$", "^#[0-9a-f]{6}$", "^(yes|no|maybe)$", "^[0-9]{3}(-[0-9]{4})?$"]


def text_schema(rng):
    schema = {"type": "string", "maxLength": rng.randint(4, 12)}
    if rng.random() < 0.3:
        schema["minLength"] = rng.randint(1, 4)
    return schema


def number_schema(rng):
    schema = {"type": rng.choice(["integer", "number"]), "minimum": rng.randint(-50, 0)}
    schema[rng.choice(["maximum", "exclusiveMaximum"])] = rng.randint(1, 5000)
    return schema


def array_schema(rng, depth, defs):
    least = rng.randint(0, 2)
    return {"type": "array", "items": schema_of(rng, depth - 1, defs), "minItems": least,
            "maxItems": least + rng.randint(1, 3)}


def object_schema(rng, depth, defs):
    names = rng.sample(WORDS, rng.randint(1, 4))
    schema = {"type": "object", "properties": {name: schema_of(rng, depth - 1, defs) for name in names},
              "required": [name for name in names if rng.random() < 0.7], "additionalProperties": False}
    if rng.random() < 0.3:
        schema["title"] = "Record"
    return schema


def reference(rng, depth, defs):
    name = f"part{len(defs)}"
    defs[name] = {}  # Its place, so that parts within it have other names.
    defs[name] = object_schema(rng, depth - 1, defs)
    return {"$ref": f"#/$defs/{name}"}


def schema_of(rng, depth, defs):
    leaves = [
        text_schema, number_schema, lambda rng: {"type": "boolean"},
        lambda rng: {"enum": rng.sample(["red", "green", "blue", 1, 2.5, None, True], rng.randint(2, 5))},
        lambda rng: {"type": "string", "pattern": rng.choice(PATTERNS)},
        lambda rng: {"const": rng.choice(["fixed", 7, None])},
        lambda rng: {"type": "string", "format": rng.choice(["date", "uuid", "ipv4"])},
    ]
    if depth <= 0 or rng.random() < 0.4:
        return rng.choice(leaves)(rng)
    inner = [
        array_schema, object_schema, object_schema, reference,
        lambda rng, depth, defs: {"anyOf": [schema_of(rng, depth - 1, defs) for _ in range(2)]},
    ]
    return rng.choice(inner)(rng, depth, defs)


def root_schema(rng):
    """A schema whose root is an object, as OpenAI's API has it, or an array."""
    defs = {}
    schema = (array_schema if rng.random() < 0.15 else object_schema)(rng, 3, defs)
    return schema | ({"$defs": defs} if defs else {})


class Server(Served):
    def chat(self, **fields):
        messages = [{"role": "user", "content": "Make up a short example, as JSON."}]
        body = {"model": "model", "messages": messages, "temperature": 1, "top_p": 1, "top_k": 0} | fields
        status, answer = self.ask("POST", "/v1/chat/completions", body, timeout=900)
        if status != 200:
            raise RuntimeError(f"{status}: {answer[:300]}")
        return json.loads(answer)

    def seconds_of_a_token(self, fields):
        """By the server's own events: from the first to the last."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=900)
        messages = [{"role": "user", "content": "Tell me of ten cities."}]
        body = {"model": "model", "messages": messages, "temperature": 1, "stream": True, "ignore_eos": True} | fields
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        times = [time.perf_counter() for line in connection.getresponse() if line.startswith(b"data: {")]
        # The first chunk names the role.
        return (times[-1] - times[1]) / (len(times) - 2)


def is_valid(text, schema):
    # Dates are not checked: a grammar knows no calendar, and Python no year 0000, which RFC 3339 has.
    checker = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker(["uuid", "ipv4"]))
    try:
        return checker.is_valid(json.loads(text))
    except json.JSONDecodeError:
        return False


def sample(server, number, schema):
    form = {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}
    fields = {"response_format": form, "seed": number}
    answer = server.chat(max_tokens=MOST_TOKENS, **fields)
    choice, tokens = answer["choices"][0], answer["usage"]["completion_tokens"]
    text, ended = choice["message"]["content"], choice["finish_reason"] == "stop"
    if not ended:
        # More tokens of the same seed: what was cut short must be their beginning.
        longer = server.chat(max_tokens=MORE_TOKENS, **fields)["choices"][0]
        whole, finished = longer["message"]["content"], longer["finish_reason"] == "stop"
        right = whole.startswith(text) and (is_valid(whole, schema) or not finished)
    else:
        whole, finished, right = text, True, is_valid(text, schema)
    found = {"ended": ended, "finished": finished, "tokens": tokens, "right": right}
    print(f"schema {number}: {found}", file=sys.stderr, flush=True)
    return found if right else found | {"schema": schema, "text": text, "whole": whole}


def cost(server, pairs):
    """Seconds of a token without and with a schema, in turns."""
    item = {"type": "object", "properties": {"name": {"type": "string"}, "people": {"type": "integer"},
                                             "tags": {"type": "array", "items": {"enum": ["old", "new", "port"]}}},
            "required": ["name", "people", "tags"], "additionalProperties": False}
    schema = {"type": "array", "items": item, "minItems": 40}
    form = {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}
    free, bound = [], []
    for seed in range(pairs):
        free.append(server.seconds_of_a_token({"seed": seed, "max_tokens": 96}))
        bound.append(server.seconds_of_a_token({"seed": seed, "max_tokens": 96, "response_format": form}))
    return {"pairs": pairs, "free_ms": 1e3 * statistics.median(free), "constrained_ms": 1e3 * statistics.median(bound),
            "ratio": statistics.median(b / f for f, b in zip(free, bound))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--djinn", default="target/release/djinn")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--schemas", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    schemas = [root_schema(rng) for _ in range(args.schemas)]
    for schema in schemas:
        jsonschema.Draft202012Validator.check_schema(schema)
    with Server(args.djinn, "--ctx=2048", model=args.model, name="model", device="auto", patience=120) as server:
        facts = server.facts()
        began = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            found = list(pool.map(lambda job: sample(server, *job), enumerate(schemas)))
        seconds = time.monotonic() - began
        prices = cost(server, args.pairs) if args.pairs else None
    ended = [one for one in found if one["ended"]]
    cut = [one for one in found if not one["ended"]]
    result = {
        "command": f"scripts/structured.py --model {args.model} --schemas {args.schemas} --seed {args.seed}",
        **facts,
        "seconds": round(seconds),
        "schemas": len(found),
        "ended": len(ended),
        "ended_and_valid": sum(one["right"] for one in ended),
        "cut_short": len(cut),
        "cut_short_and_valid_later": sum(one["finished"] and one["right"] for one in cut),
        "tokens": sum(one["tokens"] for one in found),
        "most_tokens": max(one["tokens"] for one in ended),
        "cost": prices,
        "wrong": [one for one in found if not one["right"]],
    }
    good = not result["wrong"] and len(ended) >= SHARE_THAT_ENDS * len(found)
    rows = [("schemas", len(found)), ("ended by themselves within 512 tokens", len(ended)),
            ("of these valid", result["ended_and_valid"]), ("cut short", len(cut)),
            ("of these valid with more tokens", result["cut_short_and_valid_later"])]
    if prices:
        rows += [("ms per token without a schema", f"{prices['free_ms']:.1f}"),
                 ("ms per token with one", f"{prices['constrained_ms']:.1f}"),
                 ("ratio, median of pairs", f"{prices['ratio']:.3f}")]
        good &= prices["ratio"] <= MOST_RATIO
    report = (f"Answers of {args.model} to schemas made at random, sampled at temperature 1, read by Python's "
              f"`jsonschema`; {facts['version']}.\n\n" + results.table(1, ["", ""], rows))
    if args.json:
        results.write(args.json, result, report)
    print(report)
    for one in result["wrong"]:
        print(json.dumps(one))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
