//! Decoding one token at a time.

use super::pieces::Pieces;
use std::sync::Arc;

/// Turns tokens into text as they come, never half a character: the pieces and [`finish`](Self::finish)
/// joined are exactly the decoding of the whole list.
#[derive(Clone)]
pub struct TextStream {
    pieces: Arc<Pieces>,
    skip_special: bool,
    at_start: bool,
    /// Bytes of a character that is not complete yet: three at most.
    partial: Vec<u8>,
}

impl std::fmt::Debug for TextStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextStream").field("partial", &self.partial).finish_non_exhaustive()
    }
}

impl TextStream {
    pub(super) fn new(pieces: Arc<Pieces>, skip_special: bool) -> Self {
        let at_start = pieces.strips_first_space();
        Self { pieces, skip_special, at_start, partial: Vec::new() }
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
        if self.skip_special && self.pieces.is_special(token) {
            return None;
        }
        let mut piece = self.pieces.get(token);
        if self.at_start && !piece.is_empty() {
            self.at_start = false;
            piece = piece.strip_prefix(b" ").unwrap_or(piece);
        }
        self.partial.extend_from_slice(piece);
        let mut text = String::new();
        let mut taken = 0;
        loop {
            match std::str::from_utf8(&self.partial[taken..]) {
                Ok(valid) => {
                    text.push_str(valid);
                    taken = self.partial.len();
                    break;
                }
                Err(error) => {
                    let valid = taken + error.valid_up_to();
                    text.push_str(&String::from_utf8_lossy(&self.partial[taken..valid]));
                    taken = valid;
                    let Some(wrong) = error.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    taken += wrong;
                }
            }
        }
        self.partial.drain(..taken);
        (!text.is_empty()).then_some(text)
    }

    /// What is left at the end: U+FFFD for a character that was never completed, else nothing.
    pub fn finish(&mut self) -> String {
        let rest = String::from_utf8_lossy(&self.partial).into_owned();
        self.partial.clear();
        rest
    }
}
