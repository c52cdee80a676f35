//! Tokens are drawn by what a turn says. The draw itself is tested in `djinn-device`.

use super::*;
use crate::BadLogit;
use djinn_device::Draw;
use std::collections::BTreeMap;

const WARM: Sampling = Sampling {
    logit_bias: BTreeMap::new(),
    repetition_penalty: 1.0,
    frequency_penalty: 0.0,
    presence_penalty: 0.0,
    temperature: 1.0,
    top_k: 0,
    top_p: 1.0,
    min_p: 0.0,
    seed: 1,
};

fn choose(sampler: &mut Sampler, logits: &[f32], context: &[u32]) -> u32 {
    sampler.choose(logits, context).unwrap().token
}

#[test]
fn a_draw_is_what_the_turn_says() {
    let sampling = Sampling { temperature: 0.7, top_k: 5, top_p: 0.9, min_p: 0.1, seed: 1 << 40, ..WARM };
    let draw = Draw { temperature: 0.7, top_k: 5, top_p: 0.9, min_p: 0.1, seed: 1 << 40, ..Draw::GREEDY };
    let sampler = |top| Sampler::new(sampling.clone()).unwrap().with_logprobs(top).unwrap();
    assert_eq!(sampler(None).draw(12), Draw { position: 11, ..draw });
    assert_eq!(sampler(Some(0)).draw(1), Draw { position: 0, logprob: true, ..draw });
    assert_eq!(sampler(Some(7)).draw(1), Draw { position: 0, logprob: true, best: 7, ..draw });
    assert!(sampler(None).changes().is_empty());
    let penalties =
        Sampling { repetition_penalty: 1.5, frequency_penalty: -1.0, presence_penalty: 0.5, ..WARM };
    let Draw { repetition_penalty, frequency_penalty, presence_penalty, .. } =
        Sampler::new(penalties).unwrap().draw(1);
    assert_eq!([repetition_penalty, frequency_penalty, presence_penalty], [1.5, -1.0, 0.5]);
}

#[test]
fn a_constraint_is_asked_once_for_each_token() {
    let constraint = Listed { tokens: vec![33, 2], at: 0 };
    let mut sampler = Sampler::new(WARM).unwrap().with_constraint(Some(Box::new(constraint)));
    assert!(sampler.changes().allowed.is_none());
    for _ in 0..2 {
        assert!(sampler.prepare(&[1], 40));
        assert_eq!(sampler.changes().allowed, Some(&[0, 1 << 1][..]));
    }
    let drawn = |token| Drawn { token, logit: 0.0, logprob: 0.0, is_sound: true, best: Vec::new() };
    assert_eq!(sampler.take(Some(drawn(33)), 1).unwrap().token, 33);
    assert!(sampler.prepare(&[1, 33], 40));
    assert_eq!(sampler.changes().allowed, Some(&[1 << 2, 0][..]));
    assert_eq!(sampler.take(Some(drawn(2)), 2).unwrap().token, 2);
    assert!(!sampler.prepare(&[1, 33, 2], 40));
    let error = sampler.take(None, 3).unwrap_err();
    assert_eq!(error.to_string(), "the constraint on the output failed: the list is over");
}

#[test]
fn the_host_chooses_as_the_device() {
    let logits: Vec<f32> = (0..300).map(|token| ((token * 37) % 101) as f32 / 20.0).collect();
    let sampling = Sampling { top_p: 0.8, seed: 5, ..WARM };
    let mut sampler = Sampler::new(sampling).unwrap().with_logprobs(Some(0)).unwrap();
    for tokens in 1..200 {
        let drawn = choice::choose(&logits, &sampler.draw(tokens));
        let here = sampler.choose(&logits, &vec![0; tokens as usize]).unwrap();
        assert_eq!(here, sampler.take(Some(drawn), tokens).unwrap());
        assert_eq!(here.logprobs.unwrap().top, []);
    }
    let bad = Drawn { token: 4, logit: f32::INFINITY, logprob: 0.0, is_sound: false, best: Vec::new() };
    let error = sampler.take(Some(bad), 8).unwrap_err();
    let expected = BadLogit { token: 4, position: 7, logit: f32::INFINITY };
    assert_eq!(error, NoToken::Logits(expected));
}

