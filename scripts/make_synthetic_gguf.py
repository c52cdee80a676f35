#!/usr/bin/env python3
"""Writes a GGUF file of a known model's shapes with seeded random weights in llama.cpp's Q4_K_M mix.

    python3 scripts/make_synthetic_gguf.py llama-3.1-8b OUT.gguf [--seed 1] [--processes 16]
        [--change layers=2 --change vocab=512]

For measuring programs on one file without a download. Needs numpy. Matrices are in Q4_K, and in Q6_K or Q5_K where
llama.cpp's quantisation gives more bits (use_more_bits in llama-quant.cpp); norms are f32. Blocks are random bytes, with
scales that give elements a mean of about 0 and a standard deviation of 0.02, or of 1.25 / sqrt(hidden) where that is more.
The file has no vocabulary, only its size (llama.cpp's no_vocab): programs take prompts as token ids. The same arguments give
the same bytes, with any number of processes and any numpy that keeps SFC64's stream.
"""

import argparse
import math
import multiprocessing
import os
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

# The keys that --change takes, and each shape's values.
KEYS = ("hidden", "intermediate", "layers", "heads", "kv_heads", "vocab", "context", "theta", "llama3_factor")
SHAPES = {
    "llama-3.1-8b": (4096, 14336, 32, 32, 8, 128256, 131072, 500000.0, 8.0),
    "llama-3-70b": (8192, 28672, 80, 64, 8, 128256, 8192, 500000.0, 0.0),
    "llama-2-70b": (8192, 28672, 80, 64, 8, 32000, 4096, 10000.0, 0.0),
    "tiny": (256, 512, 8, 4, 2, 512, 2048, 10000.0, 0.0),
}
ALIGNMENT = 32
BLOCK = 256  # elements of a block of any K format
PIECE = 1 << 15  # blocks that are made at a time
EPS = 1e-5
Q4_K_M = 15  # of llama.cpp's file types


@dataclass(frozen=True)
class Format:
    """How blocks of 256 elements lie in memory."""

    number: int  # ggml's
    dtype: np.dtype
    deviation: float  # of elements where d is 1 and dmin is `offset`
    offset: float  # makes their mean 0


def with_minimum(number, dtype, top):
    """Elements are d * scale * q - dmin * minimum, with 6 bits for scale and minimum, and q from 0 to `top`."""
    q, six = np.arange(top + 1.0), np.arange(64.0)
    offset = q.mean()
    variance = (six**2).mean() * ((q**2).mean() + offset**2) - 2 * (six.mean() * offset) ** 2
    return Format(number, np.dtype(dtype), math.sqrt(variance), offset)


def signed(number, dtype, bits):
    """Elements are d * scale * q, with 8 bits for scale and `bits` for q, both with signs."""
    squares = [(np.arange(-(2.0 ** (width - 1)), 2.0 ** (width - 1)) ** 2).mean() for width in (8, bits)]
    return Format(number, np.dtype(dtype), math.sqrt(squares[0] * squares[1]), 0.0)


Q4_K = with_minimum(12, [("d", "<f2"), ("dmin", "<f2"), ("rest", "u1", 12 + 128)], 15)
Q5_K = with_minimum(13, [("d", "<f2"), ("dmin", "<f2"), ("rest", "u1", 12 + 32 + 128)], 31)
Q6_K = signed(14, [("rest", "u1", 128 + 64 + 16), ("d", "<f2")], 6)
F32 = 0


def mix(shape, name, layer):
    """The format of a matrix by llama.cpp's rules for Q4_K_M."""
    layers = shape["layers"]
    more = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    if name == "output" or name in ("attn_v", "ffn_down") and more:
        return Q6_K
    # llama.cpp knows a 70B model by its layers: 8 heads share each value.
    return Q5_K if name == "attn_v" and layers == 80 else Q4_K


