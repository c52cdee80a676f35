//! Checks of a mixture of experts' operations.

mod copies;
mod experts;

use super::rig::{Rig, same_bits};
use crate::args::{Combine, Group, Route};
use crate::kernels::data;
use crate::kernels::reference::routing as reference;
use crate::{DType, Ops, Span};

pub(super) use copies::{copies_experts_in_use, copies_wherever_bytes_begin};
pub(super) use experts::{experts_divide_large_weights, experts_match_the_reference, mixes_experts};

const ROWS: [usize; 5] = [1, 2, 5, 16, 33];
/// Experts, and those of a row.
const CHOICES: [[usize; 2]; 12] = [
    [1, 1],
    [8, 2],
    [16, 16],
    [31, 3],
    [33, 5],
    [60, 4],
    [64, 6],
    [128, 8],
    [129, 1],
    [256, 8],
    [1000, 16],
    [1024, 10],
];

/// Logits and how they are routed.
#[derive(Clone, Copy)]
struct Case<'a> {
    logits: &'a [f32],
    experts: usize,
    top_k: usize,
    renormalise: bool,
}

impl Case<'_> {
    fn name(self) -> String {
        let Case { logits, experts, top_k, renormalise } = self;
        let rows = logits.len() / experts;
        format!(
            "route {rows} rows to {top_k} of {experts}{}",
            if renormalise { ", renormalised" } else { "" }
        )
    }

    /// Enqueues `route` for spans of the device.
    fn enqueue<D: Ops>(self, rig: &mut Rig<D>) -> (Span, Span) {
        let rows = self.logits.len() / self.experts;
        let weights = rig.blank_f32(rows * self.top_k);
        let ids = rig.blank(rows * self.top_k * 4);
        let args = Route {
            logits: rig.upload(self.logits),
            weights,
            ids,
            experts: self.experts as u32,
            top_k: self.top_k as u32,
            renormalise: self.renormalise,
            rows: rows as u32,
        };
        args.check();
        rig.enqueued(rig.device.route(rig.stream, &args));
        (weights, ids)
    }

    /// Weights and ids on the device.
    fn run<D: Ops>(self, rig: &mut Rig<D>) -> (Vec<f32>, Vec<u32>) {
        let (weights, ids) = self.enqueue(rig);
        let both = (rig.download(weights), rig.download(ids));
        rig.free_all();
        both
    }

    fn reference(self) -> (Vec<f32>, Vec<u32>) {
        let Case { logits, experts, top_k, renormalise } = self;
        let len = logits.len() / experts * top_k;
        let (mut weights, mut ids) = (vec![f32::NAN; len], vec![u32::MAX; len]);
        let (weights_out, ids_out) = (&mut weights[..], &mut ids[..]);
        reference::route(data::Route {
            logits,
            experts,
            top_k,
            renormalise,
            weights: weights_out,
            ids: ids_out,
        });
        (weights, ids)
    }
}

pub(super) fn routes_to_the_greatest<D: Ops>(rig: &mut Rig<D>) {
    for (i, [experts, top_k]) in CHOICES.into_iter().enumerate() {
        for (j, rows) in ROWS.into_iter().enumerate() {
            let mut logits: Vec<f32> = rig.random.floats(rows * experts).iter().map(|x| x * 8.0).collect();
            if (i + j) % 2 == 0 {
                // Few different values leave ties.
                logits.iter_mut().for_each(|x| *x = (*x / 2.0).round());
            }
            for renormalise in [false, true] {
                let case = Case { logits: &logits, experts, top_k, renormalise };
                let ((weights, ids), (want, want_ids)) = (case.run(rig), case.reference());
                assert_eq!(ids, want_ids, "{}", case.name());
                rig.compare(&case.name(), &weights, &want, DType::F32);
            }
        }
    }
}

/// Ids are valid and different whatever the logits are, and weights do not hide a NaN.
pub(super) fn routes_without_numbers<D: Ops>(rig: &mut Rig<D>) {
    const INF: f32 = f32::INFINITY;
    const NAN: f32 = f32::NAN;
    let rows: [([f32; 5], [u32; 3], bool); 6] = [
        ([1.0, NAN, 3.0, -2.0, 0.5], [2, 0, 4], false),
        ([NAN, NAN, 3.0, NAN, NAN], [2, 0, 1], false),
        ([NAN; 5], [0, 1, 2], false),
        ([-INF; 5], [0, 1, 2], false),
        ([0.0, INF, 1.0, -INF, 2.0], [1, 4, 2], false),
        ([-INF, 4.0, -INF, -INF, 3.0], [1, 4, 0], true),
    ];
    let logits: Vec<f32> = rows.iter().flat_map(|(logits, ..)| *logits).collect();
    for renormalise in [false, true] {
        let case = Case { logits: &logits, experts: 5, top_k: 3, renormalise };
        let ((weights, ids), (want, want_ids)) = (case.run(rig), case.reference());
        assert_eq!(ids, want_ids, "{}", case.name());
        for (r, (logits, ids, finite)) in rows.iter().enumerate() {
            let row = r * 3..r * 3 + 3;
            assert_eq!(want_ids[row.clone()], ids[..], "the reference for {logits:?}");
            let name = format!("weights of {logits:?}");
            if *finite {
                rig.compare(&name, &weights[row.clone()], &want[row], DType::F32);
            } else {
                let nan = |weights: &[f32]| weights.iter().all(|weight| weight.is_nan());
                assert!(nan(&want[row.clone()]) && nan(&weights[row]), "{name}: {weights:?} and {want:?}");
            }
        }
    }
}

