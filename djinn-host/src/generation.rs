//! Settings of an answer: the user's choices over the defaults of the model's makers.

use crate::{Error, Result};
use djinn_engine::{Request, Sampling};
use djinn_models::{GenerationDefaults, Model};
use std::hash::{BuildHasher, Hasher, RandomState};

/// Settings of an answer. `None`: the default of the model's makers, or else greedy decoding.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// Tokens to generate at most.
    pub max_tokens: u32,
    /// Greedy decoding, whatever the fields below say.
    pub greedy: bool,
    /// Divides the logits; 0 is greedy.
    pub temperature: Option<f32>,
    /// Sample among the `top_k` likeliest tokens; 0 keeps all.
    pub top_k: Option<u32>,
    /// Sample among the likeliest tokens that reach probability `top_p`.
    pub top_p: Option<f32>,
    /// Sample among tokens with at least `min_p` times the probability of the likeliest; 0 keeps all.
    pub min_p: Option<f32>,
    /// Divides the logits of tokens in the text, also in greedy decoding; 1 changes nothing.
    pub repetition_penalty: Option<f32>,
    /// Seed of the random numbers. `None`: a different one each time.
    pub seed: Option<u64>,
    /// The text ends before any of these.
    pub stop: Vec<String>,
    /// Continue after tokens that end a text.
    pub ignore_eos: bool,
    /// Use the prompt without the model's chat template.
    pub raw: bool,
    /// The system message of a conversation. `None`: [`SYSTEM`](crate::SYSTEM). Empty: the template's own.
    pub system: Option<String>,
}

impl Default for Generation {
    fn default() -> Self {
        Generation {
            max_tokens: Generation::MAX_TOKENS,
            greedy: false,
            temperature: None,
            top_k: None,
            top_p: None,
            min_p: None,
            repetition_penalty: None,
            seed: None,
            stop: Vec::new(),
            ignore_eos: false,
            raw: false,
            system: None,
        }
    }
}

impl Generation {
    /// The default of [`max_tokens`](Generation::max_tokens).
    pub const MAX_TOKENS: u32 = 256;

    /// The same for a chat, in which greedy decoding would repeat itself. Settings that neither the user nor the
    /// model's makers give are a temperature of 0.7, top-p 0.95, min-p 0.05 and a repetition penalty of 1.1.
    /// Checkpoints with `do_sample` keep neutral values for missing settings.
    #[must_use]
    pub fn for_chat(self, defaults: &GenerationDefaults) -> Self {
        if self.greedy || defaults.do_sample == Some(true) {
            return self;
        }
        Generation {
            temperature: self.temperature.or(defaults.temperature).or(Some(0.7)),
            top_p: self.top_p.or(defaults.top_p).or(Some(0.95)),
            min_p: self.min_p.or(defaults.min_p).or(Some(0.05)),
            repetition_penalty: self.repetition_penalty.or(defaults.repetition_penalty).or(Some(1.1)),
            ..self
        }
    }

    /// Whether the user's settings ask for sampling.
    fn asks(&self) -> bool {
        self.temperature.is_some() || self.top_k.is_some() || self.top_p.is_some() || self.min_p.is_some()
    }

    /// The sampling settings. Any of temperature, top-k, top-p and min-p asks for sampling, and so does a checkpoint
    /// with `do_sample`. Otherwise decoding is greedy: a temperature of 0.
    pub fn sampling(&self, defaults: &GenerationDefaults) -> Sampling {
        let temperature = self.temperature.or(defaults.temperature).unwrap_or(1.0);
        let repetition_penalty = self.repetition_penalty.or(defaults.repetition_penalty).unwrap_or(1.0);
        if self.greedy || !(self.asks() || defaults.do_sample == Some(true)) || temperature == 0.0 {
            return Sampling { repetition_penalty, ..Sampling::default() };
        }
        Sampling {
            repetition_penalty,
            temperature,
            top_k: self.top_k.or(defaults.top_k).unwrap_or(0),
            top_p: self.top_p.or(defaults.top_p).unwrap_or(1.0),
            min_p: self.min_p.or(defaults.min_p).unwrap_or(0.0),
            seed: self.seed.unwrap_or_else(new_seed),
            ..Sampling::default()
        }
    }

    /// The request to generate after `prompt`. Tokens that end a text or a turn end the answer, unless they are
    /// ignored.
    pub fn request(&self, model: &Model, prompt: Vec<u32>) -> Request {
        let stop_tokens = if self.ignore_eos { Vec::new() } else { model.end_tokens() };
        let sampling = self.sampling(&model.defaults);
        Request { prompt, max_tokens: self.max_tokens as usize, sampling, stop_tokens }
    }
}

