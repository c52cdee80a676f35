//! Log-probabilities of tokens.

use djinn_device::Drawn;

/// Log-probabilities at one position: the log-softmax of the model's logits, before penalties, biases, constraints,
/// temperature and filters (vLLM's `raw_logprobs`).
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// That of the chosen token. Negative infinity if the model ruled it out.
    pub chosen: f32,
    /// The most probable tokens, best first; of equals, the lower id first. Tokens that the model ruled out are left
    /// out.
    pub top: Vec<(u32, f32)>,
}

impl TokenLogprobs {
    /// The most alternatives that a turn may request.
    pub const MOST: u8 = Drawn::MOST_BEST as u8;
}
