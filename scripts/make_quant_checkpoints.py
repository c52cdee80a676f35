#!/usr/bin/env python3
"""Writes the tiny quantised checkpoints of djinn-models/tests/quantised, from the formulas of their formats.

    pip install numpy==2.4.0
    python scripts/make_quant_checkpoints.py

Each variant is a directory with config.json, model.safetensors and expected.json:

    rows     some rows of each quantised matrix, decoded: {matrix: {row: values}}
    cases    prompts; logits of the last position in float32, computed in float64 from the decoded weights

GPTQ: Frantar et al. 2022, stored as AutoGPTQ does. AWQ: Lin et al. 2023, stored as AutoAWQ's GEMM version does. FP8:
Micikevicius et al. 2022, with the scales of DeepSeek-V3, AutoFP8 and compressed-tensors. The forward pass below is compared
with transformers' own logits of djinn-models/tests/checkpoints before anything is written.

transformers 5.23 decodes fp8-block to the same weights (where blocks are whole: it takes those of 160 inputs for 80 wide), and
fp8-channel to what they are rounded to bf16.

Also writes blocks of Djinn's own formats and what they stand for to djinn-models/tests/fixtures/quant, as
scripts/make_quant_vectors.py does for GGML's, and the seeds of the fuzz target `quantised`: a config.json, a zero byte, and
a safetensors file.
"""

import json
import struct
from pathlib import Path

import numpy as np

TESTS = Path(__file__).resolve().parent.parent / "djinn-models" / "tests"
OUT = TESTS / "quantised"
CORPUS = TESTS.parent.parent / "fuzz" / "corpus" / "quantised"
VOCAB = 96
MODULES = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
MODULES += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I32": "<i4", "F8_E4M3": "u1"}

