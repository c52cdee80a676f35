//! From logits to a token.

mod constraint;
mod logprobs;
mod penalty;
mod sampling;

pub use constraint::{Constraint, ConstraintError, NoToken, TokenMask};
pub use logprobs::TokenLogprobs;
pub use sampling::Sampling;

use crate::logits::{Best, best};
use crate::{Error, Result};
use penalty::Penalty;

/// A token that was chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The token.
    pub token: u32,
    /// How probable the model found it and others, if that was asked for.
    pub logprobs: Option<Box<TokenLogprobs>>,
}

/// Draws the tokens of one turn: holds the state of its random numbers, and which tokens its sequence has.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    state: u64,
    penalty: Penalty,
    constraint: Option<Box<dyn Constraint>>,
    /// What the constraint allows, at the latest call.
    allowed: TokenMask,
    logprobs: Option<u8>,
    /// The logits of the latest call, where something changed them.
    changed: Vec<f32>,
}

impl Sampler {
    /// A sampler at the start of its random numbers.
    ///
    /// # Errors
    /// As [`Sampling::check`].
    pub fn new(sampling: Sampling) -> Result<Self> {
        sampling.check()?;
        Ok(Sampler {
            state: sampling.seed,
            sampling,
            penalty: Penalty::default(),
            constraint: None,
            allowed: TokenMask::default(),
            logprobs: None,
            changed: Vec::new(),
        })
    }

    /// The same, for tokens that `constraint` allows.
    #[must_use]
    pub fn with_constraint(self, constraint: Option<Box<dyn Constraint>>) -> Self {
        Sampler { constraint, ..self }
    }

    /// The same, with the log-probabilities of each chosen token and of the best `top`, if any.
    ///
    /// # Errors
    /// [`Error::Sampling`] for more than [`TokenLogprobs::MOST`].
    pub fn with_logprobs(self, top: Option<u8>) -> Result<Self> {
        check_logprobs(top)?;
        Ok(Sampler { logprobs: top, ..self })
    }

    /// What a sampler of another engine needs to choose on as this one, beside the turn's tokens.
    /// `None` where a constraint has a state of its own.
    pub(crate) fn state(&self) -> Option<(Sampling, u64)> {
        self.constraint.is_none().then(|| (self.sampling.clone(), self.state))
    }

    /// A sampler that has chosen `generated` and goes on with its random numbers at `state`.
    ///
    /// # Errors
    /// As [`Sampling::check`].
    pub(crate) fn resumed(sampling: Sampling, state: u64, generated: &[u32]) -> Result<Self> {
        let mut sampler = Sampler { state, ..Sampler::new(sampling)? };
        generated.iter().for_each(|&token| sampler.penalty.took(&sampler.sampling, token));
        Ok(sampler)
    }

    /// Whether the constraint allows nothing more.
    pub fn is_complete(&self) -> bool {
        self.constraint.as_ref().is_some_and(|constraint| constraint.is_complete())
    }

    /// Chooses a token from the logits that follow `context`: all tokens of the sequence, those of earlier calls at its
    /// start. Of equals the token with the lower id is the better one.
    ///
    /// # Errors
    /// As [`greedy`](crate::greedy), or a failure of the constraint.
    ///
    /// # Panics
    /// If there are no logits, or the context or a bias has a token that these lack.
    pub fn choose(&mut self, logits: &[f32], context: &[u32]) -> Result<Choice, NoToken> {
        log::trace!(target: "djinn::sampler", "after {} tokens", context.len());
        let token = self.choose_token(logits, context)?;
        self.penalty.took(&self.sampling, token);
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(token)?;
        }
        let logprobs = self.logprobs.map(|top| Box::new(TokenLogprobs::new(logits, token, top)));
        Ok(Choice { token, logprobs })
    }

    fn choose_token(&mut self, logits: &[f32], context: &[u32]) -> Result<u32, NoToken> {
        let position = (context.len() as u64).saturating_sub(1);
        let logits = if self.change(logits, context)? { &self.changed } else { logits };
        let best = best(logits, position)?;
        let Sampling { temperature, top_k, .. } = self.sampling;
        if temperature == 0.0 || top_k == 1 {
            return Ok(best.token);
        }
        let kept = keep(&self.sampling, logits, best);
        Ok(draw(&kept, uniform(&mut self.state)))
    }

    /// Applies the constraint, biases and penalties to a copy of the logits, where there are any.
    fn change(&mut self, logits: &[f32], context: &[u32]) -> Result<bool, ConstraintError> {
        if self.constraint.is_none() && Penalty::is_off(&self.sampling) {
            return Ok(false);
        }
        self.changed.clear();
        self.changed.extend_from_slice(logits);
        if let Some(constraint) = &mut self.constraint {
            self.allowed.reset(logits.len());
            constraint.allow(&mut self.allowed)?;
            if self.allowed.is_empty() {
                return Err(ConstraintError("it allows no token of the vocabulary".to_owned()));
            }
            self.allowed.apply(&mut self.changed);
        }
        self.penalty.apply(&self.sampling, &mut self.changed, context);
        Ok(true)
    }
}

pub(crate) fn check_logprobs(top: Option<u8>) -> Result<()> {
    match top.filter(|&top| top > TokenLogprobs::MOST) {
        Some(top) => Err(Error::Sampling { field: "logprobs", value: top.into(), range: "between 0 and 20" }),
        None => Ok(()),
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
