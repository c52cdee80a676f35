//! The layout of weights in memory, and the only place that computes their bytes.
//!
//! A weight has an element type and, for each run of rows, an [`Encoding`] of the elements. Code that places, copies
//! or reads a weight gets its bytes from [`Encoding::tile`].

mod block;
#[cfg(test)]
mod tests;

pub use block::BlockFormat;

use crate::DType;
use djinn_lossless::{LosslessRow, SixteenBit};
use serde::{Serialize, Serializer};
use std::ops::Range;

/// How a matrix's elements are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Encoding {
    /// Row-major elements of the weight's type.
    #[default]
    Plain,
    /// Rows of [`LosslessRow`]: bf16 or f16 in about 12 bits, without loss.
    Lossless,
    /// Row-major blocks of neighbouring elements of a row, decoded to f32. Rows are padded: [`Encoding::row_bytes`].
    Blocks(BlockFormat),
}

/// The byte layout of some rows of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileLayout {
    /// The runs of bytes that it consists of, in order. Unused ones are empty.
    pub planes: [Plane; TileLayout::PLANES],
    /// All bytes, from the first plane's first to the last one's last.
    pub bytes: u64,
}

impl TileLayout {
    /// The most planes of an encoding.
    pub const PLANES: usize = 4;
    /// A tile starts at a multiple of this many bytes, and so does each of its planes.
    pub const ALIGN: u64 = 256;

    /// Planes one after the other, given their bytes; `None` if the sum overflows.
    const fn of(bytes: [u64; TileLayout::PLANES]) -> Option<TileLayout> {
        let mut planes = [Plane { offset: 0, bytes: 0 }; TileLayout::PLANES];
        let (mut end, mut i) = (0u64, 0);
        while i < TileLayout::PLANES {
            if bytes[i] > 0 {
                let Some(offset) = end.checked_next_multiple_of(TileLayout::ALIGN) else { return None };
                planes[i] = Plane { offset, bytes: bytes[i] };
                let Some(after) = offset.checked_add(bytes[i]) else { return None };
                end = after;
            }
            i += 1;
        }
        Some(TileLayout { planes, bytes: end })
    }
}

/// A run of bytes of one kind in a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plane {
    /// Offset of its first byte in the tile.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
}

impl Encoding {
    /// Every encoding but [`Plain`](Self::Plain).
    pub const ENCODED: [Encoding; 1 + BlockFormat::ALL.len()] = {
        let mut all = [Encoding::Lossless; 1 + BlockFormat::ALL.len()];
        let mut i = 1;
        while i < all.len() {
            all[i] = Encoding::Blocks(BlockFormat::ALL[i - 1]);
            i += 1;
        }
        all
    };

    /// A row of blocks begins at a multiple of this many bytes from the first row, so that devices may copy 16 bytes at a
    /// time.
    pub const ROW_ALIGN: u64 = 16;

    /// Bytes from the beginning of a row of `columns` elements to that of the next row; `dtype` is their type if the
    /// encoding keeps it. A row of blocks is padded with zeros to a multiple of [`ROW_ALIGN`](Self::ROW_ALIGN); what is
    /// computed from a row does not depend on the padding. `None` if a row is not a whole number of blocks, or if the bytes
    /// overflow. For [`Lossless`](Self::Lossless), `None` if the type does not have 16 bits or a row has too many columns.
    pub const fn row_bytes(self, dtype: DType, columns: u64) -> Option<u64> {
        match self {
            Encoding::Plain => columns.checked_mul(dtype.bytes()),
            Encoding::Lossless => match lossless_row(dtype, columns) {
                Some((_, row)) => Some(row.bytes() as u64),
                None => None,
            },
            Encoding::Blocks(format) => match format.blocks_bytes(columns) {
                Some(bytes) => bytes.checked_next_multiple_of(Encoding::ROW_ALIGN),
                None => None,
            },
        }
    }

