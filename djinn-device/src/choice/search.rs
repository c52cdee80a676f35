//! The search on a CPU, in loops that the compiler vectorises. Every sum has one order.

use super::{Changes, Draw, Drawn};
use std::cmp::Ordering;

/// A row is searched by blocks of this many logits: maxima and sums of blocks are vectorised.
const BLOCK: usize = 1024;
/// Sums and maxima that are formed side by side.
const LANES: usize = 16;

/// Chooses a token from a row of logits, which nothing changes.
///
/// # Panics
/// If there are no logits.
#[inline(always)]
pub fn choose(logits: &[f32], draw: &Draw) -> Drawn {
    match greatest(logits) {
        Ok(best) => drawn(logits, draw, best, search(logits, draw, best)),
        Err((token, logit)) => Drawn::bad(token, logit),
    }
}

/// Chooses a token from a row of logits after they were changed.
///
/// # Panics
/// If there are no logits.
#[inline(always)]
pub fn choose_changed(logits: &[f32], draw: &Draw, changes: &Changes<'_>) -> Drawn {
    if changes.is_empty() {
        return choose(logits, draw);
    }
    let best = match greatest(logits) {
        Ok(best) => best,
        Err((token, logit)) => return Drawn::bad(token, logit),
    };
    let mut changed = logits.to_vec();
    changes.apply(draw, &mut changed);
    match greatest(&changed) {
        Ok(after) => drawn(logits, draw, best, search(&changed, draw, after)),
        Err((token, logit)) => Drawn::bad(token, logit),
    }
}

/// The token that is chosen from sound logits.
#[inline(always)]
fn search(logits: &[f32], draw: &Draw, best: (usize, f32)) -> usize {
    if draw.is_greedy() { best.0 } else { Kept::new(logits, draw, best).race() }
}

/// A chosen token, and what is wanted of the logits before they were changed.
#[inline(always)]
fn drawn(logits: &[f32], draw: &Draw, (_, most): (usize, f32), token: usize) -> Drawn {
    let (mut logprob, mut best) = (0.0, Vec::new());
    if draw.logprob || draw.best > 0 {
        let log_total = sum(logits, |logit| exp(logit - most)).ln();
        let of = |logit: f32| (f64::from(logit) - f64::from(most) - log_total) as f32;
        logprob = if draw.logprob { of(logits[token]) } else { 0.0 };
        best = most_probable(logits, draw.best as usize);
        best.iter_mut().for_each(|(_, logit)| *logit = of(*logit));
    }
    Drawn { token: token as u32, logit: logits[token], logprob, is_sound: true, best }
}

/// The `count` greatest logits above negative infinity with their tokens, the best first.
#[inline(always)]
fn most_probable(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let mut best: Vec<(u32, f32)> = Vec::new();
    let mut least = f32::NEG_INFINITY;
    for (token, &logit) in (0..).zip(logits) {
        if logit > least && count > 0 {
            let at = best.partition_point(|&(_, other)| other >= logit);
            best.insert(at, (token, logit));
            best.truncate(count);
            if best.len() == count {
                least = best[count - 1].1;
            }
        }
    }
    best
}

/// The first of a row's greatest logits, and its token.
///
/// # Errors
/// The first logit that is NaN, or the greatest where that is infinite.
///
/// # Panics
/// If there are no logits.
#[inline(always)]
pub fn greatest(logits: &[f32]) -> Result<(usize, f32), (usize, f32)> {
    assert!(!logits.is_empty(), "there are no logits to choose from");
    let (mut most, mut first, mut nan) = (f32::NEG_INFINITY, 0, false);
    for (block, logits) in logits.chunks(BLOCK).enumerate() {
        let (here, has_nan) = maximum(logits);
        nan |= has_nan;
        if here > most {
            (most, first) = (here, block * BLOCK);
        }
    }
    if nan || !most.is_finite() {
        let is_bad = |logit: &f32| logit.is_nan() || !most.is_finite() && *logit == most;
        let at = logits.iter().position(is_bad).unwrap_or(0);
        return Err((at, logits[at]));
    }
    let at = first + logits[first..].iter().position(|&logit| logit == most).unwrap_or(0);
    Ok((at, logits[at]))
}

/// The greatest but for NaN, negative infinity if there is none; and whether one is NaN.
#[inline(always)]
fn maximum(logits: &[f32]) -> (f32, bool) {
    let greater = |a: f32, b: f32| if b > a { b } else { a };
    let (mut lanes, mut nans) = ([f32::NEG_INFINITY; LANES], [false; LANES]);
    let (chunks, rest) = logits.as_chunks::<LANES>();
    for chunk in chunks {
        for ((lane, nan), &logit) in lanes.iter_mut().zip(&mut nans).zip(chunk) {
            *lane = greater(*lane, logit);
            *nan |= logit.is_nan();
        }
    }
    let nan = nans.contains(&true) || rest.iter().any(|logit| logit.is_nan());
    (lanes.into_iter().chain(rest.iter().copied()).fold(f32::NEG_INFINITY, greater), nan)
}

/// The sum of `of` over logits: by lanes within a block, then block by block.
#[inline(always)]
fn sum(logits: &[f32], of: impl Fn(f32) -> f32) -> f64 {
    let mut total = 0.0;
    for block in logits.chunks(BLOCK) {
        let mut lanes = [0.0_f32; LANES];
        let (chunks, rest) = block.as_chunks::<LANES>();
        for chunk in chunks {
            for (lane, &logit) in lanes.iter_mut().zip(chunk) {
                *lane += of(logit);
            }
        }
        total += lanes.into_iter().chain(rest.iter().map(|&logit| of(logit))).map(f64::from).sum::<f64>();
    }
    total
}

