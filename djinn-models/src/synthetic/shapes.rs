//! The shapes of synthetic models, and the changes that a name can request.

use super::PREFIX;
use super::blocks::Mix;
use crate::decoder::{Decoder, KeyNames, Mlp};
use crate::open::JsonKeys;
use crate::{Error, Result, families};
use djinn_srg::DType;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// A synthetic model's name, taken apart.
pub(super) struct Request {
    pub(super) decoder: Decoder,
    /// Number of layers with their own weights.
    pub(super) distinct: u64,
    pub(super) seed: u64,
    pub(super) dtype: DType,
    /// Whether the name says which dtype.
    pub(super) chosen: bool,
    /// The formats of blocks, if matrices are in blocks.
    pub(super) mix: Option<Mix>,
}

/// The models' published configurations, as far as they determine shapes: a name, its base shape, and the different
/// keys of `config.json`.
const SHAPES: &str = r#"[
    {"name":"llama-2-7b","model_type":"llama","hidden_size":4096,"intermediate_size":11008,
     "num_hidden_layers":32,"num_attention_heads":32,"vocab_size":32000,"max_position_embeddings":4096,
     "rms_norm_eps":1e-5,"rope_theta":10000.0,"torch_dtype":"float16"},
    {"name":"llama-2-13b","like":"llama-2-7b","hidden_size":5120,"intermediate_size":13824,
     "num_hidden_layers":40,"num_attention_heads":40},
    {"name":"llama-2-70b","like":"llama-2-7b","hidden_size":8192,"intermediate_size":28672,
     "num_hidden_layers":80,"num_attention_heads":64,"num_key_value_heads":8},
    {"name":"llama-3-8b","like":"llama-2-7b","intermediate_size":14336,"num_key_value_heads":8,
     "vocab_size":128256,"max_position_embeddings":8192,"rope_theta":500000.0,"torch_dtype":"bfloat16"},
    {"name":"llama-3-70b","like":"llama-3-8b","hidden_size":8192,"intermediate_size":28672,
     "num_hidden_layers":80,"num_attention_heads":64},
    {"name":"llama-3.1-8b","like":"llama-3-8b","max_position_embeddings":131072,
     "rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,
     "original_max_position_embeddings":8192}},
    {"name":"llama-3.2-1b","like":"llama-3-8b","hidden_size":2048,"intermediate_size":8192,
     "num_hidden_layers":16,"tie_word_embeddings":true,"max_position_embeddings":131072,
     "rope_scaling":{"rope_type":"llama3","factor":32.0,"low_freq_factor":1.0,"high_freq_factor":4.0,
     "original_max_position_embeddings":8192}},
    {"name":"smollm2-135m","like":"llama-3-8b","hidden_size":576,"intermediate_size":1536,
     "num_hidden_layers":30,"num_attention_heads":9,"num_key_value_heads":3,"vocab_size":49152,
     "rope_theta":100000.0,"tie_word_embeddings":true},
    {"name":"mistral-7b","like":"llama-3-8b","model_type":"mistral","sliding_window":null,
     "vocab_size":32768,"max_position_embeddings":32768,"rope_theta":1e6},
    {"name":"mixtral-8x7b","like":"mistral-7b","model_type":"mixtral","vocab_size":32000,
     "num_local_experts":8,"num_experts_per_tok":2},
    {"name":"qwen2.5-7b","like":"llama-3-8b","model_type":"qwen2","hidden_size":3584,
     "intermediate_size":18944,"num_hidden_layers":28,"num_attention_heads":28,"num_key_value_heads":4,
     "vocab_size":152064,"max_position_embeddings":32768,"rope_theta":1e6},
    {"name":"qwen3-8b","like":"llama-3-8b","model_type":"qwen3","intermediate_size":12288,
     "num_hidden_layers":36,"vocab_size":151936,"max_position_embeddings":40960,"rope_theta":1e6},
    {"name":"qwen3-30b-a3b","like":"qwen3-8b","model_type":"qwen3_moe","hidden_size":2048,
     "moe_intermediate_size":768,"num_hidden_layers":48,"num_key_value_heads":4,"head_dim":128,"num_experts":128,
     "num_experts_per_tok":8,"norm_topk_prob":true},
    {"name":"gpt2","model_type":"gpt2","n_embd":768,"n_layer":12,"n_head":12,"n_positions":1024,
     "vocab_size":50257,"layer_norm_epsilon":1e-5,"torch_dtype":"float32"},
    {"name":"gpt-j-6b","model_type":"gptj","n_embd":4096,"n_layer":28,"n_head":16,"n_positions":2048,
     "vocab_size":50400,"rotary_dim":64,"layer_norm_epsilon":1e-5,"torch_dtype":"float16"},
    {"name":"pythia-6.9b","model_type":"gpt_neox","hidden_size":4096,"intermediate_size":16384,
     "num_hidden_layers":32,"num_attention_heads":32,"vocab_size":50432,"max_position_embeddings":2048,
     "rotary_pct":0.25,"rotary_emb_base":10000,"layer_norm_eps":1e-5,"use_parallel_residual":true,
     "torch_dtype":"float16"},
    {"name":"falcon-7b","model_type":"falcon","hidden_size":4544,"num_hidden_layers":32,
     "num_attention_heads":71,"vocab_size":65024,"max_position_embeddings":2048,"layer_norm_epsilon":1e-5,
     "torch_dtype":"bfloat16"},
    {"name":"falcon-40b","like":"falcon-7b","hidden_size":8192,"num_hidden_layers":60,
     "num_attention_heads":128,"num_kv_heads":8,"new_decoder_architecture":true},
    {"name":"falcon-180b","like":"falcon-40b","hidden_size":14848,"num_hidden_layers":80,
     "num_attention_heads":232},
    {"name":"falcon-rw-1b","like":"falcon-7b","hidden_size":2048,"num_hidden_layers":24,
     "num_attention_heads":32,"vocab_size":50304,"alibi":true,"bias":true,"multi_query":false,
     "parallel_attn":false},
    {"name":"tiny","like":"llama-2-7b","hidden_size":64,"intermediate_size":160,"num_hidden_layers":2,
     "num_attention_heads":4,"vocab_size":256,"max_position_embeddings":2048,"torch_dtype":"bfloat16"},
    {"name":"tiny-gqa","like":"tiny","num_key_value_heads":2},
    {"name":"tiny-mqa","like":"tiny","num_key_value_heads":1},
    {"name":"tiny-tied","like":"tiny","tie_word_embeddings":true},
    {"name":"tiny-bias","like":"tiny","attention_bias":true,"mlp_bias":true},
    {"name":"tiny-1layer","like":"tiny","num_hidden_layers":1},
    {"name":"tiny-qwen3","like":"tiny-gqa","model_type":"qwen3","head_dim":16},
    {"name":"tiny-window","like":"tiny-gqa","model_type":"mistral","sliding_window":24},
    {"name":"tiny-mixtral","like":"tiny-gqa","model_type":"mixtral","num_local_experts":8,
     "num_experts_per_tok":2},
    {"name":"tiny-qwen3-moe","like":"tiny-qwen3","model_type":"qwen3_moe","moe_intermediate_size":96,
     "num_experts":16,"num_experts_per_tok":4},
    {"name":"tiny-gpt2","like":"gpt2","n_embd":64,"n_layer":2,"n_head":4,"vocab_size":256,
     "torch_dtype":"bfloat16"},
    {"name":"tiny-gptj","like":"gpt-j-6b","n_embd":64,"n_layer":2,"n_head":4,"vocab_size":256,
     "rotary_dim":8,"torch_dtype":"bfloat16"},
    {"name":"tiny-gpt-neox","like":"pythia-6.9b","hidden_size":64,"intermediate_size":160,
     "num_hidden_layers":2,"num_attention_heads":4,"vocab_size":256,"torch_dtype":"bfloat16"},
    {"name":"tiny-falcon","like":"falcon-40b","hidden_size":64,"num_hidden_layers":2,
     "num_attention_heads":4,"num_kv_heads":2,"vocab_size":256},
    {"name":"tiny-falcon-rw","like":"falcon-rw-1b","hidden_size":64,"num_hidden_layers":2,
     "num_attention_heads":4,"vocab_size":256}
]"#;

