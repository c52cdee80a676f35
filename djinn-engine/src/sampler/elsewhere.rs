//! What a sampler leaves to others: the device that chooses from the logits, and the engine to which a session moves.

use super::{ConstraintError, Sampler, Sampling};
use crate::Result;
use djinn_device::{Changes, Draw};

impl Sampler {
    /// What a sampler of another engine needs to choose on as this one, beside the turn's tokens.
    /// `None` where a constraint has a state of its own.
    pub(crate) fn state(&self) -> Option<Sampling> {
        self.constraint.is_none().then(|| self.sampling.clone())
    }

    /// A sampler that has chosen `generated`.
    ///
    /// # Errors
    /// As [`Sampling::check`].
    pub(crate) fn resumed(sampling: Sampling, generated: &[u32]) -> Result<Self> {
        let mut sampler = Sampler::new(sampling)?;
        generated.iter().for_each(|&token| sampler.penalised.took(&sampler.sampling, token));
        Ok(sampler)
    }

    /// Whether what is allowed next depends on all tokens before, so that it can be said only when these are known.
    pub(crate) fn is_constrained(&self) -> bool {
        self.constraint.is_some()
    }

    /// Takes in the tokens that are known, and asks the constraint what of `vocab` tokens may come next, once for each
    /// token. Whether one can be chosen: if not, [`take`](Self::take) says why.
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

    /// How the token that follows a context of `tokens` tokens is chosen.
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

    /// What changes the logits before that, as far as tokens were [taken in](Self::prepare).
    pub(crate) fn changes(&self) -> Changes<'_> {
        let allowed = self.asked.as_ref().map(|_| self.allowed.words());
        Changes { tokens: self.penalised.words(), allowed, latest: None }
    }
}
