//! Configurations: what they mean, and what is refused.

use super::*;
use crate::decoder::{Biases, Block, Fused, Mlp, Positions, Qkv, RopeScaling, Rotary};
use djinn_srg::RopeStyle;
use serde_json::{Value, json};
use std::path::Path;

/// A Llama's configuration as transformers 4 writes it.
pub(crate) fn llama() -> Value {
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

pub(crate) fn read(value: &Value) -> Result<Decoder> {
    let map = value.as_object().unwrap().clone();
    from_json(&JsonKeys::new(Path::new("config.json"), map))
}

/// A Llama after `changes`.
pub(crate) fn with(changes: Value) -> Result<Decoder> {
    let mut config = llama();
    config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    read(&config)
}

fn rotary_of(decoder: &Decoder) -> &Rotary {
    match &decoder.positions {
        Positions::Rotary(rotary) => rotary,
        other => panic!("{other:?}"),
    }
}

#[test]
fn defaults_follow_from_other_keys() {
    let config = with(json!({"num_key_value_heads": null, "head_dim": null})).unwrap();
    assert_eq!((config.sizes.kv_heads, config.sizes.head_dim), (4, 16));
    assert_eq!(with(json!({"head_dim": 24})).unwrap().sizes.head_dim, 24);
    let mut old = llama();
    for key in ["rope_theta", "rms_norm_eps", "max_position_embeddings", "hidden_act", "architectures"] {
        old.as_object_mut().unwrap().remove(key);
    }
    let config = read(&old).unwrap();
    assert_eq!((rotary_of(&config).theta, config.norm.eps, config.sizes.context), (1e4, 1e-6, 2048));
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
    assert!(matches!(rotary_of(&new).scaling, RopeScaling::Llama3 { factor: 8.0, .. }));
    let linear = with(json!({"rope_scaling": {"type": "linear", "factor": 2.0}})).unwrap();
    assert_eq!(rotary_of(&linear).scaling, RopeScaling::Linear { factor: 2.0 });
    let default = with(json!({"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}})).unwrap();
    let rotary = rotary_of(&default);
    assert_eq!((rotary.theta, &rotary.scaling), (5.0, &RopeScaling::Default));
}

/// A configuration of `family` with Llama's sizes.
fn of(family: &Family, more: Value) -> Result<Decoder> {
    let mut keys = json!({"architectures": [family.architecture], "model_type": family.model_type});
    keys.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    with(keys)
}

#[test]
fn the_families_after_llama_differ_in_biases_and_windows() {
    let biases = |decoder: &Decoder| {
        let Biases { qkv, out, mlp, head } = decoder.biases;
        assert!(!head);
        (qkv, out, mlp)
    };
    let windows = |decoder: &Decoder| [0, 1].map(|block| decoder.window(block));
    let window = json!({"sliding_window": 100, "attention_bias": true, "mlp_bias": true});
    let llama = of(&llama::FAMILY, window.clone()).unwrap();
    assert_eq!((biases(&llama), windows(&llama)), ((true, true, true), [None; 2]));
    let mistral = of(&mistral::FAMILY, window.clone()).unwrap();
    assert_eq!((biases(&mistral), windows(&mistral)), ((false, false, false), [Some(100); 2]));
    let wide = of(&mistral::FAMILY, json!({"sliding_window": 512})).unwrap();
    assert_eq!(windows(&wide), [None; 2], "it hides nothing of 512 positions");
    let untold = of(&mistral::FAMILY, json!({"max_position_embeddings": null})).unwrap();
    assert_eq!((untold.sizes.context, windows(&untold)), (131_072, [Some(4096); 2]));
    let none = of(&mistral::FAMILY, json!({"sliding_window": null, "max_position_embeddings": 8192}));
    assert_eq!(windows(&none.unwrap()), [None; 2]);
    let qwen = of(&qwen2::FAMILY, window).unwrap();
    assert_eq!((biases(&qwen), windows(&qwen)), ((true, false, false), [None; 2]));
    let used = |more: Value| {
        let mut keys = json!({"sliding_window": 100, "use_sliding_window": true});
        keys.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        of(&qwen2::FAMILY, keys)
    };
    assert_eq!(windows(&used(json!({})).unwrap()), [None; 2], "the first 28 blocks have none by default");
    assert_eq!(windows(&used(json!({"max_window_layers": 1})).unwrap()), [None, Some(100)]);
    let untold = json!({"use_sliding_window": true, "max_window_layers": 1, "max_position_embeddings": 8192});
    assert_eq!(windows(&of(&qwen2::FAMILY, untold).unwrap()), [None, Some(4096)]);
    let types = |types: [&str; 2]| used(json!({"layer_types": types}));
    let mixed = types(["sliding_attention", "full_attention"]).unwrap();
    assert_eq!(windows(&mixed), [Some(100), None]);
    let other = types(["full_attention", "linear_attention"]).unwrap_err().to_string();
    assert!(other.contains("layer type linear_attention"), "{other}");
    let qwen3 = of(&qwen3::FAMILY, json!({"attention_bias": true, "mlp_bias": true})).unwrap();
    assert_eq!((biases(&qwen3), qwen3.sizes.head_dim, qwen3.head_norms), ((true, true, false), 128, true));
    let none = of(&mistral::FAMILY, json!({"sliding_window": 0}));
    assert!(matches!(none, Err(Error::Config { key, .. }) if key == "sliding_window"));
    let untold = of(&qwen2::FAMILY, json!({"max_position_embeddings": null})).unwrap();
    assert_eq!(untold.sizes.context, 32_768);
    // Checked where no window is on as well.
    for (changes, named) in [
        (json!({"layer_types": [1]}), "layer_types"),
        (json!({"max_window_layers": "all"}), "max_window_layers"),
    ] {
        let error = of(&qwen2::FAMILY, changes).unwrap_err();
        assert!(matches!(&error, Error::Config { key, .. } if key == named), "{error}");
    }
}

#[test]
fn mixtral_chooses_some_of_several_experts() {
    let mixtral = |more| of(&mixtral::FAMILY, more);
    assert_eq!(mixtral(json!({})).unwrap().mlp, Mlp::Experts { count: 8, chosen: 2, renormalise: true });
    let small = mixtral(json!({"num_local_experts": 4, "num_experts_per_tok": 1})).unwrap();
    assert_eq!(small.mlp, Mlp::Experts { count: 4, chosen: 1, renormalise: true });
    for (changes, named) in [
        (json!({"num_local_experts": 0}), "num_local_experts"),
        (json!({"num_local_experts": 1025}), "num_local_experts"),
        (json!({"num_local_experts": 2, "num_experts_per_tok": 3}), "num_experts_per_tok"),
        (json!({"num_local_experts": 64, "num_experts_per_tok": 17}), "num_experts_per_tok"),
        (json!({"num_local_experts": 1024, "num_hidden_layers": 10_000}), "num_local_experts"),
    ] {
        let error = mixtral(changes).unwrap_err();
        assert!(matches!(&error, Error::Config { key, .. } if key == named), "{named}: {error}");
    }
}

#[test]
fn a_qwen3_may_have_experts() {
    let qwen = |more: Value| {
        let mut keys = json!({"moe_intermediate_size": 24, "num_experts": 16, "num_experts_per_tok": 4});
        keys.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        of(&qwen3_moe::FAMILY, keys)
    };
    let plain = qwen(json!({})).unwrap();
    let experts = |count, renormalise| Mlp::Experts { count, chosen: 4, renormalise };
    assert_eq!((plain.mlp, plain.sizes.intermediate), (experts(16, false), 24));
    assert_eq!((plain.head_norms, plain.sizes.head_dim, plain.window(0)), (true, 16, None));
    assert_eq!(qwen(json!({"norm_topk_prob": true})).unwrap().mlp, experts(16, true));
    let renamed = json!({"num_experts": null, "num_local_experts": 8});
    assert_eq!(qwen(renamed).unwrap().mlp, experts(8, false));
    let biased = qwen(json!({"attention_bias": true})).unwrap().biases;
    assert_eq!((biased.qkv, biased.out, biased.mlp), (true, true, false));
    let window = |more: Value| qwen(more).unwrap().window(1);
    let (on, off) = (json!({"use_sliding_window": true, "sliding_window": 9}), json!({"sliding_window": 9}));
    assert_eq!((window(on), window(off)), (Some(9), None));
    assert_eq!(window(json!({"use_sliding_window": true, "sliding_window": null})), None);
    let untold = json!({"use_sliding_window": true, "max_position_embeddings": 8192});
    assert_eq!(window(untold), Some(4096));
    assert!(qwen(json!({"decoder_sparse_step": 1, "mlp_only_layers": []})).is_ok());
    for (changes, named) in [
        (json!({"num_experts": null}), "num_experts"),
        (json!({"num_experts": 0}), "num_experts"),
        (json!({"num_experts_per_tok": null}), "num_experts_per_tok"),
        (json!({"num_experts_per_tok": 17}), "num_experts_per_tok"),
        (json!({"moe_intermediate_size": null}), "moe_intermediate_size"),
        (json!({"mlp_only_layers": ["all"]}), "mlp_only_layers"),
    ] {
        let error = qwen(changes).unwrap_err();
        assert!(matches!(&error, Error::Config { key, .. } if key == named), "{named}: {error}");
    }
    for (changes, named) in [
        (json!({"decoder_sparse_step": 2}), "decoder_sparse_step 2"),
        (json!({"decoder_sparse_step": 0}), "decoder_sparse_step 0"),
        (json!({"mlp_only_layers": [0]}), "mlp_only_layers"),
    ] {
        let error = qwen(changes).unwrap_err();
        assert!(matches!(&error, Error::Unsupported { what, .. } if what == named), "{named}: {error}");
    }
}

fn falcon(more: Value) -> Result<Decoder> {
    of(&falcon::FAMILY, more)
}

#[test]
fn falcons_are_of_four_kinds() {
    let shape = |decoder: &Decoder| (decoder.block, decoder.sizes.kv_heads, decoder.tensors.qkv);
    let fused = |order| Qkv::Fused("self_attention.query_key_value", order);
    let seven = falcon(json!({})).unwrap();
    assert_eq!(shape(&seven), (Block::Parallel, 1, fused(Fused::InTurn)));
    assert_eq!((seven.sizes.intermediate, seven.tied, rotary_of(&seven).dim), (256, false, 16));
    let new = |norms: Value| {
        falcon(json!({"new_decoder_architecture": true, "num_kv_heads": 2, "num_ln_in_parallel_attn": norms}))
    };
    let forty = new(Value::Null).unwrap();
    assert_eq!(shape(&forty), (Block::ParallelTwoNorms, 2, fused(Fused::Grouped)));
    assert_eq!(forty.tensors.norms, ["ln_attn", "ln_mlp"]);
    assert_eq!(shape(&new(json!(1)).unwrap()), (Block::Parallel, 2, fused(Fused::Grouped)));
    let rw = falcon(json!({"alibi": true, "bias": true, "multi_query": false, "parallel_attn": false}));
    let rw = rw.unwrap();
    assert_eq!(shape(&rw), (Block::Sequential, 4, fused(Fused::Grouped)));
    assert_eq!((rw.positions, rw.biases.mlp), (Positions::Alibi, true));
    let unsupported = [
        new(json!(3)),
        falcon(json!({"num_ln_in_parallel_attn": 2})),
        falcon(json!({"new_decoder_architecture": true, "parallel_attn": false})),
        falcon(json!({"activation": "relu"})),
    ];
    for decoder in unsupported {
        assert!(matches!(&decoder, Err(Error::Unsupported { .. })), "{decoder:?}");
    }
}

fn gpt(family: &Family, more: Value) -> Result<Decoder> {
    let mut keys = json!({
        "architectures": [family.architecture], "model_type": family.model_type, "n_embd": 64, "n_layer": 2,
        "n_head": 4, "vocab_size": 100,
    });
    keys.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    read(&keys)
}

#[test]
fn gpts_have_names_of_their_own() {
    let two = gpt(&gpt2::FAMILY, json!({})).unwrap();
    assert_eq!((two.sizes.intermediate, two.sizes.context, two.tied), (256, 1024, true));
    assert_eq!((two.mlp, two.positions), (Mlp::Gelu(GeluForm::Tanh), Positions::Learned));
    let exact = gpt(&gpt2::FAMILY, json!({"activation_function": "gelu", "n_inner": 100})).unwrap();
    assert_eq!((exact.mlp, exact.sizes.intermediate), (Mlp::Gelu(GeluForm::Erf), 100));
    let j = gpt(&gptj::FAMILY, json!({"rotary_dim": 8})).unwrap();
    assert_eq!((rotary_of(&j).dim, j.tied, j.biases.head, j.sizes.context), (8, false, true, 2048));
    for (family, changes, named) in [
        (&gpt2::FAMILY, json!({"n_embd": 0}), "n_embd"),
        (&gpt2::FAMILY, json!({"n_head": 3}), "n_head"),
        (&gpt2::FAMILY, json!({"n_positions": 0}), "n_positions"),
        (&gpt2::FAMILY, json!({"layer_norm_epsilon": 2.0}), "layer_norm_epsilon"),
        (&gptj::FAMILY, json!({"rotary_dim": 7}), "rotary_dim"),
        (&gptj::FAMILY, json!({"rotary_dim": 18}), "rotary_dim"),
        (&gptj::FAMILY, json!({"rotary_dim": 0}), "rotary_dim"),
        (&gptj::FAMILY, json!({"rotary_dim": null}), "rotary_dim"),
    ] {
        let error = gpt(family, changes).unwrap_err();
        assert!(matches!(&error, Error::Config { key, .. } if key == named), "{named}: {error}");
    }
    for changes in [
        json!({"scale_attn_weights": false}),
        json!({"scale_attn_by_inverse_layer_idx": true}),
        json!({"add_cross_attention": true}),
        json!({"activation_function": "relu"}),
    ] {
        let shown = changes.to_string();
        let error = gpt(&gpt2::FAMILY, changes).unwrap_err();
        assert!(matches!(&error, Error::Unsupported { .. }), "{shown}: {error}");
    }
}

fn neox(more: Value) -> Result<Decoder> {
    let mut keys = json!({"rope_theta": null, "hidden_act": null});
    keys.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    of(&gpt_neox::FAMILY, keys)
}

#[test]
fn gpt_neox_rotates_a_part_of_each_head_in_halves() {
    let rotation = |more: Value| {
        let decoder = neox(more).unwrap();
        let rotary = rotary_of(&decoder);
        assert_eq!(rotary.style, RopeStyle::Half);
        (rotary.dim, rotary.theta, rotary.scaling.clone())
    };
    assert_eq!(rotation(json!({})), (4, 1e4, RopeScaling::Default));
    let old =
        json!({"rotary_pct": 0.5, "rotary_emb_base": 500, "rope_scaling": {"type": "linear", "factor": 2.0}});
    let linear = RopeScaling::Linear { factor: 2.0 };
    assert_eq!(rotation(old), (8, 500.0, linear.clone()));
    let new = json!({"rope_parameters": {
        "rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5, "rope_theta": 500.0,
    }});
    assert_eq!(rotation(new.clone()), (8, 500.0, linear));
    // The new names go before the old ones; other families' may say the same once more.
    let mut both = new;
    (both["rotary_pct"], both["rotary_emb_base"]) = (json!(1.0), json!(9));
    (both["partial_rotary_factor"], both["rope_theta"]) = (json!(0.5), json!(500.0));
    let (dim, theta, _) = rotation(both);
    assert_eq!((dim, theta), (8, 500.0));
    // Of 16 elements 5.6, in whole ones 5; none; more than there are.
    for (factor, named) in [(0.35, "5 is odd"), (0.0, "0 is not"), (1.25, "20 is not"), (-0.5, "0 is not")] {
        let error = neox(json!({"rotary_pct": factor})).unwrap_err();
        assert!(matches!(&error, Error::Config { key, .. } if key == "rotary_pct"), "{error}");
        assert!(error.to_string().contains(named), "{error}");
    }
    let error = neox(json!({"rotary_emb_base": 0})).unwrap_err();
    assert!(matches!(&error, Error::Config { key, .. } if key == "rotary_emb_base"), "{error}");
}

#[test]
fn gpt_neox_is_parallel_with_two_norms_and_biased_unless_told_otherwise() {
    let biases = |attention| Biases { qkv: attention, out: attention, mlp: true, head: false };
    // Llama's two key heads are no key of this family's.
    let untold = neox(json!({"max_position_embeddings": null})).unwrap();
    assert_eq!((untold.block, untold.biases), (Block::ParallelTwoNorms, biases(true)));
    assert_eq!((untold.mlp, untold.norm.kind), (Mlp::Gelu(GeluForm::Erf), NormKind::Layer));
    assert_eq!((untold.sizes.context, untold.sizes.kv_heads, untold.norm.eps), (2048, 4, 1e-5));
    let told = neox(json!({
        "use_parallel_residual": false, "attention_bias": false, "hidden_act": "gelu_fast",
        "layer_norm_eps": 1e-3, "tie_word_embeddings": true,
    }));
    let told = told.unwrap();
    assert_eq!((told.block, told.biases, told.tied), (Block::Sequential, biases(false), true));
    assert_eq!((told.mlp, told.norm.eps, untold.tied), (Mlp::Gelu(GeluForm::Tanh), 1e-3, false));
    for (changes, named) in [
        (json!({"hidden_act": "relu"}), "hidden_act relu"),
        (json!({"rope_theta": 500.0}), "rope_theta 500"),
        (json!({"partial_rotary_factor": 1.0}), "partial_rotary_factor 1"),
        (json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}}), "rope scaling dynamic"),
    ] {
        match neox(changes).unwrap_err() {
            Error::Unsupported { what, .. } => assert_eq!(what, named),
            other => panic!("{named}: {other}"),
        }
    }
    let missing = neox(json!({"intermediate_size": null})).unwrap_err();
    assert!(matches!(&missing, Error::Config { key, .. } if key == "intermediate_size"), "{missing}");
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
        (json!({"rope_parameters": {"rope_type": "default"}, "rope_scaling": 5}), "rope_scaling", "5"),
        (
            json!({"rope_parameters": {"rope_type": "default"},
                "rope_scaling": {"type": "linear", "factor": 2.0}}),
            "rope_scaling",
            "differs",
        ),
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