static TABLE: LazyLock<Vec<Map<String, Value>>> =
    LazyLock::new(|| serde_json::from_str(SHAPES).expect("the table is JSON"));

fn text<'a>(shape: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    shape.get(key).and_then(Value::as_str)
}

/// The shapes' names.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().filter_map(|shape| text(shape, "name"))
}

/// The configuration of a known shape.
fn configuration(name: &str) -> Option<Map<String, Value>> {
    let shape = TABLE.iter().find(|shape| text(shape, "name") == Some(name))?;
    let mut config = text(shape, "like").map_or(Some(Map::new()), configuration)?;
    config.extend(shape.clone());
    Some(config)
}

const KEYS: &str = "layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, context, window, experts, \
                    chosen, tied, bias, distinct, seed, dtype, encoding";

/// Takes a name without its prefix apart.
pub(super) fn parse(name: &str) -> Result<Request> {
    let path = PathBuf::from(format!("{PREFIX}{name}"));
    let (base, changes) = name.split_once('?').unwrap_or((name, ""));
    let Some(mut config) = configuration(base) else {
        return Err(Error::NotAModel {
            place: path.display().to_string(),
            detail: format!("known shapes: {}", names().collect::<Vec<_>>().join(", ")),
        });
    };
    let family = families::family(&JsonKeys::new(&path, config.clone()))?;
    let stored = config.get("torch_dtype").and_then(Value::as_str).expect("the table has it");
    let (mut seed, mut distinct, mut mix) = (0, None, None);
    let mut dtype = Change { path: &path, key: "torch_dtype", value: stored }.dtype()?;
    let mut chosen = false;
    let mut asked = Vec::new();
    for change in changes.split('&').filter(|change| !change.is_empty()) {
        let (key, value) = change.split_once('=').unwrap_or((change, ""));
        let change = Change { path: &path, key, value };
        match key {
            "seed" => seed = change.number()?,
            "distinct" => distinct = Some(change.number()?),
            "dtype" => (dtype, chosen) = (change.dtype()?, true),
            "encoding" => {
                let named = || change.error("q4_k_m, or a GGML format such as q4_k, q6_k or q8_0");
                mix = Some(Mix::parse(value).ok_or_else(named)?);
            }
            "tied" => {
                config.insert("tie_word_embeddings".to_owned(), change.flag()?.into());
            }
            "bias" => {
                let value = change.flag()?;
                if family.keys.biases.is_empty() {
                    return Err(change.pointless());
                }
                config.extend(family.keys.biases.iter().map(|&key| (key.to_owned(), value.into())));
            }
            _ => {
                let (json, read) = size(key, &family.keys).ok_or_else(|| Error::Unsupported {
                    what: format!("key `{key}` of {}", path.display()),
                    remedy: format!("known keys: {KEYS}"),
                })?;
                let number = change.number()?;
                config.insert(json.to_owned(), number.into());
                asked.push((change, number, read));
            }
        }
    }
    let decoder = families::from_json(&JsonKeys::new(&path, config))?;
    // A family may lack the size, or derive it from others.
    if let Some((change, _, _)) = asked.iter().find(|(_, number, read)| read(&decoder) != Some(*number)) {
        return Err(change.pointless());
    }
    let layers = decoder.sizes.layers;
    let distinct = distinct.unwrap_or(layers);
    if !(1..=layers).contains(&distinct) {
        let change = Change { path: &path, key: "distinct", value: &distinct.to_string() };
        return Err(change.error(&format!("1 to {layers} layers")));
    }
    Ok(Request { decoder, distinct, seed, dtype, chosen, mix })
}

