//! Files that llama.cpp's architectures name but Djinn does not compute: each is refused by the key or tensor.

use crate::open::tests::files::{self, Meta, Metadata, Tensor, Tensors, write_gguf};
use crate::{Error, Location, Model, OpenOptions, Result, open};
use safetensors::Dtype;

type Change<'a> = &'a dyn Fn(&mut Metadata, &mut Tensors);

fn opened(metadata: &Metadata, tensors: &Tensors) -> Result<Model> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    write_gguf(&path, metadata, tensors);
    open(&Location::Gguf(path), &OpenOptions::default())
}

fn llama(change: Change) -> Result<Model> {
    let (mut metadata, mut tensors) = (files::metadata(), files::to_gguf(&files::tensors(false, false)));
    change(&mut metadata, &mut tensors);
    opened(&metadata, &tensors)
}

/// A model of one block of four elements in two heads, with this many key heads.
fn small(architecture: &str, kv_heads: u32, names: &[(&str, &[usize])]) -> (Metadata, Tensors) {
    let keys = [
        ("block_count", 1),
        ("context_length", 8),
        ("embedding_length", 4),
        ("feed_forward_length", 6),
        ("attention.head_count", 2),
        ("attention.head_count_kv", kv_heads),
    ];
    let keys = keys.map(|(key, value)| (format!("{architecture}.{key}"), Meta::U32(value)));
    let mut metadata = Metadata::from(keys);
    metadata.insert("general.architecture".into(), Meta::Str(architecture.into()));
    metadata.insert(format!("{architecture}.attention.layer_norm_epsilon"), Meta::F32(1e-5));
    let tensors = names.iter().map(|(name, shape)| {
        let values = vec![0.5; shape.iter().product()];
        ((*name).to_owned(), Tensor { shape: shape.to_vec(), values, dtype: Dtype::F32 })
    });
    (metadata, tensors.collect())
}

fn falcon(change: Change) -> Result<Model> {
    let (mut metadata, mut tensors) = small(
        "falcon",
        1,
        &[
            ("token_embd.weight", &[5, 4]),
            ("output_norm.weight", &[4]),
            ("output_norm.bias", &[4]),
            ("blk.0.attn_norm.weight", &[4]),
            ("blk.0.attn_norm.bias", &[4]),
            ("blk.0.attn_qkv.weight", &[8, 4]),
            ("blk.0.attn_output.weight", &[4, 4]),
            ("blk.0.ffn_up.weight", &[6, 4]),
            ("blk.0.ffn_down.weight", &[4, 6]),
        ],
    );
    change(&mut metadata, &mut tensors);
    opened(&metadata, &tensors)
}

fn gpt2(change: Change) -> Result<Model> {
    let (mut metadata, mut tensors) = small(
        "gpt2",
        2,
        &[
            ("token_embd.weight", &[5, 4]),
            ("position_embd.weight", &[8, 4]),
            ("output_norm.weight", &[4]),
            ("output_norm.bias", &[4]),
            ("blk.0.attn_norm.weight", &[4]),
            ("blk.0.attn_norm.bias", &[4]),
            ("blk.0.attn_qkv.weight", &[12, 4]),
            ("blk.0.attn_qkv.bias", &[12]),
            ("blk.0.attn_output.weight", &[4, 4]),
            ("blk.0.attn_output.bias", &[4]),
            ("blk.0.ffn_norm.weight", &[4]),
            ("blk.0.ffn_norm.bias", &[4]),
            ("blk.0.ffn_up.weight", &[6, 4]),
            ("blk.0.ffn_up.bias", &[6]),
            ("blk.0.ffn_down.weight", &[4, 6]),
            ("blk.0.ffn_down.bias", &[4]),
        ],
    );
    change(&mut metadata, &mut tensors);
    opened(&metadata, &tensors)
}

fn vector(length: usize) -> Tensor {
    Tensor { shape: vec![length], values: vec![1.0; length], dtype: Dtype::F32 }
}

/// One line that names each of `named`.
fn assert_refused(model: Result<Model>, named: &[&str]) {
    let error = model.unwrap_err();
    let message = error.to_string();
    assert!(matches!(error, Error::Unsupported { .. }), "{named:?}: {message}");
    assert!(
        named.iter().all(|n| message.contains(n)) && message.lines().count() == 1,
        "{named:?}: {message}"
    );
}

#[test]
fn keys_that_change_the_results_are_refused_by_name() {
    let text = |s: &str| Meta::Str(s.to_owned());
    let cases: [(&str, Meta, &str); 16] = [
        ("attention.scale", Meta::F32(0.5), "0.5"),
        ("attention.causal", Meta::Bool(false), "false"),
        ("attention.clamp_kqv", Meta::F32(8.0), "8.0"),
        ("attention.key_length_mla", Meta::U32(8), "the key"),
        ("attention.sliding_window_pattern", Meta::U32(4), "the key"),
        ("expert_weights_scale", Meta::F32(2.5), "2.5"),
        ("expert_weights_norm", Meta::Bool(false), "false"),
        ("expert_gating_func", Meta::U32(2), "supported: 0, 1"),
        ("expert_used_count", Meta::U32(2), "2"),
        ("logit_scale", Meta::F32(0.0625), "0.0625"),
        ("final_logit_softcapping", Meta::F32(30.0), "30"),
        ("pooling_type", Meta::U32(3), "3"),
        ("rope.scaling.attn_factor", Meta::F32(1.1), "1.1"),
        ("rope.dimension_sections", Meta::U32(4), "the key"),
        ("tensor_data_layout", text("other"), "jploski"),
        ("something.new", text("on"), "the key"),
    ];
    for (key, value, named) in cases {
        let key = format!("llama.{key}");
        let model = llama(&|metadata, _| drop(metadata.insert(key.clone(), value.clone())));
        assert_refused(model, &[&key, named]);
    }
}

