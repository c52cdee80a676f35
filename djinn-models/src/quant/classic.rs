//! The formats of 32 elements with one scale: `Q4_0`, `Q4_1`, `Q5_0`, `Q5_1`, `Q8_0`.
//!
//! Layouts are those of `block_q*` in GGML's `ggml-common.h`. Four-bit elements 0..16 are the low halves of
//! the 16 bytes, elements 16..32 the high halves; bit `i` of a 32-bit word holds the fifth bit of element
//! `i`.
#![allow(non_camel_case_types, reason = "the formats' own names")]

use super::{Format, scale};

/// Splits the decoder of one block into a loop over blocks.
macro_rules! format_of_blocks {
    ($name:ident, $bytes:literal, $decode_block:ident) => {
        pub(super) enum $name {}

        impl Format for $name {
            const ELEMENTS: usize = 32;
            const BYTES: usize = $bytes;

            fn decode(blocks: &[u8], out: &mut [f32]) {
                for (block, out) in blocks.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
                    $decode_block(block, out);
                }
            }
        }
    };
}

format_of_blocks!(Q4_0, 18, q4_0);
format_of_blocks!(Q4_1, 20, q4_1);
format_of_blocks!(Q5_0, 22, q5_0);
format_of_blocks!(Q5_1, 24, q5_1);
format_of_blocks!(Q8_0, 34, q8_0);

/// f16 scale, 16 bytes of nibbles offset by 8.
fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = scale(block, 0);
    for (i, &byte) in block[2..].iter().enumerate() {
        out[i] = f32::from((byte & 15) as i8 - 8) * d;
        out[i + 16] = f32::from((byte >> 4) as i8 - 8) * d;
    }
}

/// f16 scale, f16 minimum, 16 bytes of nibbles.
fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, min) = (scale(block, 0), scale(block, 2));
    for (i, &byte) in block[4..].iter().enumerate() {
        out[i] = f32::from(byte & 15) * d + min;
        out[i + 16] = f32::from(byte >> 4) * d + min;
    }
}

/// f16 scale, 32 fifth bits, 16 bytes of nibbles; offset by 16.
fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
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
fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
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
fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = scale(block, 0);
    for (value, &byte) in out.iter_mut().zip(&block[2..]) {
        *value = f32::from(byte as i8) * d;
    }
}
