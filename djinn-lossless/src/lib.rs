//! A lossless encoding of 16-bit weights in about 12 bits.
//!
//! A row of `n` values is a record of [`LosslessRow::bytes`] bytes, a multiple of 16 and often of 128, with three planes.
//! `n` is rounded up to `g` groups of 32 values; what is added is zero.
//!
//! ```text
//! │ sign and mantissa, 32 g bytes │ codes, 16 g bytes │ base │ 0 │ count, u16 │ (column, value), u16 each … │
//!   one byte a value                4 bits a value      exponent   escapes      room for capacity() escapes
//! ```
//!
//! - Each 16 values are stored in the order 0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15: four in succession are
//!   what a lane has of an operand of the matrix units.
//! - A **code** below 15 is the value's exponent less the row's **base**. In a group, byte `i` of 16 holds the code of
//!   the `i`th stored value in its low half, and the code of the one 16 further on in its high half.
//! - Code 15 is an **escape**: the list at the row's end has the value's column and its 16 bits, in order of columns.
//!   The byte of an escape in the first plane has no meaning.
//! - bf16 has 7 bits of mantissa, which fit as they are. f16 has 10: a value fits if the lowest 3 are zero, as in
//!   weights that were converted from bf16, and is an escape otherwise.
//!
//! Numbers are little-endian. The record's length follows from `n` alone, and a row that has more escapes than the list
//! has room for cannot be encoded.
//!
//! A lane that decodes 32 values reads two 16-byte words of the first plane and one of the second, all aligned. One that
//! meets code 15 searches the list of its row and takes the value from there, in the same place of its sum: the order of
//! a sum over a row does not depend on where its escapes are.
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod form;
mod row;
#[cfg(test)]
mod tests;

pub use form::SixteenBit;
pub use row::{LosslessRow, RowFault};
