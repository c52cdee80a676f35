//! How tokens are chosen: the user's flags over what the model's makers suggest.

use crate::args::SamplingArgs;
use djinn_engine::Sampling;
use djinn_models::GenerationDefaults;
use std::hash::{BuildHasher, Hasher, RandomState};

/// The sampling, and its seed where there is randomness. Any of `--temperature`, `--top-k` and `--top-p`
/// asks for sampling, as does a checkpoint with `do_sample`; otherwise decoding is greedy.
pub(super) fn choose(args: &SamplingArgs, defaults: &GenerationDefaults) -> (Sampling, Option<u64>) {
    let asked = args.temperature.is_some() || args.top_k.is_some() || args.top_p.is_some();
    let temperature = args.temperature.or(defaults.temperature).unwrap_or(1.0);
    if args.greedy || !(asked || defaults.do_sample == Some(true)) || temperature == 0.0 {
        return (Sampling::default(), None);
    }
    let seed = args.seed.unwrap_or_else(new_seed);
    let sampling = Sampling {
        temperature,
        top_k: args.top_k.or(defaults.top_k).unwrap_or(0),
        top_p: args.top_p.or(defaults.top_p).unwrap_or(1.0),
        seed,
    };
    (sampling, Some(seed))
}

/// Another number each time; of 32 bits, which every reader of JSON takes exactly.
fn new_seed() -> u64 {
    RandomState::new().build_hasher().finish() >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> SamplingArgs {
        SamplingArgs {
            max_tokens: None,
            greedy: false,
            temperature: None,
            top_k: None,
            top_p: None,
            seed: Some(5),
            stop: Vec::new(),
            ignore_eos: false,
        }
    }

    #[test]
    fn flags_win_over_the_checkpoint() {
        let none = GenerationDefaults::default();
        let warm = GenerationDefaults {
            temperature: Some(0.6),
            top_p: Some(0.9),
            do_sample: Some(true),
            ..GenerationDefaults::default()
        };
        assert_eq!(choose(&args(), &none), (Sampling::default(), None));
        let (sampling, seed) = choose(&args(), &warm);
        assert_eq!((sampling, seed), (Sampling { temperature: 0.6, top_k: 0, top_p: 0.9, seed: 5 }, Some(5)));
        assert_eq!(choose(&SamplingArgs { greedy: true, ..args() }, &warm), (Sampling::default(), None));
        assert_eq!(choose(&SamplingArgs { temperature: Some(0.0), ..args() }, &warm).1, None);
        let (sampling, _) = choose(&SamplingArgs { top_k: Some(3), ..args() }, &none);
        assert_eq!(sampling, Sampling { temperature: 1.0, top_k: 3, top_p: 1.0, seed: 5 });
    }

    #[test]
    fn seeds_differ() {
        let seeds: std::collections::HashSet<u64> = (0..8).map(|_| new_seed()).collect();
        assert!(seeds.len() > 1 && seeds.iter().all(|s| *s <= u32::MAX as u64));
    }
}
