//! From logits to a token.

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 always takes the best token (greedy).
    pub temperature: f32,
    /// Keeps the best `top_k` tokens; 0 keeps all.
    pub top_k: u32,
    /// Keeps the fewest best tokens whose probability reaches `top_p` (nucleus sampling, Holtzman et al.
    /// 2020); 1 keeps all.
    pub top_p: f32,
    /// Same seed, same logits: same tokens.
    pub seed: u64,
}

impl Default for Sampling {
    /// Greedy.
    fn default() -> Self {
        Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 }
    }
}

/// Draws tokens; holds the state of one sequence's random numbers.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    state: u64,
}

impl Sampler {
    /// A sampler at the start of its random numbers.
    pub fn new(sampling: Sampling) -> Self {
        Sampler { sampling, state: sampling.seed }
    }

    /// Chooses a token. Filters apply in the order top-k, temperature, top-p. Ties go to the lower id;
    /// NaN is never chosen.
    ///
    /// # Panics
    /// If there are no logits.
    pub fn choose(&mut self, logits: &[f32]) -> u32 {
        let Sampling { temperature, top_k, top_p, .. } = self.sampling;
        if temperature <= 0.0 || top_k == 1 {
            return argmax(logits);
        }
        let mut candidates: Vec<(u32, f32)> =
            logits.iter().enumerate().map(|(i, &l)| (i as u32, l)).filter(|(_, l)| !l.is_nan()).collect();
        let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        let k = top_k as usize;
        if k > 0 && k < candidates.len() {
            candidates.select_nth_unstable_by(k - 1, order);
            candidates.truncate(k);
        }
        candidates.sort_unstable_by(order);
        let Some(&(best, most)) = candidates.first() else { return argmax(logits) };
        if !most.is_finite() {
            return best;
        }
        let mut total = 0.0f64;
        for (_, l) in &mut candidates {
            *l = ((*l - most) / temperature).exp();
            total += *l as f64;
        }
        if top_p < 1.0 {
            let mut sum = 0.0;
            let reached = candidates.iter().position(|&(_, p)| {
                sum += p as f64 / total;
                sum >= top_p as f64
            });
            candidates.truncate(reached.map_or(candidates.len(), |i| i + 1));
            total = candidates.iter().map(|&(_, p)| p as f64).sum();
        }
        let mut left = self.uniform() * total;
        for &(token, p) in &candidates {
            left -= p as f64;
            if left < 0.0 {
                return token;
            }
        }
        candidates.last().map_or(best, |&(token, _)| token)
    }

    /// Uniform in `0..1`, by SplitMix64 (Steele et al. 2014).
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The first of the greatest; NaN is never greatest, unless there is nothing else.
fn argmax(logits: &[f32]) -> u32 {
    assert!(!logits.is_empty(), "there are no logits to choose from");
    // This runs between two passes of the device: maxima of blocks take vectors, and one block is searched.
    const BLOCK: usize = 1024;
    let (mut most, mut first) = (f32::NEG_INFINITY, 0);
    for (block, logits) in logits.chunks(BLOCK).enumerate() {
        let here = greatest(logits);
        if here > most {
            (most, first) = (here, block * BLOCK);
        }
    }
    let at = logits[first..].iter().position(|&logit| logit == most);
    at.map_or(0, |at| first + at) as u32
}

/// The greatest but for NaN; negative infinity if there is none.
fn greatest(logits: &[f32]) -> f32 {
    let greater = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; 16];
    let chunks = logits.chunks_exact(lanes.len());
    let rest = chunks.remainder().iter().copied();
    for chunk in chunks {
        for (lane, &logit) in lanes.iter_mut().zip(chunk) {
            *lane = greater(*lane, logit);
        }
    }
    lanes.into_iter().chain(rest).fold(f32::NEG_INFINITY, greater)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frequencies(sampling: Sampling, logits: &[f32]) -> Vec<f64> {
        let mut sampler = Sampler::new(sampling);
        let mut counts = vec![0.0; logits.len()];
        for _ in 0..40_000 {
            counts[sampler.choose(logits) as usize] += 1.0 / 40_000.0;
        }
        counts
    }

    #[test]
    fn greedy_takes_the_best_and_never_nan() {
        for len in [1, 15, 16, 17, 100, 1024, 1025, 2100] {
            for best in 0..len {
                let mut logits = vec![-1.5; len];
                logits[best] = 0.5;
                let other = (best + 1) % len;
                if other != best {
                    logits[other] = f32::NAN;
                }
                assert_eq!(argmax(&logits), best as u32);
            }
        }
        assert_eq!(argmax(&[f32::NAN, f32::NEG_INFINITY, f32::NEG_INFINITY]), 1);
        assert_eq!(argmax(&[f32::NAN; 20]), 0);
        assert_eq!(argmax(&[2.0; 40]), 0, "the first of equals");
        let mut greedy = Sampler::new(Sampling::default());
        assert_eq!(greedy.choose(&[f32::NAN, 1.0, 3.0, 3.0, f32::NEG_INFINITY]), 2);
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        let logits = [1.0, 0.0, -1.0, f32::NAN];
        let sampling = Sampling { temperature: 0.5, seed: 3, ..Sampling::default() };
        let weights: Vec<f64> = [2.0f64, 0.0, -2.0].iter().map(|x| x.exp()).collect();
        let total: f64 = weights.iter().sum();
        let found = frequencies(sampling, &logits);
        for (f, w) in found.iter().zip(&weights) {
            assert!((f - w / total).abs() < 0.01, "{found:?}");
        }
        assert_eq!(found[3], 0.0);
    }

    #[test]
    fn filters_cut_the_tail() {
        let logits = [3.0, 2.0, 1.0, 0.0];
        let base = Sampling { temperature: 1.0, seed: 1, ..Sampling::default() };
        let k = frequencies(Sampling { top_k: 2, ..base }, &logits);
        assert!(k[1] > 0.0 && k[2] == 0.0 && k[3] == 0.0);
        // Probabilities are 0.64, 0.24, 0.09, 0.03: two of them reach 0.8.
        let p = frequencies(Sampling { top_p: 0.8, ..base }, &logits);
        assert!(p[1] > 0.0 && p[2] == 0.0 && p[3] == 0.0);
        let best = frequencies(Sampling { top_p: 0.0, ..base }, &logits);
        assert_eq!(best[1..], [0.0; 3]);
    }

    #[test]
    fn a_seed_repeats_its_tokens() {
        let sampling = Sampling { temperature: 1.0, seed: 7, ..Sampling::default() };
        let draw = || {
            let mut sampler = Sampler::new(sampling);
            (0..50).map(|_| sampler.choose(&[0.1, 0.2, 0.3, 0.4])).collect::<Vec<_>>()
        };
        assert_eq!(draw(), draw());
    }
}
