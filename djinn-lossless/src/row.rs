//! One row: its layout, its encoder, its decoder.

use crate::SixteenBit;
use crate::form::{BF16, F16, Form};
use std::fmt;
use std::ops::Range;

/// Values that share 16 bytes of codes.
const GROUP: usize = 32;
/// Bytes before the list of escapes: base, a zero, their number.
const HEAD: usize = 4;
/// Bytes of an escape: column and value.
const ENTRY: usize = 4;
/// The code of a value that is in the list.
const ESCAPE: u8 = 15;
/// A line of memory. Rows of many values end at a multiple.
const LINE: usize = 128;

/// The layout of an encoded row with a number of values, and the way there and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LosslessRow {
    columns: usize,
}

/// Why a record is no encoded row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RowFault {
    /// The record does not have the row's number of bytes.
    Length {
        /// Bytes of the record.
        found: usize,
        /// Bytes of such a row.
        expected: usize,
    },
    /// The base leads past the largest exponent.
    Base {
        /// The base.
        found: u8,
        /// The largest that may be.
        most: u8,
    },
    /// The list does not have that many entries.
    Count {
        /// Escapes by the record.
        found: usize,
        /// Room for escapes.
        capacity: usize,
    },
    /// An entry's column is past the row, not after the one before, or holds no escape.
    Column {
        /// The entry's number.
        entry: usize,
        /// The column that it names.
        column: usize,
    },
    /// Another number of values are escapes than the list has.
    Unlisted {
        /// Values with the code of an escape.
        escapes: usize,
        /// Entries of the list.
        listed: usize,
    },
}

impl fmt::Display for RowFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RowFault::Length { found, expected } => write!(f, "a row of {expected} bytes has {found}"),
            RowFault::Base { found, most } => write!(f, "the row's base is {found}, at most {most} may be"),
            RowFault::Count { found, capacity } => {
                write!(f, "the row claims {found} escapes, it has room for {capacity}")
            }
            RowFault::Column { entry, column } => {
                write!(
                    f,
                    "entry {entry} of the escapes names column {column}, which holds none in this order"
                )
            }
            RowFault::Unlisted { escapes, listed } => {
                write!(f, "the row has {escapes} escapes, its list {listed}")
            }
        }
    }
}

impl std::error::Error for RowFault {}

impl LosslessRow {
    /// The most values of a row: their columns are 16-bit numbers.
    pub const MAX_COLUMNS: usize = 1 << 16;

    /// Rows of `columns` values; `None` unless there are 1 to [`MAX_COLUMNS`](Self::MAX_COLUMNS).
    pub const fn new(columns: usize) -> Option<LosslessRow> {
        match columns {
            1..=Self::MAX_COLUMNS => Some(LosslessRow { columns }),
            _ => None,
        }
    }

    /// Values of a row.
    pub const fn columns(self) -> usize {
        self.columns
    }

    const fn groups(self) -> usize {
        self.columns.div_ceil(GROUP)
    }

    /// Where sign and mantissa of each value are.
    pub const fn sign_mantissa(self) -> Range<usize> {
        0..self.groups() * GROUP
    }

    /// Where the codes are, two in a byte.
    pub const fn codes(self) -> Range<usize> {
        self.groups() * GROUP..self.groups() * (GROUP + GROUP / 2)
    }

    /// The escapes that a row has room for: at least 4 and one for each 300 values.
    pub const fn capacity(self) -> usize {
        (self.bytes() - self.codes().end - HEAD) / ENTRY
    }

    /// Bytes of an encoded row: a multiple of 128 where that adds at most a 64th to the least multiple of 16.
    pub const fn bytes(self) -> usize {
        let least = (self.codes().end + HEAD + ENTRY * (4 + self.columns / 300)).next_multiple_of(16);
        let lines = least.next_multiple_of(LINE);
        if (lines - least) * 64 <= least { lines } else { least }
    }

    /// Whether an encoded row is at least 3 % smaller than a plain one.
    pub const fn pays(self) -> bool {
        self.bytes() * 100 <= self.columns * 2 * 97
    }

    /// Encodes the little-endian `values` of one row into `out`. Returns whether it could: if false, too many values
    /// are escapes, and what is in `out` has no meaning.
    ///
    /// # Panics
    /// If `values` does not have 2 bytes for each column, or `out` not [`bytes`](Self::bytes).
    pub fn encode(self, form: SixteenBit, values: &[u8], out: &mut [u8]) -> bool {
        match form {
            SixteenBit::BF16 => self.encode_as::<BF16>(values, out),
            SixteenBit::F16 => self.encode_as::<F16>(values, out),
        }
    }

