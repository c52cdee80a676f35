//! The formats with unevenly spaced levels for 4-bit codes: `IQ4_NL`, `IQ4_XS`, `MXFP4`.
//!
//! Layouts and levels are those of GGML's `ggml-common.h`. The first 16 elements of a run of 32 are the low halves of
//! its 16 bytes, the others the high halves.

use super::scale;

/// The levels of `IQ4_NL` and `IQ4_XS` (`kvalues_iq4nl`).
pub(super) const IQ4_LEVELS: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];

/// Twice the values of E2M1, the 4-bit float of the OCP Microscaling specification (`kvalues_mxfp4`).
pub(super) const E2M1_DOUBLED: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

/// Levels of the nibbles of 16 bytes, times `by`.
#[inline(always)]
fn run(levels: &[f32; 16], nibbles: &[u8], by: f32, out: &mut [f32]) {
    for (i, &byte) in nibbles.iter().enumerate() {
        out[i] = by * levels[usize::from(byte & 15)];
        out[i + 16] = by * levels[usize::from(byte >> 4)];
    }
}

/// f16 scale, 16 bytes of nibbles.
#[inline(always)]
pub(super) fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    run(&IQ4_LEVELS, &block[2..], scale(block, 0), out);
}

/// f16 scale of the scales, 8 times 2 high bits and 8 times 4 low bits of scales offset by 32, 128 bytes of nibbles.
#[inline(always)]
pub(super) fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let (d, high) = (scale(block, 0), u16::from_le_bytes([block[2], block[3]]));
    for (i, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let low = block[4 + i / 2] >> (i % 2 * 4) & 15;
        let integer = (low | ((high >> (2 * i)) as u8 & 3) << 4) as i8 - 32;
        run(&IQ4_LEVELS, &block[8 + 16 * i..24 + 16 * i], d * f32::from(integer), out);
    }
}

/// The exponent `e` of the scale `2^(e - 127)`, 16 bytes of nibbles.
#[inline(always)]
pub(super) fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    // Half the scale, since the levels are doubled.
    let exponent = u32::from(block[0]);
    let half = f32::from_bits(if exponent < 2 { 0x20_0000 << exponent } else { (exponent - 1) << 23 });
    run(&E2M1_DOUBLED, &block[1..], half, out);
}
