//! The search against the reference, and the random numbers against published ones.

use super::*;
use crate::args::Checksum;
use crate::reference::choice::{changed, drawn, is_clear};
use proptest::prelude::*;

const WARM: Draw = Draw { temperature: 1.0, seed: 1, ..Draw::GREEDY };

#[test]
fn random_numbers_are_those_of_philox() {
    // The known answers of Random123.
    let ones = [u32::MAX; 4];
    let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
    assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    assert_eq!(philox(ones, [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    assert_eq!(philox(pi, [0xa409_3822, 0x299f_31d0]), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    // Every setting counts.
    let all = [(1, 0, 0), (1 << 40, 0, 0), (0, 1, 0), (0, 0, 1)];
    let bits = all.map(|(seed, position, group)| Draw { seed, position, ..WARM }.bits(group));
    assert!((1..4).all(|i| !bits[..i].contains(&bits[i])));
}

#[test]
fn random_numbers_keep_within_the_reach() {
    for bits in [0, 1, 1 << 31, u32::MAX - 1, u32::MAX] {
        let uniform = Draw::uniform(bits);
        assert!(0.0 < uniform && uniform < 1.0, "{bits}: {uniform}");
        let gumbel = -(-(-f64::from(uniform)).ln_1p()).ln();
        assert!((-3.2..22.9).contains(&gumbel), "{bits}: {gumbel}");
    }
}

#[test]
fn words_say_what_they_were_made_of() {
    let penalised = Draw { repetition_penalty: 1.5, frequency_penalty: -0.5, presence_penalty: 0.75, ..WARM };
    let draw = Draw { top_k: 7, min_p: 0.25, position: 9, seed: 3 << 33 | 5, best: 20, ..penalised };
    let draw = Draw { logprob: true, ..draw };
    assert_eq!(Draw::from_words(draw.words()), Some(draw));
    assert_eq!(Draw::from_words([0; Draw::WORDS]), None);
    for (is_sound, best) in [(true, 20), (true, 3), (false, 0)] {
        let best = (0..best).map(|i| (i * 7, -1.0 - i as f32)).collect();
        let one = Drawn { token: 4, logit: -1.5, logprob: -0.25, is_sound, best };
        let mut row = [u32::MAX; Drawn::WORDS];
        one.write(&mut row);
        assert_eq!(Drawn::read(&row), Some(one));
    }
    assert_eq!(Drawn::read(&[0; Drawn::WORDS]), None);
    let change = Change { token: 70_000, bias: -1.5, count: 5, seen: true };
    for change in [change, Change { count: u32::MAX >> 1, seen: false, ..change }] {
        assert_eq!(Change::from_words(change.words()), change);
    }
}

#[test]
fn rows_find_their_own_changes() {
    let tokens = |from: u32| (from..from + 3).map(|token| [token, 1, 2, 0]).collect::<Vec<_>>();
    let (mut all, mut draws) = (Vec::new(), [WARM.words(); 4]);
    let (first, last, bits) = (tokens(10), tokens(20), [1, 2, 3]);
    let latest = [None, None, Some(7), None];
    let changes = [
        Changes { tokens: &first, allowed: Some(&bits), latest: None },
        Changes { tokens: &[], allowed: None, latest: None },
        Changes { tokens: &[], allowed: None, latest: Some(7) },
        Changes { tokens: &last, allowed: None, latest: None },
    ];
    for ((changes, draw), latest) in changes.iter().zip(&mut draws).zip(latest) {
        changes.put(draw, &mut all);
        if latest.is_some() {
            Changes::put_latest(draw, 1);
        }
        assert_eq!(all.len() % 4, 0, "rows begin at whole changes");
        assert!(all.len() as u64 <= Changes::most_words(6, 96));
    }
    for (changes, draw) in changes.iter().zip(&draws) {
        assert_eq!(Changes::find(draw, 96, &all, &[5, 7]), *changes);
        assert_eq!(Draw::from_words(*draw), Some(WARM));
    }
}

#[test]
fn a_latest_token_counts_once_more() {
    let draw = Draw { repetition_penalty: 2.0, frequency_penalty: 1.0, presence_penalty: 0.5, ..WARM };
    let known = [Change { token: 1, bias: 1.0, count: 2, seen: false }.words()];
    let after = |tokens, latest| {
        let mut logits = [8.0, 8.0, f32::NEG_INFINITY];
        Changes { tokens, allowed: None, latest }.apply(&draw, &mut logits);
        logits
    };
    let none = f32::NEG_INFINITY;
    assert_eq!(after(&known, None), [8.0, 9.0 - 2.5, none]);
    assert_eq!(after(&known, Some(1)), [8.0, 4.5 - 3.5, none]);
    assert_eq!(after(&known, Some(0)), [4.0 - 1.5, 9.0 - 2.5, none]);
    assert_eq!(after(&[], Some(2)), [8.0, 8.0, none]);
    // No device may be harmed by a token that the vocabulary lacks.
    assert_eq!(after(&[], Some(3)), [8.0, 8.0, none]);
}

#[test]
fn tokens_are_as_frequent_as_they_are_probable() {
    const DRAWS: u32 = 40_000;
    // Weights at a temperature of 0.5; at 32 times of it all but a few tokens come from the tail.
    let logits: Vec<f32> =
        (0..40).map(|i| if i == 7 { f32::NEG_INFINITY } else { (i % 5) as f32 * -0.7 }).collect();
    for temperature in [0.5, 16.0] {
        let weights: Vec<f64> =
            logits.iter().map(|&l| (f64::from(l) / f64::from(temperature)).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut counts = vec![0_u32; logits.len()];
        for position in 0..DRAWS {
            counts[choose(&logits, &Draw { temperature, position, ..WARM }).token as usize] += 1;
        }
        // Pearson's statistic is above 75 for one of 2000 sets of seeds; this is one set.
        let of = |(&count, weight): (&u32, &f64)| {
            let expected = weight / total * f64::from(DRAWS);
            if expected == 0.0 { f64::from(count) } else { (f64::from(count) - expected).powi(2) / expected }
        };
        let statistic: f64 = counts.iter().zip(&weights).map(of).sum();
        assert!(statistic < 75.0, "{statistic} at {temperature}: {counts:?}");
    }
}

#[test]
fn filters_keep_what_they_say() {
    // Probabilities are 0.64, 0.24, 0.09, 0.03.
    let logits = [2.0, 3.0, 0.0, 1.0];
    let kept = |draw: Draw| {
        let tokens = (0..2000).map(|position| choose(&logits, &Draw { position, ..draw }).token);
        let mut tokens: Vec<u32> = tokens.collect();
        tokens.sort_unstable();
        tokens.dedup();
        tokens
    };
    assert_eq!(kept(WARM), [0, 1, 2, 3]);
    assert_eq!(kept(Draw { temperature: 0.0, ..WARM }), [1]);
    assert_eq!(kept(Draw { top_k: 1, ..WARM }), [1]);
    assert_eq!(kept(Draw { top_k: 2, ..WARM }), [0, 1]);
    assert_eq!(kept(Draw { top_p: 0.8, ..WARM }), [0, 1]);
    assert_eq!(kept(Draw { top_p: 0.0, ..WARM }), [1]);
    // The ratios to the best are 1, 0.37, 0.14, 0.05.
    assert_eq!(kept(Draw { min_p: 0.1, ..WARM }), [0, 1, 3]);
    assert_eq!(kept(Draw { min_p: 0.4, ..WARM }), [1]);
    assert_eq!(kept(Draw { min_p: 1.0, ..WARM }), [1]);
    // After the temperature: 1, 0.61, 0.37, 0.22.
    assert_eq!(kept(Draw { min_p: 0.4, temperature: 2.0, ..WARM }), [0, 1]);
    // Of two tokens the best has 0.73: top-p looks at what top-k kept.
    assert_eq!(kept(Draw { top_p: 0.7, ..WARM }), [0, 1]);
    assert_eq!(kept(Draw { top_p: 0.7, top_k: 2, ..WARM }), [1]);
}

/// Lengths around those of the lanes and blocks.
const LENGTHS: [usize; 9] = [1, 2, 15, 16, 17, 100, 1024, 1025, 2100];

#[test]
fn the_best_is_found_wherever_it_is() {
    for len in LENGTHS {
        for at in 0..len {
            let mut logits = vec![-1.5; len];
            logits[at] = 0.5;
            logits[(at + 1) % len] = if len > 1 { f32::NEG_INFINITY } else { 0.5 };
            assert_eq!(greatest(&logits), Ok((at, 0.5)));
        }
    }
    assert_eq!(greatest(&[2.0; 40]), Ok((0, 2.0)), "the first of equals");
    assert_eq!(greatest(&[f32::NEG_INFINITY, f32::MIN]), Ok((1, f32::MIN)));
}

#[test]
fn one_bad_logit_is_enough_wherever_it_is() {
    for len in LENGTHS {
        for at in 0..len {
            for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
                let mut logits = vec![1.5; len];
                logits[at] = bad;
                let found = choose(&logits, &Draw { logprob: true, ..WARM });
                assert_eq!((found.token, found.is_sound, found.logprob), (at as u32, false, 0.0));
                assert_eq!(found.logit.is_nan(), bad.is_nan());
            }
        }
        let none = choose(&vec![f32::NEG_INFINITY; len], &Draw::GREEDY);
        assert_eq!(none, Drawn::bad(0, f32::NEG_INFINITY));
    }
}

#[test]
fn temperatures_may_be_extreme() {
    let logits = [f32::MAX, 1.0, f32::NEG_INFINITY, f32::MIN, f32::MAX];
    for temperature in [f32::MIN_POSITIVE / 4.0, 1e-30, 1.0, 1e30, f32::MAX] {
        for (top_k, top_p) in [(0, 1.0), (4, 1.0), (0, 0.9), (3, 0.9)] {
            for position in 0..20 {
                let draw = Draw { temperature, top_k, top_p, position, ..WARM };
                let found = choose(&logits, &draw);
                assert!(found.is_sound && found.token != 2, "{draw:?}: {found:?}");
                assert!(temperature > 1e30 || [0, 4].contains(&found.token), "{draw:?}: {found:?}");
            }
        }
    }
}

proptest! {
    #[test]
    fn the_search_finds_what_the_reference_does(
        len in prop_oneof![1usize..70, 1000usize..2100], seed: u64, steps in prop_oneof![Just(2.0_f32), Just(1e6)],
        spread in 0.1_f32..30.0, temperature in prop_oneof![Just(0.0_f32), 0.05_f32..3.0],
        top_k in prop_oneof![Just(0_u32), 1_u32..80], top_p in prop_oneof![Just(1.0_f32), 0.0_f32..1.0],
        min_p in prop_oneof![Just(0.0_f32), 0.0_f32..1.0], ruled_out in 0usize..3, best in 0_u32..21,
        penalties in prop_oneof![Just([1.0_f32, 0.0, 0.0]), [0.2_f32..3.0, -2.0_f32..2.0, -2.0_f32..2.0]],
        few in prop_oneof![Just(usize::MAX), 1usize..20], allowed in prop_oneof![Just(1usize), 2usize..5],
        latest in prop_oneof![Just(None), (0_u32..3000).prop_map(Some)],
    ) {
        // Few steps make many equal logits.
        let random = |i: usize| (Checksum::mix(seed ^ Checksum::mix(i as u64)) >> 40) as f32 / (1 << 24) as f32;
        let logits: Vec<f32> = (0..len).map(|i| match i % 5 {
            at if i > 4 && at < ruled_out => f32::NEG_INFINITY,
            _ => ((random(i) + random(i + len) - 1.0) * steps).round() / steps * spread,
        }).collect();
        let [repetition_penalty, frequency_penalty, presence_penalty] = penalties;
        let filters = Draw { temperature, top_k, top_p, min_p, seed, position: seed as u32 % 1000, ..WARM };
        let draw =
            Draw { repetition_penalty, frequency_penalty, presence_penalty, best, logprob: true, ..filters };
        let change = |token: usize| {
            let (bias, count) = (random(token + 9) * 4.0 - 2.0, token as u32 % 3);
            Change { token: token as u32, bias, count, seen: token.is_multiple_of(2) }.words()
        };
        let tokens: Vec<_> = (0..len).step_by(few.min(len)).take(if few > len { 0 } else { len }).map(change).collect();
        let mut bits = vec![0; len.div_ceil(32)];
        (0..len).step_by(allowed).for_each(|token| bits[token / 32] |= 1 << (token % 32));
        let allowed = (allowed > 1).then_some(&*bits);
        let changes = Changes { tokens: &tokens, allowed, latest };
        if is_clear(&changed(&logits, &draw, &changes), &draw) {
            let found = choose_changed(&logits, &draw, &changes);
            let expected = drawn(&logits, &draw, &changes);
            prop_assert_eq!((found.token, found.logit), (expected.token, expected.logit));
            let near = |a: f32, b: f32| (a - b).abs() < 1e-5 * (1.0 + b.abs());
            prop_assert!(near(found.logprob, expected.logprob));
            prop_assert_eq!(found.best.len(), expected.best.len());
            for (found, expected) in found.best.iter().zip(&expected.best) {
                prop_assert!(found.0 == expected.0 && near(found.1, expected.1));
            }
        }
    }
}
