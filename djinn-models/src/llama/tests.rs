//! Configurations, graphs and rotary frequencies.

use super::config::JSON_KEYS;
use super::*;
use crate::Error;
use djinn_srg::{Op, Owner};
use serde_json::{Value, json};
use std::path::Path;

/// A configuration as transformers 4 writes it.
fn base() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 128,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": false,
        "torch_dtype": "bfloat16",
    })
}

fn read(value: &Value) -> crate::Result<Config> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("config.json");
    std::fs::write(&path, value.to_string()).unwrap();
    Config::from_json(&path)
}

fn with(changes: Value) -> crate::Result<Config> {
    let mut config = base();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    read(&config)
}

#[test]
fn defaults_follow_from_other_keys() {
    let config = with(json!({"num_key_value_heads": null, "head_dim": null})).unwrap();
    assert_eq!((config.num_key_value_heads, config.head_dim), (4, 16));
    assert_eq!(with(json!({"head_dim": 24})).unwrap().head_dim, 24);
    let mut old = base();
    for key in ["rope_theta", "rms_norm_eps", "max_position_embeddings", "hidden_act", "architectures"] {
        old.as_object_mut().unwrap().remove(key);
    }
    let config = read(&old).unwrap();
    assert_eq!((config.rope_theta, config.rms_norm_eps, config.max_position_embeddings), (1e4, 1e-6, 2048));
}

