#!/usr/bin/env python3
"""Writes what transformers computes at each hook point of the tiny checkpoints, as seen by PyTorch's forward hooks.

    python3 scripts/make_hook_fixtures.py [OUT]

Needs torch and transformers; runs on the CPU, in float32 from the stored weights, with eager attention and no cache. OUT
[default: djinn-engine/tests/fixtures/transformers-hooks.safetensors] has a tensor `CHECKPOINT/HOOK` f32 [3, width] for each
hook point, named as `djinn hooks` does: the first, middle and last position of the prompt of nine tokens in the
checkpoint's expected.json. Its metadata has the versions, and `modules`: the modules of transformers whose output a hook
point is, under their names in the checkpoint's files, as JSON: checkpoint → module → hook point.
"""

import argparse
import json
import sys
from pathlib import Path

import safetensors.torch
import torch
import transformers
from make_checkpoints import load_float32

ROOT = Path(__file__).resolve().parent.parent
CHECKPOINTS = ROOT / "djinn-models/tests/checkpoints"
OUT = ROOT / "djinn-engine/tests/fixtures/transformers-hooks.safetensors"

# By family: blocks, embedding, learned positions, final norm, head; within a block: the norms before attention and MLP,
# attention, its products (queries, keys and values apart or as one) and its last one, the MLP's first and last product.
LLAMA = {
    "blocks": "model.layers", "embed": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head",
    "norms": ["input_layernorm", "post_attention_layernorm"], "attention": "self_attn",
    "qkv": ["q_proj", "k_proj", "v_proj"], "out": "o_proj", "down": "down_proj",
}
GPT2 = {
    "blocks": "transformer.h", "embed": "transformer.wte", "positions": "transformer.wpe",
    "final_norm": "transformer.ln_f", "head": "lm_head", "norms": ["ln_1", "ln_2"], "attention": "attn",
    "qkv": ["c_attn"], "out": "c_proj", "up": "c_fc", "down": "c_proj",
}
FALCON = {
    "blocks": "transformer.h", "embed": "transformer.word_embeddings", "final_norm": "transformer.ln_f",
    "head": "lm_head", "norms": ["input_layernorm", "post_attention_layernorm"], "attention": "self_attention",
    "qkv": ["query_key_value"], "out": "dense", "up": "dense_h_to_4h", "down": "dense_4h_to_h",
}
MODULES = {
    "llama": LLAMA, "mistral": LLAMA, "qwen2": LLAMA, "qwen3": LLAMA, "qwen3_moe": LLAMA, "mixtral": LLAMA,
    "gpt2": GPT2, "falcon": FALCON,
    "gptj": {
        **GPT2, "positions": None, "norms": ["ln_1"], "qkv": ["q_proj", "k_proj", "v_proj"], "out": "out_proj",
        "up": "fc_in", "down": "fc_out",
    },
    "gpt_neox": {
        **FALCON, "blocks": "gpt_neox.layers", "embed": "gpt_neox.embed_in", "final_norm": "gpt_neox.final_layer_norm",
        "head": "lm_head", "attention": "attention",
    },
}
# Modules that checkpoints, and with them Djinn, call by another name than transformers 5: the ends of their names.
PUBLISHED = {"gpt_neox": ("lm_head", "embed_out"), "mixtral": (".mlp", ".block_sparse_moe")}


