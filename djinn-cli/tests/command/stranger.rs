//! A stranger's model folder with everything in it that once hung, aborted or lied: each command ends in one line,
//! and when one thing is mended the next one does.

use super::{Place, copy_checkpoint};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

const TOKENIZER: &str = r#"{"version":"1.0","added_tokens":[],"normalizer":{"type":"Sequence","normalizers":[
    {"type":"Sequence","normalizers":[{"type":"Precompiled","precompiled_charsmap":"/////w=="}]}]},
    "pre_tokenizer":{"type":"Split","pattern":{"Regex":"(a+)+$"},"behavior":"Isolated","invert":false},
    "post_processor":null,"decoder":null,
    "model":{"type":"BPE","vocab":{"a":0,"!":1},"merges":[]}}"#;

/// Commands that open the model.
const COMMANDS: [&[&str]; 3] = [
    &["plan", "model"],
    &["run", "model", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!", "-n=2"],
    &["logits", "model", "--tokens=1,2"],
];

/// All commands fail alike, in one line that has `part` in it.
fn all_refused(place: &Place, part: &str) {
    for command in COMMANDS {
        let line = place.refused(command);
        assert!(line.contains(part) && line.chars().count() <= 500, "{command:?}: {line}");
    }
}

fn replace(folder: &Path, name: &str, text: &str) {
    std::fs::remove_file(folder.join(name)).unwrap();
    std::fs::write(folder.join(name), text).unwrap();
}

/// What a stranger's files say is shown as they say it, whichever flags have the same names.
#[test]
fn words_of_a_strangers_files_are_no_flags() {
    let place = super::text::place();
    let folder = place.path().join("model");
    std::fs::write(
        folder.join("chat_template.jinja"),
        "{{ raise_exception('Use `system` and `device`, not `vram`') }}",
    )
    .unwrap();
    let message = place.refused(&["run", "./model", "Hi", "-q"]);
    assert!(message.contains("Use `system` and `device`, not `vram`"), "{message}");
    let header = r#"{"a":{"shape":[1],"data_offsets":[0,4]}}"#;
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 4]].concat();
    std::fs::write(folder.join("model.safetensors"), bytes).unwrap();
    let message = place.refused(&["plan", "./model"]);
    assert!(message.contains("missing field `dtype`"), "{message}");
}

#[test]
fn pickled_weights_are_named() {
    let place = Place::new();
    let folder = place.path().join("model");
    copy_checkpoint("tied-f32", &folder);
    std::fs::rename(folder.join("model.safetensors"), folder.join("pytorch_model.bin")).unwrap();
    for command in COMMANDS {
        let message = place.refused(command);
        assert!(
            message.contains("pickled (pytorch_model.bin)") && message.contains("safetensors"),
            "{message}"
        );
    }
}

#[test]
fn a_strangers_folder_ends_every_command_in_one_line() {
    let place = Place::new();
    let folder = place.path().join("model");
    copy_checkpoint("tied-f32", &folder);
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    for name in ["config.json", "generation_config.json", "chat_template.jinja"] {
        let _ = std::fs::remove_file(folder.join(name));
        assert!(Command::new("mkfifo").arg(folder.join(name)).status().unwrap().success());
    }
    symlink("/dev/zero", folder.join("tokenizer_config.json")).unwrap();
    std::fs::write(folder.join("tokenizer.json"), TOKENIZER).unwrap();
    place.write("pip.py", "raise SystemExit('a stranger runs')");
    place.write("djinn.toml", "trace = \"precious\"\n");
    place.write("precious", "precious");

    all_refused(&place, "djinn.toml");
    assert_eq!(std::fs::read_to_string(place.path().join("precious")).unwrap(), "precious");
    std::fs::remove_file(place.path().join("djinn.toml")).unwrap();
    // Each stage names what is in the way, until nothing is.
    all_refused(&place, "config.json");
    replace(&folder, "config.json", &config);
    all_refused(&place, "tokenizer_config.json");
    replace(&folder, "tokenizer_config.json", "{}");
    all_refused(&place, "Precompiled");
    replace(&folder, "tokenizer.json", &TOKENIZER.replace("Precompiled", "NFC"));
    all_refused(&place, "chat_template.jinja");
    replace(&folder, "chat_template.jinja", &format!("{{{{ {}1 }}}}", "not ".repeat(20_000)));
    all_refused(&place, "generation_config.json");
    replace(&folder, "generation_config.json", "{}");
    for (template, part) in [
        ("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}", "nests more than"),
        (
            "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
            "MiB",
        ),
        (
            "{% set s = 'a' * 5000000 %}{% for i in range(99999) %}{% if 'b' in s %}{% endif %}{% endfor %}",
            "takes too long",
        ),
        ("{{ raise_exception('\\x1b]0;owned\\x07') }}", "\\u{1b}]0;owned"),
        // The pattern's own time is bounded, too.
        ("{{ messages[-1].content }}", "token"),
    ] {
        replace(&folder, "chat_template.jinja", template);
        let line = place.refused(COMMANDS[1]);
        assert!(line.contains(part), "{template}: {line}");
    }
}
