//! The corpus of the fuzz target `output`, and seeded mutations of it: whatever a model writes is read the same however
//! it is cut, and complete calls have an object for arguments.

use djinn_server::{OutputEvent, OutputParser, ReasoningMode, ToolFormat};
use std::path::Path;

const MUTATIONS_OF_EACH_SEED: u64 = 1_500;

struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % most
    }
}

fn parser(kind: u8) -> OutputParser {
    let format = [
        Some(ToolFormat::Hermes),
        Some(ToolFormat::Llama3Json),
        Some(ToolFormat::Mistral),
        Some(ToolFormat::Pythonic),
        Some(ToolFormat::JsonList),
        None,
    ][usize::from(kind) % 6];
    let reasoning =
        [ReasoningMode::Off, ReasoningMode::Tagged, ReasoningMode::Open][usize::from(kind) / 6 % 3];
    OutputParser::new(format, reasoning, ["f", "get_weather"].map(String::from), 7)
}

/// Events with pieces joined: each call's name, arguments and whether it ended; text; reasoning.
#[derive(Debug, Default, PartialEq)]
struct Read {
    calls: Vec<(String, String, bool)>,
    text: String,
    reasoning: String,
}

impl Read {
    fn take(&mut self, events: Vec<OutputEvent>) {
        for event in events {
            match event {
                OutputEvent::Text(text) => self.text += &text,
                OutputEvent::Reasoning(text) => self.reasoning += &text,
                OutputEvent::CallStart { index, name, .. } => {
                    assert_eq!(index as usize, self.calls.len());
                    self.calls.push((name, String::new(), false));
                }
                OutputEvent::CallArguments { index, piece } => self.calls[index as usize].1 += &piece,
                OutputEvent::CallEnd { index } => self.calls[index as usize].2 = true,
            }
        }
    }
}

fn read(kind: u8, text: &str, mut piece: impl FnMut() -> usize) -> Read {
    let mut parser = parser(kind);
    let mut read = Read::default();
    let mut from = 0;
    while from < text.len() {
        let mut to = (from + piece().max(1)).min(text.len());
        while !text.is_char_boundary(to) {
            to += 1;
        }
        read.take(parser.push(&text[from..to]));
        from = to;
    }
    read.take(parser.finish());
    read
}

/// Whether the text had a complete call.
fn check(kind: u8, text: &str, random: &mut Random) -> bool {
    let whole = read(kind, text, || text.len());
    assert_eq!(read(kind, text, || 1), whole, "{kind}: {text:?}");
    assert_eq!(read(kind, text, || random.below(9)), whole, "{kind}: {text:?}");
    for (name, arguments, _) in whole.calls.iter().filter(|(.., ended)| *ended) {
        // Half of a surrogate pair is JSON by its grammar, and no text.
        let value = serde_json::from_str::<serde_json::Value>(arguments);
        let object = value.map_or(arguments.contains("\\u"), |value| value.is_object());
        assert!(object && !name.is_empty(), "{kind}: {text:?}: {name}({arguments})");
    }
    whole.calls.iter().any(|(.., ended)| *ended)
}

fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    const SPLICES: [&str; 12] = [
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "<|python_tag|>",
        "\"",
        "\\",
        "{",
        "}",
        "[",
        "]",
        "</think>",
        "é",
    ];
    for _ in 0..1 + random.below(4) {
        let at = (1 + random.below(bytes.len())).min(bytes.len());
        match random.below(5) {
            0 => bytes.truncate(at),
            1 if at < bytes.len() => bytes[at] = b' ' + random.below(95) as u8,
            2 if at < bytes.len() => drop(bytes.remove(at)),
            3 => bytes.extend_from_within(at..),
            _ => drop(bytes.splice(at..at, SPLICES[random.below(SPLICES.len())].bytes())),
        }
    }
}

#[test]
fn whatever_a_model_writes_is_read_the_same_however_it_is_cut() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/output");
    let mut paths: Vec<_> = std::fs::read_dir(&corpus)
        .unwrap_or_else(|error| panic!("{}: {error}", corpus.display()))
        .map(|entry| entry.expect("readable").path())
        .collect();
    paths.sort();
    assert!(paths.len() >= 10, "{} seeds", paths.len());
    let mut called = 0;
    for path in paths {
        let seed = std::fs::read(&path).expect("readable");
        for number in 0..MUTATIONS_OF_EACH_SEED {
            let mut bytes = seed.clone();
            let mut random = Random(number);
            if number > 0 {
                mutate(&mut bytes, &mut random);
            }
            let text = String::from_utf8_lossy(&bytes[1..]).into_owned();
            let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                // The seed's own form, and another one.
                let other = random.below(18) as u8;
                u64::from(check(bytes[0], &text, &mut random)) + u64::from(check(other, &text, &mut random))
            }));
            called += found.unwrap_or_else(|_| panic!("{}, mutation {number}", path.display()));
        }
    }
    assert!(called > 2_000, "only {called} mutations had a call");
}
