#!/usr/bin/env python3
"""Writes the tiny checkpoints of djinn-models/tests/checkpoints, of every family, with transformers' own answers.

    python3 scripts/make_checkpoints.py OUT [--tar OUT.tar.gz] [--gguf SmolLM2.gguf]

Needs torch and transformers (and the package gguf for --gguf); runs on the CPU. Each variant is a directory
with config.json, generation_config.json, safetensors and expected.json:

    parameters   elements of all parameters, a tied embedding counted once
    cases        prompts of 1, 9 and 40 tokens; logits of the first, middle and last position in float32,
                 computed from the stored weights widened to float32 (eager attention, no cache)
    greedy       24 tokens after the 9-token prompt, by the same float32 logits; min_gap is the smallest
                 distance between the two best logits on the way

Seeds are tried in order until no greedy choice is closer than MIN_GAP and no end token comes up, so that
greedy tokens are a fair test at any reasonable accuracy.
"""

import argparse
import importlib.util
import json
import sys
import tarfile
import traceback
from pathlib import Path

import safetensors.torch
import torch
import transformers

VOCAB = 128
BOS, EOS = 1, [2, 3]
PROMPT_LENGTHS = (1, 9, 40)
GREEDY_TOKENS = 24
MIN_GAP = 0.02
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

BASE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}
ODD = {"hidden_size": 48, "intermediate_size": 64, "num_attention_heads": 3}
ENDS = {"vocab_size": VOCAB, "bos_token_id": BOS, "eos_token_id": EOS}
GPT = {**ENDS, "n_embd": 48, "n_layer": 2, "n_head": 3, "n_positions": 96}
GPTJ = {**GPT, "n_embd": 64, "n_head": 4, "rotary_dim": 8, "tie_word_embeddings": False}
FALCON = {
    **ENDS,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": 512,
}
FALCON_NEW = {
    **FALCON,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_kv_heads": 2,
    "new_decoder_architecture": True,
}
FALCON_RW = {
    **FALCON,
    "alibi": True,
    "bias": True,
    "multi_query": False,
    "parallel_attn": False,
}
MIXTRAL = {**BASE, **ODD, "num_key_value_heads": 1, "num_local_experts": 6, "num_experts_per_tok": 2}
QWEN3_MOE = {
    **BASE,
    **ODD,
    "num_key_value_heads": 1,
    "moe_intermediate_size": 40,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "norm_topk_prob": True,
}
NEOX = {
    **ENDS,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "rotary_pct": 0.25,
}
CLASSES = {"GPT2": "GPT2LMHeadModel"}
# Families whose sizes are not BASE's.
OWN_SIZES = {"GPT2", "GPTJ", "GPTNeoX", "Falcon", "Mixtral", "Qwen3Moe"}

