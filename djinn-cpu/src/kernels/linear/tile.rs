//! The register tile: a few weight rows times a few activation rows, over the whole of `k`.
#![allow(unsafe_code, reason = "weights and packed activations are read by pointer")]

use super::Shape;
use super::source::RowSource;
use crate::kernels::buffer::{Scratch, Shared};
use crate::kernels::element::Element;
use crate::kernels::simd::{Isa, Kernel, MAX_LANES, Simd};
use std::cell::RefCell;
use std::ops::Range;

thread_local! {
    /// Weight rows as a tile reads them, kept between tasks.
    static DECODED: RefCell<Scratch> = RefCell::default();
}

/// Weight rows of a tile; what is left of a block goes one by one.
pub(super) const WEIGHT_ROWS: usize = 4;

/// Some columns of the output for a block of activation rows.
pub(super) struct Block<'a, W> {
    /// All weights, `[n, k]`.
    pub(super) weight: W,
    /// The block's packed rows and what follows.
    pub(super) x: &'a [f32],
    pub(super) shape: &'a Shape<'a>,
    /// Weight rows.
    pub(super) columns: Range<usize>,
    /// The block's first row in `out`.
    pub(super) first_row: usize,
    pub(super) rows: usize,
    /// Whether the weights are used once, coming from memory.
    pub(super) stream: bool,
    pub(super) out: &'a Shared<'a, f32>,
}

impl<W: RowSource> Block<'_, W> {
    /// Runs all full tiles of `tile_rows` and the rest.
    pub(super) fn run_tiles(&self, isa: Isa, tile_rows: usize) {
        DECODED.with_borrow_mut(|kept| {
            let decoded = kept.get(self.weight.scratch_elements(WEIGHT_ROWS, self.shape.k));
            self.run_tiles_in(isa, tile_rows, decoded);
        });
    }

    /// Writes `COLUMNS` elements of the block's row `row`.
    #[inline(always)]
    fn write<const COLUMNS: usize>(
        &self,
        row: usize,
        column: usize,
        sums: &[f32; WEIGHT_ROWS],
        bias: &[Option<f32>; COLUMNS],
    ) {
        let shape = self.shape;
        let at = (self.first_row + row) * shape.out_width + shape.out_column + column;
        // SAFETY: tasks have disjoint columns, and each row of a block is written once.
        let out = unsafe { self.out.slice(at, COLUMNS) };
        for i in 0..COLUMNS {
            out[i] = bias[i].map_or(sums[i], |bias| sums[i] + bias);
        }
    }

    fn run_tiles_in(&self, isa: Isa, tile_rows: usize, decoded: &mut [f32]) {
        let full = self.rows / tile_rows;
        let rest = self.rows % tile_rows;
        for (rows, first, count) in [(tile_rows, 0, full), (rest, full * tile_rows, 1)] {
            match rows {
                _ if count == 0 => {}
                0 => {}
                1 => isa.run(Tiles::<W, 1> { block: self, first, count, decoded }),
                2 => isa.run(Tiles::<W, 2> { block: self, first, count, decoded }),
                3 => isa.run(Tiles::<W, 3> { block: self, first, count, decoded }),
                4 => isa.run(Tiles::<W, 4> { block: self, first, count, decoded }),
                5 => isa.run(Tiles::<W, 5> { block: self, first, count, decoded }),
                rows => unreachable!("a tile of {rows} rows"),
            }
        }
    }
}

/// `count` tiles of `ROWS` activation rows each, from the block's row `first`.
struct Tiles<'a, W, const ROWS: usize> {
    block: &'a Block<'a, W>,
    first: usize,
    count: usize,
    /// Room for weight rows that are decoded.
    decoded: &'a mut [f32],
}

impl<W: RowSource, const ROWS: usize> Kernel for Tiles<'_, W, ROWS> {
    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        if ROWS > S::TILE_ROWS {
            unreachable!("a tile of {ROWS} rows");
        }
        // Weights that come from memory are read in the order in which they lie there: the processor's
        // prefetcher keeps up with one stream, but not with several short ones. Decoded rows come from a cache.
        let groups =
            if self.block.stream && W::IN_PLACE { 0 } else { self.block.columns.len() / WEIGHT_ROWS };
        let full = self.block.columns.start + groups * WEIGHT_ROWS;
        for column in (self.block.columns.start..full).step_by(WEIGHT_ROWS) {
            self.columns::<S, WEIGHT_ROWS>(simd, column);
        }
        for column in full..self.block.columns.end {
            self.columns::<S, 1>(simd, column);
        }
    }
}

