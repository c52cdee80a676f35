"""What the peers share: arguments, shapes, the cap, random weights, an eager Llama, the clock and the report.

Every peer prints one JSON object: `samples` (as `djinn-bench sample` prints them), or `unavailable` with the reason.
Device memory is allocated plainly, by PyTorch's caching allocator, and limited to the cap less what the context takes.
"""

import argparse
import gc
import json
import resource
import statistics
import subprocess
import sys
import time

GIB = 1 << 30
MIB = 1 << 20
# layers, hidden, heads, kv heads, intermediate, vocabulary
SHAPES = {
    "tiny": (2, 64, 4, 4, 160, 256),
    "7b": (32, 4096, 32, 32, 11008, 32000),
    "8b": (32, 4096, 32, 8, 14336, 128256),
    "13b": (40, 5120, 40, 40, 13824, 32000),
    "70b": (80, 8192, 64, 8, 28672, 32000),
}
DEVIATION = 0.02
# Kernels that are loaded after the context was measured, in bytes.
LATE = 96 * MIB


def arguments():
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--model", choices=SHAPES, required=True)
    parser.add_argument("--vram-gib", type=float, required=True, help="cap on device memory")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=51, help="tokens to generate, the first included")
    parser.add_argument("--runs", type=int, default=1, help="samples, after one short generation that is not timed")
    parser.add_argument("--most-seconds", type=float, help="start no further run after so long")
    parser.add_argument("--device", default="cuda:0", help="cpu checks the script and measures nothing of use")
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the output is always JSON")
    return parser.parse_args()


def unavailable(why):
    """Says that this peer cannot run here, which is no failure."""
    print(json.dumps({"unavailable": " ".join(str(why).split())[:300]}))
    sys.exit(0)


def import_torch():
    try:
        import torch

        return torch
    except ImportError as error:
        unavailable(error)


torch = import_torch()
from torch.nn import functional as F  # noqa: E402


class Shape:
    """A model's sizes; f16 throughout."""

    def __init__(self, name):
        self.layers, self.hidden, self.heads, self.kv_heads, self.ffn, self.vocab = SHAPES[name]
        self.head_dim = self.hidden // self.heads
        kv = 2 * self.kv_heads * self.head_dim
        self.parts = {
            "norm1": (self.hidden,),
            "qkv": (self.hidden + kv, self.hidden),
            "o": (self.hidden, self.hidden),
            "norm2": (self.hidden,),
            "gate_up": (2 * self.ffn, self.hidden),
            "down": (self.hidden, self.ffn),
        }
        self.block_numel = sum(torch.Size(s).numel() for s in self.parts.values())
        self.block_bytes = 2 * self.block_numel

    def views(self, flat):
        """A block's weights in its flat buffer."""
        found, at = {}, 0
        for name, shape in self.parts.items():
            numel = torch.Size(shape).numel()
            found[name] = flat[at : at + numel].view(shape)
            at += numel
        return found

    def kv_bytes(self, context):
        return 4 * self.layers * self.kv_heads * self.head_dim * context

    def work_bytes(self, rows):
        """Activations of `rows` rows and workspaces; generous."""
        return rows * (8 * self.ffn + 16 * self.hidden) * 2 + self.vocab * 8 + 128 * MIB


def card_used(device):
    """Bytes in use on the card by all processes; None where nothing tells."""
    command = ["nvidia-smi", "-i", str(device.index or 0), "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) * MIB
    except (OSError, ValueError, subprocess.CalledProcessError):
        return None


def cap(device, vram_gib):
    """Opens the device and limits PyTorch's allocator to the cap less what the context and its kernels take; gives
    the limit in bytes. Without a cap (None) gives all memory."""
    if device.type == "cpu":
        return 1 << 62
    if not torch.cuda.is_available():
        unavailable("PyTorch sees no CUDA device")
    before = card_used(device)
    torch.cuda.set_device(device)
    x = torch.ones(64, 64, device=device, dtype=torch.float16)
    F.rms_norm((x @ x).softmax(0), (64,)).sum().item()
    after = card_used(device)
    total = torch.cuda.mem_get_info(device)[1]
    if vram_gib is None:
        return total
    if before is None or after is None:
        context = 640 * MIB
    else:
        context = after - before - torch.cuda.memory_reserved(device)
    limit = int(vram_gib * GIB) - context - LATE
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device)
    return limit