# name: (config, dtype, rope theta, rope scaling, save options); the option "family" names the classes
VARIANTS = {
    "gqa-bf16": ({}, torch.bfloat16, 10000.0, None, {}),
    "mha-f16": ({"num_key_value_heads": 4}, torch.float16, 10000.0, None, {}),
    "tied-f32": (
        {**ODD, "num_key_value_heads": 1, "tie_word_embeddings": True, "rms_norm_eps": 1e-6},
        torch.float32,
        10000.0,
        None,
        {},
    ),
    "rope-llama3-bf16": ({}, torch.bfloat16, 10000.0, LLAMA3, {}),
    "rope-linear-f16": ({}, torch.float16, 10000.0, {"rope_type": "linear", "factor": 4.0}, {}),
    "biases-bf16": ({"attention_bias": True, "mlp_bias": True}, torch.bfloat16, 10000.0, None, {}),
    "head-dim-f16": (
        {"num_key_value_heads": 1, "head_dim": 24},
        torch.float16,
        500000.0,
        None,
        {},
    ),
    "sharded-bf16": ({}, torch.bfloat16, 500000.0, None, {"max_shard_size": "40KB"}),
    "one-layer-f32": (
        {**ODD, "num_key_value_heads": 3, "num_hidden_layers": 1, "vocab_size": 96},
        torch.float32,
        10000.0,
        None,
        {},
    ),
    # config.json as transformers 4 wrote it: rope_theta, rope_scaling, torch_dtype.
    "classic-config-bf16": (
        {"tie_word_embeddings": True},
        torch.bfloat16,
        500000.0,
        LLAMA3,
        {"classic": True},
    ),
    # A window as wide as the longest prompt and all that follows: full attention in effect.
    "mistral-bf16": (
        {"sliding_window": 128, "head_dim": 16},
        torch.bfloat16,
        1000000.0,
        None,
        {"family": "Mistral"},
    ),
    "mistral-no-window-f32": (
        {**ODD, "num_key_value_heads": 1, "sliding_window": None},
        torch.float32,
        10000.0,
        None,
        {"family": "Mistral"},
    ),
    "qwen2-bf16": (
        {"rms_norm_eps": 1e-6},
        torch.bfloat16,
        1000000.0,
        None,
        {"family": "Qwen2"},
    ),
    "qwen2-tied-f16": (
        {"tie_word_embeddings": True, "num_key_value_heads": 1},
        torch.float16,
        1000000.0,
        None,
        {"family": "Qwen2", "classic": True},
    ),
    "qwen3-bf16": (
        {"head_dim": 24, "rms_norm_eps": 1e-6},
        torch.bfloat16,
        1000000.0,
        None,
        {"family": "Qwen3"},
    ),
    "qwen3-biases-tied-f32": (
        {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True},
        torch.float32,
        1000000.0,
        None,
        {"family": "Qwen3"},
    ),
    # A window shorter than the prompts.
    "mistral-window-f16": (
        {"sliding_window": 7, "head_dim": 16},
        torch.float16,
        10000.0,
        None,
        {"family": "Mistral", "max_shard_size": "40KB"},
    ),
    "qwen2-window-f32": (
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
        torch.float32,
        1000000.0,
        None,
        {"family": "Qwen2", "max_shard_size": "80KB"},
    ),
    "qwen3-f16": ({"head_dim": 16}, torch.float16, 1000000.0, None, {"family": "Qwen3", "max_shard_size": "40KB"}),
    # As OpenAI's own file: no prefix, and the causal masks among the tensors.
    "gpt2-bare-f32": (GPT, torch.float32, None, None, {"family": "GPT2", "bare": True}),
    "gpt2-f16": (
        {**GPT, "n_inner": 80, "tie_word_embeddings": False},
        torch.float16,
        None,
        None,
        {"family": "GPT2"},
    ),
    "gpt2-erf-bf16": (
        {**GPT, "activation_function": "gelu"},
        torch.bfloat16,
        None,
        None,
        {"family": "GPT2", "max_shard_size": "40KB"},
    ),
    "gptj-f32": (GPTJ, torch.float32, None, None, {"family": "GPTJ"}),
    "gptj-f16": ({**GPTJ, "n_inner": 80}, torch.float16, None, None, {"family": "GPTJ"}),
    "gptj-bf16": (GPTJ, torch.bfloat16, None, None, {"family": "GPTJ", "max_shard_size": "40KB"}),
    "gpt-neox-f32": (NEOX, torch.float32, 10000.0, None, {"family": "GPTNeoX"}),
    # As transformers 4 wrote it: rotary_pct, rotary_emb_base, rope_scaling, torch_dtype, and buffers among the tensors.
    "gpt-neox-classic-f16": (
        {
            **NEOX,
            "rotary_pct": 0.5,
            "attention_bias": False,
            "hidden_act": "gelu_fast",
            "max_position_embeddings": 96,
        },
        torch.float16,
        5000.0,
        {"rope_type": "linear", "factor": 4.0},
        {"family": "GPTNeoX", "classic": True, "buffers": True},
    ),
    "gpt-neox-bf16": (
        {**NEOX, **ODD, "rotary_pct": 1.0},
        torch.bfloat16,
        10000.0,
        None,
        {"family": "GPTNeoX", "max_shard_size": "40KB"},
    ),
    # Attention and MLP one after the other.
    "gpt-neox-sequential-f32": (
        {**NEOX, "use_parallel_residual": False, "tie_word_embeddings": True},
        torch.float32,
        10000.0,
        None,
        {"family": "GPTNeoX"},
    ),
    "mixtral-f32": (MIXTRAL, torch.float32, 10000.0, None, {"family": "Mixtral", "max_shard_size": "80KB"}),
    "mixtral-f16": (
        {**MIXTRAL, "num_experts_per_tok": 1, "num_key_value_heads": 3},
        torch.float16,
        1000000.0,
        None,
        {"family": "Mixtral"},
    ),
    "mixtral-window-bf16": (
        {**MIXTRAL, "num_local_experts": 4, "sliding_window": 6},
        torch.bfloat16,
        1000000.0,
        None,
        {"family": "Mixtral"},
    ),
    "qwen3-moe-f32": (
        {**QWEN3_MOE, "norm_topk_prob": False, "attention_bias": True},
        torch.float32,
        10000.0,
        None,
        {"family": "Qwen3Moe", "max_shard_size": "80KB"},
    ),
    "qwen3-moe-f16": (
        {**QWEN3_MOE, "use_sliding_window": True, "sliding_window": 6},
        torch.float16,
        1000000.0,
        None,
        {"family": "Qwen3Moe", "classic": True},
    ),
    "qwen3-moe-bf16": (
        {**QWEN3_MOE, "head_dim": 24, "num_experts": 6, "tie_word_embeddings": True},
        torch.bfloat16,
        1000000.0,
        None,
        {"family": "Qwen3Moe"},
    ),
    # 7B: one key head, attention and MLP side by side behind one norm.
    "falcon-7b-f32": (FALCON, torch.float32, 10000.0, None, {"family": "Falcon"}),
    "falcon-7b-bf16": (
        {**FALCON, "bias": True, "tie_word_embeddings": False},
        torch.bfloat16,
        10000.0,
        None,
        {"family": "Falcon", "max_shard_size": "40KB"},
    ),
    # 40B and 180B: grouped keys, a norm for each of the two; 11B: one norm for both.
    "falcon-40b-f16": (FALCON_NEW, torch.float16, 10000.0, None, {"family": "Falcon"}),
    "falcon-11b-bf16": (
        {**FALCON_NEW, "num_ln_in_parallel_attn": 1, "ffn_hidden_size": 80},
        torch.bfloat16,
        500000.0,
        None,
        {"family": "Falcon"},
    ),
    # RW: ALiBi, biases, one block after the other.
    "falcon-rw-f32": (FALCON_RW, torch.float32, 10000.0, None, {"family": "Falcon"}),
    "falcon-rw-f16": (
        {**FALCON_RW, "hidden_size": 64, "num_attention_heads": 4, "parallel_attn": True},
        torch.float16,
        10000.0,
        None,
        {"family": "Falcon"},
    ),
}


