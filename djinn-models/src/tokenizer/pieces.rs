//! The bytes of each token: the decoding half of a tokenizer.

use super::encoder::Encoder;
use crate::{Error, Result};
use std::borrow::Cow;
use std::sync::LazyLock;

/// The most ids of a vocabulary; the largest in use has a quarter of a million.
pub(super) const MAX_VOCAB: usize = 1 << 21;

/// The most merges; the largest vocabularies have half a million.
pub(super) const MAX_MERGES: usize = 1 << 21;

/// The most bytes of all tokens; the largest vocabularies have some millions.
const MAX_SPELLINGS: usize = 32 << 20;

/// The most bytes of one token; the longest in use, runs of white space, have some hundreds. An answer may consist of
/// the longest one.
const MAX_TOKEN: usize = 4 << 10;

/// Refuses vocabularies larger than any model's, before tables are made.
pub(super) fn check_vocabulary<'a>(tokens: impl ExactSizeIterator<Item = &'a String>) -> Result<()> {
    let len = tokens.len();
    let bytes: usize = tokens.map(String::len).sum();
    if len == 0 || len > MAX_VOCAB || bytes > MAX_SPELLINGS {
        return Err(Error::Tokenizer(format!(
            "a vocabulary of {len} tokens and {bytes} bytes; 1 to {MAX_VOCAB} tokens, of {MAX_SPELLINGS} bytes, are supported"
        )));
    }
    Ok(())
}

pub(super) fn check_merges(count: usize) -> Result<()> {
    match count > MAX_MERGES {
        true => Err(Error::Tokenizer(format!("{count} merges; up to {MAX_MERGES} are supported"))),
        false => Ok(()),
    }
}

/// A vocabulary's spelling of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    /// GPT-2's alphabet of 256 visible characters, one for each byte. With `added`, added tokens are spelled in it as
    /// well, as in the `tokenizers` package; GGUF holds added tokens as text.
    ByteLevel { added: bool },
    /// SentencePiece: `▁` is a space; with `bytes`, `<0xNN>` is a byte.
    Spaces { bytes: bool, first: FirstSpace },
    /// No decoder: words with one space between them.
    Words,
}

/// What happens to the spaces at the beginning of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstSpace {
    Kept,
    /// One is the encoder's and is dropped.
    Dropped,
    /// Every `▁` of the first token is dropped, as by the decoder `Metaspace`.
    OfFirstToken,
}

/// Every token's bytes, one after the other.
pub(super) struct Pieces {
    bytes: Vec<u8>,
    /// The end of each token's bytes, which is the beginning of the next one's.
    ends: Vec<usize>,
    special: Vec<bool>,
    scheme: Scheme,
}

impl Pieces {
    pub(super) fn new(encoder: &Encoder, scheme: Scheme) -> Result<Self> {
        let len = encoder.ids_end();
        if len == 0 {
            return Err(Error::Tokenizer("the vocabulary is empty".into()));
        }
        if len > MAX_VOCAB {
            return Err(Error::Tokenizer(format!("token id {} is out of range", len - 1)));
        }
        let mut pieces =
            Self { bytes: Vec::new(), ends: Vec::with_capacity(len), special: vec![false; len], scheme };
        for id in 0..len {
            let added = encoder.added(id as u32);
            // The normalised spelling, for an added token that is searched in normalised text.
            if let Some(token) = encoder.token(id as u32) {
                let start = pieces.bytes.len();
                push_bytes(&mut pieces.bytes, &token, scheme, added.is_some());
                let bytes = pieces.bytes.len() - start;
                if bytes > MAX_TOKEN {
                    let detail = format!("token {id} has {bytes} bytes; {MAX_TOKEN} are the most");
                    return Err(Error::Tokenizer(detail));
                }
            }
            pieces.special[id] = added.is_some_and(|t| t.special);
            pieces.ends.push(pieces.bytes.len());
        }
        Ok(pieces)
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of the longest token.
    pub(super) fn longest(&self) -> usize {
        let starts = [0].into_iter().chain(self.ends.iter().copied());
        self.ends.iter().zip(starts).map(|(end, start)| end - start).max().unwrap_or(0)
    }

    pub(super) fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }

    pub(super) fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// A token's bytes; in SentencePiece's scheme its spelling, including `▁` and `<0xNN>`. Empty for an id outside
    /// the vocabulary.
    pub(super) fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start..*end]
    }
}

impl Pieces {
    /// The bytes that a token adds to a continued text.
    pub(super) fn text_bytes(&self, id: u32) -> Cow<'_, [u8]> {
        let piece = self.get(id);
        let Scheme::Spaces { bytes, .. } = self.scheme else { return piece.into() };
        // Spellings are valid UTF-8, so nothing is lost.
        let spelling = String::from_utf8_lossy(piece);
        match byte_token(&spelling).filter(|_| bytes) {
            Some(byte) => vec![byte].into(),
            None if spelling.contains('▁') => spelling.replace('▁', " ").into_bytes().into(),
            None => piece.into(),
        }
    }
}

fn push_bytes(out: &mut Vec<u8>, token: &str, scheme: Scheme, added: bool) {
    match scheme {
        Scheme::ByteLevel { added: false } if added => out.extend_from_slice(token.as_bytes()),
        Scheme::ByteLevel { .. } => {
            let start = out.len();
            for c in token.chars() {
                let Some(byte) = alphabet_byte(c) else {
                    // Not in the alphabet: an added token with its own spelling.
                    out.truncate(start);
                    out.extend_from_slice(token.as_bytes());
                    return;
                };
                out.push(byte);
            }
        }
        Scheme::Spaces { .. } => out.extend_from_slice(token.as_bytes()),
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
fn is_visible(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The byte of a character of GPT-2's alphabet. Invisible bytes are at U+0100 to U+0143, in order.
pub(super) fn alphabet_byte(c: char) -> Option<u8> {
    match u8::try_from(u32::from(c)) {
        Ok(byte) => is_visible(byte).then_some(byte),
        Err(_) if c > '\u{143}' => None,
        Err(_) => (0..=255).filter(|byte| !is_visible(*byte)).nth((u32::from(c) - 256) as usize),
    }
}

/// The character of GPT-2's alphabet for a byte.
pub(super) fn alphabet_char(byte: u8) -> char {
    ALPHABET[usize::from(byte)]
}

/// GPT-2's alphabet, in the order of the bytes.
static ALPHABET: LazyLock<[char; 256]> = LazyLock::new(|| {
    let mut moved = '\u{100}'..;
    std::array::from_fn(|byte| match byte as u8 {
        byte if is_visible(byte) => char::from(byte),
        _ => moved.next().expect("there are many more characters than bytes"),
    })
});
