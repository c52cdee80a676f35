//! The choice of tokens, each row by one thread.

use super::Fast;
use super::buffer::Shared;
use super::data::Choose;
use super::simd::{Kernel, Simd};
use djinn_device::{Changes, Draw, Drawn, choice};

impl Fast {
    /// See [`djinn_device::args::Choose`].
    pub(crate) fn choose(&self, op: Choose<'_>) {
        let Choose { logits, draws, changes, earlier, vocab, drawn } = op;
        let (draws, drawn) = (draws.as_chunks::<{ Draw::WORDS }>().0, Shared::new(drawn));
        self.pool.run(draws.len(), |row| {
            // SAFETY: rows are disjoint.
            #[allow(unsafe_code, reason = "rows are written in parallel")]
            let drawn = unsafe { drawn.slice(row * Drawn::WORDS, Drawn::WORDS) };
            let logits = &logits[row * vocab..][..vocab];
            let changes = Changes::find(&draws[row], vocab, changes, earlier);
            self.isa.run(ChooseRow { logits, draw: draws[row], changes, drawn });
        });
    }
}

/// The choice from one row, by the instructions at hand: no two of them are fused, so that the bits are those of any.
struct ChooseRow<'a> {
    logits: &'a [f32],
    draw: [u32; Draw::WORDS],
    changes: Changes<'a>,
    drawn: &'a mut [u32],
}

impl Kernel for ChooseRow<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        match Draw::from_words(self.draw) {
            Some(draw) => choice::choose_changed(self.logits, &draw, &self.changes).write(self.drawn),
            None => self.drawn[..4].fill(0),
        }
    }
}
