//! The formats of 32 elements with one scale; [`BlockFormat`](djinn_device::BlockFormat) says where what lies.

use super::{BlockVectors, GROUP_RUNS, Scales, half, nibbles, word};
use crate::kernels::simd::Simd;

/// The f16 scale with which a block begins, and the f16 offset after it if there is one.
#[inline(always)]
fn stored_pair<F: BlockVectors, const BYTES: usize>(block: &[u8; BYTES]) -> u32 {
    let scale = u32::from(half(block, 0).to_bits());
    if F::LESS.is_none() { scale | u32::from(half(block, 2).to_bits()) << 16 } else { scale }
}

/// Sets the scales to those of some blocks.
#[inline(always)]
fn set<S: Simd, F: BlockVectors, const BYTES: usize>(simd: S, blocks: &[[u8; BYTES]], scales: &mut Scales) {
    // Loops to a constant, so that the words stay in registers.
    let mut pairs = [0; GROUP_RUNS];
    if let Some(blocks) = blocks.first_chunk::<GROUP_RUNS>() {
        for (pair, block) in pairs.iter_mut().zip(blocks) {
            *pair = stored_pair::<F, BYTES>(block);
        }
    } else {
        for (i, pair) in pairs.iter_mut().enumerate() {
            *pair = blocks.get(i).map_or(0, stored_pair::<F, BYTES>);
        }
    }
    scales.set(simd, &pairs);
}

/// Each element's fifth bit, in its place: bit `i` of the word at `at` is element `i`'s.
#[inline(always)]
fn fifth_bits<S: Simd>(simd: S, block: &[u8], at: usize, first: usize) -> S::I {
    let word = word(block, at);
    // Each bit is shifted right into place. In the first half, where it may lie to the right, all are first turned left.
    let (word, first) = if first < 16 { (word.rotate_left(4), first) } else { (word, first - 4) };
    simd.and(simd.shift_right(simd.splat_int(word), simd.count_from(first as u32)), simd.splat_int(16))
}

macro_rules! classic {
    ($($(#[$doc:meta])* $Format:ident: $bytes:literal bytes;
        less $less:expr;
        integers($simd:ident, $block:ident, $first:ident) = $integers:expr;)*) => {
        $(
            $(#[$doc])*
            #[allow(non_camel_case_types, reason = "the format's own name")]
            pub(crate) struct $Format;

            impl BlockVectors for $Format {
                type Block = [u8; $bytes];
                const RUNS: usize = 1;
                const SCALES: usize = 1;
                const LESS: Option<f32> = $less;

                #[inline(always)]
                fn blocks(bytes: &[u8]) -> &[[u8; $bytes]] {
                    bytes.as_chunks().0
                }

                #[inline(always)]
                fn scales<S: Simd>(simd: S, blocks: &[[u8; $bytes]], scales: &mut Scales) {
                    set::<S, Self, $bytes>(simd, blocks, scales);
                }

                #[inline(always)]
                fn numbers<S: Simd>($simd: S, $block: &[u8; $bytes], _run: usize, $first: usize) -> S::V {
                    $simd.to_float($integers)
                }
            }
        )*
    };
}

classic! {
    /// Nibbles, less 8.
    Q4_0: 18 bytes;
    less Some(8.0);
    integers(simd, block, first) = nibbles(simd, block, 2, first);

    /// Nibbles, and an offset.
    Q4_1: 20 bytes;
    less None;
    integers(simd, block, first) = nibbles(simd, block, 4, first);

    /// Five bits, less 16.
    Q5_0: 22 bytes;
    less Some(16.0);
    integers(simd, block, first) =
        simd.or(nibbles(simd, block, 6, first), fifth_bits(simd, block, 2, first));

    /// Five bits, and an offset.
    Q5_1: 24 bytes;
    less None;
    integers(simd, block, first) =
        simd.or(nibbles(simd, block, 8, first), fifth_bits(simd, block, 4, first));

    /// Signed bytes.
    Q8_0: 34 bytes;
    less Some(0.0);
    integers(simd, block, first) = simd.read_i8(&block[2 + first..]);
}
