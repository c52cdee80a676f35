//! Checks of a mixture of experts' operations.

mod copies;
mod experts;

use super::rig::{Rig, rows};
use crate::args::{Combine, CpuSlots, Group, Route};
use crate::{DType, Ops, Space, Span};

pub(super) use copies::{copies_experts_in_use, copies_many_experts_at_once, copies_wherever_bytes_begin};
pub(super) use experts::{
    AtOnce, MANY, ROUTINGS, experts_are_computed_at_once, experts_divide_large_weights,
    experts_match_the_reference, mixes_experts,
};

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

/// Some rows' routes.
fn route<D: Ops>(
    logits: &[f32],
    [experts, top_k]: [usize; 2],
    renormalise: bool,
) -> impl Fn(&mut Rig<D>, usize, usize) -> (Route, Span) {
    move |rig, first, count| {
        let weights = rig.blank_f32(count * top_k);
        let args = Route {
            logits: rig.upload(rows(logits, experts, first, count)),
            weights,
            ids: rig.blank(count * top_k * 4),
            experts: experts as u32,
            top_k: top_k as u32,
            renormalise,
            rows: count as u32,
        };
        (args, weights)
    }
}

pub(super) fn routes_to_the_greatest<D: Ops>(rig: &mut Rig<D>) {
    for (i, choice) in CHOICES.into_iter().enumerate() {
        for (j, rows) in ROWS.into_iter().enumerate() {
            let mut logits = rig.random.spread(rows * choice[0], 8.0);
            if (i + j) % 2 == 0 {
                // Few different values leave ties.
                logits.iter_mut().for_each(|x| *x = (*x / 2.0).round());
            }
            for renormalise in [false, true] {
                let name = format!("route {rows} rows to {choice:?}, renormalise {renormalise}");
                rig.agrees(&name, DType::F32, rows, route(&logits, choice, renormalise));
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
    for renormalise in [false, true] {
        for (logits, ids, finite) in rows {
            let (op, _) = route(&logits, [5, 3], renormalise)(rig, 0, 1);
            rig.run(op);
            let (weights, want) = rig.results(op.weights);
            let name = format!("a route of {logits:?}: {weights:?}");
            assert_eq!(rig.download::<u32>(op.ids), ids, "{name}");
            assert!(
                weights.iter().chain(&want).all(|weight| weight.is_nan() != finite),
                "{name} and {want:?}"
            );
            rig.matches(&name, DType::F32);
        }
        let logits: Vec<f32> = rows.iter().flat_map(|(logits, ..)| *logits).collect();
        let name = format!("routes without numbers, renormalise {renormalise}");
        rig.agrees(&name, DType::F32, rows.len(), route(&logits, [5, 3], renormalise));
    }
}

pub(super) fn routes_are_batch_invariant<D: Ops>(rig: &mut Rig<D>) {
    for choice in CHOICES {
        let logits = rig.random.floats(33 * choice[0]);
        let name = format!("route to {choice:?}");
        // The weights and, by their bits, the ids.
        let mut run = |first, count| {
            let (op, weights) = route(&logits, choice, true)(rig, first, count);
            rig.enqueue(op);
            let both: [Vec<u32>; 2] = [weights, op.ids].map(|span| rig.download(span));
            rig.clear();
            both
        };
        let all = run(0, 33);
        for (first, count) in [(0, 1), (32, 1), (4, 2), (11, 5), (3, 16)] {
            let part = first * choice[1]..(first + count) * choice[1];
            let want = [0, 1].map(|i| all[i][part.clone()].to_vec());
            assert_eq!(run(first, count), want, "weights' bits and ids of rows {first}+{count} of {name}");
        }
    }
}

/// The operation for slots of these experts.
pub(super) fn group<D: Ops>(rig: &mut Rig<D>, ids: Span, experts: usize) -> Group {
    let (order, starts) = (rig.blank(ids.len() as usize), rig.blank((experts + 1) * 4));
    let (cpu, of_cpu) = (CpuSlots::NONE, false);
    Group { ids, order, starts, experts: experts as u32, slots: (ids.len() / 4) as u32, cpu, of_cpu }
}

/// Slots of the CPU, which can compute some of the experts.
fn cpu_slots([top_k, first]: [usize; 2], experts: usize) -> CpuSlots {
    let [top_k, first, begin, end] = [top_k, first, experts / 3, experts - experts / 4].map(|n| n as u32);
    CpuSlots { top_k, first, begin, end }
}

pub(super) fn groups_slots_by_expert<D: Ops>(rig: &mut Rig<D>) {
    for experts in [1_usize, 2, 8, 60, 255, 1024] {
        for slots in [1, 2, 5, 16, 33, 255, 256, 257, 1000, 5003] {
            // Among all of them, and among a few, so that most have no slot.
            for used in [experts, experts.div_ceil(3)] {
                let ids = rig.random.indices(slots, used);
                let ids = rig.upload(&ids);
                let op = group(rig, ids, experts);
                rig.run(op);
                rig.matches(&format!("{slots} slots of {experts} experts"), DType::F32);
            }
        }
    }
}

/// A choice and its groups at once give the bits of one after the other, also where the groups lie over the logits.
pub(super) fn routes_and_groups_at_once<D: Ops>(rig: &mut Rig<D>) {
    for (i, [experts, top_k]) in CHOICES.into_iter().enumerate() {
        for rows in [1, 2, 7, 8, 9, 33] {
            let mut logits = rig.random.spread(rows * experts, 8.0);
            if i % 2 == 0 {
                logits.iter_mut().for_each(|x| *x = (*x / 2.0).round());
            }
            let room = rows * (experts + top_k) + 64;
            let (first, begin) = ([0, top_k / 2][i % 2], 4 * (rows * top_k).next_multiple_of(4));
            let mut run = |at_once: bool, over: bool, of_cpu: bool| {
                let (route, weights) = route(&logits, [experts, top_k], true)(rig, 0, rows);
                let both = rig.upload(&[logits.clone(), vec![0.0; room - logits.len()]].concat());
                let route = Route { logits: both.slice(0, 4 * logits.len() as u64), ..route };
                let place = if over { both } else { rig.blank(4 * (room + experts)) };
                let (order, starts) = (
                    place.slice(0, 4 * (rows * top_k) as u64),
                    place.slice(begin as u64, 4 * (experts as u64 + 1)),
                );
                let cpu = cpu_slots([top_k, first], experts);
                let (ids, slots) = (route.ids, (rows * top_k) as u32);
                let group = Group { ids, order, starts, experts: experts as u32, slots, cpu, of_cpu };
                if at_once {
                    route.check();
                    group.check();
                    rig.enqueued(rig.device.route_group(rig.stream, &route, &group));
                } else {
                    rig.enqueue(route);
                    rig.enqueue(group);
                }
                let mut found: Vec<Vec<u32>> =
                    [weights, ids, order, starts].map(|span| rig.download(span)).into();
                // Places past the last slot of the group are not written.
                let grouped = found[3][experts] as usize;
                found[2].truncate(grouped);
                rig.clear();
                found
            };
            for of_cpu in [false, true] {
                let want = run(false, false, of_cpu);
                for over in [false, true] {
                    let name = format!(
                        "{rows} rows to {top_k} of {experts}, over the logits: {over}, of the CPU: {of_cpu}"
                    );
                    assert_eq!(run(true, over, of_cpu), want, "{name}");
                }
            }
        }
    }
}

/// The slots of the device and those of the CPU, which go to host memory.
pub(super) fn groups_leave_slots_to_the_cpu<D: Ops>(rig: &mut Rig<D>) {
    for experts in [1_usize, 8, 255, 1024] {
        for [rows, top_k, first] in [[1, 2, 1], [8, 8, 4], [3, 4, 0], [5, 16, 15], [301, 3, 2], [2, 2, 2]] {
            let ids = rig.random.indices(rows * top_k, experts);
            let ids = rig.upload(&ids);
            let cpu = cpu_slots([top_k, first], experts);
            let of_device = Group { cpu, ..group(rig, ids, experts) };
            rig.run(of_device);
            let [order, starts] = [of_device.order, of_device.starts]
                .map(|span| rig.upload_to(Space::Host, vec![0xff; span.len() as usize]));
            rig.run(Group { order, starts, of_cpu: true, ..of_device });
            rig.matches(&format!("{rows}x{top_k} slots of {experts} experts, from {first} on"), DType::F32);
        }
    }
}

/// The operation for `[rows, top_k, width]`.
fn combine<D: Ops>(rig: &mut Rig<D>, y: Span, weights: Span, [rows, top_k, width]: [usize; 3]) -> Combine {
    let out = rig.blank_f32(rows * width);
    let (top_k, width, rows) = (top_k as u32, width as u32, rows as u32);
    Combine { y, weights, out, top_k, width, rows, cpu: CpuSlots::NONE, ids: None, cpu_y: None }
}

pub(super) fn combines<D: Ops>(rig: &mut Rig<D>) {
    for (i, count) in ROWS.into_iter().enumerate() {
        for (j, width) in [1, 17, 64, 577, 1028, 2048].into_iter().enumerate() {
            let top_k = [1, 2, 8, 16][(i + j) % 4];
            let (y, weights) = (rig.random.floats(count * top_k * width), rig.random.floats(count * top_k));
            let make = |rig: &mut Rig<D>, first, count| {
                let y = rig.upload(rows(&y, top_k * width, first, count));
                let weights = rig.upload(rows(&weights, top_k, first, count));
                let op = combine(rig, y, weights, [count, top_k, width]);
                (op, op.out)
            };
            let name = format!("combine {count}x{top_k}x{width}");
            rig.agrees(&name, DType::F32, count, make);
            let all = rig.output((0, count), &make);
            rig.parts_of(&all, &name, count, &[(count - 1, 1)], make);
        }
    }
}

/// Some slots come from host memory, and what the device has for them is not read.
pub(super) fn combines_slots_of_the_cpu<D: Ops>(rig: &mut Rig<D>) {
    for [rows, top_k, first, width] in
        [[1, 2, 1, 64], [8, 8, 4, 2048], [3, 4, 0, 577], [5, 2, 1, 1028], [2, 2, 2, 17]]
    {
        let (slots, experts) = (rows * top_k, 7);
        let cpu = cpu_slots([top_k, first], experts);
        let ids = rig.random.indices(slots, experts);
        let of_cpu = |slot: usize| cpu.contains(slot as u32, ids[slot]);
        let [mut y, mut cpu_y] = [0; 2].map(|_| rig.random.floats(slots * width));
        for slot in 0..slots {
            let unused = if of_cpu(slot) { &mut y } else { &mut cpu_y };
            unused[slot * width..][..width].fill(f32::NAN);
        }
        let weights = rig.random.floats(slots);
        let (y, weights) = (rig.upload(&y), rig.upload(&weights));
        let [ids, cpu_y] =
            [bytemuck::cast_slice(&ids), bytemuck::cast_slice(&cpu_y)].map(|bytes: &[u8]| bytes.to_vec());
        let [ids, cpu_y] = [ids, cpu_y].map(|bytes| Some(rig.upload_to(Space::Host, bytes)));
        let op = combine(rig, y, weights, [rows, top_k, width]);
        rig.run(Combine { cpu, ids, cpu_y, ..op });
        rig.matches(&format!("combine {rows}x{top_k}x{width}, from {first} on"), DType::F32);
    }
}
