#!/usr/bin/env python3
"""Checks and times products over losslessly encoded weights alone, on an NVIDIA GPU, beside those over plain ones.

    python3 scripts/bench_encoded.py --kernels LIBRARY.so --json OUT.json [--only check|time|many] [--rows 1,16]

The library is that of scripts/bench_linear.py, with kernels/decode.cu. Checks: the bits of products and of experts' products
are those of the plain weights, for every number of rows that is read directly, and for more, which are decoded meanwhile,
also gated and added; escapes included. Times: medians, in turns, from a graph of launches, with other weights in each until
they have left the cache, beside plain reads of as many bytes (scripts/reads.py); with --only many those of many rows, beside
decoding before a plain product. Needs torch and nvcc.
"""

import argparse
import copy
import ctypes
from pathlib import Path

import results
import torch
from bench_linear import EXPERT_TILES, TILES, Args
from reads import STAGE, Reader
from timing import medians_us

DTYPES = {torch.float16: 1, torch.bfloat16: 2}
PLAIN, LOSSLESS = 0, 1
# Rows of the weight, columns: of Llama-3.1-8B, Llama-2-13B and Llama-2-70B.
SHAPES = (
    *((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336)),
    *((5120, 5120), (15360, 5120), (27648, 5120), (5120, 13824)),
    *((8192, 8192), (10240, 8192), (57344, 8192), (8192, 28672)),
)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
MANY_ROWS = (129, 256, 384, 512, 1024, 2048)


class Decode(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in "encoded out".split()),
        *((name, ctypes.c_uint32) for name in "encoding dtype k row_bytes rows".split()),
    ]


class ExpertArgs(ctypes.Structure):
    _fields_ = [
        ("linear", Args),
        *((name, ctypes.c_void_p) for name in "order starts workspace".split()),
        ("workspace_bytes", ctypes.c_uint64),
        ("weights", ctypes.c_void_p * EXPERT_TILES),
        ("ids", ctypes.c_uint32 * EXPERT_TILES),
        *((name, ctypes.c_uint32) for name in "chosen experts slots_per_row settled".split()),
    ]


