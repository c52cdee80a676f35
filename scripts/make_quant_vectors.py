#!/usr/bin/env python3
"""Writes the fixtures that the checkpoint readers are tested against, with GGML's own Python package.

    pip install gguf==0.19.0 safetensors==0.8.0
    python scripts/make_quant_vectors.py

Writes to djinn-models/tests/fixtures:
  quant/TYPE.bin       encoded blocks, followed by the values that they decode to as little-endian f32
  quant/narrow_T.bin   f32 values, followed by the same values rounded to T (f16 or bf16)
  gguf/all_types.gguf  metadata of every type and a tensor of every type that Djinn decodes, and two others
  gguf/all_types.f32   the values of the decoded tensors as little-endian f32, in the order of their names
  safetensors/mixed.safetensors   tensors of several types, among them some that hold no weights
and the seeds of the fuzz targets to fuzz/corpus.
"""

import struct
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import GGUFValueType as V
from gguf import GGUFReader, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize
from safetensors.numpy import save_file

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "djinn-models" / "tests" / "fixtures"
CORPUS = ROOT / "fuzz" / "corpus"
# Byte offsets of the f16 scales in a block: random bytes there would be NaN or infinite now and then.
SCALES = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
    T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
}
# Formats that came later have a generator of their own, so that the others' files stay.
LATER = {T.IQ4_NL: [0], T.IQ4_XS: [0], T.MXFP4: []}
QUANTISED = [T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0]


def random_blocks(rng, kind, count):
    """Blocks of random bytes with finite scales of both signs and of many magnitudes."""
    _, size = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    if kind == T.MXFP4:
        # Exponents, of which the first two and the last are special. Random ones up to 255 would end in infinities.
        blocks[:, 0] = rng.integers(64, 192, count)
        blocks[:3, 0] = [0, 1, 2][:count]
    for at in {**SCALES, **LATER}[kind]:
        scales = rng.normal(size=count) * 10.0 ** rng.uniform(-6, 2, count)
        blocks[:, at : at + 2] = scales.astype("<f2").view(np.uint8).reshape(count, 2)
    return blocks


def write_vectors(rng, kinds):
    out = FIXTURES / "quant"
    out.mkdir(parents=True, exist_ok=True)
    for kind in kinds:
        elements, size = GGML_QUANT_SIZES[kind]
        # More than one tile of 256 elements, and no whole number of tiles.
        blocks = random_blocks(rng, kind, 21 if elements == 32 else 3)
        if kind in QUANTISED:
            blocks[:8] = quantize(rng.normal(size=(8, elements)).astype(np.float32), kind).reshape(8, size)
        (out / f"{kind.name}.bin").write_bytes(blocks.tobytes() + dequantize(blocks, kind).astype("<f4").tobytes())


def write_halves(rng):
    out = FIXTURES / "quant"
    for kind, nan in ((T.F16, 0x7C00), (T.BF16, 0x7F80)):
        bits = rng.integers(0, 1 << 16, 600, dtype=np.uint16)
        # Both zeros, infinities, the least and greatest subnormal; no NaN, whose bits are not promised.
        bits[:6] = [0, 0x8000, nan, nan | 0x8000, 1, 0x7F if kind == T.BF16 else 0x3FF]
        bits = bits[~(((bits & nan) == nan) & ((bits & ~np.uint16(nan | 0x8000)) != 0))].astype("<u2")
        values = dequantize(bits.view(np.uint8), kind).astype("<f4")
        (out / f"{kind.name}.bin").write_bytes(bits.tobytes() + values.tobytes())


def write_narrowing(rng):
    values = rng.normal(size=500) * 10.0 ** rng.uniform(-9, 5, 500)
    halves = rng.normal(size=100).astype(np.float16)
    # Exact ties between two neighbouring f16, and between two bf16.
    ties = (halves.astype(np.float64) + np.nextafter(halves, np.float16(np.inf)).astype(np.float64)) / 2
    bf16_ties = ((rng.integers(0x3000, 0x4800, 100, dtype=np.uint32) << 16) | 0x8000).view(np.float32)
    special = [0.0, -0.0, np.inf, -np.inf, 65504.0, 65519.99, 65520.0, 1e38, 3.4e38, 2.0**-24, 2.0**-25, 1e-40]
    values = np.concatenate([values, ties, bf16_ties, special]).astype("<f4")
    with np.errstate(over="ignore"):
        f16 = values.astype("<f2")
    bf16 = quantize(values, T.BF16)
    (FIXTURES / "quant" / "narrow_f16.bin").write_bytes(values.tobytes() + f16.tobytes())
    (FIXTURES / "quant" / "narrow_bf16.bin").write_bytes(values.tobytes() + bf16.tobytes())


