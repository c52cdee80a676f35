//! Text in, text out: what the examples do, on a tiny model whose 128 tokens are the bytes of ASCII.

#[allow(dead_code, reason = "an example has a main function")]
#[path = "../examples/chat.rs"]
mod chat;
#[allow(dead_code, reason = "an example has a main function")]
#[path = "../examples/generate.rs"]
mod generate;

use djinn_engine::Finish;
use djinn_host::{Djinn, Error, Generation, Setup, Speech};
use djinn_models::{ChatTemplate, Message};
use std::path::Path;
use tempfile::TempDir;

/// A folder with a checkpoint that transformers wrote, a tokenizer and a chat template.
fn folder() -> TempDir {
    let (folder, here) = (TempDir::new().unwrap(), Path::new(env!("CARGO_MANIFEST_DIR")));
    let checkpoint = here.join("../djinn-models/tests/checkpoints/tied-f32");
    for from in [checkpoint, here.join("tests/fixtures/ascii")] {
        for file in std::fs::read_dir(from).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
        }
    }
    folder
}

fn open(folder: &TempDir) -> Djinn {
    Djinn::open(folder.path().to_str().unwrap(), Setup { threads: Some(1), ..Setup::default() }).unwrap()
}

fn short() -> Generation {
    Generation { max_tokens: 30, greedy: true, ignore_eos: true, ..Generation::default() }
}

#[test]
fn the_example_streams_the_text_that_it_returns() {
    let (folder, mut streamed) = (folder(), String::new());
    let place = folder.path().to_str().unwrap();
    let text = generate::generate(place, "Hi", |piece| streamed += piece).unwrap();
    assert_eq!(streamed, text);
    let generation = Generation { seed: Some(1), ..Generation::default() };
    let whole = open(&folder).generate("Hi", &generation, |_| {}).unwrap();
    assert_eq!(whole.text, Some(text), "it depends neither on the budget nor on the run");
}

#[test]
fn the_example_chats() {
    let (folder, mut output) = (folder(), Vec::new());
    chat::chat(folder.path().to_str().unwrap(), "Hi\nAnd you?\n".as_bytes(), &mut output).unwrap();
    let lines = output.iter().filter(|&&byte| byte == b'\n').count();
    assert!(lines >= 2, "{output:?}");
}

#[test]
fn what_was_computed_before_changes_no_answer() {
    let folder = folder();
    let mut djinn = open(&folder);
    let mut messages = vec![Message::new("user", "Hi")];
    let first = djinn.answer(&messages, &short(), |_| {}).unwrap();
    messages.push(Message::new("assistant", first.text.unwrap()));
    messages.push(Message::new("user", "And you?"));
    let second = djinn.answer(&messages, &short(), |_| {}).unwrap();
    assert!(second.stats.reused_tokens > 0);
    assert_eq!(open(&folder).answer(&messages, &short(), |_| {}).unwrap().tokens, second.tokens);
}

#[test]
fn a_stop_string_ends_the_text_and_is_no_part_of_it() {
    let folder = folder();
    let mut djinn = open(&folder);
    let whole = djinn.generate("Hi", &short(), |_| {}).unwrap().text.unwrap();
    let (at, stop) = (whole.find(&whole[10..13]).unwrap(), whole[10..13].to_owned());
    let mut streamed = String::new();
    let generation = Generation { stop: vec![stop], ..short() };
    let answer = djinn.generate("Hi", &generation, |piece| streamed += piece).unwrap();
    assert_eq!((answer.text.as_deref(), answer.finish), (Some(&whole[..at]), Finish::Stop));
    assert_eq!(streamed, whole[..at]);
}

#[test]
fn templates_and_system_messages_are_as_asked() {
    let folder = folder();
    let model = open(&folder).model;
    let prompt = |generation: &Generation| {
        let speech = Speech::new(&model, generation).unwrap();
        let tokens = speech.tokens("Hi").unwrap();
        tokens.into_iter().map(|token| char::from(token as u8)).collect::<String>()
    };
    let system = |text: &str| Generation { system: Some(text.into()), ..short() };
    assert_eq!(prompt(&short()), "[system:You are a helpful assistant.][user:Hi]>");
    assert_eq!(prompt(&system("Be.")), "[system:Be.][user:Hi]>");
    assert_eq!(prompt(&system("")), "[user:Hi]>");
    assert_eq!(prompt(&Generation { raw: true, ..short() }), "Hi");
}

#[test]
fn what_cannot_be_answered_is_refused() {
    let folder = folder();
    let mut djinn = open(&folder);
    // 600 bytes are 600 tokens here; more than 512 are refused before they are counted.
    let message = djinn.generate(&"x".repeat(600), &short(), |_| {}).unwrap_err().to_string();
    assert!(
        message.ends_with("bytes of text do not fit in a context of 512 tokens; shorten it"),
        "{message}"
    );
    assert!(djinn.generate("Hi", &Generation { stop: vec![String::new()], ..short() }, |_| {}).is_err());
    let mut textless =
        Djinn::open("synthetic:tiny?vocab=255", Setup { threads: Some(1), ..Setup::default() }).unwrap();
    assert!(matches!(textless.generate("Hi", &short(), |_| {}), Err(Error::NoTokenizer { .. })));
    let system = Generation { system: Some("Be.".into()), ..short() };
    assert!(matches!(textless.generate("Hi", &system, |_| {}), Err(Error::NoTemplate { .. })));
    assert!(djinn.generate("Hi", &short(), |_| {}).is_ok(), "a refusal leaves the model as it was");
    let source = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}";
    djinn.model.chat = Some(ChatTemplate::new(source, None, None).unwrap());
    assert!(matches!(djinn.generate("Hi", &system, |_| {}), Err(Error::SystemIgnored { .. })));
    assert!(
        djinn.generate("Hi", &short(), |_| {}).is_ok(),
        "the default goes where templates have a place for it"
    );
}
