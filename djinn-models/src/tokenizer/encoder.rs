//! Text to ids: added tokens, normalizer, words, model, in this order.
//!
//! The order and every rule are the `tokenizers` package's. Its models and normal forms are used. The rest is
//! implemented here, since the package's own steps panic, abort or never end on hostile files and texts.

use super::added::{Added, AddedTokens};
use super::normal::{Marked, Normalizer};
use super::stand_in::StandIn;
use super::words::Splitter;
use super::work::{MAX_TEXT, Work};
use crate::{Error, Result};
use std::collections::HashMap;
use std::ops::Range;
use tokenizers::Model;
use tokenizers::models::ModelWrapper;

/// The encoding half of a tokenizer.
pub(super) struct Encoder {
    added: AddedTokens,
    normalizer: Normalizer,
    splitter: Splitter,
    model: WordModel,
}

/// The model that encodes words.
pub(super) enum WordModel {
    Library(Box<ModelWrapper>),
    StandIn(StandIn),
}

impl WordModel {
    pub(super) fn library(model: impl Into<ModelWrapper>) -> Self {
        let mut model = model.into();
        if let ModelWrapper::BPE(bpe) = &mut model {
            // The library caches up to 10,000 words for each encoding thread. On a server with many threads, strangers
            // could make that gigabytes.
            bpe.resize_cache(0);
        }
        WordModel::Library(Box::new(model))
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        match self {
            WordModel::Library(model) => model.token_to_id(token),
            WordModel::StandIn(model) => model.token_to_id(token),
        }
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        match self {
            WordModel::Library(model) => model.id_to_token(id),
            WordModel::StandIn(model) => model.id_to_token(id),
        }
    }
}

impl Encoder {
    /// # Errors
    /// [`Error::Tokenizer`] for an added token whose id is not the one that it would get.
    pub(super) fn new(
        model: WordModel,
        normalizer: Normalizer,
        splitter: Splitter,
        added: Vec<Added>,
    ) -> Result<Self> {
        let mut next = match &model {
            WordModel::Library(model) => model.get_vocab_size() as u32,
            WordModel::StandIn(model) => model.vocab(),
        };
        let mut fresh = HashMap::new();
        for Added { content, id, .. } in added.iter().filter(|token| !token.content.is_empty()) {
            let known = model.token_to_id(content).or_else(|| fresh.get(content).copied());
            let wanted = known.unwrap_or_else(|| {
                fresh.insert(content.clone(), next);
                next += 1;
                next - 1
            });
            if *id != wanted {
                let detail = format!("added token {content:?} has the id {id}, where {wanted} is next");
                return Err(Error::Tokenizer(detail));
            }
        }
        let added = AddedTokens::new(added, &normalizer)?;
        Ok(Self { added, normalizer, splitter, model })
    }

    /// The ids of a text. Control tokens are not recognised in its literal parts, which are in order.
    pub(super) fn encode(&self, text: &str, literal: &[Range<usize>]) -> Result<Vec<u32>> {
        if text.len() > MAX_TEXT {
            let detail =
                format!("{} bytes of text are more than are encoded at once ({MAX_TEXT})", text.len());
            return Err(Error::Tokenizer(detail));
        }
        if !literal.is_sorted_by(|a, b| a.start <= a.end && a.end <= b.start) {
            return Err(Error::Tokenizer("the literal parts of a text are not in order".into()));
        }
        let mut work = Work::new(text.len());
        let mut ids = Vec::new();
        for (range, token) in self.added.divide(text, literal, &mut work)? {
            match token {
                Some(id) => ids.push(id),
                None => {
                    self.encode_part(marked(text, &range, literal), range.start == 0, &mut ids, &mut work)?
                }
            }
        }
        Ok(ids)
    }

    /// Encodes a part without tokens of the original text; `first`: it begins the text.
    fn encode_part(&self, part: Marked, first: bool, ids: &mut Vec<u32>, work: &mut Work) -> Result<()> {
        let part = self.normalizer.apply(part, work)?;
        for (range, token) in self.added.divide_normalized(&part, work)? {
            match token {
                Some(id) => ids.push(id),
                None => {
                    let first = first && range.start == 0;
                    let words = self.splitter.words(&part.text[range], first, work)?;
                    for range in &words.ranges {
                        self.encode_word(words.word(range), ids, work)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn encode_word(&self, word: &str, ids: &mut Vec<u32>, work: &mut Work) -> Result<()> {
        work.symbols(self.symbols(word))?;
        match &self.model {
            WordModel::Library(model) => {
                let tokens = model.tokenize(word).map_err(|e| super::error(&e))?;
                ids.extend(tokens.iter().map(|token| token.id));
            }
            WordModel::StandIn(model) => model.encode(word, ids),
        }
        Ok(())
    }

    /// The number of symbols with which the model begins a word: its characters, or the bytes of all but spaces if it
    /// has byte tokens.
    fn symbols(&self, word: &str) -> usize {
        let WordModel::Library(model) = &self.model else { return 1 };
        let ModelWrapper::BPE(bpe) = &**model else { return 1 };
        match bpe.byte_fallback {
            false => word.chars().count(),
            true if bpe.token_to_id("▁").is_none() => word.len(),
            true => word.chars().map(|c| if c == '▁' { 1 } else { c.len_utf8() }).sum(),
        }
    }

    /// The most bytes of text for one byte of a token's spelling; `None` if a token can represent any text.
    pub(super) fn shrinks(&self) -> Option<usize> {
        match &self.model {
            WordModel::Library(model) if !matches!(**model, ModelWrapper::BPE(_)) => None,
            _ => Some(self.normalizer.shrinks()),
        }
    }

    /// One more than the largest id; 0 for an empty vocabulary.
    pub(super) fn ids_end(&self) -> usize {
        let model = match &self.model {
            WordModel::Library(model) => model.get_vocab().into_values().max(),
            WordModel::StandIn(model) => model.vocab().checked_sub(1),
        };
        self.added.ids().chain(model).max().map_or(0, |id| id as usize + 1)
    }

    pub(super) fn token_id(&self, token: &str) -> Option<u32> {
        self.added.id(token).or_else(|| self.model.token_to_id(token))
    }

    /// A token's spelling in the vocabulary.
    pub(super) fn token(&self, id: u32) -> Option<String> {
        self.added.spelling(id).map(str::to_owned).or_else(|| self.model.id_to_token(id))
    }

    pub(super) fn added(&self, id: u32) -> Option<&Added> {
        self.added.get(id)
    }
}

/// A part of a text, with its literal bytes if it has some.
fn marked(text: &str, part: &Range<usize>, literal: &[Range<usize>]) -> Marked {
    let from = literal.partition_point(|literal| literal.end <= part.start);
    let until = literal.partition_point(|literal| literal.start < part.end);
    let mut flags = Vec::new();
    for literal in literal.get(from..until).unwrap_or_default() {
        flags.resize(part.len(), false);
        let (start, end) = (literal.start.max(part.start), literal.end.min(part.end));
        flags[start - part.start..end - part.start].fill(true);
    }
    Marked { text: text[part.clone()].to_owned(), literal: flags }
}