#[test]
fn what_was_said_is_said_less_often() {
    let penalised = |repetition_penalty| Sampling { repetition_penalty, ..Sampling::default() };
    let choose = |sampling, logits: &[f32], context: &[u32]| {
        choose(&mut Sampler::new(sampling).unwrap(), logits, context)
    };
    // Once for each token, however often it came: 3 / 1.5 = 2 is above 1.9, and 3 / 1.5 / 1.5 is below.
    assert_eq!(choose(penalised(1.5), &[3.0, 1.9, 0.0], &[0, 0, 0]), 0);
    assert_eq!(choose(penalised(1.5), &[3.0, 2.1, 0.0], &[2, 0]), 1);
    // Negative logits are multiplied.
    assert_eq!(choose(penalised(1.5), &[-2.0, -2.9, -9.0], &[0]), 1);
    assert_eq!(choose(penalised(1.5), &[-2.0, -3.1, -9.0], &[0]), 0);
    // Below 1, repetition is asked for.
    assert_eq!(choose(penalised(0.5), &[3.0, 2.0, 0.0], &[1]), 1);
    // Numbers stay finite, and what was ruled out stays so.
    assert_eq!(choose(penalised(1e-30), &[1e30, 2e30], &[0]), 0);
    assert_eq!(choose(penalised(3.0), &[-2e38, -2.5e38], &[0, 1]), 0);
    assert_eq!(choose(penalised(0.5), &[f32::NEG_INFINITY, -1.0], &[0]), 1);
}

#[test]
fn a_context_is_taken_in_as_it_grows() {
    let sampling = Sampling { repetition_penalty: 1.3, ..WARM };
    let logits = [1.0, 1.5, -0.5, 0.2];
    let mut sampler = Sampler::new(sampling).unwrap();
    let mut context = vec![3];
    for _ in 0..50 {
        let mut fresh = Sampler { penalised: Penalised::default(), ..sampler.clone() };
        let token = choose(&mut sampler, &logits, &context);
        assert_eq!(choose(&mut fresh, &logits, &context), token);
        context.push(token);
    }
}

#[test]
fn a_seed_repeats_its_tokens() {
    let draw = |seed, from: usize| {
        let mut sampler = Sampler::new(Sampling { seed, ..WARM }).unwrap();
        let at = |tokens| choose(&mut sampler, &[0.1, 0.2, 0.3, 0.4], &vec![0; tokens]);
        (from..50).map(at).collect::<Vec<_>>()
    };
    assert_eq!(draw(7, 1), draw(7, 1));
    assert_ne!(draw(7, 1), draw(8, 1));
    // What was drawn before does not matter.
    assert_eq!(draw(7, 20), draw(7, 1)[19..]);
}

#[test]
fn a_bad_logit_is_an_error_however_tokens_are_chosen() {
    let penalised = Sampling { repetition_penalty: 2.0, ..WARM };
    for sampling in [Sampling::default(), WARM, Sampling { top_k: 1, ..WARM }, penalised] {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut sampler = Sampler::new(sampling.clone()).unwrap();
            let NoToken::Logits(error) = sampler.choose(&[1.0, bad, 2.0], &[1, 0, 2]).unwrap_err() else {
                panic!("there is no constraint")
            };
            assert_eq!((error.token, error.position), (1, 2));
            assert!(error.to_string().contains("use f32 weights"), "{error}");
        }
        // A biased logit that is no number is still found.
        let biased = Sampling { logit_bias: [(1, -100.0)].into(), ..sampling.clone() };
        assert!(Sampler::new(biased).unwrap().choose(&[1.0, f32::NAN, 2.0], &[0]).is_err());
        let none = [f32::NEG_INFINITY; 3];
        assert!(Sampler::new(sampling).unwrap().choose(&none, &[0]).is_err());
    }
}

#[test]
fn fields_that_mean_nothing_are_named() {
    let wrong = [
        ("temperature", Sampling { temperature: -0.1, ..WARM }),
        ("temperature", Sampling { temperature: f32::NAN, ..WARM }),
        ("temperature", Sampling { temperature: f32::INFINITY, ..WARM }),
        ("top_p", Sampling { top_p: 1.1, ..WARM }),
        ("top_p", Sampling { top_p: f32::NAN, ..WARM }),
        ("min_p", Sampling { min_p: -0.1, ..WARM }),
        ("min_p", Sampling { min_p: f32::NAN, ..WARM }),
        ("repetition_penalty", Sampling { repetition_penalty: 0.0, ..WARM }),
        ("repetition_penalty", Sampling { repetition_penalty: f32::INFINITY, ..WARM }),
        ("frequency_penalty", Sampling { frequency_penalty: 2.1, ..WARM }),
        ("frequency_penalty", Sampling { frequency_penalty: f32::NAN, ..WARM }),
        ("presence_penalty", Sampling { presence_penalty: -2.1, ..WARM }),
        ("a value of logit_bias", Sampling { logit_bias: [(3, 100.5)].into(), ..WARM }),
        ("a value of logit_bias", Sampling { logit_bias: [(3, f32::NAN)].into(), ..WARM }),
        ("the length of logit_bias", Sampling { logit_bias: (0..1025).map(|t| (t, 1.0)).collect(), ..WARM }),
    ];
    for (field, sampling) in wrong {
        let error = Sampler::new(sampling).expect_err(field);
        assert!(error.to_string().starts_with(&format!("{field} is ")), "{error}");
    }
}

