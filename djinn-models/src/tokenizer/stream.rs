//! Decoding one token at a time.

use super::pieces::{FirstSpace, Pieces, Scheme, byte_token};
use std::sync::Arc;

/// Turns tokens into text as they come, never half a character: the pieces and [`finish`](Self::finish)
/// joined are exactly the decoding of the whole list.
///
/// A run of SentencePiece's byte tokens is withheld to its end: the `tokenizers` package, which this follows,
/// makes characters of a run that is UTF-8 as a whole, and of any other one U+FFFD for each byte.
#[derive(Clone)]
pub struct TextStream {
    pieces: Arc<Pieces>,
    skip_special: bool,
    /// Nothing of the text came yet.
    at_start: bool,
    /// Bytes that are no text yet: of a character that is not complete, or of a run of byte tokens.
    partial: Vec<u8>,
}

impl std::fmt::Debug for TextStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextStream").field("partial", &self.partial).finish_non_exhaustive()
    }
}

impl TextStream {
    pub(super) fn new(pieces: Arc<Pieces>, skip_special: bool) -> Self {
        Self { pieces, skip_special, at_start: true, partial: Vec::new() }
    }

    /// The same stream as the continuation of a text: a SentencePiece vocabulary's first space belongs to
    /// the text and is kept.
    #[must_use]
    pub fn continuing(mut self) -> Self {
        self.at_start = false;
        self
    }

    /// Takes a token; gives the text that is certain now, if any.
    pub fn push(&mut self, token: u32) -> Option<String> {
        log::trace!(target: "djinn::tokenizer", "decode {token}");
        let mut text = String::new();
        self.push_to(token, &mut text);
        (!text.is_empty()).then_some(text)
    }

    /// [`push`](Self::push), with the text put behind `out`.
    pub(super) fn push_to(&mut self, token: u32, out: &mut String) {
        if self.skip_special && self.pieces.is_special(token) {
            return;
        }
        let pieces = Arc::clone(&self.pieces);
        let piece = pieces.get(token);
        if piece.is_empty() {
            return;
        }
        match pieces.scheme() {
            Scheme::Spaces { bytes, first } => self.push_spelling(piece, bytes, first, out),
            Scheme::ByteLevel { .. } => {
                self.partial.extend_from_slice(piece);
                self.take_characters(out);
            }
            Scheme::Words => {
                let skip = usize::from(std::mem::take(&mut self.at_start));
                self.partial.extend_from_slice(&piece[skip..]);
                self.take_characters(out);
            }
        }
    }

    /// What is left at the end: U+FFFD for what was never completed, else nothing.
    pub fn finish(&mut self) -> String {
        let mut rest = String::new();
        match self.pieces.scheme() {
            Scheme::Spaces { first, .. } => self.take_run(first, &mut rest),
            Scheme::ByteLevel { .. } | Scheme::Words => {
                rest.push_str(&String::from_utf8_lossy(&self.partial));
                self.partial.clear();
            }
        }
        rest
    }

    fn push_spelling(&mut self, piece: &[u8], bytes: bool, first: FirstSpace, out: &mut String) {
        // Spellings are whole strings: nothing is lost here.
        let piece = String::from_utf8_lossy(piece);
        if let Some(byte) = byte_token(&piece).filter(|_| bytes) {
            self.partial.push(byte);
            return;
        }
        self.take_run(first, out);
        if self.at_start && first == FirstSpace::OfFirstToken {
            out.push_str(&piece.replace('▁', ""));
            self.at_start = false;
        } else {
            self.put(&piece.replace('▁', " "), first, out);
        }
    }

    /// The run of byte tokens that ends here.
    fn take_run(&mut self, first: FirstSpace, out: &mut String) {
        if self.partial.is_empty() {
            return;
        }
        let run = std::mem::take(&mut self.partial);
        let text = String::from_utf8(run).unwrap_or_else(|wrong| "\u{fffd}".repeat(wrong.as_bytes().len()));
        self.put(&text, first, out);
    }

    fn put(&mut self, text: &str, first: FirstSpace, out: &mut String) {
        let drop = std::mem::take(&mut self.at_start) && first == FirstSpace::Dropped;
        out.push_str(if drop { text.strip_prefix(' ').unwrap_or(text) } else { text });
    }

    /// The complete characters of `partial`.
    fn take_characters(&mut self, out: &mut String) {
        let mut taken = 0;
        loop {
            match std::str::from_utf8(&self.partial[taken..]) {
                Ok(valid) => {
                    out.push_str(valid);
                    taken = self.partial.len();
                    break;
                }
                Err(error) => {
                    let valid = taken + error.valid_up_to();
                    out.push_str(&String::from_utf8_lossy(&self.partial[taken..valid]));
                    taken = valid;
                    let Some(wrong) = error.error_len() else { break };
                    out.push(char::REPLACEMENT_CHARACTER);
                    taken += wrong;
                }
            }
        }
        self.partial.drain(..taken);
    }
}