# The outputs of AWQ's word of eight, from its lowest bits on.
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def bf16_bits(values):
    """Rounded to nearest, ties to even."""
    bits = np.asarray(values, "<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def bf16_values(bits):
    return (bits.astype("<u4") << 16).view("<f4")


def e4m3_values():
    """What each code stands for; NaN for the two that are none."""
    code = np.arange(128)
    exponent, mantissa = code >> 3, code & 7
    values = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    values[127] = np.nan
    return np.concatenate([values, -values]).astype("<f4")


def e4m3_codes(values):
    """The nearest codes to values of at most 448."""
    table = e4m3_values()[:127]
    at = np.searchsorted(table, np.abs(values)).clip(1, 126)
    at -= np.abs(values) - table[at - 1] <= table[at] - np.abs(values)
    return (at + 128 * (values < 0)).astype("u1")


def read(path):
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__":
            start, end = (8 + length + at for at in entry["data_offsets"])
            values = np.frombuffer(data[start:end], TYPES[entry["dtype"]]).reshape(entry["shape"])
            tensors[name] = bf16_values(values) if entry["dtype"] == "BF16" else values
    return tensors


def safetensors(tensors):
    """The file of {name: (type, array)}."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (kind, values) in sorted(tensors.items()):
        values = bf16_bits(values) if kind == "BF16" else np.asarray(values).astype(TYPES[kind])
        end = len(data) + values.nbytes
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": [len(data), end]}
        data += values.tobytes()
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def forward(config, weights, tokens):
    """The logits of the last token, of a Llama or a Qwen2 (Touvron et al. 2023, Yang et al. 2024)."""
    weights = {name: values.astype(np.float64) for name, values in weights.items()}
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * weights[f"{name}.weight"]

    def linear(x, name):
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)

    def rotate(x):
        angles = np.outer(np.arange(len(tokens)), theta ** (-np.arange(0, size, 2) / size))
        angles = np.concatenate([angles, angles], 1)[:, None]
        halves = np.concatenate([-x[..., size // 2 :], x[..., : size // 2]], -1)
        return x * np.cos(angles) + halves * np.sin(angles)

    x = weights["model.embed_tokens.weight"][tokens]
    hidden_keys = np.triu(np.full((len(tokens), len(tokens)), -np.inf), 1)
    for block in range(config["num_hidden_layers"]):
        at = f"model.layers.{block}."
        y = norm(x, at + "input_layernorm")
        q, k, v = (linear(y, f"{at}self_attn.{p}_proj").reshape(len(tokens), -1, size) for p in "qkv")
        q, k = rotate(q), rotate(k)
        k, v = (np.repeat(part, heads // groups, axis=1) for part in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(size) + hidden_keys
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hqk,khd->qhd", scores / scores.sum(-1, keepdims=True), v)
        x = x + linear(mixed.reshape(len(tokens), -1), at + "self_attn.o_proj")
        y = norm(x, at + "post_attention_layernorm")
        gate = linear(y, at + "mlp.gate_proj")
        x = x + linear(gate / (1 + np.exp(-gate)) * linear(y, at + "mlp.up_proj"), at + "mlp.down_proj")
    head = "lm_head" if "lm_head.weight" in weights else "model.embed_tokens"
    return linear(norm(x[-1], "model.norm"), head)


def check_forward():
    for name in ("gqa-bf16", "tied-f32", "qwen2-bf16"):
        folder = TESTS / "checkpoints" / name
        config = json.loads((folder / "config.json").read_text())
        weights = read(folder / "model.safetensors")
        for case in json.loads((folder / "expected.json").read_text())["cases"]:
            found, expected = forward(config, weights, case["prompt"]), np.array(case["logits"][-1])
            error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
            assert case["positions"][-1] == len(case["prompt"]) - 1 and error < 1e-5, (name, error)


def integers(matrix, group, rng, symmetric):
    """Integers, f16 scales and zero points of a matrix `[outputs, inputs]`, and what they stand for."""
    outputs, inputs = matrix.shape
    groups = matrix.reshape(outputs, inputs // group, group)
    low, high = groups.min(-1), groups.max(-1)
    scales = ((high - low) / 15).astype("<f2")
    zeros = np.full(scales.shape, 8) if symmetric else np.round(-low / scales).clip(1, 15).astype(int)
    # The ends of what is stored: zero points of 1 and of 15.
    if not symmetric:
        zeros[0, 0], zeros[1, 0] = 1, 15
    q = np.round(groups / scales[..., None].astype(np.float64) + zeros[..., None]).clip(0, 15).astype(int)
    decoded = (q - zeros[..., None]) * scales[..., None].astype(np.float64)
    return q.reshape(outputs, inputs), scales, zeros, decoded.reshape(outputs, inputs).astype("<f4")


def words(nibbles):
    """Eight integers along the last axis in a word, the first in its lowest bits."""
    eight = nibbles.reshape(*nibbles.shape[:-1], -1, 8).astype("<u4")
    return (eight << np.arange(0, 32, 4, dtype="<u4")).sum(-1, dtype="<u4").view("<i4")


def gptq(matrix, rng, group, less, g_idx=False, zero_biases=False, scale_type="F16", symmetric=False):
    outputs, inputs = matrix.shape
    size = inputs if group == -1 else group
    q, scales, zeros, decoded = integers(matrix, size, rng, symmetric)
    parts = {
        "qweight": ("I32", words(q).T),
        "qzeros": ("I32", words((zeros - less).T)),
        "scales": (scale_type, scales.T),
    }
    if g_idx:
        parts["g_idx"] = ("I32", np.arange(inputs) // size)
    if zero_biases:
        parts["bias"] = ("F16", np.zeros(outputs))
    return parts, decoded


def awq(matrix, rng, group):
    q, scales, zeros, decoded = integers(matrix, group, rng, False)

    def pack(rows):
        return words(rows.reshape(len(rows), -1, 8)[..., AWQ_ORDER].reshape(len(rows), -1))

    return {
        "qweight": ("I32", pack(q.T)),
        "qzeros": ("I32", pack(zeros.T)),
        "scales": ("F16", scales.T),
    }, decoded


def fp8(matrix, rng, block, name, scale_type="F32", shape=None, input_scale=False):
    """`block` outputs and inputs share a scale; a size of 0 means all."""
    outputs, inputs = matrix.shape
    rows, columns = block[0] or outputs, block[1] or inputs
    grid = (-(-outputs // rows), -(-inputs // columns))
    scales = np.zeros(grid, "<f4")
    for i in range(grid[0]):
        for j in range(grid[1]):
            part = matrix[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
            scales[i, j] = np.abs(part).max() / 440
    if scale_type == "BF16":
        scales = bf16_values(bf16_bits(scales))
    each = np.repeat(np.repeat(scales, rows, 0), columns, 1)[:outputs, :inputs]
    codes = e4m3_codes(matrix / each)
    parts = {"weight": ("F8_E4M3", codes), name: (scale_type, scales.reshape(grid if shape is None else shape))}
    if input_scale:
        parts["input_scale"] = ("F32", np.array(0.01))
    return parts, e4m3_values()[codes] * each


GPTQ = {"quant_method": "gptq", "bits": 4, "desc_act": False, "sym": False, "true_sequential": True}
# name: (family, hidden size, intermediate size, quantization_config, parts of a matrix and what they stand for)
VARIANTS = {
    "gptq-g128": (
        "Llama", 128, 256, {**GPTQ, "group_size": 128, "desc_act": True, "static_groups": True},
        lambda matrix, rng: gptq(matrix, rng, 128, 1, g_idx=True, zero_biases=True),
    ),
    "gptq-v2-g32": (
        "Qwen2", 64, 96, {**GPTQ, "group_size": 32, "checkpoint_format": "gptq_v2", "pack_dtype": "int32"},
        lambda matrix, rng: gptq(matrix, rng, 32, 0, scale_type="F32"),
    ),
    "gptq-column": (
        "Llama", 64, 96, {**GPTQ, "group_size": -1, "sym": True, "checkpoint_format": "gptq"},
        lambda matrix, rng: gptq(matrix, rng, -1, 1, symmetric=True),
    ),
    "awq-g64": (
        "Llama", 64, 128, {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"},
        lambda matrix, rng: awq(matrix, rng, 64),
    ),
    "awq-g128": (
        "Qwen2", 128, 128, {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "GEMM"},
        lambda matrix, rng: awq(matrix, rng, 128),
    ),
    # The last blocks are smaller.
    "fp8-block": (
        "Llama", 128, 160,
        {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"},
        lambda matrix, rng: fp8(matrix, rng, (128, 128), "weight_scale_inv"),
    ),
    "fp8-tensor": (
        "Llama", 64, 96, {"quant_method": "fp8", "activation_scheme": "static"},
        lambda matrix, rng: fp8(matrix, rng, (0, 0), "weight_scale", shape=(), input_scale=True),
    ),
    "fp8-channel": (
        "Llama", 128, 128,
        {
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "quantization_status": "compressed",
            "kv_cache_scheme": None,
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
                    "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
                }
            },
        },
        lambda matrix, rng: fp8(matrix, rng, (1, 0), "weight_scale", scale_type="BF16"),
    ),
}


def write_variant(name, seed):
    family, hidden, intermediate, quantization, quantise = VARIANTS[name]
    rng = np.random.default_rng(seed)
    config = {
        "architectures": [f"{family}ForCausalLM"],
        "model_type": family.lower(),
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCAB,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "quantization_config": quantization,
    }
    key_rows = hidden // 2
    shapes = dict(zip(MODULES, [(hidden, hidden), (key_rows, hidden), (key_rows, hidden), (hidden, hidden)]))
    shapes |= dict(zip(MODULES[4:], [(intermediate, hidden), (intermediate, hidden), (hidden, intermediate)]))
    plain = {"model.embed_tokens.weight": rng.normal(size=(VOCAB, hidden)), "model.norm.weight": np.ones(hidden)}
    for norm in ("input_layernorm", "post_attention_layernorm"):
        plain[f"model.layers.0.{norm}.weight"] = rng.normal(1, 0.1, hidden)
    if family == "Qwen2":
        for module in MODULES[:3]:
            plain[f"model.layers.0.{module}.bias"] = rng.normal(size=shapes[module][0]) / 4
    plain = {name: values.astype("<f2") for name, values in plain.items()}
    tensors, decoded, rows = {name: ("F16", values) for name, values in plain.items()}, dict(plain), {}
    for module, shape in shapes.items():
        # Columns of unequal size, so that groups have unequal scales.
        matrix = rng.normal(size=shape) * rng.uniform(0.5, 2, shape[1]) / np.sqrt(shape[1])
        parts, values = quantise(matrix, rng)
        at = f"model.layers.0.{module}"
        tensors |= {f"{at}.{part}": stored for part, stored in parts.items()}
        error = np.linalg.norm(values - matrix) / np.linalg.norm(matrix)
        assert error < 0.2, (name, module, error)
        decoded[f"{at}.weight"] = values
        rows[f"{at}.weight"] = {row: [float(str(x)) for x in values[row]] for row in (0, 1, 13, shape[0] - 1)}
    cases = []
    for length in (1, 9):
        prompt = rng.integers(0, VOCAB, length).tolist()
        logits = forward(config, decoded, prompt).astype("<f4")
        cases.append({"prompt": prompt, "logits": [float(str(x)) for x in logits]})
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "expected.json").write_text(json.dumps({"rows": rows, "cases": cases}) + "\n")
    (folder / "model.safetensors").write_bytes(safetensors(tensors))


def write_vectors(rng):
    """Blocks, followed by the values that they stand for as little-endian f32."""
    for elements, count in ((32, 21), (128, 5)):
        scales = (rng.normal(size=count) * 10.0 ** rng.uniform(-4, 2, count)).astype("<f2")
        zeros = rng.integers(0, 17, count, dtype="u1")
        nibbles = rng.integers(0, 16, (count, elements // 32, 2, 16), dtype="u1")
        values = (nibbles.reshape(count, elements).astype(float) - zeros[:, None]) * scales[:, None].astype(float)
        head = [scales.view("u1").reshape(count, 2), zeros[:, None], np.zeros((count, int(elements == 128)), "u1")]
        packed = (nibbles[:, :, 0] | nibbles[:, :, 1] << 4).reshape(count, -1)
        # Zero is positive, whatever the scale's sign.
        write_vector(f"INT4_G{elements}", np.concatenate([*head, packed], 1), values + 0.0)
        codes = rng.integers(0, 256, (count, elements), dtype="u1")
        codes[codes & 127 == 127] -= 1
        scales = (rng.normal(size=(count, 1)) * 10.0 ** rng.uniform(-9, 5, (count, 1))).astype("<f4")
        blocks = np.concatenate([scales.view("u1"), codes], 1)
        write_vector(f"FP8_G{elements}", blocks, e4m3_values()[codes] * scales)


def write_vector(name, blocks, values):
    path = TESTS / "fixtures" / "quant" / f"{name}.bin"
    path.write_bytes(blocks.tobytes() + values.astype("<f4").tobytes())


def write_corpus(rng):
    """A matrix of 8 outputs in every way that is read, and some more ways of writing it down."""
    small = {
        name: ({**quantization, "group_size": 32} if "group_size" in quantization else quantization, quantise)
        for name, (_, _, _, quantization, quantise) in VARIANTS.items()
    }
    small["gptq-g128"] = (small["gptq-g128"][0], lambda matrix, rng: gptq(matrix, rng, 32, 1, g_idx=True, zero_biases=True))
    small["awq-g64"] = (small["awq-g64"][0], lambda matrix, rng: awq(matrix, rng, 32))
    small["awq-g128"] = (
        {"quant_method": "awq", "w_bit": 4, "q_group_size": -1},
        lambda matrix, rng: awq(matrix, rng, 64),
    )
    small["fp8-rows"] = (
        {"quant_method": "fp8", "weight_block_size": None},
        lambda matrix, rng: fp8(matrix, rng, (1, 0), "weight_scale", shape=(8,)),
    )
    small["fp8-small-blocks"] = (
        {"quant_method": "fp8", "weight_block_size": [3, 32]},
        lambda matrix, rng: fp8(matrix, rng, (3, 32), "weight_scale_inv"),
    )
    CORPUS.mkdir(parents=True, exist_ok=True)
    for name, (quantization, quantise) in small.items():
        parts, _ = quantise(rng.normal(size=(8, 64)), rng)
        tensors = {f"m.{part}": stored for part, stored in parts.items()}
        config = json.dumps({"quantization_config": quantization}, separators=(",", ":"))
        (CORPUS / name).write_bytes(config.encode() + b"\0" + safetensors(tensors))


if __name__ == "__main__":
    check_forward()
    for seed, variant in enumerate(VARIANTS):
        write_variant(variant, seed)
    write_vectors(np.random.default_rng(100))
    write_corpus(np.random.default_rng(101))
