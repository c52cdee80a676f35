//! The matrix product, in dot form.
//!
//! Every output element has one vector of accumulators that runs over `k` in steps of two vectors; the tail
//! is padded with zeros; the lanes are then summed by a fixed tree. A register tile holds the accumulators
//! of a few weight rows times a few activation rows, so one activation row gives the same bits alone and
//! among hundreds, and decode and prefill are one code path.
//!
//! Activations are packed first: for each tile of rows, step by step, the two halves of a step in the order
//! in which the weights' halves come ([`Element::INTERLEAVED`]), row by row. Weights are read in place,
//! once for each block of activations that fits the second-level cache. With 16 vector registers, 16-bit weights that
//! several tiles read are first widened into the first-level cache; that changes no bit.
//!
//! Rows in blocks are decoded to f32: for one row of activations in the registers that feed the product, for more in the
//! first-level cache, a few rows at a time. Either way a product has the bits of the same one over f32 weights. Rows that
//! are stored without loss are decoded to 16 bits in the cache, and have the bits of plain ones.

mod pack;
mod source;
mod tile;

use super::Fast;
use super::buffer::Shared;
use super::data::Linear;
use super::element::{Element, Elements, Matrix, with_elements};
use super::int8;
use super::simd::Isa;
use djinn_lossless::SixteenBit;
use half::{bf16, f16};
use pack::Pack;
use source::Weights;
use std::sync::{PoisonError, TryLockError};
use tile::Block;

/// Bytes of packed activations that one pass over the weights works on, to stay in the second-level cache.
const X_BLOCK_BYTES: usize = 384 << 10;
/// Bytes of weights of one task, at most.
const TASK_BYTES: usize = 256 << 10;
/// Bytes of weights below which a task is not worth another thread.
const LEAST_TASK_BYTES: usize = 16 << 10;

impl Fast {
    /// See [`djinn_device::args::Linear`].
    pub(crate) fn linear(&self, op: Linear<'_>) {
        // A second stream's product at the same time has scratch of its own.
        let mut own = None;
        let mut kept = match self.packed.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(PoisonError::into_inner(poisoned)),
            Err(TryLockError::WouldBlock) => None,
        };
        let scratch = match &mut kept {
            Some(guard) => &mut **guard,
            None => own.get_or_insert_default(),
        };
        if let (Some(isa), Matrix::Blocks(format, blocks)) = (self.int8, op.weight)
            && int8::has_integers(format)
        {
            return self.linear_int8(isa, op, (format, blocks), scratch);
        }
        let plan = Plan::new(self.isa, &op);
        let x = scratch.get(op.x.len() / op.k * plan.step_elements);
        let shape = op.shape();
        match op.weight {
            Matrix::Plain(weight) => with_elements!(Elements, weight, weight => {
                self.product(&plan, &shape, op.x, Weights::Plain(weight), x, op.out)
            }),
            Matrix::Lossless(matrix) => match matrix.form {
                SixteenBit::BF16 => {
                    self.product(&plan, &shape, op.x, Weights::<bf16>::Lossless(matrix), x, op.out)
                }
                SixteenBit::F16 => {
                    self.product(&plan, &shape, op.x, Weights::<f16>::Lossless(matrix), x, op.out)
                }
            },
            Matrix::Blocks(format, blocks) => {
                self.product(&plan, &shape, op.x, Weights::blocks(format, blocks, op.k), x, op.out)
            }
        }
    }

    fn product<W: Element>(
        &self,
        plan: &Plan,
        shape: &Shape<'_>,
        x: &[f32],
        weight: Weights<'_, W>,
        packed: &mut [f32],
        out: &mut [f32],
    ) {
        let rows = x.len() / shape.k;
        self.pack::<W>(plan, shape.k, x, packed);
        let packed = &*packed;
        let out = Shared::new(out);
        let task_rows = plan.task_rows(shape, weight.row_bytes(shape.k), self.pool.threads());
        let tasks = shape.n.div_ceil(task_rows);
        for first_row in (0..rows).step_by(plan.block_rows) {
            let block_rows = plan.block_rows.min(rows - first_row);
            self.pool.run(tasks, |task| {
                let first = task * task_rows;
                let block = Block {
                    isa: self.isa,
                    weight,
                    x: &packed[first_row * plan.step_elements..],
                    shape,
                    columns: first..shape.n.min(first + task_rows),
                    first_row,
                    rows: block_rows,
                    stream: rows <= plan.tile_rows,
                    out: &out,
                };
                block.run_tiles(plan.tile_rows);
            });
        }
    }

    /// Packs all rows, tile by tile.
    fn pack<W: Element>(&self, plan: &Plan, k: usize, x: &[f32], packed: &mut [f32]) {
        let rows = x.len() / k;
        let tiles = rows.div_ceil(plan.tile_rows);
        let packed = Shared::new(packed);
        // A few rows are packed sooner than a thread is told to.
        let group = if rows * k < 1 << 14 { tiles } else { tiles.div_ceil(4 * self.pool.threads()) };
        self.pool.run(tiles.div_ceil(group), |task| {
            for tile in task * group..tiles.min((task + 1) * group) {
                let first = tile * plan.tile_rows;
                let count = plan.tile_rows.min(rows - first);
                // SAFETY: tiles are disjoint runs of rows.
                #[allow(unsafe_code, reason = "tiles are packed in parallel")]
                let to = unsafe { packed.slice(first * plan.step_elements, count * plan.step_elements) };
                let from = &x[first * k..(first + count) * k];
                self.isa.run(Pack { from, k, rows: count, interleaved: W::INTERLEAVED, to });
            }
        });
    }
}

/// Sizes of a product that every task needs.
struct Shape<'a> {
    k: usize,
    n: usize,
    out_width: usize,
    out_column: usize,
    bias: Option<Elements<'a>>,
}

impl<'a> Linear<'a> {
    fn shape(&self) -> Shape<'a> {
        let &Linear { k, n, out_width, out_column, bias, .. } = self;
        Shape { k, n, out_width, out_column, bias }
    }
}

/// How a product is cut. No cut changes a result.
struct Plan {
    /// Activation rows of a register tile.
    tile_rows: usize,
    /// Packed elements of one row: `k` rounded up to whole steps.
    step_elements: usize,
    /// Activation rows of one pass over the weights, a multiple of `tile_rows`.
    block_rows: usize,
}

impl Plan {
    fn new(isa: Isa, op: &Linear<'_>) -> Plan {
        let tile_rows = isa.tile_rows();
        let step_elements = op.k.next_multiple_of(2 * isa.lanes());
        let block_rows = (X_BLOCK_BYTES / (4 * step_elements)).max(1).next_multiple_of(tile_rows);
        Plan { tile_rows, step_elements, block_rows }
    }

    /// Weight rows of a task: enough tasks for all threads to end together, but none too small.
    fn task_rows(&self, shape: &Shape<'_>, row_bytes: usize, threads: usize) -> usize {
        let even = shape.n.div_ceil(4 * threads);
        let least = LEAST_TASK_BYTES.div_ceil(row_bytes);
        let most = (TASK_BYTES / row_bytes).max(1);
        even.max(least).min(most).next_multiple_of(tile::WEIGHT_ROWS)
    }
}