    /// Decodes a row that has been [checked](Self::check) into little-endian values.
    ///
    /// # Panics
    /// If `row` does not have [`bytes`](Self::bytes), `out` not 2 bytes for each column, or if the list of a row that
    /// was not checked leads out of it.
    #[inline(always)]
    pub fn decode(self, form: SixteenBit, row: &[u8], out: &mut [u8]) {
        match form {
            SixteenBit::BF16 => self.decode_as::<BF16>(row, out),
            SixteenBit::F16 => self.decode_as::<F16>(row, out),
        }
    }

    /// Checks that every escape of a row is in its list, and nothing besides.
    ///
    /// # Errors
    /// The first fault.
    pub fn check(self, form: SixteenBit, row: &[u8]) -> Result<(), RowFault> {
        if row.len() != self.bytes() {
            return Err(RowFault::Length { found: row.len(), expected: self.bytes() });
        }
        let tail = &row[self.codes().end..];
        let most = match form {
            SixteenBit::BF16 => BF16::MAX_BASE,
            SixteenBit::F16 => F16::MAX_BASE,
        };
        if tail[0] > most {
            return Err(RowFault::Base { found: tail[0], most });
        }
        let count = usize::from(u16::from_le_bytes([tail[2], tail[3]]));
        if count > self.capacity() {
            return Err(RowFault::Count { found: count, capacity: self.capacity() });
        }
        let codes = &row[self.codes()];
        let mut next = 0;
        for (entry, (column, _)) in entries(tail).take(count).enumerate() {
            if column < next || column >= self.columns || code_at(codes, column) != ESCAPE {
                return Err(RowFault::Column { entry, column });
            }
            next = column + 1;
        }
        let escapes = codes.as_chunks().0.iter().map(|group| usize::from(escapes_in(group))).sum();
        if escapes != count { Err(RowFault::Unlisted { escapes, listed: count }) } else { Ok(()) }
    }

    fn encode_as<F: Form>(self, values: &[u8], out: &mut [u8]) -> bool {
        assert_eq!((values.len(), out.len()), (self.columns * 2, self.bytes()), "lengths of a row");
        let values = values.as_chunks::<2>().0;
        let largest = values.iter().fold(0, |most, &v| F::exponent(u16::from_le_bytes(v)).max(most));
        // Small weights are more than large ones: the codes below the largest exponent fit most rows.
        let mut base = largest.saturating_sub(ESCAPE - 1);
        let mut escapes = self.encode_planes::<F>(values, base, out);
        if escapes > self.capacity() {
            let best = best_base::<F>(values);
            if best == base {
                return false;
            }
            base = best;
            escapes = self.encode_planes::<F>(values, base, out);
        }
        if escapes > self.capacity() {
            return false;
        }
        let (planes, tail) = out.split_at_mut(self.codes().end);
        tail.fill(0);
        tail[0] = base;
        tail[2..HEAD].copy_from_slice(&(escapes as u16).to_le_bytes());
        if escapes > 0 {
            list(values, &planes[self.codes()], &mut tail[HEAD..]);
        }
        true
    }

    /// Fills the first two planes; the number of escapes.
    fn encode_planes<F: Form>(self, values: &[[u8; 2]], base: u8, out: &mut [u8]) -> usize {
        let (kept, rest) = out.split_at_mut(self.codes().start);
        let kept = kept.as_chunks_mut::<GROUP>().0;
        let codes = rest[..self.groups() * GROUP / 2].as_chunks_mut().0;
        let (whole, partial) = values.as_chunks::<GROUP>();
        let mut escapes = 0;
        for ((values, kept), codes) in whole.iter().zip(&mut *kept).zip(&mut *codes) {
            encode_group::<F>(values, base, kept, codes);
            escapes += usize::from(escapes_in(codes));
        }
        if !partial.is_empty() {
            let (kept, codes) = (&mut kept[whole.len()], &mut codes[whole.len()]);
            let mut padded = [partial[0]; GROUP];
            padded[..partial.len()].copy_from_slice(partial);
            encode_group::<F>(&padded, base, kept, codes);
            for column in partial.len()..GROUP {
                let place = place_of(column);
                kept[place] = 0;
                codes[place % 16] &= if place < 16 { 0xf0 } else { 0x0f };
            }
            escapes += usize::from(escapes_in(codes));
        }
        escapes
    }

    /// Inlined, as what it calls: a caller's instruction set vectorises it.
    #[inline(always)]
    fn decode_as<F: Form>(self, row: &[u8], out: &mut [u8]) {
        assert_eq!((row.len(), out.len()), (self.bytes(), self.columns * 2), "lengths of a row");
        let (planes, tail) = row.split_at(self.codes().end);
        let (kept, codes) = planes.split_at(self.codes().start);
        let (kept, codes) = (kept.as_chunks::<GROUP>().0, codes.as_chunks().0);
        let out = out.as_chunks_mut::<2>().0;
        let base = tail[0];
        let (whole, partial) = out.as_chunks_mut::<GROUP>();
        let groups = whole.len();
        for ((out, kept), codes) in whole.iter_mut().zip(kept).zip(codes) {
            decode_group::<F>(kept, codes, base, out);
        }
        if !partial.is_empty() {
            let mut padded = [[0; 2]; GROUP];
            decode_group::<F>(&kept[groups], &codes[groups], base, &mut padded);
            partial.copy_from_slice(&padded[..partial.len()]);
        }
        let count = usize::from(u16::from_le_bytes([tail[2], tail[3]]));
        for (column, value) in entries(tail).take(count) {
            out[column] = value;
        }
    }
}

