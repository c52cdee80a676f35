//! What a sampler leaves to others: the device that chooses from the logits, and the engine to which a session moves.

use super::penalty::Penalty;
use super::{Sampler, Sampling};
use crate::Result;
use djinn_device::Draw;

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
        generated.iter().for_each(|&token| sampler.penalty.took(&sampler.sampling, token));
        Ok(sampler)
    }

    /// How the device chooses the token that follows a context of `tokens` tokens. `None` where the logits are needed on
    /// the host: for a constraint, biases, penalties, and the most probable tokens. The turn alone decides that.
    pub(crate) fn on_device(&self, tokens: u64) -> Option<Draw> {
        let plain = self.constraint.is_none() && Penalty::is_off(&self.sampling);
        (plain && self.logprobs.unwrap_or(0) == 0).then(|| self.draw(tokens))
    }

    /// The same, wherever it is chosen.
    pub(super) fn draw(&self, tokens: u64) -> Draw {
        let Sampling { temperature, top_k, top_p, min_p, seed, .. } = self.sampling;
        let (position, logprob) = (tokens.saturating_sub(1) as u32, self.logprobs.is_some());
        Draw { temperature, top_k, top_p, min_p, seed, position, logprob }
    }
}
