#!/usr/bin/env python3
"""Times all launches of a layer in a chain, on an NVIDIA GPU: captured and replayed, as a pass is, in a minute.

    python3 scripts/bench_layer.py --kernels LIBRARY.so --json OUT.json [--former LIBRARY.so]

The library is that of kernels/{linear*,attention*,device,elementwise,norm,kv}.cu, built as scripts/bench_linear.py says.
A layer is one of Llama-3.1-8B: norm, qkv, rotation and cache, attention, out, norm, gate and up, SiLU, down. Rows are one
token each of a sequence of 512, or a chunk of 512 of one prompt. Four layers' weights and caches take turns, so that the
cache of the card holds none of them. `former` rounds what products read in launches of their own. Checks that both give the
same bits. Times: medians for a layer; then of the chain without some launches, or of a layer while passes follow one
another, with the card's clock and power, beside the products alone and cuBLAS's. Needs torch.
"""

import argparse
import ctypes
import statistics
import subprocess
import time
from pathlib import Path

import results
import torch
from bench_attention import COUNTERS, Pages
from bench_attention import Args as Attention
from bench_linear import Args as Linear
from bench_linear import TILES, Convert, Rounded, Silu

HEADS, KV_HEADS, DIM, WIDTH, INNER, PAGE = 32, 8, 128, 4096, 14336, 16
BF16, LAYERS, SETS = 2, 32, 4
BESIDE_PRODUCTS = ["attention", "rope_kv_write", "add_rms_norm", "silu_mul", "convert"]
SUSTAINED = ("after pauses", "sustained", "clock, MHz", "power, W")
WEIGHTS = {"qkv": (6144, WIDTH, 1), "out": (WIDTH, WIDTH, 1), "gate_up": (2 * INNER, WIDTH, 4), "down": (WIDTH, INNER, 2)}


def structure(name, *fields):
    return type(name, (ctypes.Structure,), {"_fields_": list(fields)})


def words(names):
    return [(name, ctypes.c_uint32) for name in names.split()]


def pointers(names):
    return [(name, ctypes.c_void_p) for name in names.split()]


Norm = structure(
    "Norm", *pointers("x weight out"), *words("weight_dtype"), ("eps", ctypes.c_float), *words("width rows"), ("rounded", Rounded)
)
AddNorm = structure("AddNorm", *pointers("a b sum"), ("norm", Norm))
Rope = structure("Rope", *pointers("qkv table"), *words("heads kv_heads head_dim rotary_dim style rows"))
Write = structure("Write", *pointers("qkv row_seq positions"), ("kv", Pages), *words("heads rows"))
RopeWrite = structure("RopeWrite", ("rope", Rope), ("write", Write))


