//! The tokenizer in a GGUF file's metadata.

use super::added::Added;
use super::byte_level::{self, Pre};
use super::pieces::{FirstSpace, Scheme, check_vocabulary};
use super::post::Affixes;
use super::{Marks, Tokenizer, sentencepiece};
use crate::gguf::Gguf;
use crate::{Error, Result};
use std::collections::HashSet;

/// Builds the tokenizer that `tokenizer.ggml.model` names.
pub(super) fn load(file: &Gguf) -> Result<Option<Tokenizer>> {
    let model = match file.optional("tokenizer.ggml.model", Gguf::get_str)? {
        None | Some("no_vocab" | "none") => return Ok(None),
        Some(model) => model,
    };
    if !matches!(model, "gpt2" | "llama") {
        return Err(Error::Unsupported {
            what: format!("the tokenizer model {model:?} (tokenizer.ggml.model)"),
            remedy: "models with a \"gpt2\" or \"llama\" tokenizer are read".into(),
        });
    }
    let kinds = file.optional("tokenizer.ggml.token_type", Gguf::get_array_int)?;
    let scores = file.optional("tokenizer.ggml.scores", Gguf::get_array_f32)?;
    let tokens = file.get_array_str("tokenizer.ggml.tokens")?;
    check_vocabulary(tokens.iter())?;
    let vocabulary = Vocabulary::new(tokens.to_vec(), kinds.as_deref(), scores.map(<[f32]>::to_vec))?;
    let flag = |name: &str| file.optional(&format!("tokenizer.ggml.{name}"), Gguf::get_bool);
    let id = |name: &str| file.optional(&format!("tokenizer.ggml.{name}_token_id"), Gguf::get_u32);
    let mut marks = Marks { bos: id("bos")?, eos: id("eos")?, eot: id("eot")? };
    let (encoder, scheme, adds_bos) = if model == "gpt2" {
        let pre = Pre::from_name(file.optional("tokenizer.ggml.pre", Gguf::get_str)?)?;
        let merges = file.get_array_str("tokenizer.ggml.merges")?;
        (byte_level::build(&vocabulary, merges, pre)?, Scheme::ByteLevel { added: false }, pre.adds_bos())
    } else {
        // The default ids of SentencePiece's trainer.
        marks.bos = marks.bos.or_else(|| vocabulary.control(1));
        marks.eos = marks.eos.or_else(|| vocabulary.control(2));
        let prefix = flag("add_space_prefix")?.unwrap_or(true);
        let first = if prefix { FirstSpace::Dropped } else { FirstSpace::Kept };
        (sentencepiece::build(&vocabulary, prefix)?, Scheme::Spaces { bytes: true, first }, true)
    };
    let (adds_bos, adds_eos) =
        (flag("add_bos_token")?.unwrap_or(adds_bos), flag("add_eos_token")?.unwrap_or(false));
    let affixes = Affixes {
        prefix: Vec::from_iter(marks.bos.filter(|_| adds_bos)),
        suffix: Vec::from_iter(marks.eos.filter(|_| adds_eos)),
    };
    Tokenizer::assemble(encoder, scheme, affixes, marks).map(Some)
}

/// `tokenizer.ggml.token_type` of GGUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// A checked vocabulary of GGUF or SentencePiece: the lists have one length, and no token occurs twice.
pub(super) struct Vocabulary {
    pub(super) tokens: Vec<String>,
    pub(super) kinds: Vec<Kind>,
    /// Empty if the file has none.
    pub(super) scores: Vec<f32>,
}

impl Vocabulary {
    pub(super) fn new(
        mut tokens: Vec<String>,
        kinds: Option<&[i64]>,
        scores: Option<Vec<f32>>,
    ) -> Result<Self> {
        let len = tokens.len();
        check_vocabulary(tokens.iter())?;
        for (id, token) in tokens.iter_mut().enumerate().filter(|(_, token)| token.is_empty()) {
            *token = format!("[EMPTY_{id}]");
        }
        let mut seen = HashSet::with_capacity(len);
        if let Some(twice) = tokens.iter().find(|token| !seen.insert(token.as_str())) {
            return Err(Error::Tokenizer(format!("token {twice:?} comes twice in the vocabulary")));
        }
        let kinds = match kinds {
            None => vec![Kind::Normal; len],
            Some(kinds) => kinds.iter().map(|kind| self::kind(*kind)).collect::<Result<_>>()?,
        };
        let scores = scores.unwrap_or_default();
        if kinds.len() != len || !(scores.is_empty() || scores.len() == len) {
            let detail = format!("{len} tokens, {} types and {} scores", kinds.len(), scores.len());
            return Err(Error::Tokenizer(detail));
        }
        Ok(Self { tokens, kinds, scores })
    }

    /// The id, if it belongs to a control token.
    fn control(&self, id: u32) -> Option<u32> {
        (self.kinds.get(id as usize) == Some(&Kind::Control)).then_some(id)
    }

    /// Tokens that are searched in the text first: control tokens and the unknown token, which are special, and those
    /// that the model's author added.
    pub(super) fn added(&self) -> Vec<Added> {
        let all = self.tokens.iter().zip(&self.kinds).zip(0..);
        let added =
            all.filter(|((_, kind), _)| matches!(kind, Kind::Control | Kind::UserDefined | Kind::Unknown));
        let added = added.map(|((token, kind), id)| Added {
            id,
            content: token.clone(),
            special: *kind != Kind::UserDefined,
            ..Added::default()
        });
        added.collect()
    }
}

fn kind(number: i64) -> Result<Kind> {
    Ok(match number {
        // 0 is "undefined" in the format; its writers treat it as a normal token.
        0 | 1 => Kind::Normal,
        2 => Kind::Unknown,
        3 => Kind::Control,
        4 => Kind::UserDefined,
        5 => Kind::Unused,
        6 => Kind::Byte,
        _ => return Err(Error::Tokenizer(format!("token type {number} does not exist"))),
    })
}
