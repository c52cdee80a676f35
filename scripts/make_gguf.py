#!/usr/bin/env python3
"""Writes djinn-models/tests/fixtures/gguf/families from the checkpoints of make_checkpoints.py, and has llama.cpp
run every file that it writes.

    python3 scripts/make_gguf.py djinn-models/tests/checkpoints djinn-models/tests/fixtures/gguf/families

Needs gguf, llama-cpp-python and numpy. The files follow llama.cpp's conversion of Hugging Face checkpoints; names of
tensors come from its own table (gguf.get_tensor_name_map). Each is written twice: in its own type, and with the same
numbers in float32, because llama.cpp rounds the rows that it multiplies by f16 or bf16 to that type. llama.cpp must
load both, and its logits must be those of transformers in expected.json (relative norm of a row; f32 KV cache, no
flash attention, CPU) within the limits below, and so must the greedy tokens of the float32 file. It differs from
transformers on purpose in three places:

    GELU             llama.cpp looks the tanh form up in a table of f16 inputs and results, for Falcon too, whose own
                     GELU is the exact one: wider limits.
    sliding windows  a llama.cpp conversion of Mistral or Mixtral drops the window, and llama.cpp ignores the key for
                     "llama". The key is written here, as the format has it; rows within the window must agree, and
                     later rows must not, or this paragraph is out of date.
    Llama 3's rope   the conversion looks for original_max_position_embeddings outside the rope parameters and takes
                     8192 where it is not there, as in every published Llama 3; here it is what the checkpoint says.

Three keys say what the checkpoint says where the conversion writes a constant: GPT-2's feed_forward_length (4 * n_embd
there), Falcon's feed_forward_length (4 * hidden_size) and Falcon's rope.freq_base (not at all). Falcons with biases
are written too: llama.cpp must refuse them.
"""

import argparse
import ctypes
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

import gguf
import llama_cpp as lib
import numpy as np

F32, F16, BF16 = (gguf.GGMLQuantizationType[name] for name in ("F32", "F16", "BF16"))
FILE_TYPES = {
    F32: gguf.LlamaFileType.ALL_F32,
    F16: gguf.LlamaFileType.MOSTLY_F16,
    BF16: gguf.LlamaFileType.MOSTLY_BF16,
}

# The type to write, and whether the file is kept. f32 checkpoints are rounded to f16 to be small.
VARIANTS = {
    "gqa-bf16": (BF16, True),
    "biases-bf16": (BF16, False),
    "head-dim-f16": (F16, False),
    "tied-f32": (F32, False),
    "rope-llama3-bf16": (BF16, True),
    "rope-linear-f16": (F16, False),
    "mistral-window-f16": (F16, True),
    "mistral-no-window-f32": (F32, False),
    "mixtral-f32": (F32, False),
    "mixtral-f16": (F16, False),
    "mixtral-window-bf16": (BF16, True),
    "qwen2-bf16": (BF16, True),
    "qwen2-tied-f16": (F16, False),
    "qwen3-bf16": (BF16, True),
    "qwen3-f16": (F16, False),
    "qwen3-moe-bf16": (BF16, True),
    "gpt2-f16": (F16, True),
    "gpt2-bare-f32": (F16, True),
    "falcon-7b-f32": (F16, True),
    "falcon-40b-f16": (F16, True),
    "falcon-11b-bf16": (BF16, True),
}
REFUSED = ["falcon-7b-bf16"]

# Largest relative norm of the difference, of the float32 file and of the file in its own type.
LIMITS = {"llama": 1e-5, "qwen2": 1e-5, "qwen3": 1e-5, "qwen3moe": 1e-5, "gpt2": 1e-3, "falcon": 1e-3}
TYPE_LIMITS = {F32: 0.0, F16: 3e-3, BF16: 3e-2}
# Smallest, of rows from which llama.cpp hides nothing and transformers does.
APART = 1e-2


