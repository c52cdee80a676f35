//! A mixture of experts: choice, dispatch, products and their sum.

use super::Fast;
use super::buffer::Shared;
use super::data::{Combine, CopyExpert, ExpertLinear, Group, Linear, Route};

/// Logits below which a share of the rows is not worth another thread.
const LEAST_LOGITS: usize = 1 << 12;

impl Fast {
    /// See [`djinn_device::args::Route`].
    pub(crate) fn route(&self, op: Route<'_>) {
        let Route { logits, experts, top_k, renormalise, weights, ids } = op;
        let rows = logits.len() / experts;
        let share = rows.div_ceil(4 * self.pool.threads()).max(LEAST_LOGITS.div_ceil(experts));
        let (weights, ids) = (Shared::new(weights), Shared::new(ids));
        self.pool.run(rows.div_ceil(share), |task| {
            let first = task * share;
            let count = share.min(rows - first);
            // SAFETY: shares are disjoint.
            #[allow(unsafe_code, reason = "rows are written in parallel")]
            let weights = unsafe { weights.slice(first * top_k, count * top_k) };
            // SAFETY: as above.
            #[allow(unsafe_code, reason = "rows are written in parallel")]
            let ids = unsafe { ids.slice(first * top_k, count * top_k) };
            let outputs = weights.chunks_exact_mut(top_k).zip(ids.chunks_exact_mut(top_k));
            for (logits, (weights, ids)) in logits[first * experts..].chunks_exact(experts).zip(outputs) {
                choose(logits, weights, ids);
                weigh(logits, weights, renormalise);
            }
        });
    }

    /// See [`djinn_device::args::Group`]. A counting sort.
    pub(crate) fn group(&self, op: Group<'_>) {
        let slots = || (0..).zip(op.ids).filter(|&(slot, &id)| op.cpu.contains(slot, id) == op.of_cpu);
        let mut next = vec![0_usize; op.starts.len() - 1];
        slots().for_each(|(_, &id)| next[id as usize] += 1);
        let mut at = 0;
        for (start, next) in op.starts.iter_mut().zip(&mut next) {
            *start = at as u32;
            at += std::mem::replace(next, at);
        }
        op.starts[next.len()] = at as u32;
        for (slot, &id) in slots() {
            op.order[next[id as usize]] = slot;
            next[id as usize] += 1;
        }
    }

    /// See [`djinn_device::args::ExpertLinear`]. One product of the slots' rows, side by side.
    pub(crate) fn expert_linear(&self, mut op: ExpertLinear<'_>) {
        let (k, n, slots) = (op.k, op.n, op.slots);
        if slots.is_empty() {
            return;
        }
        let x: Vec<f32> = slots.iter().flat_map(|&slot| op.row(slot)).copied().collect();
        let mut out = vec![0.0; slots.len() * n];
        let (weight, bias, out_width, out_column) = (op.weight, None, n, 0);
        self.linear(Linear { x: &x, weight, bias, k, n, out_width, out_column, out: &mut out });
        for (&slot, out) in slots.iter().zip(out.chunks_exact(n)) {
            op.columns(slot).copy_from_slice(out);
        }
    }

    /// See [`djinn_device::args::CopyExpert`]. A copy that has a stream to itself is one thread's.
    pub(crate) fn copy_expert(&self, op: CopyExpert<'_>) {
        let used = op.starts[1] > op.starts[0];
        if used {
            op.dst.copy_from_slice(op.src);
        }
        *op.moved = used.into();
    }

    /// See [`djinn_device::args::Combine`].
    pub(crate) fn combine(&self, op: Combine<'_>) {
        let Combine { y, weights, top_k, width, cpu, of_cpu, out } = op;
        let y_of = |slot: usize| match of_cpu {
            Some((ids, cpu_y)) if cpu.contains(slot as u32, ids[slot]) => &cpu_y[slot * width..][..width],
            _ => &y[slot * width..][..width],
        };
        self.each_share(out, width, |first, out| {
            for (r, out) in out.chunks_exact_mut(width).enumerate() {
                out.fill(0.0);
                let slots = (first + r) * top_k..(first + r + 1) * top_k;
                for (slot, weight) in slots.clone().zip(&weights[slots]) {
                    for (out, y) in out.iter_mut().zip(y_of(slot)) {
                        *out += weight * y;
                    }
                }
            }
        });
    }
}

/// The greatest, in descending order, into `ranks` and `ids`: each logit in turn is put before the first that is
/// smaller, and what falls off the end is forgotten.
fn choose(logits: &[f32], ranks: &mut [f32], ids: &mut [u32]) {
    let mut len = 0;
    for (expert, &logit) in logits.iter().enumerate() {
        let rank = Route::rank(logit);
        let at = ranks[..len].iter().position(|&other| other < rank).unwrap_or(len);
        if at == ranks.len() {
            continue;
        }
        len = ranks.len().min(len + 1);
        ranks[at..len].rotate_right(1);
        ids[at..len].rotate_right(1);
        (ranks[at], ids[at]) = (rank, expert as u32);
    }
}

/// Turns the chosen ones' logits into their weights.
fn weigh(logits: &[f32], chosen: &mut [f32], renormalise: bool) {
    let greatest = chosen[0];
    let total: f32 = logits.iter().map(|logit| (logit - greatest).exp()).sum();
    chosen.iter_mut().for_each(|weight| *weight = (*weight - greatest).exp() / total);
    if renormalise {
        let sum: f32 = chosen.iter().sum();
        chosen.iter_mut().for_each(|weight| *weight /= sum);
    }
}

#[cfg(test)]
mod tests;
