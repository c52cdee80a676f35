#!/usr/bin/env python3
"""Writes a GGUF file of a known model's shapes with seeded random weights in llama.cpp's Q4_K_M mix.

    python3 scripts/make_synthetic_gguf.py llama-3.1-8b OUT.gguf [--seed 1] [--processes 16]
        [--change layers=2 --change vocab=512]

For measuring programs on one file without a download. Needs numpy. Matrices are in Q4_K, and in Q6_K, Q5_K or Q8_0 where
llama.cpp's quantisation gives more bits (llama_tensor_get_type in llama-quant.cpp); norms and routers are f32. Blocks are
random bytes, with scales that give elements a mean of about 0 and a standard deviation of 0.02, or of 1.25 / sqrt(hidden)
where that is more. The file has no vocabulary, only its size (llama.cpp's no_vocab): programs take prompts as token ids. The
same arguments give the same bytes, with any number of processes and any numpy that keeps SFC64's stream.
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

# The keys that --change takes, and each shape's values. `intermediate` is an expert's where there are any.
KEYS = ("hidden", "intermediate", "layers", "heads", "kv_heads", "head_dim", "vocab", "context", "theta", "llama3_factor",
        "experts", "experts_used")
SHAPES = {
    "llama-3.1-8b": (4096, 14336, 32, 32, 8, 128, 128256, 131072, 500000.0, 8.0, 0, 0),
    "llama-3-70b": (8192, 28672, 80, 64, 8, 128, 128256, 8192, 500000.0, 0.0, 0, 0),
    "llama-2-70b": (8192, 28672, 80, 64, 8, 128, 32000, 4096, 10000.0, 0.0, 0, 0),
    "mixtral-8x7b": (4096, 14336, 32, 32, 8, 128, 32000, 32768, 1e6, 0.0, 8, 2),
    "qwen3-30b-a3b": (2048, 768, 48, 32, 4, 128, 151936, 40960, 1e6, 0.0, 128, 8),
    "tiny": (256, 512, 8, 4, 2, 64, 512, 2048, 10000.0, 0.0, 0, 0),
    "tiny-mixtral": (256, 512, 8, 4, 2, 64, 512, 2048, 10000.0, 0.0, 8, 2),
    "tiny-qwen3-moe": (256, 512, 8, 4, 2, 128, 512, 2048, 10000.0, 0.0, 16, 4),
}
OPTIONAL = ("llama3_factor", "experts", "experts_used")
ALIGNMENT = 32
SUPER = 256  # elements of a block of any K format
PIECE = 1 << 23  # elements that are made at a time
EPS = 1e-5
Q4_K_M = 15  # of llama.cpp's file types


@dataclass(frozen=True)
class Format:
    """How blocks of `elements` lie in memory."""

    number: int  # ggml's
    elements: int
    dtype: np.dtype
    deviation: float  # of elements where d is 1 and dmin is `offset`
    offset: float  # makes their mean 0


def with_minimum(number, dtype, top):
    """Elements are d * scale * q - dmin * minimum, with 6 bits for scale and minimum, and q from 0 to `top`."""
    q, six = np.arange(top + 1.0), np.arange(64.0)
    offset = q.mean()
    variance = (six**2).mean() * ((q**2).mean() + offset**2) - 2 * (six.mean() * offset) ** 2
    return Format(number, SUPER, np.dtype(dtype), math.sqrt(variance), offset)


def signed(number, dtype, bits):
    """Elements are d * scale * q, with 8 bits for scale and `bits` for q, both with signs."""
    squares = [(np.arange(-(2.0 ** (width - 1)), 2.0 ** (width - 1)) ** 2).mean() for width in (8, bits)]
    return Format(number, SUPER, np.dtype(dtype), math.sqrt(squares[0] * squares[1]), 0.0)


Q4_K = with_minimum(12, [("d", "<f2"), ("dmin", "<f2"), ("rest", "u1", 12 + 128)], 15)
Q5_K = with_minimum(13, [("d", "<f2"), ("dmin", "<f2"), ("rest", "u1", 12 + 32 + 128)], 31)
Q6_K = signed(14, [("rest", "u1", 128 + 64 + 16), ("d", "<f2")], 6)
# Elements are d * q, with 8 bits for q.
Q8_0 = Format(8, 32, np.dtype([("d", "<f2"), ("rest", "u1", 32)]), math.sqrt((np.arange(-128.0, 128) ** 2).mean()), 0.0)
F32 = 0


ROUTER = "ffn_gate_inp"


def mix(shape, name, layer):
    """The format of a matrix by llama.cpp's rules for Q4_K_M."""
    layers, name = shape["layers"], name.removesuffix("_exps")
    # Mixtral's, where these are a small part of the file.
    if shape["experts"] == 8 and name in ("attn_k", "attn_v", "attn_output"):
        return Q5_K if name == "attn_output" else Q8_0
    more = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    if name == "output" or name in ("attn_v", "ffn_down") and more:
        return Q6_K
    # llama.cpp knows a 70B model by its layers: 8 heads share each value.
    return Q5_K if name == "attn_v" and layers == 80 else Q4_K


