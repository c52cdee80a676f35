//! Checks of [`ExpertLinear`], alone and between the others.

use super::{combine, group, route};
use crate::args::{ExpertLinear, Linear, SiluMul, Weight};
use crate::conformance::ops::Stored;
use crate::conformance::ops::linear::is_large;
use crate::conformance::ops::rig::{DTYPES, Rig, rows, same_bits};
use crate::{DType, Ops, Span};
use std::iter::repeat_n;

/// Slots and the product of each expert's.
struct Product {
    experts: usize,
    slots_per_row: usize,
    k: usize,
    n: usize,
    out_width: usize,
    out_column: usize,
    dtype: DType,
    ids: Vec<u32>,
    x: Vec<f32>,
    weights: Vec<Vec<f32>>,
}

impl Product {
    /// Experts from `used` on have no slot.
    fn new<D: Ops>(
        rig: &mut Rig<D>,
        [rows, slots_per_row]: [usize; 2],
        [k, n]: [usize; 2],
        used: usize,
        dtype: DType,
    ) -> Self {
        let (ids, x) = (rig.random.indices(rows * slots_per_row, used), rig.random.floats(rows * k));
        let weights = (0..used + 1).map(|_| rig.random.floats(n * k)).collect();
        Product {
            experts: used + 1,
            slots_per_row,
            k,
            n,
            out_width: n,
            out_column: 0,
            dtype,
            ids,
            x,
            weights,
        }
    }

    /// `linear` of one slot's row on the device, alone.
    fn linear<D: Ops>(&self, rig: &mut Rig<D>, expert: usize, slot: usize) -> Vec<f32> {
        let args = Linear {
            x: rig.upload(rows(&self.x, self.k, slot / self.slots_per_row, 1)),
            weight: rig.weight(&self.weights[expert], self.dtype),
            bias: None,
            out: rig.blank_f32(self.n),
            k: self.k as u32,
            n: self.n as u32,
            out_width: self.n as u32,
            out_column: 0,
            rows: 1,
        };
        rig.enqueue(args);
        rig.take(args.out)
    }

    /// One expert's launch against the reference, and against `linear`.
    fn check<D: Ops>(&self, rig: &mut Rig<D>, expert: usize) {
        let ids = rig.upload(&self.ids);
        let group = group(rig, ids, self.experts);
        rig.run(group);
        let args = ExpertLinear {
            x: rig.upload(&self.x),
            weight: rig.weight(&self.weights[expert], self.dtype),
            order: group.order,
            starts: group.starts,
            out: rig.blank_f32(self.ids.len() * self.out_width),
            k: self.k as u32,
            n: self.n as u32,
            out_width: self.out_width as u32,
            out_column: self.out_column as u32,
            expert: expert as u32,
            slots_per_row: self.slots_per_row as u32,
            slots: self.ids.len() as u32,
        };
        rig.run(args);
        let got: Vec<f32> = rig.download(args.out);
        let Product { slots_per_row, k, n, ids, dtype, .. } = self;
        let (slots, dtype_name) = (ids.len(), dtype.name());
        let name = format!(
            "expert {expert}'s part of {slots} slots, {slots_per_row} a row, {k} to {n}, {dtype_name}"
        );
        rig.matches(&name, *dtype);
        let slots: Vec<usize> = (0..slots).filter(|&slot| ids[slot] as usize == expert).collect();
        for &slot in slots.iter().take(3).chain(slots.iter().rev().take(2)) {
            let got = &got[slot * self.out_width + self.out_column..][..*n];
            same_bits(&format!("slot {slot} alone, {name}"), &self.linear(rig, expert, slot), got);
        }
    }
}

pub(in super::super) fn experts_match_the_reference<D: Ops>(rig: &mut Rig<D>) {
    let sizes = [[64, 37], [17, 5], [192, 130], [577, 9], [1088, 24], [40, 64]];
    for dtype in DTYPES {
        for (i, rows) in [1, 2, 5, 16, 33].into_iter().enumerate() {
            for (j, [k, n]) in sizes.into_iter().enumerate() {
                let (slots_per_row, used) = ([1, 2, 8][(i + j) % 3], [1, 3, 6][(i + 2 * j) % 3]);
                let mut product = Product::new(rig, [rows, slots_per_row], [k, n], used, dtype);
                if (i + j) % 2 == 1 {
                    (product.out_width, product.out_column) = (2 * n + 3, n + 2);
                }
                // The last has no slot.
                for expert in [0, used / 2, used] {
                    product.check(rig, expert);
                }
            }
        }
    }
}

/// Weights of many rows, which devices divide between their parts, evenly or not.
pub(in super::super) fn experts_divide_large_weights<D: Ops>(rig: &mut Rig<D>) {
    for dtype in [DType::F16, DType::BF16] {
        for (slots, sizes) in [
            ([1, 2], [64, 1707]),
            ([9, 2], [192, 2113]),
            ([3, 2], [64, 4100]),
            ([20, 2], [128, 5001]),
            ([4, 2], [64, 6400]),
            ([17, 2], [64, 6400]),
        ] {
            let product = Product::new(rig, slots, sizes, 2, dtype);
            for expert in 0..3 {
                product.check(rig, expert);
            }
        }
    }
}