def tensors(shape):
    """Name, rows, columns and format in the file's order; vectors have one row and no format."""
    hidden, intermediate, vocab = shape["hidden"], shape["intermediate"], shape["vocab"]
    head = hidden // shape["heads"]
    yield "token_embd.weight", vocab, hidden, mix(shape, "token_embd", 0)
    if shape["llama3_factor"]:
        yield "rope_freqs.weight", 1, head // 2, None
    kv = shape["kv_heads"] * head
    parts = [("attn_q", hidden, hidden), ("attn_k", kv, hidden), ("attn_v", kv, hidden), ("attn_output", hidden, hidden),
             ("ffn_gate", intermediate, hidden), ("ffn_up", intermediate, hidden), ("ffn_down", hidden, intermediate)]
    for layer in range(shape["layers"]):
        for norm in ("attn_norm", "ffn_norm"):
            yield f"blk.{layer}.{norm}.weight", 1, hidden, None
        for name, rows, columns in parts:
            yield f"blk.{layer}.{name}.weight", rows, columns, mix(shape, name, layer)
    yield "output_norm.weight", 1, hidden, None
    yield "output.weight", vocab, hidden, mix(shape, "output", 0)


def size(rows, columns, form):
    return rows * columns // BLOCK * form.dtype.itemsize if form else rows * columns * 4


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def keys(shape, name, seed):
    """The metadata, encoded: a number of pairs, and their bytes."""
    string, u32, f32 = (lambda v: struct.pack("<I", 8) + text(v)), (lambda v: struct.pack("<II", 4, v)), (
        lambda v: struct.pack("<If", 6, v))
    pairs = {
        "general.architecture": string("llama"),
        "general.name": string(f"{name} with random weights, seed {seed}"),
        "general.file_type": u32(Q4_K_M),
        "general.quantization_version": u32(2),
        "general.alignment": u32(ALIGNMENT),
        "llama.block_count": u32(shape["layers"]),
        "llama.context_length": u32(shape["context"]),
        "llama.embedding_length": u32(shape["hidden"]),
        "llama.feed_forward_length": u32(shape["intermediate"]),
        "llama.attention.head_count": u32(shape["heads"]),
        "llama.attention.head_count_kv": u32(shape["kv_heads"]),
        "llama.attention.layer_norm_rms_epsilon": f32(EPS),
        "llama.rope.dimension_count": u32(shape["hidden"] // shape["heads"]),
        "llama.rope.freq_base": f32(shape["theta"]),
        "llama.vocab_size": u32(shape["vocab"]),
        "tokenizer.ggml.model": string("no_vocab"),
    }
    return len(pairs), b"".join(text(key) + value for key, value in pairs.items())


def header(shape, name, seed):
    """The bytes before the tensors' data, and each tensor's place in the file."""
    infos, places, at = b"", [], 0
    for tensor, rows, columns, form in tensors(shape):
        dims = [columns, rows] if form else [columns]
        infos += text(tensor) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, form.number if form else F32, at)
        places.append((tensor, rows, columns, form, at))
        at += -(-size(rows, columns, form) // ALIGNMENT) * ALIGNMENT
    count, pairs = keys(shape, name, seed)
    data = b"GGUF" + struct.pack("<IQQ", 3, len(places), count) + pairs + infos
    data += b"\0" * (-len(data) % ALIGNMENT)
    return data, [(tensor, rows, columns, form, len(data) + at) for tensor, rows, columns, form, at in places]


def divisors(shape):
    """By how much Llama 3.1 divides each frequency."""
    head = shape["hidden"] // shape["heads"]
    turns = 8192 / (2 * np.pi * shape["theta"] ** (np.arange(0, head, 2) / head))
    kept = np.clip((turns - 1) / (4 - 1), 0, 1)
    return 1 / (kept + (1 - kept) / shape["llama3_factor"])


def vector(shape, seed, index, tensor, columns):
    if tensor == "rope_freqs.weight":
        return divisors(shape).astype("<f4")
    dice = np.random.Generator(np.random.SFC64([seed, index]))
    return (1 + 0.05 * dice.standard_normal(columns)).astype("<f4")


def blocks(form, count, deviation, dice):
    """`count` blocks of random bytes, with one of four scales each."""
    words = dice.integers(0, 1 << 64, -(-count * form.dtype.itemsize // 8), dtype=np.uint64)
    out = words.view(np.uint8)[:count * form.dtype.itemsize].view(form.dtype)
    scale = deviation / form.deviation * np.array([0.75, 0.9, 1.05, 1.2])[dice.integers(0, 4, count, dtype=np.uint8)]
    out["d"] = scale
    if form.offset:
        out["dmin"] = scale * form.offset
    return out


def write_piece(job):
    """Some blocks of one matrix, at their place in the file."""
    path, form, seed, index, first, count, deviation, at = job
    dice = np.random.Generator(np.random.SFC64([seed, index, first]))
    data = memoryview(blocks(form, count, deviation, dice).view(np.uint8))
    file = os.open(path, os.O_WRONLY)
    try:
        done = 0
        while done < len(data):
            done += os.pwrite(file, data[done:], at + first * form.dtype.itemsize + done)
    finally:
        os.close(file)
    return len(data)


def jobs(path, shape, seed, places):
    deviation = max(0.02, 1.25 / math.sqrt(shape["hidden"]))
    for index, (_, rows, columns, form, at) in enumerate(places):
        if form:
            all_blocks = rows * columns // BLOCK
            for first in range(0, all_blocks, PIECE):
                yield path, form, seed, index, first, min(PIECE, all_blocks - first), deviation, at


def write(path, shape, name, seed, processes):
    """Writes the file; its bytes."""
    data, places = header(shape, name, seed)
    _, rows, columns, form, at = places[-1]
    total = at + size(rows, columns, form)
    with open(path, "wb") as file:
        file.truncate(total)
        file.write(data)
        for index, (tensor, _, columns, form, at) in enumerate(places):
            if form is None:
                file.seek(at)
                file.write(vector(shape, seed, index, tensor, columns).tobytes())
    with multiprocessing.Pool(processes) as pool:
        for _ in pool.imap_unordered(write_piece, jobs(str(path), shape, seed, places), chunksize=4):
            pass
    return total


def shape_of(name, changes):
    shape = dict(zip(KEYS, SHAPES[name]))
    for change in changes:
        key, _, value = change.partition("=")
        if key not in shape:
            sys.exit(f"--change {change}: the keys are {', '.join(KEYS)}")
        try:
            shape[key] = type(shape[key])(value)
        except ValueError:
            sys.exit(f"--change {change}: a number is expected")
    for key, value in shape.items():
        if value <= 0 and key != "llama3_factor" or value < 0:
            sys.exit(f"{key} is {value}, which is too small")
    for key, unit in (("hidden", BLOCK), ("intermediate", BLOCK), ("hidden", 2 * shape["heads"])):
        if shape[key] % unit:
            sys.exit(f"{key} is {shape[key]}, which is no multiple of {unit}")
    return shape


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--change", action="append", default=[], metavar="KEY=NUMBER", help=", ".join(KEYS))
    arguments = parser.parse_args()
    if arguments.seed < 0 or arguments.processes < 1:
        parser.error("--seed is 0 or more, --processes 1 or more")
    shape = shape_of(arguments.shape, arguments.change)
    began = time.perf_counter()
    try:
        total = write(arguments.out, shape, arguments.shape, arguments.seed, arguments.processes)
    except OSError as error:
        sys.exit(f"{arguments.out}: {error.strerror}")
    seconds = time.perf_counter() - began
    print(f"{arguments.out.name}: {total} bytes in {seconds:.1f} s, {total / seconds / 1e9:.2f} GB/s")


if __name__ == "__main__":
    main()