def tensors(shape):
    """Name, dimensions (ggml's order: the columns first) and format in the file's order; f32 tensors have no format."""
    hidden, intermediate, vocab, head = (shape[key] for key in ("hidden", "intermediate", "vocab", "head_dim"))
    yield "token_embd.weight", (hidden, vocab), mix(shape, "token_embd", 0)
    if shape["llama3_factor"]:
        yield "rope_freqs.weight", (head // 2,), None
    heads, kv = shape["heads"] * head, shape["kv_heads"] * head
    experts = (shape["experts"],) if shape["experts"] else ()
    suffix = "_exps" if experts else ""
    parts = [("attn_q", (hidden, heads)), ("attn_k", (hidden, kv)), ("attn_v", (hidden, kv)), ("attn_output", (heads, hidden)),
             (f"ffn_gate{suffix}", (hidden, intermediate, *experts)), (f"ffn_up{suffix}", (hidden, intermediate, *experts)),
             (f"ffn_down{suffix}", (intermediate, hidden, *experts))]
    for layer in range(shape["layers"]):
        for norm in ("attn_norm", "ffn_norm"):
            yield f"blk.{layer}.{norm}.weight", (hidden,), None
        if architecture(shape) == "qwen3moe":
            for norm in ("attn_q_norm", "attn_k_norm"):
                yield f"blk.{layer}.{norm}.weight", (head,), None
        if experts:
            yield f"blk.{layer}.{ROUTER}.weight", (hidden, *experts), None
        for name, dims in parts:
            yield f"blk.{layer}.{name}.weight", dims, mix(shape, name, layer)
    yield "output_norm.weight", (hidden,), None
    yield "output.weight", (hidden, vocab), mix(shape, "output", 0)


def architecture(shape):
    """Mixtral is llama.cpp's `llama` with experts."""
    return "qwen3moe" if shape["experts"] > 8 else "llama"


def size(dims, form):
    return math.prod(dims) // form.elements * form.dtype.itemsize if form else math.prod(dims) * 4


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def keys(shape, name, seed):
    """The metadata, encoded: a number of pairs, and their bytes."""
    string, u32, f32 = (lambda v: struct.pack("<I", 8) + text(v)), (lambda v: struct.pack("<II", 4, v)), (
        lambda v: struct.pack("<If", 6, v))
    arch = architecture(shape)
    pairs = {
        "general.architecture": string(arch),
        "general.name": string(f"{name} with random weights, seed {seed}"),
        "general.file_type": u32(Q4_K_M),
        "general.quantization_version": u32(2),
        "general.alignment": u32(ALIGNMENT),
        f"{arch}.block_count": u32(shape["layers"]),
        f"{arch}.context_length": u32(shape["context"]),
        f"{arch}.embedding_length": u32(shape["hidden"]),
        f"{arch}.feed_forward_length": u32(shape["intermediate"]),
        f"{arch}.attention.head_count": u32(shape["heads"]),
        f"{arch}.attention.head_count_kv": u32(shape["kv_heads"]),
        f"{arch}.attention.layer_norm_rms_epsilon": f32(EPS),
        f"{arch}.rope.dimension_count": u32(shape["head_dim"]),
        f"{arch}.rope.freq_base": f32(shape["theta"]),
        f"{arch}.vocab_size": u32(shape["vocab"]),
        "tokenizer.ggml.model": string("no_vocab"),
    }
    if shape["heads"] * shape["head_dim"] != shape["hidden"]:
        pairs |= {f"{arch}.attention.{part}_length": u32(shape["head_dim"]) for part in ("key", "value")}
    if shape["experts"]:
        pairs |= {
            f"{arch}.expert_count": u32(shape["experts"]),
            f"{arch}.expert_used_count": u32(shape["experts_used"]),
            f"{arch}.expert_feed_forward_length": u32(shape["intermediate"]),
        }
    return len(pairs), b"".join(text(key) + value for key, value in pairs.items())


def header(shape, name, seed):
    """The bytes before the tensors' data, and each tensor's place in the file."""
    infos, places, at = b"", [], 0
    for tensor, dims, form in tensors(shape):
        infos += text(tensor) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, form.number if form else F32, at)
        places.append((tensor, dims, form, at))
        at += -(-size(dims, form) // ALIGNMENT) * ALIGNMENT
    count, pairs = keys(shape, name, seed)
    data = b"GGUF" + struct.pack("<IQQ", 3, len(places), count) + pairs + infos
    data += b"\0" * (-len(data) % ALIGNMENT)
    return data, [(tensor, dims, form, len(data) + at) for tensor, dims, form, at in places]


def divisors(shape):
    """By how much Llama 3.1 divides each frequency."""
    head = shape["head_dim"]
    turns = 8192 / (2 * np.pi * shape["theta"] ** (np.arange(0, head, 2) / head))
    kept = np.clip((turns - 1) / (4 - 1), 0, 1)
    return 1 / (kept + (1 - kept) / shape["llama3_factor"])


def deviation_of(shape):
    return max(0.02, 1.25 / math.sqrt(shape["hidden"]))


def floats(shape, seed, index, tensor, dims):
    """A norm's or a router's weights, or the divisors of frequencies."""
    if tensor == "rope_freqs.weight":
        return divisors(shape).astype("<f4")
    dice = np.random.Generator(np.random.SFC64([seed, index]))
    if ROUTER in tensor:
        return (deviation_of(shape) * dice.standard_normal(math.prod(dims))).astype("<f4")
    return (1 + 0.05 * dice.standard_normal(math.prod(dims))).astype("<f4")


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
    for index, (_, dims, form, at) in enumerate(places):
        if form:
            all_blocks, piece = math.prod(dims) // form.elements, PIECE // form.elements
            for first in range(0, all_blocks, piece):
                yield path, form, seed, index, first, min(piece, all_blocks - first), deviation_of(shape), at


def write(path, shape, name, seed, processes):
    """Writes the file; its bytes."""
    data, places = header(shape, name, seed)
    _, dims, form, at = places[-1]
    total = at + size(dims, form)
    with open(path, "wb") as file:
        file.truncate(total)
        file.write(data)
        for index, (tensor, dims, form, at) in enumerate(places):
            if form is None:
                file.seek(at)
                file.write(floats(shape, seed, index, tensor, dims).tobytes())
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
        if value <= 0 and key not in OPTIONAL or value < 0:
            sys.exit(f"{key} is {value}, which is too small")
    if bool(shape["experts"]) != bool(shape["experts_used"]) or shape["experts_used"] > shape["experts"]:
        sys.exit(f"of {shape['experts']} experts, {shape['experts_used']} cannot be used")
    heads = ("heads * head_dim", shape["heads"] * shape["head_dim"], SUPER)
    for key, value, unit in (("hidden", shape["hidden"], SUPER), ("intermediate", shape["intermediate"], SUPER), heads,
                             ("head_dim", shape["head_dim"], 2)):
        if value % unit:
            sys.exit(f"{key} is {value}, which is no multiple of {unit}")
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
