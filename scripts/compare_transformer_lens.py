#!/usr/bin/env python3
"""Compares what `djinn serve` captures at its hook points with what TransformerLens caches under the same names.

    python3 scripts/compare_transformer_lens.py --djinn target/debug/djinn [--json results/hooks-transformer-lens.json]

Needs transformer-lens 4.3.0 with torch, and the packages of clients/python. Every tiny checkpoint of
djinn-models/tests/checkpoints is served and loaded, in float32 from the stored weights; all tokens of the prompt of nine
tokens in its expected.json are compared at each name that both have, as ‖found − cached‖ / ‖cached‖ of each token. A
checkpoint that TransformerLens does not load, or whose logits are not transformers' own there, is told with its reason."""

import argparse
import importlib.metadata
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled"}
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "clients/python/src"))

import numpy as np
import torch
import transformers
from djinn import Djinn
from make_checkpoints import load_float32, logits_of
from transformer_lens.model_bridge import TransformerBridge

import results
import served

CHECKPOINTS = served.ROOT / "djinn-models/tests/checkpoints"
TOLERANCE = 1e-5


def a_tokenizer(folder):
    """TransformerLens wants one, though it gets token ids, and loads it again from where it lies."""
    path = Path(folder) / "tokenizer.json"
    path.write_text(json.dumps(served.tokenizer()))
    marks = dict(bos_token="a", eos_token="b", pad_token="b")
    transformers.PreTrainedTokenizerFast(tokenizer_file=str(path), **marks).save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


def cached(place, prompt, tokenizer):
    """By name: f32 [tokens, width]."""
    # Eager attention of transformers 5 adds Falcon's ALiBi twice.
    alibi = json.loads((place / "config.json").read_text()).get("alibi")
    model = load_float32(place, "sdpa" if alibi else "eager")
    wanted = logits_of(model, prompt)
    model = TransformerBridge.boot_transformers(str(place), dtype=torch.float32, hf_model=model, tokenizer=tokenizer)
    with torch.no_grad():
        logits, cache = model.run_with_cache(torch.tensor([prompt]))
    distance = float((logits[0] - wanted).norm() / wanted.norm())
    if distance > TOLERANCE:
        raise RuntimeError(f"its logits are {distance:.1e} from transformers'")
    values = {}
    for name, value in cache.items():
        value = value[0].float().numpy()
        # Queries and keys after their rotation may be [heads, tokens, head size].
        if value.ndim == 3 and value.shape[0] != len(prompt):
            value = value.swapaxes(0, 1)
        if value.ndim >= 2:
            values[name] = value.reshape(len(value), -1)
    return values


def captured(djinn, place, prompt):
    """By name, aliases included: f32 [tokens, width]."""
    with served.Served(djinn, model=place) as server, Djinn(f"http://127.0.0.1:{server.port}") as client:
        values = {}
        # Hooks after the choice of rows have values for the last token alone.
        for hook in client.hooks():
            session = client.session()
            session.breakpoint(hook.name, action="capture", tokens="prompt")
            session.generate(prompt, max_tokens=1)
            (read,) = session.captures().values.values()
            session.delete()
            values |= dict.fromkeys([hook.name, *hook.aliases], (hook.name, read))
        return values


def compare(djinn, place, tokenizer):
    prompt = json.loads((place / "expected.json").read_text())["cases"][1]["prompt"]
    try:
        theirs = cached(place, prompt, tokenizer)
    except Exception as error:  # what TransformerLens raises is told
        return {"checkpoint": place.name, "not_compared": f"{type(error).__name__}: {error}".splitlines()[0]}
    ours = captured(djinn, place, prompt)
    names, points, wrong, worst = 0, set(), [], 0.0
    for name, (point, values) in ours.items():
        if name not in theirs:
            continue
        wanted = theirs[name][-len(values):]
        if wanted.shape != values.shape:
            wrong.append({"name": name, "shapes": [values.shape, wanted.shape]})
            continue
        norms = np.linalg.norm(wanted, axis=1)
        distance = float((np.linalg.norm(values - wanted, axis=1) / norms).max())
        names, worst = names + 1, max(worst, distance)
        points.add(point)
        if not distance <= TOLERANCE:
            wrong.append({"name": name, "distance": distance})
    alone = sorted({point for point, _ in ours.values()} - points)
    return {"checkpoint": place.name, "names": names, "hook_points": len(points), "largest_distance": worst,
            "differ": wrong, "not_in_transformer_lens": alone}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--djinn", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="*", help="these checkpoints instead of all")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = a_tokenizer(folder)
        for place in sorted(path for path in CHECKPOINTS.iterdir() if path.is_dir()):
            if not arguments.only or place.name in arguments.only:
                rows.append(compare(arguments.djinn, place, tokenizer))
                print(json.dumps(rows[-1]), flush=True)
    loaded = [row for row in rows if "names" in row]
    versions = {name: importlib.metadata.version(name) for name in ("transformer-lens", "transformers", "torch")}
    left_out = " ".join(f"{row['checkpoint']} is left out: {row['not_compared'].rstrip('.: ')}."
                        for row in rows if "not_compared" in row)
    differ = sum(len(row["differ"]) for row in loaded)
    cells = [[row["checkpoint"], row["hook_points"], row["names"], f"{row['largest_distance']:.1e}", len(row["differ"])]
             for row in loaded]
    head = ["checkpoint", "hook points", "names", "largest relative distance", "differ"]
    report = (
        f"Captures of `djinn serve` beside the cache of transformer-lens {versions['transformer-lens']} (transformers "
        f"{versions['transformers']}, torch {versions['torch']}), all tokens of nine, float32: a name differs whose "
        f"distance is over {TOLERANCE:g}. {left_out}\n\n"
        + results.table(1, head, cells))
    if arguments.json:
        facts = {"command": "scripts/compare_transformer_lens.py", **served.Served(arguments.djinn).facts()}
        results.write(arguments.json, {**facts, **versions, "tolerance": TOLERANCE, "checkpoints": rows}, report)
    print(report)
    if differ or not loaded:
        sys.exit(f"{differ} names differ")


if __name__ == "__main__":
    main()
