#!/usr/bin/env python3
"""Checks and times the choice of tokens alone, on an NVIDIA GPU, in a minute.

    python3 scripts/bench_choose.py --kernels LIBRARY.so --json OUT.json [--only check|time]

The library is that of kernels/choose.cu and kernels/device.cu:
    nvcc -shared -Xcompiler=-fPIC -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a \\
        -o LIBRARY.so kernels/choose.cu kernels/device.cu
Checks: rows of 128,256 logits with filters, penalties, biases, masks and the most probable tokens against float64 in
NumPy; a row's bits, in every number of rows. Times: medians, with settings and results in pinned host memory. Needs
torch.
"""

import argparse
import ctypes
import statistics
from pathlib import Path

import numpy as np
import results
import torch

VOCAB, DRAW, DRAWN = 128_256, 16, 44
ROWS = (1, 16, 64, 256)
FLT_MAX = np.finfo(np.float32).max


class Args(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in "logits draws changes earlier drawn".split()),
        *((name, ctypes.c_uint32) for name in "vocab rows".split()),
    ]


class Row:
    """Settings of a row; fields as of `Draw` and `Changes` in djinn-device."""

    def __init__(self, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0, position=0, logprob=False, best=0,
                 repetition=1.0, frequency=0.0, presence=0.0, tokens=(), allowed=None, latest=None):
        self.__dict__.update({name: value for name, value in locals().items() if name != "self"})


