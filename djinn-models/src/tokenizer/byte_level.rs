//! Byte-level BPE from GGUF: GPT-2's alphabet, a list of merges, and a pre-tokenizer chosen by name.

use super::encoder::{Encoder, WordModel};
use super::error;
use super::ggml::Vocabulary;
use super::matcher::{Behavior, Matcher};
use super::normal::{Form, Normalizer};
use super::pattern::Pattern;
use super::pieces::check_merges;
use super::words::{GPT2, Splitter};
use crate::{Error, Result};
use tokenizers::models::bpe::{BPE, Vocab};

/// Llama 3's words: contractions, letters with one sign before them, up to three digits, signs, line ends,
/// spaces.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Qwen 2's: the same with single digits.
pub(super) const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Mistral's Tekken: capitals begin a word, single digits.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The families of pre-tokenizers, by their names in GGUF files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pre {
    /// GPT-2's own expression.
    Gpt2,
    /// Single digits, then GPT-2's.
    Smollm,
    Llama3,
    /// Llama 3's expression, but with merges for every word.
    Dbrx,
    Qwen2,
    /// Qwen 2's expression without its normalisation.
    StableLm2,
    Falcon,
    Tekken,
    /// For files without a name, or with the name `default`.
    Unnamed,
}

impl Pre {
    pub(super) fn from_name(name: Option<&str>) -> Result<Self> {
        Ok(match name {
            None | Some("default") => Self::Unnamed,
            Some(
                "gpt-2" | "mpt" | "olmo" | "phi-2" | "jais" | "trillion" | "granite-docling" | "exaone4"
                | "gigachat" | "mellum" | "modern-bert" | "jina-es" | "jina-de" | "jina-v2-es" | "jina-v2-de"
                | "a.x-4.0",
            ) => Self::Gpt2,
            Some(
                "smollm" | "starcoder" | "refact" | "codeshell" | "exaone" | "command-r" | "minerva-7b"
                | "mellum2",
            ) => Self::Smollm,
            Some("llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "lfm2") => {
                Self::Llama3
            }
            Some("dbrx" | "smaug-bpe" | "chatglm-bpe" | "glm4") => Self::Dbrx,
            Some("qwen2" | "deepseek-r1-qwen" | "megrez") => Self::Qwen2,
            Some("stablelm2" | "hunyuan" | "solar-open" | "grok-2") => Self::StableLm2,
            Some("falcon") => Self::Falcon,
            Some("tekken") => Self::Tekken,
            Some(other) => {
                return Err(Error::Unsupported {
                    what: format!("the pre-tokenizer {other:?} (tokenizer.ggml.pre)"),
                    remedy: "use the model's Hugging Face directory with its tokenizer.json".into(),
                });
            }
        })
    }

    /// The default for beginning a text with BOS.
    pub(super) fn adds_bos(self) -> bool {
        matches!(self, Self::Llama3 | Self::Tekken)
    }

    /// Whether a word of the vocabulary becomes its token directly, without merges.
    fn ignores_merges(self) -> bool {
        matches!(self, Self::Llama3 | Self::Tekken)
    }

    fn splitter(self) -> Result<Splitter> {
        let patterns: &[&str] = match self {
            Self::Gpt2 => &[GPT2],
            Self::Smollm => &[GPT2],
            Self::Llama3 | Self::Dbrx => &[LLAMA3],
            Self::Qwen2 | Self::StableLm2 => &[QWEN2],
            Self::Tekken => &[TEKKEN],
            Self::Falcon => &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
            Self::Unnamed => &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
        };
        let mut splitter = Splitter::default();
        if self == Self::Smollm {
            splitter.digits(true);
        }
        for pattern in patterns {
            splitter.split(Matcher::Pattern(Pattern::new(pattern)?), Behavior::Isolated);
        }
        splitter.byte_level(false, false)?;
        Ok(splitter)
    }
}

/// Builds the encoder. `merges` are `left right`, most important first.
pub(super) fn build(vocabulary: &Vocabulary, merges: &[String], pre: Pre) -> Result<Encoder> {
    let ids: Vocab = vocabulary.tokens.iter().zip(0..).map(|(token, id)| (token.clone(), id)).collect();
    check_merges(merges.len())?;
    let mut pairs = Vec::with_capacity(merges.len());
    for (at, merge) in merges.iter().enumerate() {
        let pair = merge.split_once(' ').filter(|(left, right)| {
            [*left, *right, &[*left, *right].concat()].iter().all(|token| ids.contains_key(*token))
        });
        let Some((left, right)) = pair else {
            let detail = format!("merge {at} ({merge:?}) does not join two tokens to a third");
            return Err(Error::Tokenizer(detail));
        };
        pairs.push((left.to_owned(), right.to_owned()));
    }
    let model = BPE::builder().vocab_and_merges(ids, pairs).ignore_merges(pre.ignores_merges());
    let model = model.build().map_err(|e| error(&e))?;
    let normalizer = if pre == Pre::Qwen2 { Normalizer::form(Form::C) } else { Normalizer::default() };
    Encoder::new(WordModel::library(model), normalizer, pre.splitter()?, vocabulary.added())
}
