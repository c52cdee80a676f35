//! Packing of activation rows into the order in which a register tile reads them.

use crate::kernels::simd::{Kernel, Simd};

/// Packs the rows of one tile.
pub(super) struct Pack<'a> {
    /// `[rows, k]`.
    pub(super) from: &'a [f32],
    pub(super) k: usize,
    pub(super) rows: usize,
    /// Whether a step's halves are its even and its odd elements.
    pub(super) interleaved: bool,
    /// `[steps, 2, rows, LANES]`, zeros past `k`.
    pub(super) to: &'a mut [f32],
}

impl Kernel for Pack<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let step = 2 * S::LANES;
        for (r, row) in self.from.chunks_exact(self.k).enumerate() {
            let steps = row.chunks(step).zip(self.to.chunks_exact_mut(step * self.rows));
            for (from, to) in steps {
                let (first, second) = to.split_at_mut(S::LANES * self.rows);
                let first = &mut first[r * S::LANES..][..S::LANES];
                let second = &mut second[r * S::LANES..][..S::LANES];
                if from.len() < step {
                    first.fill(0.0);
                    second.fill(0.0);
                }
                if self.interleaved {
                    for (pair, (first, second)) in from.chunks(2).zip(first.iter_mut().zip(second)) {
                        *first = pair[0];
                        if let Some(&odd) = pair.get(1) {
                            *second = odd;
                        }
                    }
                } else {
                    let half = from.len().min(S::LANES);
                    first[..half].copy_from_slice(&from[..half]);
                    second[..from.len() - half].copy_from_slice(&from[half..]);
                }
            }
        }
    }
}
