//! Text to token ids and back, from `tokenizer.json`, from the older `vocab.json` with `merges.txt` and
//! `tokenizer.model`, or from GGUF metadata; or a stand-in for models without text of their own.
//!
//! Ids are those of the `tokenizers` package; decoding is a table of each token's bytes, so that a stream of
//! tokens decodes to exactly the text that the whole list decodes to. That text is the one of the
//! `tokenizers` package's `decode`: `clean_up_tokenization_spaces`, with which transformers may change it
//! further, is not applied.

mod added;
mod byte_level;
mod directory;
mod encoder;
mod ggml;
mod matcher;
mod model;
mod model_proto;
mod normal;
mod pattern;
mod pieces;
mod post;
mod sentencepiece;
mod slow;
mod stand_in;
mod stops;
mod stream;
#[cfg(test)]
mod tests;
mod words;
mod work;

pub(crate) use directory::{read_json, special_token};
pub use stops::{StopScan, StopStrings};
pub use stream::TextStream;

use crate::gguf::Gguf;
use crate::{Error, Result};
use encoder::Encoder;
use pieces::{Pieces, Scheme};
use post::Affixes;
use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use work::Work;

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
    encoder: Encoder,
    pieces: Arc<Pieces>,
    affixes: Affixes,
    marks: Marks,
}

/// Ids with a special meaning.
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
    /// The tokenizer of a Hugging Face directory: `tokenizer.json`, or else `vocab.json` with `merges.txt` (GPT-2 and
    /// Qwen 2), or else SentencePiece's `tokenizer.model` (BPE). The names of BOS and EOS come from
    /// `tokenizer_config.json` and `special_tokens_map.json`. `None` if there is none of these files.
    ///
    /// # Errors
    /// [`Error::Malformed`] for a file that does not parse, [`Error::Unsupported`] for a kind of model, decoder or
    /// post-processor that the supported families do not use.
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

    fn assemble(encoder: Encoder, scheme: Scheme, affixes: Affixes, marks: Marks) -> Result<Self> {
        let pieces = Arc::new(Pieces::new(&encoder, scheme)?);
        let known = |id: &u32| (*id as usize) < pieces.len();
        let named = [marks.bos, marks.eos, marks.eot].into_iter().flatten();
        let added = affixes.prefix.iter().chain(&affixes.suffix).copied();
        if let Some(id) = named.chain(added).find(|id| !known(id)) {
            let size = pieces.len();
            return Err(Error::Tokenizer(format!("special token {id} is outside the vocabulary of {size}")));
        }
        let inner = Inner { encoder, pieces, affixes, marks };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The ids of `text`. Names of special tokens in it become those tokens. With `add_special` the model's BOS and
    /// EOS are added if its configuration asks for them.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] for more than 4 MiB of text, or if the tokenizer's own rules fail on this text or take too
    /// long.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        let ids = self.inner.encoder.encode(text, &[])?;
        if !add_special {
            return Ok(ids);
        }
        let Affixes { prefix, suffix } = &self.inner.affixes;
        Ok([prefix, &ids[..], suffix].concat())
    }

    /// The ids of a rendered conversation. Its parts `literal` (disjoint byte ranges in order) are content: control
    /// tokens are not recognised if they touch such a part, so content cannot end a turn. Control tokens are the
    /// special tokens, and added tokens that look like markup, such as `<think>` and `</tool_response>`, whatever
    /// their file calls them. Without any in the content, the ids are those of the text as a whole. No tokens are
    /// added.
    ///
    /// # Errors
    /// As [`encode`](Self::encode); and [`Error::Tokenizer`] if the parts are not in order.
    pub fn encode_rendered(&self, text: &str, literal: &[Range<usize>]) -> Result<Vec<u32>> {
        log::trace!(target: "djinn::tokenizer", "encode {} bytes", text.len());
        self.inner.encoder.encode(text, literal)
    }

    /// Refuses, before any work, a text of a length that always has more tokens than `context`.
    ///
    /// # Errors
    /// [`Error::TextTooLong`] if the text is longer than `context` times the longest token.
    pub fn check_length(&self, bytes: usize, context: u64) -> Result<()> {
        let Some(shrinks) = self.inner.encoder.shrinks() else { return Ok(()) };
        let most = context.saturating_mul((self.inner.pieces.longest() * shrinks) as u64);
        if bytes as u64 <= most { Ok(()) } else { Err(Error::TextTooLong { bytes, context }) }
    }

    /// The text of `ids`. With `skip_special`, special tokens are left out. Invalid UTF-8 becomes U+FFFD; ids outside
    /// the vocabulary are left out.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] for more than 16 MiB of text: a token may be long, and there may be millions.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        let mut stream = self.stream(skip_special);
        let mut text = String::new();
        for id in ids {
            stream.push_to(*id, &mut text);
            Work::check_decoded(text.len())?;
        }
        text.push_str(&stream.finish());
        Ok(text)
    }

    /// Incremental decoding of a new text; see [`TextStream::continuing`] for one that continues a prompt.
    pub fn stream(&self, skip_special: bool) -> TextStream {
        TextStream::new(Arc::clone(&self.inner.pieces), skip_special)
    }

    /// One more than the largest id. A model's table may be larger, padded.
    pub fn vocab_size(&self) -> usize {
        self.inner.pieces.len()
    }

    /// The id of a token by its spelling in the vocabulary.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.encoder.token_id(token)
    }

    /// A token's spelling in the vocabulary.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner.encoder.token(id)
    }

    /// Whether this is a special (control) token.
    pub fn is_special(&self, id: u32) -> bool {
        self.inner.pieces.is_special(id)
    }

    /// The bytes that a token adds to a continued text: the byte of a byte token, spaces for `▁`. `None` for special
    /// tokens, and for unused ids.
    pub fn token_bytes(&self, id: u32) -> Option<Cow<'_, [u8]>> {
        let bytes = self.inner.pieces.text_bytes(id);
        (!self.is_special(id) && !bytes.is_empty()).then_some(bytes)
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.inner.marks.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.inner.marks.eos
    }

    /// The token that ends a turn, if the file names one.
    pub fn eot(&self) -> Option<u32> {
        self.inner.marks.eot
    }

    /// Every token after which generation should end: EOS, EOT, and the special tokens that the supported families use
    /// for this; sorted.
    pub fn end_tokens(&self) -> Vec<u32> {
        let named = END_NAMES.iter().filter_map(|name| self.token_id(name)).filter(|id| self.is_special(*id));
        let mut ids: Vec<u32> = [self.eos(), self.eot()].into_iter().flatten().chain(named).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

/// The `tokenizers` crate's error as this crate's.
fn error(error: &tokenizers::Error) -> Error {
    Error::Tokenizer(error.to_string())
}
