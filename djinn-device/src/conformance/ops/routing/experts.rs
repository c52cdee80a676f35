//! Checks of [`ExpertLinear`], alone and between the others.

use super::{Case, combine, group};
use crate::args::{ExpertLinear, Linear, SiluMul, Weight};
use crate::conformance::ops::rig::{DTYPES, Rig, Stored, same_bits};
use crate::kernels::data;
use crate::kernels::reference::{self, routing};
use crate::{DType, Ops, Span};

const NAN: f32 = f32::from_bits(u32::MAX);

/// Slots and the product of each expert's.
struct Product {
    experts: usize,
    slots_per_row: usize,
    k: usize,
    n: usize,
    out_width: usize,
    out_column: usize,
    ids: Vec<u32>,
    x: Vec<f32>,
    weights: Vec<Stored>,
}

impl Product {
    /// Of the experts, those from `used` on have no slot.
    fn new<D: Ops>(
        rig: &mut Rig<D>,
        slots: [usize; 2],
        [k, n]: [usize; 2],
        used: usize,
        dtype: DType,
    ) -> Self {
        let [rows, slots_per_row] = slots;
        let experts = used + 1;
        let ids = (0..rows * slots_per_row).map(|_| rig.random.below(used) as u32).collect();
        let x = rig.random.floats(rows * k);
        let weights = (0..experts).map(|_| Stored::round(&rig.random.floats(n * k), dtype)).collect();
        Product { experts, slots_per_row, k, n, out_width: n, out_column: 0, ids, x, weights }
    }

    fn name(&self, expert: usize) -> String {
        let Product { slots_per_row, k, n, ids, weights, .. } = self;
        let dtype = weights[expert].dtype().name();
        format!("expert {expert}'s part of {} slots, {slots_per_row} a row, {k} to {n}, {dtype}", ids.len())
    }

    fn slots(&self, expert: usize) -> Vec<u32> {
        (0..self.ids.len() as u32).filter(|&slot| self.ids[slot as usize] as usize == expert).collect()
    }

    /// What one expert's launch writes, on the device.
    fn run<D: Ops>(&self, rig: &mut Rig<D>, expert: usize) -> Vec<f32> {
        let ids = rig.upload(&self.ids);
        let (order, starts) = group(rig, ids, self.experts);
        let out = rig.blank_f32(self.ids.len() * self.out_width);
        let args = ExpertLinear {
            x: rig.upload(&self.x),
            weight: rig.weight(&self.weights[expert]),
            order,
            starts,
            out,
            k: self.k as u32,
            n: self.n as u32,
            out_width: self.out_width as u32,
            out_column: self.out_column as u32,
            expert: expert as u32,
            slots_per_row: self.slots_per_row as u32,
            slots: self.ids.len() as u32,
        };
        args.check();
        rig.enqueued(rig.device.expert_linear(rig.stream, &args));
        let got = rig.download(out);
        rig.free_all();
        got
    }

    fn reference(&self, expert: usize) -> Vec<f32> {
        let mut out = vec![NAN; self.ids.len() * self.out_width];
        routing::expert_linear(data::ExpertLinear {
            x: &self.x,
            weight: self.weights[expert].elements(),
            slots: &self.slots(expert),
            slots_per_row: self.slots_per_row,
            k: self.k,
            n: self.n,
            out_width: self.out_width,
            out_column: self.out_column,
            out: &mut out,
        });
        out
    }

    /// `linear` of one slot's row on the device, alone.
    fn linear<D: Ops>(&self, rig: &mut Rig<D>, expert: usize, slot: usize) -> Vec<f32> {
        let out = rig.blank_f32(self.n);
        let args = Linear {
            x: rig.upload(&self.x[slot / self.slots_per_row * self.k..][..self.k]),
            weight: rig.weight(&self.weights[expert]),
            bias: None,
            out,
            k: self.k as u32,
            n: self.n as u32,
            out_width: self.n as u32,
            out_column: 0,
            rows: 1,
        };
        rig.enqueued(rig.device.linear(rig.stream, &args));
        let got = rig.download(out);
        rig.free_all();
        got
    }

