//! A step's batch: its entries, the order of their rows, and the rows of each launch.
//!
//! A session's tokens must not depend on its neighbours, nor on their number. Devices ensure that for launches of few
//! rows ([`DeviceInfo::batch_invariant_rows`]); products of many rows choose their algorithm by the number of rows. So
//! a step has two kinds of rows. Single tokens and short runs come first; products take them in pieces of up to
//! `batch_invariant_rows`. *Chunks*, longer runs of a prompt, are launched one by one: a chunk's results depend on its
//! own length only. Products that are batch-invariant for any number of rows take all rows at once
//! ([`DeviceInfo::wide_products`]).

use super::choices::{SamplingRows, put};
use crate::parts::{Exchange, Parts};
use crate::{Error, Intervention, Result};
use djinn_device::{Changes, DeviceInfo, Draw, Drawn, Ops, Span};
use djinn_srg::{Rows, ValueId};
use std::ops::Range;

/// Runs of up to this many tokens are computed as batch-invariant rows, together with those of other sequences.
pub const SHORT_RUN: usize = 32;

/// Operands begin at a multiple of this many bytes. A prefill chunk may begin at any row. Batch-invariant pieces begin at
/// multiples of what the device computes batch-invariantly: four rows or a multiple, if there is a limit.
const ALIGN: u32 = 16;

/// Whether a launch may begin at any row of a matrix of `width` four-byte elements.
pub(super) fn is_aligned(width: u32) -> bool {
    (width * 4).is_multiple_of(ALIGN)
}

/// Which logits of an entry a step copies to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// None.
    Nothing,
    /// Those of the entry's last token.
    Last,
    /// Those of all its tokens.
    All,
}

/// A session's share of a step.
#[derive(Clone, Copy, Debug)]
pub struct BatchEntry<'a> {
    /// Its pages by position, with room for the tokens.
    pub pages: &'a [u32],
    /// Position of the first token.
    pub from: u64,
    /// Tokens, at least one.
    pub tokens: &'a [u32],
    /// Its only token is the one that the step under way chooses for this entry. `tokens` then has a placeholder.
    pub after: Option<usize>,
    /// Indices of the tokens that are computed as chunks, ascending and disjoint. The others are computed row by row.
    pub chunks: &'a [Range<usize>],
    /// Which logits are wanted on the host.
    pub wanted: Wanted,
    /// How the device chooses a token after the last one, if it does.
    pub choose: Option<Draw>,
    /// Changes of the logits for that choice: up to [`Sampling::MAX_BIASES`](crate::Sampling::MAX_BIASES) tokens more
    /// than the context has. A token that is not known yet ([`after`](Self::after)) is left out.
    pub changes: Changes<'a>,
    /// Reads and changes at hooks.
    pub interventions: &'a [Intervention],
}