/// A whole feed-forward block: routes, groups, two products with an activation between, and the sum.
pub(in super::super) fn mixes_experts<D: Ops>(rig: &mut Rig<D>) {
    let (experts, width, inner) = (6, 64, 96);
    for (rows, top_k) in [(1, 2), (5, 2), (33, 3)] {
        let (x, logits) = (rig.random.floats(rows * width), rig.random.floats(rows * experts));
        let (chosen, shares) = route(&logits, [experts, top_k], true)(rig, 0, rows);
        rig.run(chosen);
        let group = group(rig, chosen.ids, experts);
        rig.run(group);
        let product = |rig: &mut Rig<D>, x: Span, [k, n]: [usize; 2], slots_per_row: usize| {
            let out = rig.blank_f32(group.slots as usize * n);
            for expert in 0..experts as u32 {
                let weight = rig.random_weight(n * k, DType::BF16);
                let args = ExpertLinear {
                    x,
                    weight,
                    order: group.order,
                    starts: group.starts,
                    out,
                    k: k as u32,
                    n: n as u32,
                    out_width: n as u32,
                    out_column: 0,
                    expert,
                    slots_per_row: slots_per_row as u32,
                    slots: group.slots,
                };
                rig.run(args);
            }
            out
        };
        let x = rig.upload(&x);
        let both = product(rig, x, [width, 2 * inner], top_k);
        let active = rig.blank_f32(rows * top_k * inner);
        let (width_of, rows_of) = (inner as u32, group.slots);
        rig.run(SiluMul { x: both, out: active, width: width_of, rows: rows_of, read_by: None });
        let y = product(rig, active, [inner, width], 1);
        let sum = combine(rig, y, shares, [rows, top_k, width]);
        rig.run(sum);
        rig.matches_in(sum.out, &format!("{rows} rows through {top_k} of {experts} experts"), DType::BF16);
    }
}

/// Products of several experts at once.
pub(in super::super) struct AtOnce<'a> {
    /// Slots of every expert.
    pub(in super::super) counts: &'a [usize],
    /// The experts whose products are computed.
    pub(in super::super) chosen: &'a [usize],
    pub(in super::super) slots_per_row: usize,
    pub(in super::super) k: usize,
    /// Rows of each tile of an expert's weight.
    pub(in super::super) tiles: &'a [usize],
}

impl AtOnce<'_> {
    /// Products at once have the bits of one after another, and leave the rest of the output alone; where `refers`, they also
    /// match the reference. `weight` makes a tile's `n` rows of `k`.
    pub(in super::super) fn check<D: Ops>(
        &self,
        rig: &mut Rig<D>,
        (what, of): (&str, Stored),
        refers: bool,
        mut weight: impl FnMut(&mut Rig<D>, [usize; 2]) -> Weight,
    ) {
        // Columns before, between and after the tiles stay as they are.
        const BESIDE: usize = 3;
        let &AtOnce { counts, chosen, slots_per_row, k, tiles } = self;
        let slots = counts.iter().sum::<usize>();
        let name = format!("{what}: {tiles:?} of {chosen:?}, {counts:?} slots, {slots_per_row} a row, k {k}");
        let width = BESIDE + tiles.iter().map(|n| n + BESIDE).sum::<usize>();
        let ascending: Vec<u32> = (0..).zip(counts).flat_map(|(e, &slots)| repeat_n(e, slots)).collect();
        let ids: Vec<u32> =
            rig.random.permutation(slots).iter().map(|&slot| ascending[slot as usize]).collect();
        let x = rig.random.floats(slots / slots_per_row * k);
        let (x, of_slots) = (rig.upload(&x), rig.upload(&ids));
        let group = group(rig, of_slots, counts.len());
        rig.run(group);
        let outs = [(); 2].map(|()| rig.blank_f32(slots * width));
        let mut products = Vec::new();
        for &expert in chosen {
            let mut out_column = BESIDE;
            for &n in tiles {
                products.push(ExpertLinear {
                    x,
                    weight: weight(rig, [n, k]),
                    order: group.order,
                    starts: group.starts,
                    out: outs[0],
                    k: k as u32,
                    n: n as u32,
                    out_width: width as u32,
                    out_column: out_column as u32,
                    expert: expert as u32,
                    slots_per_row: slots_per_row as u32,
                    slots: slots as u32,
                });
                out_column += n + BESIDE;
            }
        }
        ExpertLinear::check_all(&products);
        rig.enqueued(rig.device.expert_linears(rig.stream, &products));
        for &product in &products {
            rig.enqueue(ExpertLinear { out: outs[1], ..product });
            if refers {
                rig.expect(product);
                rig.expect(ExpertLinear { out: outs[1], ..product });
            }
        }
        let [got, want]: [Vec<f32>; 2] = outs.map(|out| rig.download(out));
        same_bits(&name, &got, &want);
        // The output was NaN.
        let mut column = vec![false; width];
        for product in &products[..tiles.len()] {
            column[product.out_column as usize..][..product.n as usize].fill(true);
        }
        for (at, value) in got.iter().enumerate() {
            let written = chosen.contains(&(ids[at / width] as usize)) && column[at % width];
            assert!(written != value.is_nan(), "{name}: column {} of slot {}", at % width, at / width);
        }
        if refers { rig.matches(&name, of) } else { rig.clear() }
    }
}