class Recorder:
    """What a model computes at its hook points: `values`, by name, and `modules`, those whose output they are."""

    def __init__(self, model):
        self.model, self.config = model, model.config
        self.names = MODULES[self.config.model_type]
        self.paths = {module: path for path, module in model.named_modules()}
        self.values, self.modules, self.block = {}, {}, None
        self.sizes()
        if self.names.get("positions"):
            self.output(self.get("positions"), "pos_embed.hook_out")
        self.output(self.get("embed"), "embed.hook_out")
        self.output(self.get("final_norm"), "ln_final.hook_out")
        self.output(self.get("head"), "unembed.hook_out")
        for number, block in enumerate(self.get("blocks")):
            self.watch_block(number, block)
        self.watch_rotated()

    def get(self, name):
        return self.model.get_submodule(self.names[name])

    def sizes(self):
        config = self.config
        self.heads = config.num_attention_heads
        self.groups = getattr(config, "num_key_value_heads", None) or self.heads
        if config.model_type == "falcon":
            shared = config.multi_query and not config.new_decoder_architecture
            self.groups = 1 if shared else config.num_kv_heads if config.new_decoder_architecture else self.heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads

    def keep(self, name, value):
        """Keeps a copy: later operations may write to the same memory."""
        assert name not in self.values, f"{name} is computed twice"
        self.values[name] = value.detach().reshape(value.shape[-2], -1).clone()

    def name(self, module, hook):
        ours, published = PUBLISHED.get(self.config.model_type, ("", ""))
        path = self.paths[module]
        self.modules[path.removesuffix(ours) + published if ours and path.endswith(ours) else path] = hook

    def output(self, module, name):
        self.name(module, name)
        first = lambda result: result[0] if isinstance(result, tuple) else result
        module.register_forward_hook(lambda _module, _args, result: self.keep(name, first(result)))

    def input(self, module, name):
        read = lambda args, kwargs: args[0] if args else kwargs["hidden_states"]
        module.register_forward_pre_hook(lambda _m, args, kwargs: self.keep(name, read(args, kwargs)), with_kwargs=True)

    def watch_block(self, number, block):
        at = lambda name: f"blocks.{number}.{name}"
        attention, mlp = getattr(block, self.names["attention"]), block.mlp

        def enter(_module, _args):
            self.block = number

        block.register_forward_pre_hook(enter)
        self.input(block, at("hook_in"))
        self.output(block, at("hook_out"))
        norms = [getattr(block, name) for name in self.names["norms"] if hasattr(block, name)]
        norms = norms or [block.ln_attn, block.ln_mlp]
        self.output(norms[0], at("ln1.hook_out"))
        if len(norms) == 2:
            self.output(norms[1], at("ln2.hook_out"))
            if self.in_sequence():
                self.input(norms[1], at("hook_resid_mid"))
        parts = [getattr(attention, name) for name in self.names["qkv"]]
        if len(parts) == 3:
            for part, name in zip(parts, "qkv"):
                hook = at(f"attn.hook_{name}")
                part.register_forward_hook(lambda _m, _a, result, hook=hook: self.keep(hook, result))
        else:
            parts[0].register_forward_hook(lambda _m, _a, result: self.keep_parts(number, result))
        out = getattr(attention, self.names["out"])
        self.input(out, at("attn.hook_z"))
        self.output(attention, at("attn.hook_out"))
        self.name(out, at("attn.hook_out"))
        self.input(mlp, at("mlp.hook_in"))
        self.output(mlp, at("mlp.hook_out"))
        if hasattr(mlp, self.names["down"]):
            down = getattr(mlp, self.names["down"])
            self.name(down, at("mlp.hook_out"))
            self.input(down, at("mlp.hook_post"))
            if "up" in self.names:
                self.output(getattr(mlp, self.names["up"]), at("mlp.hook_pre"))

    def in_sequence(self):
        """Whether the MLP reads what attention wrote."""
        parallel = getattr(self.config, "use_parallel_residual", False) or getattr(self.config, "parallel_attn", False)
        return not (parallel or getattr(self.config, "new_decoder_architecture", False))

    def keep_parts(self, number, fused):
        """Queries, keys and values of one product: beside each other (GPT-2), or by group of heads."""
        if self.config.model_type == "gpt2":
            parts = fused.chunk(3, dim=-1)
        else:
            grouped = fused.reshape(*fused.shape[:-1], self.groups, self.heads // self.groups + 2, self.head_dim)
            parts = grouped[..., :-2, :], grouped[..., -2, :], grouped[..., -1, :]
        for part, name in zip(parts, "qkv"):
            self.keep(f"blocks.{number}.attn.hook_{name}", part.reshape(fused.shape[-2], -1))

    def watch_rotated(self):
        """Queries and keys as attention reads them. They are no module's output, so the function that has them is replaced."""
        kind = self.config.model_type
        if kind == "gpt2" or getattr(self.config, "alibi", False):
            return
        source = sys.modules[type(self.model).__module__]

        def keep(query, key):
            # [1, heads, tokens, head size]; keys of a group may be repeated for each of its heads.
            key = key[:, :: key.shape[1] // self.groups]
            for value, name in [(query, "q"), (key, "k")]:
                self.keep(f"blocks.{self.block}.attn.hook_rot_{name}", value.transpose(1, 2).flatten(2))

        if kind == "gptj":
            attend = source.GPTJAttention._attn

            def replaced(module, query, key, *rest):
                keep(query, key)
                return attend(module, query, key, *rest)

            place, name = source.GPTJAttention, "_attn"
        elif kind == "falcon":
            rotate = source.apply_rotary_pos_emb

            def replaced(*args):
                query, key = rotate(*args)
                keep(query, key)
                return query, key

            place, name = source, "apply_rotary_pos_emb"
        else:
            attend = source.eager_attention_forward

            def replaced(module, query, key, *rest, **named):
                keep(query, key)
                return attend(module, query, key, *rest, **named)

            place, name = source, "eager_attention_forward"
        self.restore = (place, name, getattr(place, name))
        setattr(place, name, replaced)

    def run(self, tokens):
        try:
            with torch.no_grad():
                self.model(input_ids=torch.tensor([tokens]), use_cache=False)
        finally:
            if hasattr(self, "restore"):
                setattr(*self.restore)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", default=OUT)
    arguments = parser.parse_args()
    tensors, modules = {}, {}
    for place in sorted(path for path in CHECKPOINTS.iterdir() if path.is_dir()):
        # Eager attention of transformers 5 adds Falcon's ALiBi twice.
        alibi = json.loads((place / "config.json").read_text()).get("alibi")
        recorder = Recorder(load_float32(place, "sdpa" if alibi else "eager"))
        prompt = json.loads((place / "expected.json").read_text())["cases"][1]["prompt"]
        recorder.run(prompt)
        rows = [0, len(prompt) // 2, len(prompt) - 1]
        for hook, value in recorder.values.items():
            assert len(value) == len(prompt), hook
            tensors[f"{place.name}/{hook}"] = value[rows].contiguous()
        # OpenAI's own file has no prefix.
        prefix = "transformer." if place.name == "gpt2-bare-f32" else ""
        modules[place.name] = {path.removeprefix(prefix): hook for path, hook in recorder.modules.items()}
        print(f"{place.name}: {len(recorder.values)} hook points")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    metadata = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "modules": json.dumps(modules),
    }
    safetensors.torch.save_file(tensors, arguments.out, metadata=metadata)
    print(f"{arguments.out}: {arguments.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