class Layer:
    """Weights and a cache for sequences of up to `positions`."""

    def __init__(self, sequences, positions):
        self.weights = {
            name: [w.clone() for w in (torch.randn(n, k, device="cuda") * k**-0.5).bfloat16().split(n // pieces)]
            for name, (n, k, pieces) in WEIGHTS.items()
        }
        self.norms = [torch.rand(WIDTH, device="cuda").bfloat16() for _ in range(2)]
        self.table_width = -(-positions // PAGE)
        count = sequences * self.table_width
        self.table = torch.randperm(count, device="cuda", dtype=torch.int32)
        self.pages = torch.empty(count, 2, KV_HEADS, PAGE, DIM, device="cuda", dtype=torch.bfloat16).uniform_(-1, 1)

    def kv(self):
        page_bytes = 2 * KV_HEADS * PAGE * DIM * 2
        return Pages(self.pages.data_ptr(), self.table.data_ptr(), page_bytes, BF16, PAGE, KV_HEADS, DIM, self.table_width)


class Chain:
    """The launches of a step of `rows`; `own` rounds what products read in launches of their own. `alone` stores it so only."""

    def __init__(self, library, layers, rows, prompt, own, without=(), alone=True):
        self.library, self.layers, self.rows, self.own, self.without = library, layers, rows, own, without
        self.prompt, self.alone = prompt, alone and not own
        self.rounds = {k: bool(library.djinn_linear_rounded(rows, k, BF16, 0)) for k in (WIDTH, INNER)}
        positions = range(512) if prompt else [511] * rows
        make = lambda *shape: torch.zeros(*shape, device="cuda")
        self.positions = torch.tensor(list(positions), device="cuda", dtype=torch.int32)
        self.row_seq = torch.tensor([0 if prompt else r for r in range(rows)], device="cuda", dtype=torch.int32)
        angles = torch.outer(self.positions.float(), 500000.0 ** (-torch.arange(0, DIM, 2, device="cuda") / DIM))
        self.angles = torch.cat([angles.cos(), angles.sin()], 1).contiguous()
        generator = torch.Generator("cuda").manual_seed(1)
        self.start = torch.randn(rows, WIDTH, device="cuda", generator=generator)
        self.x, self.branch = make(rows, WIDTH), make(rows, WIDTH)
        # What products read is never all zeros, also where nothing writes it: zeros take less power.
        self.normed, self.seen = torch.randn_like(self.x), torch.randn_like(self.x)
        self.qkv, self.both, self.act = make(rows, 6144), make(rows, 2 * INNER), make(rows, INNER)
        self.workspace = torch.zeros(64 << 20, device="cuda", dtype=torch.uint8)
        self.counters = torch.zeros(COUNTERS, device="cuda", dtype=torch.int32)
        self.short = torch.randn(2, rows, INNER, device="cuda").bfloat16()

    def call(self, name, args):
        part = name.removeprefix("djinn_")
        if part in self.without:
            return
        code = getattr(self.library, name)(ctypes.byref(args), ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        if code:
            raise RuntimeError(f"{name}: CUDA error {code}")

    def rounded(self, k=WIDTH):
        at = None if self.own or not self.rounds[k] else self.short[0].data_ptr()
        return Rounded(at, BF16, self.alone and at is not None)

    def convert(self, x, k=WIDTH):
        if self.own and self.rounds[k]:
            self.call("djinn_convert", Convert(x.data_ptr(), self.short[0].data_ptr(), BF16, x.numel()))

    def linear(self, layer, name, x, out, at=0, gated=False):
        n, k, pieces = WEIGHTS[name]
        weights = (ctypes.c_void_p * TILES)(*(w.data_ptr() for w in layer.weights[name]))
        rounded = self.short[at].data_ptr() if self.rounds[k] else None
        args = Linear(x.data_ptr(), weights, None, out.data_ptr(), rounded, BF16, BF16, k, n, n // pieces, n, 0, self.rows)
        if gated:
            args.gated, args.gated_rounded = None if self.alone else self.act.data_ptr(), self.short[1].data_ptr()
        self.call("djinn_linear", args)

    def norm(self, layer, which):
        norm = Norm(self.x.data_ptr(), layer.norms[which].data_ptr(), self.normed.data_ptr(), BF16, 1e-5, WIDTH, self.rows)
        norm.rounded = self.rounded()
        self.call("djinn_add_rms_norm", AddNorm(self.x.data_ptr(), self.branch.data_ptr(), self.x.data_ptr(), norm))
        self.convert(self.normed)

    def layer(self, layer):
        rows, kv = self.rows, layer.kv()
        at = [x.data_ptr() for x in (self.qkv, self.row_seq, self.positions, self.seen, self.workspace)]
        self.norm(layer, 0)
        self.linear(layer, "qkv", self.normed, self.qkv)
        rope = Rope(at[0], self.angles.data_ptr(), HEADS, KV_HEADS, DIM, DIM, 0, rows)
        self.call("djinn_rope_kv_write", RopeWrite(rope, Write(*at[:3], kv, HEADS, rows)))
        at += [self.workspace.numel(), self.counters.data_ptr()]
        attention = Attention(*at, kv, HEADS, DIM**-0.5, 0, 0, rows, not self.prompt, self.rounded())
        self.call("djinn_attention", attention)
        self.convert(self.seen)
        self.linear(layer, "out", self.seen, self.branch)
        self.norm(layer, 1)
        n, k, pieces = WEIGHTS["gate_up"]
        if self.library.djinn_linear_gated(rows, k, n, n // pieces, BF16):
            self.linear(layer, "gate_up", self.normed, self.both, gated=True)
            self.linear(layer, "down", self.act, self.branch, 1)
            return
        self.linear(layer, "gate_up", self.normed, self.both)
        self.call("djinn_silu_mul", Silu(self.both.data_ptr(), self.act.data_ptr(), INNER, rows, self.rounded(INNER)))
        self.convert(self.act, INNER)
        self.linear(layer, "down", self.act, self.branch)

    def run(self):
        self.x.copy_(self.start)
        self.branch.zero_()
        for i in range(LAYERS):
            self.layer(self.layers[i % SETS])

    def capture(self):
        self.run()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.run()
        return self

    def us(self):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        self.graph.replay()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) * 1e3 / LAYERS


class Cublas(Chain):
    """The four products of a layer by cuBLAS, with results in bf16."""

    def __init__(self, layers, rows):
        self.weights = [{name: torch.cat(w).T for name, w in layer.weights.items()} for layer in layers]
        self.inputs = {k: torch.randn(rows, k, device="cuda").bfloat16() for k in (WIDTH, INNER)}
        self.outs = {n: torch.empty(rows, n, device="cuda", dtype=torch.bfloat16) for n, _, _ in WEIGHTS.values()}

    def run(self):
        for i in range(LAYERS):
            for name, (n, k, _) in WEIGHTS.items():
                torch.mm(self.inputs[k], self.weights[i % SETS][name], out=self.outs[n])


def medians(chains, repeats=7):
    for chain in chains:
        chain.capture().us()
    times = [[] for _ in chains]
    for _ in range(repeats):
        for chain, mine in zip(chains, times):
            mine.append(chain.us())
    return [statistics.median(mine) for mine in times]


def sustained(chain, seconds):
    """Of a captured chain: us for a layer after pauses, and while it goes on; then the clock in MHz and the power in W."""
    rested = []
    for _ in range(5):
        time.sleep(0.5)
        rested.append(chain.us())
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    passes = round(seconds * 1e6 / LAYERS / statistics.median(rested))
    for _ in range(passes):
        chain.graph.replay()
    begin.record()
    for _ in range(passes):
        chain.graph.replay()
    end.record()
    asked = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits"]
    time.sleep(seconds * 1.2)
    clock, watts = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()[0].split(", ")
    torch.cuda.synchronize()
    return statistics.median(rested), begin.elapsed_time(end) * 1e3 / LAYERS / passes, float(clock), float(watts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kernels", required=True, type=Path, action="append")
    parser.add_argument("--former", type=Path)
    parser.add_argument("--rows", type=lambda text: [int(rows) for rows in text.split(",")], default=[1, 8, 16, 32, 64, 128, 256])
    parser.add_argument("--parts", action="store_true", help="time the chain without some launches as well")
    parser.add_argument("--sustained", type=float, metavar="SECONDS", help="only time a layer after pauses, and for so long")
    parser.add_argument("--json", required=True, type=Path)
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    names = [path.stem for path in args.kernels]
    libraries = [ctypes.CDLL(str(path.resolve())) for path in args.kernels]
    former = ctypes.CDLL(str((args.former or args.kernels[0]).resolve()))
    torch.manual_seed(1)
    layers = [Layer(max(args.rows), 528) for _ in range(SETS)]
    lines, failures = [], []
    head = ["rows", "former", *names, f"{names[-1]}, f32 as well"]
    all_rows = [*((rows, False) for rows in args.rows), (512, True)]
    if args.sustained:
        head = ["rows", *(f"{of}{what}" for of in ("", "products ", "cuBLAS's ") for what in SUSTAINED)]
        for rows, _ in all_rows[:-1]:
            products = Chain(libraries[-1], layers, rows, False, False, BESIDE_PRODUCTS)
            found = []
            for chain in (Chain(libraries[-1], layers, rows, False, False), products, Cublas(layers, rows)):
                times = sustained(chain.capture(), args.sustained)
                found += [*(f"{x:.1f}" for x in times[:2]), *(f"{x:.0f}" for x in times[2:])]
            lines.append((str(rows), *found))
            print(*lines[-1], sep=" | ", flush=True)
        all_rows = []
    for rows, prompt in all_rows:
        chains = [Chain(former, layers, rows, prompt, True)]
        chains += [Chain(library, layers, rows, prompt, False) for library in libraries]
        chains += [Chain(libraries[-1], layers, rows, prompt, False, alone=False)]
        times = medians(chains)
        want = chains[0].x
        for name, chain in zip(head[1:], chains):
            if not torch.equal(chain.x, want) or not want.isfinite().all():
                failures.append(f"{rows} rows, {name}: other bits, by up to {float((chain.x - want).abs().max())}")
        label = f"{rows} of a prompt" if prompt else str(rows)
        lines.append((label, *(f"{us:.1f}" for us in times)))
        print(*lines[-1], sep=" | ", flush=True)
        if args.parts:
            for part in ["linear", *BESIDE_PRODUCTS]:
                two = [Chain(former, layers, rows, prompt, True, [part]), Chain(libraries[-1], layers, rows, prompt, False, [part])]
                print("   without", part, *(f"{us:.1f}" for us in medians(two, 3)), flush=True)
            rest = BESIDE_PRODUCTS
            two = [Chain(former, layers, rows, prompt, True, rest), Chain(libraries[-1], layers, rows, prompt, False, rest)]
            print("   products alone", *(f"{us:.1f}" for us in medians(two, 3)), flush=True)
        del chains
    print(*failures, sep="\n")
    text = "Microseconds of a layer:\n\n" + results.table(1, head, lines)
    results.finish(args.json, torch.cuda.get_device_name(), args.commit, failures, text)


if __name__ == "__main__":
    main()
