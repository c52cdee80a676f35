//! Where the rows of weights that a register tile reads come from.

use crate::kernels::element::{DecodeBlocks, Element, blocks_bytes};
use crate::kernels::simd::Isa;
use djinn_device::BlockFormat;
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
        Decoded { isa, format, blocks, row_bytes: blocks_bytes(format, k) }
    }
}

impl RowSource for Decoded<'_> {
    type Element = f32;
    const IN_PLACE: bool = false;

    #[inline(always)]
    fn rows<'a>(&'a self, rows: Range<usize>, k: usize, scratch: &'a mut [f32]) -> &'a [f32] {
        let out = &mut scratch[..(rows.end - rows.start) * k];
        let blocks = &self.blocks[rows.start * self.row_bytes..rows.end * self.row_bytes];
        self.isa.run(DecodeBlocks { format: self.format, blocks, out });
        out
    }

    fn scratch_elements(&self, rows: usize, k: usize) -> usize {
        rows * k
    }

    fn row_bytes(&self, _: usize) -> usize {
        self.row_bytes
    }
}
