//! The formats of 256 elements with scales for each 16 or 32: `Q2_K` to `Q6_K`.
//!
//! Layouts are those of `block_q*_K` in GGML's `ggml-common.h`. Elements are handled in runs of 32 that
//! share their place in a byte; `run` counts them within the block.

use super::scale;

const ELEMENTS: usize = 256;

/// 32 bytes of `bytes` from `at`.
#[inline(always)]
fn bytes32(bytes: &[u8], at: usize) -> &[u8; 32] {
    bytes[at..].first_chunk().expect("a run lies inside its block")
}

/// The runs of 32 elements of a block, counted.
#[inline(always)]
fn runs(out: &mut [f32; ELEMENTS]) -> impl Iterator<Item = (usize, &mut [f32; 32])> {
    out.as_chunks_mut().0.iter_mut().enumerate()
}

/// 16 bytes of scale (low) and minimum (high half), 64 bytes of 2-bit elements, f16 scales of both.
#[inline(always)]
pub(super) fn q2_k(block: &[u8; 84], out: &mut [f32; ELEMENTS]) {
    let (d, dmin) = (scale(block, 80), scale(block, 82));
    for (run, out) in runs(out) {
        let elements = bytes32(block, 16 + run / 4 * 32);
        let shift = run % 4 * 2;
        for (half, (bytes, out)) in
            elements.as_chunks::<16>().0.iter().zip(out.as_chunks_mut::<16>().0).enumerate()
        {
            let packed = block[run * 2 + half];
            let (d, min) = (d * f32::from(packed & 15), dmin * f32::from(packed >> 4));
            for (value, &byte) in out.iter_mut().zip(bytes) {
                *value = d * f32::from((byte >> shift) & 3) - min;
            }
        }
    }
}

/// 32 bytes of third bits (clear subtracts 4), 64 bytes of 2-bit elements, 16 packed 6-bit scales offset by
/// 32, f16 scale of the scales.
#[inline(always)]
pub(super) fn q3_k(block: &[u8; 110], out: &mut [f32; ELEMENTS]) {
    let d = scale(block, 108);
    let scales = &block[96..108];
    let third = bytes32(block, 0);
    for (run, out) in runs(out) {
        let elements = bytes32(block, 32 + run / 4 * 32);
        let shift = run % 4 * 2;
        for half in 0..2 {
            let group = run * 2 + half;
            let low = if group < 8 { scales[group] & 15 } else { scales[group - 8] >> 4 };
            let high = (scales[8 + group % 4] >> (group / 4 * 2)) & 3;
            let d = d * f32::from((low | high << 4) as i8 - 32);
            for i in half * 16..half * 16 + 16 {
                let third = (third[i] >> run & 1) << 2;
                out[i] = d * f32::from(((elements[i] >> shift & 3) | third) as i8 - 4);
            }
        }
    }
}

/// The 6-bit scale and minimum of run `run` from their 12 bytes, as Q4_K and Q5_K pack them.
#[inline(always)]
fn scale_min(packed: &[u8], run: usize) -> (f32, f32) {
    let (scale, min) = if run < 4 {
        (packed[run] & 63, packed[run + 4] & 63)
    } else {
        ((packed[run + 4] & 15) | packed[run - 4] >> 6 << 4, (packed[run + 4] >> 4) | packed[run] >> 6 << 4)
    };
    (f32::from(scale), f32::from(min))
}

/// f16 scales of scales and minima, 12 bytes of both, 128 bytes of nibbles.
#[inline(always)]
pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; ELEMENTS]) {
    let (d, dmin) = (scale(block, 0), scale(block, 2));
    for (run, out) in runs(out) {
        let (scale, min) = scale_min(&block[4..16], run);
        let (d, min) = (d * scale, dmin * min);
        let shift = run % 2 * 4;
        for (value, &byte) in out.iter_mut().zip(bytes32(block, 16 + run / 2 * 32)) {
            *value = d * f32::from((byte >> shift) & 15) - min;
        }
    }
}

/// f16 scales of scales and minima, 12 bytes of both, 32 bytes of fifth bits, 128 bytes of nibbles.
#[inline(always)]
pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; ELEMENTS]) {
    let (d, dmin) = (scale(block, 0), scale(block, 2));
    let fifth = bytes32(block, 16);
    for (run, out) in runs(out) {
        let (scale, min) = scale_min(&block[4..16], run);
        let (d, min) = (d * scale, dmin * min);
        let shift = run % 2 * 4;
        let nibbles = bytes32(block, 48 + run / 2 * 32);
        for ((value, &byte), &fifth) in out.iter_mut().zip(nibbles).zip(fifth) {
            *value = d * f32::from((byte >> shift & 15) | (fifth >> run & 1) << 4) - min;
        }
    }
}

/// 128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 signed scales, f16 scale of the scales; offset
/// by 32.
#[inline(always)]
pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; ELEMENTS]) {
    let d = scale(block, 208);
    for (run, out) in runs(out) {
        let (half, part) = (run / 4, run % 4);
        let nibbles = bytes32(block, half * 64 + part % 2 * 32);
        let pairs = bytes32(block, 128 + half * 32);
        let (nibble_shift, pair_shift) = (part / 2 * 4, part * 2);
        for group in 0..2 {
            let d = d * f32::from(block[192 + run * 2 + group] as i8);
            for i in group * 16..group * 16 + 16 {
                let element = (nibbles[i] >> nibble_shift & 15) | (pairs[i] >> pair_shift & 3) << 4;
                out[i] = d * f32::from(element as i8 - 32);
            }
        }
    }
}
