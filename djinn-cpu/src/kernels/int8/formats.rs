//! Blocks as bytes side by side: the integers of several rows in the order in which a tile multiplies them.
#![allow(unsafe_code, reason = "rows are read by pointer")]

use super::Weights;
use super::bytes::{ByteKernel, Int, Integers};
use super::quantise::Sums;
use crate::kernels::blocks::{BlockVectors, GROUP_RUNS, RUN, Scales, formats};
use crate::kernels::simd::{MAX_LANES, Simd};
use djinn_device::BlockFormat;
use std::ops::Range;

/// Vectors of four columns in a run.
pub(super) const RUN_VECTORS: usize = RUN / 4;
/// Scales and offsets of a row's group.
const PAIRS: usize = 4 * GROUP_RUNS;

/// 256 columns of as many rows as a vector has lanes.
#[derive(Clone)]
#[repr(align(64))]
pub(super) struct Tables {
    /// `[run][column / 4][lane]`: four integers each.
    pub(super) bytes: [u32; GROUP_RUNS * RUN_VECTORS * MAX_LANES],
    /// `[run][part][scale, offset][lane]`.
    pub(super) scales: [f32; PAIRS * MAX_LANES],
    /// The same by rows.
    pairs: [Scales; MAX_LANES],
}

impl Default for Tables {
    fn default() -> Self {
        Tables {
            bytes: [0; GROUP_RUNS * RUN_VECTORS * MAX_LANES],
            scales: [0.0; PAIRS * MAX_LANES],
            pairs: [Scales::default(); MAX_LANES],
        }
    }
}

/// A block format whose weights are `scale · (byte - OFF)`, or `scale · byte + offset`.
pub(super) trait BlockBytes: BlockVectors {
    /// What is taken off each byte; 0 where offsets are stored.
    const OFF: i32;
    /// Whether no byte is above 128.
    const NARROW: bool;
    /// Whether a block is a run that begins with its scale, and its offset if it has one, in f16.
    const BEGINS_WITH_SCALES: bool = Self::RUNS == 1;

    /// The bytes of a run of `LANES` rows, by columns of four.
    ///
    /// # Safety
    /// From each row's pointer on, the blocks up to that of `run` are readable.
    unsafe fn bytes<I: Integers>(
        integers: I,
        rows: &[*const u8; MAX_LANES],
        run: usize,
    ) -> [Int<I>; RUN_VECTORS];
}

/// `$body` with `$Format` standing for the type of `$format`, which has integers.
macro_rules! with_bytes {
    ($format:expr, $Format:ident => $body:expr) => {
        crate::kernels::int8::formats::with_bytes!(
            $format, $Format => $body, Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K
            IQ4_NL IQ4_XS MXFP4 INT4_G32 INT4_G128
        )
    };
    ($format:expr, $Format:ident => $body:expr, $($name:ident)*) => {
        match $format {
            $(djinn_device::BlockFormat::$name => {
                type $Format = crate::kernels::blocks::formats::$name;
                $body
            })*
            other => unreachable!("{other:?} has no integers"),
        }
    };
}
pub(super) use with_bytes;

/// What the products of a format need of the sums of integers.
pub(super) fn off(format: BlockFormat) -> Sums {
    fn of<F: BlockBytes>() -> Sums {
        let halves = F::SCALES == 2;
        if F::LESS.is_none() { Sums::Scaled { halves } } else { Sums::Off { less: F::OFF, halves } }
    }
    with_bytes!(format, F => of::<F>())
}

/// Unpacks one group of some rows, at most as many as there are lanes; the last one stands for those that are missing.
pub(super) struct Unpack<'a> {
    pub(super) weights: Weights<'a>,
    pub(super) columns: Range<usize>,
    pub(super) group: usize,
    /// Of the group; the row may end in it.
    pub(super) runs: usize,
    pub(super) tables: &'a mut Tables,
}

impl ByteKernel for Unpack<'_> {
    #[inline(always)]
    fn run<I: Integers>(self, integers: I) {
        with_bytes!(self.weights.format, F => self.unpack::<I, F>(integers));
    }
}

