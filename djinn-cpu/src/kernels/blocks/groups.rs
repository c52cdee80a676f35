//! Groups of 32 or 128 elements, as rows of GPTQ, AWQ and FP8 checkpoints are read;
//! [`BlockFormat`](djinn_device::BlockFormat) says where what lies.

use super::{BlockVectors, GROUP_RUNS, RUN, Scales, half, nibbles, word};
use crate::kernels::simd::Simd;

/// Four-bit integers with a scale and a zero point, in blocks of some bytes and runs.
pub(crate) struct Int4<const BYTES: usize, const RUNS: usize>;

#[allow(non_camel_case_types, reason = "the format's own name")]
pub(crate) type INT4_G32 = Int4<19, 1>;
#[allow(non_camel_case_types, reason = "the format's own name")]
pub(crate) type INT4_G128 = Int4<68, 4>;

impl<const BYTES: usize, const RUNS: usize> BlockVectors for Int4<BYTES, RUNS> {
    type Block = [u8; BYTES];
    const RUNS: usize = RUNS;
    const SCALES: usize = 1;
    const LESS: Option<f32> = None;

    #[inline(always)]
    fn blocks(bytes: &[u8]) -> &[[u8; BYTES]] {
        bytes.as_chunks().0
    }

    #[inline(always)]
    fn scales<S: Simd>(simd: S, blocks: &[[u8; BYTES]], scales: &mut Scales) {
        // Each scale twice, and then one of both times the zero point.
        let mut pairs = [0; GROUP_RUNS];
        for (i, pair) in pairs.iter_mut().enumerate() {
            let bits = blocks.get(i / RUNS).map_or(0, |block| half(block, 0).to_bits());
            *pair = u32::from(bits) * 0x1_0001;
        }
        scales.set(simd, &pairs);
        for i in 0..GROUP_RUNS {
            let zero = blocks.get(i / RUNS).map_or(0, |block| block[2]);
            scales.0[2 * i + 1] *= -f32::from(zero);
        }
    }

    #[inline(always)]
    fn numbers<S: Simd>(simd: S, block: &[u8; BYTES], run: usize, first: usize) -> S::V {
        simd.to_float(nibbles(simd, block, BYTES - (RUNS - run % RUNS) * RUN / 2, first))
    }
}

/// Floats of 8 bits with a scale, in blocks of some bytes and runs.
pub(crate) struct Fp8<const BYTES: usize, const RUNS: usize>;

#[allow(non_camel_case_types, reason = "the format's own name")]
pub(crate) type FP8_G32 = Fp8<36, 1>;
#[allow(non_camel_case_types, reason = "the format's own name")]
pub(crate) type FP8_G128 = Fp8<132, 4>;

/// What makes a float of a type whose exponent counts from 7 out of the same bits in an f32.
const EXPONENT: f32 = f32::from_bits((127 + 127 - 7) << 23);

impl<const BYTES: usize, const RUNS: usize> BlockVectors for Fp8<BYTES, RUNS> {
    type Block = [u8; BYTES];
    const RUNS: usize = RUNS;
    const SCALES: usize = 1;
    const LESS: Option<f32> = Some(0.0);

    #[inline(always)]
    fn blocks(bytes: &[u8]) -> &[[u8; BYTES]] {
        bytes.as_chunks().0
    }

    #[inline(always)]
    fn scales<S: Simd>(_: S, blocks: &[[u8; BYTES]], scales: &mut Scales) {
        for i in 0..GROUP_RUNS {
            scales.0[2 * i] = blocks.get(i / RUNS).map_or(0.0, |block| f32::from_bits(word(block, 0)));
        }
    }

    #[inline(always)]
    fn numbers<S: Simd>(simd: S, block: &[u8; BYTES], run: usize, first: usize) -> S::V {
        let bytes = simd.read_u8(&block[4 + run % RUNS * RUN + first..]);
        let sign = simd.shift_left(simd.and(bytes, simd.splat_int(0x80)), simd.splat_int(24));
        let rest = simd.shift_left(simd.and(bytes, simd.splat_int(0x7f)), simd.splat_int(20));
        simd.mul(simd.float_of_bits(simd.or(sign, rest)), simd.splat(EXPONENT))
    }
}