def inverse_frequencies(dim, theta, scaling):
    """The definition, in float64: what the model's own buffer is checked against."""
    inv = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    if scaling is None:
        return inv
    if scaling["rope_type"] == "linear":
        return inv / scaling["factor"]
    wavelength = 2 * torch.pi / inv
    original, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = ((original / wavelength - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * inv / factor + smooth * inv


def rotary_is_right(model, dim, theta, scaling):
    if theta is None:
        return True
    rotary = model.base_model.rotary_emb if hasattr(model.base_model, "rotary_emb") else None
    if rotary is None:
        return getattr(model.config, "alibi", False)
    found = rotary.inv_freq.detach().double().cpu()
    wanted = inverse_frequencies(dim, theta, scaling)
    return found.shape == wanted.shape and torch.allclose(found, wanted, rtol=1e-5, atol=0)


def rotated_size(kwargs):
    """Elements of a head that are rotated; of no use to variants without a theta."""
    if "n_embd" in kwargs:
        return kwargs["n_embd"] // kwargs["n_head"]
    head_dim = kwargs.get("head_dim") or kwargs["hidden_size"] // kwargs["num_attention_heads"]
    return int(head_dim * kwargs.get("rotary_pct", 1))


def build(family, kwargs, theta, scaling, seed):
    """A model with random weights, norms and biases. The two ways to pass rope settings belong to
    transformers 5 and 4; the one that the installed version understands is kept."""
    dim = rotated_size(kwargs)
    new = {"rope_parameters": {"rope_type": "default", **(scaling or {}), "rope_theta": theta}}
    old = {"rope_theta": theta, "rope_scaling": None if scaling is None else dict(scaling)}
    problems = []
    for rope in (new, old) if theta is not None else ({},):
        try:
            config = getattr(transformers, family + "Config")(**kwargs, **rope)
            model = getattr(transformers, CLASSES.get(family, family + "ForCausalLM"))(config)
        except Exception as error:  # the other form may work
            problems.append(repr(error))
            continue
        if rotary_is_right(model, dim, theta, scaling):
            break
        problems.append(f"{list(rope)}: wrong rotary frequencies")
    else:
        raise RuntimeError("; ".join(problems))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * 0.2
            norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(1 + noise if norm else noise)
    return model.eval()


def load_float32(directory, attention="eager", **options):
    auto = transformers.AutoModelForCausalLM
    problem = None
    for key in ("dtype", "torch_dtype"):
        try:
            model = auto.from_pretrained(
                directory, attn_implementation=attention, **{key: torch.float32}, **options
            )
        except TypeError as error:  # the other name may work
            problem = error
            continue
        if all(p.dtype == torch.float32 for p in model.parameters()):
            return model.eval()
    raise RuntimeError("from_pretrained gives no float32 model") from problem


@torch.no_grad()
def logits_of(model, tokens):
    """Logits at every position, `[len(tokens), vocab]` float32."""
    return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float()


def greedy_of(model, prompt, count, stop=()):
    tokens, gap = list(prompt), float("inf")
    for _ in range(count):
        best = logits_of(model, tokens)[-1].topk(2)
        gap = min(gap, float(best.values[0] - best.values[1]))
        tokens.append(int(best.indices[0]))
        if tokens[-1] in stop:
            break
    return tokens[len(prompt):], gap


def short(values):
    """Shortest decimals that read back as the same float32."""
    return [float(str(v)) for v in values.detach().cpu().numpy()]


def prompts_for(vocab, seed):
    generator = torch.Generator().manual_seed(1000 + seed)
    longest = torch.randint(4, vocab, (max(PROMPT_LENGTHS),), generator=generator).tolist()
    return [longest[:n] for n in PROMPT_LENGTHS]


def strip_prefix(path):
    """GPT-2's tensors as they were first published: no prefix, and the causal mask beside each block's weights."""
    tensors = {}
    for name, tensor in safetensors.torch.load_file(path).items():
        tensors[name.removeprefix("transformer.")] = tensor
    for block in range(sum(name.endswith(".attn.c_attn.weight") for name in tensors)):
        tensors[f"h.{block}.attn.bias"] = torch.ones(96, 96).tril().view(1, 1, 96, 96)
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})


