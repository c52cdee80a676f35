#!/usr/bin/env python3
"""Prints ggml's own products of blocks with 8-bit activations: the table that djinn-cpu's tests compare with.

    python3 scripts/make_quant_dots.py --library libggml-cpu.so > djinn-cpu/tests/products/ggml.txt

The library is one that has `ggml_get_type_traits_cpu`: llama.cpp's libggml-cpu.so, or libllama.so of a build in one
piece. Weights and activations are the pseudo-random numbers of those tests. A line is a format, the products of four
rows with activations up to 1, and the products with the same activations over 512, whose scales are subnormal in f16.
"""

import argparse
import ctypes

import numpy as np

COLUMNS, ROWS = 512, 4
# Number in ggml, elements and bytes of a block, byte offsets of its f16 scales.
FORMATS = {
    "Q4_0": (2, 32, 18, [0]),
    "Q4_1": (3, 32, 20, [0, 2]),
    "Q5_0": (6, 32, 22, [0]),
    "Q5_1": (7, 32, 24, [0, 2]),
    "Q8_0": (8, 32, 34, [0]),
    "Q2_K": (10, 256, 84, [80, 82]),
    "Q3_K": (11, 256, 110, [108]),
    "Q4_K": (12, 256, 144, [0, 2]),
    "Q5_K": (13, 256, 176, [0, 2]),
    "Q6_K": (14, 256, 210, [208]),
    "IQ4_NL": (20, 32, 18, [0]),
    "IQ4_XS": (23, 256, 136, [0]),
}


class Traits(ctypes.Structure):
    """`ggml_type_traits_cpu`."""

    _fields_ = [
        ("from_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
        (
            "vec_dot",
            ctypes.CFUNCTYPE(
                None,
                ctypes.c_int,
                ctypes.c_void_p,
                ctypes.c_size_t,
                ctypes.c_void_p,
                ctypes.c_size_t,
                ctypes.c_void_p,
                ctypes.c_size_t,
                ctypes.c_int,
            ),
        ),
        ("vec_dot_type", ctypes.c_int),
        ("nrows", ctypes.c_int64),
    ]


def noise(count, state):
    """From -1 to 1, as `noise` of the tests."""
    out = np.empty(count, dtype=np.float32)
    for i in range(count):
        state = (state * 1_664_525 + 1_013_904_223) % 2**32
        out[i] = np.float32(state >> 8) / np.float32(1 << 23) - np.float32(1)
    return out


def blocks(elements, size, scales):
    """`ROWS` rows of `COLUMNS`, as `blocks` of the tests."""
    count = ROWS * COLUMNS // elements
    data = (noise(count * size, 7) * 128).astype(np.int8).view(np.uint8).reshape(count, size)
    found = (noise(2 * count, 8) / 64).astype("<f2").reshape(count, 2)
    for i, at in enumerate(scales):
        data[:, at : at + 2] = found[:, i : i + 1].copy().view(np.uint8)
    return data.reshape(ROWS, -1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--library", required=True)
    ggml = ctypes.CDLL(parser.parse_args().library)
    ggml.ggml_cpu_init()
    ggml.ggml_get_type_traits_cpu.restype = ctypes.POINTER(Traits)
    x = noise(COLUMNS, 1)
    for name, (number, elements, size, scales) in FORMATS.items():
        traits = ggml.ggml_get_type_traits_cpu(number).contents
        rounding = ggml.ggml_get_type_traits_cpu(traits.vec_dot_type).contents.from_float
        out = []
        for activations in (x, x / 512):
            rounded = np.zeros(4 * COLUMNS, dtype=np.uint8)
            rounding(activations.ctypes.data, rounded.ctypes.data, COLUMNS)
            for row in blocks(elements, size, scales):
                product = np.zeros(1, dtype=np.float32)
                traits.vec_dot(COLUMNS, product.ctypes.data, 0, row.ctypes.data, 0, rounded.ctypes.data, 0, 1)
                out.append(str(product[0]))
        print(name, *out)


if __name__ == "__main__":
    main()
