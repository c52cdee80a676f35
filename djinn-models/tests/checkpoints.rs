//! The checkpoints that Hugging Face transformers wrote (`scripts/make_checkpoints.py`): each opens, has the
//! parameters that transformers counted, and gives the bytes of its tensors however rows are cut.

use djinn_models::{Location, Model, OpenOptions, TensorFile, open, safetensors::SafetensorsDir};
use djinn_srg::{DType, KvPlan};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The directories' names, sorted.
fn variants() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints");
    let entries = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap());
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    assert!(names.len() >= 41, "{} checkpoints", names.len());
    names
}

/// The families whose tensors have Llama's names.
fn named_as_llama(variant: &str) -> bool {
    !["falcon", "gpt", "mixtral", "qwen3-moe"].iter().any(|family| variant.starts_with(family))
}

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
    for variant in &variants() {
        let model = open_variant(variant);
        let frequencies = model.graph.weights().find(|(_, v)| v.name == "rope.inv_freq");
        let frequencies = frequencies.map_or(0, |(_, v)| v.matrix()[0]);
        let expected = json(variant, "expected.json")["parameters"].as_u64().unwrap();
        assert_eq!(model.graph.parameters() - frequencies, expected, "{variant}");
        assert_eq!(&model.name, variant);
        let named = &json(variant, "config.json")["architectures"][0];
        assert_eq!(model.architecture, named.as_str().unwrap());
        assert_eq!((&model.defaults.eos[..], model.defaults.bos), (&[2, 3][..], Some(1)));
        assert_eq!((model.defaults.temperature, model.defaults.top_p), (Some(0.6), Some(0.9)));
    }
}

#[test]
fn the_graph_says_what_the_configuration_does() {
    for variant in &variants() {
        let (model, config) = (open_variant(variant), json(variant, "config.json"));
        // GPT-2's names and those that came after it.
        let number = |keys: [&str; 2]| keys.iter().find_map(|key| config[key].as_u64()).unwrap();
        let graph = &model.graph;
        let caches: Vec<_> = KvPlan::new(graph).places().collect();
        assert_eq!(caches.len() as u64, number(["num_hidden_layers", "n_layer"]));
        let divided = number(["hidden_size", "n_embd"]) / number(["num_attention_heads", "n_head"]);
        let head_dim = config["head_dim"].as_u64().unwrap_or(divided);
        assert!(caches.iter().all(|cache| u64::from(cache.head_dim) == head_dim));
        assert_eq!(graph.max_context, number(["max_position_embeddings", "n_positions"]), "{variant}");
        assert_eq!(graph.vocab, number(["vocab_size", "vocab_size"]));
        let has = |name: &str| graph.weights().any(|(_, v)| v.name == name);
        assert_eq!(has("unembed.weight"), !config["tie_word_embeddings"].as_bool().unwrap(), "{variant}");
        if named_as_llama(variant) {
            let kv_heads = config["num_key_value_heads"].as_u64().unwrap();
            assert!(caches.iter().all(|cache| u64::from(cache.kv_heads) == kv_heads));
            let biased = config["attention_bias"].as_bool().unwrap_or(false);
            assert_eq!(has("blocks.0.attn.out.bias"), biased, "{variant}");
            assert_eq!(has("blocks.0.attn.qkv.bias"), biased || variant.starts_with("qwen2"), "{variant}");
        }
        let dtype = variant.rsplit('-').next().unwrap();
        for (_, value) in graph.weights().filter(|(_, v)| v.name != "rope.inv_freq") {
            assert_eq!(value.dtype().name(), dtype, "{variant}: {}", value.name);
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
        let (start, elements) = (bytes.len(), shape.iter().product::<u64>());
        bytes.resize(start + (elements * dtype.bytes()) as usize, 0);
        file.read(name, 0..elements, dtype, &mut bytes[start..]).unwrap();
    }
    bytes
}

#[test]
fn rows_equal_the_naive_concatenation_however_they_are_cut() {
    for variant in &variants() {
        let model = open_variant(variant);
        let file = SafetensorsDir::open(directory(variant)).unwrap();
        for (_, value) in model.graph.weights().filter(|(_, v)| v.name != "rope.inv_freq") {
            let [rows, columns] = value.matrix();
            let mut expected = vec![0; (rows * columns * value.dtype().bytes()) as usize];
            model.source.read_rows(&value.name, 0..rows, &mut expected).unwrap();
            if named_as_llama(variant) {
                assert!(expected == naive(&file, &tensors(&value.name), value.dtype()), "{}", value.name);
            }
            let row_bytes = (columns * value.dtype().bytes()) as usize;
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
