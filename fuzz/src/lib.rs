//! What every target does with a file that opened. `cargo +nightly fuzz run gguf` from the repository's root.

#![forbid(unsafe_code)]

use djinn_models::gguf::Gguf;
use djinn_models::{ChatTemplate, Conversation, TensorFile, Tokenizer};
use djinn_server::{OutputEvent, OutputParser, ReasoningMode, ToolFormat};
use djinn_srg::DType;

/// Reads every tensor to its end in two types. Errors are fine; panics are what is looked for.
pub fn read_everything(file: &impl TensorFile) {
    for info in file.tensors() {
        let rows = info.shape.first().copied().unwrap_or(1);
        let elements: u64 = if rows == 0 { 0 } else { info.shape.iter().product() };
        for dtype in [DType::F32, DType::BF16] {
            let mut out = vec![0; (elements * dtype.bytes()) as usize];
            let _ = file.read(&info.name, 0..elements, dtype, &mut out);
        }
    }
}

/// Gives a packed file of one matrix its hashes anew, so that changes reach past them.
pub fn seal(bytes: &mut [u8]) {
    let number = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?) as usize);
    let (Some(head), Some(table)) = (number(24), number(40)) else { return };
    let matrix = head.saturating_add(64).checked_next_multiple_of(64);
    let Some(end) = bytes.len().checked_sub(32) else { return };
    let entry = |i: usize| table.saturating_add(i * 72)..table.saturating_add(i * 72 + 32);
    for (i, range) in [(0, 64..head.saturating_add(64)), (1, matrix.unwrap_or(usize::MAX)..table)] {
        let hash = bytes.get(range).map(blake3::hash);
        if let (Some(hash), Some(place)) = (hash, bytes.get_mut(entry(i))) {
            place.copy_from_slice(hash.as_bytes());
        }
    }
    let all = bytes.get(..64).zip(bytes.get(table..end));
    if let Some(hash) = all.map(|(prefix, table)| *blake3::Hasher::new().update(prefix).update(table).finalize().as_bytes()) {
        bytes[end..].copy_from_slice(&hash);
    }
}

/// Texts that find the ways of a tokenizer: words, runs, control tokens, several scripts.
const TEXTS: [&str; 4] = [
    "The 123 foxes don't\u{2019} jump\r\n\n   over <s>x</s><|im_end|> [INST] é e\u{301}\u{316} 狐\u{3000}\u{feff}👩\u{200d}👧 \u{fdfa}",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!",
    "                                                                                               x",
    "",
];

/// Loads a tokenizer from bytes, as the target `tokenizer` says, and encodes and decodes with it.
pub fn encode_everything(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    let loaded = match kind {
        b'g' => Gguf::from_bytes(bytes.to_vec()).and_then(|file| Tokenizer::from_gguf(&file)),
        kind => {
            let folder = tempfile::tempdir().expect("a folder can be made");
            let write = |name, bytes: &[u8]| {
                std::fs::write(folder.path().join(name), bytes).expect("it can be written")
            };
            match kind {
                b'j' => write("tokenizer.json", bytes),
                b'm' => write("tokenizer.model", bytes),
                _ => {
                    let cut = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
                    write("vocab.json", &bytes[..cut]);
                    write("merges.txt", bytes.get(cut + 1..).unwrap_or_default());
                }
            }
            Tokenizer::from_dir(folder.path())
        }
    };
    let Ok(Some(tokenizer)) = loaded else { return };
    for text in TEXTS {
        let content = text.len() / 3..text.len();
        for ids in
            [tokenizer.encode(text, true), tokenizer.encode_rendered(text, &[content])].into_iter().flatten()
        {
            tokenizer.decode(&ids, true).expect("decoding has no errors");
        }
    }
}

/// Renders a template of strangers.
pub fn render_template(source: &str) {
    let given = r#"{"messages": [{"role": "user", "content": "Hi <s>"}, {"role": "assistant", "content": null}],
        "tools": [{"name": "f", "parameters": {"a": [1, 2.5]}}]}"#;
    let given = Conversation::from_json(given).expect("it is a conversation");
    if let Ok(template) = ChatTemplate::new(source, Some("<s>".into()), None) {
        let _ = template.render_conversation(&given, true);
    }
}

/// Prints a conversation of strangers in several ways.
pub fn render_conversation(text: &str) {
    let source = "{{ messages }}{{ messages | tojson(indent=2) }}{{ tools }}{{ documents }}{{ x | string | upper }}\
        {% for m in messages %}{{ m.role }}{{ m.content }}{{ m.get('tool_calls') | tojson }}{% endfor %}";
    let template = ChatTemplate::new(source, None, None).expect("it is a template");
    if let Ok(given) = Conversation::from_json(text) {
        let _ = template.render_conversation(&given, true);
    }
}

/// Reads a model's text for tool calls, in the format that the first byte names: whole, and character by character.
/// Both must give the same.
pub fn read_output(bytes: &[u8]) {
    let Some((&kind, bytes)) = bytes.split_first() else { return };
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let format = [
        Some(ToolFormat::Hermes),
        Some(ToolFormat::Llama3Json),
        Some(ToolFormat::Mistral),
        Some(ToolFormat::Pythonic),
        Some(ToolFormat::JsonList),
        None,
    ][usize::from(kind) % 6];
    let reasoning = [ReasoningMode::Off, ReasoningMode::Tagged, ReasoningMode::Open][usize::from(kind) / 6 % 3];
    let parser = || OutputParser::new(format, reasoning, ["f".to_owned(), "get_weather".to_owned()], 7);
    let (mut whole, mut parts) = (parser(), parser());
    let all = [whole.push(text), whole.finish()].concat();
    let mut pieces: Vec<OutputEvent> =
        text.chars().flat_map(|c| parts.push(c.encode_utf8(&mut [0; 4]))).collect();
    pieces.extend(parts.finish());
    assert_eq!(spelled(&all), spelled(&pieces));
}

/// Events as one text, in which it does not matter how pieces were cut.
fn spelled(events: &[OutputEvent]) -> String {
    let (mut text, mut last) = (String::new(), String::new());
    for event in events {
        let (kind, piece) = match event {
            OutputEvent::Text(text) => ("text".to_owned(), text.as_str()),
            OutputEvent::Reasoning(text) => ("reasoning".to_owned(), text.as_str()),
            OutputEvent::CallStart { index, id, name } => (format!("call {index} {id}"), name.as_str()),
            OutputEvent::CallArguments { index, piece } => (format!("arguments {index}"), piece.as_str()),
            OutputEvent::CallEnd { index } => (format!("end {index}"), ""),
        };
        if kind != last {
            text += &format!("\n{kind}: ");
            last = kind;
        }
        text += piece;
    }
    text
}
