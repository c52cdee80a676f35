//! The register tile: a few weight rows times a few activation rows, over the whole of `k`.
#![allow(unsafe_code, reason = "weights and packed activations are read by pointer")]

use super::Shape;
use super::source::Weights;
use crate::kernels::buffer::{Scratch, Shared};
use crate::kernels::element::Element;
use crate::kernels::simd::{Isa, Kernel, MAX_LANES, Simd};
use std::cell::RefCell;
use std::ops::Range;

thread_local! {
    /// [`Tiles::scratch`], kept between tasks.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// With so few vector registers, weights are widened once for all tiles, not in each: there the CPU has too little time
/// beside the products.
const FEW_REGISTERS: usize = 16;
/// Widened elements of a tile's weight rows: half of a first-level cache of 32 KiB.
const WIDENED: usize = 4096;

/// Weight rows of a tile; what is left of a block goes one by one.
pub(super) const WEIGHT_ROWS: usize = 4;

/// Some columns of the output for a block of activation rows.
pub(super) struct Block<'a, W> {
    pub(super) isa: Isa,
    /// All weights, `[n, k]`.
    pub(super) weight: Weights<'a, W>,
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

impl<W: Element> Block<'_, W> {
    /// Runs all full tiles of `tile_rows` and the rest.
    pub(super) fn run_tiles(&self, tile_rows: usize) {
        SCRATCH.with_borrow_mut(|scratch| {
            let decoded = self.weight.scratch_elements(WEIGHT_ROWS, self.shape.k);
            let kept = self.rows * WEIGHT_ROWS * MAX_LANES;
            self.run_tiles_in(tile_rows, scratch.get(WIDENED + kept + decoded));
        });
    }

    /// Adds the lanes of a tile's sums, and writes them from the block's row `row` on.
    #[inline(always)]
    fn write<S: Simd, const ROWS: usize, const COLUMNS: usize>(
        &self,
        simd: S,
        row: usize,
        column: usize,
        sums: [[S::V; COLUMNS]; ROWS],
        bias: &[Option<f32>; COLUMNS],
    ) {
        for (r, sums) in sums.into_iter().enumerate() {
            let mut four = [sums[0]; WEIGHT_ROWS];
            four[..COLUMNS].copy_from_slice(&sums);
            self.write_row(row + r, column, &simd.sums(four), bias);
        }
    }

    /// Writes `COLUMNS` elements of the block's row `row`.
    #[inline(always)]
    fn write_row<const COLUMNS: usize>(
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

    fn run_tiles_in(&self, tile_rows: usize, scratch: &mut [f32]) {
        let isa = self.isa;
        let full = self.rows / tile_rows;
        let rest = self.rows % tile_rows;
        for (rows, first, count) in [(tile_rows, 0, full), (rest, full * tile_rows, 1)] {
            match rows {
                _ if count == 0 => {}
                0 => {}
                1 => isa.run(Tiles::<W, 1> { block: self, first, count, scratch }),
                2 => isa.run(Tiles::<W, 2> { block: self, first, count, scratch }),
                3 => isa.run(Tiles::<W, 3> { block: self, first, count, scratch }),
                4 => isa.run(Tiles::<W, 4> { block: self, first, count, scratch }),
                5 => isa.run(Tiles::<W, 5> { block: self, first, count, scratch }),
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
    /// Room for weights that are widened, for sums of tiles, and for weight rows that are decoded.
    scratch: &'a mut [f32],
}

impl<W: Element, const ROWS: usize> Kernel for Tiles<'_, W, ROWS> {
    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        if ROWS > S::TILE_ROWS {
            unreachable!("a tile of {ROWS} rows");
        }
        // Weights that come from memory are read in the order in which they lie there: the CPU's
        // prefetcher keeps up with one stream, but not with several short ones. Decoded rows come from a cache.
        let groups = if self.block.stream && self.block.weight.are_in_place() {
            0
        } else {
            self.block.columns.len() / WEIGHT_ROWS
        };
        let full = self.block.columns.start + groups * WEIGHT_ROWS;
        for column in (self.block.columns.start..full).step_by(WEIGHT_ROWS) {
            self.columns::<S, WEIGHT_ROWS>(simd, column);
        }
        for column in full..self.block.columns.end {
            self.columns::<S, 1>(simd, column);
        }
    }
}

impl<W: Element, const ROWS: usize> Tiles<'_, W, ROWS> {
    /// `COLUMNS` output columns of all tiles.
    #[inline(always)]
    fn columns<S: Simd, const COLUMNS: usize>(&mut self, simd: S, column: usize) {
        let (block, shape) = (self.block, self.block.shape);
        let row_elements = shape.k.next_multiple_of(2 * S::LANES);
        let mut bias = [None; COLUMNS];
        for (i, bias) in bias.iter_mut().enumerate() {
            *bias = shape.bias.map(|all| all.get(column + i));
        }
        // A constant, so that no code is made for elements without blocks, nor for the few columns after the last tile.
        if const { ROWS == 1 && COLUMNS == WEIGHT_ROWS && size_of::<W>() == size_of::<f32>() }
            && block.rows == 1
            && let Weights::Blocks(blocks) = block.weight
        {
            let sums = blocks.dot::<S, COLUMNS>(simd, column, &block.x[..row_elements]);
            block.write_row::<COLUMNS>(0, column, &sums, &bias);
            return;
        }
        let (widened, scratch) = self.scratch.split_at_mut(WIDENED);
        let (kept, decoded) = scratch.split_at_mut(block.rows * WEIGHT_ROWS * MAX_LANES);
        let weight = block.weight.rows(block.isa, column..column + COLUMNS, shape.k, decoded);
        let zeros = [[simd.splat(0.0); COLUMNS]; ROWS];
        let is_wide = size_of::<W>() == size_of::<f32>();
        if self.count == 1 || is_wide || S::REGISTERS > FEW_REGISTERS {
            for tile in 0..self.count {
                let row = self.first + tile * ROWS;
                let x = &block.x[row * row_elements..][..ROWS * row_elements];
                let sums = add_products(simd, shape.k, weight, x, zeros);
                block.write(simd, row, column, sums, &bias);
            }
            return;
        }
        // As much of the weights as the first-level cache holds is widened for all tiles. Their sums are kept for the rest.
        let most = WIDENED / WEIGHT_ROWS;
        for from in (0..row_elements).step_by(most) {
            let to = row_elements.min(from + most);
            let widened = &mut widened[..COLUMNS * (to - from)];
            for (row, widened) in weight.chunks_exact(shape.k).zip(widened.chunks_exact_mut(to - from)) {
                widen(simd, &row[from..to.min(shape.k)], widened);
            }
            let kept = kept.chunks_exact_mut(ROWS * COLUMNS * S::LANES);
            for (tile, kept) in (0..self.count).zip(kept) {
                let row = self.first + tile * ROWS;
                let x = &block.x[row * row_elements + ROWS * from..][..ROWS * (to - from)];
                let mut sums = zeros;
                if from > 0 {
                    for (r, sums) in sums.iter_mut().enumerate() {
                        for (c, sum) in sums.iter_mut().enumerate() {
                            *sum = simd.read(&kept[(r * COLUMNS + c) * S::LANES..]);
                        }
                    }
                }
                sums = add_products(simd, to - from, widened, x, sums);
                if to == row_elements {
                    block.write(simd, row, column, sums, &bias);
                    continue;
                }
                for (r, sums) in sums.iter().enumerate() {
                    for (c, sum) in sums.iter().enumerate() {
                        simd.write(&mut kept[(r * COLUMNS + c) * S::LANES..], *sum);
                    }
                }
            }
        }
    }
}

/// Widens a part of a row, in the order in which activations are packed. Past the row's end are zeros.
#[inline(always)]
fn widen<S: Simd, W: Element>(simd: S, from: &[W], to: &mut [f32]) {
    let step = 2 * S::LANES;
    assert!(to.len() == from.len().next_multiple_of(step));
    for (from, to) in from.chunks(step).zip(to.chunks_exact_mut(step)) {
        let mut whole = [W::zeroed(); 2 * MAX_LANES];
        let from = if from.len() == step {
            from
        } else {
            whole[..from.len()].copy_from_slice(from);
            &whole
        };
        // SAFETY: `from` has a whole step.
        simd.write(to, unsafe { W::load_half::<S, false>(simd, from.as_ptr()) });
        // SAFETY: as above.
        simd.write(&mut to[S::LANES..], unsafe { W::load_half::<S, true>(simd, from.as_ptr()) });
    }
}

/// Adds the products of `COLUMNS` weight rows with `ROWS` packed activation rows.
#[inline(always)]
fn add_products<S: Simd, W: Element, const ROWS: usize, const COLUMNS: usize>(
    simd: S,
    k: usize,
    weight: &[W],
    x: &[f32],
    mut sums: [[S::V; COLUMNS]; ROWS],
) -> [[S::V; COLUMNS]; ROWS] {
    let step = 2 * S::LANES;
    assert!(weight.len() == COLUMNS * k && x.len() == ROWS * k.next_multiple_of(step));
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
    sums
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
    // Both orders give the same sums. With few registers all weights of the step do not fit beside these.
    if S::REGISTERS > FEW_REGISTERS {
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
        return sums;
    }
    let mut rows = [simd.splat(0.0); ROWS];
    for (r, row) in rows.iter_mut().enumerate() {
        // SAFETY: the caller vouches for `ROWS` vectors.
        let at = unsafe { x.add(r * S::LANES) };
        // SAFETY: as above.
        *row = unsafe { simd.load(at) };
    }
    for c in 0..COLUMNS {
        // SAFETY: the caller vouches for row `c`.
        let at = unsafe { weight.add(c * stride) };
        // SAFETY: as above.
        let w = unsafe { W::load_half::<S, SECOND>(simd, at) };
        for (sums, x) in sums.iter_mut().zip(rows) {
            sums[c] = simd.fma(w, x, sums[c]);
        }
    }
    sums
}
