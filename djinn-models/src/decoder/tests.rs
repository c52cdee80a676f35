//! Graphs, recipes of weights, and rotary frequencies.

mod hooks;

use super::*;
use crate::Error;
use crate::families::tests::{read, with};
use crate::weights::{Recipe, Storage, WeightMap};
use djinn_srg::{DType, Graph, KvPlace, KvPlan, Op};
use serde_json::{Value, json};
use std::path::Path;

fn built(decoder: &Decoder, dtype: DType) -> (Graph, WeightMap) {
    let of =
        |recipe: &Recipe| Storage::plain(if let Recipe::Computed(_) = recipe { DType::F32 } else { dtype });
    build(decoder, "test", decoder.sizes.layers, &of).unwrap()
}

#[test]
fn the_largest_accepted_configuration_does_not_overflow() {
    let config = with(json!({
        "hidden_size": 1 << 20, "intermediate_size": 1 << 24, "num_hidden_layers": 3, "head_dim": 8192,
        "num_attention_heads": 512, "num_key_value_heads": 512, "vocab_size": 1 << 22,
    }));
    let (graph, _) = built(&config.unwrap(), DType::F32);
    let [blocks, rest] = [true, false].map(|in_block| {
        let weights = graph.weights().filter(|(_, v)| v.layer.is_some() == in_block);
        weights.map(|(_, v)| v.matrix().iter().map(|&n| n as u128).product::<u128>() * 4).sum::<u128>()
    });
    assert_eq!(u128::from(graph.text_bytes()), blocks + rest);
    assert!(blocks / 3 * 10_000 + rest < u128::from(u64::MAX));
}

fn graph_of(changes: Value) -> Graph {
    built(&with(changes).unwrap(), DType::BF16).0
}

