//! Text that remembers which of its bytes are literal: bytes of the conversation, not of the template.

use crate::budget::Budget;
use crate::error::Eval;
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
            Literal::All if !self.text.is_empty() => std::iter::once(0..self.text.len()).collect(),
            Literal::Ranges(ranges) => ranges,
            _ => Vec::new(),
        };
        (self.text, ranges)
    }

    /// The runs of one origin in a range of bytes: each with whether it is literal.
    fn runs(&self, range: Range<usize>) -> impl Iterator<Item = (&str, bool)> {
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
pub(crate) struct TextBuilder<'b> {
    budget: &'b Budget,
    text: String,
    literal: Vec<Range<usize>>,
    /// Of the result.
    pub(crate) markup: bool,
}

impl<'b> TextBuilder<'b> {
    pub(crate) fn new(budget: &'b Budget) -> Self {
        Self { budget, text: String::new(), literal: Vec::new(), markup: false }
    }

    fn push(&mut self, piece: &str, literal: bool) -> Eval<()> {
        self.budget.work(PIECE)?;
        self.budget.bytes(piece.len())?;
        let start = self.text.len();
        self.text.push_str(piece);
        if literal && !piece.is_empty() {
            match self.literal.last_mut() {
                Some(last) if last.end == start => last.end = self.text.len(),
                _ => {
                    self.budget.bytes(size_of::<Range<usize>>())?;
                    self.literal.push(start..self.text.len());
                }
            }
        }
        Ok(())
    }

    /// Appends text that the template or the engine wrote.
    pub(crate) fn plain(&mut self, piece: &str) -> Eval<()> {
        self.push(piece, false)
    }

    pub(crate) fn text(&mut self, text: &Text) -> Eval<()> {
        self.range(text, 0..text.len())
    }

    pub(crate) fn range(&mut self, text: &Text, range: Range<usize>) -> Eval<()> {
        text.runs(range).try_for_each(|(run, literal)| self.push(run, literal))
    }

    /// Appends the same text several times.
    pub(crate) fn repeat(&mut self, text: &Text, times: usize) -> Eval<()> {
        if text.len() > 0 && matches!(text.literal, Literal::None) {
            self.budget.bytes(text.len().saturating_mul(times))?;
            self.text.extend(std::iter::repeat_n(text.as_str(), times));
            return Ok(());
        }
        let times = if text.len() == 0 { 0 } else { times };
        (0..times).try_for_each(|_| self.text(text))
    }

    /// Appends what `write` makes of each run of one origin, which stays the origin.
    pub(crate) fn runs(&mut self, text: &Text, mut write: impl FnMut(&mut String, &str)) -> Eval<()> {
        self.budget.work(text.len() as u64 * 4)?;
        text.runs(0..text.len()).try_for_each(|(run, literal)| {
            let mut changed = String::with_capacity(run.len());
            write(&mut changed, run);
            self.push(&changed, literal)
        })
    }

    /// [`runs`](Self::runs) character by character.
    pub(crate) fn chars(&mut self, text: &Text, mut write: impl FnMut(&mut String, char)) -> Eval<()> {
        self.runs(text, |out, run| run.chars().for_each(|c| write(out, c)))
    }

    /// The text, not yet a value.
    pub(crate) fn finish(self) -> Text {
        let literal = match self.literal.as_slice() {
            [] => Literal::None,
            [one] if one.len() == self.text.len() => Literal::All,
            _ => Literal::Ranges(self.literal),
        };
        Text { text: self.text, literal, markup: self.markup }
    }

    /// The text as a value.
    pub(crate) fn value(self) -> Eval {
        self.budget.items::<u8>(0)?;
        Ok(self.finish().into())
    }
}

/// Appends a number in hexadecimal digits.
pub(crate) fn push_hex(out: &mut String, number: u32, digits: u32) {
    let digit = |at: u32| char::from_digit(number >> (4 * at) & 15, 16);
    out.extend((0..digits).rev().filter_map(digit));
}

/// Python's white space: Unicode's, and four separators beside it.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}