def write_gguf(rng):
    (FIXTURES / "gguf").mkdir(exist_ok=True)
    path = FIXTURES / "gguf" / "all_types.gguf"
    w = GGUFWriter(path, "llama")
    w.add_uint8("test.u8", 200)
    w.add_int8("test.i8", -100)
    w.add_uint16("test.u16", 60000)
    w.add_int16("test.i16", -30000)
    w.add_uint32("test.u32", 4000000000)
    w.add_int32("test.i32", -2000000000)
    w.add_uint64("test.u64", 1 << 63)
    w.add_int64("test.i64", -(1 << 62))
    w.add_float32("test.f32", 1.5)
    w.add_float64("test.f64", 0.1)
    w.add_bool("test.true", True)
    w.add_bool("test.false", False)
    w.add_string("test.string", "Dschinn – جِنّ")
    w.add_array("test.strings", ["<s>", "", "▁the"])
    w.add_array("test.floats", [0.0, -1.5, 3.25])
    w.add_array("test.ints", [1, -2, 3])
    w.add_array("test.bools", [True, False])
    w.add_array("test.bytes", b"\x00\x7f\xff")
    w.add_key_value("test.u16s", [1, 65535], V.ARRAY, V.UINT16)
    # 64 columns of plain types, 2 rows; quantised types get random blocks.
    matrix = rng.normal(size=(2, 64)).astype(np.float32)
    w.add_tensor("vector.f32", matrix[0])
    w.add_tensor("matrix.f32", matrix)
    w.add_tensor("matrix.f16", matrix.astype(np.float16))
    w.add_tensor("cube.f32", rng.normal(size=(2, 3, 4)).astype(np.float32))
    w.add_tensor("matrix.bf16", quantize(matrix, T.BF16), raw_dtype=T.BF16)
    w.add_tensor("indices.i32", np.arange(8, dtype=np.int32))
    for kind in [*SCALES, *LATER]:
        elements, _ = GGML_QUANT_SIZES[kind]
        blocks = random_blocks(rng, kind, 2 * (2 if elements == 32 else 1))
        w.add_tensor(f"matrix.{kind.name.lower()}", blocks.reshape(2, -1), raw_dtype=kind)
    w.add_tensor("other.iq2_s", rng.integers(0, 256, (1, 82), dtype=np.uint8), raw_dtype=T.IQ2_S)
    # Last, and a multiple of the alignment long: no padding at the end of the file.
    w.add_tensor("last.f32", matrix)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    tensors = sorted(GGUFReader(path).tensors, key=lambda t: t.name)
    values = [dequantize(t.data, t.tensor_type) for t in tensors if t.tensor_type not in (T.I32, T.IQ2_S)]
    (FIXTURES / "gguf" / "all_types.f32").write_bytes(b"".join(v.astype("<f4").tobytes() for v in values))


def write_safetensors(rng):
    (FIXTURES / "safetensors").mkdir(exist_ok=True)
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4) / 8 - 0.5
    save_file(
        {
            "model.embed.weight": matrix,
            "model.norm.weight": matrix[0].astype(np.float16),
            "model.mask": np.tril(np.ones((2, 2), dtype=bool)),
            "model.positions": np.arange(5, dtype=np.int64),
            "model.scale": np.array(2.5, dtype=np.float32),
            "model.none": np.zeros((0, 4), dtype=np.float32),
        },
        FIXTURES / "safetensors" / "mixed.safetensors",
        metadata={"format": "pt"},
    )


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def gguf_header(tensors, keys, version=3):
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def write_corpus():
    gguf = CORPUS / "gguf"
    gguf.mkdir(parents=True, exist_ok=True)
    key = gguf_header(0, 1) + text("k")
    matrix = text("t") + struct.pack("<IQQIQ", 2, 32, 2, 8, 0)
    seeds = {
        "all_types": (FIXTURES / "gguf" / "all_types.gguf").read_bytes(),
        "empty_v2": gguf_header(0, 0, 2),
        "big_endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
        "one_q8_0": (gguf_header(1, 0) + matrix).ljust(96, b"\0") + bytes(range(68)),
        "zero_rows": gguf_header(1, 0) + text("t") + struct.pack("<IQQIQ", 2, 1 << 60, 0, 0, 0),
        "nested_arrays": key + struct.pack("<IIQIQI", 9, 9, 1, 4, 1, 7),
        "deep_arrays": key + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 40,
        "huge_string": key + struct.pack("<IQ", 8, 1 << 60),
        "huge_array": key + struct.pack("<IIQ", 9, 8, 1 << 61),
        "huge_counts": gguf_header(1 << 40, 1 << 40),
        "huge_shape": gguf_header(1, 0) + text("t") + struct.pack("<IQQIQ", 2, 1 << 40, 1 << 40, 0, 0),
        "alignment": gguf_header(0, 1) + text("general.alignment") + struct.pack("<II", 4, 24),
        "split": gguf_header(0, 1) + text("split.count") + struct.pack("<IH", 2, 3),
    }
    for name, data in seeds.items():
        (gguf / name).write_bytes(data)
    safetensors = CORPUS / "safetensors"
    safetensors.mkdir(parents=True, exist_ok=True)
    entry = '"%s":{"dtype":"F32","shape":[%s],"data_offsets":[%d,%d]}'
    headers = {
        "no_tensors": ("{}", 0),
        "two": ("{" + entry % ("a", "2", 0, 8) + "," + entry % ("b", "1,2", 8, 16) + "}", 16),
        "twice": ("{" + entry % ("a", "2", 0, 8) + "," + entry % ("a", "2", 8, 16) + "}", 16),
        "overlap": ("{" + entry % ("a", "2", 0, 8) + "," + entry % ("b", "2", 4, 12) + "}", 12),
        "overflow": ("{" + entry % ("a", "4294967296,4294967296", 0, 0) + "}", 0),
        "zero_rows": ("{" + entry % ("a", "1152921504606846976,0", 0, 0) + "}", 0),
        "metadata": ('{"__metadata__":{"format":"pt"}}   ', 0),
        "deep": ("[" * 300, 0),
    }
    for name, (header, data) in headers.items():
        (safetensors / name).write_bytes(text(header) + bytes(data))
    (safetensors / "mixed").write_bytes((FIXTURES / "safetensors" / "mixed.safetensors").read_bytes())
    (safetensors / "huge_header").write_bytes(struct.pack("<Q", (1 << 64) - 1) + b"{}")


if __name__ == "__main__":
    generator = np.random.default_rng(20250101)
    write_vectors(generator, SCALES)
    write_halves(generator)
    write_narrowing(generator)
    write_gguf(generator)
    write_safetensors(generator)
    write_vectors(np.random.default_rng(20251123), LATER)
    write_corpus()
