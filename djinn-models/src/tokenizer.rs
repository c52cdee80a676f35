//! Text to token ids and back, from `tokenizer.json`, from the older `vocab.json` with `merges.txt` and
//! `tokenizer.model`, or from GGUF metadata.
//!
//! Encoding is the `tokenizers` crate's; decoding is a table of each token's bytes, so that a stream of
//! tokens decodes to exactly the text that the whole list decodes to. That text is the one of the
//! `tokenizers` package's `decode`: `clean_up_tokenization_spaces`, with which transformers may change it
//! further, is not applied.

mod byte_level;
mod directory;
mod ggml;
mod model_proto;
mod pieces;
mod post;
mod sentencepiece;
mod slow;
mod stops;
mod stream;
#[cfg(test)]
mod tests;

pub(crate) use directory::{read_json, special_token};
pub use stops::{StopScan, StopStrings};
pub use stream::TextStream;

use crate::gguf::Gguf;
use crate::{Error, Result};
use pieces::{Pieces, Scheme};
use post::Affixes;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Names of tokens that end an assistant's turn or a text in the supported families.
const END_NAMES: [&str; 9] = [
    "</s>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<｜end▁of▁sentence｜>",
];

/// A tokenizer. Cloning it is cheap: clones share their tables.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    parsing: tokenizers::Tokenizer,
    /// The same, but reading special tokens' names as plain text; made on first use.
    literal: OnceLock<tokenizers::Tokenizer>,
    pieces: Arc<Pieces>,
    affixes: Affixes,
    marks: Marks,
}

/// Ids with a meaning of their own.
#[derive(Clone, Debug, Default)]
struct Marks {
    bos: Option<u32>,
    eos: Option<u32>,
    eot: Option<u32>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("marks", &self.inner.marks)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// The tokenizer of a Hugging Face directory: `tokenizer.json`, else `vocab.json` with `merges.txt` (GPT-2
    /// and Qwen 2), else SentencePiece's `tokenizer.model` (BPE); with the names of BOS and EOS from
    /// `tokenizer_config.json` and `special_tokens_map.json`. `None` if there is none of these files.
    ///
    /// # Errors
    /// [`Error::Malformed`] for a file that does not parse, [`Error::Unsupported`] for a kind of model,
    /// decoder or post-processor that the supported families do not use.
    pub fn from_dir(dir: impl AsRef<Path>) -> Result<Option<Self>> {
        directory::load(dir.as_ref())
    }

    /// The tokenizer in a GGUF file's metadata (`tokenizer.ggml.*`): byte-level BPE (`gpt2`) and
    /// SentencePiece BPE (`llama`). `None` if the file has none.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for another model or an unknown pre-tokenizer, [`Error::Tokenizer`] for
    /// metadata that contradicts itself.
    pub fn from_gguf(file: &Gguf) -> Result<Option<Self>> {
        ggml::load(file)
    }

    fn assemble(
        mut parsing: tokenizers::Tokenizer,
        scheme: Scheme,
        affixes: Affixes,
        marks: Marks,
    ) -> Result<Self> {
        parsing.with_truncation(None).map_err(|e| error(&e))?;
        parsing.with_padding(None);
        let pieces = Arc::new(Pieces::new(&parsing, scheme)?);
        let known = |id: &u32| (*id as usize) < pieces.len();
        let named = [marks.bos, marks.eos, marks.eot].into_iter().flatten();
        let added = affixes.prefix.iter().chain(&affixes.suffix).copied();
        if let Some(id) = named.chain(added).find(|id| !known(id)) {
            let size = pieces.len();
            return Err(Error::Tokenizer(format!("special token {id} is outside the vocabulary of {size}")));
        }
        let inner = Inner { parsing, literal: OnceLock::new(), pieces, affixes, marks };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The ids of `text`. Names of special tokens in it become those tokens, as chat templates need; with
    /// `add_special` the model's BOS and EOS are added where its configuration asks for them.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the tokenizer's own rules fail on this text.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        let ids = encode_with(&self.inner.parsing, text)?;
        if !add_special {
            return Ok(ids);
        }
        let Affixes { prefix, suffix } = &self.inner.affixes;
        Ok([prefix, &ids[..], suffix].concat())
    }

    /// The ids of `text` with special tokens' names read as ordinary text, and none added: for text that
    /// must not be able to end a turn.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_literal(&self, text: &str) -> Result<Vec<u32>> {
        let literal = self.inner.literal.get_or_init(|| {
            let mut copy = self.inner.parsing.clone();
            copy.set_encode_special_tokens(true);
            copy
        });
        encode_with(literal, text)
    }

    /// The text of `ids`; with `skip_special` special tokens leave no trace. Bytes that are no UTF-8 become
    /// U+FFFD, and ids outside the vocabulary nothing.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        let mut stream = self.stream(skip_special);
        let mut text = String::new();
        for id in ids {
            stream.push_to(*id, &mut text);
        }
        text.push_str(&stream.finish());
        Ok(text)
    }

    /// Incremental decoding of a text of its own; see [`TextStream::continuing`] for one that goes on from
    /// a prompt.
    pub fn stream(&self, skip_special: bool) -> TextStream {
        TextStream::new(Arc::clone(&self.inner.pieces), skip_special)
    }

    /// One more than the largest id. A model's table may be larger, padded.
    pub fn vocab_size(&self) -> usize {
        self.inner.pieces.len()
    }

    /// The id of a token by its spelling in the vocabulary.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.parsing.token_to_id(token)
    }

    /// A token's spelling in the vocabulary.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner.parsing.id_to_token(id)
    }

    /// Whether this is a special (control) token.
    pub fn is_special(&self, id: u32) -> bool {
        self.inner.pieces.is_special(id)
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.inner.marks.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.inner.marks.eos
    }

    /// The token that ends a turn, where the file names one.
    pub fn eot(&self) -> Option<u32> {
        self.inner.marks.eot
    }

    /// Every token after which generation should end: EOS, EOT, and the special tokens that the supported
    /// families use for the purpose; sorted.
    pub fn end_tokens(&self) -> Vec<u32> {
        let named = END_NAMES.iter().filter_map(|name| self.token_id(name)).filter(|id| self.is_special(*id));
        let mut ids: Vec<u32> = [self.eos(), self.eot()].into_iter().flatten().chain(named).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

fn encode_with(tokenizer: &tokenizers::Tokenizer, text: &str) -> Result<Vec<u32>> {
    let encoding = tokenizer.encode_fast(text, false).map_err(|e| error(&e))?;
    Ok(encoding.get_ids().to_vec())
}

/// The `tokenizers` crate's error as this crate's.
fn error(error: &tokenizers::Error) -> Error {
    Error::Tokenizer(error.to_string())
}
