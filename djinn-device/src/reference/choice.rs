//! The reference of the choice of tokens.

use super::{Reader, Written};
use crate::args::Choose;
use crate::{Draw, Drawn};

pub(super) fn choose(op: &Choose, memory: Reader<'_>) -> Vec<Written> {
    let (logits, draws) = (memory.floats(op.logits), memory.words(op.draws));
    let rows = logits.chunks_exact(op.vocab as usize).zip(draws.as_chunks::<{ Draw::WORDS }>().0);
    let row = |(r, (logits, &draw)): (usize, (&[f32], &[u32; Draw::WORDS]))| {
        let words = Draw::from_words(draw).map_or([0; Drawn::WORDS], |draw| drawn(logits, &draw).words());
        let row = op.drawn.slice((r * Drawn::WORDS * 4) as u64, Drawn::WORDS as u64 * 4);
        let logprob = f32::from_bits(words[3]);
        [Written::words(row.slice(0, 12), &words[..3]), Written::floats(row, 3, &[logprob])]
    };
    rows.enumerate().flat_map(row).collect()
}

/// What a row gives.
pub(crate) fn drawn(logits: &[f32], draw: &Draw) -> Drawn {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let bad = logits.iter().position(|&l| l.is_nan() || !most.is_finite() && l == most);
    if let Some(bad) = bad {
        return Drawn::bad(bad, logits[bad]);
    }
    let token = match scores(logits, draw, 0.0).first() {
        Some(&(token, _)) => token,
        None => logits.iter().position(|&logit| logit == most).expect("one is the greatest"),
    };
    let normal =
        f64::from(most) + total(logits.iter().map(|&logit| (f64::from(logit) - f64::from(most)).exp())).ln();
    let logprob = if draw.logprob { (f64::from(logits[token]) - normal) as f32 } else { 0.0 };
    Drawn { token: token as u32, logit: logits[token], logprob, is_sound: true }
}

/// Whether the result stays the same where sums are off by a 50,000th, weights by a 10,000th, and scores by 0.0002: as
/// much as those of devices that compute in f32 may be.
pub(crate) fn is_clear(logits: &[f32], draw: &Draw) -> bool {
    let all = [-1.0, 0.0, 1.0].map(|off| scores(logits, draw, off));
    let [_, scores, _] = &all;
    let apart = scores.len() < 2 || scores[0].1 - scores[1].1 > 2e-4;
    apart && all.iter().all(|other| other.first().map(|best| best.0) == scores.first().map(|best| best.0))
}

fn total(weights: impl Iterator<Item = f64>) -> f64 {
    weights.sum()
}

/// The kept tokens with their scores, the winner first; none where the best token is taken. Filters are `off` by as much
/// as [`is_clear`] says.
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