/// The seed of `sampling`, if it is random.
pub fn seed(sampling: &Sampling) -> Option<u64> {
    (sampling.temperature > 0.0).then_some(sampling.seed)
}

/// Refuses a prompt that the model cannot take, or whose context is `context` and too short, before weights are loaded.
///
/// # Errors
/// [`Error::EmptyPrompt`], [`Error::PromptTooLong`], [`Error::UnknownToken`], or [`Error::Engine`] for a prompt that
/// exceeds `context`.
pub fn check_prompt(model: &Model, context: Option<u64>, prompt: &[u32]) -> Result<()> {
    let (most, vocab, tokens) = (model.graph.max_context, model.graph.vocab, prompt.len() as u64);
    if tokens == 0 {
        return Err(Error::EmptyPrompt);
    }
    if tokens > most {
        return Err(Error::PromptTooLong { tokens, context: most });
    }
    if let Some(context) = context.filter(|&context| tokens > context) {
        return Err(djinn_engine::Error::ContextFull { tokens, context }.into());
    }
    match prompt.iter().find(|&&token| u64::from(token) >= vocab) {
        Some(&token) => Err(Error::UnknownToken { token, vocab }),
        None => Ok(()),
    }
}

/// A different number each time, of 32 bits, which every JSON reader represents exactly.
fn new_seed() -> u64 {
    RandomState::new().build_hasher().finish() >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_choices_win_over_the_checkpoint() {
        let none = GenerationDefaults::default();
        let warm = GenerationDefaults {
            temperature: Some(0.6),
            top_p: Some(0.9),
            do_sample: Some(true),
            ..GenerationDefaults::default()
        };
        let plain = || Generation { seed: Some(5), ..Generation::default() };
        assert_eq!(plain().sampling(&none), Sampling::default());
        let sampling = plain().sampling(&warm);
        assert_eq!(sampling, Sampling { temperature: 0.6, top_p: 0.9, seed: 5, ..Sampling::default() });
        assert_eq!(seed(&sampling), Some(5));
        assert_eq!(Generation { greedy: true, ..plain() }.sampling(&warm), Sampling::default());
        assert_eq!(seed(&Generation { temperature: Some(0.0), ..plain() }.sampling(&warm)), None);
        let sampling = Generation { top_k: Some(3), ..plain() }.sampling(&none);
        assert_eq!(sampling, Sampling { temperature: 1.0, top_k: 3, seed: 5, ..Sampling::default() });
    }

    #[test]
    fn penalties_and_min_p_come_from_the_user_or_the_checkpoint() {
        let named = GenerationDefaults {
            min_p: Some(0.1),
            repetition_penalty: Some(1.1),
            ..GenerationDefaults::default()
        };
        let plain = || Generation { seed: Some(5), ..Generation::default() };
        // Greedy decoding has a penalty, too, as transformers has it.
        assert_eq!(plain().sampling(&named), Sampling { repetition_penalty: 1.1, ..Sampling::default() });
        let warm = Generation { temperature: Some(0.5), repetition_penalty: Some(1.0), ..plain() };
        let expected = Sampling { temperature: 0.5, min_p: 0.1, seed: 5, ..Sampling::default() };
        assert_eq!(warm.sampling(&named), expected);
    }

    #[test]
    fn a_chat_samples_unless_the_user_or_the_model_says_how() {
        let (none, plain) =
            (GenerationDefaults::default(), || Generation { seed: Some(5), ..Generation::default() });
        let chat = Sampling {
            repetition_penalty: 1.1,
            temperature: 0.7,
            top_k: 0,
            top_p: 0.95,
            min_p: 0.05,
            seed: 5,
            ..Sampling::default()
        };
        assert_eq!(plain().for_chat(&none).sampling(&none), chat);
        let sampled = GenerationDefaults { do_sample: Some(true), ..none.clone() };
        for (asked, defaults) in [(Generation { greedy: true, ..plain() }, &none), (plain(), &sampled)] {
            assert_eq!(asked.clone().for_chat(defaults), asked);
        }
        let cool = Generation { temperature: Some(0.3), ..plain() }.for_chat(&none).sampling(&none);
        assert_eq!(cool, Sampling { temperature: 0.3, ..chat }, "one choice leaves the others as they were");
    }

    #[test]
    fn seeds_differ() {
        let seeds: std::collections::HashSet<u64> = (0..8).map(|_| new_seed()).collect();
        assert!(seeds.len() > 1 && seeds.iter().all(|s| *s <= u32::MAX as u64));
    }
}
