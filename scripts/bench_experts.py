#!/usr/bin/env python3
"""Checks and times products of a mixture of experts alone, on an NVIDIA GPU, beside PyTorch's grouped product.

    python3 scripts/bench_experts.py --kernels LIBRARY.so --json OUT.json [--only check|time] [--rows 1,16]

The library is that of scripts/bench_blocks.py. Products are those of Mixtral 8x7B, where each row goes to two of eight experts,
and of Qwen3-30B-A3B, where it goes to eight of 128: chosen at random. Weights are plain bf16, lossless or Q4_K. Checks: the
slots' bits are those of a product of their row alone, whether experts are computed in one launch or one after another. Times:
medians, in turns, from a graph of launches; the bytes are those of the weights of the experts that a slot has. PyTorch gets
rows that are rounded and sorted by expert. Needs torch.
"""

import argparse
import ctypes
import sys
from pathlib import Path

import results
import torch
from bench_blocks import FORMATS, random_rows
from bench_encoded import DTYPES, LOSSLESS, PLAIN, ExpertArgs, encode
from bench_linear import EXPERT_TILES, TILES, Args
from timing import medians_us

# Of each model: experts, those of a row, and products: rows of the weight, columns, slots that share a row of x, and tiles of
# a weight.
MODELS = {
    "Mixtral": (8, 2, {"gate and up": (28672, 4096, 2, 4), "down": (4096, 14336, 1, 2)}),
    "Qwen3": (128, 8, {"gate and up": (1536, 2048, 8, 1), "down": (2048, 768, 1, 1)}),
}
# Rows of the weight, columns, experts, tiles of a weight.
CHECKED = ((520, 1280, 8, 1), (1000, 4096, 8, 3), (72, 5120, 3, 1), (4104, 512, 19, 2), (1536, 2048, 40, 1), (264, 768, 100, 1), (96, 1024, 70, 3))
ROWS = "1,2,4,8,16,32,64,128,256"
KINDS = ("bf16", "lossless", "Q4_K")


