//! The online softmax: turns a block's scores into weights, and rescales what was summed before.

use super::BLOCK;
use crate::kernels::simd::{Kernel, Simd};
use std::ops::Range;

/// One block, for each query.
pub(super) struct Softmax<'a, F> {
    /// `[queries, BLOCK]`: scores in, weights out.
    pub(super) scores: &'a mut [f32],
    /// `[queries, width]`: weighted values of the blocks before.
    pub(super) sums: &'a mut [f32],
    pub(super) width: usize,
    /// Each query's largest score so far.
    pub(super) largest: &'a mut [f32],
    /// Each query's sum of weights so far.
    pub(super) totals: &'a mut [f32],
    /// The positions of the block that a query sees, at least one; the others' scores are ignored.
    pub(super) visible: F,
}

impl<F: Fn(usize) -> Range<usize>> Kernel for Softmax<'_, F> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let rows = self.scores.chunks_exact_mut(BLOCK).zip(self.sums.chunks_exact_mut(self.width));
        for (i, (scores, sums)) in rows.enumerate() {
            let visible = (self.visible)(i);
            scores[..visible.start].fill(f32::NEG_INFINITY);
            scores[visible.end..].fill(f32::NEG_INFINITY);
            let before = self.largest[i];
            let mut largest = simd.splat(before);
            for scores in scores.chunks_exact(S::LANES) {
                largest = simd.max(largest, simd.read(scores));
            }
            let now = simd.largest(largest);
            let base = simd.splat(now);
            let mut total = simd.splat(0.0);
            for scores in scores.chunks_exact_mut(S::LANES) {
                let weights = simd.exp(simd.sub(simd.read(scores), base));
                total = simd.add(total, weights);
                simd.write(scores, weights);
            }
            let total = simd.sums([total; 4])[0];
            // e^(-inf) is 0: nothing was summed before the first block.
            let mut shrink = [0.0];
            simd.write_partial(&mut shrink, simd.exp(simd.splat(before - now)));
            self.largest[i] = now;
            self.totals[i] = self.totals[i] * shrink[0] + total;
            if shrink[0] != 1.0 {
                for sums in sums.chunks_exact_mut(S::LANES) {
                    let shrunk = simd.mul(simd.read(sums), simd.splat(shrink[0]));
                    simd.write(sums, shrunk);
                }
            }
        }
    }
}

/// `out = sums / total`.
pub(super) struct Finish<'a> {
    pub(super) sums: &'a [f32],
    pub(super) total: f32,
    pub(super) out: &'a mut [f32],
}

impl Kernel for Finish<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let factor = 1.0 / self.total;
        for (out, sum) in self.out.iter_mut().zip(self.sums) {
            // Adding 0 turns -0 into 0: positions that a row does not see may flip the sign of a zero.
            *out = sum * factor + 0.0;
        }
    }
}
