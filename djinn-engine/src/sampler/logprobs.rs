//! How probable the model found tokens.

/// Natural logarithms of probabilities at one position: the log-softmax of the model's logits as they are, before
/// penalties, biases, constraints, temperature and filters (vLLM's `raw_logprobs`).
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Of the token that was chosen. Negative infinity if the model ruled it out.
    pub chosen: f32,
    /// The most probable tokens, the best first; of equals the one with the lower id. Tokens that the model ruled out
    /// are left out.
    pub top: Vec<(u32, f32)>,
}

impl TokenLogprobs {
    /// The most alternatives that a turn may ask for.
    pub const MOST: u8 = 20;

    /// Of finite logits or negative infinities, one at least finite.
    pub(super) fn new(logits: &[f32], chosen: u32, top: u8) -> Self {
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f64 = logits.iter().map(|&logit| f64::from((logit - most).exp())).sum();
        let normal = f64::from(most) + total.ln();
        let logprob = |logit: f32| (f64::from(logit) - normal) as f32;
        let best = best(logits, top.into());
        TokenLogprobs {
            chosen: logprob(logits[chosen as usize]),
            top: best.into_iter().map(|(token, logit)| (token, logprob(logit))).collect(),
        }
    }
}

/// The `count` greatest logits above negative infinity with their tokens, in order.
fn best(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let mut best: Vec<(u32, f32)> = Vec::with_capacity(count + 1);
    let mut least = f32::NEG_INFINITY;
    for (token, &logit) in (0..).zip(logits) {
        if logit > least && count > 0 {
            let at = best.partition_point(|&(_, other)| other >= logit);
            best.insert(at, (token, logit));
            best.truncate(count);
            if best.len() == count {
                least = best[count - 1].1;
            }
        }
    }
    best
}
