//! The matrix product with activations rounded to 8 bits: integers are multiplied and added without rounding.
//!
//! Each run of 32 activations has one scale, the largest of them over 127, rounded to f16 (in f32 where f16 has no such number).
//! For formats whose blocks have 256 elements a run has as many, and its scale is an f32. So ggml rounds them as well.
//! A run of weights is integers with one scale and offset, or two. Its products with a run of activations are summed as
//! integers, in any order. The runs of a row then enter one f32 chain in their order: `sum += (scale · scale of x) ·
//! integer`, and `sum += offset · (scale of x · Σ x)` in formats with offsets, each a fused multiply-add. What is in the last
//! brackets is computed with the scale in f32, and rounded as the scale is. So the bits are the same on every instruction
//! set, and a row's do not depend on the batch.
//!
//! A lane is a row of the weight. The bytes of as many rows as a vector has lanes are unpacked side by side into the
//! first-level cache, 256 columns at a time, and used for all rows of activations: one row takes the same way as hundreds.

mod bytes;
mod formats;
mod isa;
mod quantise;
mod tile;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::Fast;
use super::blocks::{GROUP_RUNS, RUN};
use super::buffer::{Scratch, Shared};
use super::data::Linear;
use djinn_device::BlockFormat;
use formats::{Tables, Unpack};
use quantise::{Group, Quantise};
use std::cell::RefCell;
use std::ops::Range;
use tile::Tile;

pub(crate) use isa::ByteIsa;
pub(super) use quantise::{round, size};

/// Columns that are unpacked at once.
const GROUP: usize = RUN * GROUP_RUNS;
/// Bytes of rounded activations that one pass over the weights works on, to stay in the second-level cache.
const X_BLOCK_BYTES: usize = 384 << 10;
/// Bytes of weights of one task, at most, and at least for another thread.
const TASK_BYTES: Range<usize> = 16 << 10..256 << 10;
/// Activations below which a share of the rows is not worth another thread.
const LEAST_ROUNDED: usize = 1 << 14;

thread_local! {
    /// Unpacked weights, and sums of a block's rows, kept between tasks.
    static KEPT: RefCell<(Tables, Scratch)> = RefCell::default();
}

/// Whether weights of this format are integers, so that they are multiplied by rounded activations.
pub(super) fn has_integers(format: BlockFormat) -> bool {
    !matches!(format, BlockFormat::FP8_G32 | BlockFormat::FP8_G128)
}

/// Weights in blocks.
#[derive(Clone, Copy)]
struct Weights<'a> {
    format: BlockFormat,
    blocks: &'a [u8],
    row_bytes: usize,
}

impl Fast {
    /// The product `op` of weights of `format` in `blocks`; `scratch` keeps the rounded activations.
    pub(super) fn linear_int8(
        &self,
        isa: ByteIsa,
        op: Linear<'_>,
        (format, blocks): (BlockFormat, &[u8]),
        scratch: &mut Scratch,
    ) {
        let (k, n, rows) = (op.k, op.n, op.x.len() / op.k);
        let groups = k.div_ceil(GROUP);
        let floats = size_of::<Group>() / size_of::<f32>();
        let x: &mut [Group] = bytemuck::cast_slice_mut(scratch.get(rows * groups * floats));
        self.quantise(isa, format, op.x, k, x);
        let x = &*x;

        let weights = Weights { format, blocks, row_bytes: super::blocks::row_bytes(format, k) };
        assert_eq!(blocks.len(), n * weights.row_bytes, "{n} rows of {k} elements in {format:?}");
        let even = n.div_ceil(4 * self.pool.threads());
        let [least, most] =
            [TASK_BYTES.start.div_ceil(weights.row_bytes), TASK_BYTES.end / weights.row_bytes];
        let task_columns = even.max(least).min(most.max(1)).next_multiple_of(isa.lanes());
        let block_rows =
            (X_BLOCK_BYTES / (groups * size_of::<Group>())).max(1).next_multiple_of(isa.tile_rows());
        let out = Shared::new(op.out);
        for first in (0..rows).step_by(block_rows) {
            let taken = first..rows.min(first + block_rows);
            self.pool.run(n.div_ceil(task_columns), |task| {
                let columns = task * task_columns..n.min((task + 1) * task_columns);
                let block = Block { isa, weights, k, x, x_rows: rows, rows: taken.clone() };
                KEPT.with_borrow_mut(|(tables, sums)| {
                    let sums = sums.get(taken.len() * isa.lanes());
                    for column in columns.clone().step_by(isa.lanes()) {
                        let columns = column..columns.end.min(column + isa.lanes());
                        block.sums(columns.clone(), tables, sums);
                        for (row, sums) in taken.clone().zip(sums.chunks_exact(isa.lanes())) {
                            let at = row * op.out_width + op.out_column + columns.start;
                            // SAFETY: tasks have disjoint columns, and each row of a block is written once.
                            #[allow(unsafe_code, reason = "columns are written in parallel")]
                            let out = unsafe { out.slice(at, columns.len()) };
                            for (i, (out, &sum)) in out.iter_mut().zip(sums).enumerate() {
                                *out = op.bias.map_or(sum, |bias| sum + bias.get(columns.start + i));
                            }
                        }
                    }
                });
            });
        }
    }

    /// Rounds all rows of `k` activations; group `g` of row `r` is number `g · rows + r`.
    fn quantise(&self, isa: ByteIsa, format: BlockFormat, x: &[f32], k: usize, out: &mut [Group]) {
        let rows = x.len() / k;
        let share = if x.len() < LEAST_ROUNDED { rows } else { rows.div_ceil(4 * self.pool.threads()) };
        let shared = Shared::new(out);
        self.pool.run(rows.div_ceil(share), |task| {
            for row in task * share..rows.min((task + 1) * share) {
                for (g, from) in x[row * k..(row + 1) * k].chunks(GROUP).enumerate() {
                    // SAFETY: each group of each row is written once.
                    #[allow(unsafe_code, reason = "rows are rounded in parallel")]
                    let to = &mut unsafe { shared.slice(g * rows + row, 1) }[0];
                    isa.run(Quantise { format, from, to });
                }
            }
        });
    }
}

/// Rows of activations that work on the same weights.
struct Block<'a> {
    isa: ByteIsa,
    weights: Weights<'a>,
    k: usize,
    x: &'a [Group],
    /// Rows of `x`.
    x_rows: usize,
    /// Those of the block.
    rows: Range<usize>,
}

impl Block<'_> {
    /// The products of at most as many weight rows as there are lanes with the block's rows: `sums[row][lane]`.
    fn sums(&self, columns: Range<usize>, tables: &mut Tables, sums: &mut [f32]) {
        let (isa, lanes) = (self.isa, self.isa.lanes());
        sums.fill(0.0);
        for group in 0..self.k.div_ceil(GROUP) {
            let runs = GROUP_RUNS.min((self.k - group * GROUP) / RUN);
            isa.run(Unpack { weights: self.weights, columns: columns.clone(), group, runs, tables });
            let x = &self.x[group * self.x_rows..][self.rows.clone()];
            let mut row = 0;
            while row < x.len() {
                let rows = isa.tile(x.len() - row);
                let sums = &mut sums[row * lanes..(row + rows) * lanes];
                tile::run(
                    isa,
                    Tile { format: self.weights.format, runs, tables, x: &x[row..row + rows], sums },
                );
                row += rows;
            }
        }
    }
}

#[cfg(test)]
mod tests;
