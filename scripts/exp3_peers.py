#!/usr/bin/env python3
"""What experiment 3's peer does: PyTorch in eager mode with forward hooks, where every session that is stopped keeps its
keys and values on the card.

    python3 scripts/exp3_peers.py --json OUT.json [--model 13b] [--vram 80] [--context 2048] [--sessions 50]

Needs torch and transformers. Sessions of random prompts are stopped at the middle block by a hook that copies the
activation to the host and ends the forward pass with an exception. They are opened until the cap (GiB) is reached. Then
one goes on: the activation goes back in by another hook. Steps are timed with and without a hook that copies.
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", required=True, type=Path)
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
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config, device=device)
    model.eval()
    middle = config.num_hidden_layers // 2
    block = model.model.layers[middle]
    now = lambda: (torch.cuda.synchronize() if cuda else None, time.perf_counter())[1]
    held, kept = [], {}

    def stop(_module, _inputs, output):
        kept["value"] = (output[0] if isinstance(output, tuple) else output).to("cpu")
        raise Stop

    def put_back(_module, _inputs, output):
        value = kept["value"].to(device)
        return (value, *output[1:]) if isinstance(output, tuple) else value

    def step(token, cache, hook=None):
        handle = block.register_forward_hook(hook) if hook else None
        try:
            return model(token, past_key_values=cache, use_cache=True)
        finally:
            if handle:
                handle.remove()

    failure = None
    with torch.inference_mode():
        try:
            for seed in range(args.sessions):
                generator = torch.Generator().manual_seed(seed)
                prompt = torch.randint(1, 32000, (1, args.context - 16), generator=generator).to(device)
                out = model(prompt, use_cache=True, logits_to_keep=1)
                cache, token = out.past_key_values, out.logits[:, -1:].argmax(-1)
                length = cache.get_seq_length()
                try:
                    step(token, cache, stop)
                except Stop:
                    # The blocks before the hook have appended this token's keys and values.
                    cache.crop(length)
                held.append((cache, token, kept["value"]))
        except torch.OutOfMemoryError as error:
            failure = str(error).splitlines()[0]
        stopped = len(held)
        used = torch.cuda.memory_allocated() if cuda else None
        # One session goes on, once with what it read and once as if it had never stopped.
        del held[1:]
        if cuda:
            torch.cuda.empty_cache()
        cache, token, value = held[0]
        length = cache.get_seq_length()
        kept["value"] = value
        plain = step(token, cache).logits[:, -1]
        cache.crop(length)
        began = now()
        again = step(token, cache, put_back).logits[:, -1]
        resume_ms = (now() - began) * 1e3
        cache.crop(length)
        times = {"nothing armed": [], "a copy to the host in every step": []}
        copy = lambda _module, _inputs, output: kept.update(value=(output[0] if isinstance(output, tuple) else output).to("cpu"))
        for round_ in range(args.steps + 1):
            for name, hook in (("nothing armed", None), ("a copy to the host in every step", copy)):
                began = now()
                step(token, cache, hook)
                elapsed = (now() - began) * 1e3
                cache.crop(length)
                if round_:
                    times[name].append(elapsed)
    medians = {name: statistics.median(values) for name, values in times.items()}
    report = {
        "machine": torch.cuda.get_device_name(0) if cuda else "CPU",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "command": f"scripts/exp3_peers.py --model {args.model} --vram {args.vram:g} --context {args.context} --sessions {args.sessions}",
        "stopped_at_once": stopped,
        "asked": args.sessions,
        "allocated_bytes": used,
        "failure": failure,
        "equal_after_resume": bool(torch.equal(plain, again)),
        "resume_ms": resume_ms,
        "steps_ms": medians,
        "samples_ms": times,
    }
    lines = [
        f"{report['machine']}: `{report['command']}` (torch {torch.__version__}, transformers {transformers.__version__})\n",
        f"PyTorch in eager mode, {args.model} shapes, a cap of {args.vram:g} GiB: {stopped} of {args.sessions} sessions of "
        f"{args.context} tokens are stopped at once, then: {failure or 'all fit'}. A step without a hook takes "
        f"{medians['nothing armed']:.2f} ms, with a hook that copies the activation "
        f"{medians['a copy to the host in every step']:.2f} ms (medians of {args.steps}).\n",
    ]
    report["report"] = "\n".join(lines)
    args.json.write_text(json.dumps(report, indent=1) + "\n")
    print(report["report"])


if __name__ == "__main__":
    main()
