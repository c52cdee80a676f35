//! What changes single logits: biases, and penalties on tokens that a sequence has.

use super::Sampling;
use std::collections::{HashMap, HashSet};

/// Knows the distinct tokens of a growing sequence, and how often each was generated.
#[derive(Clone, Debug, Default)]
pub(super) struct Penalty {
    seen: HashSet<u32>,
    /// Tokens of the sequence that are in `seen`.
    taken: usize,
    generated: HashMap<u32, u32>,
}

impl Penalty {
    /// Whether logits stay as they are.
    pub(super) fn is_off(sampling: &Sampling) -> bool {
        sampling.repetition_penalty == 1.0 && !counts(sampling) && sampling.logit_bias.is_empty()
    }

    /// Adds the biases; penalises tokens in `context`, which begins with that of the call before; then those that were
    /// [generated](Self::took). Only finite logits change, and they stay finite.
    pub(super) fn apply(&mut self, sampling: &Sampling, logits: &mut [f32], context: &[u32]) {
        let mut change = |token: u32, by: &dyn Fn(f32) -> f32| {
            let logit = &mut logits[token as usize];
            if logit.is_finite() {
                *logit = by(*logit).clamp(f32::MIN, f32::MAX);
            }
        };
        for (&token, bias) in &sampling.logit_bias {
            change(token, &|logit| logit + bias);
        }
        let factor = sampling.repetition_penalty;
        if factor != 1.0 {
            self.seen.extend(&context[self.taken..]);
            self.taken = context.len();
            for &token in &self.seen {
                change(token, &|logit| if logit < 0.0 { logit * factor } else { logit / factor });
            }
        }
        for (&token, &count) in &self.generated {
            let penalty = sampling.frequency_penalty * count as f32 + sampling.presence_penalty;
            change(token, &|logit| logit - penalty);
        }
    }

    /// Counts a generated token, where that matters.
    pub(super) fn took(&mut self, sampling: &Sampling, token: u32) {
        if counts(sampling) {
            *self.generated.entry(token).or_default() += 1;
        }
    }
}

/// Whether generated tokens are penalised by their number.
fn counts(sampling: &Sampling) -> bool {
    sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0
}