impl Unpack<'_> {
    #[inline(always)]
    fn unpack<I: Integers, F: BlockBytes>(self, integers: I) {
        let Unpack { weights, columns, group, runs, tables } = self;
        let simd = integers.simd();
        assert!(runs <= GROUP_RUNS && !columns.is_empty());
        let mut rows = [std::ptr::null(); MAX_LANES];
        for (r, pairs) in tables.pairs[..I::S::LANES].iter_mut().enumerate() {
            let row = (columns.start + r).min(columns.end - 1);
            let blocks = F::blocks(&weights.blocks[row * weights.row_bytes..][..weights.row_bytes]);
            let blocks = &blocks[group * GROUP_RUNS / F::RUNS..][..runs / F::RUNS];
            if !F::BEGINS_WITH_SCALES {
                F::scales(simd, blocks, pairs);
            }
            rows[r] = blocks.as_ptr().cast();
        }
        if !F::BEGINS_WITH_SCALES {
            let (from, to) = (Scales::numbers(&tables.pairs), &mut tables.scales);
            for at in (0..2 * GROUP_RUNS * F::SCALES).step_by(I::S::LANES) {
                let to = &mut to[at * I::S::LANES..][..I::S::LANES * I::S::LANES];
                // SAFETY: a square of `LANES` numbers from `at` on in rows of `PAIRS`, and the square `to`.
                unsafe { simd.transpose(from[at..].as_ptr(), PAIRS, to.as_mut_ptr(), I::S::LANES) };
            }
        }
        let (bytes, _) = tables.bytes.as_chunks_mut::<{ RUN_VECTORS * MAX_LANES }>();
        for (run, bytes) in bytes[..runs].iter_mut().enumerate() {
            if F::BEGINS_WITH_SCALES {
                // SAFETY: `rows` are slices of the blocks of `runs` runs, which have 16 bytes at least.
                let [head, ..] = unsafe { integers.columns(&rows, run * size_of::<F::Block>()) };
                let (scale, offset) = tables.scales[2 * run * I::S::LANES..].split_at_mut(I::S::LANES);
                simd.write(scale, integers.halves(head));
                if F::LESS.is_none() {
                    simd.write(offset, integers.halves(simd.shift_right(head, simd.splat_int(16))));
                }
            }
            // SAFETY: as above.
            let vectors = unsafe { F::bytes(integers, &rows, run) };
            for (vector, to) in vectors.into_iter().zip(bytes.chunks_exact_mut(I::S::LANES)) {
                integers.write(to, vector);
            }
        }
    }
}

/// `byte` in each byte.
const fn each(byte: u32) -> u32 {
    byte * 0x0101_0101
}

/// 16 bytes of two four-bit integers from `at` on: the low halves, then the high ones.
///
/// # Safety
/// The bytes are readable.
#[inline(always)]
unsafe fn nibbles<I: Integers>(
    integers: I,
    rows: &[*const u8; MAX_LANES],
    at: usize,
) -> [Int<I>; RUN_VECTORS] {
    let simd = integers.simd();
    // SAFETY: the caller vouches for them.
    let [a, b, c, d] = unsafe { integers.columns(rows, at) };
    // Not `map`, here and below: it is not always inlined, and then compiled without the instructions.
    let mut out = [a, b, c, d, a, b, c, d];
    for high in &mut out[4..] {
        *high = simd.shift_right(*high, simd.splat_int(4));
    }
    masked(integers, out, 15)
}

/// 32 bytes from `at` on, shifted right by `shift` and masked.
///
/// # Safety
/// The bytes are readable.
#[inline(always)]
unsafe fn field<I: Integers>(
    integers: I,
    rows: &[*const u8; MAX_LANES],
    at: usize,
    shift: usize,
    mask: u32,
) -> [Int<I>; RUN_VECTORS] {
    let simd = integers.simd();
    // SAFETY: the caller vouches for them.
    let [a, b, c, d] = unsafe { integers.columns(rows, at) };
    // SAFETY: as above.
    let [e, f, g, h] = unsafe { integers.columns(rows, at + 16) };
    let mut out = [a, b, c, d, e, f, g, h];
    for out in &mut out {
        *out = simd.shift_right(*out, simd.splat_int(shift as u32));
    }
    masked(integers, out, mask)
}

