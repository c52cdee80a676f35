//! Block formats in vectors: a weight is `scale · number + offset` or `scale · (number - zero point)`, with one scale and
//! offset for 16 or 32 neighbours. A number is an integer, or what a code stands for.
//!
//! [`BlockFormat::decode`] defines what a block stands for. Here each weight that has an offset is one fused multiply-add,
//! and has the same bits: the product is exact in f32 for every such format (an f16 scale has 11 bits, its multiplier at
//! most 6 and the integer at most 5), so what is rounded is the same number, once.

mod classic;
mod groups;
mod k;
mod tables;

use super::simd::{Kernel, Simd};
use djinn_device::{BlockFormat, DType, Encoding};
use half::f16;

/// Elements of a run: the formats' unit of packing.
pub(crate) const RUN: usize = 32;
/// Runs that are handled together: a block of the larger formats.
pub(crate) const GROUP_RUNS: usize = 8;
/// The most scales of a group.
const MOST_SCALES: usize = 16;

/// What turns the integers of a group into weights: pairs of scale and offset, or of scale and nothing.
#[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(transparent)]
pub(crate) struct Scales([f32; 2 * MOST_SCALES]);

/// A block format, in vectors.
pub(crate) trait BlockVectors {
    /// A block's bytes.
    type Block: Copy;
    /// Runs of a block.
    const RUNS: usize;
    /// Scales of a run, each for the same number of elements.
    const SCALES: usize;
    /// What is taken off each number, in formats that store no offset.
    const LESS: Option<f32>;

    /// Bytes as blocks; those after the last whole one are left out.
    fn blocks(bytes: &[u8]) -> &[Self::Block];

    /// Sets the scales to those of at most [`GROUP_RUNS`] runs, whole blocks.
    fn scales<S: Simd>(simd: S, blocks: &[Self::Block], scales: &mut Scales);

    /// The numbers of `LANES` elements of a block's run, from the run's element `first` on.
    fn numbers<S: Simd>(simd: S, block: &Self::Block, run: usize, first: usize) -> S::V;
}

/// `LANES` weights of a group, from element `first` of its run `run` on, a multiple of `LANES`.
#[inline(always)]
pub(crate) fn weights<S: Simd, F: BlockVectors>(
    simd: S,
    blocks: &[F::Block],
    scales: &Scales,
    run: usize,
    first: usize,
) -> S::V {
    let numbers = F::numbers(simd, &blocks[run / F::RUNS], run % F::RUNS, first);
    let at = 2 * ((run * F::SCALES + first * F::SCALES / RUN) % MOST_SCALES);
    let scale = simd.splat(scales.0[at]);
    match F::LESS {
        Some(0.0) => simd.mul(numbers, scale),
        Some(less) => simd.mul(simd.sub(numbers, simd.splat(less)), scale),
        None => simd.fma(numbers, scale, simd.splat(scales.0[at + 1])),
    }
}

/// `$body` with `$Format` standing for the type of `$format`.
macro_rules! with_format {
    ($format:expr, $Format:ident => $body:expr) => {
        $crate::kernels::blocks::with_format!(
            $format, $Format => $body, Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K
            IQ4_NL IQ4_XS MXFP4 INT4_G32 INT4_G128 FP8_G32 FP8_G128
        )
    };
    ($format:expr, $Format:ident => $body:expr, $($name:ident)*) => {
        match $format {
            $(djinn_device::BlockFormat::$name => {
                type $Format = $crate::kernels::blocks::formats::$name;
                $body
            })*
        }
    };
}
pub(crate) use with_format;

/// The type of each format.
pub(crate) mod formats {
    pub(crate) use super::classic::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
    pub(crate) use super::groups::{FP8_G32, FP8_G128, INT4_G32, INT4_G128};
    pub(crate) use super::k::{Q2_K, Q3_K, Q4_K, Q5_K, Q6_K};
    pub(crate) use super::tables::{IQ4_NL, IQ4_XS, MXFP4};
}

/// Decodes rows of `k` elements.
pub(crate) struct DecodeBlocks<'a> {
    pub(crate) format: BlockFormat,
    pub(crate) k: usize,
    pub(crate) blocks: &'a [u8],
    pub(crate) out: &'a mut [f32],
}