def random_block(shape, device):
    """A block's weights: N(0, 0.02^2), norms 1."""
    flat = torch.empty(shape.block_numel, dtype=torch.float16, device=device).normal_(0, DEVIATION)
    for name in ("norm1", "norm2"):
        shape.views(flat)[name].fill_(1)
    return flat


class Pinned:
    """Host memory of exactly the wanted size, page-locked: PyTorch's own pinned allocator rounds sizes up."""

    def __init__(self, count, numel, device):
        self.registered, self.tensor = False, torch.empty(count, numel, dtype=torch.float16)
        if device.type == "cuda" and count > 0:
            size = self.tensor.numel() * 2
            code = torch.cuda.cudart().cudaHostRegister(self.tensor.data_ptr(), size, 0)
            if int(code) != 0:
                raise RuntimeError(f"cudaHostRegister of {size} bytes: error {int(code)}")
            self.registered = True

    def free(self):
        if self.registered:
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaHostUnregister(self.tensor.data_ptr())
        self.registered, self.tensor = False, None

    def __del__(self):
        self.free()


class Llama:
    """An eager Llama: `self.weights(layer)` gives a layer's weights, `self.used(layer)` is told of their last use."""

    def __init__(self, shape, device, context):
        self.shape, self.device = shape, device
        half = dict(dtype=torch.float16, device=device)
        self.embed = torch.empty(shape.vocab, shape.hidden, **half).normal_(0, DEVIATION)
        self.head = torch.empty(shape.vocab, shape.hidden, **half).normal_(0, DEVIATION)
        self.norm = torch.ones(shape.hidden, **half)
        self.kv = torch.zeros(shape.layers, 2, context, shape.kv_heads, shape.head_dim, **half)
        inverse = 1e4 ** -(torch.arange(0, shape.head_dim, 2, device=device).float() / shape.head_dim)
        angles = torch.outer(torch.arange(context, device=device).float(), inverse).repeat(1, 2)[:, None]
        self.cos, self.sin = angles.cos().half(), angles.sin().half()

    def used(self, layer):
        pass

    def free(self):
        pass

    def rope(self, x, positions):
        low, high = x.chunk(2, -1)
        return x * self.cos[positions] + torch.cat((-high, low), -1) * self.sin[positions]

    def block(self, x, layer, start):
        s, w, rows = self.shape, self.weights(layer), x.shape[0]
        positions = slice(start, start + rows)
        qkv = F.linear(F.rms_norm(x, (s.hidden,), w["norm1"], 1e-5), w["qkv"]).view(rows, -1, s.head_dim)
        q, k, v = qkv.split((s.heads, s.kv_heads, s.kv_heads), 1)
        self.kv[layer, 0, positions] = self.rope(k, positions)
        self.kv[layer, 1, positions] = v
        k, v = self.kv[layer, :, : start + rows].transpose(1, 2)
        grouped = s.heads != s.kv_heads
        q = self.rope(q, positions).transpose(0, 1)
        out = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=rows > 1, enable_gqa=grouped)
        x = x + F.linear(out[0].transpose(0, 1).reshape(rows, -1), w["o"])
        gate, up = F.linear(F.rms_norm(x, (s.hidden,), w["norm2"], 1e-5), w["gate_up"]).chunk(2, -1)
        x = x + F.linear(F.silu(gate) * up, w["down"])
        self.used(layer)
        return x

    def step(self, tokens, start):
        """Runs tokens from position `start`; gives the best next token."""
        x = self.embed[torch.tensor(tokens, device=self.device)]
        for layer in range(self.shape.layers):
            x = self.block(x, layer, start)
        x = F.rms_norm(x[-1:], (self.shape.hidden,), self.norm, 1e-5)
        return F.linear(x, self.head).argmax().item()