#[test]
fn keys_that_change_nothing_are_passed_over() {
    let cases = [
        ("llama.attention.causal", Meta::Bool(true)),
        ("llama.expert_count", Meta::U32(0)),
        ("llama.expert_weights_scale", Meta::F32(1.0)),
        ("llama.expert_gating_func", Meta::U32(1)),
        ("llama.logit_scale", Meta::F32(0.0)),
        ("llama.rope.scaling.original_context_length", Meta::U32(64)),
        ("llama.rope.scaling.finetuned", Meta::Bool(true)),
        ("llama.rope.scaling.type", Meta::Str("none".into())),
        ("llama.rope.scaling.factor", Meta::F32(1.0)),
        ("llama.tensor_data_layout", Meta::Str("Meta AI original pth".into())),
        ("llama.vocab_size", Meta::U32(40)),
        ("llama.attention.sliding_window", Meta::U32(0)),
        ("general.type", Meta::Str("model".into())),
        ("general.something.new", Meta::U32(1)),
        ("qwen2.attention.scale", Meta::F32(0.5)),
    ];
    let plain = llama(&|_, _| ()).unwrap();
    for (key, value) in cases {
        let model = llama(&|metadata, _| drop(metadata.insert(key.to_owned(), value.clone())));
        let model = model.unwrap_or_else(|error| panic!("{key}: {error}"));
        assert_eq!(model.graph.nodes, plain.graph.nodes, "{key}");
    }
}

#[test]
fn other_files_than_models_are_refused() {
    let adapter = llama(&|metadata, tensors| {
        metadata.clear();
        metadata.insert("general.architecture".into(), Meta::Str("llama".into()));
        metadata.insert("general.type".into(), Meta::Str("adapter".into()));
        tensors.retain(|name, _| name.starts_with("blk.0.attn_q"));
    });
    assert_refused(adapter, &["adapter"]);
}

#[test]
fn divisors_and_a_factor_are_not_both_applied() {
    let both = |kind: Option<&str>, factor| {
        llama(&|metadata, tensors| {
            tensors.insert("rope_freqs.weight".into(), vector(3));
            metadata.insert("llama.rope.scaling.factor".into(), Meta::F32(factor));
            if let Some(kind) = kind {
                metadata.insert("llama.rope.scaling.type".into(), Meta::Str(kind.into()));
            }
        })
    };
    // Without a type, llama.cpp takes "linear".
    for kind in [None, Some("linear")] {
        assert_refused(both(kind, 8.0), &["rope scaling linear with rope_freqs.weight"]);
        both(kind, 1.0).unwrap();
    }
    both(Some("none"), 8.0).unwrap();
    assert_refused(both(Some("longrope"), 8.0), &["rope scaling longrope"]);
}

#[test]
fn falcons_with_biases_or_alibi_are_refused() {
    let plain = falcon(&|_, _| ()).unwrap();
    assert_eq!(plain.architecture, "FalconForCausalLM");
    let tensors =
        ["attn_qkv.bias", "attn_output.bias", "ffn_up.bias", "ffn_norm.weight", "attn_norm_2.extra"];
    for name in tensors {
        let name = format!("blk.0.{name}");
        assert_refused(falcon(&|_, t| drop(t.insert(name.clone(), vector(4)))), &[&name]);
    }
    for (key, value, named) in [
        ("falcon.attention.max_alibi_bias", Meta::F32(8.0), "8.0"),
        ("falcon.attention.sliding_window", Meta::U32(4), "4"),
        ("falcon.use_parallel_residual", Meta::Bool(false), "the key"),
        ("falcon.expert_count", Meta::U32(8), "8"),
        ("falcon.rope.dimension_count", Meta::U32(1), "1 with heads of 2"),
    ] {
        assert_refused(falcon(&|m, _| drop(m.insert(key.to_owned(), value.clone()))), &[key, named]);
    }
    let one_norm_short = falcon(&|_, t| drop(t.insert("blk.0.attn_norm_2.weight".into(), vector(4))));
    let error = one_norm_short.unwrap_err();
    assert!(
        matches!(&error, Error::MissingTensor { name, .. } if name == "blk.0.attn_norm_2.bias"),
        "{error}"
    );
}

#[test]
fn gpt2_has_no_rotary_keys_or_tensors() {
    gpt2(&|_, _| ()).unwrap();
    let divided = gpt2(&|_, t| drop(t.insert("rope_freqs.weight".into(), vector(1))));
    assert_refused(divided, &["rope_freqs.weight"]);
    for (key, value) in [("rope.freq_base", Meta::F32(1e4)), ("attention.max_alibi_bias", Meta::F32(8.0))] {
        let key = format!("gpt2.{key}");
        assert_refused(gpt2(&|m, _| drop(m.insert(key.clone(), value.clone()))), &[&key]);
    }
}
