//! Rows of logits: validity, and the best token.

use djinn_device::{Draw, Drawn, choice};

/// A logit that makes a row unusable.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "the logit of token {token} at position {position} is {logit}; use f32 weights, or change activations by less if some \
     were changed; if that does not help, get the model's files anew"
)]
pub struct BadLogit {
    /// The token of the logit.
    pub token: u32,
    /// The position in the sequence, counted from 0, of the token that the logits follow.
    pub position: u64,
    /// NaN, infinity, or negative infinity where no logit of the row is finite.
    pub logit: f32,
}

/// The token with the greatest logit; of equals, the lowest id. The logits follow the token at `position`.
///
/// # Errors
/// [`BadLogit`] if a logit is NaN or infinity, or none is finite. Negative infinity rules a token out.
///
/// # Panics
/// If there are no logits.
pub fn greedy(logits: &[f32], position: u64) -> Result<u32, BadLogit> {
    chosen(&choice::choose(logits, &Draw::GREEDY), position)
}

/// The token that a device chose, after the one at `position`.
///
/// # Errors
/// As [`greedy`].
pub fn chosen(drawn: &Drawn, position: u64) -> Result<u32, BadLogit> {
    let &Drawn { token, logit, is_sound, .. } = drawn;
    if is_sound { Ok(token) } else { Err(BadLogit { token, position, logit }) }
}

/// Refuses logits that are not finite, at `position` of their sequence.
///
/// # Errors
/// [`BadLogit`] if one is not finite.
pub(crate) fn check_finite(logits: &[f32], position: u64) -> Result<(), BadLogit> {
    match logits.iter().all(|logit| logit.is_finite()) {
        true => Ok(()),
        false => {
            let token = logits.iter().position(|logit| !logit.is_finite()).unwrap_or(0);
            Err(BadLogit { token: token as u32, position, logit: logits[token] })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bad_logit_is_enough_wherever_it_is() {
        for at in 0..40 {
            for bad in [f32::NAN, f32::INFINITY] {
                let mut logits = vec![1.5; 40];
                logits[at] = bad;
                for found in [greedy(&logits, 7).map(drop), check_finite(&logits, 7)] {
                    let found = found.expect_err("one is bad");
                    assert_eq!((found.token, found.position), (at as u32, 7));
                    assert_eq!(found.logit.is_nan(), bad.is_nan());
                }
            }
        }
        let none = [f32::NEG_INFINITY; 3];
        assert!(greedy(&none, 0).is_err() && check_finite(&none, 0).is_err());
        assert_eq!(greedy(&[1.0, f32::NEG_INFINITY, 2.0, 2.0], 0), Ok(2));
    }
}
