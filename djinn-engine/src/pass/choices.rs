//! The sampling settings of a step, as the device reads them. They are written at the step's beginning, or later if
//! they depend on tokens of the previous step.

use crate::parts::{Exchange, Parts};
use djinn_device::args::Choose;
use djinn_device::{Change, Changes, Draw, Drawn, Ops, Span};
use djinn_srg::Rows;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chooses {
    /// At the end of the step.
    Now,
    /// At the end of the step, with settings that are written when the previous step has finished.
    Later,
}

/// By row of logits: how a token is chosen from it, if any.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct SamplingRows {
    draws: Vec<[u32; Draw::WORDS]>,
    changes: Vec<u32>,
}

impl SamplingRows {
    pub(super) fn set(&mut self, row: usize, draw: &Draw, changes: &Changes<'_>) {
        assert_eq!(changes.latest, None, "the latest token comes from the step before");
        self.draws.resize(self.draws.len().max(row + 1), [0; Draw::WORDS]);
        self.draws[row] = draw.words();
        changes.put(&mut self.draws[row], &mut self.changes);
    }

    /// A row's latest token is at index `source` of the previous step's choices.
    pub(super) fn follow(&mut self, row: usize, source: u32) {
        if Draw::from_words(self.draws[row]).is_some_and(|draw| draw.penalises()) {
            Changes::put_latest(&mut self.draws[row], source);
        }
    }

    /// Writes the settings to host memory. Returns the operation over the rows of a pass.
    pub(super) fn write<D: Ops>(&self, device: &D, parts: &Parts, exchange: usize, rows: Rows) -> Choose {
        let Parts { graph, stack, exchanges, .. } = parts;
        let Exchange { draws, changes, drawn, .. } = exchanges[exchange];
        let count = rows.logit_rows;
        let draws = draws.slice(0, count * Draw::WORDS as u64 * 4);
        let changes = changes.slice(0, (self.changes.len().max(Change::WORDS) * 4) as u64);
        device.write_host(draws, |bytes| {
            bytes[self.draws.len() * Draw::WORDS * 4..].fill(0);
            put(bytes, self.draws.as_flattened());
        });
        device.write_host(changes, |bytes| put(bytes, &self.changes));
        Choose {
            logits: stack.span(graph, graph.logits, rows),
            draws,
            changes,
            earlier: exchanges[1 - exchange].drawn.span(),
            drawn: drawn_rows(drawn.span(), count),
            vocab: graph.vocab as u32,
            rows: count as u32,
        }
    }
}

/// The results of the first `rows` rows.
fn drawn_rows(drawn: Span, rows: u64) -> Span {
    drawn.slice(0, rows * Drawn::WORDS as u64 * 4)
}

/// The tokens chosen from the first `rows` rows.
pub(super) fn read<D: Ops>(device: &D, drawn: Span, rows: u64) -> Vec<Drawn> {
    device.read_host(drawn_rows(drawn, rows), |bytes| {
        let (rows, _) = bytemuck::cast_slice::<u8, u32>(bytes).as_chunks::<{ Drawn::WORDS }>();
        rows.iter().filter_map(|row| Drawn::read(row)).collect()
    })
}

/// Writes `words` little-endian at the start of `bytes`.
pub(super) fn put(bytes: &mut [u8], words: &[u32]) {
    for (out, word) in bytes.chunks_exact_mut(4).zip(words) {
        out.copy_from_slice(&word.to_le_bytes());
    }
}