class Offloaded(Llama):
    """Blocks 0 to n - 1, `resident` of them on the device, spread evenly, the others in pinned host memory."""

    def __init__(self, shape, device, context, resident):
        super().__init__(shape, device, context)
        pattern = random_block(shape, device)
        on_device = [(i + 1) * resident // shape.layers > i * resident // shape.layers for i in range(shape.layers)]
        self.resident = {i: shape.views(pattern.clone()) for i in range(shape.layers) if on_device[i]}
        self.streamed = [i for i in range(shape.layers) if not on_device[i]]
        self.host = Pinned(len(self.streamed), shape.block_numel, device)
        for row in self.host.tensor:
            row.copy_(pattern)
        self.streamed_bytes = len(self.streamed) * shape.block_bytes

    def free(self):
        self.host.free()


def load_most(make, most, device):
    """Makes a model with as many resident blocks as the cap allows, `most` at first."""
    for resident in range(most, -1, -1):
        model = None
        try:
            model = make(resident)
            generate(model.step, prompt(model.shape, 512), 2)
            return model
        except torch.OutOfMemoryError:
            print(f"{resident} resident blocks do not fit", file=sys.stderr)
        if model is not None:
            model.free()
        del model
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    raise RuntimeError("the cap is too small for a single block")


def most_resident(shape, args, limit, slots):
    """How many blocks fit beside everything else."""
    fixed = 4 * shape.vocab * shape.hidden + shape.kv_bytes(args.prompt + args.tokens) + shape.work_bytes(args.prompt)
    room = limit - fixed - (slots + 1) * shape.block_bytes
    # One block more than that may fit: the pattern of the weights is freed after loading.
    return max(0, min(shape.layers - 1, room // shape.block_bytes + 1))


def prompt(shape, length):
    return [(i * 37 + 5) % shape.vocab for i in range(length)]


def generate(step, tokens, count):
    """Generates `count` tokens; gives when each came, in ms, and the tokens."""
    at, found, length = [], [], len(tokens)
    start = time.perf_counter()
    with torch.inference_mode():
        for i in range(count):
            found.append(step(tokens if i == 0 else found[-1:], 0 if i == 0 else length + i - 1))
            at.append((time.perf_counter() - start) * 1e3)
    return at, found


def sample(step, args, shape, streamed_bytes, device):
    at, tokens = generate(step, prompt(shape, args.prompt), args.tokens)
    token_ms = [b - a for a, b in zip(at, at[1:])]
    peak = torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None
    return {
        "ttft_ms": at[0],
        "tpot_ms": statistics.median(token_ms),
        "tpot_mean_ms": statistics.mean(token_ms),
        "total_ms": at[-1],
        "token_ms": token_ms,
        "streamed_bytes_per_pass": streamed_bytes,
        "device_peak_bytes": peak,
        "host_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
        "tokens": tokens,
    }


def report(step, args, shape, streamed_bytes, device, began, note):
    """Takes the samples after a generation that is not timed, and prints them."""
    generate(step, prompt(shape, args.prompt), 3)
    load_ms = (time.perf_counter() - began) * 1e3
    samples, start = [], time.perf_counter()
    for _ in range(args.runs):
        samples.append(sample(step, args, shape, streamed_bytes, device))
        if args.most_seconds is not None and time.perf_counter() - start >= args.most_seconds:
            break
    print(json.dumps({"load_ms": load_ms, "samples": samples, "note": note}))


def run(make, slots):
    """The whole of a peer that is an eager Llama: `make(shape, device, context, resident)` gives the model."""
    began, args = time.perf_counter(), arguments()
    torch.manual_seed(1)
    device, shape = torch.device(args.device), Shape(args.model)
    limit = cap(device, args.vram_gib)
    context = max(args.prompt, 512) + args.tokens + 1
    most = most_resident(shape, args, limit, slots)
    with torch.inference_mode():
        model = load_most(lambda resident: make(shape, device, context, resident), most, device)
        note = f"{len(model.resident)} of {shape.layers} blocks on the device, torch {torch.__version__}"
        report(model.step, args, shape, model.streamed_bytes, device, began, note)
