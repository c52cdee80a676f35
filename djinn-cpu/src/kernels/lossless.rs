//! Rows of [`LosslessRow`]: decoded a few at a time into the first-level cache, from where they are read like plain ones.

use super::element::Element;
use super::simd::{Kernel, Simd};
use djinn_lossless::{LosslessRow, SixteenBit};
use std::ops::Range;

/// A matrix of such rows.
#[derive(Clone, Copy)]
pub(crate) struct Lossless<'a> {
    pub(crate) form: SixteenBit,
    pub(crate) row: LosslessRow,
    pub(crate) bytes: &'a [u8],
}

impl<'a> Lossless<'a> {
    /// Writes some of its rows to `out`, 16-bit elements of the matrix's type.
    pub(crate) fn decode<'o, E: Element>(self, rows: Range<usize>, out: &'o mut [E]) -> DecodeRows<'o>
    where
        'a: 'o,
    {
        let bytes = &self.bytes[rows.start * self.row.bytes()..rows.end * self.row.bytes()];
        let out: &mut [u8] = bytemuck::cast_slice_mut(out);
        assert_eq!(out.len(), rows.len() * self.row.columns() * 2, "bytes of decoded rows");
        DecodeRows { matrix: Lossless { bytes, ..self }, out }
    }
}

/// Decodes rows.
pub(crate) struct DecodeRows<'a> {
    matrix: Lossless<'a>,
    out: &'a mut [u8],
}

impl Kernel for DecodeRows<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Lossless { form, row, bytes } = self.matrix;
        let rows = bytes.chunks_exact(row.bytes()).zip(self.out.chunks_exact_mut(row.columns() * 2));
        for (encoded, out) in rows {
            row.decode(form, encoded, out);
        }
    }
}