impl BatchEntry<'_> {
    /// Number of last tokens that have logits.
    pub(crate) fn logit_rows(&self) -> u64 {
        self.wanted_rows().max(self.choose.is_some().into())
    }

    /// Number of those whose logits are copied to the host.
    fn wanted_rows(&self) -> u64 {
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

/// The rows of a batch, after checks of the entries' tokens.
///
/// # Errors
/// An entry without tokens, or a token outside the vocabulary.
pub(crate) fn rows(batch: &[BatchEntry<'_>], vocab: u64) -> Result<Rows> {
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

/// The rows of each launch. Operations that are not listed take all rows at once, since they treat each row alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowRuns {
    /// Of products over the step's rows.
    pub(crate) products: Vec<Range<u32>>,
    /// The same if rows have no multiple of [`ALIGN`] bytes: all rows, in batch-invariant pieces.
    pub(crate) narrow_products: Vec<Range<u32>>,
    /// Of products over the rows with wanted logits.
    pub(crate) logits: Vec<Range<u32>>,
    /// Whether wide products take all rows at once.
    pub(crate) wide: bool,
    /// Of attention: over the rows before `chunks`, then over prefill chunks. A launch takes several only if each is longer than
    /// `batch_invariant_run`, and those of one entry follow one another.
    pub(crate) attention: Vec<Range<u32>>,
    /// The same if rows have no multiple of [`ALIGN`] bytes: all rows, in batch-invariant pieces.
    pub(crate) narrow_attention: Vec<Range<u32>>,
    /// The first row of the first prefill chunk. Attention takes an entry's rows before it in runs of at most
    /// `batch_invariant_run`.
    pub(crate) chunks: u32,
    /// Rows of logits that are copied to the host.
    pub(crate) outputs: Outputs,
}

/// Rows of logits that are copied to the host, in order and disjoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outputs(pub(crate) Vec<Range<u32>>);

impl Outputs {
    pub(crate) fn copied_rows(&self) -> u64 {
        self.0.iter().map(|rows| rows.len() as u64).sum()
    }

    fn copy(&mut self, rows: Range<u32>) {
        match self.0.last_mut().filter(|last| last.end == rows.start) {
            Some(last) => last.end = rows.end,
            None if rows.is_empty() => {}
            None => self.0.push(rows),
        }
    }
}

/// A pass's inputs: a number for each row, and the launches.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Layout {
    pub(crate) tokens: Vec<u32>,
    pub(crate) positions: Vec<u32>,
    /// The entry that each row belongs to.
    pub(crate) row_seq: Vec<u32>,
    /// Rows with logits, in the order of the entries.
    pub(crate) wanted: Vec<u32>,
    /// How tokens are chosen from these rows; `None` where none is.
    pub(crate) choices: Option<SamplingRows>,
    /// By entry: the row of logits from which its token is chosen, if any.
    pub(crate) chosen: Vec<Option<u32>>,
    /// By row: the index of its token in the results of the previous step. Empty if the host knows the tokens.
    pub(crate) sources: Vec<u32>,
    pub(crate) runs: RowRuns,
}

impl Layout {
    /// Lays a batch out.
    pub(crate) fn new(batch: &[BatchEntry<'_>], info: &DeviceInfo) -> Self {
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
        let mut runs =
            RowRuns { products: pieces(0..alone, info.batch_invariant_rows), ..RowRuns::default() };
        // Some devices need a sequence's rows in runs of at most this length.
        let most = info.batch_invariant_run;
        let run = if longest_alone as u64 > most.into() { most } else { u32::MAX };
        runs.attention = pieces(0..alone, run);
        runs.chunks = alone;
        for (seq, entry) in batch.iter().enumerate() {
            let mut end = None;
            for chunk in entry.chunks() {
                let first = layout.tokens.len() as u32;
                let follows = end.is_none_or(|end| end == chunk.start);
                end = Some(chunk.end);
                layout.push(seq, entry, chunk, &mut row_of[seq]);
                let rows = first..layout.tokens.len() as u32;
                runs.products.push(rows.clone());
                let before = runs.attention.last_mut().filter(|before| before.start >= alone);
                match before.filter(|before| follows && before.len().min(rows.len()) as u64 > most.into()) {
                    Some(before) => before.end = rows.end,
                    None => runs.attention.push(rows),
                }
            }
        }
        runs.wide = info.wide_products;
        let all = 0..layout.tokens.len() as u32;
        runs.narrow_products = pieces(all.clone(), info.batch_invariant_rows);
        runs.narrow_attention = pieces(all, info.batch_invariant_run);
        layout.runs = runs;
        layout.want(batch, &row_of, info);
        if info.batch_invariant_rows == u32::MAX {
            layout.runs.products = pieces(0..layout.tokens.len() as u32, u32::MAX);
        }
        layout
    }

    pub(crate) fn rows(&self) -> Rows {
        Rows { rows: self.tokens.len() as u64, logit_rows: self.wanted.len() as u64 }
    }

    fn push(&mut self, seq: usize, entry: &BatchEntry<'_>, tokens: Range<usize>, row_of: &mut [u32]) {
        for at in tokens {
            row_of[at] = self.tokens.len() as u32;
            self.tokens.push(entry.tokens[at]);
            self.positions.push((entry.from + at as u64) as u32);
            self.row_seq.push(seq as u32);
        }
    }

    fn want(&mut self, batch: &[BatchEntry<'_>], row_of: &[Vec<u32>], info: &DeviceInfo) {
        for (entry, rows) in batch.iter().zip(row_of) {
            self.wanted.extend(&rows[rows.len() - entry.logit_rows() as usize..]);
            let end = self.wanted.len();
            self.runs.outputs.copy((end - entry.wanted_rows() as usize) as u32..end as u32);
            if let Some(draw) = &entry.choose {
                self.choices.get_or_insert_default().set(end - 1, draw, &entry.changes);
            }
            self.chosen.push(entry.choose.map(|_| end as u32 - 1));
        }
        // A step with one sequence may compute the logits as a prefill chunk.
        let by_itself = matches!(batch, [entry] if entry.wanted == Wanted::All);
        let most = if by_itself { u32::MAX } else { info.batch_invariant_rows };
        self.runs.logits = pieces(0..self.wanted.len() as u32, most);
    }

    /// Takes the tokens of `batch` from the choices of the step under way; `chosen` has their rows by entry.
    ///
    /// # Panics
    /// If only some entries come [after](BatchEntry::after) one of that step, or one has other tokens, or the earlier
    /// step chooses none for it.
    pub(crate) fn follow(&mut self, batch: &[BatchEntry<'_>], chosen: &[Option<u32>]) {
        let source = |entry: &BatchEntry<'_>| {
            let row = entry.after.and_then(|before| chosen[before]);
            let row = row.filter(|_| entry.tokens.len() == 1);
            row.expect("each entry has one token, which the step under way chooses") * Drawn::WORDS as u32
                + Drawn::TOKEN as u32
        };
        let sources: Vec<u32> = batch.iter().map(source).collect();
        for (row, &source) in self.chosen.iter().zip(&sources) {
            if let (Some(choices), Some(row)) = (&mut self.choices, row) {
                choices.follow(*row as usize, source);
            }
        }
        self.sources = self.row_seq.iter().map(|&entry| sources[entry as usize]).collect();
    }

    /// Writes the step's inputs and its page table to host memory, for their copies.
    pub(crate) fn write<D: Ops>(
        &self,
        device: &D,
        parts: &Parts,
        exchange: &Exchange,
        batch: &[BatchEntry<'_>],
    ) {
        let (Parts { graph, plan, .. }, Exchange { inputs, table, sources, .. }) = (parts, exchange);
        let place = |id: ValueId| plan.stack.offset(id) as usize;
        device.write_host(inputs.span(), |bytes| {
            put(&mut bytes[place(graph.tokens)..], &self.tokens);
            put(&mut bytes[place(graph.positions)..], &self.positions);
            put(&mut bytes[place(graph.row_seq)..], &self.row_seq);
            put(&mut bytes[place(graph.logit_rows)..], &self.wanted);
        });
        device.write_host(sources.span(), |bytes| put(bytes, &self.sources));
        let width = plan.kv.table_width as usize * 4;
        device.write_host(table.span(), |bytes| {
            for (row, entry) in bytes.chunks_exact_mut(width).zip(batch) {
                put(row, entry.pages);
            }
        });
    }
}

/// Some rows of a matrix of four-byte elements.
pub(super) fn words(all: Span, rows: &Range<u32>, width: u32) -> Span {
    let row_bytes = u64::from(width) * 4;
    all.slice(u64::from(rows.start) * row_bytes, u64::from(rows.end - rows.start) * row_bytes)
}

/// `rows` in pieces of up to `most`.
fn pieces(rows: Range<u32>, most: u32) -> Vec<Range<u32>> {
    let starts = rows.clone().step_by(most as usize);
    starts.map(|start| start..rows.end.min(start.saturating_add(most))).collect()
}

#[cfg(test)]
mod tests;