#[inline(always)]
fn encode_group<F: Form>(
    values: &[[u8; 2]; GROUP],
    base: u8,
    kept: &mut [u8; GROUP],
    codes: &mut [u8; GROUP / 2],
) {
    let mut wide = [0; GROUP];
    for i in 0..GROUP {
        let value = u16::from_le_bytes(values[column_at(i)]);
        kept[i] = F::sign_mantissa(value);
        // An exponent below the base wraps to a large number.
        let code = F::exponent(value).wrapping_sub(base).min(ESCAPE);
        wide[i] = if F::is_short(value) { code } else { ESCAPE };
    }
    for i in 0..GROUP / 2 {
        codes[i] = wide[i] | wide[i + GROUP / 2] << 4;
    }
}

#[inline(always)]
fn decode_group<F: Form>(kept: &[u8; GROUP], codes: &[u8; GROUP / 2], base: u8, out: &mut [[u8; 2]; GROUP]) {
    let mut wide = [0; GROUP];
    for i in 0..GROUP / 2 {
        wide[i] = codes[i] & 15;
        wide[i + GROUP / 2] = codes[i] >> 4;
    }
    let mut values = [0u16; GROUP];
    for i in 0..GROUP {
        values[i] = F::value(kept[i], base, wide[i]);
    }
    for i in 0..GROUP {
        out[i] = values[place_of(i)].to_le_bytes();
    }
}

/// The place of a column's value among those of its group: the order of a lane's columns in an operand of the matrix units
/// (PTX ISA, `wgmma`, fragments of A).
const fn place_of(column: usize) -> usize {
    column / 16 * 16 + column % 8 / 2 * 4 + column % 16 / 8 * 2 + column % 2
}

/// The column whose value is at a place: the inverse of [`place_of`].
const fn column_at(place: usize) -> usize {
    place / 16 * 16 + place % 16 / 4 * 2 + place % 4 / 2 * 8 + place % 2
}

/// The number of escapes among the codes of a group.
#[inline(always)]
fn escapes_in(codes: &[u8; GROUP / 2]) -> u8 {
    codes.iter().map(|c| u8::from(c & 15 == ESCAPE) + u8::from(c >> 4 == ESCAPE)).sum()
}

fn code_at(codes: &[u8], column: usize) -> u8 {
    let byte = codes[column / GROUP * 16 + place_of(column % 16)];
    if column % GROUP < 16 { byte & 15 } else { byte >> 4 }
}

/// The columns and values of a list, with its unused entries.
fn entries(tail: &[u8]) -> impl Iterator<Item = (usize, [u8; 2])> {
    let entries = tail[HEAD..].as_chunks::<ENTRY>().0.iter();
    entries.map(|&[c0, c1, v0, v1]| (usize::from(u16::from_le_bytes([c0, c1])), [v0, v1]))
}

/// Writes the list of the escapes, which fit.
fn list(values: &[[u8; 2]], codes: &[u8], out: &mut [u8]) {
    let mut out = out.as_chunks_mut::<ENTRY>().0.iter_mut();
    for (group, codes) in codes.as_chunks().0.iter().enumerate().filter(|(_, codes)| escapes_in(codes) > 0) {
        for at in (0..GROUP).filter(|&at| code_at(codes, at) == ESCAPE) {
            let column = group * GROUP + at;
            let [c0, c1] = (column as u16).to_le_bytes();
            let [v0, v1] = values[column];
            *out.next().expect("the number of escapes was compared with the room") = [c0, c1, v0, v1];
        }
    }
}

/// The base whose 15 exponents are those of the most values that fit; the smallest of equals.
fn best_base<F: Form>(values: &[[u8; 2]]) -> u8 {
    let mut counts = [0u32; 256];
    for value in values.iter().map(|&v| u16::from_le_bytes(v)).filter(|&v| F::is_short(v)) {
        counts[usize::from(F::exponent(value))] += 1;
    }
    let within = |base: u8| -> u32 { counts[usize::from(base)..][..usize::from(ESCAPE)].iter().sum() };
    let (mut best, mut most) = (0, within(0));
    for base in 1..=F::MAX_BASE {
        if within(base) > most {
            (best, most) = (base, within(base));
        }
    }
    best
}