#[test]
fn the_graph_has_every_weight_in_its_shape() {
    let graph = graph_of(json!({}));
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
    let place = |first| KvPlace { first, first_vector: first / 16, kv_heads: 2, head_dim: 16 };
    assert_eq!(KvPlan::new(&graph).places().collect::<Vec<_>>(), [place(0), place(64)]);
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
    assert!(matches!(
        attention.op,
        Op::Attention { heads: 4, kv_heads: 2, head_dim: 16, scale: 0.25, window: None, alibi: false }
    ));
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
fn every_weight_has_a_recipe_of_its_shape() {
    let falcon = json!({"architectures": ["FalconForCausalLM"], "model_type": "falcon", "num_kv_heads": 2,
        "new_decoder_architecture": true});
    let mixtral = json!({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"});
    let tied = json!({"tie_word_embeddings": true, "attention_bias": true, "mlp_bias": true});
    for changes in [json!({}), tied, falcon, mixtral] {
        let (graph, map) = built(&with(changes).unwrap(), DType::F32);
        let mut shapes = map.shapes();
        for (_, value) in graph.weights() {
            assert_eq!(shapes.remove(&value.name), Some(value.matrix()), "{}", value.name);
        }
        assert!(shapes.is_empty(), "recipes without a weight: {shapes:?}");
    }
}

#[test]
fn layers_without_weights_of_their_own_use_those_before_them() {
    let decoder = with(json!({"num_hidden_layers": 5})).unwrap();
    let (whole, _) = built(&decoder, DType::F32);
    let (repeated, map) = build(&decoder, "test", 2, &|_| Storage::plain(DType::F32)).unwrap();
    assert_eq!(repeated.nodes.len(), whole.nodes.len());
    let weight_of = |node: &str| {
        let node = repeated.nodes.iter().find(|n| n.name == node).unwrap();
        repeated.value(node.weights[0]).name.clone()
    };
    assert_eq!(weight_of("blocks.3.mlp.down"), "blocks.1.mlp.down.weight");
    assert_eq!(weight_of("blocks.4.ln1"), "blocks.0.ln1.weight");
    assert_eq!(map.shapes().len(), repeated.weights().count());
    let (two, _) = built(&with(json!({})).unwrap(), DType::F32);
    assert_eq!(repeated.parameters(), two.parameters());
}

#[test]
fn a_parallel_block_adds_both_to_what_came_in() {
    let config = json!({"architectures": ["GPTJForCausalLM"], "model_type": "gptj", "n_embd": 64,
        "n_layer": 1, "n_head": 4, "vocab_size": 100, "rotary_dim": 8});
    let (graph, _) = built(&read(&config).unwrap(), DType::F32);
    let names: Vec<&str> = graph.nodes.iter().map(|n| n.op.name()).collect();
    let block = [
        "layer_norm",
        "linear",
        "rope",
        "kv_write",
        "attention",
        "linear",
        "add",
        "linear",
        "gelu",
        "linear",
        "add",
    ];
    let expected =
        [&["embed", "rope_table"][..], &block[..], &["select_rows", "layer_norm", "linear"][..]].concat();
    assert_eq!(names, expected);
    let rope = graph.nodes.iter().find(|n| n.op.name() == "rope").unwrap();
    assert!(matches!(rope.op, Op::Rope { rotary_dim: 8, head_dim: 16, .. }));
}

fn rotary(changes: Value) -> Rotary {
    match with(changes).unwrap().positions {
        Positions::Rotary(rotary) => rotary,
        other => panic!("{other:?}"),
    }
}

/// The frequencies by the papers' formulas in f64.
fn exact(rotary: &Rotary) -> Vec<f64> {
    let d = rotary.dim as f64;
    let base = (0..rotary.dim / 2).map(|i| f64::from(rotary.theta).powf(-2.0 * i as f64 / d));
    match &rotary.scaling {
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
        let rotary = rotary(changes);
        let found = rotary.inverse_frequencies();
        let wanted = exact(&rotary);
        assert_eq!(found.len(), wanted.len());
        for (found, wanted) in found.iter().zip(&wanted) {
            assert!((f64::from(*found) / wanted - 1.0).abs() < 1e-5, "{found} for {wanted}");
        }
    }
}

#[test]
fn llama3_scaling_keeps_blends_and_divides() {
    let config = json!({"rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }});
    let scaled = rotary(config).inverse_frequencies();
    let plain = rotary(json!({})).inverse_frequencies();
    let ratios: Vec<f32> = scaled.iter().zip(&plain).map(|(s, p)| s / p).collect();
    assert_eq!(ratios[0], 1.0, "64 positions turn more than four times");
    assert!(ratios[1] > 0.125 && ratios[1] < 1.0, "between: {}", ratios[1]);
    assert!(ratios[3..].iter().all(|&r| (r - 0.125).abs() < 1e-6), "less than one turn: {ratios:?}");
}

#[test]
fn divisors_must_be_half_a_head_of_positive_numbers() {
    let base = with(json!({})).unwrap();
    let with = |divisors: Vec<f32>| {
        let rotary = Rotary { scaling: RopeScaling::Divisors(divisors), ..rotary(json!({})) };
        Decoder { positions: Positions::Rotary(rotary), ..base.clone() }
    };
    let check = |divisors| {
        let origin = Origin { path: Path::new("m.gguf"), prefix: "", keys: &crate::families::KEYS };
        with(divisors).check(&origin)
    };
    let divisors = vec![1.0, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0];
    check(divisors.clone()).unwrap();
    let Positions::Rotary(rotary) = with(divisors).positions else { unreachable!() };
    let wanted = exact(&rotary);
    let found = rotary.inverse_frequencies();
    assert!(found.iter().zip(wanted).all(|(f, w)| (f64::from(*f) / w - 1.0).abs() < 1e-6));
    assert!(matches!(check(vec![1.0; 7]), Err(Error::WrongShape { .. })));
    for bad in [0.0, -1.0, f32::NAN] {
        assert!(matches!(check(vec![bad; 8]), Err(Error::Config { .. })), "{bad}");
    }
}
