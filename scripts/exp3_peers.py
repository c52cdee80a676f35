#!/usr/bin/env python3
"""What experiment 3's peers do: PyTorch in eager mode with forward hooks, or nnsight over the same model. With both, every
session that is stopped keeps its keys and values on the card.

    python3 scripts/exp3_peers.py --json OUT.json [--peer torch] [--model 13b] [--vram 80] [--context 2048] [--sessions 50]

Needs torch and transformers, and nnsight 0.8.1 for `--peer nnsight`. Sessions of random prompts are stopped at the middle
block: the activation is copied to the host, and the forward pass ends there. They are opened until the cap (GiB) is reached.
Then one goes on: the activation goes back in. Its logits are compared with those of a session of the same prompt that never
stopped, and these with those of a second such session: without equality there, the peer does not repeat itself. Steps are
timed with and without a copy of the activation to the host.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

SHAPES = {
    "13b": dict(hidden_size=5120, intermediate_size=13824, num_hidden_layers=40, num_attention_heads=40),
    "7b": dict(hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32),
    "tiny": dict(hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4),
}


class Stop(Exception):
    """Ends a forward pass in the middle."""


class Hooks:
    """PyTorch's forward hooks."""

    def __init__(self, model, block):
        self.model, self.block = model, block

    def versions(self):
        return {}

    def _with(self, hook, token, cache):
        handle = self.block.register_forward_hook(hook)
        try:
            return self.model(token, past_key_values=cache, use_cache=True)
        finally:
            handle.remove()

    def stop(self, token, cache):
        """The activation; blocks up to the middle have appended the token's keys and values."""
        kept = []

        def hook(_module, _inputs, output):
            kept.append((output[0] if isinstance(output, tuple) else output).to("cpu", copy=True))
            raise Stop

        try:
            self._with(hook, token, cache)
        except Stop:
            pass
        return kept[0]

    def go_on(self, token, cache, value):
        """The logits, with the activation back in."""
        value = value.to(token.device)
        put = lambda _module, _inputs, output: (value, *output[1:]) if isinstance(output, tuple) else value
        return self._with(put, token, cache).logits[:, -1]

    def read(self, token, cache):
        """A step that copies the activation."""
        kept = []
        copy = lambda _module, _inputs, output: kept.append(
            (output[0] if isinstance(output, tuple) else output).to("cpu", copy=True)
        )
        self._with(copy, token, cache)
        return kept[0]