pub(super) fn routes_are_batch_invariant<D: Ops>(rig: &mut Rig<D>) {
    for [experts, top_k] in CHOICES {
        let logits = rig.random.floats(33 * experts);
        let all = Case { logits: &logits, experts, top_k, renormalise: true };
        let (weights, ids) = all.run(rig);
        for (first, count) in [(0, 1), (32, 1), (4, 2), (11, 5), (3, 16)] {
            let part = first * top_k..(first + count) * top_k;
            let logits = &logits[first * experts..(first + count) * experts];
            let (got, got_ids) = Case { logits, ..all }.run(rig);
            let name = format!("rows {first}+{count} of {}", all.name());
            assert_eq!(got_ids, ids[part.clone()], "{name}");
            same_bits(&name, &got, &weights[part]);
        }
    }
}

/// Spans of the order and the starts, once `group` is enqueued.
fn group<D: Ops>(rig: &mut Rig<D>, ids: Span, experts: usize) -> (Span, Span) {
    let (order, starts) = (rig.blank(ids.len() as usize), rig.blank((experts + 1) * 4));
    let (slots, experts) = ((ids.len() / 4) as u32, experts as u32);
    let args = Group { ids, order, starts, experts, slots };
    args.check();
    rig.enqueued(rig.device.group(rig.stream, &args));
    (order, starts)
}

pub(super) fn groups_slots_by_expert<D: Ops>(rig: &mut Rig<D>) {
    for experts in [1_usize, 2, 8, 60, 255, 1024] {
        for slots in [1, 2, 5, 16, 33, 255, 256, 257, 1000, 5003] {
            // Among all of them, and among a few, so that most have no slot.
            for used in [experts, experts.div_ceil(3)] {
                let ids: Vec<u32> = (0..slots).map(|_| rig.random.below(used) as u32).collect();
                let (mut want_order, mut want_starts) = (vec![u32::MAX; slots], vec![u32::MAX; experts + 1]);
                let (order, starts) = (&mut want_order[..], &mut want_starts[..]);
                reference::group(data::Group { ids: &ids, order, starts });
                let ids = rig.upload(&ids);
                let (order, starts) = group(rig, ids, experts);
                let (got_order, got_starts): (Vec<u32>, Vec<u32>) =
                    (rig.download(order), rig.download(starts));
                rig.free_all();
                assert_eq!(got_starts, want_starts, "starts of {experts} experts with {slots} slots");
                assert_eq!(got_order, want_order, "order of {slots} slots of {experts} experts");
            }
        }
    }
}

/// Spans of the sums, once `combine` is enqueued.
fn combine<D: Ops>(rig: &mut Rig<D>, y: Span, weights: Span, [rows, top_k, width]: [usize; 3]) -> Span {
    let out = rig.blank_f32(rows * width);
    let (top_k, width, rows) = (top_k as u32, width as u32, rows as u32);
    let args = Combine { y, weights, out, top_k, width, rows };
    args.check();
    rig.enqueued(rig.device.combine(rig.stream, &args));
    out
}

pub(super) fn combines<D: Ops>(rig: &mut Rig<D>) {
    for (i, rows) in ROWS.into_iter().enumerate() {
        for (j, width) in [1, 17, 64, 577, 1028, 2048].into_iter().enumerate() {
            let top_k = [1, 2, 8, 16][(i + j) % 4];
            let y = rig.random.floats(rows * top_k * width);
            let weights = rig.random.floats(rows * top_k);
            let mut want = vec![f32::NAN; rows * width];
            reference::combine(data::Combine { y: &y, weights: &weights, top_k, width, out: &mut want });
            let mut run = |y: &[f32], weights: &[f32]| {
                let rows = weights.len() / top_k;
                let (y, weights) = (rig.upload(y), rig.upload(weights));
                let out = combine(rig, y, weights, [rows, top_k, width]);
                let got: Vec<f32> = rig.download(out);
                rig.free_all();
                got
            };
            let got = run(&y, &weights);
            let last = run(&y[(rows - 1) * top_k * width..], &weights[(rows - 1) * top_k..]);
            let name = format!("combine {rows}x{top_k}x{width}");
            rig.compare(&name, &got, &want, DType::F32);
            same_bits(&format!("the last row of {name}"), &last, &got[(rows - 1) * width..]);
        }
    }
}