    /// One expert's launch against the reference, `linear`, and what it must leave alone.
    fn check<D: Ops>(&self, rig: &mut Rig<D>, expert: usize) {
        let (name, got, want) = (self.name(expert), self.run(rig, expert), self.reference(expert));
        let columns = self.out_column..self.out_column + self.n;
        let (mut written, mut expected) = (Vec::new(), Vec::new());
        let rows = got.chunks(self.out_width).zip(want.chunks(self.out_width)).enumerate();
        for (slot, (got, want)) in rows {
            if self.ids[slot] as usize != expert {
                same_bits(&format!("slot {slot}, of another, in {name}"), got, want);
                continue;
            }
            same_bits(&format!("columns before, {name}"), &got[..columns.start], &want[..columns.start]);
            same_bits(&format!("columns after, {name}"), &got[columns.end..], &want[columns.end..]);
            written.extend_from_slice(&got[columns.clone()]);
            expected.extend_from_slice(&want[columns.clone()]);
        }
        rig.compare(&name, &written, &expected, self.weights[expert].dtype());
        let slots = self.slots(expert);
        for &slot in slots.iter().take(3).chain(slots.iter().rev().take(2)) {
            let slot = slot as usize;
            let got = &got[slot * self.out_width..][columns.clone()];
            same_bits(&format!("slot {slot} alone, {name}"), &self.linear(rig, expert, slot), got);
        }
    }
}

pub(in super::super) fn experts_match_the_reference<D: Ops>(rig: &mut Rig<D>) {
    for dtype in DTYPES {
        for (i, rows) in [1, 2, 5, 16, 33].into_iter().enumerate() {
            for (j, [k, n]) in
                [[64, 37], [17, 5], [192, 130], [577, 9], [1088, 24], [40, 64]].into_iter().enumerate()
            {
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
        for (slots, [k, n]) in [
            ([1, 2], [64, 1707]),
            ([9, 2], [192, 2113]),
            ([3, 2], [64, 4100]),
            ([20, 2], [128, 5001]),
            ([4, 2], [64, 6400]),
            ([17, 2], [64, 6400]),
        ] {
            let product = Product::new(rig, slots, [k, n], 2, dtype);
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
        let weights = |rig: &mut Rig<D>, len| -> Vec<Stored> {
            (0..experts).map(|_| Stored::round(&rig.random.floats(len), DType::BF16)).collect()
        };
        let (up, down) = (weights(rig, 2 * inner * width), weights(rig, width * inner));
        let case = Case { logits: &logits, experts, top_k, renormalise: true };

        let (shares, ids) = case.enqueue(rig);
        let (order, starts) = group(rig, ids, experts);
        let slots = rows * top_k;
        let product =
            |rig: &mut Rig<D>, x: Span, weights: &[Stored], [k, n]: [usize; 2], slots_per_row: usize| {
                let out = rig.blank_f32(slots * n);
                for (expert, weight) in weights.iter().enumerate() {
                    let weight: Weight = rig.weight(weight);
                    let (k, n, slots_per_row) = (k as u32, n as u32, slots_per_row as u32);
                    let (out_width, out_column, expert, slots) = (n, 0, expert as u32, slots as u32);
                    let args = ExpertLinear {
                        x,
                        weight,
                        order,
                        starts,
                        out,
                        k,
                        n,
                        out_width,
                        out_column,
                        expert,
                        slots_per_row,
                        slots,
                    };
                    rig.enqueued(rig.device.expert_linear(rig.stream, &args));
                }
                out
            };
        let x_span = rig.upload(&x);
        let both = product(rig, x_span, &up, [width, 2 * inner], top_k);
        let active = rig.blank_f32(slots * inner);
        let silu = SiluMul { x: both, out: active, width: inner as u32, rows: slots as u32 };
        rig.enqueued(rig.device.silu_mul(rig.stream, &silu));
        let y = product(rig, active, &down, [inner, width], 1);
        let out = combine(rig, y, shares, [rows, top_k, width]);
        let got: Vec<f32> = rig.download(out);
        rig.free_all();

        let (shares, ids) = case.reference();
        let mut want = vec![0.0; rows * width];
        for (slot, &id) in ids.iter().enumerate() {
            let row = slot / top_k;
            let both = dense(&x[row * width..][..width], &up[id as usize], 2 * inner);
            let mut active = vec![NAN; inner];
            reference::silu_mul(data::SiluMul { x: &both, width: inner, out: &mut active });
            let y = dense(&active, &down[id as usize], width);
            want[row * width..][..width].iter_mut().zip(y).for_each(|(out, y)| *out += shares[slot] * y);
        }
        rig.compare(&format!("{rows} rows through {top_k} of {experts} experts"), &got, &want, DType::BF16);
    }
}

/// The reference's product of one row.
fn dense(x: &[f32], weight: &Stored, n: usize) -> Vec<f32> {
    let mut out = vec![NAN; n];
    let (weight, bias, k) = (weight.elements(), None, x.len());
    reference::linear(data::Linear { x, weight, bias, k, n, out_width: n, out_column: 0, out: &mut out });
    out
}
