//! Where the rows of weights that a register tile reads come from.

use super::tile::WEIGHT_ROWS;
use crate::kernels::blocks::{
    self, BlockVectors, DecodeBlocks, GROUP_RUNS, RUN, Scales, row_bytes, with_format,
};
use crate::kernels::element::Element;
use crate::kernels::lossless::Lossless;
use crate::kernels::simd::{Isa, Simd};
use djinn_device::BlockFormat;
use std::marker::PhantomData;
use std::ops::Range;

/// A matrix whose rows are read a few at a time.
pub(super) trait RowSource: Copy + Send + Sync {
    /// What its elements are when they are read.
    type Element: Element;
    /// Whether rows are read where they lie.
    const IN_PLACE: bool;

    /// Some rows of `k` elements: where they lie, or in `scratch`.
    fn rows<'a>(&'a self, rows: Range<usize>, k: usize, scratch: &'a mut [f32]) -> &'a [Self::Element];

    /// The scratch that `rows` rows of `k` elements need.
    fn scratch_elements(&self, rows: usize, k: usize) -> usize;

    /// Stored bytes of a row of `k` elements.
    fn row_bytes(&self, k: usize) -> usize;

    /// The dot products of `COLUMNS` rows with one packed row of activations, if the rows are better not written down
    /// for it. The order of a sum is that of the same product over `rows`.
    fn dot<S: Simd, const COLUMNS: usize>(
        &self,
        simd: S,
        first: usize,
        x: &[f32],
    ) -> Option<[f32; WEIGHT_ROWS]>;
}

impl<E: Element> RowSource for &[E] {
    type Element = E;
    const IN_PLACE: bool = true;

    #[inline(always)]
    fn rows<'a>(&'a self, rows: Range<usize>, k: usize, _: &'a mut [f32]) -> &'a [E] {
        &self[rows.start * k..rows.end * k]
    }

    fn scratch_elements(&self, _: usize, _: usize) -> usize {
        0
    }

    fn row_bytes(&self, k: usize) -> usize {
        k * size_of::<E>()
    }

    #[inline(always)]
    fn dot<S: Simd, const COLUMNS: usize>(&self, _: S, _: usize, _: &[f32]) -> Option<[f32; WEIGHT_ROWS]> {
        None
    }
}

/// Rows in blocks.
#[derive(Clone, Copy)]
pub(super) struct Decoded<'w> {
    isa: Isa,
    format: BlockFormat,
    blocks: &'w [u8],
    row_bytes: usize,
}

impl<'w> Decoded<'w> {
    /// Rows of `k` elements, a whole number of blocks.
    pub(super) fn new(isa: Isa, format: BlockFormat, blocks: &'w [u8], k: usize) -> Self {
        Decoded { isa, format, blocks, row_bytes: row_bytes(format, k) }
    }
}

impl RowSource for Decoded<'_> {
    type Element = f32;
    const IN_PLACE: bool = false;

    #[inline(always)]
    fn rows<'a>(&'a self, rows: Range<usize>, k: usize, scratch: &'a mut [f32]) -> &'a [f32] {
        let out = &mut scratch[..(rows.end - rows.start) * k];
        let blocks = &self.blocks[rows.start * self.row_bytes..rows.end * self.row_bytes];
        self.isa.run(DecodeBlocks { format: self.format, k, blocks, out });
        out
    }

    fn scratch_elements(&self, rows: usize, k: usize) -> usize {
        rows * k
    }

    fn row_bytes(&self, _: usize) -> usize {
        self.row_bytes
    }

    #[inline(always)]
    fn dot<S: Simd, const COLUMNS: usize>(
        &self,
        simd: S,
        first: usize,
        x: &[f32],
    ) -> Option<[f32; WEIGHT_ROWS]> {
        let blocks = &self.blocks[first * self.row_bytes..(first + COLUMNS) * self.row_bytes];
        Some(with_format!(self.format, F => dot::<S, F, COLUMNS>(simd, blocks, self.row_bytes, x)))
    }
}

/// Rows in 12 bits, of elements `E`.
#[derive(Clone, Copy)]
pub(super) struct Packed<'w, E> {
    isa: Isa,
    matrix: Lossless<'w>,
    element: PhantomData<E>,
}

impl<'w, E> Packed<'w, E> {
    /// The rows of `matrix`, whose elements are `E`.
    pub(super) fn new(isa: Isa, matrix: Lossless<'w>) -> Self {
        Packed { isa, matrix, element: PhantomData }
    }
}

impl<E: Element> RowSource for Packed<'_, E> {
    type Element = E;
    const IN_PLACE: bool = false;

    #[inline(always)]
    fn rows<'a>(&'a self, rows: Range<usize>, k: usize, scratch: &'a mut [f32]) -> &'a [E] {
        let out: &mut [E] = &mut bytemuck::cast_slice_mut(scratch)[..(rows.end - rows.start) * k];
        self.isa.run(self.matrix.decode(rows, out));
        out
    }

    fn scratch_elements(&self, rows: usize, k: usize) -> usize {
        (rows * k * size_of::<E>()).div_ceil(size_of::<f32>())
    }

    fn row_bytes(&self, _: usize) -> usize {
        self.matrix.row.bytes()
    }

    #[inline(always)]
    fn dot<S: Simd, const COLUMNS: usize>(&self, _: S, _: usize, _: &[f32]) -> Option<[f32; WEIGHT_ROWS]> {
        None
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
