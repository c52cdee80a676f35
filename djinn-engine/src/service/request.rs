//! A generation's request, progress and result.

use crate::{Finish, Sampling};
use djinn_vmu::PassStats;
use std::time::Duration;

/// A request to generate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// The whole conversation so far. Tokens that the session already has are not computed again.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most.
    pub max_tokens: usize,
    /// Sampling settings.
    pub sampling: Sampling,
    /// Tokens that end the text. The one that occurs is the last of the result.
    pub stop_tokens: Vec<u32>,
}

/// Progress of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The next work is a prefill chunk; `done` of `total` tokens are computed.
    Prefill {
        /// Computed tokens.
        done: usize,
        /// Tokens to compute.
        total: usize,
    },
    /// A token was chosen.
    Token(u32),
}

/// Times and bytes of a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Tokens that were prefilled.
    pub prompt_tokens: usize,
    /// Prompt tokens with keys and values from before.
    pub reused_tokens: usize,
    /// From the request to the first token.
    pub ttft: Duration,
    /// Decode passes: one for each token after the first.
    pub decode_passes: usize,
    /// Time of all decode passes.
    pub decode: Duration,
    /// Streaming during prefill.
    pub prefill_streamed: PassStats,
    /// Streaming during decode.
    pub decode_streamed: PassStats,
}

impl Stats {
    /// Mean time per token after the first.
    pub fn time_per_token(&self) -> Option<Duration> {
        (self.decode_passes > 0).then(|| self.decode / self.decode_passes as u32)
    }
}

/// The result of a generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// New tokens, a stop token included.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
    /// Times and bytes.
    pub stats: Stats,
}
