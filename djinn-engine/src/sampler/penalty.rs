//! The repetition penalty: tokens that a sequence has become less likely.

use std::collections::HashSet;

/// Knows the distinct tokens of a growing sequence.
#[derive(Clone, Debug)]
pub(super) struct Penalty {
    factor: f32,
    seen: HashSet<u32>,
    /// Tokens of the sequence that are in `seen`.
    taken: usize,
    /// The logits of the latest call, changed.
    changed: Vec<f32>,
}

impl Penalty {
    pub(super) fn new(factor: f32) -> Self {
        Penalty { factor, seen: HashSet::new(), taken: 0, changed: Vec::new() }
    }

    /// The logits, those of tokens in `context` penalised once. The context begins with that of the call before. Only
    /// finite logits change, and they stay finite.
    pub(super) fn apply<'a>(&'a mut self, logits: &'a [f32], context: &[u32]) -> &'a [f32] {
        if self.factor == 1.0 {
            return logits;
        }
        self.seen.extend(&context[self.taken..]);
        self.taken = context.len();
        self.changed.clear();
        self.changed.extend_from_slice(logits);
        for &token in &self.seen {
            let logit = &mut self.changed[token as usize];
            if logit.is_finite() {
                let penalised = if *logit < 0.0 { *logit * self.factor } else { *logit / self.factor };
                *logit = penalised.clamp(f32::MIN, f32::MAX);
            }
        }
        &self.changed
    }
}
