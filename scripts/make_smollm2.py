#!/usr/bin/env python3
"""Writes SmolLM2-135M-Instruct, decoded from its Q4_1 GGUF file, in plain element types.

    python3 scripts/make_smollm2.py SmolLM2-135M-Instruct.Q4_1.gguf OUT

Needs numpy and the package gguf. Writes, with the file's own metadata and tokenizer and norms in f32:

    OUT/smollm2-f32.gguf          the decoded weights themselves
    OUT/smollm2-bf16.gguf         the decoded weights rounded once to bf16, to nearest, ties to even
    OUT/smollm2-f16.gguf          the same with f16
    OUT/smollm2-bf16-as-f32.gguf  the bf16 file's values widened to f32, for an oracle in f32 arithmetic
    OUT/smollm2-f16-as-f32.gguf   the f16 file's values widened to f32
    OUT/hf-bf16/                  config.json and model.safetensors: the very bits of smollm2-bf16.gguf under
                                  Hugging Face names, Q and K rows in half order, norms rounded to bf16 too,
                                  no lm_head (tied), no tokenizer

Works for every file of the architecture `llama` without rope scaling, biases or experts.
"""

import argparse
import json
import sys
from pathlib import Path

import gguf
import numpy as np

TYPES = gguf.GGMLQuantizationType
FILE_TYPES = {TYPES.F32: 0, TYPES.F16: 1, TYPES.BF16: 32}
HF_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
HF_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def to_bf16(values):
    """bf16 bits as uint16 of finite float32 values, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    if not np.isfinite(values).all():
        raise ValueError("a weight is not finite")
    return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def to_f16(values):
    rounded = values.astype(np.float16)
    if not np.isfinite(rounded).all():
        raise ValueError("a weight does not fit in f16")
    return rounded


def widen_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def decoded(reader):
    """Name -> float32 array in row-major `[rows, columns]`, or `[n]` for a norm."""
    tensors = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        tensors[tensor.name] = np.ascontiguousarray(values, dtype=np.float32).reshape(tensor.shape[::-1])
    return tensors


def write_gguf(path, reader, tensors, kind, encode):
    """Every matrix as `encode` gives it, every vector in f32; `kind` is the type that the file declares."""
    architecture = reader.get_field("general.architecture").contents()
    writer = gguf.GGUFWriter(path, architecture)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        value, sub = field.contents(), field.types[-1] if len(field.types) > 1 else None
        writer.add_key_value(field.name, value, field.types[0], sub_type=sub)
    writer.add_file_type(FILE_TYPES[kind])
    for name, values in tensors.items():
        if values.ndim == 1:
            writer.add_tensor(name, values)
        elif kind == TYPES.BF16:
            writer.add_tensor(name, encode(values).view(np.uint8), raw_dtype=TYPES.BF16)
        else:
            writer.add_tensor(name, encode(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{path.name}: {path.stat().st_size} bytes")


def half_order(rows, heads):
    """Rows of Q or K from GGUF's interleaved rope order (x0 y0 x1 y1 …) to halves (x0 x1 … y0 y1 …)."""
    count, columns = rows.shape
    return rows.reshape(heads, count // heads // 2, 2, columns).swapaxes(1, 2).reshape(count, columns)


def hf_tensors(tensors, heads, kv_heads):
    """Hugging Face name -> bf16 bits, in the order of the file."""
    out = {}
    for name, values in tensors.items():
        bits = to_bf16(values)
        stem = name.removesuffix(".weight")
        if stem in HF_TOP_NAMES:
            out[f"{HF_TOP_NAMES[stem]}.weight"] = bits
            continue
        block, layer, part = stem.split(".")
        if block != "blk" or part not in HF_NAMES:
            raise ValueError(f"no Hugging Face name is known for the tensor {name}")
        if part == "attn_q":
            bits = half_order(bits, heads)
        elif part == "attn_k":
            bits = half_order(bits, kv_heads)
        out[f"model.layers.{int(layer)}.{HF_NAMES[part]}.weight"] = bits
    return out


def write_safetensors(path, tensors):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, bits in tensors.items():
        end = offset + bits.nbytes
        header[name] = {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for bits in tensors.values():
            file.write(np.ascontiguousarray(bits).astype("<u2", copy=False).tobytes())


def hf_config(reader, tensors):
    def get(key):
        field = reader.get_field(key)
        if field is None:
            raise ValueError(f"the file has no {key}")
        return field.contents()

    heads, hidden = get("llama.attention.head_count"), get("llama.embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": get("tokenizer.ggml.eos_token_id"),
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": get("llama.feed_forward_length"),
        "max_position_embeddings": get("llama.context_length"),
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": get("llama.block_count"),
        "num_key_value_heads": get("llama.attention.head_count_kv"),
        # The stored float32, written with its shortest decimals.
        "rms_norm_eps": float(str(np.float32(get("llama.attention.layer_norm_rms_epsilon")))),
        "rope_scaling": None,
        "rope_theta": get("llama.rope.freq_base"),
        "tie_word_embeddings": "output.weight" not in tensors,
        "torch_dtype": "bfloat16",
        "vocab_size": get("llama.vocab_size"),
    }


def write_hf(directory, reader, tensors):
    directory.mkdir(parents=True, exist_ok=True)
    config = hf_config(reader, tensors)
    named = hf_tensors(tensors, config["num_attention_heads"], config["num_key_value_heads"])
    (directory / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    write_safetensors(directory / "model.safetensors", named)
    print(f"{directory.name}: {len(named)} tensors, {(directory / 'model.safetensors').stat().st_size} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("gguf", type=Path, help="SmolLM2-135M-Instruct as GGUF Q4_1")
    parser.add_argument("out", type=Path, help="directory to write to")
    arguments = parser.parse_args()
    if not arguments.gguf.is_file():
        sys.exit(f"{arguments.gguf}: no such file")
    arguments.out.mkdir(parents=True, exist_ok=True)
    reader = gguf.GGUFReader(arguments.gguf)
    architecture = reader.get_field("general.architecture").contents()
    if architecture != "llama":
        sys.exit(f"{arguments.gguf.name}: the architecture is {architecture}, not llama")
    tensors = decoded(reader)
    jobs = [
        ("smollm2-f32.gguf", TYPES.F32, lambda values: values),
        ("smollm2-bf16.gguf", TYPES.BF16, to_bf16),
        ("smollm2-f16.gguf", TYPES.F16, to_f16),
        ("smollm2-bf16-as-f32.gguf", TYPES.F32, lambda values: widen_bf16(to_bf16(values))),
        ("smollm2-f16-as-f32.gguf", TYPES.F32, lambda values: to_f16(values).astype(np.float32)),
    ]
    for name, kind, encode in jobs:
        write_gguf(arguments.out / name, reader, tensors, kind, encode)
    write_hf(arguments.out / "hf-bf16", reader, tensors)


if __name__ == "__main__":
    main()