class Experts:
    """Weights [n, k] of all experts, stored in one way, in tiles of as many rows but for the last."""

    def __init__(self, library, kind, n, k, experts, tiles=1):
        self.library, self.kind, self.n, self.k = library, kind, n, k
        self.tile_rows = -(-n // tiles)
        self.dtype = torch.float16 if kind in FORMATS else torch.bfloat16
        self.encoding = {"bf16": PLAIN, "lossless": LOSSLESS}.get(kind) if kind not in FORMATS else FORMATS[kind][3]
        self.weights = [self.stored(expert) for expert in range(experts)]
        self.row_bytes = 0 if kind == "bf16" else self.weights[0].shape[1]
        # Experts that are one tile lie at equal distances, as in a chunk; other tiles lie apart.
        if tiles == 1:
            self.tiles = [[weight] for weight in torch.stack(self.weights)]
        else:
            self.tiles = [[piece.clone() for piece in weight.split(self.tile_rows)] for weight in self.weights]

    def stored(self, expert):
        if self.kind in FORMATS:
            return random_rows(self.kind, self.n, self.k, expert)
        weight = torch.randn(self.n, self.k, device="cuda").mul_(0.02).bfloat16()
        return weight if self.kind == "bf16" else encode(weight)

    def bytes(self):
        return self.weights[0].numel() * self.weights[0].element_size()

    def pieces(self, room, experts):
        return (ctypes.c_void_p * room)(*(tile.data_ptr() for expert in experts for tile in self.tiles[expert]))

    def args(self, x, out, experts=()):
        pieces = self.pieces(TILES, experts)
        dtype = DTYPES[self.dtype]
        sizes = self.k, self.n, self.tile_rows, out.shape[1], 0, len(out), self.encoding, self.row_bytes, 0
        return Args(x.data_ptr(), pieces, None, out.data_ptr(), None, dtype, dtype, *sizes)

    def call(self, name, args):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        code = getattr(self.library, name)(ctypes.byref(args), stream)
        if code:
            raise RuntimeError(f"{name}: CUDA error {code}")

    def run(self, routing, x, out, workspace, experts):
        """The slots of some experts, in one launch."""
        weights, ids = self.pieces(EXPERT_TILES, experts), (ctypes.c_uint32 * EXPERT_TILES)(*experts)
        pointers = (tensor.data_ptr() for tensor in (routing.order, routing.starts, workspace))
        many = len(experts), len(routing.starts) - 1, routing.slots // len(x)
        args = self.args(x, out), *pointers, workspace.numel(), weights, ids, *many
        self.call("djinn_expert_linear", ExpertArgs(*args))

    def run_all(self, routing, x, out, workspace, at_once=None):
        at_once = at_once or EXPERT_TILES // len(self.tiles[0])
        for first in range(0, len(self.weights), at_once):
            self.run(routing, x, out, workspace, list(range(first, min(first + at_once, len(self.weights)))))

    def alone(self, x, out, expert):
        """`djinn_linear` of rows that take it unrounded."""
        args = self.args(x, out, [expert])
        self.call("djinn_linear", args)


class Routing:
    """Slots, by expert. `ids` [rows, chosen]."""

    def __init__(self, ids, experts):
        self.ids = ids.flatten()
        self.slots = len(self.ids)
        self.order = self.ids.sort(stable=True).indices.int()
        self.counts = self.ids.bincount(minlength=experts)
        ends = self.counts.cumsum(0).int()
        self.starts = torch.cat([ends.new_zeros(1), ends])


def chosen(rows, experts, each=2):
    return torch.rand(rows, experts, device="cuda").argsort(1)[:, :each]


def room(slots, k, most=1 << 30):
    return torch.zeros(min(max(slots, 128) * k * 2, most), dtype=torch.uint8, device="cuda")


def check(library):
    failures, cases = [], 0
    for kind in (*KINDS, "Q6_K", "Q5_0"):
        for n, k, experts, tiles in CHECKED:
            product = Experts(library, kind, n, k, experts, tiles)
            stored = product.encoding, DTYPES[product.dtype], k, product.row_bytes
            if kind != "bf16" and library.djinn_linear_direct(*stored) == 0:
                continue
            for rows in (1, 2, 3, 8, 20, 65, 150, 700):
                skewed = chosen(rows, experts)
                skewed[: rows // 2] = torch.tensor([experts - 1, 1], device="cuda")
                for name, ids in (("random", chosen(rows, experts)), ("skewed", skewed)):
                    routing = Routing(ids, experts)
                    for each in (1, 2):
                        x = torch.randn(routing.slots // each, k, device="cuda")
                        # With room for all slots, and for 128.
                        for most in (1 << 30, 256 * k) if routing.slots > 128 else (1 << 30,):
                            workspace = room(routing.slots, k, most)
                            together, apart = (torch.full((routing.slots, n), float("nan"), device="cuda") for _ in range(2))
                            product.run_all(routing, x, together, workspace)
                            product.run_all(routing, x, apart, workspace, 1)
                            slots = torch.randperm(routing.slots, device="cuda")[:3]
                            alone = torch.full((3, n), float("nan"), device="cuda")
                            for i, slot in enumerate(slots.tolist()):
                                product.alone(x[slot // each :][:1], alone[i : i + 1], int(routing.ids[slot]))
                            cases += 1
                            text = f"{kind}, {experts} experts of {k} to {n}, {rows} {name} rows, {each} slots a row, {most}"
                            torch.cuda.synchronize()
                            if not torch.equal(together, apart):
                                failures.append(f"{text}: together and apart differ")
                            if not torch.equal(together[slots][: len(slots)], alone[: len(slots)]):
                                failures.append(f"{text}: not the bits of a row alone")
    return failures, cases


def torch_grouped(weights, routing, x):
    """PyTorch's product of sorted rows of x, rounded, or None."""
    if not hasattr(torch, "_grouped_mm"):
        return None
    stacked = torch.stack(weights).transpose(1, 2)
    rows = x[routing.order.long() // (routing.slots // len(x))].bfloat16()
    ends = routing.starts[1:].contiguous()
    try:
        torch._grouped_mm(rows, stacked, offs=ends)
    except RuntimeError as error:
        print(f"PyTorch's grouped product: {error}", file=sys.stderr)
        return None
    return lambda _: torch._grouped_mm(rows, stacked, offs=ends)


def time_products(library, all_rows):
    lines = []
    shapes = [(f"{model}, {name}", *of[:2], *shape) for model, of in MODELS.items() for name, shape in of[2].items()]
    for name, experts, of_row, n, k, each, tiles in shapes:
        for kind in KINDS:
            product = Experts(library, kind, n, k, experts, tiles)
            for rows in all_rows:
                torch.manual_seed(rows)
                routing = Routing(chosen(rows, experts, of_row), experts)
                x = torch.randn(routing.slots // each, k, device="cuda")
                out, workspace = torch.empty(routing.slots, n, device="cuda"), room(routing.slots, k)
                works = [
                    lambda _: product.run_all(routing, x, out, workspace),
                    lambda _: product.run_all(routing, x, out, workspace, 1),
                ]
                peer = torch_grouped(product.weights, routing, x) if kind == "bf16" else None
                us = medians_us(works + [peer] * (peer is not None), 1, launches=8)
                used = int((routing.counts > 0).sum())
                rate = used * product.bytes() / us[0] / 1e6
                times = [f"{time:.1f}" for time in us] + [""] * (3 - len(us))
                lines.append((name, kind, rows, used, *times, f"{rate:.2f}"))
                print(*lines[-1], flush=True)
            del product
            torch.cuda.empty_cache()
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kernels", required=True, type=Path)
    parser.add_argument("--json", required=True, type=Path)
    parser.add_argument("--only", choices=["check", "time"])
    parser.add_argument("--rows", default=ROWS)
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    library = ctypes.CDLL(str(args.kernels.resolve()))
    torch.manual_seed(1)
    failures, cases, lines = [], 0, []
    if args.only in (None, "check"):
        failures, cases = check(library)
        print(f"{cases} cases checked, {len(failures)} failures", *failures[:20], sep="\n  ", flush=True)
    if args.only in (None, "time"):
        lines = time_products(library, [int(rows) for rows in args.rows.split(",")])
    head = ["product", "weights", "rows", "experts used", "at once, us", "one by one, us", "PyTorch, us", "at once, TB/s"]
    text = f"PyTorch {torch.__version__}. {cases} cases checked, {len(failures)} failures.\n\n" + results.table(2, head, lines)
    results.finish(args.json, torch.cuda.get_device_name(), args.commit, failures, text, cases=cases)


if __name__ == "__main__":
    main()
