//! Tokens are drawn as transformers would, whatever the fields.

use super::*;

const WARM: Sampling =
    Sampling { repetition_penalty: 1.0, temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 1 };

fn frequencies(sampling: Sampling, logits: &[f32]) -> Vec<f64> {
    let mut sampler = Sampler::new(sampling).unwrap();
    let mut counts = vec![0.0; logits.len()];
    for _ in 0..40_000 {
        counts[sampler.choose(logits, &[]).unwrap() as usize] += 1.0 / 40_000.0;
    }
    counts
}

/// Which tokens the sampling keeps after `context`.
fn kept(sampling: Sampling, logits: &[f32], context: &[u32]) -> Vec<u32> {
    let mut penalty = Penalty::new(sampling.repetition_penalty);
    let logits = penalty.apply(logits, context);
    keep(&sampling, logits, best(logits, 0).unwrap()).into_iter().map(|(token, _)| token).collect()
}

#[test]
fn frequencies_follow_the_softmax() {
    let logits = [1.0, 0.0, -1.0, f32::NEG_INFINITY];
    let weights: Vec<f64> = [2.0f64, 0.0, -2.0].iter().map(|x| x.exp()).collect();
    let total: f64 = weights.iter().sum();
    let found = frequencies(Sampling { temperature: 0.5, seed: 3, ..WARM }, &logits);
    for (f, w) in found.iter().zip(&weights) {
        assert!((f - w / total).abs() < 0.01, "{found:?}");
    }
    assert_eq!(found[3], 0.0);
}

#[test]
fn filters_cut_the_tail() {
    // Probabilities are 0.64, 0.24, 0.09, 0.03.
    let logits = [2.0, 3.0, 0.0, 1.0];
    let keeps = |sampling| kept(sampling, &logits, &[]);
    assert_eq!(keeps(WARM), [1, 0, 3, 2]);
    assert_eq!(keeps(Sampling { top_k: 2, ..WARM }), [1, 0]);
    assert_eq!(keeps(Sampling { top_p: 0.8, ..WARM }), [1, 0]);
    assert_eq!(keeps(Sampling { top_p: 0.0, ..WARM }), [1]);
    // The ratios to the best are 1, 0.37, 0.14, 0.05.
    assert_eq!(keeps(Sampling { min_p: 0.1, ..WARM }), [1, 0, 3]);
    assert_eq!(keeps(Sampling { min_p: 0.4, ..WARM }), [1]);
    assert_eq!(keeps(Sampling { min_p: 1.0, ..WARM }), [1]);
    // After the temperature: 1, 0.61, 0.37, 0.22.
    assert_eq!(keeps(Sampling { min_p: 0.4, temperature: 2.0, ..WARM }), [1, 0]);
    // Of two tokens the best has 0.73: top-p looks at what top-k kept.
    assert_eq!(keeps(Sampling { top_p: 0.7, ..WARM }), [1, 0]);
    assert_eq!(keeps(Sampling { top_p: 0.7, top_k: 2, ..WARM }), [1]);
}

#[test]
fn a_token_without_probability_is_never_drawn() {
    for logits in [[0.0, f32::NEG_INFINITY], [0.0, -1e30]] {
        assert_eq!(kept(WARM, &logits, &[]), [0]);
        assert_eq!(draw(&keep(&WARM, &logits, Best { token: 0, logit: 0.0 }), 1.0), 0);
    }
}

#[test]
fn what_was_said_is_said_less_often() {
    let penalised = |repetition_penalty| Sampling { repetition_penalty, ..Sampling::default() };
    let choose = |sampling, logits: &[f32], context: &[u32]| {
        Sampler::new(sampling).unwrap().choose(logits, context).unwrap()
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
        let mut fresh = Sampler { penalty: Penalty::new(1.3), ..sampler.clone() };
        let token = sampler.choose(&logits, &context).unwrap();
        assert_eq!(fresh.choose(&logits, &context).unwrap(), token);
        context.push(token);
    }
}

#[test]
fn a_seed_repeats_its_tokens() {
    let draw = |seed| {
        let mut sampler = Sampler::new(Sampling { seed, ..WARM }).unwrap();
        (0..50).map(|_| sampler.choose(&[0.1, 0.2, 0.3, 0.4], &[]).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(draw(7), draw(7));
    assert_ne!(draw(7), draw(8));
}

#[test]
fn a_bad_logit_is_an_error_however_tokens_are_chosen() {
    let penalised = Sampling { repetition_penalty: 2.0, ..WARM };
    for sampling in [Sampling::default(), WARM, Sampling { top_k: 1, ..WARM }, penalised] {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut sampler = Sampler::new(sampling).unwrap();
            let error = sampler.choose(&[1.0, bad, 2.0], &[1, 0, 2]).unwrap_err();
            assert_eq!((error.token, error.position), (1, 2));
            assert!(error.to_string().contains("use f32 weights"), "{error}");
        }
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
    ];
    for (field, sampling) in wrong {
        let error = Sampler::new(sampling).expect_err(field);
        assert!(error.to_string().starts_with(&format!("{field} is ")), "{error}");
    }
}
