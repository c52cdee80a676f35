//! Paged causal attention by online softmax (Milakov and Gimelshein 2018; Dao et al. 2022).
//!
//! A task is one key head and a few adjacent rows of one sequence: all queries of the head's group in those
//! rows share its keys and values, which are widened once a block. Blocks are runs of [`BLOCK`] positions
//! counted from 0, so a row goes through the same operations whichever rows share its task; positions past
//! a row's own, and before its window, get weight zero. Blocks that a row does not see change none of its bits;
//! positions that no row of the task sees are not read.

mod alibi;
mod block;
mod softmax;

use super::Fast;
use super::buffer::{Scratch, Shared};
use super::data::{Attention, KvLayout, Part, first_seen};
use super::element::{Cache, Widen, with_elements};
use super::gemm::Gemm;
use alibi::Shift;
use block::Load;
use djinn_device::reference::alibi::{bias, slope};
use softmax::{Finish, Softmax};

/// Positions of a block.
const BLOCK: usize = 64;
/// Queries of a task, about: enough to widen keys and values seldom.
const TASK_QUERIES: usize = 48;

/// Adjacent rows of one sequence, at ascending positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rows {
    first: usize,
    count: usize,
    sequence: usize,
    /// The first row's.
    position: usize,
}

impl Rows {
    /// How many positions of the block from `start` on are not after the last row.
    fn positions_from(&self, start: usize) -> usize {
        BLOCK.min(self.position + self.count - start)
    }
}

impl Fast {
    /// See [`djinn_device::args::Attention`].
    pub(crate) fn attention(&self, op: Attention<'_>) {
        let group = op.heads / op.layout.kv_heads;
        let mut tasks = cut(op.row_seq, op.positions, (TASK_QUERIES / group).max(1));
        // The longest first, so that the threads end together.
        let length = |rows: &Rows| rows.position - first_seen(op.window, rows.position);
        tasks.sort_by_key(|rows| std::cmp::Reverse(length(rows) * rows.count));
        let Attention { qkv, layout, heads, scale, window, alibi, .. } = op;
        let shape = Shape { qkv, layout, heads, scale, window, alibi, out: Shared::new(op.out) };
        match op.pages {
            Cache::Plain(pages) => {
                with_elements!(Elements, pages, pages => self.attend_all(&shape, pages, &tasks))
            }
            Cache::Int8(pages) => self.attend_all(&shape, pages, &tasks),
        }
    }

    /// All tasks, each for every key head.
    fn attend_all<E: Widen>(&self, shape: &Shape<'_>, pages: &[E], tasks: &[Rows]) {
        let kv_heads = shape.layout.kv_heads;
        self.pool.run(tasks.len() * kv_heads, |task| {
            self.attend(shape, pages, tasks[task / kv_heads], task % kv_heads);
        });
    }

    /// One task.
    fn attend<E: Widen>(&self, shape: &Shape<'_>, pages: &[E], rows: Rows, head: usize) {
        let (dim, group) = (shape.layout.head_dim, shape.group());
        let (queries, width) = (rows.count * group, dim.next_multiple_of(self.isa.lanes()));
        let biased = if shape.alibi { group } else { 0 };
        let floats = queries * (dim + BLOCK + width + 2) + BLOCK * (3 * width + biased);
        let mut scratch = Scratch::zeros(floats);
        let (keys, rest) = scratch.get(floats).split_at_mut(BLOCK * width);
        let (keys_across, rest) = rest.split_at_mut(BLOCK * width);
        let (values, rest) = rest.split_at_mut(BLOCK * width);
        let (scores, rest) = rest.split_at_mut(queries * BLOCK);
        let (sums, rest) = rest.split_at_mut(queries * width);
        let (biases, rest) = rest.split_at_mut(biased * BLOCK);
        let (largest, rest) = rest.split_at_mut(queries);
        let (totals, query) = rest.split_at_mut(queries);
        shape.gather(rows, head, query);
        largest.fill(f32::NEG_INFINITY);
        let mut work =
            Work { width, query, keys, keys_across, values, scores, biases, sums, largest, totals };

        let first = first_seen(shape.window, rows.position);
        for start in (first / BLOCK * BLOCK..rows.position + rows.count).step_by(BLOCK) {
            self.load(shape, pages, rows, head, start, &mut work);
            self.extend(shape, rows, head, start, &mut work);
        }
        for query in 0..queries {
            let (row, head) = (rows.first + query / group, head * group + query % group);
            // SAFETY: each task has its own rows and heads, and this loop visits each once.
            #[allow(unsafe_code, reason = "tasks write their heads' columns of shared rows")]
            let out = unsafe { shape.out.slice((row * shape.heads + head) * dim, dim) };
            let sums = &work.sums[query * width..][..dim];
            self.isa.run(Finish { sums, total: work.totals[query], out });
        }
    }

