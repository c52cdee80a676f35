//! Groups in rows of Hugging Face's quantised checkpoints: 4-bit integers with a zero point (GPTQ, AWQ), and 8-bit
//! floats. Checkpoints keep integers, scales and zero points in separate tensors; here each group has its own.

use super::scale;

/// f16 scale, a byte of zero point, unused bytes up to the last `ELEMENTS / 2`, which are nibbles: a run of 32 elements is
/// 16 bytes, low halves first. An element is `scale · (integer - zero point)`, which is exact.
#[inline(always)]
pub(super) fn int4<const BYTES: usize, const ELEMENTS: usize>(
    block: &[u8; BYTES],
    out: &mut [f32; ELEMENTS],
) {
    let d = scale(block, 0);
    let offset = -f32::from(block[2]) * d;
    let nibbles = &block[BYTES - ELEMENTS / 2..];
    for (nibbles, out) in nibbles.as_chunks::<16>().0.iter().zip(out.as_chunks_mut::<32>().0) {
        for (i, &byte) in nibbles.iter().enumerate() {
            out[i] = f32::from(byte & 15) * d + offset;
            out[i + 16] = f32::from(byte >> 4) * d + offset;
        }
    }
}

/// f32 scale, bytes of E4M3 (Micikevicius et al. 2022). The codes 0x7f and 0xff, NaN in E4M3, are decoded as 480.
#[inline(always)]
pub(super) fn fp8<const BYTES: usize, const ELEMENTS: usize>(block: &[u8; BYTES], out: &mut [f32; ELEMENTS]) {
    let d = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    for (value, &byte) in out.iter_mut().zip(&block[4..]) {
        // Sign, exponent and mantissa in their places of an f32 whose exponent counts from 127 instead of 7.
        let bits = u32::from(byte & 0x80) << 24 | u32::from(byte & 0x7f) << 20;
        *value = f32::from_bits(bits) * FP8_EXPONENT * d;
    }
}

/// `2^(127 - 7)`.
const FP8_EXPONENT: f32 = f32::from_bits((127 + 120) << 23);
