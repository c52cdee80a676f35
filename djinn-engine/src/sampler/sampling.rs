//! Sampling settings and their checks.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Sampling settings of a turn. Its [`Constraint`](crate::Constraint) rules tokens out first. Then the fields apply in
/// vLLM's order: biases, repetition penalty, frequency and presence penalty, temperature, top-k, top-p, min-p.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Added to the logits of single tokens, also in greedy decoding (OpenAI's `logit_bias`): -100 to 100 for up to
    /// [`MAX_BIASES`](Self::MAX_BIASES) tokens.
    pub logit_bias: BTreeMap<u32, f32>,
    /// Divides the positive logits of tokens in the context and multiplies the negative ones, also in greedy decoding
    /// (Keskar et al. 2019). 1 changes nothing.
    pub repetition_penalty: f32,
    /// Subtracted from a token's logit once for each time that the turn generated it (OpenAI's definition; prompts do
    /// not count, as in vLLM). -2 to 2; 0 changes nothing.
    pub frequency_penalty: f32,
    /// Subtracted once from the logits of tokens that the turn generated (OpenAI's definition). -2 to 2; 0 changes
    /// nothing.
    pub presence_penalty: f32,
    /// Divides the logits. 0 always takes the best token (greedy).
    pub temperature: f32,
    /// Keeps the best `top_k` tokens; 0 keeps all.
    pub top_k: u32,
    /// Keeps the fewest best tokens whose probability reaches `top_p` (nucleus sampling, Holtzman et al.
    /// 2020); 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens with at least `min_p` times the probability of the best one (Nguyen et al. 2024); 0 keeps all.
    pub min_p: f32,
    /// Seed of the random numbers. The same seed and the same logits at the same positions give the same tokens.
    pub seed: u64,
}

impl Default for Sampling {
    /// Greedy.
    fn default() -> Self {
        Sampling {
            logit_bias: BTreeMap::new(),
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 0,
        }
    }
}

impl Sampling {
    /// The most tokens with a bias. Each costs time at every step.
    pub const MAX_BIASES: usize = 1024;

    /// Refuses invalid values.
    ///
    /// # Errors
    /// [`Error::Sampling`] names the field: a temperature below 0, a repetition penalty of 0 or less, a probability
    /// outside 0 to 1, another penalty outside -2 to 2, a bias outside -100 to 100, too many biases, or a value that
    /// is not finite.
    pub fn check(&self) -> Result<()> {
        let between = |value: f32, most: f32| (-most..=most).contains(&value);
        let fields = [
            ("temperature", self.temperature, self.temperature >= 0.0, "0 or more"),
            ("top_p", self.top_p, (0.0..=1.0).contains(&self.top_p), "between 0 and 1"),
            ("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "between 0 and 1"),
            ("repetition_penalty", self.repetition_penalty, self.repetition_penalty > 0.0, "more than 0"),
            (
                "frequency_penalty",
                self.frequency_penalty,
                between(self.frequency_penalty, 2.0),
                "between -2 and 2",
            ),
            (
                "presence_penalty",
                self.presence_penalty,
                between(self.presence_penalty, 2.0),
                "between -2 and 2",
            ),
        ];
        let wrong = fields.into_iter().find(|(_, value, fits, _)| !(*fits && value.is_finite()));
        if let Some((field, value, _, range)) = wrong {
            return Err(Error::Sampling { field, value, range });
        }
        if self.logit_bias.len() > Self::MAX_BIASES {
            let value = self.logit_bias.len() as f32;
            return Err(Error::Sampling { field: "the length of logit_bias", value, range: "1024 or less" });
        }
        match self.logit_bias.values().find(|&&bias| !between(bias, 100.0)) {
            Some(&value) => {
                Err(Error::Sampling { field: "a value of logit_bias", value, range: "between -100 and 100" })
            }
            None => Ok(()),
        }
    }
}
