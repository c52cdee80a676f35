//! Paged causal attention by online softmax (Milakov and Gimelshein 2018; Dao et al. 2022).
//!
//! A task is one key head and a few adjacent rows of one sequence: all queries of the head's group in those
//! rows share its keys and values, which are widened once a block. Blocks are runs of [`BLOCK`] positions
//! counted from 0, so a row goes through the same operations whichever rows share its task; positions past
//! a row's own get weight zero.

mod block;
mod softmax;

use super::Fast;
use super::buffer::{Scratch, Shared};
use super::data::{Attention, KvLayout, Part};
use super::element::{Element, with_elements};
use super::gemm::Gemm;
use block::Load;
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

impl Fast {
    /// See [`crate::args::Attention`].
    pub(crate) fn attention(&self, op: Attention<'_>) {
        let group = op.heads / op.layout.kv_heads;
        let mut tasks = cut(op.row_seq, op.positions, (TASK_QUERIES / group).max(1));
        // The longest first, so that the threads end together.
        tasks.sort_by_key(|rows| std::cmp::Reverse(rows.position * rows.count));
        let out = Shared::new(op.out);
        let shape = Shape { qkv: op.qkv, layout: op.layout, heads: op.heads, scale: op.scale, out };
        with_elements!(Elements, op.pages, pages => {
            self.pool.run(tasks.len() * shape.layout.kv_heads, |task| {
                let (rows, head) = (tasks[task / shape.layout.kv_heads], task % shape.layout.kv_heads);
                self.attend(&shape, pages, rows, head);
            });
        });
    }

    /// One task.
    fn attend<E: Element>(&self, shape: &Shape<'_>, pages: &[E], rows: Rows, head: usize) {
        let Shape { layout, .. } = *shape;
        let (dim, group) = (layout.head_dim, shape.group());
        let (queries, width) = (rows.count * group, dim.next_multiple_of(self.isa.lanes()));
        let mut scratch = Scratch::zeros(queries * (dim + BLOCK + width + 2) + BLOCK * 3 * width);
        let all = scratch.get(queries * (dim + BLOCK + width + 2) + BLOCK * 3 * width);
        let (keys, rest) = all.split_at_mut(BLOCK * width);
        let (keys_across, rest) = rest.split_at_mut(BLOCK * width);
        let (values, rest) = rest.split_at_mut(BLOCK * width);
        let (scores, rest) = rest.split_at_mut(queries * BLOCK);
        let (sums, rest) = rest.split_at_mut(queries * width);
        let (largest, rest) = rest.split_at_mut(queries);
        let (totals, query) = rest.split_at_mut(queries);
        shape.gather(rows, head, query);
        largest.fill(f32::NEG_INFINITY);

        let end = rows.position + rows.count;
        for start in (0..end).step_by(BLOCK) {
            let count = BLOCK.min(end - start);
            let at = |position, part| layout.offset(rows.sequence, position, part, head);
            let load = |part, to: &mut [f32], across: Option<&mut [f32]>| {
                let page_tokens = layout.page_tokens;
                let from = |position| at(position, part);
                self.isa.run(Load { pages, from: &from, start, count, page_tokens, dim, width, to, across });
            };
            load(Part::Keys, keys, Some(keys_across));
            load(Part::Values, values, None);
            // Rows before this one have no position in the block.
            let skip = start.saturating_sub(rows.position) * group;
            let m = queries - skip;
            let (scores, sums) = (&mut scores[skip * BLOCK..], &mut sums[skip * width..]);
            self.isa.run(Gemm {
                a: &query[skip * dim..],
                a_stride: dim,
                b: keys_across,
                c: scores,
                m,
                k: dim,
                width: BLOCK,
                accumulate: false,
            });
            self.isa.run(Softmax {
                scores,
                sums,
                width,
                largest: &mut largest[skip..],
                totals: &mut totals[skip..],
                visible: |query| BLOCK.min(rows.position + (skip + query) / group + 1 - start),
            });
            self.isa.run(Gemm {
                a: scores,
                a_stride: BLOCK,
                b: values,
                c: sums,
                m,
                k: count,
                width,
                accumulate: true,
            });
        }
        for query in 0..queries {
            let (row, head) = (rows.first + query / group, head * group + query % group);
            // SAFETY: each task has its own rows and heads, and this loop visits each once.
            #[allow(unsafe_code, reason = "tasks write their heads' columns of shared rows")]
            let out = unsafe { shape.out.slice((row * shape.heads + head) * dim, dim) };
            self.isa.run(Finish { sums: &sums[query * width..][..dim], total: totals[query], out });
        }
    }
}

/// What every task needs.
struct Shape<'a> {
    qkv: &'a [f32],
    layout: KvLayout<'a>,
    heads: usize,
    scale: f32,
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
