//! The choice of tokens, each row by one thread.

use super::Fast;
use super::buffer::Shared;
use super::data::Choose;
use super::simd::{Kernel, Simd};
use djinn_device::{Draw, Drawn, choice};

impl Fast {
    /// See [`djinn_device::args::Choose`].
    pub(crate) fn choose(&self, op: Choose<'_>) {
        let Choose { logits, draws, vocab, drawn } = op;
        let (draws, drawn) = (draws.as_chunks::<{ Draw::WORDS }>().0, Shared::new(drawn));
        self.pool.run(draws.len(), |row| {
            // SAFETY: rows are disjoint.
            #[allow(unsafe_code, reason = "rows are written in parallel")]
            let drawn = unsafe { drawn.slice(row * Drawn::WORDS, Drawn::WORDS) };
            let logits = &logits[row * vocab..][..vocab];
            self.isa.run(ChooseRow { logits, draw: draws[row], drawn });
        });
    }
}

/// The choice from one row, by the instructions at hand: no two of them are fused, so that the bits are those of any.
struct ChooseRow<'a> {
    logits: &'a [f32],
    draw: [u32; Draw::WORDS],
    drawn: &'a mut [u32],
}

impl Kernel for ChooseRow<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let drawn = Draw::from_words(self.draw).map(|draw| choice::choose(self.logits, &draw).words());
        self.drawn.copy_from_slice(&drawn.unwrap_or_default());
    }
}
