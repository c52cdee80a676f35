//! SentencePiece BPE: pieces with scores, `▁` for a space, byte tokens for other text.

use super::encoder::{Encoder, WordModel};
use super::error;
use super::ggml::{Kind, Vocabulary};
use super::normal::Normalizer;
use super::pieces::{byte_token, check_merges};
use super::words::Splitter;
use crate::{Error, Result};
use std::collections::HashMap;
use tokenizers::models::bpe::{BPE, Vocab};

/// The longest piece in bytes; SentencePiece's own default is 16 characters.
const MAX_PIECE: usize = 1024;

/// The most bytes compared to find the merges: the squares of all pieces' lengths. Published vocabularies need some
/// millions.
const MAX_LOOKED_AT: usize = 1 << 28;

/// Builds the encoder; with `prefix_space` a text is encoded as if it began with a space.
pub(super) fn build(vocabulary: &Vocabulary, prefix_space: bool) -> Result<Encoder> {
    let ids: Vocab = vocabulary.tokens.iter().zip(0..).map(|(token, id)| (token.clone(), id)).collect();
    let unknown = unknown(vocabulary)?;
    let mut model =
        BPE::builder().vocab_and_merges(ids, merges(vocabulary)?).byte_fallback(true).fuse_unk(true);
    if let Some(unknown) = unknown {
        model = model.unk_token(unknown.to_owned());
    }
    let model = model.build().map_err(|e| error(&e))?;
    let normalizer = Normalizer::sentencepiece(prefix_space);
    Encoder::new(WordModel::library(model), normalizer, Splitter::default(), vocabulary.added())
}

/// The token for text without an encoding. Refuses a vocabulary without one and without all byte tokens.
pub(super) fn unknown(vocabulary: &Vocabulary) -> Result<Option<&str>> {
    let bytes = vocabulary.tokens.iter().zip(&vocabulary.kinds);
    let bytes = bytes.filter(|(token, kind)| **kind == Kind::Byte && byte_token(token).is_some()).count();
    let unknown = vocabulary.kinds.iter().position(|kind| *kind == Kind::Unknown);
    if bytes < 256 && unknown.is_none() {
        let detail = format!("{bytes} of 256 byte tokens and no unknown token: some text has no encoding");
        return Err(Error::Tokenizer(detail));
    }
    Ok(unknown.map(|at| vocabulary.tokens[at].as_str()))
}

/// The merges that the scores imply: each way to cut a piece into two pieces, best score of the whole first. Of cuts
/// with one score, the longer left part comes first, then the longer right part, as in Hugging Face's conversion.
pub(super) fn merges(vocabulary: &Vocabulary) -> Result<Vec<(String, String)>> {
    if vocabulary.scores.is_empty() {
        return Err(Error::Tokenizer("the tokens have no scores (tokenizer.ggml.scores)".into()));
    }
    let all = vocabulary.tokens.iter().zip(&vocabulary.kinds).zip(&vocabulary.scores);
    let normal = all.filter(|((_, kind), _)| **kind == Kind::Normal);
    let scores: HashMap<&str, f32> = normal.map(|((token, _), score)| (token.as_str(), *score)).collect();
    let (mut merges, mut looked_at) = (Vec::new(), 0usize);
    // In the vocabulary's order, so that ties always have the same order.
    for token in &vocabulary.tokens {
        let Some(score) = scores.get(token.as_str()) else { continue };
        if token.len() > MAX_PIECE {
            let detail = format!("a token of {} bytes; {MAX_PIECE} are the most supported", token.len());
            return Err(Error::Tokenizer(detail));
        }
        looked_at += token.len() * token.len();
        if looked_at > MAX_LOOKED_AT {
            return Err(Error::Tokenizer("the pieces are too long to find their merges".into()));
        }
        let cuts = token.char_indices().rev().filter(|(at, _)| *at > 0).map(|(at, _)| token.split_at(at));
        let cuts = cuts.filter(|(left, right)| scores.contains_key(left) && scores.contains_key(right));
        merges.extend(cuts.map(|(left, right)| (*score, left, right)));
        check_merges(merges.len())?;
    }
    let lengths = |cut: &(f32, &str, &str)| (cut.1.chars().count(), cut.2.chars().count());
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| lengths(b).cmp(&lengths(a))));
    Ok(merges.into_iter().map(|(_, left, right)| (left.to_owned(), right.to_owned())).collect())
}
