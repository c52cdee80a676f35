//! Text that remembers which of its bytes are literal: bytes of the conversation, not of the template.

use crate::budget::Budget;
use crate::error::Fault;
use std::ops::Range;

/// Work of appending a piece, beside its bytes.
const PIECE: u64 = 20;

/// A string and the origin of its bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Text {
    text: String,
    literal: Literal,
    /// Whether the template said that it is HTML already: what is added to it with `+` is escaped.
    pub(crate) markup: bool,
}

/// Which bytes are literal.
#[derive(Clone, Debug, Default)]
enum Literal {
    #[default]
    None,
    All,
    /// Sorted, disjoint, not touching.
    Ranges(Vec<Range<usize>>),
}

impl Text {
    /// Text of the template, or of the model's own.
    pub(crate) fn plain(text: impl Into<String>) -> Self {
        Self { text: text.into(), literal: Literal::None, markup: false }
    }

    /// Text of the conversation.
    pub(crate) fn literal(text: impl Into<String>) -> Self {
        Self { text: text.into(), literal: Literal::All, markup: false }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn len(&self) -> usize {
        self.text.len()
    }

    /// The string and its literal ranges.
    pub(crate) fn into_parts(self) -> (String, Vec<Range<usize>>) {
        let ranges = match self.literal {
            Literal::None => Vec::new(),
            Literal::All if self.text.is_empty() => Vec::new(),
            #[expect(clippy::single_range_in_vec_init, reason = "one range it is")]
            Literal::All => vec![0..self.text.len()],
            Literal::Ranges(ranges) => ranges,
        };
        (self.text, ranges)
    }

    /// The runs of one origin in a range of bytes: each with whether it is literal.
    pub(crate) fn runs(&self, range: Range<usize>) -> impl Iterator<Item = (&str, bool)> {
        let ranges: &[Range<usize>] = match &self.literal {
            Literal::Ranges(ranges) => ranges,
            _ => &[],
        };
        let all = matches!(self.literal, Literal::All);
        let mut next = ranges.partition_point(|r| r.end <= range.start);
        let mut at = range.start;
        std::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            let (end, literal) = match ranges.get(next) {
                None => (range.end, all),
                Some(found) if found.start > at => (found.start.min(range.end), false),
                Some(found) => {
                    next += 1;
                    (found.end.min(range.end), true)
                }
            };
            let run = &self.text[at..end];
            at = end;
            Some((run, literal))
        })
    }
}

/// Builds a [`Text`], counting its bytes.
#[derive(Default)]
pub(crate) struct TextBuilder {
    text: String,
    literal: Vec<Range<usize>>,
    /// Of the result.
    markup: bool,
}

impl TextBuilder {
    /// A builder of text that is HTML already, or is not.
    pub(crate) fn marked(markup: bool) -> Self {
        Self { markup, ..Self::default() }
    }

    /// Appends a piece of one origin.
    pub(crate) fn push(&mut self, budget: &Budget, piece: &str, literal: bool) -> Result<(), Fault> {
        budget.work(PIECE)?;
        budget.bytes(piece.len())?;
        let start = self.text.len();
        self.text.push_str(piece);
        if literal && !piece.is_empty() {
            match self.literal.last_mut() {
                Some(last) if last.end == start => last.end = self.text.len(),
                _ => {
                    budget.bytes(size_of::<Range<usize>>())?;
                    self.literal.push(start..self.text.len());
                }
            }
        }
        Ok(())
    }

    /// Appends text that the template or the engine wrote.
    pub(crate) fn plain(&mut self, budget: &Budget, piece: &str) -> Result<(), Fault> {
        self.push(budget, piece, false)
    }

    pub(crate) fn text(&mut self, budget: &Budget, text: &Text) -> Result<(), Fault> {
        self.range(budget, text, 0..text.len())
    }

    /// Appends a part of a text.
    pub(crate) fn range(&mut self, budget: &Budget, text: &Text, range: Range<usize>) -> Result<(), Fault> {
        text.runs(range).try_for_each(|(run, literal)| self.push(budget, run, literal))
    }

    /// Appends the same text several times.
    pub(crate) fn repeat(&mut self, budget: &Budget, text: &Text, times: usize) -> Result<(), Fault> {
        if text.len() > 0 && matches!(text.literal, Literal::None) {
            let length = text.len().saturating_mul(times);
            budget.bytes(length)?;
            self.text.extend(std::iter::repeat_n(text.as_str(), times));
            return Ok(());
        }
        let times = if text.len() == 0 { 0 } else { times };
        (0..times).try_for_each(|_| self.text(budget, text))
    }

    pub(crate) fn finish(self) -> Text {
        let literal = match self.literal.as_slice() {
            [] => Literal::None,
            [one] if one.len() == self.text.len() => Literal::All,
            _ => Literal::Ranges(self.literal),
        };
        Text { text: self.text, literal, markup: self.markup }
    }
}
