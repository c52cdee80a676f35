//! Attention with linear biases (Press et al. 2022): scores fall with the distance of their key. The definition is
//! that of [`Op::Attention`](djinn_srg::Op::Attention).

use super::BLOCK;
use crate::kernels::simd::{Kernel, Simd};
use djinn_device::reference::alibi::bias;

/// The biases of the keys from a position on.
pub(super) fn tabulate(slope: f32, start: usize, biases: &mut [f32]) {
    for (i, to) in biases.iter_mut().enumerate() {
        *to = bias(slope, start + i);
    }
}

/// Adds biases to a block of scores, less that of each row's own position: so they vanish where the softmax is
/// greatest, and cost no precision there.
pub(super) struct Shift<'a, F> {
    /// `[queries, BLOCK]`, without biases.
    pub(super) scores: &'a mut [f32],
    /// `[heads of the group, BLOCK]`: the biases of the block's positions.
    pub(super) biases: &'a [f32],
    /// The bias of a query's own position.
    pub(super) own: F,
    pub(super) scale: f32,
}

impl<F: Fn(usize) -> f32> Kernel for Shift<'_, F> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let group = self.biases.len() / BLOCK;
        for (query, scores) in self.scores.chunks_exact_mut(BLOCK).enumerate() {
            let (own, biases) = ((self.own)(query), &self.biases[query % group * BLOCK..][..BLOCK]);
            for (score, bias) in scores.iter_mut().zip(biases) {
                *score += (bias - own) * self.scale;
            }
        }
    }
}
