//! Checks of [`ExpertLinear`], alone and between the others.

use super::{combine, group, route};
use crate::args::{ExpertLinear, Linear, SiluMul};
use crate::conformance::ops::rig::{DTYPES, Rig, rows, same_bits};
use crate::{DType, Ops, Span};

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
