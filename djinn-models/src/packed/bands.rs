//! Bands: the units of packing, hashing and reading.

use crate::StoredType;
use crate::file::Stored;
use djinn_lossless::{LosslessRow, SixteenBit};
use std::ops::Range;

/// The most bytes of a band, before it is packed.
pub(super) const BAND_BYTES: u64 = 1 << 20;
/// The fewest bytes of a band, before it is packed, that is not the last one of a tensor or of the header.
pub(super) const MIN_BAND_BYTES: u64 = BAND_BYTES / 2;
const _: () = assert!(LosslessRow::MAX_COLUMNS as u64 * 2 <= MIN_BAND_BYTES);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    Plain,
    Lossless,
}

/// A run of bytes of a safetensors file: of its header, of whole rows of one tensor, or of a tensor that is not a
/// 16-bit matrix.
#[derive(Clone, Copy, Debug)]
pub(super) struct Band {
    /// Offset in the safetensors file.
    pub(super) start: u64,
    pub(super) bytes: usize,
    /// The encoding of its rows, if they can be encoded and become smaller.
    rows: Option<(SixteenBit, LosslessRow)>,
}

/// Cuts a file of `total` bytes with these tensors, in its order; `None` if there would be more than `most` bands.
pub(super) fn cut(tensors: &[Stored], total: u64, most: u64) -> Option<Vec<Band>> {
    let mut bands = Vec::new();
    let mut push = |range: Range<u64>, rows: Option<(SixteenBit, LosslessRow)>| {
        let row_bytes = rows.map_or(1, |(_, row)| row.columns() as u64 * 2);
        let step = BAND_BYTES / row_bytes * row_bytes;
        let count = (range.end - range.start).div_ceil(step);
        if count > most.saturating_sub(bands.len() as u64) {
            return None;
        }
        bands.extend((0..count).map(|band| {
            let start = range.start + band * step;
            Band { start, bytes: step.min(range.end - start) as usize, rows }
        }));
        Some(())
    };
    push(0..tensors.first().map_or(total, |first| first.offset), None)?;
    for (i, tensor) in tensors.iter().enumerate() {
        let end = tensors.get(i + 1).map_or(total, |next| next.offset);
        push(tensor.offset..end, matrix(tensor))?;
    }
    Some(bands)
}

fn matrix(tensor: &Stored) -> Option<(SixteenBit, LosslessRow)> {
    let form = match tensor.info.stored {
        StoredType::BF16 => SixteenBit::BF16,
        StoredType::F16 => SixteenBit::F16,
        _ => return None,
    };
    let [_, .., columns] = *tensor.info.shape else { return None };
    let row = LosslessRow::new(usize::try_from(columns).ok()?)?;
    row.pays().then_some((form, row))
}

impl Band {
    /// The layout of its rows, if they can be encoded.
    pub(super) fn row(&self) -> Option<LosslessRow> {
        self.rows.map(|(_, row)| row)
    }

    /// Checks encoded rows.
    ///
    /// # Errors
    /// What is wrong with the first bad one.
    pub(super) fn check_rows(&self, packed: &[u8]) -> Result<(), String> {
        let Some((form, row)) = self.rows else {
            return Err("it is no matrix that can be encoded".to_owned());
        };
        let mut rows = packed.chunks_exact(row.bytes()).enumerate();
        rows.try_for_each(|(i, packed)| row.check(form, packed).map_err(|fault| format!("row {i}: {fault}")))
    }

    /// Bytes of the band with this packing; `None` if that is impossible.
    pub(super) fn packed_bytes(&self, packing: Packing) -> Option<usize> {
        match (packing, self.rows) {
            (Packing::Plain, _) => Some(self.bytes),
            (Packing::Lossless, Some((_, row))) => Some(self.bytes / (row.columns() * 2) * row.bytes()),
            (Packing::Lossless, None) => None,
        }
    }

    /// The band in 12 bits a value; `None` if it stays plain.
    pub(super) fn encode(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let (form, row) = self.rows?;
        let mut packed = vec![0; self.packed_bytes(Packing::Lossless)?];
        let rows = plain.chunks_exact(row.columns() * 2).zip(packed.chunks_exact_mut(row.bytes()));
        for (plain, packed) in rows {
            if !row.encode(form, plain, packed) {
                return None;
            }
        }
        Some(packed)
    }

    /// Decodes the band to `out`.
    ///
    /// # Errors
    /// What is wrong with `packed`.
    pub(super) fn decode(&self, packing: Packing, packed: &[u8], out: &mut [u8]) -> Result<(), String> {
        match (packing, self.rows) {
            (Packing::Lossless, rows) => {
                self.check_rows(packed)?;
                let (form, row) = rows.expect("it was just checked");
                let rows = packed.chunks_exact(row.bytes()).zip(out.chunks_exact_mut(row.columns() * 2));
                rows.for_each(|(packed, out)| row.decode(form, packed, out));
                Ok(())
            }
            (Packing::Plain, _) => {
                out.copy_from_slice(packed);
                Ok(())
            }
        }
    }
}
