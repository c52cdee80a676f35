#!/usr/bin/env python3
"""Checks and times matrix products alone, on an NVIDIA GPU, beside cuBLAS through PyTorch, in a minute.

    python3 scripts/bench_linear.py --kernels LIBRARY.so --json OUT.json [--former LIBRARY.so] [--only check|time]

The library is that of kernels/linear*.cu, kernels/device.cu and kernels/elementwise.cu:
    nvcc -shared -Xcompiler=-fPIC,-fno-gnu-unique -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a \\
        -o LIBRARY.so kernels/linear*.cu kernels/device.cu kernels/elementwise.cu
Two libraries of kernels would share static variables of templates without -fno-gnu-unique, and find each other's kernels set up.
Checks: rows against float64; a row's bits, in every number of rows, and in few with x rounded before or not; gated products
against product, silu and rounding. Times: medians of the products of Llama-3.1-8B and Llama-2-13B, with as much of the weights
in one piece as when a model is loaded, beside cuBLAS (with bf16 and with f32 for its results) and perhaps former kernels, in
turns. Needs torch.
"""

import argparse
import ctypes
import statistics
from pathlib import Path

import results
import torch

DTYPES = {torch.float16: 1, torch.bfloat16: 2}
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1e-2}
TILES, EXPERT_TILES = 32, 128
# Of Llama-3.1-8B and Llama-2-13B: rows of the weight, columns, and pieces in which it lies.
MODELS = {
    "8B": {"qkv": (6144, 4096, 1), "out": (4096, 4096, 1), "gate_up": (28672, 4096, 4), "down": (4096, 14336, 2)},
    "13B": {"qkv": (15360, 5120, 3), "out": (5120, 5120, 1), "gate_up": (27648, 5120, 4), "down": (5120, 13824, 2)},
}
ROWS = (1, 16, 32, 64, 128, 192, 256, 384, 512, 1024, 1536, 2048)


class Args(ctypes.Structure):
    _fields_ = [
        ("x", ctypes.c_void_p),
        ("weights", ctypes.c_void_p * TILES),
        *((name, ctypes.c_void_p) for name in "bias out rounded".split()),
        *((name, ctypes.c_uint32) for name in "weight_dtype bias_dtype k n tile_rows out_width out_column rows".split()),
        *((name, ctypes.c_uint32) for name in "encoding row_bytes fresh".split()),
        *((name, ctypes.c_void_p) for name in "gated gated_rounded".split()),
        ("adds", ctypes.c_uint32),
    ]


class Rounded(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("dtype", ctypes.c_uint32), ("alone", ctypes.c_uint32)]


class Silu(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in "x out".split()),
        *((name, ctypes.c_uint32) for name in "width rows".split()),
        ("rounded", Rounded),
    ]


class Convert(ctypes.Structure):
    _fields_ = [("x", ctypes.c_void_p), ("out", ctypes.c_void_p), ("dtype", ctypes.c_uint32), ("len", ctypes.c_uint64)]


def launcher(function, args):
    """What calls a launcher with these arguments."""
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def run():
        code = function(ctypes.byref(args), stream)
        if code:
            raise RuntimeError(f"{function.__name__}: CUDA error {code}")

    return run