#[test]
fn old_and_new_rope_settings_mean_the_same() {
    let scaling = json!({
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64, "rope_type": "llama3",
    });
    let mut parameters = scaling.clone();
    parameters["rope_theta"] = json!(500000.0);
    let old = with(json!({"rope_theta": 500000.0, "rope_scaling": scaling})).unwrap();
    let new = with(json!({"rope_theta": null, "rope_parameters": parameters})).unwrap();
    assert_eq!(old, new);
    assert!(matches!(new.rope_scaling, RopeScaling::Llama3 { factor: 8.0, .. }));
    let linear = with(json!({"rope_scaling": {"type": "linear", "factor": 2.0}})).unwrap();
    assert_eq!(linear.rope_scaling, RopeScaling::Linear { factor: 2.0 });
    let default = with(json!({"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}})).unwrap();
    assert_eq!((default.rope_theta, default.rope_scaling), (5.0, RopeScaling::Default));
}

/// The context ends where a sliding window would begin to hide positions, in models that use theirs.
#[test]
fn members_of_the_family_differ_in_biases_and_windows() {
    let of = |architecture: Architecture, more: Value| {
        let mut keys =
            json!({"architectures": [architecture.name()], "model_type": architecture.model_type()});
        keys.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        with(keys)
    };
    let biases = |config: &Config| (config.qkv_bias, config.out_bias, config.mlp_bias);
    let window = json!({"sliding_window": 100, "attention_bias": true, "mlp_bias": true});
    let llama = of(Architecture::Llama, window.clone()).unwrap();
    assert_eq!((biases(&llama), llama.max_position_embeddings), ((true, true, true), 512));
    let mistral = of(Architecture::Mistral, window.clone()).unwrap();
    assert_eq!((biases(&mistral), mistral.max_position_embeddings), ((false, false, false), 100));
    let wide = of(Architecture::Mistral, json!({"sliding_window": 4096})).unwrap();
    assert_eq!(wide.max_position_embeddings, 512);
    let qwen = of(Architecture::Qwen2, window).unwrap();
    assert_eq!((biases(&qwen), qwen.max_position_embeddings), ((true, false, false), 512));
    let used = json!({"sliding_window": 100, "use_sliding_window": true});
    assert_eq!(of(Architecture::Qwen2, used).unwrap().max_position_embeddings, 100);
    let qwen3 = of(Architecture::Qwen3, json!({"attention_bias": true, "mlp_bias": true})).unwrap();
    assert_eq!((biases(&qwen3), qwen3.head_dim), ((true, true, false), 128));
    let graph = graph(&qwen3, "test", &|_| DType::F32).unwrap();
    let normed =
        graph.nodes.iter().filter(|node| matches!(node.op, Op::HeadNorm { heads: 4, kv_heads: 2, .. }));
    assert_eq!(normed.count(), 2, "one in each block");
    let none = of(Architecture::Mistral, json!({"sliding_window": 0}));
    assert!(matches!(none, Err(Error::Config { key, .. }) if key == "sliding_window"));
    let untold = of(Architecture::Qwen2, json!({"max_position_embeddings": null})).unwrap();
    assert_eq!(untold.max_position_embeddings, 32_768);
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let cases = [
        (json!({"architectures": ["MistralForCausalLM"]}), "MistralForCausalLM with model type llama"),
        (json!({"architectures": ["GemmaForCausalLM"], "model_type": "gemma"}), "GemmaForCausalLM"),
        (json!({"architectures": ["LlamaForSequenceClassification"]}), "LlamaForSequenceClassification"),
        (json!({"model_type": "qwen2"}), "qwen2"),
        (json!({"architectures": null, "model_type": "gemma"}), "gemma"),
        (json!({"hidden_act": "gelu"}), "hidden_act gelu"),
        (json!({"quantization_config": {"quant_method": "gptq", "bits": 4}}), "quantization_config gptq"),
        (json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}), "rope scaling yarn"),
        (json!({"rope_scaling": {"type": "dynamic", "factor": 4.0}}), "rope scaling dynamic"),
        (json!({"rope_parameters": {"rope_type": "longrope"}}), "rope scaling longrope"),
        (json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor 0.5"),
    ];
    for (changes, named) in cases {
        match with(changes) {
            Err(Error::Unsupported { what, remedy }) => {
                assert!(what.contains(named) && !remedy.is_empty(), "{named}: {what}; {remedy}");
            }
            other => panic!("{named}: {other:?}"),
        }
    }
}

#[test]
fn values_that_cannot_be_are_refused_with_key_and_value() {
    let max = u64::MAX;
    let cases = [
        (json!({"hidden_size": 0}), "hidden_size", "0"),
        (json!({"hidden_size": -64}), "hidden_size", "-64"),
        (json!({"hidden_size": "64"}), "hidden_size", "\"64\""),
        (json!({"hidden_size": null}), "hidden_size", "missing"),
        (json!({"hidden_size": max}), "hidden_size", "18446744073709551615"),
        (json!({"intermediate_size": max}), "intermediate_size", "18446744073709551615"),
        (json!({"num_hidden_layers": 0}), "num_hidden_layers", "0"),
        (json!({"num_hidden_layers": 10_001}), "num_hidden_layers", "10001"),
        (json!({"num_hidden_layers": 2.5}), "num_hidden_layers", "2.5"),
        (json!({"num_attention_heads": 0}), "num_attention_heads", "0"),
        (json!({"num_attention_heads": 5, "num_key_value_heads": 5}), "num_attention_heads", "5"),
        (json!({"num_attention_heads": 1u64 << 40}), "num_attention_heads", "1099511627776"),
        (json!({"num_key_value_heads": 3}), "num_key_value_heads", "3"),
        (json!({"num_key_value_heads": 0}), "num_key_value_heads", "0"),
        (json!({"head_dim": 15}), "head_dim", "15"),
        (json!({"head_dim": 0}), "head_dim", "0"),
        (json!({"head_dim": 8192, "num_attention_heads": 65536}), "num_attention_heads", "8192"),
        (json!({"vocab_size": 0}), "vocab_size", "0"),
        (json!({"vocab_size": max}), "vocab_size", "18446744073709551615"),
        (json!({"max_position_embeddings": 0}), "max_position_embeddings", "0"),
        (json!({"rms_norm_eps": -1.0}), "rms_norm_eps", "-1"),
        (json!({"rope_theta": 0.0}), "rope_theta", "0"),
        (json!({"rope_theta": 1e300}), "rope_theta", "inf"),
        (json!({"rope_scaling": {"type": "linear", "factor": 0.0}}), "rope_scaling.factor", "0"),
        (json!({"rope_scaling": {"type": "linear"}}), "rope_scaling.factor", "missing"),
        (json!({"rope_scaling": "linear"}), "rope_scaling", "linear"),
        (json!({"attention_bias": 1}), "attention_bias", "1"),
        (json!({"architectures": null, "model_type": null}), "architectures", "missing"),
    ];
    for (changes, named, value) in cases {
        let shown = changes.to_string();
        match with(changes) {
            Err(Error::Config { key, detail, path }) => {
                assert_eq!(key, named, "{shown}");
                assert!(detail.contains(value) && path.ends_with("config.json"), "{shown}: {detail}");
            }
            other => panic!("{shown}: {other:?}"),
        }
    }
}

#[test]
fn the_largest_accepted_configuration_does_not_overflow() {
    let config = with(json!({
        "hidden_size": 1 << 20, "intermediate_size": 1 << 24, "num_hidden_layers": 3, "head_dim": 8192,
        "num_attention_heads": 512, "num_key_value_heads": 512, "vocab_size": 1 << 28,
    }));
    let graph = graph(&config.unwrap(), "huge", &|_| DType::F32).unwrap();
    let [blocks, rest] = [true, false].map(|in_block| {
        let weights = graph.weights().filter(|(_, v)| v.layer.is_some() == in_block);
        weights.map(|(_, v)| v.matrix().iter().map(|&n| n as u128).product::<u128>() * 4).sum::<u128>()
    });
    assert_eq!(u128::from(graph.text_bytes()), blocks + rest);
    assert!(blocks / 3 * 10_000 + rest < u128::from(u64::MAX));
}

fn graph_of(changes: Value) -> Graph {
    graph(&with(changes).unwrap(), "test", &|_| DType::BF16).unwrap()
}

#[test]
fn the_graph_names_every_hook_and_weight() {
    let graph = graph_of(json!({}));
    let hooks: Vec<&str> = graph.values.iter().filter_map(|v| v.hook.as_deref()).collect();
    let block =
        |l: u32| ["attn_out", "resid_mid", "mlp_out", "resid_post"].map(|h| format!("blocks.{l}.hook_{h}"));
    let mut expected = vec!["hook_embed".to_owned()];
    expected.extend(block(0).into_iter().chain(block(1)));
    expected.push("ln_final.hook_normalized".to_owned());
    assert_eq!(hooks, expected);

    let weights: Vec<(&str, Vec<u64>)> = graph
        .weights()
        .map(|(_, v)| (v.name.as_str(), v.matrix().to_vec()))
        .filter(|(name, _)| !name.starts_with("blocks.1."))
        .collect();
    let expected: [(&str, [u64; 2]); 10] = [
        ("embed.weight", [128, 64]),
        ("rope.inv_freq", [8, 1]),
        ("blocks.0.ln1.weight", [64, 1]),
        ("blocks.0.attn.qkv.weight", [128, 64]),
        ("blocks.0.attn.out.weight", [64, 64]),
        ("blocks.0.ln2.weight", [64, 1]),
        ("blocks.0.mlp.gate_up.weight", [320, 64]),
        ("blocks.0.mlp.down.weight", [64, 160]),
        ("ln_final.weight", [64, 1]),
        ("unembed.weight", [128, 64]),
    ];
    assert_eq!(weights, expected.map(|(name, shape)| (name, shape.to_vec())));
    assert!(graph.weights().all(|(_, v)| v.owner() == Owner::Model));
    assert_eq!((graph.kv.layers, graph.kv.kv_heads, graph.kv.head_dim), (2, 2, 16));
    assert_eq!((graph.vocab, graph.max_context), (128, 512));
}

#[test]
fn a_block_runs_in_llamas_order() {
    let graph = graph_of(json!({"num_hidden_layers": 1}));
    let names: Vec<&str> = graph.nodes.iter().map(|n| n.op.name()).collect();
    let block = [
        "rms_norm",
        "linear",
        "rope",
        "kv_write",
        "attention",
        "linear",
        "add",
        "rms_norm",
        "linear",
        "silu_mul",
        "linear",
        "add",
    ];
    let expected =
        [&["embed", "rope_table"][..], &block[..], &["select_rows", "rms_norm", "linear"][..]].concat();
    assert_eq!(names, expected);
    let attention = graph.nodes.iter().find(|n| n.op.name() == "attention").unwrap();
    assert!(matches!(attention.op, Op::Attention { heads: 4, kv_heads: 2, head_dim: 16, scale: 0.25, .. }));
}

#[test]
fn biases_and_tied_embeddings_change_the_weights() {
    let names = |graph: &Graph| graph.weights().map(|(_, v)| v.name.clone()).collect::<Vec<_>>();
    let plain = graph_of(json!({}));
    let biased = graph_of(json!({"attention_bias": true, "mlp_bias": true}));
    let added = biased.parameters() - plain.parameters();
    assert_eq!(added, 2 * (128 + 64 + 320 + 64));
    assert!(names(&biased).contains(&"blocks.1.attn.qkv.bias".to_owned()));
    let tied = graph_of(json!({"tie_word_embeddings": true}));
    assert_eq!(plain.parameters() - tied.parameters(), 128 * 64);
    let last = tied.nodes.last().unwrap();
    assert_eq!(tied.value(last.weights[0]).name, "embed.weight");
}

#[test]
fn every_weight_has_a_recipe_in_both_namings() {
    for changes in [json!({}), json!({"tie_word_embeddings": true, "attention_bias": true, "mlp_bias": true})]
    {
        let config = with(changes).unwrap();
        let graph = graph(&config, "test", &|_| DType::F32).unwrap();
        for naming in [Naming::HuggingFace, Naming::Gguf] {
            let map = weight_map(&config, naming);
            let mut shapes = map.shapes();
            for (_, value) in graph.weights() {
                assert_eq!(shapes.remove(&value.name), Some(value.matrix()), "{}", value.name);
            }
            assert!(shapes.is_empty(), "recipes without a weight: {shapes:?}");
        }
    }
}

/// The frequencies by the papers' formulas in f64.
fn exact(config: &Config) -> Vec<f64> {
    let d = f64::from(config.head_dim);
    let base = (0..config.head_dim / 2).map(|i| f64::from(config.rope_theta).powf(-2.0 * f64::from(i) / d));
    match &config.rope_scaling {
        RopeScaling::Default => base.collect(),
        RopeScaling::Linear { factor } => base.map(|f| f / f64::from(*factor)).collect(),
        RopeScaling::Divisors(divisors) => base.zip(divisors).map(|(f, &d)| f / f64::from(d)).collect(),
        RopeScaling::Llama3 {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_position_embeddings,
        } => base
            .map(|f| {
                let turns = *original_max_position_embeddings as f64 * f / std::f64::consts::TAU;
                let kept = ((turns - f64::from(*low)) / f64::from(high - low)).clamp(0.0, 1.0);
                f * (kept + (1.0 - kept) / f64::from(*factor))
            })
            .collect(),
    }
}

#[test]
fn frequencies_match_their_definition() {
    let llama3 = json!({"rope_theta": 500000.0, "head_dim": 128, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }});
    let linear = json!({"rope_scaling": {"type": "linear", "factor": 4.0}});
    for changes in [json!({}), linear, llama3] {
        let config = with(changes).unwrap();
        let found = inverse_frequencies(&config);
        let wanted = exact(&config);
        assert_eq!(found.len(), wanted.len());
        for (found, wanted) in found.iter().zip(&wanted) {
            assert!((f64::from(*found) / wanted - 1.0).abs() < 1e-5, "{found} for {wanted}");
        }
    }
}

#[test]
fn llama3_scaling_keeps_blends_and_divides() {
    let config = with(json!({"rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }}));
    let scaled = inverse_frequencies(&config.unwrap());
    let plain = inverse_frequencies(&with(json!({})).unwrap());
    let ratios: Vec<f32> = scaled.iter().zip(&plain).map(|(s, p)| s / p).collect();
    assert_eq!(ratios[0], 1.0, "64 positions turn more than four times");
    assert!(ratios[1] > 0.125 && ratios[1] < 1.0, "between: {}", ratios[1]);
    assert!(ratios[3..].iter().all(|&r| (r - 0.125).abs() < 1e-6), "less than one turn: {ratios:?}");
}

#[test]
fn divisors_must_be_half_a_head_of_positive_numbers() {
    let raw = |divisors: Vec<f32>| config::RawConfig {
        architecture: Architecture::Llama,
        hidden_size: 64,
        intermediate_size: 64,
        num_hidden_layers: 1,
        num_attention_heads: 4,
        num_key_value_heads: None,
        head_dim: None,
        vocab_size: 8,
        max_position_embeddings: 8,
        rms_norm_eps: 1e-5,
        rope_theta: 1e4,
        rope_scaling: RopeScaling::Divisors(divisors),
        tie_word_embeddings: true,
        qkv_bias: false,
        out_bias: false,
        mlp_bias: false,
    };
    let validate = |divisors| raw(divisors).validate(Path::new("m.gguf"), &JSON_KEYS);
    let config = validate(vec![1.0, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0]).unwrap();
    let wanted = exact(&config);
    let found = inverse_frequencies(&config);
    assert!(found.iter().zip(wanted).all(|(f, w)| (f64::from(*f) / w - 1.0).abs() < 1e-6));
    assert!(matches!(validate(vec![1.0; 7]), Err(Error::WrongShape { .. })));
    for bad in [0.0, -1.0, f32::NAN] {
        assert!(matches!(validate(vec![bad; 8]), Err(Error::Config { .. })), "{bad}");
    }
}
