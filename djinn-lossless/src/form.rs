//! The parts of a 16-bit number: sign, exponent, mantissa.

/// A 16-bit floating-point form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SixteenBit {
    /// bfloat16: 8 bits of exponent, 7 of mantissa.
    BF16,
    /// IEEE 754 binary16: 5 bits of exponent, 10 of mantissa.
    F16,
}

/// The same as constants, so that loops over values are compiled for each form.
pub(crate) trait Form {
    /// Bits of the mantissa that are not kept: they must be zero.
    const DROPPED: u32;
    const MAX_EXPONENT: u8;

    /// The largest base of a row: with it, code 14 is the largest exponent.
    const MAX_BASE: u8 = Self::MAX_EXPONENT - 14;

    #[inline(always)]
    fn exponent(value: u16) -> u8 {
        ((value >> (7 + Self::DROPPED)) & u16::from(Self::MAX_EXPONENT)) as u8
    }

    /// Sign and the upper 7 bits of the mantissa.
    #[inline(always)]
    fn sign_mantissa(value: u16) -> u8 {
        ((value >> 8) & 0x80) as u8 | ((value >> Self::DROPPED) & 0x7f) as u8
    }

    /// Whether the bits that are not kept are zero.
    #[inline(always)]
    fn is_short(value: u16) -> bool {
        value & ((1 << Self::DROPPED) - 1) == 0
    }

    /// The value of a code below 15.
    #[inline(always)]
    fn value(sign_mantissa: u8, base: u8, code: u8) -> u16 {
        let kept = u16::from(sign_mantissa);
        let exponent = u16::from(base) + u16::from(code);
        ((kept & 0x80) << 8) | (exponent << (7 + Self::DROPPED)) | ((kept & 0x7f) << Self::DROPPED)
    }
}

pub(crate) struct BF16;
pub(crate) struct F16;

impl Form for BF16 {
    const DROPPED: u32 = 0;
    const MAX_EXPONENT: u8 = 255;
}

impl Form for F16 {
    const DROPPED: u32 = 3;
    const MAX_EXPONENT: u8 = 31;
}