class Product:
    def __init__(self, library, n, k, pieces, dtype, bias=False):
        self.library, self.n, self.k, self.dtype = library, n, k, dtype
        self.tile_rows = -(-n // pieces)
        weight = torch.randn(n, k, device="cuda").mul_(k**-0.5).to(dtype)
        self.pieces = [piece.clone() for piece in weight.split(self.tile_rows)]
        self.bias = torch.randn(n, device="cuda").to(dtype) if bias else None

    def prepare(self, x, rounded, out, column=0, library=None, gated=None):
        """What starts the product, of another library if one is given."""
        rows, width = len(x), out.shape[1]
        weights = (ctypes.c_void_p * TILES)(*(piece.data_ptr() for piece in self.pieces))
        args = Args(
            x.data_ptr(),
            weights,
            None if self.bias is None else self.bias.data_ptr(),
            out.data_ptr(),
            None if rounded is None else rounded.data_ptr(),
            DTYPES[self.dtype],
            DTYPES[self.dtype],
            self.k,
            self.n,
            self.tile_rows,
            width,
            column,
            rows,
        )
        if gated:
            args.gated, args.gated_rounded = (None if to is None else to.data_ptr() for to in gated)
        return launcher((library or self.library).djinn_linear, args)

    def prepare_in_steps(self, x, rounded, out, gated, library=None):
        """As a gated product, in three steps."""
        library, (values, short) = library or self.library, gated
        silu = Silu(out.data_ptr(), values.data_ptr(), self.n // 2, len(x))
        convert = Convert(values.data_ptr(), short.data_ptr(), DTYPES[self.dtype], values.numel())
        steps = [self.prepare(x, rounded, out, library=library)]
        steps += [launcher(library.djinn_silu_mul, silu), launcher(library.djinn_convert, convert)]
        return lambda: [step() for step in steps]


def gated_outs(rows, n, dtype):
    return torch.full((rows, n // 2), float("nan"), device="cuda"), torch.zeros(rows, n // 2, device="cuda", dtype=dtype)


def check_gated(library):
    """Failures, and cases."""
    failures, cases = [], 0
    shapes = [(3584, 512, 4), (28672, 256, 4), (448, 192, 1), (3000, 320, 1), (7168, 1024, 8), (768, 64, 2), (280, 4096, 1)]
    shapes.append((9984, 128, 2))
    for dtype in DTYPES:
        for n, k, pieces in shapes:
            product = Product(library, n, k, pieces, dtype)
            for rows in (6, 16, 17, 32, 45, 64, 100, 129, 300, 512):
                if rows <= 16 and not library.djinn_linear_rounded(rows, k, DTYPES[dtype], 0):
                    continue
                if not library.djinn_linear_gated(rows, k, n, product.tile_rows, DTYPES[dtype]):
                    if 64 < rows <= 128 and n < 7000:
                        continue
                    failures.append(f"{rows} rows of {k} to {n}, {dtype}: not gated")
                    continue
                x = torch.randn(rows, k, device="cuda") * 3
                # Gates of which a step of silu leaves the range of f32, and some that are 0.
                x[::7] *= 100
                x[3::7] *= 1e-20
                x[5] = 0
                rounded, out = x.to(dtype), torch.empty(rows, n, device="cuda")
                want, found = gated_outs(rows, n, dtype), gated_outs(rows, n, dtype)
                product.prepare_in_steps(x, rounded, out, want)()
                alone = torch.zeros_like(found[1])
                for outs in (found, (None, alone)):
                    product.prepare(x, rounded, torch.empty(0, n, device="cuda"), gated=outs)()
                torch.cuda.synchronize()
                cases += 1
                if not all(map(torch.equal, [*want, want[1]], [*found, alone])):
                    failures.append(f"{rows} rows of {k} to {n}, {dtype}, gated: bits differ from those of three steps")
    refused = [(128, 64, 448, 448), (16, 64, 28672, 7168), (129, 64, 448, 300), (129, 64, 222, 222), (129, 65, 448, 448)]
    failures += [f"gated: {sizes} are not refused" for sizes in refused if library.djinn_linear_gated(*sizes, 1)]
    return failures, cases


def check(library):
    """Failures, and the worst error of each type as a part of what is allowed."""
    failures, worst, cases = [], {}, 0
    shapes = [(512, 512, 1), (4096, 4096, 1), (1000, 192, 3), (72, 64, 1), (4096, 14336, 2), (7168, 1024, 8), (9, 320, 1), (6144, 256, 1)]
    shapes += [(1000, 14336, 3), (333, 8192, 1)]
    for dtype in DTYPES:
        for n, k, pieces in shapes:
            product = Product(library, n, k, pieces, dtype, bias=n != 4096)
            x = torch.randn(2050, k, device="cuda")
            rounded = x.to(dtype)
            outs = {}
            for rows in (1, 5, 8, 9, 16, 17, 32, 64, 100, 128, 129, 256, 257, 300, 512, 768, 1025, 1600, 2050):
                out = torch.full((rows, n + 8), float("nan"), device="cuda")
                product.prepare(x[:rows], rounded[:rows], out, 4)()
                torch.cuda.synchronize()
                outs[rows] = out
                cases += 1
                if rows <= 16:
                    other = torch.full_like(out, float("nan"))
                    product.prepare(x[:rows], None, other, 4)()
                    torch.cuda.synchronize()
                    cases += 1
                    if not torch.equal(out[:, 4 : n + 4], other[:, 4 : n + 4]):
                        failures.append(f"{rows} rows of {k} to {n}, {dtype}: bits differ where x is not given rounded")
                name = f"{rows} rows of {k} to {n}, {dtype}"
                if not (out[:, :4].isnan().all() and out[:, n + 4 :].isnan().all()):
                    failures.append(name + ": wrote beside its columns")
            whole = outs[2050][:, 4 : n + 4]
            want = rounded.double() @ torch.cat(product.pieces).double().T
            if product.bias is not None:
                want += product.bias.double()
            error = float((whole.double() - want).norm() / want.norm()) / TOLERANCE[dtype]
            worst[str(dtype)] = max(worst.get(str(dtype), 0), error)
            if not error < 1:
                failures.append(f"{k} to {n}, {dtype}: error {error}")
            for rows, out in outs.items():
                if not torch.equal(out[:, 4 : n + 4], whole[:rows]):
                    failures.append(f"{rows} rows of {k} to {n}, {dtype}: bits differ from those of 2050")
            # Rows anywhere: the last ones alone.
            out = torch.full((300, n), float("nan"), device="cuda")
            product.prepare(x[-300:], rounded[-300:], out)()
            torch.cuda.synchronize()
            if not torch.equal(out, whole[-300:]):
                failures.append(f"the last rows of {k} to {n}, {dtype}: bits differ")
    return failures, worst, cases


def medians_us(works, copies, repeats=10, each=6):
    """Medians of each, timed in turns."""
    times = [[] for _ in works]
    for work in works:
        for i in range(copies):
            work(i)
    for _ in range(repeats):
        for work, mine in zip(works, times):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for i in range(each):
                work(i % copies)
            end.record()
            torch.cuda.synchronize()
            mine.append(begin.elapsed_time(end) * 1e3 / each)
    return [statistics.median(mine) for mine in times]


def time_all(libraries, rows_of):
    """Of each product and number of rows: medians of the kernels, of former ones if they are given, and of cuBLAS."""
    lines, gates = [], []
    for model, shapes in MODELS.items():
        sums = {}
        for name, (n, k, pieces) in shapes.items():
            copies = max(2, int(3e8 / (n * k * 2)) + 1)
            products = [Product(libraries[0], n, k, pieces, torch.bfloat16) for _ in range(copies)]
            whole = [torch.cat(product.pieces) for product in products]
            for rows in rows_of:
                x = torch.randn(rows, k, device="cuda")
                rounded = x.bfloat16()
                out = torch.empty(rows, n, device="cuda")
                short = torch.empty(rows, n, device="cuda", dtype=torch.bfloat16)
                works = []
                for library in libraries:
                    own = [product.prepare(x, rounded, out, library=library) for product in products]
                    works.append(lambda i, own=own: own[i]())
                works.append(lambda i: torch.mm(rounded, whole[i].T, out=short))
                works.append(lambda i: torch.mm(rounded, whole[i].T, out_dtype=torch.float32))
                times = medians_us(works, copies)
                if name == "gate_up" and (17 <= rows <= 64 or rows >= 128):
                    gated = gated_outs(rows, n, torch.bfloat16)
                    own = [product.prepare(x, rounded, out, gated=gated) for product in products]
                    steps = [product.prepare_in_steps(x, rounded, out, gated, libraries[-1]) for product in products]
                    once = medians_us([lambda i: own[i](), lambda i: steps[i]()], copies)
                    print(f"{model} {rows} rows, gated: {once[0]:.1f} us, in three steps {once[1]:.1f}", flush=True)
                    gates.append((model, rows, *once))
                lines.append((f"{model} {name}", rows, times, 2 * rows * n * k / times[0] / 1e6))
                sums[rows] = [a + b for a, b in zip(sums.get(rows, [0] * len(times)), times)]
        lines += [(f"{model}, the four", rows, times, None) for rows, times in sums.items()]
    return lines, gates


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kernels", required=True, type=Path)
    parser.add_argument("--json", required=True, type=Path)
    parser.add_argument("--only", choices=["check", "time"])
    parser.add_argument("--former", type=Path, help="a library of former kernels")
    parser.add_argument("--rows", type=lambda text: [int(rows) for rows in text.split(",")], default=ROWS)
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    libraries = [ctypes.CDLL(str(path.resolve())) for path in (args.kernels, args.former) if path]
    torch.manual_seed(1)
    failures, worst, cases, lines, gates = [], {}, 0, [], []
    if args.only != "time":
        failures, worst, cases = check(libraries[0])
        more, gated_cases = check_gated(libraries[0])
        failures, cases = failures + more, cases + gated_cases
        print(f"{cases} cases checked, {len(failures)} failures", *failures[:20], sep="\n  ", flush=True)
        print("worst errors, of what is allowed:", worst)
    if args.only != "check":
        lines, gates = time_all(libraries, args.rows)
    head = ["product", "rows", "us", *(["former, us"] if args.former else []), "cuBLAS, us", "to f32, us", "TFLOP/s"]
    rows = [
        (name, rows, *(f"{us:.1f}" for us in times), "" if tera is None else f"{tera:.0f}") for name, rows, times, tera in lines
    ]
    text = f"{cases} cases checked, {len(failures)} failures.\n\n" + results.table(1, head, rows)
    gated = [(model, rows, f"{once:.1f}", f"{steps:.1f}") for model, rows, once, steps in gates]
    text += "\ngate_up with silu and rounding:\n\n" + results.table(1, ["model", "rows", "us", "in three steps, us"], gated)
    results.finish(args.json, torch.cuda.get_device_name(), args.commit, failures, text, worst=worst, cases=cases)


if __name__ == "__main__":
    main()