/// The bits of `mask` of each byte.
#[inline(always)]
fn masked<I: Integers>(integers: I, mut bytes: [Int<I>; RUN_VECTORS], mask: u32) -> [Int<I>; RUN_VECTORS] {
    let simd = integers.simd();
    for bytes in &mut bytes {
        *bytes = simd.and(*bytes, simd.splat_int(each(mask)));
    }
    bytes
}

/// Bytes from signed ones, 128 more.
#[inline(always)]
fn without_sign<I: Integers>(integers: I, mut bytes: [Int<I>; RUN_VECTORS]) -> [Int<I>; RUN_VECTORS] {
    for bytes in &mut bytes {
        *bytes = integers.flip_signs(*bytes);
    }
    bytes
}

/// `table[byte]` of each byte.
#[inline(always)]
fn looked_up<I: Integers>(
    integers: I,
    table: &[u8; 16],
    mut bytes: [Int<I>; RUN_VECTORS],
) -> [Int<I>; RUN_VECTORS] {
    for bytes in &mut bytes {
        *bytes = integers.look_up(table, *bytes);
    }
    bytes
}

/// `low | high << shift`.
#[inline(always)]
fn joined<I: Integers>(
    integers: I,
    low: [Int<I>; RUN_VECTORS],
    high: [Int<I>; RUN_VECTORS],
    shift: u32,
) -> [Int<I>; RUN_VECTORS] {
    let simd = integers.simd();
    let mut out = low;
    for (out, high) in out.iter_mut().zip(high) {
        *out = simd.or(*out, simd.shift_left(high, simd.splat_int(shift)));
    }
    out
}

/// Bits of a word from `at` on, each in a byte of its own.
///
/// # Safety
/// The 4 bytes are readable.
#[inline(always)]
unsafe fn bits<I: Integers>(integers: I, rows: &[*const u8; MAX_LANES], at: usize) -> [Int<I>; RUN_VECTORS] {
    let simd = integers.simd();
    let mut words = [0; MAX_LANES];
    for (word, row) in words.iter_mut().zip(rows).take(I::S::LANES) {
        // SAFETY: the caller vouches for them.
        let from = unsafe { row.add(at) };
        // SAFETY: as above.
        *word = u32::from_le_bytes(unsafe { from.cast::<[u8; 4]>().read_unaligned() });
    }
    let words = integers.read(&words);
    let mut out = [words; RUN_VECTORS];
    for (i, out) in out.iter_mut().enumerate() {
        let four = simd.and(simd.shift_right(words, simd.splat_int(4 * i as u32)), simd.splat_int(15));
        // Bit `b` of the four goes to byte `b`: seven places further for each.
        let pair = simd.or(four, simd.shift_left(four, simd.splat_int(7)));
        *out = simd.or(pair, simd.shift_left(pair, simd.splat_int(14)));
    }
    masked(integers, out, 1)
}

/// Levels, which are integers, as bytes from `off` less on.
const fn levels(levels: [f32; 16], off: i32) -> [u8; 16] {
    let mut out = [0; 16];
    let mut i = 0;
    while i < 16 {
        out[i] = (levels[i] + off as f32) as u8;
        i += 1;
    }
    out
}

/// The levels of IQ4_NL and IQ4_XS, 128 more.
const IQ4_BYTES: [u8; 16] = levels(BlockFormat::IQ4_LEVELS, 128);
/// The levels of MXFP4, 12 more.
const MXFP4_BYTES: [u8; 16] = levels(BlockFormat::MXFP4_LEVELS, 12);

/// The byte at which the block of `run` begins, and the run's number in it.
#[inline(always)]
fn place<F: BlockVectors>(run: usize, runs: usize) -> (usize, usize) {
    (run / runs * size_of::<F::Block>(), run % runs)
}

