//! From logits to a token.

mod constraint;
mod elsewhere;
mod logprobs;
mod penalty;
mod sampling;

pub use constraint::{Constraint, ConstraintError, NoToken, TokenMask};
pub use logprobs::TokenLogprobs;
pub use sampling::Sampling;

use crate::logits::chosen;
use crate::{Error, Result};
use djinn_device::{Draw, Drawn, choice};
use penalty::Penalty;

/// A token that was chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The token.
    pub token: u32,
    /// How probable the model found it and others, if that was asked for.
    pub logprobs: Option<Box<TokenLogprobs>>,
}

/// Draws the tokens of one turn, by random numbers that its seed and their positions count: knows which tokens its
/// sequence has.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    penalty: Penalty,
    constraint: Option<Box<dyn Constraint>>,
    /// What the constraint allows, at the latest call.
    allowed: TokenMask,
    logprobs: Option<u8>,
    /// The logits of the latest call, where something changed them.
    changed: Vec<f32>,
}

impl Sampler {
    /// A sampler at the start of a turn.
    ///
    /// # Errors
    /// As [`Sampling::check`].
    pub fn new(sampling: Sampling) -> Result<Self> {
        sampling.check()?;
        Ok(Sampler {
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

    /// Takes in what the device chose after a context of `tokens` tokens, by what [`on_device`](Self::on_device) said.
    ///
    /// # Errors
    /// As [`greedy`](crate::greedy).
    pub(crate) fn take(&mut self, drawn: Drawn, tokens: u64) -> Result<Choice, NoToken> {
        log::trace!(target: "djinn::sampler", "after {tokens} tokens, on the device");
        let token = chosen(drawn, tokens.saturating_sub(1))?;
        let logprobs = self.logprobs.map(|_| TokenLogprobs { chosen: drawn.logprob, top: Vec::new() });
        Ok(Choice { token, logprobs: logprobs.map(Box::new) })
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
        let tokens = context.len() as u64;
        let draw = self.draw(tokens);
        let logits = if self.change(logits, context)? { &self.changed } else { logits };
        let drawn = choice::choose(logits, &Draw { logprob: false, ..draw });
        Ok(chosen(drawn, tokens.saturating_sub(1))?)
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

#[cfg(test)]
mod tests;
