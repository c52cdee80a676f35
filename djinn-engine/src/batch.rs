//! A step's batch: its entries, the order of their rows, and which rows are launched together.
//!
//! A session's tokens must not depend on its neighbours, nor on how many there are. Devices give that for launches of
//! few rows ([`DeviceInfo::rows_alone`]); products of many rows choose their algorithm by the number of rows. So a step
//! has two kinds of rows. Rows *alone*, single tokens and short prompts, come first, and products take them in pieces
//! of up to `rows_alone`. *Chunks*, longer runs of a prompt, are launched one by one: a chunk's results depend on its
//! own length, which is the session's business alone.

use crate::{Error, Result};
use djinn_device::DeviceInfo;
use djinn_srg::Rows;
use djinn_vmu::Sequence;
use std::ops::Range;

/// Runs of up to so many tokens are computed row by row, beside those of other sequences.
pub const SHORT_RUN: usize = 32;

/// Whose logits a step gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// None.
    Nothing,
    /// Those of the entry's last token.
    Last,
    /// Those of all its tokens.
    All,
}

/// One sequence's share of a step.
#[derive(Debug)]
pub struct Entry<'a> {
    /// The sequence; grows by the tokens.
    pub sequence: &'a mut Sequence,
    /// Tokens to append, at least one.
    pub tokens: &'a [u32],
    /// Which of the tokens are computed as chunks, ascending and apart; the rest is computed row by row.
    pub chunks: &'a [Range<usize>],
    /// Whose logits are wanted.
    pub wanted: Wanted,
}

impl<'a> Entry<'a> {
    /// An entry whose tokens are one chunk if they are more than [`SHORT_RUN`].
    pub fn new(sequence: &'a mut Sequence, tokens: &'a [u32], wanted: Wanted) -> Self {
        /// The entry, whatever its length.
        const WHOLE: &[Range<usize>] = std::slice::from_ref(&(0..usize::MAX));
        let chunks = if tokens.len() > SHORT_RUN { WHOLE } else { &[] };
        Entry { sequence, tokens, chunks, wanted }
    }

    pub(crate) fn logit_rows(&self) -> u64 {
        match self.wanted {
            Wanted::Nothing => 0,
            Wanted::Last => 1,
            Wanted::All => self.tokens.len() as u64,
        }
    }

    /// The tokens that are computed as chunks, within the entry.
    fn chunks(&self) -> impl Iterator<Item = Range<usize>> {
        let end = self.tokens.len();
        self.chunks
            .iter()
            .map(move |chunk| chunk.start.min(end)..chunk.end.min(end))
            .filter(|c| !c.is_empty())
    }
}

/// The rows of a batch, after the entries' tokens were checked.
///
/// # Errors
/// An entry without tokens, a token outside the vocabulary.
pub(crate) fn rows(batch: &[Entry<'_>], vocab: u64) -> Result<Rows> {
    let mut rows = Rows { rows: 0, logit_rows: 0 };
    for entry in batch {
        if entry.tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if let Some(&token) = entry.tokens.iter().find(|&&t| t as u64 >= vocab) {
            return Err(Error::UnknownToken { token, vocab });
        }
        rows.rows += entry.tokens.len() as u64;
        rows.logit_rows += entry.logit_rows();
    }
    Ok(rows)
}

/// Which rows one launch takes. Other operations take all rows at once: they look at each row alone anyway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Launches {
    /// Of products over the step's rows.
    pub(crate) products: Vec<Range<u32>>,
    /// Of products over the rows whose logits are wanted.
    pub(crate) logits: Vec<Range<u32>>,
    /// Of attention.
    pub(crate) attention: Vec<Range<u32>>,
}

/// What a pass reads beside its weights: a number for each row, and the launches.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) tokens: Vec<u32>,
    pub(crate) positions: Vec<u32>,
    /// The entry that each row belongs to.
    pub(crate) row_seq: Vec<u32>,
    /// Rows whose logits are wanted, in order of the entries.
    pub(crate) wanted: Vec<u32>,
    pub(crate) launches: Launches,
}

impl Layout {
    /// Lays a batch out whose sequences have grown by their tokens.
    pub(crate) fn new(batch: &[Entry<'_>], info: &DeviceInfo) -> Self {
        let mut layout = Layout::default();
        let mut row_of: Vec<Vec<u32>> = batch.iter().map(|entry| vec![0; entry.tokens.len()]).collect();
        let mut longest_alone = 0;
        for (seq, entry) in batch.iter().enumerate() {
            let mut from = 0;
            let mut alone = 0;
            let end = entry.tokens.len();
            for chunk in entry.chunks().chain(std::iter::once(end..end)) {
                alone += chunk.start - from;
                layout.push(seq, entry, from..chunk.start, &mut row_of[seq]);
                from = chunk.end;
            }
            longest_alone = longest_alone.max(alone);
        }
        let alone = layout.tokens.len() as u32;
        let mut launches = Launches { products: pieces(0..alone, info.rows_alone), ..Launches::default() };
        // A sequence's rows may stand in line as a run of the device's; none is longer than this.
        let run = if longest_alone as u64 > info.run_alone.into() { info.run_alone } else { u32::MAX };
        launches.attention = pieces(0..alone, run);
        for (seq, entry) in batch.iter().enumerate() {
            for chunk in entry.chunks() {
                let first = layout.tokens.len() as u32;
                layout.push(seq, entry, chunk, &mut row_of[seq]);
                let rows = first..layout.tokens.len() as u32;
                launches.products.push(rows.clone());
                launches.attention.push(rows);
            }
        }
        layout.launches = launches;
        layout.want(batch, &row_of, info);
        if info.rows_alone == u32::MAX {
            layout.launches.products = pieces(0..layout.tokens.len() as u32, u32::MAX);
        }
        layout
    }

    fn push(&mut self, seq: usize, entry: &Entry<'_>, tokens: Range<usize>, row_of: &mut [u32]) {
        let before = entry.sequence.tokens() - entry.tokens.len() as u64;
        for at in tokens {
            row_of[at] = self.tokens.len() as u32;
            self.tokens.push(entry.tokens[at]);
            self.positions.push((before + at as u64) as u32);
            self.row_seq.push(seq as u32);
        }
    }

    fn want(&mut self, batch: &[Entry<'_>], row_of: &[Vec<u32>], info: &DeviceInfo) {
        for (entry, rows) in batch.iter().zip(row_of) {
            self.wanted.extend(&rows[rows.len() - entry.logit_rows() as usize..]);
        }
        // Nobody else is in the step: the logits may be computed as a chunk.
        let by_itself = matches!(batch, [entry] if entry.wanted == Wanted::All);
        let most = if by_itself { u32::MAX } else { info.rows_alone };
        self.launches.logits = pieces(0..self.wanted.len() as u32, most);
    }
}

/// `rows` in pieces of up to `most`.
fn pieces(rows: Range<u32>, most: u32) -> Vec<Range<u32>> {
    let starts = rows.clone().step_by(most as usize);
    starts.map(|start| start..rows.end.min(start.saturating_add(most))).collect()
}

#[cfg(test)]
mod tests;
