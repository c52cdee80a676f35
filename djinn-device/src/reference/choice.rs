//! The reference of the choice of tokens.

use super::{Reader, Written};
use crate::args::Choose;
use crate::{Change, Changes, Draw, Drawn};
use std::collections::BTreeMap;

pub(super) fn choose(op: &Choose, memory: Reader<'_>) -> Vec<Written> {
    let (logits, draws) = (memory.floats(op.logits), memory.words(op.draws));
    let (changes, earlier) = (memory.words(op.changes), memory.words(op.earlier));
    let rows = logits.chunks_exact(op.vocab as usize).zip(draws.as_chunks::<{ Draw::WORDS }>().0);
    let row = |(r, (logits, words)): (usize, (&[f32], &[u32; Draw::WORDS]))| {
        let mut row = [0; Drawn::WORDS];
        let mut best = 0;
        if let Some(draw) = Draw::from_words(*words) {
            let changes = Changes::find(words, logits.len(), &changes, &earlier);
            let drawn = drawn(logits, &draw, &changes);
            drawn.write(&mut row);
            best = drawn.best.len();
        }
        let span = op.drawn.slice((r * Drawn::WORDS * 4) as u64, Drawn::WORDS as u64 * 4);
        let word = |at: usize| Written::words(span.slice(at as u64 * 4, 4), &row[at..at + 1]);
        let float = |at: usize| Written::floats(span, at, &[f32::from_bits(row[at])]);
        let pairs = (0..best).flat_map(|i| [word(4 + 2 * i), float(5 + 2 * i)]);
        [word(0), word(1), word(2), float(3)].into_iter().chain(pairs).collect::<Vec<_>>()
    };
    rows.enumerate().flat_map(row).collect()
}

/// A row's logits after its changes, token by token.
pub(crate) fn changed(logits: &[f32], draw: &Draw, changes: &Changes<'_>) -> Vec<f32> {
    let tokens = changes.tokens.iter().map(|&words| Change::from_words(words));
    let known: BTreeMap<usize, Change> = tokens.map(|change| (change.token as usize, change)).collect();
    let of = |token: usize, logit: f32| {
        let is_allowed = |words: &[u32]| words[token / 32] >> (token % 32) & 1 != 0;
        if !logit.is_finite() || !changes.allowed.is_none_or(is_allowed) {
            return if logit.is_finite() { f32::NEG_INFINITY } else { logit };
        }
        let (bias, seen, count) =
            known.get(&token).map_or((0.0, false, 0), |it| (it.bias, it.seen, it.count));
        let is_latest = changes.latest.is_some_and(|latest| latest as usize == token);
        let (seen, count) = (seen || is_latest, count + u32::from(is_latest));
        let mut x = (logit + bias).clamp(f32::MIN, f32::MAX);
        x = match seen {
            true if x < 0.0 => x * draw.repetition_penalty,
            true => x / draw.repetition_penalty,
            false => x,
        };
        x = x.clamp(f32::MIN, f32::MAX);
        let penalty = draw.frequency_penalty * count as f32 + draw.presence_penalty;
        if count > 0 { (x - penalty).clamp(f32::MIN, f32::MAX) } else { x }
    };
    logits.iter().enumerate().map(|(token, &logit)| of(token, logit)).collect()
}

/// The result for a row.
pub(crate) fn drawn(logits: &[f32], draw: &Draw, changes: &Changes<'_>) -> Drawn {
    let greatest = |logits: &[f32]| logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let most = greatest(logits);
    let changed = changed(logits, draw, changes);
    for logits in [logits, &changed] {
        let most = greatest(logits);
        let bad = logits.iter().position(|&l| l.is_nan() || !most.is_finite() && l == most);
        if let Some(bad) = bad {
            return Drawn::bad(bad, logits[bad]);
        }
    }
    let token = match scores(&changed, draw, 0.0).first() {
        Some(&(token, _)) => token,
        None => {
            let most = greatest(&changed);
            changed.iter().position(|&logit| logit == most).expect("one is the greatest")
        }
    };
    // Relative to the greatest logit, beside which the logarithm of a sum may vanish.
    let below = |logit: f32| f64::from(logit) - f64::from(most);
    let log_total = total(logits.iter().map(|&logit| below(logit).exp())).ln();
    let logprob = |token: usize| (below(logits[token]) - log_total) as f32;
    let mut best: Vec<usize> = (0..logits.len()).filter(|&token| logits[token].is_finite()).collect();
    best.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).expect("no logit is NaN").then(a.cmp(&b)));
    best.truncate(draw.best as usize);
    Drawn {
        token: token as u32,
        logit: logits[token],
        logprob: if draw.logprob { logprob(token) } else { 0.0 },
        is_sound: true,
        best: best.into_iter().map(|token| (token as u32, logprob(token))).collect(),
    }
}

/// Whether the result is the same if sums are off by a 50,000th, weights by a 10,000th, and scores by 0.0002: the most
/// by which devices that compute in f32 may be off.
pub(crate) fn is_clear(logits: &[f32], draw: &Draw) -> bool {
    let all = [-1.0, 0.0, 1.0].map(|off| scores(logits, draw, off));
    let [_, scores, _] = &all;
    let apart = scores.len() < 2 || scores[0].1 - scores[1].1 > 2e-4;
    apart && all.iter().all(|other| other.first().map(|best| best.0) == scores.first().map(|best| best.0))
}

fn total(weights: impl Iterator<Item = f64>) -> f64 {
    weights.sum()
}

/// The kept tokens with their scores, best first; empty for greedy choices. Filters are `off` as [`is_clear`] says.
fn scores(logits: &[f32], draw: &Draw, off: f64) -> Vec<(usize, f64)> {
    if draw.is_greedy() {
        return Vec::new();
    }
    let mut kept: Vec<usize> = (0..logits.len()).collect();
    // Stable: the lower token first among equals.
    kept.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).expect("no logit is NaN"));
    let best = f64::from(logits[kept[0]]);
    let log_weight = |token: usize| (f64::from(logits[token]) - best) / f64::from(draw.temperature);
    if draw.top_k > 0 {
        kept.truncate(draw.top_k as usize);
    }
    if draw.top_p < 1.0 {
        let target = total(kept.iter().map(|&token| log_weight(token).exp()))
            * (f64::from(draw.top_p) * (1.0 + off / 50_000.0));
        let mut sum = 0.0;
        let reached = kept.iter().position(|&token| {
            sum += log_weight(token).exp();
            sum >= target
        });
        kept.truncate(reached.map_or(kept.len(), |last| last + 1));
    }
    // The best token is always kept.
    let least = (f64::from(draw.min_p) * (1.0 + off / 10_000.0)).min(1.0);
    kept.retain(|&token| log_weight(token).exp() >= least && log_weight(token) > f64::NEG_INFINITY);
    let score = |token: usize| {
        let uniform = Draw::uniform(draw.bits(token as u32 / 4)[token % 4]);
        (token, log_weight(token) - (-(-f64::from(uniform)).ln_1p()).ln())
    };
    let mut scores: Vec<(usize, f64)> = kept.into_iter().map(score).collect();
    scores.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    scores
}
