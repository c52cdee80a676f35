//! Whole models from files that the tests write.

pub(crate) mod files;

use super::*;
use files::*;
use proptest::prelude::*;
use safetensors::Dtype;
use serde_json::json;
use tempfile::TempDir;

fn read(model: &Model, weight: &str, rows: std::ops::Range<u64>) -> Vec<u8> {
    let (_, value) = model.graph.weights().find(|(_, v)| v.name == weight).unwrap();
    let mut out = vec![0; value.stored_bytes(rows.clone()) as usize];
    model.source.read_rows(weight, rows, &mut out).unwrap();
    out
}

fn whole(model: &Model, weight: &str) -> Vec<u8> {
    let (_, value) = model.graph.weights().find(|(_, v)| v.name == weight).unwrap();
    read(model, weight, 0..value.matrix()[0])
}

fn dtype_of(model: &Model, weight: &str) -> DType {
    model.graph.weights().find(|(_, v)| v.name == weight).unwrap().1.dtype()
}

/// The tensors of the file, one below the other.
fn stacked(tensors: &Tensors, names: &[&str]) -> Vec<u8> {
    let values: Vec<f32> = names.iter().flat_map(|name| tensors[*name].values.clone()).collect();
    encode(&values, Dtype::F32)
}

fn open_dir(directory: &TempDir) -> Result<Model> {
    open(&Location::Directory(directory.path().to_owned()), &OpenOptions::default())
}

/// A directory of the base model after `change`.
fn directory(change: impl FnOnce(&mut serde_json::Value, &mut Tensors), tied: bool, bias: bool) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let (mut config, mut tensors) = (config(tied, bias), tensors(tied, bias));
    change(&mut config, &mut tensors);
    write_directory(directory.path(), &config, &tensors);
    directory
}

fn gguf(change: impl FnOnce(&mut Metadata, &mut Tensors), tied: bool, bias: bool) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tiny.gguf");
    let (mut metadata, mut tensors) = (metadata(), to_gguf(&tensors(tied, bias)));
    change(&mut metadata, &mut tensors);
    write_gguf(&path, &metadata, &tensors);
    (directory, path)
}

fn open_gguf_file(path: &Path) -> Result<Model> {
    open(&Location::Gguf(path.to_owned()), &OpenOptions::default())
}

#[test]
fn fused_weights_are_the_files_tensors_one_below_the_other() {
    let model = open_dir(&directory(|_, _| (), false, true)).unwrap();
    assert_eq!(model.architecture, "LlamaForCausalLM");
    let tensors = tensors(false, true);
    let layer = |name: &str| format!("model.layers.1.{name}");
    for kind in ["weight", "bias"] {
        let qkv = ["q", "k", "v"].map(|p| layer(&format!("self_attn.{p}_proj.{kind}")));
        let gate_up = ["gate", "up"].map(|p| layer(&format!("mlp.{p}_proj.{kind}")));
        let [out, down] = ["self_attn.o_proj", "mlp.down_proj"].map(|p| layer(&format!("{p}.{kind}")));
        for (weight, names) in [
            ("attn.qkv", qkv.iter().map(String::as_str).collect::<Vec<_>>()),
            ("mlp.gate_up", gate_up.iter().map(String::as_str).collect()),
            ("attn.out", vec![&out]),
            ("mlp.down", vec![&down]),
        ] {
            let name = format!("blocks.1.{weight}.{kind}");
            assert_eq!(whole(&model, &name), stacked(&tensors, &names), "{name}");
        }
    }
    for (weight, name) in [
        ("embed.weight", "model.embed_tokens.weight"),
        ("unembed.weight", "lm_head.weight"),
        ("ln_final.weight", "model.norm.weight"),
        ("blocks.0.ln1.weight", "model.layers.0.input_layernorm.weight"),
        ("blocks.0.ln2.weight", "model.layers.0.post_attention_layernorm.weight"),
    ] {
        assert_eq!(whole(&model, weight), stacked(&tensors, &[name]), "{weight}");
    }
    let inv_freq: Vec<f32> =
        whole(&model, "rope.inv_freq").as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    let expected = (0..3).map(|i| 10000f64.powf(-f64::from(i) / 3.0));
    assert!(inv_freq.iter().zip(expected).all(|(f, e)| (f64::from(*f) / e - 1.0).abs() < 1e-5));
}