class Writer:
    """A GGUF file in llama.cpp's conventions, from one checkpoint."""

    def __init__(self, directory):
        self.config = json.loads((directory / "config.json").read_text())
        # The newer form, or the older one.
        self.rope = self.config.get("rope_parameters") or {
            **(self.config.get("rope_scaling") or {}),
            "rope_theta": self.config.get("rope_theta"),
        }
        self.tensors = {}
        for path in sorted(directory.glob("*.safetensors")):
            self.tensors.update(read_safetensors(path))
        renamed = {"mistral": "llama", "mixtral": "llama", "qwen3_moe": "qwen3moe"}
        self.arch = renamed.get(self.config["model_type"], self.config["model_type"])
        self.blocks = self.config.get("num_hidden_layers") or self.config["n_layer"]

    def write(self, path, dtype):
        out = gguf.GGUFWriter(str(path), self.arch)
        out.add_file_type(FILE_TYPES[dtype])
        out.add_block_count(self.blocks)
        # llama.cpp then takes the vocabulary's size from its key.
        out.add_tokenizer_model("no_vocab")
        out.add_vocab_size(self.config["vocab_size"])
        {"gpt2": self.gpt2_keys, "falcon": self.falcon_keys}.get(self.arch, self.llama_keys)(out)
        names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, self.arch.upper()), self.blocks)
        for name, data in self.converted():
            new = names.get_name(name, (".weight", ".bias")) if name != ROPE_FREQS else name
            if new is None:
                raise ValueError(f"llama.cpp has no name for {name}")
            as_f32 = data.ndim <= 1 or new.endswith("_norm.weight") or "ffn_gate_inp" in new or "position_embd" in new
            kind = F32 if as_f32 else dtype
            out.add_tensor(new, gguf.quants.quantize(np.ascontiguousarray(data), kind), raw_dtype=kind)
        out.write_header_to_file()
        out.write_kv_data_to_file()
        out.write_tensors_to_file()
        out.close()

    def llama_keys(self, out):
        """Of llama, qwen2, qwen3 and qwen3moe."""
        config = self.config
        out.add_context_length(config["max_position_embeddings"])
        out.add_embedding_length(config["hidden_size"])
        out.add_feed_forward_length(config["intermediate_size"])
        out.add_head_count(config["num_attention_heads"])
        out.add_head_count_kv(config["num_key_value_heads"])
        out.add_rope_freq_base(self.rope["rope_theta"])
        out.add_layer_norm_rms_eps(config["rms_norm_eps"])
        if config.get("head_dim") is not None:
            out.add_key_length(config["head_dim"])
            out.add_value_length(config["head_dim"])
        if self.experts() is not None:
            out.add_expert_count(self.experts())
            out.add_expert_used_count(config["num_experts_per_tok"])
        if self.arch == "qwen3moe":
            out.add_expert_feed_forward_length(config["moe_intermediate_size"])
        if self.rope.get("rope_type") == "linear":
            out.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            out.add_rope_scaling_factor(self.rope["factor"])
        if self.arch == "llama":
            out.add_rope_dimension_count(self.head_dim())
        if self.window() is not None:
            out.add_sliding_window(self.window())

    def gpt2_keys(self, out):
        config = self.config
        out.add_context_length(config["n_positions"])
        out.add_embedding_length(config["n_embd"])
        out.add_feed_forward_length(config["n_inner"] or 4 * config["n_embd"])
        out.add_head_count(config["n_head"])
        out.add_layer_norm_eps(config["layer_norm_epsilon"])

    def falcon_keys(self, out):
        config = self.config
        out.add_context_length(2048)
        out.add_tensor_data_layout("jploski")
        out.add_embedding_length(config["hidden_size"])
        out.add_feed_forward_length(config["ffn_hidden_size"])
        out.add_head_count(config["num_attention_heads"])
        out.add_head_count_kv(self.falcon_kv_heads())
        out.add_layer_norm_eps(config["layer_norm_epsilon"])
        if self.rope["rope_theta"] != 10000.0:
            out.add_rope_freq_base(self.rope["rope_theta"])

    def window(self):
        """Positions that a row sees, itself among them, or None for all."""
        uses = self.config["model_type"] in ("mistral", "mixtral")
        return self.config.get("sliding_window") if uses else None

    def experts(self):
        """How many a block has, or None."""
        return self.config.get("num_local_experts") or self.config.get("num_experts")

    def head_dim(self):
        return self.config.get("head_dim") or self.config["hidden_size"] // self.config["num_attention_heads"]

    def falcon_kv_heads(self):
        config = self.config
        if config["new_decoder_architecture"]:
            return config["num_kv_heads"]
        return 1 if config["multi_query"] else config["num_attention_heads"]

    def converted(self):
        """Pairs of a name in Hugging Face's words and float32 numbers, laid out for llama.cpp."""
        experts = {}
        for name, data in self.tensors.items():
            if name.endswith((".attn.bias", ".attn.masked_bias")):
                continue
            if self.arch == "gpt2":
                name = name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"
                data = data.T if name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")) else data
            elif self.arch == "falcon" and "query_key_value" in name:
                data = self.queries_keys_values(data)
            elif self.arch == "llama" and ".q_proj." in name:
                data = in_pairs(data, self.config["num_attention_heads"])
            elif self.arch == "llama" and ".k_proj." in name:
                data = in_pairs(data, self.config["num_key_value_heads"])
            elif ".experts." in name:
                before, expert, part = re.fullmatch(r"(.+)\.experts\.(\d+)\.(.+)", name).groups()
                experts.setdefault((before, part), {})[int(expert)] = data
                continue
            yield name, data
        for (before, part), parts in experts.items():
            if self.arch == "llama":
                # The name that llama.cpp's table has for all experts of a block together.
                before = before.removeprefix("model.").replace("block_sparse_moe", "feed_forward")
            yield f"{before}.experts.{part}", np.stack([parts[i] for i in range(self.experts())])
        if self.rope.get("rope_type") == "llama3":
            yield ROPE_FREQS, self.divisors()

    def queries_keys_values(self, data):
        """Each key head's queries, key and value as all queries, all keys, all values."""
        groups = self.falcon_kv_heads()
        grouped = data.reshape(groups, -1, self.head_dim(), *data.shape[1:])
        parts = (grouped[:, :-2], grouped[:, -2:-1], grouped[:, -1:])
        return np.concatenate([part.reshape(-1, *data.shape[1:]) for part in parts])

    def divisors(self):
        """By how much Llama 3 divides each frequency."""
        rope, dim = self.rope, self.head_dim()
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        turns = rope["original_max_position_embeddings"] / (
            2 * np.pi * rope["rope_theta"] ** (np.arange(0, dim, 2, dtype=np.float64) / dim)
        )
        kept = np.clip((turns - low) / (high - low), 0, 1)
        return (1 / (kept + (1 - kept) / rope["factor"])).astype(np.float32)


