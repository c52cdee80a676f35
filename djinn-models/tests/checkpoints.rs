//! The checkpoints that Hugging Face transformers wrote (`scripts/make_checkpoints.py`): each opens, has the
//! parameters that transformers counted, and gives the bytes of its tensors however rows are cut.

use djinn_models::{Location, Model, OpenOptions, TensorFile, open, safetensors::SafetensorsDir};
use djinn_srg::DType;
use serde_json::Value;
use std::path::{Path, PathBuf};

const VARIANTS: [&str; 16] = [
    "biases-bf16",
    "classic-config-bf16",
    "gqa-bf16",
    "head-dim-f16",
    "mha-f16",
    "mistral-bf16",
    "mistral-no-window-f32",
    "one-layer-f32",
    "qwen2-bf16",
    "qwen2-tied-f16",
    "qwen3-bf16",
    "qwen3-biases-tied-f32",
    "rope-linear-f16",
    "rope-llama3-bf16",
    "sharded-bf16",
    "tied-f32",
];

fn directory(variant: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints").join(variant)
}

fn open_variant(variant: &str) -> Model {
    open(&Location::Directory(directory(variant)), &OpenOptions::default()).unwrap()
}

fn json(variant: &str, file: &str) -> Value {
    serde_json::from_slice(&std::fs::read(directory(variant).join(file)).unwrap()).unwrap()
}

#[test]
fn each_has_the_parameters_that_transformers_counts() {
    for variant in VARIANTS {
        let model = open_variant(variant);
        let frequencies = u64::from(model.graph.kv.head_dim / 2);
        let expected = json(variant, "expected.json")["parameters"].as_u64().unwrap();
        assert_eq!(model.graph.parameters() - frequencies, expected, "{variant}");
        assert_eq!(model.name, variant);
        let named = &json(variant, "config.json")["architectures"][0];
        assert_eq!(model.architecture, named.as_str().unwrap());
        assert_eq!((&model.defaults.eos[..], model.defaults.bos), (&[2, 3][..], Some(1)));
        assert_eq!((model.defaults.temperature, model.defaults.top_p), (Some(0.6), Some(0.9)));
    }
}

#[test]
fn the_graph_says_what_the_configuration_does() {
    for variant in VARIANTS {
        let (model, config) = (open_variant(variant), json(variant, "config.json"));
        let number = |key: &str| config[key].as_u64().unwrap();
        let graph = &model.graph;
        assert_eq!(u64::from(graph.kv.layers), number("num_hidden_layers"));
        assert_eq!(u64::from(graph.kv.kv_heads), number("num_key_value_heads"));
        let head_dim = config["head_dim"].as_u64();
        let divided = number("hidden_size") / number("num_attention_heads");
        assert_eq!(u64::from(graph.kv.head_dim), head_dim.unwrap_or(divided));
        let context = if variant == "mistral-bf16" { number("sliding_window") } else { 512 };
        assert_eq!((graph.vocab, graph.max_context), (number("vocab_size"), context));
        let has = |name: &str| graph.weights().any(|(_, v)| v.name == name);
        assert_eq!(has("unembed.weight"), !config["tie_word_embeddings"].as_bool().unwrap(), "{variant}");
        let biased = config["attention_bias"].as_bool().unwrap_or(false);
        assert_eq!(has("blocks.0.attn.out.bias"), biased, "{variant}");
        assert_eq!(has("blocks.0.attn.qkv.bias"), biased || variant.starts_with("qwen2"), "{variant}");
        let dtype = variant.rsplit('-').next().unwrap();
        for (_, value) in graph.weights().filter(|(_, v)| v.name != "rope.inv_freq") {
            assert_eq!(value.dtype.name(), dtype, "{variant}: {}", value.name);
        }
    }
}

/// The file's tensors of a fused weight.
fn tensors(weight: &str) -> Vec<String> {
    let layer = |rest: &str| {
        let (layer, rest) = rest.split_once('.').unwrap();
        let (part, kind) = rest.rsplit_once('.').unwrap();
        let names: &[&str] = match part {
            "attn.qkv" => &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
            "attn.out" => &["self_attn.o_proj"],
            "attn.q_norm" => &["self_attn.q_norm"],
            "attn.k_norm" => &["self_attn.k_norm"],
            "mlp.gate_up" => &["mlp.gate_proj", "mlp.up_proj"],
            "mlp.down" => &["mlp.down_proj"],
            "ln1" => &["input_layernorm"],
            "ln2" => &["post_attention_layernorm"],
            other => panic!("no such part: {other}"),
        };
        names.iter().map(|name| format!("model.layers.{layer}.{name}.{kind}")).collect()
    };
    match weight {
        "embed.weight" => vec!["model.embed_tokens.weight".to_owned()],
        "unembed.weight" => vec!["lm_head.weight".to_owned()],
        "ln_final.weight" => vec!["model.norm.weight".to_owned()],
        other => layer(other.strip_prefix("blocks.").unwrap()),
    }
}

fn naive(file: &dyn TensorFile, names: &[String], dtype: DType) -> Vec<u8> {
    let mut bytes = Vec::new();
    for name in names {
        let shape = &file.tensor(name).unwrap().shape;
        let start = bytes.len();
        bytes.resize(start + (shape.iter().product::<u64>() * dtype.bytes()) as usize, 0);
        file.read_rows(name, 0..shape[0], dtype, &mut bytes[start..]).unwrap();
    }
    bytes
}

#[test]
fn rows_equal_the_naive_concatenation_however_they_are_cut() {
    for variant in VARIANTS {
        let model = open_variant(variant);
        let file = SafetensorsDir::open(directory(variant)).unwrap();
        for (_, value) in model.graph.weights().filter(|(_, v)| v.name != "rope.inv_freq") {
            let [rows, columns] = value.matrix();
            let expected = naive(&file, &tensors(&value.name), value.dtype);
            let row_bytes = (columns * value.dtype.bytes()) as usize;
            for step in [1, 7, 32, 50, rows] {
                let mut out = vec![0; expected.len()];
                for (index, out) in out.chunks_mut(step as usize * row_bytes).enumerate() {
                    let start = index as u64 * step;
                    model.source.read_rows(&value.name, start..rows.min(start + step), out).unwrap();
                }
                assert!(out == expected, "{variant}: {} in steps of {step}", value.name);
            }
        }
    }
}
