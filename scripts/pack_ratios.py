#!/usr/bin/env python3
"""Packs matrices of several kinds with `djinn pack`, unpacks and compares them, and tells how small they become.

    python3 scripts/pack_ratios.py --djinn target/release/djinn [--smollm2 DIR] [--json results/pack-ratios.json]

Needs numpy. The kinds are drawn with a fixed seed: a normal distribution and one with heavy tails, in bf16 and in f16,
f16 that was bf16, and a normal distribution with a tenth of zeros. DIR is the folder `hf-bf16` that
`scripts/make_smollm2.py` writes; its values were decoded from Q4_1, so they lie on grids of 4 and 8 bits, and are no
example of a checkpoint that was trained in bf16.
"""

import argparse
import datetime
import json
import os
import platform
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import results

ROWS, COLUMNS, SEED = 4096, 4096, 18
SMOLLM2 = "SmolLM2-135M-Instruct in bf16, from Q4_1: on grids of 4 and 8 bits"


def bf16(values):
    """The bits of the nearest bf16, ties to even."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def kinds():
    """Name, safetensors type and bits of each kind."""
    random = np.random.default_rng(SEED)
    normal = random.standard_normal((ROWS, COLUMNS), np.float32) * np.float32(0.02)
    tails = (random.standard_t(4, (ROWS, COLUMNS)) * 0.02).astype(np.float32)
    rounded = (bf16(normal).astype(np.uint32) << 16).view(np.float32)
    sparse = np.where(random.random((ROWS, COLUMNS)) < 0.1, np.float32(0), normal)
    yield "normal, bf16", "BF16", bf16(normal)
    yield "Student's t with 4 degrees of freedom, bf16", "BF16", bf16(tails)
    yield "normal, a tenth zero, bf16", "BF16", bf16(sparse)
    yield "normal, bf16 converted to f16", "F16", rounded.astype(np.float16).view(np.uint16)
    yield "normal, f16", "F16", normal.astype(np.float16).view(np.uint16)


def write(folder, dtype, bits):
    header = json.dumps({"w": {"dtype": dtype, "shape": list(bits.shape), "data_offsets": [0, bits.nbytes]}}).encode()
    header += b" " * (-len(header) % 8)
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bits.tobytes())


def measure(djinn, name, folder, work):
    """Packs and unpacks a folder."""
    packed, back = work / "packed", work / "back"
    command = [djinn, "pack", folder, "-o", packed, "--json", "-q"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    subprocess.run([djinn, "unpack", packed, "-o", back, "-q"], check=True, capture_output=True)
    same = (back / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    original, lossless = report["original_bytes"], report["lossless_bytes"]
    return {
        "weights": name,
        "original_bytes": original,
        "packed_bytes": report["packed_bytes"],
        "ratio": round(report["packed_bytes"] / original, 4),
        "share_in_12_bits": round(lossless / original, 4),
        "equal": same,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--djinn", type=Path, required=True)
    parser.add_argument("--smollm2", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    djinn = args.djinn.resolve()
    rows = []
    for name, dtype, bits in kinds():
        with tempfile.TemporaryDirectory() as work:
            write(Path(work) / "plain", dtype, bits)
            rows.append(measure(djinn, name, Path(work) / "plain", Path(work)))
    if args.smollm2:
        with tempfile.TemporaryDirectory() as work:
            rows.append(measure(djinn, SMOLLM2, args.smollm2, Path(work)))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    result = {
        "command": "scripts/pack_ratios.py" + (" --smollm2 hf-bf16" if args.smollm2 else ""),
        "date": datetime.date.today().isoformat(),
        "commit": commit,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "matrix": [ROWS, COLUMNS],
        "seed": SEED,
        "cases": rows,
    }
    cells = [[row["weights"], f"{row['ratio']:.4f}", f"{row['share_in_12_bits']:.2f}", "yes" if row["equal"] else "NO"]
             for row in rows]
    report = (f"{result['machine']}, {result['date']}, commit {commit}: `{result['command']}`. Bytes packed of bytes as "
              f"safetensors; a plane of 12 bits alone would be 0.75. No checkpoint that was trained in bf16 was at hand."
              "\n\n" + results.table(1, ["weights", "ratio", "share in 12 bits", "unpacked equal"], cells))
    print(report)
    if args.json:
        results.write(args.json, result, report)
    sys.exit(0 if all(row["equal"] for row in rows) else 1)


if __name__ == "__main__":
    main()
