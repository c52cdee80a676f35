//! The formats of 32 elements with one scale: `Q4_0`, `Q4_1`, `Q5_0`, `Q5_1`, `Q8_0`.
//!
//! Layouts are those of `block_q*` in GGML's `ggml-common.h`. Four-bit elements 0..16 are the low halves of
//! the 16 bytes, elements 16..32 the high halves; bit `i` of a 32-bit word holds the fifth bit of element
//! `i`.

use super::scale;

/// f16 scale, 16 bytes of nibbles offset by 8.
#[inline(always)]
pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = scale(block, 0);
    for (i, &byte) in block[2..].iter().enumerate() {
        out[i] = f32::from((byte & 15) as i8 - 8) * d;
        out[i + 16] = f32::from((byte >> 4) as i8 - 8) * d;
    }
}

/// f16 scale, f16 minimum, 16 bytes of nibbles.
#[inline(always)]
pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, min) = (scale(block, 0), scale(block, 2));
    for (i, &byte) in block[4..].iter().enumerate() {
        out[i] = f32::from(byte & 15) * d + min;
        out[i + 16] = f32::from(byte >> 4) * d + min;
    }
}

/// f16 scale, 32 fifth bits, 16 bytes of nibbles; offset by 16.
#[inline(always)]
pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = scale(block, 0);
    let fifth = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
    for (i, &byte) in block[6..].iter().enumerate() {
        let low = (byte & 15) | ((fifth >> i) << 4) as u8 & 16;
        let high = (byte >> 4) | ((fifth >> (i + 16)) << 4) as u8 & 16;
        out[i] = f32::from(low as i8 - 16) * d;
        out[i + 16] = f32::from(high as i8 - 16) * d;
    }
}

/// f16 scale, f16 minimum, 32 fifth bits, 16 bytes of nibbles.
#[inline(always)]
pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, min) = (scale(block, 0), scale(block, 2));
    let fifth = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
    for (i, &byte) in block[8..].iter().enumerate() {
        let low = (byte & 15) | ((fifth >> i) << 4) as u8 & 16;
        let high = (byte >> 4) | ((fifth >> (i + 16)) << 4) as u8 & 16;
        out[i] = f32::from(low) * d + min;
        out[i + 16] = f32::from(high) * d + min;
    }
}

/// f16 scale, 32 signed bytes.
#[inline(always)]
pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = scale(block, 0);
    for (value, &byte) in out.iter_mut().zip(&block[2..]) {
        *value = f32::from(byte as i8) * d;
    }
}
