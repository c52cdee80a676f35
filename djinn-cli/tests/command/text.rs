//! `djinn run` on text: prompts, templates, stop strings. The model's 128 tokens are the bytes of ASCII.

use super::{Place, copy_checkpoint};
use serde_json::{Value, json};

const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}\
                        {% if add_generation_prompt %}>{% endif %}";

/// A place with `./model`, whose greedy text is the same in every run.
pub(super) fn place() -> Place {
    let place = Place::new();
    let folder = place.path().join("model");
    copy_checkpoint("tied-f32", &folder);
    std::fs::write(folder.join("tokenizer.json"), tokenizer().to_string()).unwrap();
    std::fs::write(folder.join("chat_template.jinja"), TEMPLATE).unwrap();
    place
}

/// Byte-level BPE without merges. Bytes that do not print have names above U+00FF, in order (GPT-2).
fn tokenizer() -> Value {
    let hidden = |byte: u32| if byte == 127 { 0x121 } else { 0x100 + byte };
    let name =
        |byte: u32| char::from_u32(if (33..127).contains(&byte) { byte } else { hidden(byte) }).unwrap();
    let vocab: serde_json::Map<String, Value> = (0..128).map(|b| (name(b).to_string(), b.into())).collect();
    let bytes =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                   "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                   "vocab": vocab, "merges": [] }
    })
}

pub(super) fn ascii(value: &Value) -> String {
    let bytes = value.as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u8);
    bytes.map(char::from).collect()
}

const GREEDY: [&str; 4] = ["--greedy", "--ignore-eos", "-n=30", "--json"];

#[test]
fn prompts_go_through_the_template_unless_raw() {
    let place = place();
    let prompt = |more: &[&str]| {
        let args = [&["run", "./model"], &GREEDY[..], more].concat();
        ascii(&place.json(&args)["prompt_tokens"])
    };
    assert_eq!(prompt(&["Hi"]), "[system:You are a helpful assistant.][user:Hi]>");
    assert_eq!(prompt(&["Hi", "--system", ""]), "[user:Hi]>");
    assert_eq!(prompt(&["Hi", "--system", "Be."]), "[system:Be.][user:Hi]>");
    assert_eq!(prompt(&["Hi", "--raw"]), "Hi");
    assert_eq!(prompt(&["--prompt-tokens=72,105"]), "Hi");
}

#[test]
fn standard_input_is_a_prompt() {
    let place = place();
    for args in [&["run", "./model", "-"][..], &["run", "./model"]] {
        let output: Value =
            serde_json::from_str(&place.ok_with(&[args, &GREEDY].concat(), "two\nlines\r\n")).unwrap();
        assert!(ascii(&output["prompt_tokens"]).ends_with("[user:two\nlines]>"));
    }
}

#[test]
fn a_prompt_and_standard_input_are_joined() {
    let place = place();
    let command = [&["run", "./model", "Translate:"], &GREEDY[..]].concat();
    let prompt = |input: &str| {
        let output: Value = serde_json::from_str(&place.ok_with(&command, input)).unwrap();
        ascii(&output["prompt_tokens"])
    };
    assert!(prompt("good\nmorning\n").ends_with("[user:Translate:\n\ngood\nmorning]>"));
    assert!(prompt("").ends_with("[user:Translate:]>"));
    // An input without an end is given up.
    let endless = std::fs::File::open("/dev/zero").unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_djinn"))
        .args(["run", "x", "y"])
        .env_clear()
        .stdin(endless)
        .output();
    let error = String::from_utf8(output.unwrap().stderr).unwrap();
    assert_eq!(error, "error: standard input is longer than 67108864 bytes; give less\n");
}

#[test]
fn text_is_that_of_the_tokens_and_streams_alike() {
    let place = place();
    let output = place.json(&[&["run", "./model", "Hi"], &GREEDY[..]].concat());
    assert_eq!(output["text"], ascii(&output["tokens"]));
    assert_eq!(output["tokens"].as_array().unwrap().len(), 30);
    let shown = place.ok(&[&["run", "./model", "Hi"], &GREEDY[..3]].concat());
    assert_eq!(shown, format!("{}\n", output["text"].as_str().unwrap()));
}

#[test]
fn stop_strings_cut_the_text() {
    let place = place();
    let command = [&["run", "./model", "Hi"], &GREEDY[..]].concat();
    let whole = place.json(&command)["text"].as_str().unwrap().to_owned();
    let stop = &whole[10..13];
    let at = whole.find(stop).unwrap();
    let output = place.json(&[&command[..], &["--stop", "never to be met", "--stop", stop]].concat());
    assert_eq!((output["text"].as_str().unwrap(), &output["finish"]), (&whole[..at], &"stop".into()));
    assert!(output["tokens"].as_array().unwrap().len() < 30);
    // What may begin a stop string is shown once it turns out not to.
    let almost = format!("{}\u{1}", &whole[whole.len() - 2..]);
    assert_eq!(place.json(&[&command[..], &["--stop", &almost]].concat())["text"], whole);
    let message = place.refused(&["run", "./model", "Hi", "--stop="]);
    assert!(message.contains("a stop string is empty"), "{message}");
}
