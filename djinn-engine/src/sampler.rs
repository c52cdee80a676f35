//! From logits to a token.

mod penalty;

use crate::logits::{BadLogit, Best, best};
use crate::{Error, Result};
use penalty::Penalty;

/// How tokens are chosen. Fields apply in the order of transformers: repetition penalty, temperature, top-k, top-p,
/// min-p.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the positive logits of tokens that the context has, and multiplies the negative ones (Keskar et al.
    /// 2019), also where decoding is greedy; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Divides the logits; 0 always takes the best token (greedy).
    pub temperature: f32,
    /// Keeps the best `top_k` tokens; 0 keeps all.
    pub top_k: u32,
    /// Keeps the fewest best tokens whose probability reaches `top_p` (nucleus sampling, Holtzman et al.
    /// 2020); 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens with at least `min_p` times the probability of the best one (Nguyen et al. 2024); 0 keeps all.
    pub min_p: f32,
    /// Same seed, same logits: same tokens.
    pub seed: u64,
}

impl Default for Sampling {
    /// Greedy.
    fn default() -> Self {
        Sampling { repetition_penalty: 1.0, temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 }
    }
}

impl Sampling {
    /// Refuses values that mean nothing.
    ///
    /// # Errors
    /// [`Error::Sampling`] names the field: a temperature below 0, a penalty of 0 or less, a probability outside 0 to
    /// 1, or any that is not finite.
    pub fn check(&self) -> Result<()> {
        let fields = [
            ("temperature", self.temperature, self.temperature >= 0.0, "0 or more"),
            ("top_p", self.top_p, (0.0..=1.0).contains(&self.top_p), "between 0 and 1"),
            ("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "between 0 and 1"),
            ("repetition_penalty", self.repetition_penalty, self.repetition_penalty > 0.0, "more than 0"),
        ];
        match fields.into_iter().find(|(_, value, fits, _)| !(*fits && value.is_finite())) {
            None => Ok(()),
            Some((field, value, _, range)) => Err(Error::Sampling { field, value, range }),
        }
    }
}

/// Draws the tokens of one sequence: holds the state of its random numbers, and which tokens it has.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    state: u64,
    penalty: Penalty,
}

impl Sampler {
    /// A sampler at the start of its random numbers.
    ///
    /// # Errors
    /// As [`Sampling::check`].
    pub fn new(sampling: Sampling) -> Result<Self> {
        sampling.check()?;
        Ok(Sampler { sampling, state: sampling.seed, penalty: Penalty::new(sampling.repetition_penalty) })
    }

    /// Chooses a token from the logits that follow `context`: all tokens of the sequence, those of earlier calls at its
    /// start. Of equals the token with the lower id is the better one.
    ///
    /// # Errors
    /// As [`greedy`](crate::greedy).
    ///
    /// # Panics
    /// If there are no logits, or the context has a token that these lack.
    pub fn choose(&mut self, logits: &[f32], context: &[u32]) -> Result<u32, BadLogit> {
        let position = (context.len() as u64).saturating_sub(1);
        let logits = self.penalty.apply(logits, context);
        let best = best(logits, position)?;
        let Sampling { temperature, top_k, .. } = self.sampling;
        if temperature == 0.0 || top_k == 1 {
            return Ok(best.token);
        }
        let kept = keep(&self.sampling, logits, best);
        Ok(draw(&kept, uniform(&mut self.state)))
    }
}

/// The tokens that the sampling keeps, the best first, each with its probability relative to the best one's.
fn keep(sampling: &Sampling, logits: &[f32], best: Best) -> Vec<(u32, f32)> {
    let Sampling { temperature, top_k, top_p, min_p, .. } = *sampling;
    let mut kept: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
    let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    let k = top_k as usize;
    if k > 0 && k < kept.len() {
        kept.select_nth_unstable_by(k - 1, order);
        kept.truncate(k);
    }
    kept.sort_unstable_by(order);
    for (_, l) in &mut kept {
        *l = ((*l - best.logit) / temperature).exp();
    }
    if top_p < 1.0 {
        let total = total(&kept);
        let mut sum = 0.0;
        let reached = kept.iter().position(|&(_, p)| {
            sum += p as f64 / total;
            sum >= top_p as f64
        });
        kept.truncate(reached.map_or(kept.len(), |i| i + 1));
    }
    // What has no probability is never drawn, not even where sums are rounded.
    let least = min_p.max(f32::MIN_POSITIVE);
    kept.truncate(kept.partition_point(|&(_, p)| p >= least));
    kept
}

fn total(kept: &[(u32, f32)]) -> f64 {
    kept.iter().map(|&(_, p)| p as f64).sum()
}

/// The token at `at`, in `0..1`, of the tokens side by side, each as wide as its probability.
fn draw(kept: &[(u32, f32)], at: f64) -> u32 {
    let mut left = at * total(kept);
    let drawn = kept.iter().find(|&&(_, p)| {
        left -= p as f64;
        left < 0.0
    });
    drawn.or(kept.last()).expect("the best token is kept").0
}

/// Uniform in `0..1`, by SplitMix64 (Steele et al. 2014).
fn uniform(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests;
