#!/usr/bin/env python3
"""Checks and times what decodes block formats, on an NVIDIA GPU, in half a minute.

    python3 scripts/bench_blocks.py --kernels LIBRARY.so [--fixtures DIR] [--json OUT.json] [--only check|decoding|products|many]

The library is that of kernels/decode.cu and embed.cu, and of kernels/linear*.cu for products over encoded weights:
    nvcc -shared -Xcompiler=-fPIC -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a \\
        -o LIBRARY.so kernels/decode.cu kernels/device.cu kernels/embed.cu kernels/linear*.cu
Checks: values against the fixtures that GGML's package wrote (djinn-models/tests/fixtures/quant), bit for bit, and decoded
rows against those values; products over encoded weights against those over decoded ones, bit for bit, and against
float64. Times: decoding beside a copy of as many bytes; products of one to 128 rows beside bf16; with --only many, products
of more rows that are decoded meanwhile, beside decoding before. Needs torch and numpy.
"""

import argparse
import ctypes
import sys
from pathlib import Path

import numpy as np
import results
import torch
from bench_encoded import MANY_ROWS, ORDER, Decode, row_bytes
from bench_linear import TILES
from bench_linear import Args as Linear
from timing import median_us, medians_us

PLAIN, LOSSLESS, F16, BF16 = 0, 1, 1, 2
# Columns and bytes of a block, where its scales are (f32 in FP8, exponents in MXFP4, else f16), and the number in djinn.h.
FORMATS = {
    "Q4_0": (32, 18, (0,), 2), "Q4_1": (32, 20, (0, 2), 3), "Q5_0": (32, 22, (0,), 4), "Q5_1": (32, 24, (0, 2), 5),
    "Q8_0": (32, 34, (0,), 6), "Q2_K": (256, 84, (80, 82), 7), "Q3_K": (256, 110, (108,), 8),
    "Q4_K": (256, 144, (0, 2), 9), "Q5_K": (256, 176, (0, 2), 10), "Q6_K": (256, 210, (208,), 11),
    "IQ4_NL": (32, 18, (0,), 12), "IQ4_XS": (256, 136, (0,), 13), "MXFP4": (32, 17, (0,), 14),
    "INT4_G32": (32, 19, (0,), 15), "INT4_G128": (128, 68, (0,), 16), "FP8_G32": (32, 36, (0,), 17), "FP8_G128": (128, 132, (0,), 18),
}
# What products of many rows decode meanwhile.
COMMON = ("Q4_0", "Q8_0", "Q4_K", "Q6_K", "INT4_G128", "FP8_G128")
# Of Llama-3.1-8B and 70B: rows of the weight, columns.
SHAPES = {"out": (4096, 4096), "gate": (14336, 4096), "down": (4096, 14336), "70B gate": (28672, 8192)}
ROWS = "1,8,16,32,64,128"


class Embed(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in "tokens table out".split()),
        *((name, ctypes.c_uint32) for name in "table_dtype first_row table_rows width rows encoding row_bytes".split()),
    ]


