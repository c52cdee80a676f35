//! `djinn pack` and `djinn unpack`.

use super::{Place, checkpoint};
use safetensors::{Dtype, tensor::TensorView};
use std::fs;
use std::path::Path;

const HIDDEN: usize = 128;
const VOCAB: usize = 12_288;

/// A Llama of one block whose matrices of bf16 are worth packing; the table of embeddings has several bands.
fn write_llama(directory: &Path) {
    fs::create_dir_all(directory).unwrap();
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
        "intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": VOCAB, "max_position_embeddings": 64,
        "tie_word_embeddings": true, "torch_dtype": "bfloat16", "hidden_act": "silu",
    });
    fs::write(directory.join("config.json"), config.to_string()).unwrap();
    let block = [
        ("self_attn.q_proj", [HIDDEN, HIDDEN]),
        ("self_attn.k_proj", [HIDDEN, HIDDEN]),
        ("self_attn.v_proj", [HIDDEN, HIDDEN]),
        ("self_attn.o_proj", [HIDDEN, HIDDEN]),
        ("mlp.gate_proj", [256, HIDDEN]),
        ("mlp.up_proj", [256, HIDDEN]),
        ("mlp.down_proj", [HIDDEN, 256]),
    ];
    let mut shapes: Vec<(String, Vec<usize>)> = block
        .map(|(name, shape)| (format!("model.layers.0.{name}.weight"), shape.to_vec()))
        .into_iter()
        .chain([("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN])])
        .collect();
    for norm in ["layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm"] {
        shapes.push((format!("model.{norm}.weight"), vec![HIDDEN]));
    }
    let mut state = 1u64;
    let mut weight = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Both signs, exponents of 2^-9 to 2^-2, now and then a zero.
        let bits = (state >> 48) as u16;
        if bits.is_multiple_of(997) { 0 } else { bits & 0x83ff | 0x3b00 }
    };
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = shapes
        .into_iter()
        .map(|(name, shape)| {
            let values = (0..shape.iter().product()).flat_map(|_| weight().to_le_bytes()).collect();
            (name, shape, values)
        })
        .collect();
    let views = tensors
        .iter()
        .map(|(name, shape, bytes)| (name, TensorView::new(Dtype::BF16, shape.clone(), bytes).unwrap()));
    fs::write(directory.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
}

/// A place with a model in `a/model`.
fn place() -> Place {
    let place = Place::new();
    write_llama(&place.path().join("a/model"));
    place
}

#[test]
fn logits_of_a_packed_model_are_bitwise_those_of_the_plain_one() {
    let place = place();
    let report = place.json(&["pack", "a/model", "-o", "b/model", "--json"]);
    let (plain, packed) = (&report["original_bytes"], &report["packed_bytes"]);
    assert!(packed.as_f64().unwrap() < plain.as_f64().unwrap() * 0.9, "{report}");
    assert!(report["lossless_bytes"].as_f64().unwrap() > plain.as_f64().unwrap() * 0.99, "{report}");
    let logits = |model: &str, more: &[&str]| {
        place.ok(&[&["logits", model, "--tokens=1,2,3,12287", "--json", "-q"], more].concat())
    };
    let expected = logits("a/model", &[]);
    assert!(logits("b/model", &[]) == expected);
    assert!(logits("b/model/model.safetensors.packed", &[]).contains("logits"));
    let streamed = ["--resident-fraction=0", "--chunk=100KB", "--ring=333KB", "--stream-check"];
    assert!(logits("b/model", &streamed) == expected);

    place.ok(&["unpack", "b/model", "-o", "c", "-q"]);
    for file in ["config.json", "model.safetensors"] {
        let [before, after] =
            ["a/model", "c"].map(|from| fs::read(place.path().join(from).join(file)).unwrap());
        assert!(before == after, "{file}");
    }
}

/// The system kills a process that writes beyond its limit, in the middle of a file.
#[cfg(unix)]
#[test]
fn a_killed_attempt_goes_on_and_ends_in_the_same_file() {
    use std::os::unix::process::ExitStatusExt;
    let place = place();
    place.ok(&["pack", "a/model", "-o", "whole"]);
    let mut pack = place.command(&["pack", "a/model", "-o", "killed", "--threads=1"]);
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "ulimit -c 0; ulimit -f 3000; exec \"$0\" \"$@\""]).arg(pack.get_program());
    shell.args(pack.get_args()).current_dir(place.path()).env_clear();
    shell.envs(pack.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let killed = shell.output().unwrap();
    assert!(killed.status.signal().is_some(), "{killed:?}");
    let left = |name: &str| place.path().join("killed").join(name);
    let (partial, journal) = ("model.safetensors.packed.partial", "model.safetensors.packed.journal");
    // The journal's head and one band at least.
    assert!(fs::metadata(left(journal)).unwrap().len() >= 56 + 72);
    assert!(place.refused(&["logits", "killed", "--tokens=1"]).contains("has neither model.safetensors nor"));

    assert!(pack.output().unwrap().status.success());
    let file = "model.safetensors.packed";
    let [whole, resumed] =
        ["whole", "killed"].map(|from| fs::read(place.path().join(from).join(file)).unwrap());
    assert!(whole == resumed && !left(partial).exists() && !left(journal).exists());
}

#[test]
fn what_cannot_be_packed_or_is_damaged_is_refused_in_one_line() {
    let place = place();
    place.ok(&["pack", "a/model", "-o", "b", "-q"]);
    let message = place.refused(&["pack", "synthetic:tiny", "-o", "x"]);
    assert!(message.starts_with("packing synthetic:tiny is not supported; a directory"), "{message}");
    let message = place.refused(&["pack", "-q", "a/model", "-o", "a/model"]);
    assert!(message.contains("where the model is, is not supported"), "{message}");
    let message = place.refused(&["unpack", "-q", &checkpoint("gqa-bf16"), "-o", "x"]);
    assert!(message.contains("it has no .packed file"), "{message}");
    let message = place.refused(&["unpack", "b/model.safetensors.packed", "-o", "x"]);
    assert!(message.contains("is no directory; djinn unpack takes"), "{message}");

    let packed = place.path().join("b/model.safetensors.packed");
    let mut bytes = fs::read(&packed).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&packed, &bytes).unwrap();
    let message = place.refused(&["logits", "-q", "b", "--tokens=1"]);
    assert!(message.contains("is corrupt: its hash differs"), "{message}");
    let message = place.refused(&["unpack", "-q", "b", "-o", "x"]);
    assert!(message.contains("is corrupt: its hash differs"), "{message}");
    assert!(!place.path().join("x/model.safetensors").exists());
    fs::write(&packed, &bytes[..middle]).unwrap();
    assert!(place.refused(&["plan", "b"]).contains("it is truncated or corrupt"));
}