class Nnsight:
    """nnsight's traces."""

    def __init__(self, model, middle):
        import nnsight

        self.version = nnsight.__version__
        self.model = nnsight.NNsight(model)
        self.block = self.model.model.layers[middle]

    def versions(self):
        return {"nnsight": self.version}

    def stop(self, token, cache):
        with self.model.trace(token, past_key_values=cache, use_cache=True) as tracer:
            value = self.block.output.save()
            tracer.stop()
        return value.to("cpu", copy=True)

    def go_on(self, token, cache, value):
        value = value.to(token.device)
        with self.model.trace(token, past_key_values=cache, use_cache=True):
            self.block.output = value
            logits = self.model.output.logits.save()
        return logits[:, -1]

    def read(self, token, cache):
        with self.model.trace(token, past_key_values=cache, use_cache=True):
            value = self.block.output.save()
        return value.to("cpu", copy=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", required=True, type=Path)
    parser.add_argument("--peer", choices=["torch", "nnsight"], default="torch")
    parser.add_argument("--model", choices=SHAPES, default="13b")
    parser.add_argument("--vram", type=float, default=80)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--sessions", type=int, default=50)
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    import torch
    import transformers

    cuda = torch.cuda.is_available()
    device = "cuda" if cuda else "cpu"
    if cuda:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, args.vram * 2**30 / total))
    config = transformers.LlamaConfig(vocab_size=32000, max_position_embeddings=4096, **SHAPES[args.model])
    torch.manual_seed(1)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).to(torch.float16)
    model = model.to_empty(device=device)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    # What to_empty left undefined.
    with torch.device(device):
        model.model.rotary_emb = type(model.model.rotary_emb)(config=config)
    model.eval()
    middle = config.num_hidden_layers // 2
    peer = Hooks(model, model.model.layers[middle]) if args.peer == "torch" else Nnsight(model, middle)
    now = lambda: (torch.cuda.synchronize() if cuda else None, time.perf_counter())[1]
    held = []

    def begin(seed):
        generator = torch.Generator().manual_seed(seed)
        prompt = torch.randint(1, 32000, (1, args.context - 16), generator=generator).to(device)
        out = model(prompt, use_cache=True, logits_to_keep=1)
        return out.past_key_values, out.logits[:, -1:].argmax(-1)

    def never_stopped(seed):
        cache, token = begin(seed)
        return model(token, past_key_values=cache, use_cache=True).logits[:, -1]

    failure = None
    with torch.inference_mode():
        try:
            for seed in range(args.sessions):
                cache, token = begin(seed)
                length = cache.get_seq_length()
                value = peer.stop(token, cache)
                # The blocks before the hook have appended this token's keys and values.
                cache.crop(length)
                held.append((cache, token, value))
        except torch.OutOfMemoryError as error:
            failure = str(error).splitlines()[0]
        stopped = len(held)
        used = torch.cuda.memory_allocated() if cuda else None
        # One session goes on, beside two that never stopped.
        del held[1:]
        if cuda:
            torch.cuda.empty_cache()
        plain, repeated = never_stopped(0), never_stopped(0)
        cache, token, value = held[0]
        length = cache.get_seq_length()
        began = now()
        again = peer.go_on(token, cache, value)
        resume_ms = (now() - began) * 1e3
        cache.crop(length)
        times = {"nothing armed": [], "a copy to the host in every step": []}
        plainly = lambda: model(token, past_key_values=cache, use_cache=True)
        for round_ in range(args.steps + 1):
            for name, step in zip(times, (plainly, lambda: peer.read(token, cache))):
                began = now()
                step()
                elapsed = (now() - began) * 1e3
                cache.crop(length)
                if round_:
                    times[name].append(elapsed)
    medians = {name: statistics.median(values) for name, values in times.items()}
    report = {
        "machine": torch.cuda.get_device_name(0) if cuda else "CPU",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__, **peer.versions()},
        "command": f"scripts/exp3_peers.py --peer {args.peer} --model {args.model} --vram {args.vram:g} --context {args.context} --sessions {args.sessions}",
        "stopped_at_once": stopped,
        "asked": args.sessions,
        "allocated_bytes": used,
        "failure": failure,
        "equal_after_resume": bool(torch.equal(plain, again)),
        "equal_when_repeated": bool(torch.equal(plain, repeated)),
        "all_finite": bool(torch.isfinite(plain).all()),
        "largest_difference": (plain.float() - again.float()).abs().max().item(),
        "resume_ms": resume_ms,
        "steps_ms": medians,
        "samples_ms": times,
    }
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    cap = f"a cap of {args.vram:g} GiB" if cuda else "no cap"
    lines = [
        f"{report['machine']}: `{report['command']}` ({versions})\n",
        f"{'PyTorch in eager mode' if args.peer == 'torch' else 'nnsight ' + peer.version}, {args.model} shapes, {cap}: {stopped} of {args.sessions} sessions of "
        f"{args.context} tokens are stopped at once, then: {failure or 'all fit'}. A step without a hook takes "
        f"{medians['nothing armed']:.2f} ms, with a hook that copies the activation "
        f"{medians['a copy to the host in every step']:.2f} ms (medians of {args.steps}).\n",
    ]
    report["report"] = "\n".join(lines)
    args.json.write_text(json.dumps(report, indent=1) + "\n")
    print(report["report"])


if __name__ == "__main__":
    main()
