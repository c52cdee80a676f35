//! Logits of given tokens, computed between two steps of a service.

use super::{Answer, Service};
use crate::Result;
use djinn_device::Ops;
use std::time::Duration;

/// Tokens whose logits a client wants.
pub(super) struct AskedLogits {
    pub(super) tokens: Vec<u32>,
    pub(super) answer: Answer<Vec<f32>>,
}

impl std::fmt::Debug for AskedLogits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AskedLogits").field("tokens", &self.tokens.len()).finish()
    }
}

impl<D: Ops> Service<D> {
    /// Logits of every position of `tokens`, f32 `[tokens, vocab]` row-major, computed in free pages.
    ///
    /// # Errors
    /// As [`Engine::logits`](crate::Engine::logits).
    ///
    /// # Panics
    /// If a step is under way.
    pub fn logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        self.batcher.logits(self.core.scheduler_mut().pages_mut(), tokens)
    }

    /// The time until requested logits can be computed.
    pub(super) fn asked_in(&self) -> Option<Duration> {
        (!self.asked.is_empty()).then_some(Duration::ZERO)
    }

    /// Computes the oldest request for logits if no step is under way. Otherwise no step is enqueued ahead until then.
    ///
    /// # Errors
    /// A failure of the device, which the client is told as well.
    pub(super) fn logits_between_steps(&mut self) -> Result<()> {
        if self.asked.is_empty() {
            return Ok(());
        }
        let waits = self.batcher.is_stepping();
        self.batcher.hold_back(waits);
        if !waits {
            let AskedLogits { tokens, answer } = self.asked.remove(0);
            answer(self.logits(&tokens));
        }
        self.engine().check_runs()
    }
}
