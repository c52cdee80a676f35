//! The stand-in tokenizer of models with random weights: a vocabulary of any size in which a character is a token.
//!
//! Tokens below 256 are the bytes of that number; the last three, which UTF-8 never uses, are special tokens. The
//! others are one character each, from U+20000 on. So any text is exact, and plain text has a token for each byte. A
//! model's output becomes the same tokens when it is sent back.

use super::added::Added;
use super::encoder::{Encoder, WordModel};
use super::normal::Normalizer;
use super::pieces::{Scheme, alphabet_byte, alphabet_char};
use super::post::Affixes;
use super::words::Splitter;
use super::{Marks, Tokenizer};
use crate::Result;

/// Tokens that are bytes.
const BYTES: u32 = 256;

/// The character of token 256.
const FIRST_CHARACTER: u32 = 0x20000;

/// The special tokens: end of text, begin of turn, end of turn.
const SPECIAL: [(u32, &str); 3] = [(253, "<|endoftext|>"), (254, "<|im_start|>"), (255, "<|im_end|>")];

/// The possible sizes of such a vocabulary.
const SIZES: std::ops::RangeInclusive<u64> = 256..=(char::MAX as u32 - FIRST_CHARACTER + 1 + BYTES) as u64;

/// The stand-in's encoder.
#[derive(Clone, Copy, Debug)]
pub(super) struct StandIn {
    vocab: u32,
}

impl StandIn {
    pub(super) fn vocab(self) -> u32 {
        self.vocab
    }

    /// Appends a text's ids.
    pub(super) fn encode(self, text: &str, ids: &mut Vec<u32>) {
        for c in text.chars() {
            match self.character(c) {
                Some(id) => ids.push(id),
                None => ids.extend(c.encode_utf8(&mut [0; 4]).bytes().map(u32::from)),
            }
        }
    }

    /// The token of a character, if it has one.
    fn character(self, c: char) -> Option<u32> {
        let id = u32::from(c).checked_sub(FIRST_CHARACTER)? + BYTES;
        (id < self.vocab).then_some(id)
    }

    pub(super) fn token_to_id(self, token: &str) -> Option<u32> {
        if let Some((id, _)) = SPECIAL.iter().find(|(_, name)| *name == token) {
            return Some(*id);
        }
        let mut chars = token.chars();
        let c = chars.next().filter(|_| chars.next().is_none())?;
        let byte = || alphabet_byte(c).map(u32::from).filter(|byte| *byte < SPECIAL[0].0);
        self.character(c).or_else(byte)
    }

    pub(super) fn id_to_token(self, id: u32) -> Option<String> {
        match SPECIAL.iter().find(|(special, _)| *special == id) {
            _ if id >= self.vocab => None,
            Some((_, name)) => Some((*name).to_owned()),
            None => match u8::try_from(id) {
                Ok(byte) => Some(alphabet_char(byte).to_string()),
                Err(_) => char::from_u32(id - BYTES + FIRST_CHARACTER).map(String::from),
            },
        }
    }
}

impl Tokenizer {
    /// A stand-in for a model of `vocab` tokens; `None` below 256, and above the number of Unicode's characters.
    pub(crate) fn stand_in(vocab: u64) -> Result<Option<Self>> {
        if !SIZES.contains(&vocab) {
            return Ok(None);
        }
        let model = WordModel::StandIn(StandIn { vocab: vocab as u32 });
        let special = |(id, name): (u32, &str)| Added {
            id,
            content: name.to_owned(),
            special: true,
            ..Added::default()
        };
        let added = SPECIAL.map(special).to_vec();
        let encoder = Encoder::new(model, Normalizer::default(), Splitter::default(), added)?;
        let [(end, _), _, (end_of_turn, _)] = SPECIAL;
        let marks = Marks { bos: None, eos: Some(end), eot: Some(end_of_turn) };
        Self::assemble(encoder, Scheme::ByteLevel { added: false }, Affixes::default(), marks).map(Some)
    }
}
