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
use super::buffer::{Scratch, Shared};
use super::data::Linear;
use super::element::{Element, Elements, Matrix, with_elements};
use super::int8;
use super::simd::Isa;
use djinn_lossless::SixteenBit;
use half::{bf16, f16};
use pack::Pack;
use source::Weights;
use std::sync::TryLockError;
use tile::Block;

/// Bytes of packed activations that one pass over the weights works on, to stay in the second-level cache.
const X_BLOCK_BYTES: usize = 384 << 10;
/// Bytes of weights of one task, at most.
const TASK_BYTES: usize = 256 << 10;
/// Bytes of weights below which a task is not worth another thread.
const LEAST_TASK_BYTES: usize = 16 << 10;

/// Evaluates `$body` with `$weights` as the [`Weights`] of a matrix of `$k` columns.
macro_rules! with_weights {
    ($matrix:expr, $k:expr, $weights:ident => $body:expr) => {
        match $matrix {
            Matrix::Plain(weight) => with_elements!(Elements, weight, weight => {
                let $weights = Weights::Plain(weight);
                $body
            }),
            Matrix::Lossless(matrix) => match matrix.form {
                SixteenBit::BF16 => {
                    let $weights = Weights::<bf16>::Lossless(matrix);
                    $body
                }
                SixteenBit::F16 => {
                    let $weights = Weights::<f16>::Lossless(matrix);
                    $body
                }
            },
            Matrix::Blocks(format, blocks) => {
                let $weights = Weights::blocks(format, blocks, $k);
                $body
            }
        }
    };
}

impl Fast {
    /// See [`djinn_device::args::Linear`].
    pub(crate) fn linear(&self, op: Linear<'_>) {
        if let (Some(isa), Matrix::Blocks(format, blocks)) = (self.int8, op.weight)
            && int8::has_integers(format)
        {
            return self.with_scratch(|scratch| self.linear_int8(isa, op, (format, blocks), scratch));
        }
        self.linears(vec![op]);
    }

    /// Several products with float activations, whose tasks are shared out together. Each has the bits that it has alone.
    pub(crate) fn linears(&self, ops: Vec<Linear<'_>>) {
        let elements = |op: &Linear<'_>| op.x.len() / op.k * Plan::new(self.isa, op).step_elements;
        self.with_scratch(|scratch| {
            let mut left = scratch.get(ops.iter().map(elements).sum());
            let mut products = Vec::with_capacity(ops.len());
            for op in ops {
                let (packed, others) = left.split_at_mut(elements(&op));
                left = others;
                products.push(self.pack_product(op, packed));
            }
            let tasks: Vec<Tasks<'_>> = products.iter().map(|product| self.tasks(product)).collect();
            let ends = tasks.iter().scan(0, |end, tasks| {
                *end += tasks.count;
                Some(*end)
            });
            let ends: Vec<usize> = ends.collect();
            self.pool.run(ends.last().copied().unwrap_or(0), |task| {
                let of = ends.partition_point(|&end| end <= task);
                (tasks[of].run)(task + tasks[of].count - ends[of]);
            });
        });
    }

    /// Calls `work` with the kept scratch memory, or, beside another stream's product, with memory of its own.
    fn with_scratch<R>(&self, work: impl FnOnce(&mut Scratch) -> R) -> R {
        match self.packed.try_lock() {
            Ok(mut kept) => work(&mut kept),
            Err(TryLockError::Poisoned(poisoned)) => work(&mut poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => work(&mut Scratch::default()),
        }
    }

    fn pack_product<'a>(&self, op: Linear<'a>, packed: &'a mut [f32]) -> Packed<'a> {
        let (plan, shape, weight) = (Plan::new(self.isa, &op), op.shape(), op.weight);
        let interleaved = with_weights!(weight, op.k, weights => weights.interleaved());
        self.pack(&plan, op.k, interleaved, op.x, packed);
        Packed { plan, shape, weight, rows: op.x.len() / op.k, x: packed, out: Shared::new(op.out) }
    }

    fn tasks<'a>(&self, product: &'a Packed<'a>) -> Tasks<'a> {
        with_weights!(product.weight, product.shape.k, weights => self.tasks_with(product, weights))
    }

    /// First those of the first block of activations, which stays in the second-level cache, then those of the next.
    fn tasks_with<'a, W: Element>(&self, product: &'a Packed<'a>, weight: Weights<'a, W>) -> Tasks<'a> {
        let Packed { plan, shape, rows, x, out, .. } = product;
        let (isa, rows) = (self.isa, *rows);
        let task_rows = plan.task_rows(shape, weight.row_bytes(shape.k), self.pool.threads());
        let tasks_of_block = shape.n.div_ceil(task_rows);
        let run = move |task: usize| {
            let first = task % tasks_of_block * task_rows;
            let first_row = task / tasks_of_block * plan.block_rows;
            let block = Block {
                isa,
                weight,
                x: &x[first_row * plan.step_elements..],
                shape,
                columns: first..shape.n.min(first + task_rows),
                first_row,
                rows: plan.block_rows.min(rows - first_row),
                stream: rows <= plan.tile_rows,
                out,
            };
            block.run_tiles(plan.tile_rows);
        };
        Tasks { count: rows.div_ceil(plan.block_rows) * tasks_of_block, run: Box::new(run) }
    }

    /// Packs all rows, tile by tile.
    fn pack(&self, plan: &Plan, k: usize, interleaved: bool, x: &[f32], packed: &mut [f32]) {
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
                self.isa.run(Pack { from, k, rows: count, interleaved, to });
            }
        });
    }
}

/// A product whose activations are packed.
struct Packed<'a> {
    plan: Plan,
    shape: Shape<'a>,
    weight: Matrix<'a>,
    rows: usize,
    x: &'a [f32],
    out: Shared<'a, f32>,
}

/// Parts of a product, to be run in any order, at the same time too.
struct Tasks<'a> {
    count: usize,
    run: Box<dyn Fn(usize) + Sync + 'a>,
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