    /// Loads the keys and values of the block of positions from `start`.
    fn load<E: Widen>(
        &self,
        shape: &Shape<'_>,
        pages: &[E],
        rows: Rows,
        head: usize,
        start: usize,
        work: &mut Work<'_>,
    ) {
        let (layout, width, count) = (shape.layout, work.width, rows.positions_from(start));
        let hidden = first_seen(shape.window, rows.position).saturating_sub(start);
        let load = |part, to: &mut [f32], across: Option<&mut [f32]>| {
            let from = |position| layout.offset(rows.sequence, position, part, head);
            self.isa.run(Load { pages, layout, from: &from, start, hidden, count, width, to, across });
        };
        load(Part::Keys, work.keys, Some(work.keys_across));
        load(Part::Values, work.values, None);
    }

    /// Extends a task's rows by the block of positions from `start`, which was loaded.
    fn extend(&self, shape: &Shape<'_>, rows: Rows, head: usize, start: usize, work: &mut Work<'_>) {
        let (group, width, dim) = (shape.group(), work.width, shape.layout.head_dim);
        // Rows before these end before the block, and the windows of rows after them begin after it.
        let skip = start.saturating_sub(rows.position) * group;
        let until = shape.window.map_or(rows.count, |window| {
            rows.count.min((start + BLOCK - 1).saturating_add(window) - rows.position)
        });
        let (until, m) = (until * group, until * group - skip);
        let scores = &mut work.scores[skip * BLOCK..until * BLOCK];
        let sums = &mut work.sums[skip * width..until * width];
        let position = |query: usize| rows.position + (skip + query) / group;
        let product = Gemm {
            a: &work.query[skip * dim..until * dim],
            a_stride: dim,
            b: work.keys_across,
            c: scores,
            m,
            k: dim,
            width: BLOCK,
            accumulate: false,
        };
        self.isa.run(product);
        if shape.alibi {
            let slope = |query: usize| slope(head * group + query % group, shape.heads);
            for (query, biases) in work.biases.chunks_exact_mut(BLOCK).enumerate() {
                alibi::tabulate(slope(query), start, biases);
            }
            let own = |query| bias(slope(query), position(query));
            self.isa.run(Shift { scores, biases: work.biases, own, scale: shape.scale });
        }
        let visible = |query| {
            let first = first_seen(shape.window, position(query)).saturating_sub(start);
            first..BLOCK.min(position(query) + 1 - start)
        };
        let (largest, totals) = (&mut work.largest[skip..], &mut work.totals[skip..]);
        self.isa.run(Softmax { scores, sums, width, largest, totals, visible });
        let (a, b) = (&*scores, &*work.values);
        let k = rows.positions_from(start);
        self.isa.run(Gemm { a, a_stride: BLOCK, b, c: sums, m, k, width, accumulate: true });
    }
}

/// The memory of a task.
struct Work<'a> {
    /// Elements of a head, as vectors.
    width: usize,
    /// `[queries, dim]`, scaled.
    query: &'a [f32],
    /// `[BLOCK, width]`, and transposed.
    keys: &'a mut [f32],
    keys_across: &'a mut [f32],
    /// `[BLOCK, width]`.
    values: &'a mut [f32],
    /// `[queries, BLOCK]`.
    scores: &'a mut [f32],
    /// `[heads of the group, BLOCK]`, or empty.
    biases: &'a mut [f32],
    /// `[queries, width]`: weighted values.
    sums: &'a mut [f32],
    /// Each query's largest score.
    largest: &'a mut [f32],
    /// Each query's sum of weights.
    totals: &'a mut [f32],
}

/// What every task needs.
struct Shape<'a> {
    qkv: &'a [f32],
    layout: KvLayout<'a>,
    heads: usize,
    scale: f32,
    window: Option<usize>,
    alibi: bool,
    out: Shared<'a, f32>,
}

impl Shape<'_> {
    /// Query heads for each key head.
    fn group(&self) -> usize {
        self.heads / self.layout.kv_heads
    }

    /// Copies the queries of a task, scaled: `[row, head of the group, dim]`.
    fn gather(&self, rows: Rows, head: usize, to: &mut [f32]) {
        let (dim, group) = (self.layout.head_dim, self.group());
        let width = (self.heads + 2 * self.layout.kv_heads) * dim;
        for (r, to) in to.chunks_exact_mut(group * dim).enumerate() {
            let from = &self.qkv[(rows.first + r) * width + head * group * dim..][..group * dim];
            for (to, from) in to.iter_mut().zip(from) {
                *to = from * self.scale;
            }
        }
    }
}

/// Cuts the rows into runs of one sequence at ascending positions, of at most `most` rows.
fn cut(row_seq: &[u32], positions: &[u32], most: usize) -> Vec<Rows> {
    let mut all: Vec<Rows> = Vec::new();
    for (r, (&sequence, &position)) in row_seq.iter().zip(positions).enumerate() {
        let (sequence, position) = (sequence as usize, position as usize);
        match all.last_mut() {
            Some(rows)
                if rows.count < most
                    && rows.sequence == sequence
                    && rows.position + rows.count == position =>
            {
                rows.count += 1;
            }
            _ => all.push(Rows { first: r, count: 1, sequence, position }),
        }
    }
    all
}

#[cfg(test)]
mod tests;
