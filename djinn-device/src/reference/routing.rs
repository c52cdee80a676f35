//! The reference of a mixture of experts' operations.

use super::{Reader, Written, products};
use crate::args::{Combine, CopyExpert, ExpertLinear, Group, Route};

pub(super) fn route(op: &Route, memory: Reader<'_>) -> Vec<Written> {
    let rank = |logit: f32| if logit.is_nan() { f32::NEG_INFINITY } else { logit };
    let (mut weights, mut ids) = (Vec::new(), Vec::new());
    for logits in memory.floats(op.logits).chunks_exact(op.experts as usize) {
        let mut chosen: Vec<usize> = (0..logits.len()).collect();
        // Stable: the lower id first among equals.
        chosen.sort_by(|&a, &b| rank(logits[b]).partial_cmp(&rank(logits[a])).expect("a rank is no NaN"));
        chosen.truncate(op.top_k as usize);
        let greatest = f64::from(rank(logits[chosen[0]]));
        let power = |logit: f32| (f64::from(logit) - greatest).exp();
        let total: f64 = logits.iter().map(|&logit| power(logit)).sum();
        let shares: Vec<f64> = chosen.iter().map(|&expert| power(logits[expert]) / total).collect();
        let sum = if op.renormalise { shares.iter().sum() } else { 1.0 };
        weights.extend(shares.iter().map(|share| (share / sum) as f32));
        ids.extend(chosen.iter().map(|&expert| expert as u32));
    }
    vec![Written::floats(op.weights, 0, &weights), Written::words(op.ids, &ids)]
}

pub(super) fn group(op: &Group, memory: Reader<'_>) -> Vec<Written> {
    let ids = memory.words(op.ids);
    let wrong = ids.iter().position(|&id| id >= op.experts);
    assert_eq!(wrong, None, "a slot has none of {} experts", op.experts);
    let (mut order, mut starts) = (Vec::new(), Vec::new());
    for expert in 0..=op.experts {
        starts.push(order.len() as u32);
        let listed = |slot: u32| op.cpu.contains(slot, ids[slot as usize]) == op.of_cpu;
        order.extend((0..op.slots).filter(|&slot| ids[slot as usize] == expert && listed(slot)));
    }
    let listed = op.order.slice(0, 4 * order.len() as u64);
    vec![Written::words(listed, &order), Written::words(op.starts, &starts)]
}

pub(super) fn expert_linear(op: &ExpertLinear, memory: Reader<'_>) -> Vec<Written> {
    let (x, starts, expert) = (memory.floats(op.x), memory.words(op.starts), op.expert as usize);
    let slots = &memory.words(op.order)[starts[expert] as usize..starts[expert + 1] as usize];
    let [k, n, out_width, out_column] = [op.k, op.n, op.out_width, op.out_column].map(|n| n as usize);
    let weight = memory.matrix(op.weight, op.k);
    let rows = slots.iter().flat_map(|&slot| &x[(slot / op.slots_per_row) as usize * k..][..k]);
    let out = products(&rows.copied().collect::<Vec<_>>(), &weight, None, k, n);
    let at = |slot: u32| slot as usize * out_width + out_column;
    slots.iter().zip(out).map(|(&slot, row)| Written::floats(op.out, at(slot), &row)).collect()
}

pub(super) fn combine(op: &Combine, memory: Reader<'_>) -> Vec<Written> {
    let (mut y, width, top_k) = (memory.floats(op.y), op.width as usize, op.top_k as usize);
    if let (Some(ids), Some(cpu_y)) = (op.ids, op.cpu_y) {
        let cpu_y = memory.floats(cpu_y);
        for (slot, id) in memory.words(ids).into_iter().enumerate() {
            if op.cpu.contains(slot as u32, id) {
                let row = slot * width..(slot + 1) * width;
                y[row.clone()].copy_from_slice(&cpu_y[row]);
            }
        }
    }
    let mut out = Vec::new();
    for (weights, y) in memory.floats(op.weights).chunks_exact(top_k).zip(y.chunks_exact(top_k * width)) {
        let products =
            |i| weights.iter().enumerate().map(move |(j, &w)| f64::from(w) * f64::from(y[j * width + i]));
        out.extend((0..width).map(|i| products(i).sum::<f64>() as f32));
    }
    vec![Written::floats(op.out, 0, &out)]
}

pub(super) fn copy_expert(op: &CopyExpert, memory: Reader<'_>) -> Vec<Written> {
    let (starts, expert) = (memory.words(op.starts), op.expert as usize);
    let used = starts[expert + 1] > starts[expert];
    let copy = used.then(|| Written::exact(op.dst, memory.0.bytes(op.src).to_vec()));
    copy.into_iter().chain([Written::words(op.moved, &[used.into()])]).collect()
}
