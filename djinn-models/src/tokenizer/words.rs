//! Pre-tokenizers: divide a text into words, which are encoded one by one.

use super::matcher::{Behavior, Matcher};
use super::pattern::Pattern;
use super::pieces::alphabet_char;
use super::work::Work;
use crate::{Error, Result};
use serde_json::Value;
use std::ops::Range;
use unicode_categories::UnicodeCategories;

/// GPT-2's words: contractions, letters, digits, signs, each with at most one space before; spaces.
pub(super) const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Words as defined by the pre-tokenizer `Whitespace`.
const WORDS: &str = r"\w+|[^\w\s]+";

/// The most steps of a file, and the deepest nesting of sequences; published ones have four, and one.
const MAX_STEPS: usize = 32;
const MAX_DEPTH: u32 = 8;

/// The steps from a text to words, in their order.
#[derive(Debug, Default)]
pub(super) struct Splitter {
    steps: Vec<Step>,
}

#[derive(Debug)]
enum Step {
    Split {
        matcher: Matcher,
        behavior: Behavior,
        invert: bool,
    },
    /// A space before each word that does not begin with one.
    PrefixSpace,
    /// Each byte as a character of GPT-2's alphabet.
    Bytes,
    /// Each space as this character, with one more before words that do not begin with it.
    Spaces {
        replacement: char,
        prepend: Prepend,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prepend {
    Never,
    /// At the beginning of the whole text only.
    First,
    Always,
}

/// Parts of one string.
#[derive(Debug)]
pub(super) struct Words {
    pub(super) text: String,
    pub(super) ranges: Vec<Range<u32>>,
}

impl Splitter {
    /// Reads a `pre_tokenizer` of `tokenizer.json`.
    pub(super) fn from_json(json: &Value) -> Result<Self> {
        let mut splitter = Self::default();
        if !json.is_null() {
            splitter.read(json, 0)?;
        }
        Ok(splitter)
    }

    fn read(&mut self, json: &Value, depth: u32) -> Result<()> {
        let kind = json["type"].as_str().unwrap_or("without a type");
        let unsupported = |kind: &str| Error::Unsupported {
            what: format!("the tokenizer's pre-tokenizer {kind} as it is configured"),
            remedy: "the supported families use Split, ByteLevel, Digits, Punctuation and Metaspace".into(),
        };
        match kind {
            "Sequence" if depth < MAX_DEPTH => {
                let list = json["pretokenizers"].as_array().ok_or_else(|| unsupported(kind))?;
                list.iter().try_for_each(|json| self.read(json, depth + 1))?;
            }
            "Split" => {
                let matcher = Matcher::from_json(&json["pattern"]).ok_or_else(|| unsupported(kind))??;
                let behavior = Behavior::from_json(&json["behavior"]).ok_or_else(|| unsupported(kind))?;
                let invert = json["invert"].as_bool().ok_or_else(|| unsupported(kind))?;
                self.steps.push(Step::Split { matcher, behavior, invert });
            }
            "ByteLevel" => {
                let prefix = json["add_prefix_space"].as_bool().ok_or_else(|| unsupported(kind))?;
                self.byte_level(prefix, json["use_regex"].as_bool().unwrap_or(true))?;
            }
            "Digits" => self.digits(json["individual_digits"].as_bool().ok_or_else(|| unsupported(kind))?),
            "Punctuation" => {
                let behavior = &json["behavior"];
                let behavior = match behavior.is_null() {
                    true => Behavior::Isolated,
                    false => Behavior::from_json(behavior).ok_or_else(|| unsupported(kind))?,
                };
                self.split(Matcher::Chars(is_punctuation), behavior);
            }
            "Metaspace" => self.metaspace(json).ok_or_else(|| unsupported(kind))?,
            "Whitespace" => {
                let matcher = Matcher::Pattern(Pattern::new(WORDS)?);
                self.steps.push(Step::Split { matcher, behavior: Behavior::Removed, invert: true });
            }
            "WhitespaceSplit" => self.split(Matcher::Chars(char::is_whitespace), Behavior::Removed),
            other => return Err(unsupported(other)),
        }
        if self.steps.len() > MAX_STEPS {
            return Err(Error::Tokenizer(format!("the pre-tokenizer has more than {MAX_STEPS} steps")));
        }
        Ok(())
    }

    fn metaspace(&mut self, json: &Value) -> Option<()> {
        let mut chars = json["replacement"].as_str()?.chars();
        let replacement = chars.next().filter(|_| chars.next().is_none())?;
        let mut prepend = match json["prepend_scheme"].as_str() {
            None if json["prepend_scheme"].is_null() => Prepend::Always,
            Some("always") => Prepend::Always,
            Some("first") => Prepend::First,
            Some("never") => Prepend::Never,
            _ => return None,
        };
        if json["add_prefix_space"] == false {
            let said = !json["prepend_scheme"].is_null() && prepend != Prepend::Never;
            prepend = Prepend::Never;
            if said {
                return None;
            }
        }
        self.steps.push(Step::Spaces { replacement, prepend });
        if json["split"].as_bool().unwrap_or(true) {
            self.split(Matcher::Text(replacement.to_string()), Behavior::MergedWithNext);
        }
        Some(())
    }

    /// A step that splits at matches.
    pub(super) fn split(&mut self, matcher: Matcher, behavior: Behavior) {
        self.steps.push(Step::Split { matcher, behavior, invert: false });
    }

    /// Splits at digits: one by one, or in runs.
    pub(super) fn digits(&mut self, single: bool) {
        let behavior = if single { Behavior::Isolated } else { Behavior::Contiguous };
        self.split(Matcher::Chars(char::is_numeric), behavior);
    }

    /// GPT-2's spelling of bytes; with `words` after GPT-2's splitting.
    pub(super) fn byte_level(&mut self, prefix_space: bool, words: bool) -> Result<()> {
        if prefix_space {
            self.steps.push(Step::PrefixSpace);
        }
        if words {
            self.split(Matcher::Pattern(Pattern::new(GPT2)?), Behavior::Isolated);
        }
        self.steps.push(Step::Bytes);
        Ok(())
    }

    /// The words of a part of a text; `first`: it begins the text.
    pub(super) fn words(&self, part: &str, first: bool, work: &mut Work) -> Result<Words> {
        let mut words =
            Words { text: part.to_owned(), ranges: Vec::from([Range { start: 0, end: part.len() as u32 }]) };
        for step in &self.steps {
            words = match step {
                Step::Split { matcher, behavior, invert } => {
                    words.split(matcher, *behavior, *invert, work)?
                }
                Step::PrefixSpace => words.rewritten(work, |word, _, out| {
                    if !word.starts_with(' ') {
                        out.push(' ');
                    }
                    out.push_str(word);
                })?,
                Step::Bytes => {
                    words.rewritten(work, |word, _, out| out.extend(word.bytes().map(alphabet_char)))?
                }
                Step::Spaces { replacement, prepend } => words.rewritten(work, |word, at, out| {
                    let wanted = match prepend {
                        Prepend::Never => false,
                        Prepend::First => first && at == 0,
                        Prepend::Always => true,
                    };
                    if wanted && !word.starts_with([' ', *replacement]) {
                        out.push(*replacement);
                    }
                    out.extend(word.chars().map(|c| if c == ' ' { *replacement } else { c }));
                })?,
            };
        }
        Ok(words)
    }
}

/// By the tables of the `tokenizers` package, which are older than those of patterns.
fn is_punctuation(c: char) -> bool {
    c.is_ascii_punctuation() || c.is_punctuation()
}

impl Words {
    /// Appends each word to a string with `rewrite`, which gets its text and its place.
    fn rewritten(&self, work: &mut Work, rewrite: impl Fn(&str, u32, &mut String)) -> Result<Self> {
        let mut text = String::with_capacity(self.text.len());
        let mut ranges = Vec::with_capacity(self.ranges.len());
        for range in &self.ranges {
            let start = text.len() as u32;
            rewrite(self.word(range), range.start, &mut text);
            ranges.push(start..text.len() as u32);
        }
        work.step(text.len() as u64)?;
        work.grow(text.len().saturating_sub(self.text.len()))?;
        Ok(Self { text, ranges })
    }

    fn split(self, matcher: &Matcher, behavior: Behavior, invert: bool, work: &mut Work) -> Result<Self> {
        let mut ranges = Vec::with_capacity(self.ranges.len());
        for range in &self.ranges {
            let mut pieces = matcher.pieces(self.word(range), work)?;
            if invert {
                pieces.iter_mut().for_each(|piece| piece.matched = !piece.matched);
            }
            let kept = behavior.kept(&pieces).into_iter();
            ranges.extend(kept.map(|kept| range.start + kept.start..range.start + kept.end));
        }
        Ok(Self { text: self.text, ranges })
    }

    pub(super) fn word(&self, range: &Range<u32>) -> &str {
        &self.text[range.start as usize..range.end as usize]
    }
}
