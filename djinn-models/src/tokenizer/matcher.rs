//! The patterns of a tokenizer's rules, and what happens to their matches.

use super::pattern::Pattern;
use super::work::Work;
use crate::Result;
use serde_json::Value;
use std::ops::Range;

/// A pattern in a text.
#[derive(Debug)]
pub(super) enum Matcher {
    /// Not empty.
    Text(String),
    Pattern(Pattern),
    Chars(fn(char) -> bool),
}

/// A part of a text: a match, or the text between two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) matched: bool,
}

impl Piece {
    /// Its place in the text.
    pub(super) fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

impl Matcher {
    /// Reads a `pattern`: `{"String": …}` or `{"Regex": …}`. `None` for any other value, or an empty text.
    pub(super) fn from_json(json: &Value) -> Option<Result<Self>> {
        match (json["String"].as_str(), json["Regex"].as_str()) {
            (Some(""), _) => None,
            (Some(text), None) => Some(Ok(Self::Text(text.to_owned()))),
            (None, Some(source)) => Some(Pattern::new(source).map(Self::Pattern)),
            _ => None,
        }
    }

    /// The text in pieces, in order. Matches may be empty; the text between them is not.
    pub(super) fn pieces(&self, text: &str, work: &mut Work) -> Result<Vec<Piece>> {
        let (mut pieces, mut last) = (Vec::new(), 0);
        let mut found = |Range { start, end }: Range<usize>| {
            let (start, end) = (start as u32, end as u32);
            if last < start {
                pieces.push(Piece { start: last, end: start, matched: false });
            }
            pieces.push(Piece { start, end, matched: true });
            last = end;
        };
        work.step(text.len() as u64)?;
        match self {
            Self::Pattern(pattern) => pattern.find_all(text, work, found)?,
            Self::Text(wanted) => {
                text.match_indices(wanted.as_str())
                    .for_each(|(at, found_text)| found(at..at + found_text.len()));
            }
            Self::Chars(wanted) => {
                let chars = text.char_indices().filter(|(_, c)| wanted(*c));
                chars.for_each(|(at, c)| found(at..at + c.len_utf8()));
            }
        }
        let end = text.len() as u32;
        if last < end {
            pieces.push(Piece { start: last, end, matched: false });
        }
        Ok(pieces)
    }
}

/// What happens to the matches of a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behavior {
    Removed,
    Isolated,
    MergedWithPrevious,
    MergedWithNext,
    Contiguous,
}

impl Behavior {
    /// By its name in `tokenizer.json`.
    pub(super) fn from_json(json: &Value) -> Option<Self> {
        Some(match json.as_str()? {
            "Removed" => Self::Removed,
            "Isolated" => Self::Isolated,
            "MergedWithPrevious" => Self::MergedWithPrevious,
            "MergedWithNext" => Self::MergedWithNext,
            "Contiguous" => Self::Contiguous,
            _ => return None,
        })
    }

    /// The parts to keep, in order, without empty ones.
    pub(super) fn kept(self, pieces: &[Piece]) -> Vec<Range<u32>> {
        let mut kept: Vec<Range<u32>> = Vec::with_capacity(pieces.len());
        for (at, piece) in pieces.iter().enumerate() {
            let before = at.checked_sub(1).map(|at| pieces[at].matched);
            let joined = match self {
                Self::Removed | Self::Isolated => false,
                Self::Contiguous => before == Some(piece.matched),
                Self::MergedWithPrevious => piece.matched && before == Some(false),
                // Of successive matches, the last one is joined with what follows.
                Self::MergedWithNext => !piece.matched && before == Some(true),
            };
            match kept.last_mut().filter(|_| joined) {
                Some(last) => last.end = piece.end,
                None if self == Self::Removed && piece.matched => {}
                None => kept.push(piece.start..piece.end),
            }
        }
        kept.retain(|range| !range.is_empty());
        kept
    }
}
