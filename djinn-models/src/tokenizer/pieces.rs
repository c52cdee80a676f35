//! What each token stands for in bytes: the decoding half of a tokenizer.

use crate::{Error, Result};

/// Most ids that a vocabulary may span; the largest in use has a quarter of a million.
pub(super) const MAX_VOCAB: usize = 1 << 24;

/// How a vocabulary spells bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    /// GPT-2's alphabet of 256 visible characters, one for each byte.
    ByteLevel,
    /// SentencePiece: `▁` is a space; with `bytes`, `<0xNN>` is a byte; with `strip`, a text's first space
    /// was added by the encoder.
    Spaces { bytes: bool, strip: bool },
    /// No decoder: words with one space between them.
    Words,
}

/// Every token's bytes, one after the other.
pub(super) struct Pieces {
    bytes: Vec<u8>,
    /// Where each token's bytes end; they begin where the one before ends.
    ends: Vec<usize>,
    special: Vec<bool>,
    strip: bool,
}

impl Pieces {
    pub(super) fn new(tokenizer: &tokenizers::Tokenizer, scheme: Scheme) -> Result<Self> {
        let vocab = tokenizer.get_vocab(true);
        let len = vocab.values().max().map_or(0, |id| *id as usize + 1);
        if len == 0 {
            return Err(Error::Tokenizer("the vocabulary is empty".into()));
        }
        if len > MAX_VOCAB {
            return Err(Error::Tokenizer(format!("token id {} is out of range", len - 1)));
        }
        let mut spelling: Vec<Option<&str>> = vec![None; len];
        for (token, id) in &vocab {
            spelling[*id as usize] = Some(token);
        }
        let added = tokenizer.get_added_tokens_decoder();
        let strip = matches!(scheme, Scheme::Spaces { strip: true, .. } | Scheme::Words);
        let mut pieces =
            Self { bytes: Vec::new(), ends: Vec::with_capacity(len), special: vec![false; len], strip };
        for (id, token) in spelling.into_iter().enumerate() {
            let added = added.get(&(id as u32));
            if let Some(token) = added.map(|t| t.content.as_str()).or(token) {
                push_bytes(&mut pieces.bytes, token, scheme, added.is_some());
            }
            pieces.special[id] = added.is_some_and(|t| t.special);
            pieces.ends.push(pieces.bytes.len());
        }
        Ok(pieces)
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }

    /// Whether a text's first space is the encoder's.
    pub(super) fn strips_first_space(&self) -> bool {
        self.strip
    }

    /// A token's bytes; none for an id outside the vocabulary.
    pub(super) fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start..*end]
    }

    pub(super) fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut text = Vec::new();
        for id in ids.iter().filter(|id| !(skip_special && self.is_special(**id))) {
            text.extend_from_slice(self.get(*id));
        }
        let start = usize::from(self.strip && text.first() == Some(&b' '));
        String::from_utf8_lossy(&text[start..]).into_owned()
    }
}

fn push_bytes(out: &mut Vec<u8>, token: &str, scheme: Scheme, added: bool) {
    match scheme {
        Scheme::ByteLevel if added => out.extend_from_slice(token.as_bytes()),
        Scheme::ByteLevel => {
            let start = out.len();
            for c in token.chars() {
                let Some(byte) = alphabet_byte(c) else {
                    // Not in the alphabet: a token that was added under its own spelling.
                    out.truncate(start);
                    out.extend_from_slice(token.as_bytes());
                    return;
                };
                out.push(byte);
            }
        }
        Scheme::Spaces { bytes, .. } => match byte_token(token) {
            Some(byte) if bytes => out.push(byte),
            _ => out.extend_from_slice(token.replace('▁', " ").as_bytes()),
        },
        Scheme::Words => {
            out.push(b' ');
            out.extend_from_slice(token.as_bytes());
        }
    }
}

/// The byte of a SentencePiece byte token `<0xNN>`.
pub(super) fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let hex = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    hex.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// Whether GPT-2's alphabet writes this byte as the character of the same number.
const fn is_visible(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The bytes that the alphabet moves to U+0100 and up, in order.
const MOVED: [u8; 68] = {
    let mut moved = [0; 68];
    let (mut byte, mut n) = (0, 0);
    while byte < 256 {
        if !is_visible(byte as u8) {
            moved[n] = byte as u8;
            n += 1;
        }
        byte += 1;
    }
    moved
};

/// The byte that a character of GPT-2's alphabet stands for.
fn alphabet_byte(c: char) -> Option<u8> {
    match u8::try_from(u32::from(c)) {
        Ok(byte) => is_visible(byte).then_some(byte),
        Err(_) => MOVED.get((u32::from(c) - 256) as usize).copied(),
    }
}

/// The character of GPT-2's alphabet for a byte.
#[cfg(test)]
pub(super) fn alphabet_char(byte: u8) -> char {
    if is_visible(byte) {
        return char::from(byte);
    }
    let place = MOVED.iter().position(|b| *b == byte).expect("a byte is visible or moved");
    char::from_u32(256 + place as u32).expect("below the surrogates")
}