#[test]
fn the_most_that_a_field_may_be_is_taken() {
    let logit_bias = (0..Sampling::MAX_BIASES as u32).map(|token| (token, -100.0)).collect();
    let most = Sampling { logit_bias, frequency_penalty: 2.0, presence_penalty: -2.0, ..WARM };
    assert!(Sampler::new(most).unwrap().with_logprobs(Some(20)).is_ok());
    let error = Sampler::new(WARM).unwrap().with_logprobs(Some(21)).unwrap_err();
    assert_eq!(error.to_string(), "logprobs is 21; it must be between 0 and 20");
}

#[test]
fn a_bias_moves_single_tokens() {
    let biased = |logit_bias| Sampling { logit_bias, ..Sampling::default() };
    let logits = [3.0, 2.0, f32::NEG_INFINITY, -100.0];
    let choose = |sampling| choose(&mut Sampler::new(sampling).unwrap(), &logits, &[0]);
    assert_eq!(choose(biased([(1, 0.9)].into())), 0);
    assert_eq!(choose(biased([(1, 1.1)].into())), 1);
    assert_eq!(choose(biased([(0, -100.0), (1, -100.0)].into())), 0);
    assert_eq!(choose(biased([(0, -100.0), (1, -100.0), (3, 100.0)].into())), 3);
    // What the model ruled out stays so.
    assert_eq!(choose(biased([(2, 100.0)].into())), 0);
    // The bias comes before the repetition penalty: 3 / 1.5 = 2 is less than 2.1, and (3 + 1) / 1.5 is more.
    let both = Sampling { repetition_penalty: 1.5, ..biased([(0, 1.0), (1, 0.1)].into()) };
    assert_eq!(choose(both), 0);
}

#[test]
fn generated_tokens_are_penalised_by_their_number_and_prompts_are_not() {
    let run = |sampling: Sampling, logits: &[f32]| -> Vec<u32> {
        let mut sampler = Sampler::new(sampling).unwrap();
        let mut context = vec![0, 0, 0];
        for _ in 0..6 {
            let token = choose(&mut sampler, logits, &context);
            context.push(token);
        }
        context.split_off(3)
    };
    // Token 0 loses 1 each time: 3, 2, 1, 0 beside 1.5 and, once that was taken, 0.5.
    let frequency = Sampling { frequency_penalty: 1.0, ..Sampling::default() };
    assert_eq!(run(frequency, &[3.0, 1.5, -9.0]), [0, 0, 1, 0, 1, 0]);
    // Once for each token, however often it came.
    let presence = Sampling { presence_penalty: 1.0, ..Sampling::default() };
    assert_eq!(run(presence.clone(), &[3.0, 1.5, -9.0]), [0; 6]);
    assert_eq!(run(presence, &[3.0, 2.5, -9.0]), [0, 1, 0, 0, 0, 0]);
    // Below 0 repetition is asked for.
    let more = Sampling { frequency_penalty: -2.0, seed: 4, ..WARM };
    let tokens = run(more, &[0.0, 0.0, 0.0]);
    assert!(tokens[3..].iter().all(|token| *token == tokens[5]), "{tokens:?}");
}

