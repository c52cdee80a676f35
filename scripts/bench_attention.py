#!/usr/bin/env python3
"""Checks and times attention over pages alone, on an NVIDIA GPU, beside PyTorch's flash attention, in a minute.

    python3 scripts/bench_attention.py --kernels LIBRARY.so --json OUT.json [--only check|time|decoding] [--kv int8]

The library is that of kernels/attention*.cu and kernels/kv.cu:
    nvcc -shared -Xcompiler=-fPIC -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a \\
        -o LIBRARY.so kernels/attention*.cu kernels/kv.cu kernels/device.cu
Checks: rows against float64, for every size of head, windows and biases; a row's bits, whatever is launched with it.
Times: medians of one layer, of Llama-3.1-8B where no other shape is named, and its share of what the card can do; while
decoding, beside plain reads of as many pages (scripts/reads.py).
With --kv int8 both are of keys and values in int8, times beside bf16; checks are also of how vectors are written.
Needs torch and nvcc.
"""

import argparse
import ctypes
import datetime
import statistics
import sys
from pathlib import Path

import results
import torch
import torch.nn.functional as functional
from bench_linear import Rounded
from reads import Reader
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.int8: 3}
WORKSPACE = 64 << 20
COUNTERS = 1 << 14
PAGE = 16
# Rows of a sequence in a longer run take another path.
PREFILL_RUN = 32
# The suite's bounds for devices that round.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.int8: 2e-3}


class Pages(ctypes.Structure):
    _fields_ = [
        ("pages", ctypes.c_void_p),
        ("page_table", ctypes.c_void_p),
        ("page_bytes", ctypes.c_uint64),
        *((name, ctypes.c_uint32) for name in "dtype page_tokens kv_heads head_dim table_width".split()),
    ]


class Args(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in "qkv row_seq positions out workspace".split()),
        ("workspace_bytes", ctypes.c_uint64),
        ("counters", ctypes.c_void_p),
        ("kv", Pages),
        ("heads", ctypes.c_uint32),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_uint32) for name in "window alibi rows short_runs".split()),
        ("rounded", Rounded),
    ]


class Write(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in "qkv row_seq positions".split()),
        ("kv", Pages),
        *((name, ctypes.c_uint32) for name in "heads rows".split()),
    ]


def quantise(vectors):
    """Integers and scales of vectors, as djinn-device defines them."""
    largest = vectors.abs().amax(-1, keepdim=True)
    most = torch.full_like(largest, 127)
    scale = largest / most
    scale = torch.where(scale < torch.finfo(torch.float32).tiny, 0.0, scale)
    by = torch.where(scale > 0, most / largest, 0.0)
    finite = vectors.isfinite().all(-1, keepdim=True)
    integers = torch.where(finite & (scale > 0), vectors * by, 0.0).round().to(torch.int8)
    return integers, torch.where(finite, scale, torch.nan)[..., 0]


def int8_pages(vectors):
    """Bytes of vectors [..., slots, dim]: their integers, then their scales."""
    integers, scales = quantise(vectors)
    return torch.cat([integers.flatten(-2).view(torch.uint8), scales.contiguous().view(torch.uint8)], -1)


