//! Checks of attention with windows and biases, and with heads in unusual numbers.

use super::{Batch, Shape, scale, shapes};
use crate::conformance::ops::rig::{DTYPES, Rig, same_bits};
use crate::{DType, Ops};
use djinn_srg::Scores;

fn windowed(shape: Shape, window: u32) -> Scores {
    Scores { window: Some(window), ..Scores::scaled(scale(shape)) }
}

fn biased(shape: Shape, window: Option<u32>) -> Scores {
    Scores { scale: scale(shape), window, alibi: true }
}

/// Compares a whole batch.
fn check<D: Ops>(rig: &mut Rig<D>, shape: Shape, segments: &[(usize, usize)], scores: Scores) {
    let batch = Batch::scored(rig, shape, segments, scores);
    let got = batch.run(rig, 0, batch.positions.len());
    let Scores { window, alibi, .. } = scores;
    let name = format!("attention {} {segments:?}, window {window:?}, alibi {alibi}", shape.name());
    rig.compare(&name, &got, &batch.reference(), shape.dtype);
}

/// Windows of one position, less than a page, across pages, of whole pages, and longer than every context; rows
/// on both sides of a window's end, of pages and of a device's pieces; long runs and single rows at once.
pub(in super::super) fn windows_match_the_reference<D: Ops>(rig: &mut Rig<D>) {
    for dtype in DTYPES {
        for shape in shapes(dtype) {
            for window in [1, 64, 129, 400] {
                check(rig, shape, &[(127, 1), (128, 1), (129, 1), (300, 1), (0, 1)], windowed(shape, window));
            }
            for window in [257, 400] {
                check(rig, shape, &[(255, 3), (700, 1), (511, 1)], windowed(shape, window));
            }
            for window in [7, 64, 100] {
                check(rig, shape, &[(0, 70), (5, 3), (95, 40), (256, 1)], windowed(shape, window));
            }
        }
    }
}

/// Rows that a window hides nothing from have the bits that they have without it.
pub(in super::super) fn windows_that_hide_nothing_change_nothing<D: Ops>(rig: &mut Rig<D>) {
    for dtype in DTYPES {
        for shape in shapes(dtype) {
            for segments in [&[(0, 140)][..], &[(120, 9)], &[(200, 1), (3, 2)]] {
                let mut batch = Batch::new(rig, shape, segments);
                let rows = batch.positions.len();
                let all = batch.run(rig, 0, rows);
                for window in [130, 1000] {
                    batch.scores = windowed(shape, window);
                    let got = batch.run(rig, 0, rows);
                    let row = shape.heads * shape.dim;
                    for (r, _) in batch.positions.iter().enumerate().filter(|(_, p)| **p < window) {
                        let name = format!("row {r} of attention {} in a window of {window}", shape.name());
                        same_bits(&name, &got[r * row..][..row], &all[r * row..][..row]);
                    }
                }
            }
        }
    }
}

/// Rows alone and in batches; sequences alone and beside others.
fn invariant<D: Ops>(rig: &mut Rig<D>, shape: Shape, scores: Scores) {
    let row = shape.heads * shape.dim;
    let batch = Batch::scored(rig, shape, &[(58, 19), (127, 3), (0, 11)], scores);
    let all = rig.in_batches(batch.positions.len(), |rig, first, count| batch.run(rig, first, count));
    for (first, count) in [(0, 1), (5, 1), (18, 1), (20, 1), (21, 5), (32, 1), (3, 16), (17, 16)] {
        let got = batch.run(rig, first, count);
        let name = format!("rows {first}+{count} of attention {} {scores:?}", shape.name());
        same_bits(&name, &got, &all[first * row..(first + count) * row]);
    }
    let segments = [(60, 40), (0, 70), (5, 3), (129, 1), (31, 33), (255, 4), (300, 1)];
    let batch = Batch::scored(rig, shape, &segments, scores);
    let all = batch.run(rig, 0, batch.positions.len());
    let mut first = 0;
    for (position, count) in segments {
        let alone = batch.run(rig, first, count);
        let name = format!("{count} rows from {position} of attention {} {scores:?}", shape.name());
        same_bits(&name, &alone, &all[first * row..(first + count) * row]);
        first += count;
    }
}

pub(in super::super) fn windows_are_batch_invariant<D: Ops>(rig: &mut Rig<D>) {
    for dtype in DTYPES {
        for shape in shapes(dtype) {
            for window in [1, 50, 300] {
                invariant(rig, shape, windowed(shape, window));
            }
        }
    }
}

/// Slopes of heads in a power of two and in other numbers.
fn biased_shapes(dtype: DType) -> [Shape; 3] {
    [
        Shape { heads: 71, kv_heads: 71, dim: 64, page_tokens: 8, dtype },
        Shape { heads: 12, kv_heads: 12, dim: 64, page_tokens: 16, dtype },
        Shape { heads: 1, kv_heads: 1, dim: 20, page_tokens: 5, dtype },
    ]
}

pub(in super::super) fn biases_match_the_reference<D: Ops>(rig: &mut Rig<D>) {
    for dtype in DTYPES {
        let [many, some, one] = biased_shapes(dtype);
        for window in [None, Some(1), Some(20)] {
            check(rig, many, &[(0, 34), (20, 1)], biased(many, window));
            check(rig, some, &[(0, 70), (129, 2)], biased(some, window));
            check(rig, one, &[(0, 70), (129, 1), (300, 2)], biased(one, window));
        }
        // Groups that share a key head, each query head with a slope of its own.
        for shape in shapes(dtype) {
            check(rig, shape, &[(0, 40), (129, 1)], biased(shape, None));
        }
    }
}

pub(in super::super) fn biases_are_batch_invariant<D: Ops>(rig: &mut Rig<D>) {
    for dtype in DTYPES {
        let [_, some, one] = biased_shapes(dtype);
        invariant(rig, some, biased(some, None));
        invariant(rig, one, biased(one, Some(50)));
    }
}

/// Falcon's 71 queries to one key and 29 to each of 8, GPT-J's heads of 256, GPT-2's 12 of 64.
pub(in super::super) fn serves_unusual_heads<D: Ops>(rig: &mut Rig<D>) {
    for dtype in DTYPES {
        for (heads, kv_heads, dim) in [(71, 1, 64), (232, 8, 64), (16, 16, 256), (12, 12, 64)] {
            let shape = Shape { heads, kv_heads, dim, page_tokens: 16, dtype };
            let segments: &[(usize, usize)] =
                if dim == 256 { &[(0, 34), (39, 1)] } else { &[(0, 34), (129, 1)] };
            check(rig, shape, segments, Scores::scaled(scale(shape)));
            let batch = Batch::new(rig, shape, segments);
            let (rows, row) = (batch.positions.len(), heads * dim);
            let all = batch.run(rig, 0, rows);
            let last = batch.run(rig, rows - 1, 1);
            same_bits(
                &format!("the last row of attention {}", shape.name()),
                &last,
                &all[(rows - 1) * row..],
            );
        }
    }
}