ROPE_FREQS = "rope_freqs.weight"


def in_pairs(data, heads):
    """Rows i and i + half of each head side by side."""
    halves = data.reshape(heads, 2, -1, *data.shape[1:])
    return halves.swapaxes(1, 2).reshape(data.shape)


def read_safetensors(path):
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        if name == "__metadata__":
            continue
        first, end = (start + offset for offset in entry["data_offsets"])
        if entry["dtype"] == "BF16":
            numbers = (np.frombuffer(data[first:end], "<u2").astype("<u4") << 16).view("<f4")
        else:
            numbers = np.frombuffer(data[first:end], {"F32": "<f4", "F16": "<f2"}.get(entry["dtype"], "u1"))
        if numbers.dtype != np.uint8:
            tensors[name] = numbers.astype(np.float32).reshape(entry["shape"])
        elif not name.endswith((".attn.bias", ".attn.masked_bias")):
            raise ValueError(f"{path}: {name} is {entry['dtype']}")
    return tensors


@lib.llama_log_callback
def quiet(level, text, data):
    pass


class Model:
    """A file in llama.cpp, on the CPU with an f32 KV cache."""

    def __init__(self, path):
        params = lib.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = lib.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {path.name}")
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = 64, 64, 64
        params.n_threads = params.n_threads_batch = 1
        params.type_k = params.type_v = lib.GGML_TYPE_F32
        params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.context = lib.llama_init_from_model(self.model, params)
        self.vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))

    def close(self):
        lib.llama_free(self.context)
        lib.llama_model_free(self.model)

    def logits(self, tokens):
        """Of every position, `[tokens, vocabulary]`."""
        lib.llama_memory_clear(lib.llama_get_memory(self.context), True)
        batch = lib.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, True
        status = lib.llama_decode(self.context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode gives {status}")
        pointer = lib.llama_get_logits(self.context)
        logits = np.ctypeslib.as_array(pointer, shape=(len(tokens), self.vocab)).copy()
        lib.llama_batch_free(batch)
        return logits


def compare(path, expected, window, limit, greedy):
    """Raises when llama.cpp's logits are not those of `expected`; the largest difference."""
    model = Model(path)
    worst = 0.0
    for case in expected["cases"]:
        logits = model.logits(case["prompt"])
        for position, row in zip(case["positions"], case["logits"]):
            row = np.array(row)
            difference = np.linalg.norm(logits[position] - row) / np.linalg.norm(row)
            where = f"{path.name}: {len(case['prompt'])} tokens, position {position}"
            if window is not None and position >= window:
                if difference < APART:
                    raise RuntimeError(f"{where}: llama.cpp seems to apply the window of {window}")
                continue
            worst = max(worst, difference)
            if not difference < limit:
                raise RuntimeError(f"{where}: the logits differ by {difference:.2e}")
    if greedy and window is None:
        tokens = list(expected["greedy"]["prompt"])
        for step, token in enumerate(expected["greedy"]["tokens"]):
            found = int(model.logits(tokens)[-1].argmax())
            if found != token:
                raise RuntimeError(f"{path.name}: greedy token {step} is {found}, not {token}")
            tokens.append(token)
    model.close()
    return worst


def check(name, checkpoints, out, scratch):
    dtype, kept = VARIANTS[name]
    directory = checkpoints / name
    expected = json.loads((directory / "expected.json").read_text())
    writer = Writer(directory)
    path = scratch / f"{name}.gguf"
    wide = scratch / f"{name}-as-f32.gguf"
    writer.write(path, dtype)
    writer.write(wide, F32)
    limit = LIMITS[writer.arch]
    exact = compare(wide, expected, writer.window(), limit, greedy=True)
    typed = compare(path, expected, writer.window(), limit + TYPE_LIMITS[dtype], greedy=False)
    size = path.stat().st_size
    if kept:
        shutil.copyfile(path, out / path.name)
    print(f"{name}: {writer.arch}, {size} bytes, f32 {exact:.1e}, {dtype.name} {typed:.1e}{'' if kept else ', not kept'}")


def check_refused(name, checkpoints, scratch):
    path = scratch / f"{name}.gguf"
    Writer(checkpoints / name).write(path, F32)
    try:
        Model(path).close()
    except RuntimeError:
        print(f"{name}: llama.cpp refuses it")
        return
    raise RuntimeError(f"{name}: llama.cpp loads what it does not compute")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkpoints", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    lib.llama_log_set(quiet, ctypes.c_void_p(0))
    lib.llama_backend_init()
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        for name in VARIANTS:
            try:
                check(name, arguments.checkpoints, arguments.out, Path(scratch))
            except (RuntimeError, ValueError) as error:
                failed += 1
                print(f"{name} FAILED: {error}", file=sys.stderr)
        for name in REFUSED:
            check_refused(name, arguments.checkpoints, Path(scratch))
    if failed:
        sys.exit(f"{failed} of {len(VARIANTS)} failed")


if __name__ == "__main__":
    main()
