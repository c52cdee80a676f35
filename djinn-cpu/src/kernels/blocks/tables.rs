//! The formats whose codes stand for levels of a table; [`BlockFormat`] says where what lies.

use super::{BlockVectors, GROUP_RUNS, Scales, byte_pairs, half, nibbles, word};
use crate::kernels::simd::Simd;
use djinn_device::BlockFormat;

/// Bytes of the nibbles before a run's in its block.
const fn before(run: usize, runs_of_block: usize) -> usize {
    run % runs_of_block * 16
}

macro_rules! tables {
    ($($(#[$doc:meta])* $Format:ident: $bytes:literal bytes, $runs:expr, levels $levels:ident from $at:literal;
        scales($simd:ident, $blocks:ident, $out:ident) = $scales:expr;)*) => {
        $(
            $(#[$doc])*
            #[allow(non_camel_case_types, reason = "the format's own name")]
            pub(crate) struct $Format;

            impl BlockVectors for $Format {
                type Block = [u8; $bytes];
                const RUNS: usize = $runs;
                const SCALES: usize = 1;
                const LESS: Option<f32> = Some(0.0);

                #[inline(always)]
                fn blocks(bytes: &[u8]) -> &[[u8; $bytes]] {
                    bytes.as_chunks().0
                }

                #[inline(always)]
                fn scales<S: Simd>($simd: S, $blocks: &[[u8; $bytes]], $out: &mut Scales) {
                    $scales
                }

                #[inline(always)]
                fn numbers<S: Simd>(simd: S, block: &[u8; $bytes], run: usize, first: usize) -> S::V {
                    simd.look_up(&BlockFormat::$levels, nibbles(simd, block, $at + before(run, $runs), first))
                }
            }
        )*
    };
}

tables! {
    /// Nibbles.
    IQ4_NL: 18 bytes, 1, levels IQ4_LEVELS from 2;
    scales(simd, blocks, out) = {
        let mut pairs = [0; GROUP_RUNS];
        for (pair, block) in pairs.iter_mut().zip(blocks) {
            *pair = half(block, 0).to_bits().into();
        }
        out.set(simd, &pairs);
    };

    /// Nibbles, and scales of six bits.
    IQ4_XS: 136 bytes, GROUP_RUNS, levels IQ4_LEVELS from 8;
    scales(simd, blocks, out) = {
        let (head, low) = (word(&blocks[0], 0), word(&blocks[0], 4));
        let mut integers = [0; GROUP_RUNS];
        for (i, integer) in integers.iter_mut().enumerate() {
            *integer = (low >> (4 * i) & 15 | (head >> (16 + 2 * i) & 3) << 4) as u8;
        }
        let [a, b, c, d, e, f, g, h] = integers;
        let pairs = [byte_pairs(u32::from_le_bytes([a, b, c, d]), 0), byte_pairs(u32::from_le_bytes([e, f, g, h]), 0), 0, 0];
        out.set_integers(simd, pairs, 32.0, [half(&blocks[0], 0).to_f32(), 0.0]);
    };

    /// Nibbles that are floats of 4 bits, and the exponent of a scale.
    MXFP4: 17 bytes, 1, levels MXFP4_LEVELS from 1;
    scales(_simd, blocks, out) = {
        for (i, block) in blocks.iter().enumerate().take(GROUP_RUNS) {
            let exponent = u32::from(block[0]);
            let half = if exponent < 2 { 0x20_0000 << exponent } else { (exponent - 1) << 23 };
            out.0[2 * i] = f32::from_bits(half);
        }
    };
}
