#!/usr/bin/env python3
"""Checks and times matrix products alone, on an NVIDIA GPU, beside cuBLAS through PyTorch, in a minute.

    python3 scripts/bench_linear.py --kernels LIBRARY.so --json OUT.json [--only check|time]

The library is that of kernels/linear*.cu and kernels/device.cu:
    nvcc -shared -Xcompiler=-fPIC -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a \\
        -o LIBRARY.so kernels/linear*.cu kernels/device.cu
Checks: rows against float64; a row's bits, in every number of rows. Times: medians of the products of Llama-3.1-8B,
with as much of the weights in one piece as when a model is loaded. Needs torch.
"""

import argparse
import ctypes
import datetime
import statistics
import subprocess
import sys
from pathlib import Path

import results
import torch

DTYPES = {torch.float16: 1, torch.bfloat16: 2}
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1e-2}
TILES = 8
# Of Llama-3.1-8B: rows of the weight, columns, and pieces in which it lies.
SHAPES = {"qkv": (6144, 4096, 1), "out": (4096, 4096, 1), "gate_up": (28672, 4096, 4), "down": (4096, 14336, 2)}


ROWS = (1, 16, 32, 64, 128, 256, 512, 1536)


class Args(ctypes.Structure):
    _fields_ = [
        ("x", ctypes.c_void_p),
        ("weights", ctypes.c_void_p * TILES),
        *((name, ctypes.c_void_p) for name in "bias out rounded".split()),
        *((name, ctypes.c_uint32) for name in "weight_dtype bias_dtype k n tile_rows out_width out_column rows".split()),
        *((name, ctypes.c_uint32) for name in "encoding row_bytes fresh".split()),
    ]


class Product:
    def __init__(self, library, n, k, pieces, dtype, bias=False):
        self.library, self.n, self.k, self.dtype = library, n, k, dtype
        self.tile_rows = -(-n // pieces)
        weight = torch.randn(n, k, device="cuda").mul_(k**-0.5).to(dtype)
        self.pieces = [piece.clone() for piece in weight.split(self.tile_rows)]
        self.bias = torch.randn(n, device="cuda").to(dtype) if bias else None

    def run(self, x, rounded, out, column=0):
        rows, width = len(x), out.shape[1]
        weights = (ctypes.c_void_p * TILES)(*(piece.data_ptr() for piece in self.pieces))
        args = Args(
            x.data_ptr(),
            weights,
            None if self.bias is None else self.bias.data_ptr(),
            out.data_ptr(),
            rounded.data_ptr(),
            DTYPES[self.dtype],
            DTYPES[self.dtype],
            self.k,
            self.n,
            self.tile_rows,
            width,
            column,
            rows,
        )
        code = self.library.djinn_linear(ctypes.byref(args), ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        if code:
            raise RuntimeError(f"djinn_linear: CUDA error {code}")


def check(library):
    """Failures, and the worst error of each type as a part of what is allowed."""
    failures, worst, cases = [], {}, 0
    shapes = [(512, 512, 1), (4096, 4096, 1), (1000, 192, 3), (72, 64, 1), (4096, 14336, 2), (7168, 1024, 8), (9, 320, 1)]
    for dtype in DTYPES:
        for n, k, pieces in shapes:
            product = Product(library, n, k, pieces, dtype, bias=n != 4096)
            x = torch.randn(2050, k, device="cuda")
            rounded = x.to(dtype)
            outs = {}
            for rows in (1, 16, 17, 32, 64, 129, 256, 257, 300, 512, 768, 1025, 1600, 2050):
                out = torch.full((rows, n + 8), float("nan"), device="cuda")
                product.run(x[:rows], rounded[:rows], out, 4)
                torch.cuda.synchronize()
                outs[rows] = out
                cases += 1
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
            product.run(x[-300:], rounded[-300:], out)
            torch.cuda.synchronize()
            if not torch.equal(out, whole[-300:]):
                failures.append(f"the last rows of {k} to {n}, {dtype}: bits differ")
    return failures, worst, cases


def median_us(work, copies, repeats=12, each=6):
    for i in range(copies):
        work(i)
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for i in range(each):
            work(i % copies)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / each)
    return statistics.median(times)


def time_all(library):
    lines = []
    for name, (n, k, pieces) in SHAPES.items():
        copies = max(2, int(3e8 / (n * k * 2)) + 1)
        products = [Product(library, n, k, pieces, torch.bfloat16) for _ in range(copies)]
        whole = [torch.cat(product.pieces) for product in products]
        for rows in ROWS:
            x = torch.randn(rows, k, device="cuda")
            rounded = x.bfloat16()
            out = torch.empty(rows, n, device="cuda")
            short = torch.empty(rows, n, device="cuda", dtype=torch.bfloat16)
            own = median_us(lambda i: products[i].run(x, rounded, out), copies)
            peer = median_us(lambda i: torch.mm(rounded, whole[i].T, out=short), copies)
            tera = lambda us: 2 * rows * n * k / us / 1e6
            lines.append((name, rows, own, tera(own), n * k * 2 / own / 1e6, peer, tera(peer)))
            print(f"{name:8} {rows:5} rows {own:8.1f} us {tera(own):6.0f} TFLOP/s {n * k * 2 / own / 1e6:5.2f} TB/s,"
                  f" cuBLAS {peer:8.1f} us {tera(peer):6.0f}", flush=True)
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kernels", required=True, type=Path)
    parser.add_argument("--json", required=True, type=Path)
    parser.add_argument("--only", choices=["check", "time"])
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    library = ctypes.CDLL(str(args.kernels.resolve()))
    torch.manual_seed(1)
    failures, worst, cases, lines = [], {}, 0, []
    if args.only != "time":
        failures, worst, cases = check(library)
        print(f"{cases} cases checked, {len(failures)} failures", *failures[:20], sep="\n  ", flush=True)
        print("worst errors, of what is allowed:", worst)
    if args.only != "check":
        lines = time_all(library)
    gpu = torch.cuda.get_device_name()
    head = ["product", "rows", "us", "TFLOP/s", "TB/s of weights", "cuBLAS, us", "TFLOP/s"]
    rows = [(name, rows, f"{us:.1f}", f"{t:.0f}", f"{b:.2f}", f"{peer:.1f}", f"{pt:.0f}") for name, rows, us, t, b, peer, pt in lines]
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    command = "scripts/bench_linear.py " + " ".join(a for a in sys.argv[1:] if "/" not in a)
    report = f"one H200 machine, {gpu}, {date}, kernels of {args.commit}: `{command}`\n\n"
    report += f"{cases} cases checked, {len(failures)} failures.\n\n" + results.table(1, head, rows)
    results.write(args.json, {"date": date, "gpu": gpu, "commit": args.commit, "failures": failures, "worst": worst, "cases": cases}, report)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