def row_bytes(k):
    """Bytes of a row of k values, as djinn-lossless has them."""
    least = -(-(-(-k // 32) * 48 + 4 + 4 * (4 + k // 300)) // 16) * 16
    lines = -(-least // 128) * 128
    return lines if (lines - least) * 64 <= least else least


def capacity(k):
    """Escapes that a row has room for."""
    return (row_bytes(k) - k // 2 * 3 - 4) // 4


# Which column of 16 is at each place.
ORDER = [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15]


def encode(weight):
    """Rows of djinn-lossless, as bytes [n, row_bytes]; None if a row has too many escapes."""
    n, k = weight.shape
    bits = weight.view(torch.int16).int() & 0xFFFF
    half = weight.dtype == torch.float16
    exponent = bits >> 10 & 31 if half else bits >> 7 & 255
    base = (exponent.amax(1, keepdim=True) - 14).clamp(min=0)
    code = exponent - base
    escape = (code < 0) | (code > 14)
    if half:
        escape |= bits & 7 != 0
    code = torch.where(escape, 15, code)
    kept = (bits >> 8 & 0x80) | (bits >> 3 & 0x7F if half else bits & 0x7F)
    groups = code.view(n, -1, 2, 16)[..., ORDER]
    codes = (groups[:, :, 0] | groups[:, :, 1] << 4).reshape(n, -1)
    kept = kept.view(n, -1, 16)[..., ORDER].reshape(n, -1)
    counts = escape.sum(1)
    if int(counts.max()) > capacity(k):
        return None
    row, column = escape.nonzero(as_tuple=True)
    entries = torch.zeros(n, capacity(k), dtype=torch.int32, device=weight.device)
    place = torch.arange(len(row), device=weight.device) - (counts.cumsum(0) - counts)[row]
    entries[row, place] = (column | bits[row, column] << 16).int()
    head = (base[:, 0] | counts << 16).int()
    tail = torch.cat([head[:, None], entries], 1).contiguous().view(torch.uint8)
    return torch.cat([kept.to(torch.uint8), codes.to(torch.uint8), tail], 1).contiguous()


class Product:
    """One weight, in both encodings: a random one, or `values`."""

    def __init__(self, library, n, k, pieces, dtype, bias=False, escapes=None, values=None):
        self.library, self.n, self.k, self.dtype = library, n, k, dtype
        self.tile_rows = -(-n // pieces)
        weight = torch.randn(n, k, device="cuda").mul_(0.02).to(dtype) if values is None else values
        if dtype == torch.float16 and values is None:
            weight = (weight.view(torch.int16) & ~7).view(dtype)
        if escapes is not None:
            weight = torch.where(weight.abs() < 2e-5, torch.full_like(weight, 2**-10), weight)
        for _ in range(escapes or 0):
            rows = torch.arange(n, device="cuda")
            columns = torch.randint(0, k, (n,), device="cuda")
            value = torch.tensor([0.0, -0.0, 1e-7, -3e-6], device="cuda")[torch.randint(0, 4, (n,), device="cuda")]
            weight[rows, columns] = value.to(dtype)
        if escapes:
            # Both ends of a row, and neighbours.
            weight[:, [0, k - 1]] = 0
            weight[::3, 32:34] = 1e-6
        self.stored = {PLAIN: [piece.clone() for piece in weight.split(self.tile_rows)]}
        self.row_bytes = {PLAIN: 0}
        encoded = encode(weight)
        if encoded is None:
            raise RuntimeError("too many escapes for a check")
        self.row_bytes[LOSSLESS] = encoded.shape[1]
        self.stored[LOSSLESS] = [piece.clone() for piece in encoded.split(self.tile_rows)]
        self.bias = torch.randn(n, device="cuda").to(dtype) if bias else None
        library.djinn_linear_direct.restype = ctypes.c_uint32
        self.most = library.djinn_linear_direct(LOSSLESS, DTYPES[dtype], k, encoded.shape[1])

    def again(self):
        """The same weight at other addresses."""
        other = copy.copy(self)
        other.stored = {encoding: [piece.clone() for piece in pieces] for encoding, pieces in self.stored.items()}
        return other

    def args(self, encoding, x, out, column=0, rounded=None):
        return Args(
            x.data_ptr(),
            (ctypes.c_void_p * TILES)(*(piece.data_ptr() for piece in self.stored[encoding])),
            None if self.bias is None else self.bias.data_ptr(),
            out.data_ptr(),
            None if rounded is None else rounded.data_ptr(),
            DTYPES[self.dtype],
            DTYPES[self.dtype],
            self.k,
            self.n,
            self.tile_rows,
            out.shape[1],
            column,
            len(out),
            encoding,
            self.row_bytes[encoding],
            0,
        )

    def call(self, name, args):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        code = getattr(self.library, name)(ctypes.byref(args), stream)
        if code:
            raise RuntimeError(f"{name}: CUDA error {code}")

    def run(self, encoding, x, rounded, out, column=0):
        wanted = self.library.djinn_linear_rounded(len(x), self.k, DTYPES[self.dtype], encoding)
        self.call("djinn_linear", self.args(encoding, x, out, column, rounded if wanted else None))

    def run_gated(self, encoding, x, rounded, values, short):
        args = self.args(encoding, x, x.new_empty(len(x), 0), 0, rounded)
        args.gated, args.gated_rounded = None if values is None else values.data_ptr(), short.data_ptr()
        self.call("djinn_linear", args)

    def run_adding(self, encoding, x, rounded, out):
        args = self.args(encoding, x, out, 0, rounded)
        args.adds = 1
        self.call("djinn_linear", args)

    def run_decoded(self, x, rounded, out, room):
        """Decodes the weight, which is one piece, and then multiplies."""
        (encoded,), dtype = self.stored[LOSSLESS], DTYPES[self.dtype]
        size = self.row_bytes[LOSSLESS]
        self.call("djinn_decode", Decode(encoded.data_ptr(), room.data_ptr(), LOSSLESS, dtype, self.k, size, self.n))
        args = self.args(PLAIN, x, out, 0, rounded)
        args.weights[0], args.fresh = room.data_ptr(), 1
        self.call("djinn_linear", args)

    def is_decoded_meanwhile(self, rows):
        sizes = rows, self.k, self.n, self.tile_rows, LOSSLESS, DTYPES[self.dtype], self.row_bytes[LOSSLESS]
        return bool(self.library.djinn_linear_decodes(*sizes))

    def run_expert(self, encoding, x, out, order, starts, expert, slots_per_row, workspace):
        args = self.args(encoding, x, out)
        self.call(
            "djinn_expert_linear",
            ExpertArgs(
                args, order.data_ptr(), starts.data_ptr(), workspace.data_ptr(), workspace.numel(),
                (ctypes.c_void_p * EXPERT_TILES)(*args.weights), (ctypes.c_uint32 * EXPERT_TILES)(expert), 1,
                len(starts) - 1, slots_per_row,
            ),
        )


def same(a, b):
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def patterns(dtype):
    """Every value of a type, in rows of 128 whose exponents are within 15; of f16 those without low bits."""
    half = dtype == torch.float16
    bits = torch.arange(0, 1 << 16, 8 if half else 1, device="cuda")
    window = (bits >> 10 & 31 if half else bits >> 7 & 255) // 15
    rows = []
    for group in range(int(window.max()) + 1):
        mine = bits[window == group]
        mine = mine[torch.randperm(len(mine), device="cuda")]
        rows.append(mine.view(-1, 128))
    return torch.cat(rows).to(torch.int16).view(dtype)


def full_rows(dtype, n, k, together):
    """Rows with as many escapes as they have room for, in any columns or in the first ones."""
    weight = torch.randn(n, k, device="cuda").mul_(0.02).to(dtype)
    if dtype == torch.float16:
        weight = (weight.view(torch.int16) & ~7).view(dtype)
    weight = torch.where(weight.abs() < 2e-5, torch.full_like(weight, 2**-10), weight)
    columns = torch.rand(n, k, device="cuda").argsort(1)[:, : capacity(k)]
    if together:
        columns = torch.arange(capacity(k), device="cuda").expand(n, -1)
    # Of f16, what has low bits is an escape.
    small = torch.tensor([0, -32768, 1, 0x3456] if dtype == torch.bfloat16 else [1, 2, -32765, 0x3457], device="cuda")
    small = small.to(torch.int16).view(dtype)
    return weight.scatter(1, columns, small[torch.randint(0, 4, columns.shape, device="cuda")])


def check_values(library):
    """Failures and cases: every value, through rows of x that have one column each; and full lists of escapes."""
    failures, cases = [], 0
    for dtype in DTYPES:
        every = patterns(dtype)
        weights = [("every value", every, torch.eye(128, device="cuda"))]
        for k in (512, 4096, 13824):
            x = torch.randn(128, k, device="cuda")
            weights += [(f"full lists of {k}", full_rows(dtype, 264, k, together), x) for together in (False, True)]
        for name, weight, x in weights:
            product = Product(library, *weight.shape, 1, dtype, values=weight)
            for rows in (1, 5, 8, 16, 64, 128):
                if rows > product.most:
                    continue
                for first in range(0, 128 // rows * rows if weight is every else rows, rows):
                    mine = x[first : first + rows]
                    outs = [torch.empty(rows, len(weight), device="cuda") for _ in (PLAIN, LOSSLESS)]
                    for encoding, out in zip((PLAIN, LOSSLESS), outs):
                        product.run(encoding, mine, mine.to(dtype), out)
                    torch.cuda.synchronize()
                    cases += 1
                    if not same(*outs):
                        failures.append(f"{name}, {dtype}, {rows} rows from {first}: bits differ")
    return failures, cases


def check(library):
    """Failures, and the number of cases."""
    failures, cases = check_values(library)
    shapes = [(512, 512, 1), (4096, 4096, 1), (1000, 192, 3), (72, 64, 1), (1024, 14336, 2), (7168, 1024, 8), (9, 320, 1), (264, 28672, 1)]
    for dtype in DTYPES:
        for n, k, pieces in shapes:
            for escapes in (0, 1 + k // 1024):
                product = Product(library, n, k, pieces, dtype, n != 4096, escapes if k > 64 else 0)
                x = torch.randn(300, k, device="cuda")
                rounded = x.to(dtype)
                if product.most == 0:
                    failures.append(f"{k} to {n}, {dtype}: not served")
                for rows in (1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 64, 65, 100, 128):
                    if rows > product.most:
                        continue
                    name = f"{rows} rows of {k} to {n}, {dtype}, {escapes} escapes"
                    outs = []
                    for encoding in (PLAIN, LOSSLESS):
                        out = torch.full((rows, n + 8), float("nan"), device="cuda")
                        product.run(encoding, x[:rows], rounded[:rows], out, 4)
                        outs.append(out)
                    torch.cuda.synchronize()
                    cases += 1
                    if not same(*outs):
                        bad = (outs[0].view(torch.int32) != outs[1].view(torch.int32)).nonzero()
                        failures.append(f"{name}: {len(bad)} bits differ, first at {bad[0].tolist()}, last at {bad[-1].tolist()}")
            if pieces > 1:
                continue
            product.bias = None
            for slots in (6, 40, 300):
                ids = torch.randint(0, 3, (slots,), device="cuda")
                order = ids.sort(stable=True).indices.int()
                starts = torch.tensor([0, *ids.bincount(minlength=3).cumsum(0).tolist()], dtype=torch.int32, device="cuda")
                for room in (0, 1, 2):
                    workspace = torch.zeros(max(16, room * 128 * k * 2), dtype=torch.uint8, device="cuda")
                    outs = []
                    for encoding in (PLAIN, LOSSLESS):
                        out = torch.full((slots, n), float("nan"), device="cuda")
                        product.run_expert(encoding, x, out, order, starts, 1, 2, workspace)
                        outs.append(out)
                    torch.cuda.synchronize()
                    cases += 1
                    if not same(*outs):
                        failures.append(f"expert, {slots} slots of {k} to {n}, {dtype}, {room}: bits differ")
    return failures, cases


def check_many(library):
    """The same for rows that are decoded meanwhile."""
    failures, cases = [], 0
    shapes = [(512, 64, 1), (4096, 4096, 1), (1000, 192, 3), (1024, 14336, 2), (7168, 1024, 8), (264, 8192, 1), (9, 320, 1)]
    for dtype in DTYPES:
        for n, k, pieces in [*shapes, (20000, 1024, 1), (3584, 512, 4)]:
            # No escape, a few, and more than a block keeps at hand.
            product = Product(library, n, k, pieces, dtype, n == 4096, {64: None, 320: 0, 8192: 24}.get(k, 2 + k // 1024))
            inputs = torch.randn(2048, k, device="cuda")
            for rows in (129, 256, 257, 300, 512, 1000, 2048):
                x, rounded = inputs[:rows], inputs[:rows].to(dtype)
                terms = torch.randn(rows, n, device="cuda")
                works = [(torch.full_like(terms, torch.nan), lambda e, out: product.run(e, x, rounded, out))]
                if product.bias is None and library.djinn_linear_gated(rows, k, n, product.tile_rows, DTYPES[dtype]):
                    values = torch.empty(rows, n // 2, device="cuda")
                    short = values.to(dtype)
                    works += [
                        (short, lambda e, out: product.run_gated(e, x, rounded, None, out)),
                        (values, lambda e, out: product.run_gated(e, x, rounded, out, short)),
                    ]
                sizes = rows, k, n, product.tile_rows, DTYPES[dtype]
                place = ctypes.c_void_p(terms.data_ptr())
                if product.bias is None and all(library.djinn_linear_adds(*sizes, e, n, place) for e in (PLAIN, LOSSLESS)):
                    works.append((terms, lambda e, out: product.run_adding(e, x, rounded, out)))
                for i, (first, work) in enumerate(works):
                    outs = [first.clone(), first.clone()]
                    for encoding, out in zip((PLAIN, LOSSLESS), outs):
                        work(encoding, out)
                    torch.cuda.synchronize()
                    cases += 1
                    if not same(*outs):
                        failures.append(f"{rows} rows of {k} to {n}, {dtype}, decoded meanwhile, work {i}: bits differ")
    return failures, cases


def copies_of(library, n, k, most):
    """A weight at two to `most` places, so that no cache holds all."""
    product = Product(library, n, k, 1, torch.bfloat16)
    return [product, *(product.again() for _ in range(max(2, min(most, int(2e8 / (n * k)) + 1)) - 1))]


def time_many(library):
    lines = []
    for n, k in SHAPES:
        products = copies_of(library, n, k, 4)
        room = torch.empty(n, k, device="cuda", dtype=torch.bfloat16)
        for rows in MANY_ROWS:
            x = torch.randn(rows, k, device="cuda")
            rounded = x.bfloat16()
            out = torch.empty(rows, n, device="cuda")
            works = [
                lambda i: products[i].run(PLAIN, x, rounded, out),
                lambda i: products[i].run_decoded(x, rounded, out, room),
                lambda i: products[i].run(LOSSLESS, x, rounded, out),
            ]
            plain, before, meanwhile = medians_us(works, len(products), launches=8)
            chosen = "meanwhile" if products[0].is_decoded_meanwhile(rows) else "before"
            lines.append((f"{n} x {k}", rows, plain, before, meanwhile, chosen))
            print(f"{n:6} x {k:6} {rows:4} rows: plain {plain:7.1f} us, decoded before {before:7.1f}, meanwhile {meanwhile:7.1f},"
                  f" {before / meanwhile:5.2f} x, chosen: {chosen}", flush=True)
        del products
    return lines


def time_all(library, rows_list):
    lines, reader = [], Reader()
    for n, k in SHAPES:
        products = copies_of(library, n, k, 16)
        reads = []
        for row_bytes in (2 * k, products[0].row_bytes[LOSSLESS]):
            size = n * row_bytes // STAGE * STAGE
            reads.append(reader.us([torch.empty(size, dtype=torch.uint8, device="cuda") for _ in products], early=True))
        for rows in rows_list:
            if rows > products[0].most:
                continue
            x = torch.randn(rows, k, device="cuda")
            rounded = x.bfloat16()
            out = torch.empty(rows, n, device="cuda")
            works = [
                lambda i, encoding=encoding: products[i].run(encoding, x, rounded, out) for encoding in (PLAIN, LOSSLESS)
            ]
            plain, packed = medians_us(works, len(products))
            lines.append((f"{n} x {k}", rows, plain, reads[0], packed, reads[1], plain / packed))
            print(f"{n:6} x {k:6} {rows:4} rows: plain {plain:7.1f} us (read {reads[0]:5.1f}), lossless {packed:7.1f} us"
                  f" (read {reads[1]:5.1f}), {plain / packed:5.2f} x", flush=True)
        del products
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kernels", required=True, type=Path)
    parser.add_argument("--json", required=True, type=Path)
    parser.add_argument("--only", choices=["check", "time", "many"])
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    library = ctypes.CDLL(str(args.kernels.resolve()))
    torch.manual_seed(1)
    failures, cases, lines = [], 0, []
    if args.only in (None, "check"):
        for some, count in check(library), check_many(library):
            failures, cases = failures + some, cases + count
        print(f"{cases} cases checked, {len(failures)} failures", *failures[:20], sep="\n  ", flush=True)
    if args.only in (None, "time"):
        lines = time_all(library, [int(rows) for rows in args.rows.split(",")])
    head = ["weight", "rows", "plain, us", "a read, us", "lossless, us", "a read, us", "plain / lossless"]
    rows = [(name, rows, *(f"{us:.1f}" for us in times), f"{x:.2f}") for name, rows, *times, x in lines]
    if args.only == "many":
        head = ["weight", "rows", "plain, us", "decoded before, us", "meanwhile, us", "before / meanwhile", "chosen"]
        lines = time_many(library)
        rows = [(name, rows, *(f"{x:.1f}" for x in (p, b, m)), f"{b / m:.2f}", chosen) for name, rows, p, b, m, chosen in lines]
    text = f"{cases} cases checked, {len(failures)} failures.\n\n" + results.table(2, head, rows)
    results.finish(args.json, torch.cuda.get_device_name(), args.commit, failures, text, cases=cases)


if __name__ == "__main__":
    main()
