//! The formats of 256 elements with scales for each 16 or 32; [`BlockFormat`](djinn_device::BlockFormat) says where
//! what lies.

use super::{BlockVectors, GROUP_RUNS, Scales, byte_pairs, half, word};
use crate::kernels::simd::Simd;

/// The low halves of a word's bytes.
const LOW_NIBBLES: u32 = 0x0f0f_0f0f;
/// The lowest two bits of a word's bytes.
const LOW_PAIRS: u32 = 0x0303_0303;

/// `LANES` bytes from `at` on, shifted right by `shift` and masked.
#[inline(always)]
fn field<S: Simd>(simd: S, block: &[u8], at: usize, shift: usize, mask: u32) -> S::I {
    let bytes = simd.read_u8(&block[at..]);
    simd.and(simd.shift_right(bytes, simd.splat_int(shift as u32)), simd.splat_int(mask))
}

/// Sets the scales to those of `Q4_K` and `Q5_K`.
#[inline(always)]
fn set_scales_and_minima<S: Simd>(simd: S, block: &[u8], scales: &mut Scales) {
    let (scale, min, rest) = (word(block, 4), word(block, 8), word(block, 12));
    let low = byte_pairs(scale & 0x3f3f_3f3f, min & 0x3f3f_3f3f);
    let high = byte_pairs(
        rest & LOW_NIBBLES | (scale >> 6 & LOW_PAIRS) << 4,
        rest >> 4 & LOW_NIBBLES | (min >> 6 & LOW_PAIRS) << 4,
    );
    let by = [half(block, 0).to_f32(), -half(block, 2).to_f32()];
    scales.set_integers(simd, [low, high, 0, 0], 0.0, by);
}

macro_rules! k {
    ($($(#[$doc:meta])* $Format:ident: $bytes:literal bytes, $per_run:literal scales of a run, less $less:expr;
        scales($simd:ident, $of:ident, $out:ident) = $scales:expr;
        integers($vectors:ident, $block:ident, $run:ident, $first:ident) = $integers:expr;)*) => {
        $(
            $(#[$doc])*
            #[allow(non_camel_case_types, reason = "the format's own name")]
            pub(crate) struct $Format;

            impl BlockVectors for $Format {
                type Block = [u8; $bytes];
                const RUNS: usize = GROUP_RUNS;
                const SCALES: usize = $per_run;
                const LESS: Option<f32> = $less;

                #[inline(always)]
                fn blocks(bytes: &[u8]) -> &[[u8; $bytes]] {
                    bytes.as_chunks().0
                }

                #[inline(always)]
                fn scales<S: Simd>($simd: S, blocks: &[[u8; $bytes]], $out: &mut Scales) {
                    let $of = &blocks[0];
                    $scales
                }

                #[inline(always)]
                fn numbers<S: Simd>($vectors: S, $block: &[u8; $bytes], run: usize, $first: usize) -> S::V {
                    // So that the compiler knows the range.
                    let $run = run % GROUP_RUNS;
                    $vectors.to_float($integers)
                }
            }
        )*
    };
}

k! {
    /// Two bits, and a minimum.
    Q2_K: 84 bytes, 2 scales of a run, less None;
    scales(simd, block, out) = {
        let mut pairs = [0; 4];
        for (i, pairs) in pairs.iter_mut().enumerate() {
            let packed = word(block, 4 * i);
            *pairs = byte_pairs(packed & LOW_NIBBLES, packed >> 4 & LOW_NIBBLES);
        }
        out.set_integers(simd, pairs, 0.0, [half(block, 80).to_f32(), -half(block, 82).to_f32()]);
    };
    integers(simd, block, run, first) = field(simd, block, 16 + run / 4 * 32 + first, run % 4 * 2, 3);

    /// Three bits, less 4.
    Q3_K: 110 bytes, 2 scales of a run, less Some(4.0);
    scales(simd, block, out) = {
        let (first, second, high) = (word(block, 96), word(block, 100), word(block, 104));
        let pairs = [
            byte_pairs(first & LOW_NIBBLES | (high & LOW_PAIRS) << 4, 0),
            byte_pairs(second & LOW_NIBBLES | (high >> 2 & LOW_PAIRS) << 4, 0),
            byte_pairs(first >> 4 & LOW_NIBBLES | (high >> 4 & LOW_PAIRS) << 4, 0),
            byte_pairs(second >> 4 & LOW_NIBBLES | (high >> 6 & LOW_PAIRS) << 4, 0),
        ];
        out.set_integers(simd, pairs, 32.0, [half(block, 108).to_f32(), 0.0]);
    };
    integers(simd, block, run, first) = {
        let low = field(simd, block, 32 + run / 4 * 32 + first, run % 4 * 2, 3);
        simd.or(low, simd.shift_left(field(simd, block, first, run, 1), simd.splat_int(2)))
    };

    /// Nibbles, and a minimum.
    Q4_K: 144 bytes, 1 scales of a run, less None;
    scales(simd, block, out) = set_scales_and_minima(simd, block, out);
    integers(simd, block, run, first) = field(simd, block, 16 + run / 2 * 32 + first, run % 2 * 4, 15);

    /// Five bits, and a minimum.
    Q5_K: 176 bytes, 1 scales of a run, less None;
    scales(simd, block, out) = set_scales_and_minima(simd, block, out);
    integers(simd, block, run, first) = {
        let low = field(simd, block, 48 + run / 2 * 32 + first, run % 2 * 4, 15);
        simd.or(low, simd.shift_left(field(simd, block, 16 + first, run, 1), simd.splat_int(4)))
    };

    /// Six bits, less 32.
    Q6_K: 210 bytes, 2 scales of a run, less Some(32.0);
    scales(simd, block, out) = {
        let mut pairs = [0; 4];
        for (i, pairs) in pairs.iter_mut().enumerate() {
            *pairs = byte_pairs(word(block, 192 + 4 * i), 0);
        }
        out.set_integers(simd, pairs, 0.0, [half(block, 208).to_f32(), 0.0]);
    };
    integers(simd, block, run, first) = {
        let (part, of) = (run % 4, run / 4);
        let low = field(simd, block, of * 64 + part % 2 * 32 + first, part / 2 * 4, 15);
        let high = field(simd, block, 128 + of * 32 + first, part * 2, 3);
        simd.or(low, simd.shift_left(high, simd.splat_int(4)))
    };
}
