//! How probable the model found tokens.

use djinn_device::Drawn;

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
    pub const MOST: u8 = Drawn::MOST_BEST as u8;
}
