//! A tiny Llama's tensors, written as a Hugging Face directory or as GGUF in the way that llama.cpp's
//! converter does.

use half::{bf16, f16};
use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

pub(super) const HEADS: usize = 4;
pub(super) const KV_HEADS: usize = 2;
pub(super) const HEAD_DIM: usize = 6;
pub(super) const HIDDEN: usize = 32;
pub(super) const FFN: usize = 64;
pub(super) const LAYERS: usize = 2;
pub(super) const VOCAB: usize = 40;

/// A tensor's shape and numbers.
#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f32>,
    pub(crate) dtype: Dtype,
}

pub(crate) type Tensors = BTreeMap<String, Tensor>;

/// Every tensor of the model in Hugging Face's names; all numbers differ and are exact in f32.
pub(crate) fn tensors(tied: bool, bias: bool) -> Tensors {
    let mut tensors = Tensors::new();
    let mut next = 0;
    let mut put = |name: String, shape: &[usize]| {
        let count = shape.iter().product::<usize>();
        let values = (next..next + count).map(|i| (i + 1) as f32 / 64.0).collect();
        next += count;
        tensors.insert(name, Tensor { shape: shape.to_vec(), values, dtype: Dtype::F32 });
    };
    let (q, kv) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
    put("model.embed_tokens.weight".into(), &[VOCAB, HIDDEN]);
    put("model.norm.weight".into(), &[HIDDEN]);
    if !tied {
        put("lm_head.weight".into(), &[VOCAB, HIDDEN]);
    }
    for layer in 0..LAYERS {
        let linears = [
            ("self_attn.q_proj", [q, HIDDEN]),
            ("self_attn.k_proj", [kv, HIDDEN]),
            ("self_attn.v_proj", [kv, HIDDEN]),
            ("self_attn.o_proj", [HIDDEN, q]),
            ("mlp.gate_proj", [FFN, HIDDEN]),
            ("mlp.up_proj", [FFN, HIDDEN]),
            ("mlp.down_proj", [HIDDEN, FFN]),
        ];
        for (name, shape) in linears {
            put(format!("model.layers.{layer}.{name}.weight"), &shape);
            if bias {
                put(format!("model.layers.{layer}.{name}.bias"), &shape[..1]);
            }
        }
        for name in ["input_layernorm", "post_attention_layernorm"] {
            put(format!("model.layers.{layer}.{name}.weight"), &[HIDDEN]);
        }
    }
    tensors
}

pub(super) fn config(tied: bool, bias: bool) -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": tied,
        "attention_bias": bias,
        "mlp_bias": bias,
    })
}

