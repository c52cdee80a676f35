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
use djinn_device::{Drawn, choice};
use penalty::Penalised;

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct ChosenToken {
    /// The token.
    pub token: u32,
    /// Log-probabilities of this token and of others, if requested.
    pub logprobs: Option<Box<TokenLogprobs>>,
}

/// The sampling state of one turn. Random numbers are a function of seed and position. The sampler knows the tokens of
/// its sequence; the device draws.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    penalised: Penalised,
    constraint: Option<Box<dyn Constraint>>,
    /// The tokens that the constraint allows next.
    allowed: TokenMask,
    /// The constraint's latest answer, until the next token.
    asked: Option<Result<(), ConstraintError>>,
    logprobs: Option<u8>,
}

impl Sampler {
    /// A sampler at the start of a turn.
    ///
    /// # Errors
    /// As [`Sampling::check`].
    pub fn new(sampling: Sampling) -> Result<Self> {
        sampling.check()?;
        Ok(Sampler {
            penalised: Penalised::new(&sampling),
            sampling,
            constraint: None,
            allowed: TokenMask::default(),
            asked: None,
            logprobs: None,
        })
    }

    /// The same, for tokens that `constraint` allows.
    #[must_use]
    pub fn with_constraint(self, constraint: Option<Box<dyn Constraint>>) -> Self {
        Sampler { constraint, ..self }
    }

    /// The same, with the log-probabilities of each chosen token and of the best `top`, if `Some`.
    ///
    /// # Errors
    /// [`Error::Sampling`] for more than [`TokenLogprobs::MOST`].
    pub fn with_logprobs(self, top: Option<u8>) -> Result<Self> {
        check_logprobs(top)?;
        Ok(Sampler { logprobs: top, ..self })
    }

    /// Records the token chosen after a context of `tokens` tokens with the settings of [`draw`](Self::draw); `None`
    /// if the constraint failed.
    ///
    /// # Errors
    /// As [`greedy`](crate::greedy), or a failure of the constraint.
    pub(crate) fn take(&mut self, drawn: Option<Drawn>, tokens: u64) -> Result<ChosenToken, NoToken> {
        log::trace!(target: "djinn::sampler", "after {tokens} tokens");
        let asked = self.asked.take().unwrap_or(Ok(()));
        let drawn =
            drawn.ok_or_else(|| asked.expect_err("a token is chosen where the constraint goes on"))?;
        let token = chosen(&drawn, tokens.saturating_sub(1))?;
        self.penalised.took(&self.sampling, token);
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(token)?;
        }
        let logprobs = self.logprobs.map(|_| TokenLogprobs { chosen: drawn.logprob, top: drawn.best });
        Ok(ChosenToken { token, logprobs: logprobs.map(Box::new) })
    }

    /// Whether the constraint allows no further token.
    pub fn is_complete(&self) -> bool {
        self.constraint.as_ref().is_some_and(|constraint| constraint.is_complete())
    }

    /// Chooses a token from logits on the host, as a device would. They follow `context`, all tokens of the sequence,
    /// which begins with the context of the previous call.
    ///
    /// # Errors
    /// As [`greedy`](crate::greedy), or a failure of the constraint.
    ///
    /// # Panics
    /// If there are no logits.
    pub fn choose(&mut self, logits: &[f32], context: &[u32]) -> Result<ChosenToken, NoToken> {
        let (tokens, draws) = (context.len() as u64, self.prepare(context, logits.len()));
        let choose = || choice::choose_changed(logits, &self.draw(tokens), &self.changes());
        self.take(draws.then(choose), tokens)
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