/// `exp(x)` for `x` up to 0, to 2e-7 of its value; 0 below the least normal number. Written so that it is vectorised.
#[inline(always)]
fn exp(x: f32) -> f32 {
    /// Adding it rounds to an integer, which the lowest bits then hold.
    const ROUND: f32 = 12_582_912.0;
    const LN2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    let clamped = if x > -87.0 { x } else { -87.0 };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (clamped - n * LN2[0]) - n * LN2[1];
    // The series of exp(r) for r within half of ln 2.
    let series = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    let power = series.into_iter().fold(0.0, |sum, term: f32| sum * r + term);
    let scaled = f32::from_bits(power.to_bits().wrapping_add(shifted.to_bits() << 23));
    if x > -87.0 { scaled } else { 0.0 }
}

/// A token and its logit. Better ones compare as less.
#[derive(Clone, Copy)]
struct Ranked {
    logit: f32,
    token: u32,
}

impl Ranked {
    fn order(&self, other: &Ranked) -> Ordering {
        let by_logit = other.logit.partial_cmp(&self.logit).unwrap_or(Ordering::Equal);
        by_logit.then(self.token.cmp(&other.token))
    }
}

/// The tokens that may be chosen: those that are no worse than the last one.
struct Kept<'a> {
    logits: &'a [f32],
    draw: &'a Draw,
    best: Ranked,
    last: Ranked,
}

impl<'a> Kept<'a> {
    #[inline(always)]
    fn new(logits: &'a [f32], draw: &'a Draw, (token, logit): (usize, f32)) -> Self {
        let best = Ranked { logit, token: token as u32 };
        let last = Ranked { logit: f32::NEG_INFINITY, token: u32::MAX };
        let mut kept = Kept { logits, draw, best, last };
        let k = draw.top_k as usize;
        if (1..logits.len()).contains(&k) {
            kept.last = kept.best_of(k);
        }
        if draw.top_p < 1.0 {
            kept.last = kept.nucleus();
        }
        kept
    }

    #[inline(always)]
    fn weight(&self, logit: f32) -> f32 {
        exp((logit - self.best.logit) / self.draw.temperature)
    }

    /// The kept tokens with logits of at least `least`.
    #[inline(always)]
    fn above(&self, least: f32) -> Vec<Ranked> {
        let all = (0..).zip(self.logits.iter().copied());
        let ranked = all.filter(|&(_, logit)| logit >= least).map(|(token, logit)| Ranked { logit, token });
        ranked.filter(|ranked| ranked.order(&self.last).is_le()).collect()
    }

    #[inline(always)]
    fn best_of(&self, k: usize) -> Ranked {
        // The k-th best of the maxima of at least k blocks is no better than the k-th best of all.
        let mut maxima: Vec<f32> =
            self.logits.chunks((self.logits.len() / (8 * k)).max(1)).map(|block| maximum(block).0).collect();
        let (_, &mut least, _) = maxima.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
        let mut ranked = self.above(least);
        *ranked.select_nth_unstable_by(k - 1, Ranked::order).1
    }

    /// The worst of the fewest best tokens whose weights reach `top_p` of all.
    #[inline(always)]
    fn nucleus(&self) -> Ranked {
        let cut = self.last.logit;
        let mut kept = Vec::new();
        let total = if cut == f32::NEG_INFINITY {
            sum(self.logits, |logit| self.weight(logit))
        } else {
            kept = self.above(cut);
            kept.sort_unstable_by(Ranked::order);
            kept.iter().map(|ranked| f64::from(self.weight(ranked.logit))).sum()
        };
        let target = total * f64::from(self.draw.top_p);
        if kept.is_empty() {
            // All tokens with less than this are together less than what `top_p` leaves out; half, for rounded sums.
            let least = (total - target) / self.logits.len() as f64 * 0.5;
            let reach = least.ln().max(-87.0) as f32 * self.draw.temperature;
            kept = self.above((self.best.logit + reach).max(f32::MIN));
            kept.sort_unstable_by(Ranked::order);
        }
        let mut reached = 0.0;
        let last = kept.iter().find(|ranked| {
            reached += f64::from(self.weight(ranked.logit));
            reached >= target
        });
        *last.or(kept.last()).unwrap_or(&self.best)
    }

    /// The kept token with the greatest sum of the logarithm of its weight and its random number.
    #[inline(always)]
    fn race(&self) -> usize {
        let Draw { temperature, min_p, .. } = *self.draw;
        let least = (self.best.logit + Draw::REACH * temperature).max(self.last.logit);
        let (mut winner, mut most) = (self.best.token, f32::NEG_INFINITY);
        let mut bits = (u32::MAX, [0; 4]);
        for (token, &logit) in (0..).zip(self.logits) {
            if logit < least || (Ranked { logit, token }).order(&self.last).is_gt() {
                continue;
            }
            let log_weight = (logit - self.best.logit) / temperature;
            if log_weight.is_nan() || log_weight < Draw::REACH || min_p > 0.0 && exp(log_weight) < min_p {
                continue;
            }
            if bits.0 != token / 4 {
                bits = (token / 4, self.draw.bits(token / 4));
            }
            let uniform = Draw::uniform(bits.1[token as usize % 4]);
            let score = log_weight - (-(-uniform).ln_1p()).ln();
            if score > most {
                (winner, most) = (token, score);
            }
        }
        winner as usize
    }
}