/// The numbers as little-endian `dtype`: f32, f16 or bf16.
pub(super) fn encode(values: &[f32], dtype: Dtype) -> Vec<u8> {
    match dtype {
        Dtype::F16 => values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
        Dtype::BF16 => values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

pub(super) fn write_safetensors(path: &Path, tensors: &Tensors) {
    let bytes: Vec<Vec<u8>> = tensors.values().map(|t| encode(&t.values, t.dtype)).collect();
    let views = tensors.iter().zip(&bytes).map(|((name, tensor), bytes)| {
        (name.clone(), TensorView::new(tensor.dtype, tensor.shape.clone(), bytes).unwrap())
    });
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// A directory with `config.json` and `model.safetensors`.
pub(super) fn write_directory(directory: &Path, config: &Value, tensors: &Tensors) {
    std::fs::write(directory.join("config.json"), config.to_string()).unwrap();
    write_safetensors(&directory.join("model.safetensors"), tensors);
}

/// The tensors under GGUF's names, rows of queries and keys reordered as llama.cpp's converter does it:
/// `reshape(heads, 2, head_dim / 2, …)` with axes 1 and 2 swapped.
pub(crate) fn to_gguf(tensors: &Tensors) -> Tensors {
    let renames = [
        ("model.layers.", "blk."),
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("post_attention_layernorm", "ffn_norm"),
        ("input_layernorm", "attn_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ];
    let convert = |(name, tensor): (&String, &Tensor)| {
        let new = renames.iter().fold(name.clone(), |name, (from, to)| name.replace(from, to));
        let mut tensor = tensor.clone();
        if new.contains("attn_q.") || new.contains("attn_k.") {
            let columns: usize = tensor.shape[1..].iter().product();
            let rows: Vec<&[f32]> = tensor.values.chunks(columns).collect();
            let mut swapped = Vec::new();
            for head in rows.chunks(HEAD_DIM) {
                for pair in 0..HEAD_DIM / 2 {
                    swapped.extend_from_slice(head[pair]);
                    swapped.extend_from_slice(head[HEAD_DIM / 2 + pair]);
                }
            }
            tensor.values = swapped;
        }
        (new, tensor)
    };
    tensors.iter().map(convert).collect()
}

/// A metadata value, by GGUF's type ids.
#[derive(Clone)]
pub(crate) enum Meta {
    U32(u32),
    F32(f32),
    Bool(bool),
    Str(String),
}

pub(crate) type Metadata = BTreeMap<String, Meta>;

pub(crate) fn metadata() -> Metadata {
    let numbers = [
        ("llama.block_count", LAYERS),
        ("llama.embedding_length", HIDDEN),
        ("llama.feed_forward_length", FFN),
        ("llama.attention.head_count", HEADS),
        ("llama.attention.head_count_kv", KV_HEADS),
        ("llama.attention.key_length", HEAD_DIM),
        ("llama.attention.value_length", HEAD_DIM),
        ("llama.rope.dimension_count", HEAD_DIM),
        ("llama.context_length", 512),
    ];
    let numbers = numbers.map(|(key, value)| (key.to_owned(), Meta::U32(value as u32)));
    let mut metadata = Metadata::from(numbers);
    metadata.insert("general.architecture".into(), Meta::Str("llama".into()));
    metadata.insert("llama.attention.layer_norm_rms_epsilon".into(), Meta::F32(1e-5));
    metadata.insert("llama.rope.freq_base".into(), Meta::F32(10000.0));
    metadata
}

pub(crate) fn write_gguf(path: &Path, metadata: &Metadata, tensors: &Tensors) {
    let mut file = b"GGUF".to_vec();
    let text = |file: &mut Vec<u8>, s: &str| {
        file.extend((s.len() as u64).to_le_bytes());
        file.extend(s.as_bytes());
    };
    file.extend(3u32.to_le_bytes());
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        text(&mut file, key);
        match value {
            Meta::U32(n) => file.extend([4u32.to_le_bytes(), n.to_le_bytes()].concat()),
            Meta::F32(n) => file.extend([6u32.to_le_bytes(), n.to_le_bytes()].concat()),
            Meta::Bool(b) => {
                file.extend(7u32.to_le_bytes());
                file.push(u8::from(*b));
            }
            Meta::Str(s) => {
                file.extend(8u32.to_le_bytes());
                text(&mut file, s);
            }
        }
    }
    let mut data = Vec::new();
    for (name, tensor) in tensors {
        text(&mut file, name);
        file.extend((tensor.shape.len() as u32).to_le_bytes());
        tensor.shape.iter().rev().for_each(|&d| file.extend((d as u64).to_le_bytes()));
        let (type_id, bytes) = match tensor.dtype {
            Dtype::F32 => (0u32, encode(&tensor.values, Dtype::F32)),
            Dtype::F16 => (1, encode(&tensor.values, Dtype::F16)),
            Dtype::BF16 => (30, encode(&tensor.values, Dtype::BF16)),
            // Stands for Q8_0.
            _ => (8, q8_0(&tensor.values)),
        };
        file.extend(type_id.to_le_bytes());
        file.extend((data.len() as u64).to_le_bytes());
        data.extend(bytes);
        data.resize(data.len().next_multiple_of(32), 0);
    }
    file.resize(file.len().next_multiple_of(32), 0);
    file.extend(data);
    std::fs::write(path, file).unwrap();
}

/// Blocks of 32 numbers with a scale of 1/64 each: exact for multiples of it up to 127/64.
fn q8_0(values: &[f32]) -> Vec<u8> {
    let block = |block: &[f32]| {
        let scale = f16::from_f32(1.0 / 64.0).to_le_bytes();
        let numbers = block.iter().map(|v| (v * 64.0) as i8 as u8);
        scale.into_iter().chain(numbers).collect::<Vec<u8>>()
    };
    values.chunks(32).flat_map(block).collect()
}