#[test]
fn logprobs_are_those_of_the_model() {
    let logits = [1.0, 3.0, f32::NEG_INFINITY, 3.0, 0.0];
    let total: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
    let expected = |token: usize| (f64::from(logits[token]) - total.ln()) as f32;
    // Whatever moves the choice, it does not move the figures.
    let sampling = Sampling { logit_bias: [(4, 50.0)].into(), temperature: 0.3, ..WARM };
    for top in [0, 1, 3, 20] {
        let mut sampler = Sampler::new(sampling.clone()).unwrap().with_logprobs(Some(top)).unwrap();
        let ChosenToken { token, logprobs } = sampler.choose(&logits, &[1]).unwrap();
        let found = logprobs.expect("asked for");
        assert_eq!(token, 4);
        assert!((found.chosen - expected(4)).abs() < 1e-5, "{found:?}");
        // Equals come in the order of their ids, and what is impossible is left out.
        let tokens: Vec<u32> = found.top.iter().map(|&(token, _)| token).collect();
        assert_eq!(tokens, [1, 3, 0, 4][..usize::from(top).min(4)]);
        for (token, logprob) in found.top {
            assert!((logprob - expected(token as usize)).abs() < 1e-5, "{token}: {logprob}");
        }
    }
    assert_eq!(Sampler::new(WARM).unwrap().choose(&logits, &[1]).unwrap().logprobs, None);
    // Large numbers are no trouble.
    let mut sampler = Sampler::new(Sampling::default()).unwrap().with_logprobs(Some(2)).unwrap();
    let found = sampler.choose(&[f32::MAX, f32::MIN], &[0]).unwrap().logprobs.expect("asked for");
    assert_eq!((found.chosen, found.top[0]), (0.0, (0, 0.0)));
}

/// Allows the tokens of a list, one after the other.
#[derive(Clone, Debug)]
struct Listed {
    tokens: Vec<u32>,
    at: usize,
}

impl Constraint for Listed {
    fn allow(&mut self, allowed: &mut TokenMask) -> Result<(), ConstraintError> {
        match self.tokens.get(self.at) {
            Some(&token) if (token as usize) < allowed.vocab() => allowed.insert(token),
            Some(_) => {}
            None => return Err(ConstraintError("the list is over".to_owned())),
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        assert_eq!(token, self.tokens[self.at], "only allowed tokens are chosen");
        self.at += 1;
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.at == self.tokens.len()
    }

    fn boxed_clone(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

#[test]
fn a_constraint_rules_tokens_out_before_all_else() {
    let logits: Vec<f32> = (0..70).map(|token| token as f32).collect();
    let tokens = vec![5, 69, 0, 31, 32, 5];
    let against = Sampling { logit_bias: [(5, -100.0), (6, 100.0)].into(), top_k: 1, ..WARM };
    let penalised = Sampling { frequency_penalty: 2.0, repetition_penalty: 1.5, ..WARM };
    for sampling in [Sampling::default(), WARM, against, penalised, Sampling { min_p: 1.0, ..WARM }] {
        let constraint = Listed { tokens: tokens.clone(), at: 0 };
        let mut sampler = Sampler::new(sampling).unwrap().with_constraint(Some(Box::new(constraint)));
        let mut context = vec![1];
        for &token in &tokens {
            assert!(!sampler.is_complete());
            // A copy goes its own way.
            let mut copy = sampler.clone();
            assert_eq!(choose(&mut copy, &logits, &context), token);
            assert_eq!(choose(&mut sampler, &logits, &context), token);
            context.push(token);
        }
        assert!(sampler.is_complete());
        let error = sampler.choose(&logits, &context).unwrap_err();
        assert_eq!(error.to_string(), "the constraint on the output failed: the list is over");
    }
    let mut sampler = Sampler::new(WARM).unwrap();
    sampler = sampler.with_constraint(Some(Box::new(Listed { tokens: vec![70], at: 0 })));
    assert!(sampler.choose(&logits, &[1]).unwrap_err().to_string().contains("allows no token"));
    // A bad logit is found although its token is ruled out.
    sampler = sampler.with_constraint(Some(Box::new(Listed { tokens: vec![3], at: 0 })));
    assert!(matches!(sampler.choose(&[0.0, f32::NAN, 0.0, 0.0], &[1]), Err(NoToken::Logits(_))));
}

#[test]
fn a_mask_keeps_within_its_vocabulary() {
    for vocab in [1, 31, 32, 33, 64, 100] {
        let mut mask = TokenMask::new(vocab);
        assert!(mask.is_empty());
        mask.insert_words(&[u32::MAX; 9]);
        let count = (0..400).filter(|&token| mask.contains(token)).count();
        assert_eq!(count, vocab);
        assert_eq!(mask.words().iter().map(|word| word.count_ones() as usize).sum::<usize>(), vocab);
        let mut one = TokenMask::new(vocab);
        one.insert(vocab as u32 - 1);
        assert!((0..400).all(|token| one.contains(token) == (token as usize == vocab - 1)));
    }
}