#[test]
fn gguf_gives_the_same_weights_as_the_directory_it_was_made_from() {
    for (tied, bias) in [(false, false), (true, false), (false, true), (true, true)] {
        let from_dir = open_dir(&directory(|_, _| (), tied, bias)).unwrap();
        let (_keep, path) = gguf(|_, _| (), tied, bias);
        let from_gguf = open_gguf_file(&path).unwrap();
        assert_eq!(from_gguf.graph.parameters(), from_dir.graph.parameters());
        assert_eq!(from_gguf.graph.weights().count(), from_dir.graph.weights().count());
        for (_, value) in from_dir.graph.weights() {
            assert_eq!(whole(&from_gguf, &value.name), whole(&from_dir, &value.name), "{}", value.name);
        }
        let tied_found = from_gguf.graph.weights().all(|(_, v)| v.name != "unembed.weight");
        assert_eq!(tied_found, tied);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn tiles_may_be_cut_anywhere(from_gguf in any::<bool>(), cuts in (0u64..=48, 0u64..=48)) {
        let (_gguf, path) = gguf(|_, _| (), false, false);
        let dir = directory(|_, _| (), false, false);
        let model = if from_gguf { open_gguf_file(&path) } else { open_dir(&dir) }.unwrap();
        let rows = cuts.0.min(cuts.1)..cuts.0.max(cuts.1);
        let names = ["q", "k", "v"].map(|p| format!("model.layers.0.self_attn.{p}_proj.weight"));
        let all = stacked(&tensors(false, false), &names.each_ref().map(String::as_str));
        let bytes = rows.start as usize * HIDDEN * 4..rows.end as usize * HIDDEN * 4;
        prop_assert_eq!(read(&model, "blocks.0.attn.qkv.weight", rows), &all[bytes]);
    }
}

#[test]
fn element_types_are_the_files_unless_chosen() {
    let dir = directory(
        |_, tensors| {
            tensors.values_mut().for_each(|t| t.dtype = Dtype::BF16);
            tensors.get_mut("model.layers.0.self_attn.k_proj.weight").unwrap().dtype = Dtype::F16;
            tensors.get_mut("model.norm.weight").unwrap().dtype = Dtype::F32;
        },
        false,
        false,
    );
    let model = open_dir(&dir).unwrap();
    assert_eq!(dtype_of(&model, "embed.weight"), DType::BF16);
    assert_eq!(dtype_of(&model, "blocks.0.attn.qkv.weight"), DType::F32, "f16 beside bf16");
    assert_eq!(dtype_of(&model, "ln_final.weight"), DType::F32);
    let options = OpenOptions { dtype: Some(DType::F16), ..OpenOptions::default() };
    let model = open(&Location::Directory(dir.path().to_owned()), &options).unwrap();
    assert_eq!(dtype_of(&model, "blocks.0.attn.qkv.weight"), DType::F16);
    assert_eq!(dtype_of(&model, "embed.weight"), DType::F16);
    assert_eq!(dtype_of(&model, "blocks.0.ln1.weight"), DType::BF16);
    let embedding = &tensors(false, false)["model.embed_tokens.weight"].values;
    let rounded: Vec<f32> = embedding.iter().map(|&v| half::bf16::from_f32(v).to_f32()).collect();
    assert_eq!(whole(&model, "embed.weight"), encode(&rounded, Dtype::F16));
}

#[test]
fn quantised_blocks_become_f16() {
    // The first tensor's numbers are n / 64 for n from 1: those up to 127 are exact in the test's blocks.
    let (_keep, path) = gguf(
        |_, tensors| {
            let table = tensors.get_mut("token_embd.weight").unwrap();
            table.values.iter_mut().enumerate().for_each(|(i, v)| *v = (i % 127) as f32 / 64.0);
            // Stands for Q8_0.
            table.dtype = Dtype::I8;
        },
        true,
        false,
    );
    let model = open_gguf_file(&path).unwrap();
    assert_eq!(dtype_of(&model, "embed.weight"), DType::F16);
    let values: Vec<f32> = (0..VOCAB * HIDDEN).map(|i| (i % 127) as f32 / 64.0).collect();
    assert_eq!(whole(&model, "embed.weight"), encode(&values, Dtype::F16));
    let options = OpenOptions { dtype: Some(DType::F32), ..OpenOptions::default() };
    let model = open(&Location::Gguf(path), &options).unwrap();
    assert_eq!(whole(&model, "embed.weight"), encode(&values, Dtype::F32));
}

#[test]
fn files_that_do_not_fit_are_refused_by_name() {
    type Change = fn(&mut serde_json::Value, &mut Tensors);
    let cases: [(Change, &str); 8] = [
        (|_, t| drop(t.remove("model.layers.1.mlp.up_proj.weight")), "model.layers.1.mlp.up_proj.weight"),
        (|_, t| drop(t.remove("lm_head.weight")), "lm_head.weight"),
        (|c, _| c["attention_bias"] = json!(true), "self_attn.k_proj.bias"),
        (|c, _| c["vocab_size"] = json!(41), "[40, 32]"),
        (|c, _| c["num_key_value_heads"] = json!(4), "k_proj.weight has shape [12, 32]"),
        (|c, _| c["architectures"] = json!(["Qwen3ForCausalLM"]), "Qwen3ForCausalLM"),
        (|c, _| c["num_hidden_layers"] = json!(1), "model.layers.1."),
        (|c, _| c["hidden_size"] = json!(0), "hidden_size"),
    ];
    for (change, named) in cases {
        let message = open_dir(&directory(change, false, false)).unwrap_err().to_string();
        assert!(message.contains(named) && message.lines().count() == 1, "{named}: {message}");
    }
}

#[test]
fn a_spare_head_is_ignored_when_the_embedding_is_tied() {
    let model = open_dir(&directory(|c, _| c["tie_word_embeddings"] = json!(true), false, false)).unwrap();
    assert!(model.graph.weights().all(|(_, v)| v.name != "unembed.weight"));
}

#[test]
fn adapters_are_refused_with_and_without_a_model_beside_them() {
    let beside = directory(|_, _| (), false, false);
    std::fs::write(beside.path().join("adapter_model.safetensors"), b"").unwrap();
    let alone = tempfile::tempdir().unwrap();
    std::fs::write(alone.path().join("adapter_config.json"), b"{}").unwrap();
    for (place, file) in [(beside, "adapter_model.safetensors"), (alone, "adapter_config.json")] {
        let error = open_dir(&place).unwrap_err();
        assert!(matches!(&error, Error::Unsupported { what, .. } if what.contains(file)), "{error}");
    }
}

#[test]
fn names_may_lack_the_prefix() {
    let bare = directory(
        |_, tensors| {
            *tensors = std::mem::take(tensors)
                .into_iter()
                .map(|(name, tensor)| (name.strip_prefix("model.").unwrap_or(&name).to_owned(), tensor))
                .collect();
        },
        false,
        false,
    );
    let whole_names = directory(|_, _| (), false, false);
    let [bare, usual] = [bare, whole_names].map(|place| open_dir(&place).unwrap());
    for weight in ["embed.weight", "blocks.1.attn.qkv.weight", "ln_final.weight", "unembed.weight"] {
        assert_eq!(whole(&bare, weight), whole(&usual, weight), "{weight}");
    }
}

#[test]
fn gguf_models_that_do_not_fit_are_refused_by_name() {
    type Change = fn(&mut Metadata, &mut Tensors);
    let cases: [(Change, &str); 12] = [
        (|m, _| drop(m.insert("general.architecture".into(), Meta::Str("gemma3".into()))), "gemma3"),
        (|m, _| drop(m.remove("general.architecture")), "general.architecture"),
        (|m, _| drop(m.remove("llama.block_count")), "llama.block_count"),
        (|m, _| drop(m.insert("llama.block_count".into(), Meta::U32(0))), "llama.block_count"),
        (
            |m, _| drop(m.insert("llama.block_count".into(), Meta::U32(1))),
            "that the file's metadata belongs to",
        ),
        (|m, _| drop(m.insert("llama.expert_count".into(), Meta::U32(8))), "llama.expert_used_count"),
        (|m, _| drop(m.insert("llama.rope.dimension_count".into(), Meta::U32(4))), "dimension_count 4"),
        (|m, _| drop(m.insert("llama.rope.scaling.type".into(), Meta::Str("yarn".into()))), "yarn"),
        (
            |m, _| drop(m.insert("llama.rope.scaling.type".into(), Meta::Str("linear".into()))),
            "llama.rope.scaling.factor",
        ),
        (|m, _| drop(m.insert("llama.rope.freq_base".into(), Meta::F32(f32::NAN))), "llama.rope.freq_base"),
        (|_, t| drop(t.remove("token_embd.weight")), "token_embd.weight"),
        (|_, t| drop(t.remove("blk.0.attn_k.weight")), "blk.0.attn_k.weight"),
    ];
    for (change, named) in cases {
        let (_keep, path) = gguf(change, false, false);
        let message = open_gguf_file(&path).unwrap_err().to_string();
        assert!(message.contains(named) && message.lines().count() == 1, "{named}: {message}");
    }
}

#[test]
fn gguf_frequencies_are_scaled_by_key_or_tensor() {
    let frequencies = |change: fn(&mut Metadata, &mut Tensors)| {
        let (_keep, path) = gguf(change, false, false);
        let bytes = whole(&open_gguf_file(&path).unwrap(), "rope.inv_freq");
        bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect::<Vec<f32>>()
    };
    let plain = frequencies(|_, _| ());
    let ratios = |scaled: Vec<f32>| plain.iter().zip(scaled).map(|(p, s)| p / s).collect::<Vec<f32>>();
    let linear = frequencies(|m, _| {
        m.insert("llama.rope.scaling.type".into(), Meta::Str("linear".into()));
        m.insert("llama.rope.scaling.factor".into(), Meta::F32(4.0));
    });
    assert_eq!(ratios(linear), [4.0; 3]);
    let divided = frequencies(|_, t| {
        let divisors = Tensor { shape: vec![3], values: vec![1.0, 2.0, 8.0], dtype: Dtype::F32 };
        t.insert("rope_freqs.weight".into(), divisors);
    });
    assert_eq!(ratios(divided), [1.0, 2.0, 8.0]);
}

#[test]
fn generation_defaults_come_from_both_files() {
    let dir = directory(|c, _| c["eos_token_id"] = json!(7), false, false);
    let defaults = open_dir(&dir).unwrap().defaults;
    assert_eq!(defaults, GenerationDefaults { eos: vec![7], ..GenerationDefaults::default() });

    let write = |value: serde_json::Value| {
        std::fs::write(dir.path().join("generation_config.json"), value.to_string()).unwrap();
        open_dir(&dir).map(|model| model.defaults)
    };
    let full = json!({"eos_token_id": [2, 3], "bos_token_id": 1, "temperature": 0.5, "top_p": 0.75,
        "top_k": 40, "do_sample": true, "min_p": 0.25, "repetition_penalty": 1.5});
    let expected = GenerationDefaults {
        eos: vec![2, 3],
        bos: Some(1),
        temperature: Some(0.5),
        top_p: Some(0.75),
        top_k: Some(40),
        do_sample: Some(true),
        min_p: Some(0.25),
        repetition_penalty: Some(1.5),
        ignored: Vec::new(),
    };
    assert_eq!(write(full).unwrap(), expected);
    assert_eq!(write(json!({"temperature": null})).unwrap().eos, [7]);
    for (key, value) in [
        ("eos_token_id", json!("two")),
        ("eos_token_id", json!([1, -1])),
        ("temperature", json!(-1)),
        ("top_p", json!(1.5)),
        ("top_k", json!(1u64 << 40)),
        ("do_sample", json!("yes")),
        ("min_p", json!(1.5)),
        ("repetition_penalty", json!(0)),
        ("repetition_penalty", json!("1.1")),
        ("typical_p", json!("high")),
        ("num_beams", json!([4])),
        ("max_new_tokens", json!("many")),
        ("suppress_tokens", json!(true)),
        ("remove_invalid_values", json!(1)),
    ] {
        let message = write(json!({key: value})).unwrap_err().to_string();
        assert!(message.contains(key) && message.contains("generation_config.json"), "{message}");
    }
}

#[test]
fn generation_keys_that_are_not_applied_are_named() {
    let dir = directory(
        |c, _| {
            c["num_beams"] = json!(4);
            c["typical_p"] = json!(0.9)
        },
        false,
        false,
    );
    let ignored = |value: serde_json::Value| {
        std::fs::write(dir.path().join("generation_config.json"), value.to_string()).unwrap();
        open_dir(&dir).unwrap().defaults.ignored
    };
    // What the newer file says of a key counts, be it that nothing is wanted.
    let neutral = json!({"num_beams": 1, "typical_p": 1.0, "no_repeat_ngram_size": 0, "bad_words_ids": null,
        "suppress_tokens": [], "sequence_bias": {}, "max_new_tokens": 100, "early_stopping": true,
        "repetition_penalty": 1.1, "transformers_version": "4.50.0", "remove_invalid_values": false});
    assert!(ignored(neutral).is_empty());
    let asks = json!({"num_beams": 1, "typical_p": 0.5, "no_repeat_ngram_size": 3, "bad_words_ids": [[1]],
        "forced_eos_token_id": 2, "sequence_bias": [[[1], 2.0]], "penalty_alpha": 0.6});
    let named = [
        "penalty_alpha",
        "typical_p",
        "no_repeat_ngram_size",
        "bad_words_ids",
        "forced_eos_token_id",
        "sequence_bias",
    ];
    assert_eq!(ignored(asks), named);
    assert_eq!(ignored(json!({})), ["num_beams", "typical_p"]);
}

#[test]
fn gguf_generation_defaults_are_its_special_tokens() {
    let (_keep, path) = gguf(
        |m, _| {
            for (key, id) in [("bos", 1), ("eos", 2), ("eot", 5), ("eom", 2)] {
                m.insert(format!("tokenizer.ggml.{key}_token_id"), Meta::U32(id));
            }
        },
        false,
        false,
    );
    let defaults = open_gguf_file(&path).unwrap().defaults;
    assert_eq!((defaults.eos, defaults.bos), (vec![2, 5], Some(1)));
}

#[test]
fn places_are_found_or_refused() {
    let dir = directory(|_, _| (), false, false);
    let at = |name: &str| dir.path().join(name);
    let find = |path: &Path| Location::find(path.to_str().unwrap());
    assert_eq!(Location::find("synthetic:tiny?seed=1").unwrap(), Location::Synthetic("tiny?seed=1".into()));
    assert_eq!(find(dir.path()).unwrap(), Location::Directory(dir.path().to_owned()));
    let file = find(&at("model.safetensors")).unwrap();
    assert_eq!(file, Location::Safetensors(at("model.safetensors")));
    let model = open(&file, &OpenOptions::default()).unwrap();
    assert_eq!((&*model.name, model.graph.vocab), ("model", VOCAB as u64));
    assert!(model.tokenizer.is_none() && model.chat.is_none());
    for missing in [at("nothing"), at("config.json")] {
        assert!(matches!(find(&missing), Err(Error::NotAModel { .. })), "{}", missing.display());
    }
    std::fs::remove_file(at("config.json")).unwrap();
    assert!(matches!(open(&file, &OpenOptions::default()), Err(Error::NotAModel { .. })));
}

#[test]
fn a_directory_with_one_gguf_file_is_a_model() {
    let (dir, path) = gguf(|_, _| (), false, false);
    assert_eq!(open_dir(&dir).unwrap().name, "tiny");
    std::fs::copy(&path, dir.path().join("second.gguf")).unwrap();
    let message = open_dir(&dir).unwrap_err().to_string();
    assert!(message.contains("2 .gguf files"), "{message}");
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(open_dir(&empty), Err(Error::NotAModel { .. })));
}

#[test]
fn a_configuration_that_is_no_json_object_is_refused() {
    let dir = directory(|_, _| (), false, false);
    for text in ["", "{", "[]", "{\"hidden_size\": }", "\u{feff}{}"] {
        std::fs::write(dir.path().join("config.json"), text).unwrap();
        assert!(matches!(open_dir(&dir), Err(Error::Malformed { .. })), "{text:?}");
    }
}

#[test]
fn weights_are_never_integers() {
    let options = OpenOptions { dtype: Some(DType::U32), ..OpenOptions::default() };
    assert!(matches!(open(&Location::Synthetic("tiny".into()), &options), Err(Error::Unsupported { .. })));
}