def add_buffers(path):
    """What Pythia's published files have beside GPT-NeoX's weights: causal masks, and rotary frequencies."""
    tensors = safetensors.torch.load_file(path)
    for block in range(sum(name.endswith(".attention.dense.weight") for name in tensors)):
        attention = f"gpt_neox.layers.{block}.attention."
        tensors[attention + "bias"] = torch.ones(96, 96, dtype=torch.bool).tril().view(1, 1, 96, 96)
        tensors[attention + "masked_bias"] = torch.tensor(-1e9)
        tensors[attention + "rotary_emb.inv_freq"] = torch.ones(4)
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})


def save(model, directory, options):
    options = dict(options)
    classic, bare = options.pop("classic", False), options.pop("bare", False)
    buffers = options.pop("buffers", False)
    options.pop("family", None)
    directory.mkdir(parents=True, exist_ok=True)
    for stale in directory.iterdir():
        stale.unlink()
    model.save_pretrained(directory, **options)
    if bare:
        strip_prefix(directory / "model.safetensors")
    if buffers:
        add_buffers(directory / "model.safetensors")
    path = directory / "config.json"
    config = json.loads(path.read_text())
    config.pop("transformers_version", None)
    if classic:
        config["torch_dtype"] = config.pop("dtype", None) or config.get("torch_dtype")
        rope = config.pop("rope_parameters", None)
        if rope is not None:
            neox = config["model_type"] == "gpt_neox"
            config["rotary_emb_base" if neox else "rope_theta"] = rope.pop("rope_theta")
            if neox:
                config["rotary_pct"] = rope.pop("partial_rotary_factor")
            config["rope_scaling"] = None if rope.get("rope_type") == "default" else rope
        if config["model_type"] == "qwen3_moe" and "num_local_experts" in config:
            config["num_experts"] = config.pop("num_local_experts")
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def write_variant(out, name):
    overrides, dtype, theta, scaling, options = VARIANTS[name]
    own = options.get("family") in OWN_SIZES
    kwargs = dict(overrides) if own else {**BASE, **overrides}
    vocab, dim = kwargs["vocab_size"], rotated_size(kwargs)
    directory = out / name
    for seed in range(200):
        save(build(options.get("family", "Llama"), kwargs, theta, scaling, seed).to(dtype), directory, options)
        # Eager attention of transformers 5 adds Falcon's ALiBi twice.
        model = load_float32(directory, "sdpa" if kwargs.get("alibi") else "eager")
        if not rotary_is_right(model, dim, theta, scaling):
            raise RuntimeError("the saved configuration gives other rotary frequencies")
        prompts = prompts_for(vocab, seed)
        tokens, gap = greedy_of(model, prompts[1], GREEDY_TOKENS)
        variety = 6 if seed < 150 else 2
        if gap >= MIN_GAP and not set(tokens) & set(EOS) and len(set(tokens)) >= variety:
            break
    else:
        raise RuntimeError("no seed gives clear greedy choices")
    cases = []
    for prompt in prompts:
        positions = sorted({0, len(prompt) // 2, len(prompt) - 1})
        logits = logits_of(model, prompt)
        cases.append(
            {"prompt": prompt, "positions": positions, "logits": [short(logits[p]) for p in positions]}
        )
    expected = {
        "made_by": {"transformers": transformers.__version__, "torch": torch.__version__},
        "seed": seed,
        "parameters": sum(p.numel() for p in model.parameters()),
        "cases": cases,
        "greedy": {"prompt": prompts[1], "tokens": tokens, "min_gap": gap},
    }
    (directory / "expected.json").write_text(json.dumps(expected) + "\n")
    generation = {
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "do_sample": True,
        "temperature": 0.6,
        "top_p": 0.9,
    }
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    size = sum(f.stat().st_size for f in directory.iterdir())
    print(f"{name}: seed {seed}, {expected['parameters']} parameters, {size} bytes, gap {gap:.3f}")


def write_gguf_answer(out, gguf):
    """SmolLM2-Instruct from its GGUF file, dequantised to float32 by transformers."""
    if importlib.util.find_spec("gguf") is None:
        print("smollm2: skipped, the package gguf is not installed")
        return
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = load_float32(gguf.parent, gguf_file=gguf.name)
    messages = [{"role": "user", "content": "The capital of France is"}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    prompt = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    tokens, gap = greedy_of(model, prompt, 32, stop=(end,))
    logits = logits_of(model, prompt)[-1]
    top = logits.topk(64)
    expected = {
        "made_by": {"transformers": transformers.__version__, "torch": torch.__version__},
        "messages": messages,
        "text": text,
        "prompt": prompt,
        "greedy": {"tokens": tokens, "text": tokenizer.decode(tokens), "min_gap": gap},
        "last_logits": {
            "top_ids": top.indices.tolist(),
            "top": short(top.values),
            "stride": 64,
            "every_stride": short(logits[::64]),
        },
    }
    (out / "smollm2-expected.json").write_text(json.dumps(expected, ensure_ascii=False) + "\n")
    print(f"smollm2: {expected['greedy']['text']!r}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tar", type=Path, help="also pack OUT into this .tar.gz")
    parser.add_argument("--gguf", type=Path, help="SmolLM2-Instruct as GGUF, for smollm2-expected.json")
    parser.add_argument("--only", nargs="*", choices=VARIANTS, help="these variants instead of all")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(8)
    jobs = [(name, lambda n=name: write_variant(arguments.out, n)) for name in arguments.only or VARIANTS]
    if arguments.gguf is not None:
        jobs.append(("smollm2", lambda: write_gguf_answer(arguments.out, arguments.gguf)))
    failed = []
    for name, job in jobs:
        try:
            job()
        except Exception:  # the other variants are still worth having
            failed.append(name)
            print(f"{name} FAILED", file=sys.stderr)
            traceback.print_exc()
    if arguments.tar is not None:
        with tarfile.open(arguments.tar, "w:gz") as archive:
            archive.add(arguments.out, arcname="checkpoints")
        print(f"packed {arguments.tar}: {arguments.tar.stat().st_size} bytes")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