class Case:
    """Sequences of (first position, rows) over one cache of one layer, in pages of `page` tokens."""

    def __init__(
        self,
        library,
        segments,
        heads=32,
        kv_heads=8,
        dim=128,
        dtype=torch.bfloat16,
        window=0,
        alibi=0,
        spread=1.0,
        page=PAGE,
    ):
        self.library, self.segments, self.dtype = library, segments, dtype
        self.heads, self.kv_heads, self.dim, self.window, self.alibi = heads, kv_heads, dim, window, alibi
        self.scale = spread / dim**0.5
        longest = max(first + rows for first, rows in segments)
        self.page, self.width = page, -(-longest // page)
        count = len(segments) * self.width
        self.table = torch.randperm(count, device="cuda", dtype=torch.int32).reshape(len(segments), self.width)
        if dtype == torch.int8:
            # In parts: numbers are four times as large as what is kept of them.
            self.pages = torch.empty(count, 2, kv_heads, page * (dim + 4), device="cuda", dtype=torch.uint8)
            for part in self.pages.split(1 << 12):
                part.copy_(int8_pages(torch.empty(len(part), 2, kv_heads, page, dim, device="cuda").uniform_(-1, 1)))
        else:
            self.pages = torch.empty(count, 2, kv_heads, page, dim, device="cuda", dtype=dtype).uniform_(-1, 1)
        self.row_seq = torch.tensor(
            [s for s, (_, rows) in enumerate(segments) for _ in range(rows)], device="cuda", dtype=torch.int32
        )
        self.positions = torch.cat([torch.arange(f, f + n, device="cuda", dtype=torch.int32) for f, n in segments])
        self.qkv = torch.empty(len(self.positions), (heads + 2 * kv_heads) * dim, device="cuda").uniform_(-1, 1)
        self.workspace = torch.empty(WORKSPACE, device="cuda", dtype=torch.uint8)
        self.counters = torch.zeros(COUNTERS, device="cuda", dtype=torch.int32)

    def kv(self):
        bytes_of_page = self.pages[0].nbytes
        shape = DTYPES[self.dtype], self.page, self.kv_heads, self.dim, self.width
        return Pages(self.pages.data_ptr(), self.table.data_ptr(), bytes_of_page, *shape)

    def args(self, rows, out, workspace=WORKSPACE):
        at = lambda tensor: tensor[rows].data_ptr()
        return Args(
            at(self.qkv),
            at(self.row_seq),
            at(self.positions),
            out.data_ptr(),
            self.workspace.data_ptr() if workspace else None,
            workspace,
            self.counters.data_ptr(),
            self.kv(),
            self.heads,
            self.scale,
            self.window,
            self.alibi,
            rows.stop - rows.start,
            all(rows <= PREFILL_RUN for _, rows in self.segments),
        )

    def launch(self, args):
        code = self.library.djinn_attention(
            ctypes.byref(args), ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        )
        if code:
            raise RuntimeError(f"djinn_attention: CUDA error {code}")

    def run(self, first=0, count=None, workspace=WORKSPACE):
        rows = slice(first, len(self.positions) if count is None else first + count)
        out = torch.full((rows.stop - rows.start, self.heads, self.dim), float("nan"), device="cuda")
        self.launch(self.args(rows, out, workspace))
        torch.cuda.synchronize()
        return out

    def write(self):
        """Writes the rows' keys and values."""
        at = (self.qkv.data_ptr(), self.row_seq.data_ptr(), self.positions.data_ptr())
        args = Write(*at, self.kv(), self.heads, len(self.positions))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        code = self.library.djinn_kv_write(ctypes.byref(args), stream)
        if code:
            raise RuntimeError(f"djinn_kv_write: CUDA error {code}")
        torch.cuda.synchronize()

    def stored(self, sequence):
        """Keys and values of a sequence, [pages, 2, kv_heads, slots, dim]; integers in float32, with their scales."""
        pages = self.pages[self.table[sequence].long()]
        if self.dtype != torch.int8:
            return pages
        integers = pages[..., : self.page * self.dim].contiguous().view(torch.int8).unflatten(-1, (self.page, self.dim))
        scales = pages[..., self.page * self.dim :].contiguous().view(torch.float32)
        return integers.float(), scales

    def dense(self, sequence):
        """Keys and values of a sequence, [kv_heads, positions, dim]."""
        pages = self.stored(sequence)
        if self.dtype == torch.int8:
            pages = pages[0] * pages[1][..., None]
        both = pages.permute(1, 2, 0, 3, 4).reshape(2, self.kv_heads, -1, self.dim)
        return both[0], both[1]

    def reference(self, row):
        """A row in float64, [heads, dim]."""
        position, sequence = int(self.positions[row]), int(self.row_seq[row])
        begin = max(0, position + 1 - self.window) if self.window else 0
        keys, values = (x[:, begin : position + 1].double() for x in self.dense(sequence))
        query = self.qkv[row, : self.heads * self.dim].double().reshape(self.kv_heads, -1, self.dim)
        scores = query @ keys.transpose(1, 2)
        if self.alibi:
            power = 1 << (self.heads.bit_length() - 1)
            slopes = [
                2.0 ** (-8 * (i + 1) / power) if i < power else 2.0 ** (-4 * (2 * (i - power) + 1) / power)
                for i in range(self.heads)
            ]
            bf16 = lambda x: x.bfloat16().double()
            slopes = bf16(torch.tensor(slopes, device="cuda")).reshape(self.kv_heads, -1, 1)
            scores = scores + bf16((slopes * bf16(torch.arange(begin, position + 1, device="cuda").float())).float())
        return ((scores * self.scale).softmax(-1) @ values).reshape(self.heads, self.dim)

    def error(self, out, rows):
        want = torch.stack([self.reference(row) for row in rows])
        return float((out[rows].double() - want).norm() / want.norm())


# Numbers whose integers or scales are delicate: ties, none but tiny ones, the largest, and those that are not finite.
DELICATE = (
    (127.0, 0.5, -1.5, 2.5),
    (1.0e-37, -1.0e-40, 0.0, -0.0),
    (3.4028235e38, 1.0, -3.4028235e38, 0.3),
    (1.0, float("nan"), 0.0, -1.0),
    (0.0, 1.0, float("inf"), 2.0),
    (float("-inf"), float("nan"), 1.0, 0.0),
)


def check_writes(library):
    """Failures: vectors written as int8 beside those that the host computes."""
    failures = []
    shapes = [(2, 64, 16), (8, 128, 16), (1, 80, 16), (2, 256, 32), (2, 20, 5), (1, 33, 64), (1, 8, 1)]
    for kv_heads, dim, page in shapes:
        case = Case(library, [(60, 9), (0, 17), (129, 70)], 2 * kv_heads, kv_heads, dim, torch.int8, page=page)
        vectors = case.qkv.unflatten(1, (4 * kv_heads, dim))[:, 2 * kv_heads :]
        vectors *= torch.logspace(-30, 30, len(vectors), device="cuda")[:, None, None]
        for row, numbers in enumerate(DELICATE):
            vectors[row, -1] = torch.tensor(numbers, device="cuda").repeat(dim // 4 + 1)[:dim]
        want = quantise(vectors.cpu())
        case.write()
        for row, (sequence, position) in enumerate(zip(case.row_seq.tolist(), case.positions.tolist())):
            got = [part[position // page, :, :, position % page].flatten(0, 1).cpu() for part in case.stored(sequence)]
            if not torch.equal(got[0], want[0][row].float()) or not torch.equal(
                got[1].nan_to_num(-1), want[1][row].nan_to_num(-1)
            ):
                failures.append(f"{kv_heads}x{dim}, pages of {page}: row {row} is written otherwise")
    return failures


INT8_ROWS = (1, 2, 32, 33, 64)


def check_int8(library):
    """Failures: rows after contexts on both sides of where they are cut, for sizes of heads; pages of other sizes."""
    failures = check_writes(library)
    shapes = [(8, 2, dim, PAGE) for dim in (64, 80, 96, 128, 256)]
    for heads, kv_heads, dim, page in [*shapes, (9, 3, 64, 64), (2, 2, 20, 5), (5, 1, 33, 64), (1, 1, 8, 1)]:
        for rows in INT8_ROWS:
            segments = [(context, rows) for context in (0, 1, 255, 256, 257, 2048, 16384)]
            case = Case(library, segments, heads, kv_heads, dim, torch.int8, spread=4.0, page=page)
            out = case.run()
            name = f"{heads}/{kv_heads}x{dim}, pages of {page}, {rows} rows"
            for i, (context, _) in enumerate(segments):
                own = range(i * rows, (i + 1) * rows)
                error = case.error(out, [own[0], own[-1]]) / TOLERANCE[torch.int8]
                if not error <= 1:
                    failures.append(f"{name} after {context}: error {error:.3g} of what is allowed")
                if not torch.equal(case.run(own[0], rows), out[own[0] : own[0] + rows]):
                    failures.append(f"{name} after {context} have other bits alone")
    # Small and large values, with few rows far beyond f16; and one vector that is no number.
    for rows, sizes in ((20, (1e-20, 1e15)), (70, (1e-2, 1e2))):
        for size in sizes:
            case = Case(library, [(1000, rows)], 8, 2, 128, torch.int8, spread=4.0)
            case.pages[:, 1, :, PAGE * 128 :].view(torch.float32).mul_(size)
            error = case.error(case.run(), list(range(rows))) / TOLERANCE[torch.int8]
            if not error <= 1:
                failures.append(f"{rows} rows of values times {size}: error {error:.3g} of what is allowed")
        for part in (0, 1):
            case = Case(library, [(1000, rows)], 8, 2, 128, torch.int8)
            want, at = case.run(), 1000 + rows // 2
            page = case.pages[int(case.table[0, at // PAGE]), part, 1, PAGE * 128 :]
            page.view(torch.float32)[at % PAGE] = float("nan")
            got, bad = case.run(), torch.zeros(rows, 8, 1, dtype=torch.bool, device="cuda")
            bad[rows // 2 :, 4:] = True
            # As with other types, a value that is no number may reach rows before it in a long run.
            good = ~bad.expand_as(got) if rows <= 32 or part == 0 else torch.zeros_like(got, dtype=torch.bool)
            bad = bad.expand_as(got)
            if got[good].isnan().any() or not got[bad].isnan().all() or not torch.equal(got[good], want[good]):
                failures.append(f"{rows} rows: a vector of {('keys', 'values')[part]} that is no number")
    return failures


def check(library, dtypes):
    """Failures, and the worst error of each type as a part of what is allowed."""
    failures, worst, cases = [], {}, 0
    segments = [(60, 40), (0, 70), (5, 3), (4090, 1), (4000, 140), (8191, 33), (300, 1), (9000, 300)]
    shapes = [
        (32, 8, 128),
        (8, 8, 64),
        (9, 3, 64),
        (4, 4, 80),
        (6, 2, 96),
        (4, 2, 256),
        (71, 1, 64),
        (29, 1, 128),
        (2, 2, 8),
        (3, 1, 24),
    ]
    for heads, kv_heads, dim in shapes:
        print(f"checking {heads}/{kv_heads}x{dim}", *failures[-2:], flush=True)
        for dtype in dtypes:
            for window, alibi in ((0, 0), (700, 0), (5000, 0), (0, 1), (100, 1)):
                case = Case(library, segments, heads, kv_heads, dim, dtype, window, alibi, spread=4.0)
                name = f"{heads}/{kv_heads}x{dim} {dtype} window {window} alibi {alibi}"
                out = case.run()
                rows = [*range(3, len(case.positions), 97), len(case.positions) - 1]
                error = case.error(out, rows) / TOLERANCE[dtype]
                worst[str(dtype)] = max(worst.get(str(dtype), 0), error)
                cases += 1
                if not error <= 1 or out.isnan().any():
                    failures.append(
                        f"{name}: error {error:.3g} of what is allowed, {int(out.isnan().sum())} elements NaN"
                    )
                first = 0
                for position, count in segments:
                    if not torch.equal(case.run(first, count), out[first : first + count]):
                        failures.append(f"{name}: {count} rows from {position} have other bits alone")
                    first += count
                # The long run in two, and with room for few rows.
                first -= 300
                parts = torch.cat([case.run(first, 77), case.run(first + 77, 223)])
                if not torch.equal(parts, out[first:]):
                    failures.append(f"{name}: a run in two parts has other bits")
                for workspace in (1 << 20, 3 << 20):
                    if not torch.equal(case.run(workspace=workspace), out):
                        failures.append(f"{name}: other bits with a workspace of {workspace}")
    print("checking long contexts", *failures[-2:], flush=True)
    failures += check_contexts(library, dtypes[0])
    print("checking batches", *failures[-2:], flush=True)
    return failures + check_decoding(library, dtypes), {"cases": cases + len(CONTEXTS), "worst_of_allowed": worst}


# Tokens before long runs.
CONTEXTS = (1, 255, 256, 257, 2048, 7168, 16384, 131072 - 500)


def check_contexts(library, dtype):
    """Failures: long runs in long contexts against float64, and against parts of them."""
    failures = []
    for context in CONTEXTS:
        # Scores that spread so far that later tiles have greater ones. All rows keep the card busy with units of all
        # splits, their parts do not.
        case = Case(library, [(context - 1, 1)] * 3 + [(context, 500)], dtype=dtype, spread=12.0)
        out = case.run()
        for first, count in ((0, 1), (2, 1), (3, 33), (3, 100), (100, 64), (2, 401)):
            if not torch.equal(case.run(first, count), out[first : first + count]):
                failures.append(f"{count} rows from {first} after {context} have other bits than in a batch")
        error = case.error(out, [0, 3, 200, 502]) / TOLERANCE[case.dtype]
        if not error <= 1:
            failures.append(f"after {context}: error {error:.3g} of what is allowed")
    return failures


def check_decoding(library, dtypes):
    """Failures: rows of many lengths in one launch against float64, and against the same rows alone."""
    failures = []
    lengths, first, last = torch.Generator().manual_seed(2), dtypes[0], dtypes[-1]
    for heads, kv_heads, dim, dtype, window, page in (
        (32, 8, 128, first, 0, 16),
        (40, 40, 128, last, 0, 16),
        (64, 8, 128, first, 0, 16),
        (16, 8, 256, first, 0, 16),
        (32, 8, 64, last, 900, 16),
        (32, 8, 128, last, 0, 64),
        (8, 2, 128, first, 300, 8),
        (8, 2, 80, first, 0, 5),
        (6, 2, 256, last, 0, 24),
    ):
        for count, longest in ((1, 16000), (3, 70000), (17, 5000), (150, 3000), (400, 300)):
            contexts = torch.randint(longest // 2 if count == 1 else 1, longest, (count,), generator=lengths).tolist()
            if count == 17:
                contexts[:3] = [127, 128, 60000]
            name = f"{heads}/{kv_heads}x{dim} {dtype} window {window}, pages of {page}, {count} rows"
            segments = [(c, 1) for c in contexts]
            case = Case(library, segments, heads, kv_heads, dim, dtype, window, spread=4.0, page=page)
            out = case.run()
            rows = list(range(0, count, max(1, count // 12)))
            error = case.error(out, rows) / TOLERANCE[dtype]
            if not error <= 1 or out.isnan().any():
                failures.append(f"{name}: error {error:.3g} of what is allowed, {int(out.isnan().sum())} elements NaN")
            for row in rows:
                if not torch.equal(case.run(row, 1), out[row : row + 1]):
                    failures.append(f"{name}: row {row} after {contexts[row]} has other bits alone")
            for workspace in (0, 1 << 16, 1 << 20, 5 << 20):
                if not torch.equal(case.run(workspace=workspace), out):
                    failures.append(f"{name}: other bits with a workspace of {workspace}")
    return failures


def milliseconds(works, runs=5):
    """The median time of all works, one after the other."""
    for work in works:
        work()
    samples = []
    for _ in range(runs):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for work in works:
            work()
        end.record()
        torch.cuda.synchronize()
        samples.append(begin.elapsed_time(end))
    return statistics.median(samples)


def flash(case, rows):
    """PyTorch's flash attention for rows of the one sequence."""
    last = int(case.positions[rows.stop - 1]) + 1
    dtype = torch.bfloat16 if case.dtype == torch.int8 else case.dtype
    keys, values = (x[None, :, :last].to(dtype).contiguous() for x in case.dense(0))
    queries = (
        case.qkv[rows, : case.heads * case.dim]
        .to(dtype)
        .reshape(1, -1, case.heads, case.dim)
        .transpose(1, 2)
        .contiguous()
    )
    mask = causal_lower_right(queries.shape[2], last)

    def work():
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            functional.scaled_dot_product_attention(
                queries, keys, values, attn_mask=mask, scale=case.scale, enable_gqa=True
            )

    return work


# Rows after some tokens, and rows of a launch; types of keys and values.
PROMPTS = (
    (0, 2048, 512),
    (0, 8192, 512),
    (0, 16384, 512),
    (0, 16384, 2048),
    (32247, 64, 64),
    (32247, 512, 512),
    (0, 512, 512),
)


def time_prompts(library, dtypes):
    table = []
    for first, rows, chunk, dtype in ((*prompt, dtype) for prompt in PROMPTS for dtype in dtypes):
        case = Case(library, [(first, rows)], dtype=dtype)
        out = torch.empty(rows, case.heads, case.dim, device="cuda")
        works = []
        for at in range(0, rows, chunk):
            part = slice(at, at + chunk)
            args = case.args(part, out[part])
            works.append(lambda args=args: case.launch(args))
        own = milliseconds(works)
        try:
            theirs = milliseconds([flash(case, slice(0, rows))])
        except RuntimeError as error:
            theirs, _ = None, print(str(error)[:200])
        operations = 4 * case.heads * case.dim * sum(first + at + 1 for at in range(rows))
        table.append(
            {
                "after": first,
                "rows": rows,
                "chunk": chunk,
                "kv": str(dtype).removeprefix("torch."),
                "ms": own,
                "tflops": operations / own / 1e9,
                "flash_ms": theirs,
                "flash_tflops": theirs and operations / theirs / 1e9,
            }
        )
        print("prompt", {k: round(v, 3) if isinstance(v, float) else v for k, v in table[-1].items()}, flush=True)
    return table


# Sequences and tokens before each; then heads, key heads and type where they are not those of Llama-3.1-8B.
DECODING = (
    (1, 512),
    (1, 2048),
    (1, 8192),
    (1, 32759),
    (1, 131071),
    (4, 8192),
    (8, 131071),
    (12, 32759),
    (16, 2048),
    (64, 512),
    (64, 2048),
    (64, 8192),
    (128, 512),
    (128, 2048),
    (256, 512),
    (256, 2048),
    (1, 512, 40, 40, torch.float16),
    (1, 1024, 40, 40, torch.float16),
    (1, 2048, 40, 40, torch.float16),
    (16, 2048, 40, 40, torch.float16),
    (1, 2048, 64, 8, torch.bfloat16),
    (64, 2048, 64, 8, torch.bfloat16),
)


def copies_of_pages(case, copies):
    return [case.pages, *(case.pages.clone() for _ in range(copies - 1))]


def microseconds_of_decoding(case, copies):
    """The median time of a launch for all rows of a case; copies of the pages take turns."""
    out = torch.empty(len(case.positions), case.heads, case.dim, device="cuda")
    works = []
    for pages in copies:
        mine = case.args(slice(0, len(case.positions)), out)
        mine.kv.pages = pages.data_ptr()
        works.append(lambda mine=mine: case.launch(mine))
    works *= -(-8 // len(copies))
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for work in works:
            work()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for work in works:
                work()
    return milliseconds([graph.replay], runs=15) / len(works) * 1e3


def time_decoding(library, dtypes):
    table, reader = [], Reader()
    # Each with the types, or with its own alone.
    cases = [(s, c, 32, 8, dtype) for s, c, *shape in DECODING if not shape for dtype in dtypes]
    cases += [case for case in DECODING if len(case) > 2 and torch.int8 not in dtypes]
    for sequences, context, heads, kv_heads, dtype in cases:
        case = Case(library, [(context, 1)] * sequences, heads, kv_heads, dtype=dtype)
        vector = case.dim * dtype.itemsize + (4 if dtype == torch.int8 else 0)
        size = sequences * (context + 1) * case.kv_heads * 2 * vector
        # Small caches take turns, so that no cache of the card holds them.
        copies = copies_of_pages(case, max(1, min(128, -(-(1 << 28) // size))))
        read_us = reader.us(copies, chunk=case.page * vector, shuffled=True)
        us = microseconds_of_decoding(case, copies)
        del case, copies
        # What a launch takes with one position a row.
        start = Case(library, [(0, 1)] * sequences, heads, kv_heads, dtype=dtype)
        row = {"sequences": sequences, "context": context, "heads": heads, "kv_heads": kv_heads}
        row["kv"] = str(dtype).removeprefix("torch.")
        start_us = microseconds_of_decoding(start, copies_of_pages(start, 8))
        row |= {"us": us, "tb_per_s": size / us / 1e6, "start_us": start_us, "read_us": read_us}
        table.append(row)
        print("decode", {k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    return table


def markdown(report):
    """What `djinn-bench report` prints of a report."""
    where = ", ".join([report["machine"], report["gpu"], report["date"], f"commit {report['commit']}"])
    text = f"{where}: `{report['command']}`\n\n"
    if "check" in report:
        text += f"{report['check']['cases']} cases checked, {len(report['failures'])} failures.\n\n"
    if "prompts" in report:
        rows = [
            [r["after"], r["rows"], r["chunk"], r["kv"], f"{r['ms']:.3f}", f"{r['tflops']:.0f}"]
            + [f"{r[key]:.{digits}f}" if r[key] else "" for key, digits in (("flash_ms", 3), ("flash_tflops", 0))]
            for r in report["prompts"]
        ]
        head = ["tokens before", "rows", "rows of a launch", "keys and values", "ms a layer", "TFLOP/s"]
        head += ["PyTorch's flash, ms", "TFLOP/s"]
        text += results.table(0, head, rows) + "\n"
    if "decoding" in report:
        copies = report["copy_tb_per_s"]
        rows = [
            [r["sequences"], r["context"], f"{r['heads']}/{r['kv_heads']}", r["kv"]]
            + [f"{r['us']:.1f}", f"{r['start_us']:.1f}"]
            + [f"{r['tb_per_s']:.2f}", f"{r['tb_per_s'] / copies:.2f}", f"{r['read_us']:.1f}"]
            for r in report["decoding"]
        ]
        head = ["sequences", "tokens each", "heads", "keys and values", "us a layer", "us after no tokens", "TB/s"]
        head += [f"of a copy's {copies:.2f} TB/s", "us of a plain read"]
        text += results.table(0, head, rows)
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kernels", required=True)
    parser.add_argument("--json", required=True, type=Path)
    parser.add_argument("--commit", default="unknown", help="that of the library")
    parser.add_argument("--only", choices=("check", "time", "decoding"))
    parser.add_argument("--kv", choices=("floats", "int8"), default="floats")
    args = parser.parse_args()
    torch.manual_seed(1)
    library = ctypes.CDLL(args.kernels)
    report = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": args.commit,
        "machine": results.machine(torch.cuda.get_device_name()),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "command": "scripts/bench_attention.py " + " ".join(a for a in sys.argv[1:] if "/" not in a),
    }
    failures, int8 = [], args.kv == "int8"
    if args.only in (None, "check"):
        failures, report["check"] = check(library, [torch.int8] if int8 else [torch.bfloat16, torch.float16])
        if int8:
            print("checking writes, and rows after contexts", flush=True)
            failures += check_int8(library)
        print(report["check"], *failures[:12], sep="\n", flush=True)
    if args.only != "check":
        x = torch.empty(1 << 30, dtype=torch.float32, device="cuda")
        y = torch.empty_like(x)
        report["copy_tb_per_s"] = 2 * x.nbytes / milliseconds([lambda: y.copy_(x)]) / 1e9
        del x, y
        print("copies", report["copy_tb_per_s"], "TB/s")
        dtypes = [torch.bfloat16, torch.int8] if int8 else [torch.bfloat16]
        report["prompts"] = time_prompts(library, dtypes) if args.only != "decoding" else []
        report["decoding"] = time_decoding(library, dtypes)
    report["failures"] = failures
    results.write(args.json, report, markdown(report))
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