/// Slots of every expert, and the experts that are computed: all or some, with many slots, few or none.
pub(in super::super) const ROUTINGS: [(&[usize], &[usize]); 10] = [
    (&[1], &[0]),
    (&[8, 0], &[0, 1]),
    (&[0, 40], &[0, 1]),
    (&[9, 3, 0, 17, 0, 1, 8, 2], &[0, 1, 2, 3, 4, 5, 6, 7]),
    (&[0, 16, 17, 3, 8, 0, 1, 3], &[1, 3, 4, 7]),
    (&[40, 0, 0, 0, 0, 0, 0, 0], &[0, 1, 2, 3, 4, 5, 6, 7]),
    (&[0, 0, 1, 0, 0, 0, 0, 7], &[2, 3, 7]),
    (&[130, 9, 16, 40, 8, 17, 3, 81], &[0, 1, 2, 3, 4, 5, 6, 7]),
    (&[2, 1, 0, 0, 3, 1, 1, 0, 0, 8, 0, 16, 0, 1, 2, 0, 0, 9, 4, 0], &TWENTY),
    (&[0, 17, 0, 9, 130, 0, 0, 8, 40, 3, 0, 0, 16, 1, 0, 0, 33, 0, 7, 40], &[1, 4, 5, 7, 8, 13, 16, 19]),
];
const TWENTY: [usize; 20] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19];

/// 140 experts, most of them without slots, and with some slots each.
pub(in super::super) const MANY: [(&[usize], &[usize]); 2] = {
    const FEW: [usize; 140] = each(9, 1);
    const SOME: [usize; 140] = each(3, 4);
    const ALL: [usize; 140] = each(1, 0);
    [(&FEW, &ALL), (&SOME, &ALL)]
};

/// `slots` for one of `apart` experts; the experts' numbers if there are none.
const fn each(apart: usize, slots: usize) -> [usize; 140] {
    let (mut counts, mut expert) = ([0; 140], 0);
    while expert < 140 {
        counts[expert] = if slots == 0 {
            expert
        } else if expert % apart == apart - 1 {
            slots
        } else {
            0
        };
        expert += 1;
    }
    counts
}

pub(in super::super) fn experts_are_computed_at_once<D: Ops>(rig: &mut Rig<D>) {
    let large = is_large(rig);
    // `k` and the rows of tiles.
    let sizes: [(usize, &[usize]); 6] =
        [(64, &[37]), (256, &[64, 37]), (577, &[40, 9]), (1088, &[24, 64]), (64, &[200]), (192, &[5, 5, 2])];
    for (d, dtype) in DTYPES.into_iter().enumerate() {
        let mut check = |(counts, chosen): (&[usize], &[usize]), slots_per_row, (k, tiles), refers| {
            let case = AtOnce { counts, chosen, slots_per_row, k, tiles };
            let weight = |rig: &mut Rig<D>, [n, k]: [usize; 2]| rig.random_weight(n * k, dtype);
            case.check(rig, (dtype.name(), dtype.into()), refers, weight);
        };
        for (i, routing) in ROUTINGS.into_iter().enumerate() {
            for j in [0, 2] {
                let slots = routing.0.iter().sum::<usize>();
                let wanted = [2, 8, 1][(i + j) % 3];
                let slots_per_row = if slots.is_multiple_of(wanted) { wanted } else { 1 };
                let size = sizes[(i + j + d) % sizes.len()];
                check(routing, slots_per_row, size, (i, j) == (4, 0) || (i, j) == (8, 2));
            }
        }
        check(MANY[0], 1, (64, &[37]), false);
        check(MANY[0], 1, (128, &[9, 5]), false);
        check(MANY[1], 2, (64, &[9]), false);
        // Tiles that devices divide between their parts, and long rows.
        check(ROUTINGS[3], 2, (64, &[1707, 200]), false);
        check(ROUTINGS[4], 2, (4096, &[37]), false);
        if large && dtype != DType::F32 {
            check(ROUTINGS[2], 2, (1088, &[4100, 1707]), false);
            check(ROUTINGS[7], 2, (256, &[4100, 200]), false);
            check(ROUTINGS[7], 8, (4096, &[200, 37]), false);
        }
    }
}
