//! Rows of logits: whether a token can be chosen from one, and the best token of it.

/// A logit that no token may be chosen beside.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "the logit of token {token} at position {position} is {logit}; use f32 weights, and if that does not help, get \
     the model's files anew"
)]
pub struct BadLogit {
    /// Whose logit it is.
    pub token: u32,
    /// The position in the sequence, counted from 0, of the token that the logits follow.
    pub position: u64,
    /// NaN, infinity, or negative infinity where no logit of the row is finite.
    pub logit: f32,
}

/// The best token of a row of logits, which follow the token at `position`; of equals the one with the lower id.
///
/// # Errors
/// [`BadLogit`] if a logit is NaN or infinity, or none is finite. Negative infinity rules a token out.
///
/// # Panics
/// If there are no logits.
pub fn greedy(logits: &[f32], position: u64) -> Result<u32, BadLogit> {
    Ok(best(logits, position)?.token)
}

/// The best token and its logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Best {
    pub(crate) token: u32,
    pub(crate) logit: f32,
}

/// As [`greedy`].
pub(crate) fn best(logits: &[f32], position: u64) -> Result<Best, BadLogit> {
    assert!(!logits.is_empty(), "there are no logits to choose from");
    // This runs between two passes of the device: maxima of blocks take vectors, and one block is searched.
    const BLOCK: usize = 1024;
    let (mut most, mut first, mut nan) = (f32::NEG_INFINITY, 0, false);
    for (block, logits) in logits.chunks(BLOCK).enumerate() {
        let (here, has_nan) = greatest(logits);
        nan |= has_nan;
        if here > most {
            (most, first) = (here, block * BLOCK);
        }
    }
    if nan || !most.is_finite() {
        return Err(bad_logit(logits, position, |logit| {
            logit.is_nan() || !most.is_finite() && *logit == most
        }));
    }
    let at = logits[first..].iter().position(|&logit| logit == most);
    Ok(Best { token: at.map_or(0, |at| first + at) as u32, logit: most })
}

/// Refuses logits that are not numbers, at `position` of their sequence.
///
/// # Errors
/// [`BadLogit`] if one is not finite.
pub(crate) fn check_finite(logits: &[f32], position: u64) -> Result<(), BadLogit> {
    match logits.iter().all(|logit| logit.is_finite()) {
        true => Ok(()),
        false => Err(bad_logit(logits, position, |logit| !logit.is_finite())),
    }
}

/// The first logit that `is_bad`, of some that are.
fn bad_logit(logits: &[f32], position: u64, is_bad: impl Fn(&f32) -> bool) -> BadLogit {
    let token = logits.iter().position(is_bad).unwrap_or(0);
    BadLogit { token: token as u32, position, logit: logits[token] }
}

/// The greatest but for NaN, negative infinity if there is none; and whether one is NaN.
fn greatest(logits: &[f32]) -> (f32, bool) {
    let greater = |a: f32, b: f32| if b > a { b } else { a };
    let (mut lanes, mut nans) = ([f32::NEG_INFINITY; 16], [false; 16]);
    let chunks = logits.chunks_exact(lanes.len());
    let rest = chunks.remainder();
    for chunk in chunks {
        for ((lane, nan), &logit) in lanes.iter_mut().zip(&mut nans).zip(chunk) {
            *lane = greater(*lane, logit);
            *nan |= logit.is_nan();
        }
    }
    let nan = nans.contains(&true) || rest.iter().any(|logit| logit.is_nan());
    (lanes.into_iter().chain(rest.iter().copied()).fold(f32::NEG_INFINITY, greater), nan)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths around those of the lanes and blocks.
    const LENGTHS: [usize; 9] = [1, 2, 15, 16, 17, 100, 1024, 1025, 2100];

    #[test]
    fn the_best_is_found_wherever_it_is() {
        for len in LENGTHS {
            for at in 0..len {
                let mut logits = vec![-1.5; len];
                logits[at] = 0.5;
                logits[(at + 1) % len] = if len > 1 { f32::NEG_INFINITY } else { 0.5 };
                assert_eq!(best(&logits, 0).unwrap(), Best { token: at as u32, logit: 0.5 });
            }
        }
        assert_eq!(greedy(&[2.0; 40], 0).unwrap(), 0, "the first of equals");
        assert_eq!(greedy(&[f32::NEG_INFINITY, f32::MIN], 0).unwrap(), 1);
    }

    #[test]
    fn one_bad_logit_is_enough_wherever_it_is() {
        for len in LENGTHS {
            for at in 0..len {
                for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
                    let mut logits = vec![1.5; len];
                    logits[at] = bad;
                    for found in [best(&logits, 7).map(drop), check_finite(&logits, 7)] {
                        let found = found.expect_err("one is bad");
                        assert_eq!((found.token, found.position), (at as u32, 7));
                        assert_eq!(found.logit.is_nan(), bad.is_nan());
                    }
                }
            }
            let none = vec![f32::NEG_INFINITY; len];
            assert!(best(&none, 0).is_err() && check_finite(&none, 0).is_err());
        }
    }
}