def words(rows):
    """Draws, changes, and earlier tokens of rows."""
    draws, changes, earlier, length = np.zeros((len(rows), DRAW), np.uint32), [], [], 4
    changes.append(np.zeros(4, np.uint32))
    for draw, row in zip(draws, rows):
        floats = draw.view(np.float32)
        draw[0] = 1 | (2 if row.logprob else 0)
        floats[1], draw[2], floats[3], floats[4] = row.temperature, row.top_k, row.top_p, row.min_p
        draw[5], draw[6], draw[7] = row.seed & 0xFFFFFFFF, row.seed >> 32, row.position
        floats[8:11], draw[11] = (row.repetition, row.frequency, row.presence), row.best
        draw[12], draw[13] = length, len(row.tokens)
        if len(row.tokens):
            changes.append(np.ascontiguousarray(row.tokens).reshape(-1))
            length += changes[-1].size
        if row.allowed is not None:
            draw[14] = length + 1
            changes.append(np.pad(np.packbits(row.allowed, bitorder="little"), (0, 16)).view(np.uint32)[: VOCAB // 32])
            length += VOCAB // 32
        if row.latest is not None:
            draw[15] = len(earlier) + 1
            earlier.append(row.latest)
    return draws, np.concatenate(changes), np.array(earlier + [0] * 4, np.uint32)


def pinned(array):
    tensor = torch.empty(array.size, dtype=torch.int32, pin_memory=True)
    tensor.numpy().view(np.uint32)[:] = array.reshape(-1)
    return tensor


class Call:
    def __init__(self, library, logits, rows):
        self.library, self.count = library, len(rows)
        self.held = [logits, *(pinned(array) for array in words(rows)), pinned(np.zeros(len(rows) * DRAWN, np.uint32))]
        self.args = Args(*(tensor.data_ptr() for tensor in self.held), VOCAB, len(rows))
        self.passed = ctypes.byref(self.args), ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def run(self):
        code = self.library.djinn_choose(*self.passed)
        if code:
            raise RuntimeError(f"djinn_choose: CUDA error {code}")

    def drawn(self):
        self.run()
        torch.cuda.synchronize()
        return self.held[4].numpy().view(np.uint32).reshape(self.count, DRAWN).copy()


def changed(logits, row):
    """A row's logits after its changes, with the bits that devices give."""
    x = logits.copy()
    finite = np.isfinite(x)
    bias, count, seen = np.zeros(VOCAB, np.float32), np.zeros(VOCAB, np.uint32), np.zeros(VOCAB, bool)
    if len(row.tokens):
        tokens = row.tokens[:, 0]
        bias[tokens] = row.tokens[:, 1].view(np.float32)
        count[tokens], seen[tokens] = row.tokens[:, 2] & 0x7FFFFFFF, row.tokens[:, 2] >> 31 != 0
    if row.latest is not None:
        count[row.latest] += 1
        seen[row.latest] = True
    f32 = np.float32
    with np.errstate(over="ignore", invalid="ignore"):
        y = np.clip(x + bias, -FLT_MAX, FLT_MAX)
        y = np.where(seen, np.clip(np.where(y < 0, y * f32(row.repetition), y / f32(row.repetition)), -FLT_MAX, FLT_MAX), y)
        penalty = f32(row.frequency) * count.astype(np.float32) + f32(row.presence)
        y = np.where(count > 0, np.clip(y - penalty, -FLT_MAX, FLT_MAX), y)
    y = np.where(finite, y, x).astype(np.float32)
    return y if row.allowed is None else np.where(finite & ~row.allowed, -np.inf, y)


def uniforms(row):
    """Philox4x32-10 by tokens."""
    group = np.arange(-(-VOCAB // 4), dtype=np.uint64)
    low32 = np.uint64(0xFFFFFFFF)
    a, b, c, d = group, np.full_like(group, row.position), np.zeros_like(group), np.zeros_like(group)
    key = [np.uint64(row.seed & 0xFFFFFFFF), np.uint64(row.seed >> 32)]
    for _ in range(10):
        x, y = np.uint64(0xD2511F53) * a, np.uint64(0xCD9E8D57) * c
        a, b, c, d = (y >> np.uint64(32)) ^ b ^ key[0], y & low32, (x >> np.uint64(32)) ^ d ^ key[1], x & low32
        key = [(key[0] + np.uint64(0x9E3779B9)) & low32, (key[1] + np.uint64(0xBB67AE85)) & low32]
    bits = np.stack([a, b, c, d], 1).reshape(-1)[:VOCAB]
    step = np.float32(2.0**-32)
    uniform = bits.astype(np.float32) * step + step / np.float32(2)
    return np.minimum(uniform, np.float32(1) - np.finfo(np.float32).eps / np.float32(2)).astype(np.float64)


def winners(x, row):
    """The tokens that may win where sums and scores are off by what devices may be off by; -1 if that is unclear."""
    if row.temperature == 0.0 or row.top_k == 1:
        return [int(np.argmax(x))]
    order = np.argsort(-x.astype(np.float64), kind="stable")
    weight = (x[order].astype(np.float64) - float(x[order[0]])) / row.temperature
    if row.top_k:
        weight = weight[: row.top_k]
    gumbel = -np.log(-np.log1p(-uniforms(row)))
    found = []
    for off in (-1, 0, 1):
        kept = len(weight)
        if row.top_p < 1:
            sums = np.cumsum(np.exp(weight))
            kept = min(kept, int(np.searchsorted(sums, sums[-1] * np.float32(row.top_p) * (1 + off / 5e4))) + 1)
        kept = min(kept, int((np.exp(weight) >= min(1.0, np.float32(row.min_p) * (1 + off / 1e4))).sum()))
        score = np.sort(weight[:kept] + gumbel[order[:kept]])
        if kept > 1 and score[-1] - score[-2] < 2e-4:
            return [-1]
        found.append(int(order[np.argmax(weight[:kept] + gumbel[order[:kept]])]))
    return sorted(set(found))


def compare(logits, row, drawn):
    """What is wrong with a row of results, if anything; None where the winner is unclear."""
    x = changed(logits, row)
    found = winners(x, row)
    if len(found) > 1 or found == [-1]:
        return None
    normal = float(logits.max()) + np.log(np.exp(logits.astype(np.float64) - float(logits.max())).sum())
    floats, wrong = drawn.view(np.float32), []
    if drawn[0] != (1 | row.best << 8) or drawn[1] != found[0]:
        return f"{drawn[:2]} instead of {found}"
    if floats[2] != logits[found[0]]:
        wrong.append("logit")
    if row.logprob and not abs(floats[3] - (logits[found[0]] - normal)) < 1e-4:
        wrong.append(f"log-probability {floats[3]}")
    best = np.argsort(-logits.astype(np.float64), kind="stable")[: row.best]
    if not (np.array_equal(drawn[4 : 4 + 2 * row.best : 2], best)
            and np.all(np.abs(floats[5 : 5 + 2 * row.best : 2] - (logits[best] - normal)) < 1e-4)):
        wrong.append("most probable tokens")
    return ", ".join(wrong)


def changes(random, biased, penalised, latest=False):
    tokens = random.permutation(VOCAB)[: max(biased, penalised)].astype(np.uint32)
    at = np.arange(len(tokens))
    bias = np.where(at < biased, at % 21 - 10.0, 0.0).astype(np.float32)
    count = np.where(at < penalised, at % 4, 0).astype(np.uint32) | np.where((at < penalised) & (at % 3 > 0), 1 << 31, 0).astype(np.uint32)
    return np.stack([tokens, bias.view(np.uint32), count, np.zeros_like(tokens)], 1)


def settings(random, at):
    """Rows of every kind, in turn."""
    filters = [dict(), dict(temperature=0.8), dict(temperature=0.8, top_p=0.9), dict(temperature=1.5, top_k=40),
               dict(temperature=0.9, min_p=0.05), dict(temperature=2.0, top_k=1000, top_p=0.95, min_p=0.001)][at % 6]
    penalties = dict(repetition=1.3, frequency=0.4, presence=-0.3)
    some = [dict(), dict(tokens=changes(random, 300, 0)), dict(tokens=changes(random, 0, 400), **penalties),
            dict(allowed=random.random(VOCAB) < 0.5), dict(allowed=random.random(VOCAB) < 2e-4),
            dict(tokens=changes(random, 0, 9000), latest=int(random.integers(VOCAB)), **penalties),
            dict(tokens=(known := changes(random, 1024, 30000)), allowed=random.random(VOCAB) < 0.9,
                 latest=int(known[7, 0]), **penalties)][at % 7]
    return Row(seed=int(random.integers(1 << 62)), position=at, logprob=at % 2 == 0, best=[0, 1, 20, 5, 0][at % 5], **filters, **some)


def check(library):
    random = np.random.default_rng(1)
    # Logits of a model, many equal ones, and many close ones: by deviation and by steps in 1.
    kinds = [(5, 1e4), (5, 2), (0.5, 1e6), (5, 1e4)] * 64
    logits = np.stack([np.round(random.standard_normal(VOCAB) * wide * steps) / steps for wide, steps in kinds]).astype(np.float32)
    logits[:, ::97] = -np.inf
    device, rows = torch.from_numpy(logits).cuda(), [settings(random, at) for at in range(256)]
    whole = Call(library, device, rows).drawn()
    failures, checked = [], 0
    for at in range(256):
        if at % 4 == 3:
            continue
        wrong = compare(logits[at], rows[at], whole[at])
        checked += wrong is not None
        if wrong:
            failures.append(f"row {at}: {wrong}")
    for count in (1, 2, 7, 33, 128):
        for first in (0, 256 - count):
            part = Call(library, device[first:], rows[first : first + count]).drawn()
            if not np.array_equal(part, whole[first : first + count]):
                failures.append(f"rows {first}+{count}: bits differ from those of 256")
    if not np.array_equal(device.cpu().numpy(), logits):
        failures.append("logits are not as they were")
    # Bad rows say so: one by its logits, one by its mask.
    bad = logits[:2].copy()
    bad[0, 777] = np.nan
    none = np.zeros(VOCAB, bool)
    none[97] = True
    drawn = Call(library, torch.from_numpy(bad).cuda(), [rows[0], Row(allowed=none)]).drawn()
    if drawn[:, :2].tolist() != [[2, 777], [2, 0]]:
        failures.append(f"bad rows give {drawn[:, :4]}")
    return failures, checked


def median_us(work, repeats=7, each=20):
    times = []
    for i in range(repeats + 2):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(each):
            work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / each)
    return statistics.median(times[2:])


def time_all(library):
    random, lines = np.random.default_rng(2), []
    # As of a model with random weights, whose probabilities are even, and as of a trained one.
    even, logits = (torch.randn(256, VOCAB, device="cuda").mul_(deviation) for deviation in (1.25, 3))
    top_p = dict(temperature=1.0, top_p=0.9)
    kinds = {
        "greedy": dict(),
        "temperature 1": dict(temperature=1.0),
        "temperature 1, even logits": dict(temperature=1.0),
        "top-k 50": dict(temperature=1.0, top_k=50),
        "top-p 0.9": top_p,
        "top-p 0.9, even logits": top_p,
        "and 300 biases": dict(tokens=changes(random, 300, 0), **top_p),
        "and penalties of 256 generated tokens": dict(tokens=changes(random, 0, 256), frequency=0.5, latest=5, **top_p),
        "and a repetition penalty of 4,096 tokens": dict(tokens=changes(random, 0, 4096), repetition=1.2, latest=5, **top_p),
        "and a mask": dict(allowed=random.random(VOCAB) < 0.5, **top_p),
        "and the 20 most probable": dict(best=20, logprob=True, **top_p),
    }
    for name, kind in kinds.items():
        of = even if "even" in name else logits
        times = [median_us(Call(library, of, [Row(seed=at, **kind) for at in range(rows)]).run) for rows in ROWS]
        lines.append((name, *(f"{us:.1f}" for us in times)))
        print(name, *lines[-1][1:], "us", flush=True)
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kernels", required=True, type=Path)
    parser.add_argument("--json", required=True, type=Path)
    parser.add_argument("--only", choices=["check", "time"])
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    library = ctypes.CDLL(str(args.kernels.resolve()))
    failures, checked, lines = [], 0, []
    if args.only != "time":
        failures, checked = check(library)
        print(f"{checked} rows checked, {len(failures)} failures", *failures[:20], sep="\n  ", flush=True)
    if args.only != "check":
        lines = time_all(library)
    text = f"{checked} rows of {VOCAB} logits checked, {len(failures)} failures. Microseconds by rows:\n\n"
    text += results.table(1, ["choice", *ROWS], lines)
    results.finish(args.json, torch.cuda.get_device_name(), args.commit, failures, text, checked=checked, us=lines)


if __name__ == "__main__":
    main()
