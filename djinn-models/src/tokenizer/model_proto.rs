//! SentencePiece's own file, `tokenizer.model`: a protocol buffer of pieces and of training settings.
//!
//! Field numbers are those of `sentencepiece_model.proto`. Other fields are skipped.

use super::ggml::Vocabulary;
use super::pieces::MAX_VOCAB;
use crate::{Error, Result};

/// `TrainerSpec.model_type` of byte-pair encoding; 1 is Unigram, which is also the default.
const BPE: u64 = 2;

/// The contents of `tokenizer.model`.
pub(super) struct Model {
    /// In the order of ids. GGUF has the same numbers of kinds.
    pub(super) vocabulary: Vocabulary,
    /// Whether text without a piece is spelled in byte tokens.
    pub(super) byte_fallback: bool,
    /// Whether a text is encoded as if it began with a space.
    pub(super) prefix_space: bool,
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
}

impl Model {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self> {
        let (mut tokens, mut kinds, mut scores) = (Vec::new(), Vec::new(), Vec::new());
        let mut trainer = Trainer { kind: 1, byte_fallback: false, bos: 1, eos: 2 };
        let mut prefix_space = true;
        for field in Fields(bytes) {
            match field? {
                (1, Wire::Bytes(piece)) => {
                    let (token, score, kind) = read_piece(piece)?;
                    if tokens.len() == MAX_VOCAB {
                        return Err(Error::Tokenizer(format!("more than {MAX_VOCAB} pieces")));
                    }
                    tokens.push(token);
                    scores.push(score);
                    kinds.push(kind);
                }
                (2, Wire::Bytes(spec)) => trainer.read(spec)?,
                (3, Wire::Bytes(spec)) => prefix_space = read_normalizer(spec)?,
                _ => {}
            }
        }
        if tokens.is_empty() {
            return Err(malformed());
        }
        if trainer.kind != BPE {
            let names = ["0", "Unigram", "BPE", "Word", "Char"];
            let name = names.get(trainer.kind as usize).copied().unwrap_or("unknown");
            return Err(Error::Unsupported {
                what: format!("the SentencePiece model type {name}"),
                remedy: "models of the type BPE are read".into(),
            });
        }
        let id = |id: i64| u32::try_from(id).ok().filter(|id| (*id as usize) < tokens.len());
        let (bos, eos) = (id(trainer.bos), id(trainer.eos));
        let vocabulary = Vocabulary::new(tokens, Some(&kinds), Some(scores))?;
        Ok(Self { vocabulary, byte_fallback: trainer.byte_fallback, prefix_space, bos, eos })
    }
}

struct Trainer {
    kind: u64,
    byte_fallback: bool,
    /// Negative for none.
    bos: i64,
    eos: i64,
}

impl Trainer {
    fn read(&mut self, spec: &[u8]) -> Result<()> {
        for field in Fields(spec) {
            match field? {
                (3, Wire::Number(kind)) => self.kind = kind,
                (35, Wire::Number(flag)) => self.byte_fallback = flag != 0,
                // An int32: negative numbers fill all 64 bits.
                (41, Wire::Number(id)) => self.bos = id.cast_signed(),
                (42, Wire::Number(id)) => self.eos = id.cast_signed(),
                _ => {}
            }
        }
        Ok(())
    }
}

/// A piece's spelling, score and kind.
fn read_piece(piece: &[u8]) -> Result<(String, f32, i64)> {
    let (mut token, mut score, mut kind) = (String::new(), 0.0, 1);
    for field in Fields(piece) {
        match field? {
            (1, Wire::Bytes(text)) => {
                token = String::from_utf8(text.to_vec()).map_err(|_| malformed())?;
            }
            (2, Wire::Word(bits)) => score = f32::from_bits(bits),
            (3, Wire::Number(number)) => kind = number.cast_signed(),
            _ => {}
        }
    }
    Ok((token, score, kind))
}

/// Whether a space is put before the text. Other changes to the text are refused: Llama's, Mistral's and Mixtral's
/// files have none.
fn read_normalizer(spec: &[u8]) -> Result<bool> {
    // Names, and the format's defaults.
    let (mut charsmap, mut prefix, mut squeezes, mut escapes) = (false, true, true, true);
    for field in Fields(spec) {
        match field? {
            (2, Wire::Bytes(map)) => charsmap = !map.is_empty(),
            (3, Wire::Number(flag)) => prefix = flag != 0,
            (4, Wire::Number(flag)) => squeezes = flag != 0,
            (5, Wire::Number(flag)) => escapes = flag != 0,
            _ => {}
        }
    }
    let refused = [
        (charsmap, "a normalization map"),
        (squeezes, "remove_extra_whitespaces"),
        (!escapes, "escape_whitespaces switched off"),
    ];
    match refused.into_iter().find(|(on, _)| *on) {
        Some((_, what)) => Err(Error::Unsupported {
            what: format!("a SentencePiece model with {what}"),
            remedy: "save the tokenizer as tokenizer.json".into(),
        }),
        None => Ok(prefix),
    }
}

fn malformed() -> Error {
    Error::Tokenizer("this is no SentencePiece model".into())
}

/// A field's value.
enum Wire<'a> {
    Number(u64),
    /// Four bytes.
    Word(u32),
    Bytes(&'a [u8]),
    /// Eight bytes; no needed field has them.
    Long,
}

/// The fields of a message, by number.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for at in 0..10 {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f).checked_shl(7 * at)?;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, len: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(len).ok()?)?;
        self.0 = rest;
        Some(taken)
    }

    fn field(&mut self) -> Option<(u64, Wire<'a>)> {
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Wire::Number(self.varint()?),
            1 => self.take(8).map(|_| Wire::Long)?,
            2 => {
                let len = self.varint()?;
                Wire::Bytes(self.take(len)?)
            }
            5 => Wire::Word(u32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            _ => return None,
        };
        Some((key >> 3, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Wire<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field().ok_or_else(malformed);
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}