    /// The layout of `rows` rows of `columns` elements, of [`row_bytes`](Self::row_bytes) each. `None` as there.
    pub const fn tile(self, dtype: DType, rows: u64, columns: u64) -> Option<TileLayout> {
        let Some(row) = self.row_bytes(dtype, columns) else { return None };
        let Some(bytes) = rows.checked_mul(row) else { return None };
        TileLayout::of([bytes, 0, 0, 0])
    }

    /// The name: `plain`, `lossless`, or a block format's own.
    pub const fn name(self) -> &'static str {
        match self {
            Encoding::Plain => "plain",
            Encoding::Lossless => "lossless",
            Encoding::Blocks(format) => format.name(),
        }
    }
}

/// The lossless encoding of rows of `columns` elements; `None` if the type does not have 16 bits, or if there is no
/// such row.
pub const fn lossless_row(dtype: DType, columns: u64) -> Option<(SixteenBit, LosslessRow)> {
    let form = match dtype {
        DType::BF16 => SixteenBit::BF16,
        DType::F16 => SixteenBit::F16,
        DType::F32 | DType::Int8 | DType::U32 => return None,
    };
    if columns > LosslessRow::MAX_COLUMNS as u64 {
        return None;
    }
    match LosslessRow::new(columns as usize) {
        Some(row) => Some((form, row)),
        None => None,
    }
}

impl std::fmt::Display for Encoding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Encoding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// The encoding of each row of a weight. Rows that it does not contain are plain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowEncodings {
    /// Runs of rows from the first row on, by the row after each; neighbours differ.
    runs: Vec<(u64, Encoding)>,
}

impl RowEncodings {
    /// Appends `rows` rows of this encoding.
    pub fn push(&mut self, rows: u64, encoding: Encoding) {
        let end = self.rows() + rows;
        match self.runs.last_mut() {
            _ if rows == 0 => {}
            Some(last) if last.1 == encoding => last.0 = end,
            _ => self.runs.push((end, encoding)),
        }
    }

    /// Number of rows that it contains.
    pub fn rows(&self) -> u64 {
        self.runs.last().map_or(0, |run| run.0)
    }

    /// Whether every row is plain.
    pub fn is_plain(&self) -> bool {
        self.runs.iter().all(|run| run.1 == Encoding::Plain)
    }

    /// The encoding of a row.
    pub fn at(&self, row: u64) -> Encoding {
        self.runs.iter().find(|run| row < run.0).map_or(Encoding::Plain, |run| run.1)
    }

    /// Bytes of `rows` of a weight with rows of `columns` elements, plain ones of `dtype`. `None` if a row is no whole
    /// number of blocks, or if the bytes overflow.
    pub fn bytes(&self, dtype: DType, columns: u64, rows: Range<u64>) -> Option<u64> {
        let mut runs = self.runs(rows);
        runs.try_fold(0u64, |sum, (run, encoding)| {
            sum.checked_add(encoding.tile(dtype, run.end - run.start, columns)?.bytes)
        })
    }

    /// The same with lossless rows made plain.
    pub fn without_lossless(&self) -> RowEncodings {
        let mut plain = RowEncodings::default();
        for (rows, encoding) in self.runs(0..self.rows()) {
            let encoding = if encoding == Encoding::Lossless { Encoding::Plain } else { encoding };
            plain.push(rows.end - rows.start, encoding);
        }
        plain
    }

    /// `rows`, cut at changes of the encoding.
    pub fn runs(&self, rows: Range<u64>) -> impl Iterator<Item = (Range<u64>, Encoding)> + '_ {
        let plain = (u64::MAX, Encoding::Plain);
        let mut start = 0;
        self.runs.iter().copied().chain([plain]).filter_map(move |(end, encoding)| {
            let run = start.max(rows.start)..end.min(rows.end);
            start = end;
            (run.start < run.end).then_some((run, encoding))
        })
    }
}

impl Serialize for RowEncodings {
    /// A list of `{"rows": [start, end], "encoding": name}`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Run {
            rows: [u64; 2],
            encoding: Encoding,
        }
        serializer.collect_seq(
            self.runs(0..self.rows()).map(|(rows, encoding)| Run { rows: [rows.start, rows.end], encoding }),
        )
    }
}