impl Kernel for DecodeBlocks<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let DecodeBlocks { format, k, blocks, out } = self;
        let row_bytes = row_bytes(format, k);
        assert_eq!(blocks.len() * k, row_bytes * out.len(), "rows of {k} elements in {format:?}");
        with_format!(format, F => {
            for (row, out) in blocks.chunks_exact(row_bytes).zip(out.chunks_exact_mut(k)) {
                decode::<S, F>(simd, row, out);
            }
        });
    }
}

#[inline(always)]
fn decode<S: Simd, F: BlockVectors>(simd: S, blocks: &[u8], out: &mut [f32]) {
    let blocks = F::blocks(blocks);
    let (out, _) = out.as_chunks_mut::<RUN>();
    let mut scales = Scales::default();
    for first in (0..out.len()).step_by(GROUP_RUNS) {
        let runs = GROUP_RUNS.min(out.len() - first);
        let group = &blocks[first / F::RUNS..(first + runs) / F::RUNS];
        F::scales(simd, group, &mut scales);
        for run in 0..runs {
            for v in 0..RUN / S::LANES {
                let weights = weights::<S, F>(simd, group, &scales, run, v * S::LANES);
                simd.write(&mut out[first + run][v * S::LANES..], weights);
            }
        }
    }
}

/// Bytes of a row of `k` elements, a whole number of blocks. The padding is shorter than a block.
pub(crate) fn row_bytes(format: BlockFormat, k: usize) -> usize {
    let bytes = Encoding::Blocks(format).row_bytes(DType::F32, k as u64);
    bytes.expect("operations have checked sizes") as usize
}

impl Default for Scales {
    fn default() -> Self {
        Scales([0.0; 2 * MOST_SCALES])
    }
}

impl Scales {
    /// The pairs of some groups, one group after the other.
    pub(crate) fn numbers(groups: &[Scales]) -> &[f32] {
        bytemuck::cast_slice(groups)
    }

    /// Sets the first pairs to pairs of f16.
    #[inline(always)]
    fn set<S: Simd>(&mut self, simd: S, pairs: &[u32; GROUP_RUNS]) {
        for v in 0..2 * GROUP_RUNS / S::LANES {
            simd.write(&mut self.0[v * S::LANES..], simd.widen_pairs(&pairs[v * S::LANES / 2..]));
        }
    }

    /// Sets all pairs to pairs of bytes as [`byte_pairs`] gives them, less `bias`, times `scale` and `offset`.
    #[inline(always)]
    fn set_integers<S: Simd>(&mut self, simd: S, pairs: [u64; 4], bias: f32, [scale, offset]: [f32; 2]) {
        let by = simd.alternate(scale, offset);
        for v in 0..2 * MOST_SCALES / S::LANES {
            let pairs = simd.read_i8(&bytemuck::cast_slice(&pairs)[v * S::LANES..]);
            let pairs = simd.sub(simd.to_float(pairs), simd.splat(bias));
            simd.write(&mut self.0[v * S::LANES..], simd.mul(pairs, by));
        }
    }
}

/// Four-bit integers from byte `at` on: the low halves of 16 bytes, then the high ones.
#[inline(always)]
fn nibbles<S: Simd>(simd: S, block: &[u8], at: usize, first: usize) -> S::I {
    let bytes = simd.read_u8(&block[at + first % 16..]);
    if first < 16 { simd.and(bytes, simd.splat_int(15)) } else { simd.shift_right(bytes, simd.splat_int(4)) }
}

/// The bytes of two words in turns, in little-endian order of memory.
#[inline(always)]
fn byte_pairs(scales: u32, offsets: u32) -> u64 {
    (spread(scales) | spread(offsets) << 8).to_le()
}

/// The bytes of a word, a zero after each.
#[inline(always)]
fn spread(word: u32) -> u64 {
    let halves = (u64::from(word) | u64::from(word) << 16) & 0x0000_ffff_0000_ffff;
    (halves | halves << 8) & 0x00ff_00ff_00ff_00ff
}

/// The four bytes at `at`.
#[inline(always)]
fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// The f16 at `at`.
#[inline(always)]
fn half(block: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([block[at], block[at + 1]])
}
