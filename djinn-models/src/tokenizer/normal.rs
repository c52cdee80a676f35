//! Normalizers: changes of a text before it is divided into words.

use super::matcher::Matcher;
use super::work::Work;
use crate::{Error, Result};
use serde_json::Value;
use std::ops::Range;
use tokenizers::NormalizedString;

/// The most steps of a file, and the deepest nesting of sequences; published ones have three, and one.
const MAX_STEPS: usize = 16;
const MAX_DEPTH: u32 = 8;

/// The steps of a normalizer, in their order.
#[derive(Debug, Default)]
pub(super) struct Normalizer {
    steps: Vec<Step>,
}

#[derive(Debug)]
enum Step {
    Form(Form),
    Lowercase,
    Strip { left: bool, right: bool },
    Replace { matcher: Matcher, content: String },
    Prepend(String),
}

/// A normal form of Unicode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    C,
    D,
    Kc,
    Kd,
}

/// A text, and which of its bytes are literal content. Without flags, none is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Marked {
    pub(super) text: String,
    pub(super) literal: Vec<bool>,
}

impl Marked {
    /// Whether some byte of a range is literal.
    pub(super) fn touches(&self, range: Range<usize>) -> bool {
        self.literal.get(range).is_some_and(|flags| flags.contains(&true))
    }

    fn push(&mut self, text: &str, flagged: bool, literal: bool) {
        self.text.push_str(text);
        if flagged {
            self.literal.resize(self.text.len(), literal);
        }
    }
}

impl Normalizer {
    /// Reads a `normalizer` of `tokenizer.json`.
    pub(super) fn from_json(json: &Value) -> Result<Self> {
        let mut normalizer = Self::default();
        if !json.is_null() {
            normalizer.read(json, 0)?;
        }
        Ok(normalizer)
    }

    fn read(&mut self, json: &Value, depth: u32) -> Result<()> {
        let kind = json["type"].as_str().unwrap_or("without a type");
        let unsupported = || Error::Unsupported {
            what: format!("the tokenizer's normalizer {kind} as it is configured"),
            remedy: "the supported families use Unicode's normal forms, Replace and Prepend".into(),
        };
        let text = |key: &str| json[key].as_str().map(str::to_owned).ok_or_else(unsupported);
        let flag = |key: &str| json[key].as_bool().ok_or_else(unsupported);
        let step = match kind {
            "Sequence" if depth < MAX_DEPTH => {
                let list = json["normalizers"].as_array().ok_or_else(unsupported)?;
                return list.iter().try_for_each(|json| self.read(json, depth + 1));
            }
            "NFC" => Step::Form(Form::C),
            "NFD" => Step::Form(Form::D),
            "NFKC" => Step::Form(Form::Kc),
            "NFKD" => Step::Form(Form::Kd),
            "Lowercase" => Step::Lowercase,
            "Strip" => Step::Strip { left: flag("strip_left")?, right: flag("strip_right")? },
            "Replace" => {
                let matcher = Matcher::from_json(&json["pattern"]).ok_or_else(unsupported)??;
                Step::Replace { matcher, content: text("content")? }
            }
            "Prepend" => Step::Prepend(text("prepend")?),
            _ => return Err(unsupported()),
        };
        self.steps.push(step);
        if self.steps.len() > MAX_STEPS {
            return Err(Error::Tokenizer(format!("the normalizer has more than {MAX_STEPS} steps")));
        }
        Ok(())
    }

    pub(super) fn form(form: Form) -> Self {
        Self { steps: vec![Step::Form(form)] }
    }

    /// `▁` for each space; with `prefix`, one more before the text.
    pub(super) fn sentencepiece(prefix: bool) -> Self {
        let replace = Step::Replace { matcher: Matcher::Text(" ".into()), content: "▁".into() };
        let prepend = prefix.then(|| Step::Prepend("▁".into()));
        Self { steps: prepend.into_iter().chain([replace]).collect() }
    }

    /// The most bytes of a text for one byte of the result, if the steps only compose characters.
    pub(super) fn shrinks(&self) -> usize {
        let composes = |step: &Step| matches!(step, Step::Form(Form::C | Form::Kc));
        if self.steps.iter().any(composes) { 3 } else { 1 }
    }

    pub(super) fn apply(&self, mut text: Marked, work: &mut Work) -> Result<Marked> {
        for step in &self.steps {
            let before = text.text.len();
            work.step(before as u64)?;
            text = step.apply(text, work)?;
            work.grow(text.text.len().saturating_sub(before))?;
        }
        Ok(text)
    }
}

impl Step {
    fn apply(&self, from: Marked, work: &mut Work) -> Result<Marked> {
        let flagged = !from.literal.is_empty();
        let mut out = Marked::default();
        match self {
            Self::Form(form) => {
                if from.text.is_ascii() {
                    return Ok(from);
                }
                form.apply(&from, &mut out);
            }
            Self::Lowercase => {
                for (at, c) in from.text.char_indices() {
                    let literal = from.touches(at..at + 1);
                    let mut bytes = [0; 4];
                    c.to_lowercase().for_each(|c| out.push(c.encode_utf8(&mut bytes), flagged, literal));
                }
            }
            Self::Strip { left, right } => {
                let start = if *left { from.text.len() - from.text.trim_start().len() } else { 0 };
                let end = if *right { from.text.trim_end().len().max(start) } else { from.text.len() };
                let literal = from.literal.get(start..end).unwrap_or_default().to_vec();
                return Ok(Marked { text: from.text[start..end].to_owned(), literal });
            }
            Self::Replace { matcher, content } => {
                for piece in matcher.pieces(&from.text, work)? {
                    if piece.matched {
                        // Checked here, since a hostile file can make the product of the two large.
                        Work::check_length(out.text.len() + content.len())?;
                        out.push(content, flagged, from.touches(piece.range()));
                    } else {
                        out.text.push_str(&from.text[piece.range()]);
                        out.literal.extend(from.literal.get(piece.range()).unwrap_or_default());
                    }
                }
            }
            Self::Prepend(prefix) => {
                if from.text.is_empty() {
                    return Ok(from);
                }
                Work::check_length(prefix.len())?;
                out.push(prefix, flagged, false);
                out.text.push_str(&from.text);
                out.literal.extend(&from.literal);
            }
        }
        Ok(out)
    }
}

impl Form {
    /// ASCII characters do not compose with preceding ones, so each begins a part that is normalised separately. If
    /// some of such a part's other characters are literal, all count as literal.
    fn apply(self, from: &Marked, out: &mut Marked) {
        let flagged = !from.literal.is_empty();
        let bytes = from.text.as_bytes();
        let mut start = 0;
        while start < bytes.len() {
            let rest = &bytes[start + 1..];
            let end = start + 1 + rest.iter().position(u8::is_ascii).unwrap_or(rest.len());
            let part = &from.text[start..end];
            if part.len() == 1 {
                out.push(part, flagged, from.touches(start..end));
            } else {
                let mut normalized = NormalizedString::from(part);
                match self {
                    Self::C => normalized.nfc(),
                    Self::D => normalized.nfd(),
                    Self::Kc => normalized.nfkc(),
                    Self::Kd => normalized.nfkd(),
                };
                let head = usize::from(
                    bytes[start].is_ascii() && normalized.get().as_bytes().first() == bytes.get(start),
                );
                out.push(&normalized.get()[..head], flagged, from.touches(start..start + head));
                out.push(&normalized.get()[head..], flagged, from.touches(start + head..end));
            }
            start = end;
        }
    }
}
