//! The corpus of the fuzz target `tokenizer`, and seeded mutations of it: every file is loaded or refused in one
//! line, and every text encoded or refused in one line, within the bounds of work.

use djinn_models::gguf::Gguf;
use djinn_models::{Error, Tokenizer};
use std::path::Path;

const MUTATIONS_OF_EACH_SEED: u64 = 300;

fn one_line(error: &Error) -> String {
    let message = error.to_string();
    assert!(!message.is_empty() && !message.contains(char::is_control), "{message:?}");
    assert!(message.chars().count() <= 500, "{message}");
    message
}

/// Loads a tokenizer as the fuzz target says.
fn load(bytes: &[u8], folder: &Path) -> Result<Option<Tokenizer>, Error> {
    let Some((kind, bytes)) = bytes.split_first() else { return Ok(None) };
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.join(name), bytes).unwrap();
    for name in ["tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt"] {
        let _ = std::fs::remove_file(folder.join(name));
    }
    match kind {
        b'g' => return Gguf::from_bytes(bytes.to_vec()).and_then(|file| Tokenizer::from_gguf(&file)),
        b'j' => write("tokenizer.json", bytes),
        b'm' => write("tokenizer.model", bytes),
        _ => {
            let cut = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            write("vocab.json", &bytes[..cut]);
            write("merges.txt", bytes.get(cut + 1..).unwrap_or_default());
        }
    }
    Tokenizer::from_dir(folder)
}

const TEXTS: [&str; 4] = [
    "The 123 foxes don't\u{2019} jump\r\n\n   over <s>x</s><|im_end|> [INST] é e\u{301}\u{316} 狐\u{3000}\u{feff}👩\u{200d}👧 \u{fdfa}",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!",
    "                                                                                               x",
    "",
];

/// Encodes and decodes; returns whether the tokenizer was loaded.
fn exercise(loaded: Result<Option<Tokenizer>, Error>) -> bool {
    let tokenizer = match loaded {
        Ok(Some(tokenizer)) => tokenizer,
        Ok(None) => return false,
        Err(error) => {
            one_line(&error);
            return false;
        }
    };
    for text in TEXTS {
        let content = text.len() / 3..text.len();
        let rendered = tokenizer.encode_rendered(text, std::slice::from_ref(&content));
        for ids in [tokenizer.encode(text, true), rendered] {
            match ids {
                Ok(ids) => drop(tokenizer.decode(&ids, true).unwrap()),
                Err(error) => drop(one_line(&error)),
            }
        }
    }
    true
}

/// xorshift64*, so that a failure is found again by its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % end.max(1) as u64) as usize
    }
}

/// A few changes: bytes, numbers, lost and doubled parts, and words of the formats.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    const WORDS: [&str; 14] = [
        "null",
        "0",
        "-1",
        "4294967295",
        "\"\"",
        "[]",
        "{}",
        "\"Regex\":\"(a+)+$\"",
        "\"type\":\"NFKC\"",
        "\"type\":\"Lowercase\"",
        "(?<!a)",
        "{1000}",
        "▁",
        "\"special\":true",
    ];
    for _ in 0..1 + random.below(3) {
        let at = 1 + random.below(bytes.len().saturating_sub(1));
        let at = at.min(bytes.len());
        let until = (at + 1 + random.below(24)).min(bytes.len());
        match random.below(5) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(7),
            1 if at < bytes.len() => bytes[at] = b"\"{}[]:,0a\\ "[random.below(11)],
            2 => drop(bytes.drain(at..until)),
            3 => {
                let copy = bytes[at..until].to_vec();
                bytes.splice(at..at, copy);
            }
            _ => drop(bytes.splice(at..at, WORDS[random.below(WORDS.len())].bytes())),
        }
    }
}

#[test]
fn tokenizers_never_panic() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/tokenizer");
    let mut seeds: Vec<_> = std::fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    seeds.sort();
    assert!(seeds.len() >= 20, "{} seeds", seeds.len());
    let folder = tempfile::tempdir().unwrap();
    let mut loaded = 0;
    for path in seeds {
        let bytes = std::fs::read(&path).unwrap();
        exercise(load(&bytes, folder.path()));
        for seed in 1..=MUTATIONS_OF_EACH_SEED {
            let mut mutant = bytes.clone();
            mutate(&mut mutant, &mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
            let run = || exercise(load(&mutant, folder.path()));
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            loaded += u64::from(result.unwrap_or_else(|_| panic!("{}, mutation {seed}", path.display())));
        }
    }
    assert!(loaded > 500, "only {loaded} mutants were loaded");
}
