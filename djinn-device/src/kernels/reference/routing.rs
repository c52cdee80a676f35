//! The reference of a mixture of experts' operations.

use crate::kernels::data::{Combine, CopyExpert, ExpertLinear, Group, Route};

pub(crate) fn route(op: Route<'_>) {
    let outputs = op.weights.chunks_exact_mut(op.top_k).zip(op.ids.chunks_exact_mut(op.top_k));
    for (logits, (weights, ids)) in op.logits.chunks_exact(op.experts).zip(outputs) {
        let mut chosen: Vec<usize> = Vec::new();
        for _ in 0..op.top_k {
            let left = (0..op.experts).filter(|expert| !chosen.contains(expert));
            let rank = |expert: usize| Route::rank(logits[expert]);
            chosen.extend(left.reduce(|best, other| if rank(other) > rank(best) { other } else { best }));
        }
        let greatest = f64::from(Route::rank(logits[chosen[0]]));
        let power = |logit: f32| (f64::from(logit) - greatest).exp();
        let total: f64 = logits.iter().map(|&logit| power(logit)).sum();
        let shares: Vec<f64> = chosen.iter().map(|&expert| power(logits[expert]) / total).collect();
        let sum = if op.renormalise { shares.iter().sum() } else { 1.0 };
        for j in 0..op.top_k {
            weights[j] = (shares[j] / sum) as f32;
            ids[j] = chosen[j] as u32;
        }
    }
}

pub(crate) fn group(op: Group<'_>) {
    let experts = op.starts.len() - 1;
    let mut at = 0;
    for expert in 0..experts {
        op.starts[expert] = at as u32;
        for (slot, &id) in op.ids.iter().enumerate() {
            assert!((id as usize) < experts, "slot {slot} has expert {id} of {experts}");
            if id as usize == expert {
                op.order[at] = slot as u32;
                at += 1;
            }
        }
    }
    op.starts[experts] = at as u32;
}

pub(crate) fn expert_linear(mut op: ExpertLinear<'_>) {
    for &slot in op.slots {
        let (x, weight) = (op.row(slot), op.weight);
        for (j, out) in op.columns(slot).iter_mut().enumerate() {
            let mut sum = 0.0;
            for (i, &element) in x.iter().enumerate() {
                sum += f64::from(element) * f64::from(weight.get(j * x.len() + i));
            }
            *out = sum as f32;
        }
    }
}

pub(crate) fn combine(op: Combine<'_>) {
    for (r, out) in op.out.chunks_exact_mut(op.width).enumerate() {
        for (i, out) in out.iter_mut().enumerate() {
            let slots = r * op.top_k..(r + 1) * op.top_k;
            let products = slots.map(|s| f64::from(op.weights[s]) * f64::from(op.y[s * op.width + i]));
            *out = products.sum::<f64>() as f32;
        }
    }
}

pub(crate) fn copy_expert(op: CopyExpert<'_>) {
    let used = op.starts[1] > op.starts[0];
    if used {
        op.dst.copy_from_slice(op.src);
    }
    *op.moved = used.into();
}
