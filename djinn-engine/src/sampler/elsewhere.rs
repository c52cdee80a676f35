//! The parts of a sampler for others: settings for the device, and state for an exported session.

use super::{ConstraintError, Sampler, Sampling};
use crate::Result;
use djinn_device::{Changes, Draw};

impl Sampler {
    /// The state with which another engine continues the turn, beside its tokens. `None` if a constraint has state of
    /// its own.
    pub(crate) fn state(&self) -> Option<Sampling> {
        self.constraint.is_none().then(|| self.sampling.clone())
    }

    /// A sampler that has chosen `generated` already.
    ///
    /// # Errors
    /// As [`Sampling::check`].
    pub(crate) fn resumed(sampling: Sampling, generated: &[u32]) -> Result<Self> {
        let mut sampler = Sampler::new(sampling)?;
        generated.iter().for_each(|&token| sampler.penalised.took(&sampler.sampling, token));
        Ok(sampler)
    }

    /// Whether the next tokens that are allowed depend on all tokens before.
    pub(crate) fn is_constrained(&self) -> bool {
        self.constraint.is_some()
    }

    /// Records the known tokens, and asks the constraint once per token what of `vocab` tokens is allowed next.
    /// Returns whether a token can be chosen; if not, [`take`](Self::take) returns the reason.
    pub(crate) fn prepare(&mut self, context: &[u32], vocab: usize) -> bool {
        self.penalised.take_in(&self.sampling, context);
        let Sampler { constraint, allowed, asked, .. } = self;
        let Some(constraint) = constraint else { return true };
        let asked = asked.get_or_insert_with(|| {
            allowed.reset(vocab);
            constraint.allow(allowed)?;
            match allowed.is_empty() {
                true => Err(ConstraintError("it allows no token of the vocabulary".to_owned())),
                false => Ok(()),
            }
        });
        asked.is_ok()
    }

    /// How to choose the token after a context of `tokens` tokens.
    pub(crate) fn draw(&self, tokens: u64) -> Draw {
        let &Sampling { temperature, top_k, top_p, min_p, seed, .. } = &self.sampling;
        let &Sampling { repetition_penalty, frequency_penalty, presence_penalty, .. } = &self.sampling;
        Draw {
            temperature,
            top_k,
            top_p,
            min_p,
            seed,
            position: tokens.saturating_sub(1) as u32,
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
            logprob: self.logprobs.is_some(),
            best: self.logprobs.unwrap_or(0).into(),
        }
    }

    /// The changes of the logits before that choice, for the tokens that were [recorded](Self::prepare).
    pub(crate) fn changes(&self) -> Changes<'_> {
        let allowed = self.asked.as_ref().map(|_| self.allowed.words());
        Changes { tokens: self.penalised.words(), allowed, latest: None }
    }
}
