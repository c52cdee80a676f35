//! What the CPU computes, to the bit: logits and tokens of every checkpoint and family in the repository, wherever
//! their weights are, beside hashes that were recorded before the engine was rebuilt. `unchanged.json` changes only
//! with the arithmetic of the CPU's kernels: a failed run leaves what it found beside the build, to be compared.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Synthetic models: one of each family.
const FAMILIES: [&str; 11] = [
    "tiny-gqa",
    "tiny-window",
    "tiny-qwen3",
    "tiny-mixtral",
    "tiny-gpt2",
    "tiny-gptj",
    "tiny-gpt-neox",
    "tiny-falcon",
    "tiny-falcon?kv_heads=1",
    "tiny-falcon-rw",
    "tiny?layers=3&hidden=96&intermediate=160&heads=6&kv_heads=2&head_dim=16&vocab=700&tied=true",
];

/// Where weights may be, and how a prompt may be cut.
const PLACEMENTS: [&[&str]; 4] = [
    &[],
    &["--resident-fraction=0", "--stream-check"],
    &["--resident-fraction=0.4", "--chunk=66KB", "--ring=132KB"],
    &["--resident-fraction=0.7", "--prefill-chunk=16"],
];

/// Tokens of the prompt: more than a prefill chunk of 16, fewer than the shortest context less [`NEW_TOKENS`].
const PROMPT_TOKENS: u32 = 40;
const NEW_TOKENS: usize = 12;

fn djinn(args: &[&str]) -> Value {
    let folder = env!("CARGO_TARGET_TMPDIR");
    let mut command = Command::new(env!("CARGO_BIN_EXE_djinn"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("DJINN_")) {
        command.env_remove(name);
    }
    command.args(args).args(["--device=cpu", "--threads=2", "--json", "--quiet"]);
    let output = command.current_dir(folder).env("XDG_CONFIG_HOME", folder).output().expect("djinn starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {error}");
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// FNV-1a of 64 bits.
fn hash(words: impl Iterator<Item = u32>) -> String {
    let bytes = words.flat_map(u32::to_le_bytes);
    let hash = bytes
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    format!("{hash:016x}")
}

fn prompt() -> String {
    let tokens: Vec<String> = (0..PROMPT_TOKENS).map(|i| ((i * 37 + 11) % 61).to_string()).collect();
    tokens.join(",")
}

/// A hash of the logits of each position of the prompt.
fn logits(model: &str, more: &[&str]) -> String {
    let tokens = format!("--tokens={}", prompt());
    let found = djinn(&[&["logits", model, &tokens], more].concat());
    let rows = found["logits"].as_array().expect("rows");
    assert_eq!(rows.len(), PROMPT_TOKENS as usize, "{model}");
    let values = rows.iter().flat_map(|row| row.as_array().expect("logits"));
    hash(values.map(|value| (value.as_f64().expect("a number") as f32).to_bits()))
}

/// The tokens after the prompt, and the instruction set that computed them.
fn tokens(model: &str, more: &[&str]) -> (String, String) {
    let (tokens, most) = (format!("--prompt-tokens={}", prompt()), format!("-n={NEW_TOKENS}"));
    let found = djinn(&[&["run", model, &tokens, &most, "--ignore-eos"], more].concat());
    let ids = found["tokens"].as_array().expect("tokens");
    assert_eq!(ids.len(), NEW_TOKENS, "{model}");
    let device = found["stats"]["device"].as_str().expect("a device");
    let isa = device.rsplit([' ', ',']).next().expect("a word").trim_end_matches(')');
    (hash(ids.iter().map(|id| id.as_u64().expect("an id") as u32)), isa.to_owned())
}

const SAMPLED: [&str; 5] =
    ["--temperature=0.9", "--top-p=0.95", "--top-k=50", "--repetition-penalty=1.1", "--seed=7"];

fn measure(model: &str) -> (Value, String) {
    let (greedy, isa) = tokens(model, &["--greedy"]);
    let (sampled, _) = tokens(model, &SAMPLED);
    let all = logits(model, &[]);
    for placement in PLACEMENTS {
        assert_eq!(logits(model, placement), all, "{model}: the logits with {placement:?}");
        let found = tokens(model, &[placement, &["--greedy"]].concat()).0;
        assert_eq!(found, greedy, "{model}: the tokens with {placement:?}");
    }
    let parked = [PLACEMENTS[2], &SAMPLED].concat();
    assert_eq!(tokens(model, &parked).0, sampled, "{model}: the sampled tokens with {parked:?}");
    let f16 = logits(model, &["--kv-dtype=f16"]);
    assert_ne!(f16, all, "{model}: keys and values of 16 bits leave a trace");
    (json!({ "greedy": greedy, "sampled": sampled, "logits": all, "logits_f16_kv": f16 }), isa)
}

fn models() -> Vec<(String, String)> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../djinn-models/tests");
    let mut found: Vec<(String, String)> =
        FAMILIES.iter().map(|name| ((*name).to_owned(), format!("synthetic:{name}"))).collect();
    for (folder, files) in [("checkpoints", false), ("fixtures/gguf/families", true)] {
        for entry in std::fs::read_dir(tests.join(folder)).expect("the checkpoints are in the repository") {
            let path = entry.expect("readable").path();
            if path.is_file() == files {
                let name = format!("{folder}/{}", path.file_name().expect("a name").to_string_lossy());
                found.push((name, path.to_str().expect("UTF-8").to_owned()));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn logits_and_tokens_are_those_that_were_recorded() {
    let models = models();
    let (first, second) = models.split_at(models.len() / 2);
    let measure = |part: &[(String, String)]| -> BTreeMap<String, (Value, String)> {
        part.iter().map(|(name, model)| (name.clone(), measure(model))).collect()
    };
    let found = std::thread::scope(|scope| {
        let handle = scope.spawn(|| measure(first));
        let mut found = measure(second);
        found.extend(handle.join().expect("it measures"));
        found
    });
    let isa = found.values().next().expect("models").1.clone();
    let found: BTreeMap<&String, &Value> = found.iter().map(|(name, (hashes, _))| (name, hashes)).collect();
    let recorded: Value = serde_json::from_str(include_str!("unchanged.json")).expect("JSON");
    // Another instruction set adds in another order, which changes the last bits of logits.
    let keys: &[&str] =
        if recorded["isa"] == *isa { &["logits", "logits_f16_kv", "sampled", "greedy"] } else { &["greedy"] };
    let same =
        |name: &str, hashes: &Value| keys.iter().all(|key| recorded["models"][name][key] == hashes[key]);
    let changed: Vec<&&String> =
        found.iter().filter(|(name, hashes)| !same(name, hashes)).map(|(n, _)| n).collect();
    let listed = recorded["models"].as_object().map_or(0, serde_json::Map::len);
    if !changed.is_empty() || listed != found.len() {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unchanged.json");
        let all = serde_json::to_string_pretty(&json!({ "isa": isa, "models": found })).expect("JSON");
        std::fs::write(&path, all).expect("the build's folder is writable");
        panic!("{changed:?} changed of {listed} models; what was found is in {}", path.display());
    }
}