macro_rules! bytes {
    ($($Format:ident: off $off:literal, $kind:ident $($scales:literal)?;
        ($integers:ident, $rows:ident, $block:ident, $run:ident) = $bytes:expr;)*) => {
        $(
            impl BlockBytes for formats::$Format {
                const OFF: i32 = $off;
                const NARROW: bool = bytes!($kind);
                $(const BEGINS_WITH_SCALES: bool = $scales;)?

                #[inline(always)]
                unsafe fn bytes<I: Integers>(
                    $integers: I,
                    $rows: &[*const u8; MAX_LANES],
                    run: usize,
                ) -> [Int<I>; RUN_VECTORS] {
                    let ($block, $run) = place::<Self>(run, Self::RUNS);
                    // SAFETY: bytes of the block of `run`, for which the caller vouches.
                    unsafe { $bytes }
                }
            }
        )*
    };
    (narrow) => { true };
    (wide) => { false };
}

bytes! {
    Q4_0: off 8, narrow; (integers, rows, block, _run) = nibbles(integers, rows, block + 2);
    Q4_1: off 0, narrow; (integers, rows, block, _run) = nibbles(integers, rows, block + 4);
    Q5_0: off 16, narrow; (integers, rows, block, _run) = five(integers, rows, block + 2);
    Q5_1: off 0, narrow; (integers, rows, block, _run) = five(integers, rows, block + 4);
    Q8_0: off 128, wide; (integers, rows, block, _run) =
        without_sign(integers, field(integers, rows, block + 2, 0, 255));
    Q2_K: off 0, narrow; (integers, rows, block, run) =
        field(integers, rows, block + 16 + run / 4 * 32, run % 4 * 2, 3);
    Q3_K: off 4, narrow; (integers, rows, block, run) = joined(
        integers,
        field(integers, rows, block + 32 + run / 4 * 32, run % 4 * 2, 3),
        field(integers, rows, block, run, 1),
        2,
    );
    Q4_K: off 0, narrow; (integers, rows, block, run) =
        field(integers, rows, block + 16 + run / 2 * 32, run % 2 * 4, 15);
    Q5_K: off 0, narrow; (integers, rows, block, run) = joined(
        integers,
        field(integers, rows, block + 48 + run / 2 * 32, run % 2 * 4, 15),
        field(integers, rows, block + 16, run, 1),
        4,
    );
    Q6_K: off 32, narrow; (integers, rows, block, run) = joined(
        integers,
        field(integers, rows, block + run / 4 * 64 + run % 2 * 32, run % 4 / 2 * 4, 15),
        field(integers, rows, block + 128 + run / 4 * 32, run % 4 * 2, 3),
        4,
    );
    IQ4_NL: off 128, wide; (integers, rows, block, _run) =
        looked_up(integers, &IQ4_BYTES, nibbles(integers, rows, block + 2));
    IQ4_XS: off 128, wide; (integers, rows, block, run) =
        looked_up(integers, &IQ4_BYTES, nibbles(integers, rows, block + 8 + run * 16));
    MXFP4: off 12, narrow false; (integers, rows, block, _run) =
        looked_up(integers, &MXFP4_BYTES, nibbles(integers, rows, block + 1));
    INT4_G32: off 0, narrow false; (integers, rows, block, _run) = nibbles(integers, rows, block + 3);
    INT4_G128: off 0, narrow; (integers, rows, block, run) = nibbles(integers, rows, block + 4 + run * 16);
}

/// Five-bit integers: a word of fifth bits from `at` on, and then nibbles.
///
/// # Safety
/// The 20 bytes are readable.
#[inline(always)]
unsafe fn five<I: Integers>(integers: I, rows: &[*const u8; MAX_LANES], at: usize) -> [Int<I>; RUN_VECTORS] {
    // SAFETY: the caller vouches for them.
    let high = unsafe { bits(integers, rows, at) };
    // SAFETY: as above.
    let low = unsafe { nibbles(integers, rows, at + 4) };
    joined(integers, low, high, 4)
}