impl<W: RowSource, const ROWS: usize> Tiles<'_, W, ROWS> {
    /// `COLUMNS` output columns of all tiles.
    #[inline(always)]
    fn columns<S: Simd, const COLUMNS: usize>(&mut self, simd: S, column: usize) {
        let (block, shape) = (self.block, self.block.shape);
        let row_elements = shape.k.next_multiple_of(2 * S::LANES);
        let mut bias = [None; COLUMNS];
        for (i, bias) in bias.iter_mut().enumerate() {
            *bias = shape.bias.map(|all| all.get(column + i));
        }
        if ROWS == 1
            && block.rows == 1
            && let Some(sums) = block.weight.dot::<S, COLUMNS>(simd, column, &block.x[..row_elements])
        {
            block.write::<COLUMNS>(0, column, &sums, &bias);
            return;
        }
        let weight = block.weight.rows(column..column + COLUMNS, shape.k, self.decoded);
        for tile in 0..self.count {
            let row = self.first + tile * ROWS;
            let x = &block.x[row * row_elements..(row + ROWS) * row_elements];
            let sums = products::<S, W::Element, ROWS, COLUMNS>(simd, shape.k, weight, x);
            for (r, sums) in sums.iter().enumerate() {
                block.write::<COLUMNS>(row + r, column, sums, &bias);
            }
        }
    }
}

/// The dot products of `COLUMNS` weight rows with `ROWS` packed activation rows.
#[inline(always)]
fn products<S: Simd, W: Element, const ROWS: usize, const COLUMNS: usize>(
    simd: S,
    k: usize,
    weight: &[W],
    x: &[f32],
) -> [[f32; WEIGHT_ROWS]; ROWS] {
    let step = 2 * S::LANES;
    assert!(weight.len() == COLUMNS * k && x.len() == ROWS * k.next_multiple_of(step));
    let mut sums = [[simd.splat(0.0); COLUMNS]; ROWS];
    let (weight, mut x) = (weight.as_ptr(), x.as_ptr());
    for i in 0..k / step {
        // SAFETY: whole steps of each of the `COLUMNS` rows of `k` weights.
        let at = unsafe { weight.add(i * step) };
        // SAFETY: as above, at stride `k`; `x` has two halves of `ROWS` vectors for each step.
        sums = unsafe { add_step::<S, W, ROWS, COLUMNS>(simd, at, k, x, sums) };
        // SAFETY: at most one past the end of the packed rows.
        x = unsafe { x.add(ROWS * step) };
    }
    if !k.is_multiple_of(step) {
        let mut tail = [[W::zeroed(); 2 * MAX_LANES]; COLUMNS];
        for (c, tail) in tail.iter_mut().enumerate() {
            for (i, tail) in tail[..k % step].iter_mut().enumerate() {
                // SAFETY: below `k` in row `c`.
                let at = unsafe { weight.add(c * k + k / step * step + i) };
                // SAFETY: as above; the pointer comes from a slice, so it is aligned.
                *tail = unsafe { *at };
            }
        }
        // SAFETY: `tail` has rows of at least a step; `x` has one more step, padded with zeros.
        sums = unsafe { add_step::<S, W, ROWS, COLUMNS>(simd, tail.as_ptr().cast(), 2 * MAX_LANES, x, sums) };
    }
    let mut out = [[0.0; WEIGHT_ROWS]; ROWS];
    for (out, sums) in out.iter_mut().zip(sums) {
        let mut four = [sums[0]; WEIGHT_ROWS];
        four[..COLUMNS].copy_from_slice(&sums);
        *out = simd.sums(four);
    }
    out
}

/// Adds the products of one step to the sums.
///
/// # Safety
/// `2 LANES` weights are readable at each of `COLUMNS` multiples of `stride`, and `2 ROWS` vectors at `x`.
#[inline(always)]
unsafe fn add_step<S: Simd, W: Element, const ROWS: usize, const COLUMNS: usize>(
    simd: S,
    weight: *const W,
    stride: usize,
    x: *const f32,
    sums: [[S::V; COLUMNS]; ROWS],
) -> [[S::V; COLUMNS]; ROWS] {
    // SAFETY: the caller's contract covers both halves.
    let sums = unsafe { add_half::<S, W, ROWS, COLUMNS, false>(simd, weight, stride, x, sums) };
    // SAFETY: the second half of `x` follows `ROWS` vectors.
    let x = unsafe { x.add(ROWS * S::LANES) };
    // SAFETY: as above.
    unsafe { add_half::<S, W, ROWS, COLUMNS, true>(simd, weight, stride, x, sums) }
}

/// Adds the products of one half of a step.
///
/// # Safety
/// As [`add_step`], with `ROWS` vectors at `x`.
#[inline(always)]
unsafe fn add_half<S: Simd, W: Element, const ROWS: usize, const COLUMNS: usize, const SECOND: bool>(
    simd: S,
    weight: *const W,
    stride: usize,
    x: *const f32,
    mut sums: [[S::V; COLUMNS]; ROWS],
) -> [[S::V; COLUMNS]; ROWS] {
    let mut w = [simd.splat(0.0); COLUMNS];
    for (c, w) in w.iter_mut().enumerate() {
        // SAFETY: the caller vouches for row `c`.
        let at = unsafe { weight.add(c * stride) };
        // SAFETY: as above.
        *w = unsafe { W::load_half::<S, SECOND>(simd, at) };
    }
    for (r, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the caller vouches for `ROWS` vectors.
        let at = unsafe { x.add(r * S::LANES) };
        // SAFETY: as above.
        let x = unsafe { simd.load(at) };
        for (sum, w) in sums.iter_mut().zip(w) {
            *sum = simd.fma(w, x, *sum);
        }
    }
    sums
}
