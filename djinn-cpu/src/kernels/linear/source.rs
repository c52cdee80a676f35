//! The rows of weights that a register tile reads.

use super::tile::WEIGHT_ROWS;
use crate::kernels::blocks::{
    self, BlockVectors, DecodeBlocks, GROUP_RUNS, RUN, Scales, row_bytes, with_format,
};
use crate::kernels::element::Element;
use crate::kernels::lossless::Lossless;
use crate::kernels::simd::{Isa, Simd};
use djinn_device::BlockFormat;
use std::ops::Range;

/// A matrix whose rows are read a few at a time, as elements `E`.
#[derive(Clone, Copy)]
pub(super) enum Weights<'w, E> {
    /// Elements, which are read where they lie.
    Plain(&'w [E]),
    /// Rows in 12 bits, of elements `E`.
    Lossless(Lossless<'w>),
    /// Rows in blocks; `E` is f32.
    Blocks(Blocks<'w>),
}

/// Rows in blocks, which are read as f32.
#[derive(Clone, Copy)]
pub(super) struct Blocks<'w> {
    format: BlockFormat,
    bytes: &'w [u8],
    row_bytes: usize,
}

impl<'w> Weights<'w, f32> {
    /// Rows of `k` elements, a whole number of blocks.
    pub(super) fn blocks(format: BlockFormat, bytes: &'w [u8], k: usize) -> Self {
        Weights::Blocks(Blocks { format, bytes, row_bytes: row_bytes(format, k) })
    }
}

impl<E: Element> Weights<'_, E> {
    /// Whether activations are packed for [interleaved](Element::INTERLEAVED) weights.
    pub(super) const fn interleaved(&self) -> bool {
        E::INTERLEAVED
    }

    pub(super) fn are_in_place(&self) -> bool {
        matches!(self, Weights::Plain(_))
    }

    /// Some rows of `k` elements: where they lie, or in `scratch`.
    #[inline(always)]
    pub(super) fn rows<'a>(
        &'a self,
        isa: Isa,
        rows: Range<usize>,
        k: usize,
        scratch: &'a mut [f32],
    ) -> &'a [E] {
        match self {
            Weights::Plain(all) => &all[rows.start * k..rows.end * k],
            Weights::Lossless(matrix) => {
                let out: &mut [E] = &mut bytemuck::cast_slice_mut(scratch)[..rows.len() * k];
                isa.run(matrix.decode(rows, out));
                out
            }
            Weights::Blocks(blocks) => {
                let out = &mut scratch[..rows.len() * k];
                isa.run(DecodeBlocks { format: blocks.format, k, blocks: blocks.rows(rows), out });
                bytemuck::cast_slice(out)
            }
        }
    }

    /// The scratch that `rows` rows of `k` elements need.
    pub(super) fn scratch_elements(&self, rows: usize, k: usize) -> usize {
        match self {
            Weights::Plain(_) => 0,
            _ => (rows * k * size_of::<E>()).div_ceil(size_of::<f32>()),
        }
    }

    /// Stored bytes of a row of `k` elements.
    pub(super) fn row_bytes(&self, k: usize) -> usize {
        match self {
            Weights::Plain(_) => k * size_of::<E>(),
            Weights::Lossless(matrix) => matrix.row.bytes(),
            Weights::Blocks(blocks) => blocks.row_bytes,
        }
    }
}

impl<'w> Blocks<'w> {
    fn rows(&self, rows: Range<usize>) -> &'w [u8] {
        &self.bytes[rows.start * self.row_bytes..rows.end * self.row_bytes]
    }

    /// The dot products of `COLUMNS` rows with one packed row of activations. The rows are not written down for it. The
    /// order of a sum is that of the same product over f32.
    #[inline(always)]
    pub(super) fn dot<S: Simd, const COLUMNS: usize>(
        &self,
        simd: S,
        first: usize,
        x: &[f32],
    ) -> [f32; WEIGHT_ROWS] {
        let blocks = self.rows(first..first + COLUMNS);
        with_format!(self.format, F => dot::<S, F, COLUMNS>(simd, blocks, self.row_bytes, x))
    }
}

/// The dot products of `COLUMNS` rows of blocks with a row of activations. Weights are decoded in registers; the vectors
/// of a row enter one sum in their order.
#[inline(always)]
fn dot<S: Simd, F: BlockVectors, const COLUMNS: usize>(
    simd: S,
    blocks: &[u8],
    row_bytes: usize,
    x: &[f32],
) -> [f32; WEIGHT_ROWS] {
    let (x, _) = x.as_chunks::<RUN>();
    let mut of = [F::blocks(&[]); COLUMNS];
    for c in 0..COLUMNS {
        of[c] = F::blocks(&blocks[c * row_bytes..][..row_bytes]);
        assert_eq!(of[c].len() * F::RUNS, x.len());
    }
    let mut sums = [simd.splat(0.0); WEIGHT_ROWS];
    let mut scales = [Scales::default(); COLUMNS];
    for first in (0..x.len()).step_by(GROUP_RUNS) {
        let x = &x[first..x.len().min(first + GROUP_RUNS)];
        let mut rows = of;
        for c in 0..COLUMNS {
            rows[c] = &of[c][first / F::RUNS..][..x.len() / F::RUNS];
            F::scales(simd, rows[c], &mut scales[c]);
        }
        for (run, x) in x.iter().enumerate() {
            for c in 0..COLUMNS {
                for v in 0..RUN / S::LANES {
                    let weights = blocks::weights::<S, F>(simd, rows[c], &scales[c], run, v * S::LANES);
                    sums[c] = simd.fma(weights, simd.read(&x[v * S::LANES..]), sums[c]);
                }
            }
        }
    }
    simd.sums(sums)
}