def call(function, args):
    code = function(ctypes.byref(args), ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
    if code:
        raise RuntimeError(f"CUDA error {code}")


def row_size(kind, k):
    """Bytes of a row: those of its blocks, up to the next multiple of 16."""
    columns, size, _, _ = FORMATS[kind]
    return -(-(k // columns * size) // 16) * 16


def padded(rows):
    """Rows of blocks as they lie in memory, padded with bytes on which no result depends."""
    return torch.nn.functional.pad(rows, (0, -rows.shape[1] % 16), value=255)


def random_rows(kind, rows, k, seed=0):
    """Rows of blocks as quantisers write them, of weights of about 0.02."""
    columns, size, scales, _ = FORMATS[kind]
    generator = torch.Generator("cuda").manual_seed(seed)
    blocks = torch.randint(0, 256, (rows * k // columns, size), dtype=torch.uint8, device="cuda", generator=generator)
    at = torch.rand(len(blocks), device="cuda", generator=generator)
    small = {"Q8_0": 3e-4, "Q6_K": 1.5e-5, "Q2_K": 1e-3, "Q3_K": 2e-4, "IQ4_NL": 3e-4, "IQ4_XS": 2e-5, "FP8_G32": 2e-4, "FP8_G128": 2e-4}.get(kind, 1e-4 if columns == 256 else 4e-3)
    values = [(0.5 + at) * small]
    if len(scales) > 1:
        values.append(values[0] * 7.7 if columns == 256 else -8 * values[0])
    if kind.startswith("INT4"):
        blocks[:, 2] %= 17
    for start, value in zip(scales, values):
        if kind == "MXFP4":
            stored = (119 + 2 * at).byte()[:, None]
        else:
            stored = (value.float() if kind.startswith("FP8") else value.half()).view(torch.uint8).reshape(len(blocks), -1)
        blocks[:, start : start + stored.shape[1]] = stored
    return padded(blocks.reshape(rows, -1))


def decode(library, kind, encoded, k, dtype=torch.float16, out=None):
    out = torch.full((len(encoded), k), float("nan"), device="cuda", dtype=dtype) if out is None else out
    number = F16 if dtype == torch.float16 else BF16
    call(library.djinn_decode, Decode(encoded.data_ptr(), out.data_ptr(), FORMATS[kind][3], number, k, encoded.shape[1], len(encoded)))
    return out


def embed(library, kind, encoded, k, tokens, first=0):
    out = torch.full((len(tokens), k), float("nan"), device="cuda")
    args = Embed(tokens.data_ptr(), encoded.data_ptr(), out.data_ptr(), 0, first, len(encoded), k, len(tokens), FORMATS[kind][3], encoded.shape[1])
    call(library.djinn_embed, args)
    return out


def same(a, b):
    """Bit for bit, but for the sign of zero."""
    if a.dtype == torch.float32:
        return bool(((a.view(torch.int32) == b.view(torch.int32)) | ((a == 0) & (b == 0))).all())
    return bool(((a.view(torch.int16) == b.view(torch.int16)) | ((a == 0) & (b == 0))).all())


def check_fixtures(library, folder, failures):
    cases = 0
    for kind, (columns, size, _, _) in FORMATS.items():
        data = (folder / f"{kind}.bin").read_bytes()
        count = len(data) // (size + 4 * columns)
        encoded = torch.frombuffer(bytearray(data[: count * size]), dtype=torch.uint8).cuda()
        values = torch.frombuffer(bytearray(data[count * size :]), dtype=torch.float32).cuda().reshape(1, -1)
        k = count * columns
        for name, dtype in (("f16", torch.float16), ("bf16", torch.bfloat16)):
            cases += 1
            if not same(decode(library, kind, padded(encoded.reshape(1, -1)), k, dtype), values.to(dtype)):
                failures.append(f"{kind} decoded to {name}")
        cases += 1
        rows = padded(encoded.reshape(count, size))
        if not same(decode(library, kind, rows, columns), values.reshape(count, columns).half()):
            failures.append(f"{kind} decoded from rows of one block")
        cases += 1
        tokens = torch.tensor([12, 10 + count - 1, 3, 10, 10 + count], dtype=torch.uint32, device="cuda")
        found = embed(library, kind, rows, columns, tokens, 10)
        if not (same(found[[0, 1, 3]], values.reshape(count, columns)[[2, count - 1, 0]]) and found[[2, 4]].isnan().all()):
            failures.append(f"{kind} embedded")
    return cases


def pack_lossless(values):
    """Rows of bf16 in the lossless encoding, and the rows; as docs/packed-format.md says."""
    rows, k = values.shape
    groups = -(-k // 32)
    bits = np.zeros((rows, 32 * groups), np.uint16)
    bits[:, :k] = values.view(torch.int16).cpu().numpy().view(np.uint16)
    exponent = (bits >> 7 & 255).astype(np.int32)
    base = np.maximum(exponent[:, :k].max(axis=1, keepdims=True) - 14, 0)
    code = exponent - base
    escaped = (code < 0) | (code > 14)
    escaped[:, k:] = False
    code = np.where(escaped, 15, code)
    code[:, k:] = 0
    kept = (bits >> 8 & 128 | bits & 127).astype(np.uint8).reshape(rows, -1, 16)[..., ORDER].reshape(rows, -1)
    code = code.astype(np.uint8).reshape(rows, groups, 2, 16)[..., ORDER]
    codes = (code[:, :, 0] | code[:, :, 1] << 4).reshape(rows, -1)
    capacity = (row_bytes(k) - 48 * groups - 4) // 4
    tail = np.zeros((rows, 4 + 4 * capacity), np.uint8)
    tail[:, 0] = base[:, 0]
    for row in range(rows):
        columns = np.nonzero(escaped[row])[0]
        assert len(columns) <= capacity
        tail[row, 2:4] = np.array([len(columns)], "<u2").view(np.uint8)
        entries = np.stack([columns.astype("<u2"), bits[row, columns]], axis=1).astype("<u2")
        tail[row, 4 : 4 + 4 * len(columns)] = np.frombuffer(entries.tobytes(), np.uint8)
    return torch.from_numpy(np.concatenate([kept, codes, tail], axis=1)).cuda()


def check_lossless(library, failures):
    cases = 0
    for rows, k in ((3, 4096), (70, 576), (5, 96), (4, 50), (9, 2080)):
        values = (torch.randn(rows, k, device="cuda") * 0.02).bfloat16()
        values[0, k // 2] = 0
        values[-1, [0, k - 1]] = torch.tensor([1e-30, 0], device="cuda", dtype=torch.bfloat16)
        encoded = pack_lossless(values)
        out = torch.full((rows, k), float("nan"), device="cuda", dtype=torch.bfloat16)
        call(library.djinn_decode, Decode(encoded.data_ptr(), out.data_ptr(), LOSSLESS, BF16, k, encoded.shape[1], rows))
        wide = torch.full((rows, k), float("nan"), device="cuda")
        tokens = torch.arange(rows, device="cuda").to(torch.uint32)
        call(library.djinn_embed, Embed(tokens.data_ptr(), encoded.data_ptr(), wide.data_ptr(), BF16, 0, rows, k, rows, LOSSLESS, encoded.shape[1]))
        cases += 2
        if not torch.equal(out.view(torch.int16), values.view(torch.int16)):
            failures.append(f"lossless rows of {k} decoded")
        if not torch.equal(wide, values.float()):
            failures.append(f"lossless rows of {k} embedded")
    return cases


def check_rows(library, failures):
    """Many rows: the same block has the same bits everywhere, in f32, f16 and bf16."""
    cases = 0
    for kind in FORMATS:
        for rows, k in ((37, 512), (5, 14336), (300, 4096), (3, 576 if FORMATS[kind][0] == 32 else 768)):
            encoded = random_rows(kind, rows, k, rows)
            cases += 1
            tokens = torch.arange(rows, device="cuda").to(torch.uint32)
            exact = embed(library, kind, encoded, k, tokens)
            for dtype in (torch.float16, torch.bfloat16):
                if not same(decode(library, kind, encoded, k, dtype), exact.to(dtype)):
                    failures.append(f"{kind}, {rows} rows of {k}: {dtype} is not f32 rounded")
    return cases


def linear(library, weights, x, k, n, encoding=PLAIN, row_bytes=0, fresh=0, dtype=F16, out=None, rounds=None):
    """Arguments, and what they refer to; with x rounded if `rounds`, or where that is asked for."""
    out = torch.full((len(x), n), float("nan"), device="cuda") if out is None else out
    rounded = x.half() if dtype == F16 else x.bfloat16()
    pieces = (ctypes.c_void_p * TILES)(weights.data_ptr())
    if rounds is None:
        rounds = library.djinn_linear_rounded(len(x), k, dtype, encoding)
    args = Linear(x.data_ptr(), pieces, None, out.data_ptr(), rounded.data_ptr() if rounds else None, dtype, dtype, k, n, n, n, 0, len(x), encoding, row_bytes, fresh)
    return args, out, rounded


def check_products(library, failures):
    cases, worst = 0, {}
    for kind, (_, _, _, number) in FORMATS.items():
        # Wide rows, few of which fit in shared memory. The last two end within a segment, or within those of a stage.
        for n, k in ((264, 512), (1000, 1536), (4096, 4096), (20000, 512), (40, 53248), (72, 640), (520, 1280)):
            size = row_size(kind, k)
            most = 0 if k % FORMATS[kind][0] else library.djinn_linear_direct(number, F16, k, size)
            if most == 0:
                continue
            encoded = random_rows(kind, n, k, 3)
            plain = decode(library, kind, encoded, k)
            exact = embed(library, kind, encoded, k, torch.arange(n, device="cuda").to(torch.uint32))
            x = torch.randn(max(most, library.djinn_linear_rows()), k, device="cuda")
            # As a product of more rows than are read directly.
            args, all_rows, _all = linear(library, plain, x, k, n, fresh=1)
            call(library.djinn_linear, args)
            for rows in (1, 2, 7, 8, 9, 16, 17, 33, 64, 100, 128):
                if rows > most:
                    break
                args, whole, _kept = linear(library, plain, x[:rows], k, n, fresh=1)
                call(library.djinn_linear, args)
                # Few rows: the kernel that rounds x itself, and the one that takes x rounded.
                for rounds in (False, True) if rows <= 16 else (True,):
                    cases += 1
                    args, direct, _keep = linear(library, encoded, x[:rows], k, n, number, size, rounds=rounds)
                    call(library.djinn_linear, args)
                    torch.cuda.synchronize()
                    if not (torch.equal(direct, whole) and torch.equal(direct, all_rows[:rows])):
                        failures.append(f"{kind}, {rows} rows of {k} to {n}: not the bits of the decoded weight's product")
                want = x[:rows].half().double() @ exact.double().T
                error = float((direct.double() - want).norm() / want.norm())
                worst[kind] = max(worst.get(kind, 0), error)
                if not error < 1e-3:
                    failures.append(f"{kind}, {rows} rows of {k} to {n}: error {error}")
    return cases, worst


def stretched(kind, encoded):
    """The same, with a third of the rows of blocks that no quantiser writes: faster decoders leave these out."""
    columns, size, scales, _ = FORMATS[kind]
    blocks = encoded.clone()[:, : encoded.shape[1] // size * size].reshape(len(encoded), -1, size)
    dtype = torch.float32 if kind.startswith("FP8") else torch.float16
    width = torch.tensor([], dtype=dtype).element_size()
    last = blocks[::3, :, scales[-1] : scales[-1] + width].contiguous().view(dtype)
    larger = last * 40 if len(scales) > 1 else torch.full_like(last, 300)
    blocks[::3, :, scales[-1] : scales[-1] + width] = larger.view(torch.uint8)
    return padded(blocks.reshape(len(encoded), -1))


def check_many(library, failures):
    """Products of many rows that decode the weight meanwhile: plain, gated and added."""
    cases = 0
    for kind in COMMON:
        number = FORMATS[kind][3]
        for n, k in ((264, 512), (1000, 1536), (4096, 4096), (20000, 1024), (72, 14336), (520, 1280)):
            size = row_size(kind, k)
            # On other cards, which read fewer rows directly, nothing is decoded meanwhile.
            if k % FORMATS[kind][0] or library.djinn_linear_direct(number, F16, k, size) + 1 < MANY_ROWS[0]:
                continue
            encoded = stretched(kind, random_rows(kind, n, k, 5))
            plain = decode(library, kind, encoded, k)
            inputs = torch.randn(1000, k, device="cuda")
            for rows in (129, 256, 257, 600, 1000):
                x, terms = inputs[:rows], torch.randn(rows, n, device="cuda")
                outs = []
                for weights, named in ((plain, {"fresh": 1}), (encoded, {"encoding": number, "row_bytes": size})):
                    args, whole, _kept = linear(library, weights, x, k, n, rounds=True, **named)
                    call(library.djinn_linear, args)
                    args, added, _keep = linear(library, weights, x, k, n, rounds=True, out=terms.clone(), **named)
                    place, shown = ctypes.c_void_p(added.data_ptr()), named.get("encoding", PLAIN)
                    args.adds = library.djinn_linear_adds(rows, k, n, n, F16, shown, n, place)
                    call(library.djinn_linear, args)
                    short = torch.zeros(rows, n // 2, device="cuda", dtype=torch.float16)
                    if library.djinn_linear_gated(rows, k, n, n, F16):
                        args, _none, _hold = linear(library, weights, x, k, n, rounds=True, **named)
                        args.gated_rounded = short.data_ptr()
                        call(library.djinn_linear, args)
                    outs.append((whole.view(torch.int32), added.view(torch.int32) if args.adds else None, short.view(torch.int16)))
                torch.cuda.synchronize()
                for what, a, b in zip(("product", "sum", "gated product"), *outs):
                    if a is not None and b is not None:
                        cases += 1
                        if not torch.equal(a, b):
                            failures.append(f"{kind}, {rows} rows of {k} to {n}, decoded meanwhile: {what} differs")
    return cases


def time_many(library, kinds):
    lines = []
    for name, (n, k) in SHAPES.items():
        room = torch.empty(n, k, dtype=torch.float16, device="cuda")
        for kind in kinds:
            number, size = FORMATS[kind][3], row_size(kind, k)
            weights = [random_rows(kind, n, k, i) for i in range(max(2, int(2e8 / (n * size)) + 1))]
            plain = [decode(library, kind, weight, k) for weight in weights[:3]]
            for rows in MANY_ROWS:
                x = torch.randn(rows, k, device="cuda")
                out = torch.empty(rows, n, device="cuda")
                named = {"out": out, "rounds": True}
                of_plain = [linear(library, weight, x, k, n, **named) for weight in plain]
                of_room = linear(library, room, x, k, n, fresh=1, **named)
                stored = [linear(library, weight, x, k, n, number, size, **named) for weight in weights]

                def before(i):
                    decode(library, kind, weights[i], k, out=room)
                    call(library.djinn_linear, of_room[0])

                works = [
                    lambda i: call(library.djinn_linear, of_plain[i % len(of_plain)][0]),
                    before,
                    lambda i: call(library.djinn_linear, stored[i][0]),
                ]
                times = medians_us(works, len(weights), launches=8)
                chosen = "meanwhile" if library.djinn_linear_decodes(rows, k, n, n, number, F16, size) else "before"
                lines.append((name, kind, rows, *(f"{us:.1f}" for us in times), f"{times[1] / times[2]:.2f}", chosen))
                print(f"{name} {n}x{k} {kind} {rows} rows: plain {times[0]:.1f} us, decoded before {times[1]:.1f},"
                      f" meanwhile {times[2]:.1f}, {times[1] / times[2]:.2f} x, chosen: {chosen}", flush=True)
    return lines


def time_decode(library):
    source, to = (torch.empty(1 << 28, dtype=torch.uint8, device="cuda") for _ in range(2))
    copy = 2 * len(source) / median_us(lambda i: to.copy_(source), 1) / 1e6
    print(f"a copy: {copy:.2f} TB/s read and written", flush=True)
    lines = []
    for kind in FORMATS:
        n, k = 14336, 4096
        encoded = [random_rows(kind, n, k, i) for i in range(3)]
        outs = [torch.empty(n, k, dtype=torch.float16, device="cuda") for _ in range(3)]
        us = median_us(lambda i: decode(library, kind, encoded[i], k, out=outs[i]), 3)
        speed = (encoded[0].numel() + 2 * n * k) / us / 1e6
        lines.append((kind, f"{us:.1f}", f"{speed:.2f}", f"{speed / copy:.2f}"))
        print(f"{kind}: {n}x{k} decoded in {us:.1f} us, {speed:.2f} TB/s, {speed / copy:.2f} of a copy", flush=True)
    return lines


def time_products(library, kinds, counts):
    lines = []
    for name, (n, k) in SHAPES.items():
        xs = {rows: torch.randn(rows, k, device="cuda") for rows in counts}

        def median(weights, rows, **named):
            made = [linear(library, weight, xs[rows], k, n, **named) for weight in weights]
            return median_us(lambda i: call(library.djinn_linear, made[i][0]), len(made))

        copies = max(2, int(3e8 / (n * k * 2)) + 1)
        plain = [torch.randn(n, k, device="cuda").mul_(0.02).bfloat16() for _ in range(copies)]
        base = {rows: median(plain, rows, dtype=BF16) for rows in counts}
        del plain
        for kind in kinds:
            number = FORMATS[kind][3]
            size = row_size(kind, k)
            most = library.djinn_linear_direct(number, F16, k, size)
            weights = [random_rows(kind, n, k, i) for i in range(max(2, int(2e8 / (n * size)) + 1))]
            for rows in (rows for rows in counts if rows <= most):
                us = median(weights, rows, encoding=number, row_bytes=size)
                speed, times = n * size / us / 1e6, base[rows] / us
                lines.append((name, kind, rows, f"{us:.1f}", f"{speed:.2f}", f"{base[rows]:.1f}", f"{times:.2f}"))
                print(f"{name} {n}x{k} {kind} {rows} rows: {us:.1f} us, {speed:.2f} TB/s; bf16 {base[rows]:.1f} us, {times:.2f} x", flush=True)
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kernels", required=True, type=Path)
    parser.add_argument("--fixtures", type=Path, default=Path(__file__).resolve().parent.parent / "djinn-models/tests/fixtures/quant")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=["check", "decoding", "products", "many"])
    parser.add_argument("--kinds", default="Q4_K,Q6_K,Q8_0,Q4_0")
    parser.add_argument("--rows", default=ROWS)
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    library = ctypes.CDLL(str(args.kernels.resolve()))
    failures, cases, worst, decoded, products, many = [], 0, {}, [], [], []
    if args.only in (None, "check"):
        cases = check_fixtures(library, args.fixtures, failures) + check_rows(library, failures) + check_lossless(library, failures)
        more, worst = check_products(library, failures)
        cases += more + check_many(library, failures)
        print(f"{cases} cases checked, {len(failures)} failures", *failures[:20], sep="\n  ", flush=True)
        print("worst errors of products, to f32 weights:", worst, flush=True)
    kinds = args.kinds.split(",")
    if args.only in (None, "decoding"):
        decoded = time_decode(library)
    if args.only in (None, "products"):
        products = time_products(library, kinds, [int(rows) for rows in args.rows.split(",")])
    if args.only == "many":
        many = time_many(library, kinds)
    if args.json:
        text = f"{cases} cases checked, {len(failures)} failures.\n\n"
        text += results.table(1, ["decoded", "us", "TB/s", "of a copy"], decoded)
        text += "\n" + results.table(2, ["product", "format", "rows", "us", "TB/s of blocks", "bf16, us", "times as fast"], products)
        head = ["product", "format", "rows", "plain, us", "decoded before, us", "meanwhile, us", "before / meanwhile", "chosen"]
        text += "\n" + results.table(2, head, many)
        results.finish(args.json, torch.cuda.get_device_name(), args.commit, failures, text, worst=worst, cases=cases)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