/// Reads a size from a decoder, if it has it.
type Reader = fn(&Decoder) -> Option<u64>;

/// The family's key for a size, and its reader.
fn size(key: &str, names: &KeyNames) -> Option<(&'static str, Reader)> {
    Some(match key {
        "layers" => (names.layers, |d| Some(d.sizes.layers)),
        "hidden" => (names.hidden, |d| Some(d.sizes.hidden)),
        "intermediate" => (names.intermediate, |d| Some(d.sizes.intermediate)),
        "heads" => (names.heads, |d| Some(d.sizes.heads)),
        "kv_heads" => (names.kv_heads, |d| Some(d.sizes.kv_heads)),
        "head_dim" => (names.head_dim, |d| Some(d.sizes.head_dim)),
        "vocab" => (names.vocab, |d| Some(d.sizes.vocab)),
        "context" => (names.context, |d| Some(d.sizes.context)),
        "window" => (names.window, |d| d.window.as_ref().map(|w| w.positions)),
        "experts" => (names.experts, |d| experts(d).map(|(count, _)| count)),
        "chosen" => (names.chosen, |d| experts(d).map(|(_, chosen)| chosen)),
        _ => return None,
    })
}

fn experts(decoder: &Decoder) -> Option<(u64, u64)> {
    match decoder.mlp {
        Mlp::Experts { count, chosen, .. } => Some((count, chosen)),
        Mlp::SwiGlu | Mlp::Gelu(_) => None,
    }
}

struct Change<'a> {
    path: &'a Path,
    key: &'a str,
    value: &'a str,
}

impl Change<'_> {
    fn number(&self) -> Result<u64> {
        self.value.parse().map_err(|_| self.error("a whole number"))
    }

    fn flag(&self) -> Result<bool> {
        self.value.parse().map_err(|_| self.error("true or false"))
    }

    fn dtype(&self) -> Result<DType> {
        match self.value {
            "f32" | "float32" => Ok(DType::F32),
            "f16" | "float16" => Ok(DType::F16),
            "bf16" | "bfloat16" => Ok(DType::BF16),
            _ => Err(self.error("f32, f16 or bf16")),
        }
    }

    fn pointless(&self) -> Error {
        Error::Unsupported {
            what: format!("key `{}` of {}", self.key, self.path.display()),
            remedy: "this model's family has no such choice".to_owned(),
        }
    }

    fn error(&self, expected: &str) -> Error {
        Error::Config {
            path: self.path.to_owned(),
            key: self.key.to_owned(),
            detail: format!("expected {expected}, found `{}`", self.value),
        }
    }
}
