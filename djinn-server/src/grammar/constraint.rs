//! A compiled grammar at one point of a text.

use super::{GrammarError, reason};
use djinn_engine::{Constraint, ConstraintError, TokenMask};
use llguidance::Matcher;
use std::fmt;

/// A grammar, and the text's position in it.
pub(super) struct GrammarConstraint {
    matcher: Matcher,
}

impl GrammarConstraint {
    /// That of a text that has not begun.
    ///
    /// # Errors
    /// [`GrammarError::Refused`] where no token begins a text, or to know them takes too much.
    pub(super) fn new(mut matcher: Matcher) -> Result<Self, GrammarError> {
        match matcher.compute_mask() {
            Ok(_) => Ok(GrammarConstraint { matcher }),
            Err(error) => Err(GrammarError::Refused(match reason(&error.to_string()) {
                // The library's name of a state that allows no token.
                state if state == "NoExtensionBias" => {
                    "no text meets it: a `$ref` leads to itself, or its parts exclude each other".to_owned()
                }
                why => format!("no text begins: {why}"),
            })),
        }
    }

    /// An independent copy in the same state. A plain clone would share the lexer's caches and their lock.
    pub(super) fn copy(&self) -> Self {
        GrammarConstraint { matcher: self.matcher.deep_clone() }
    }

    /// Whether these tokens may all come next.
    pub(super) fn accepts(&mut self, tokens: &[u32]) -> bool {
        self.matcher.validate_tokens(tokens).is_ok_and(|accepted| accepted == tokens.len())
    }
}

impl fmt::Debug for GrammarConstraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarConstraint").field("stop", &self.matcher.stop_reason()).finish_non_exhaustive()
    }
}

fn failed(error: &dyn fmt::Display) -> ConstraintError {
    ConstraintError(reason(&error.to_string()))
}

impl Constraint for GrammarConstraint {
    fn allow(&mut self, allowed: &mut TokenMask) -> Result<(), ConstraintError> {
        let mask = self.matcher.compute_mask().map_err(|error| failed(&error))?;
        allowed.insert_words(mask.as_slice());
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        self.matcher.consume_token(token).map_err(|error| failed(&error))
    }

    fn is_complete(&self) -> bool {
        self.matcher.is_stopped() && !self.matcher.is_error()
    }

    fn boxed_clone(&self) -> Box<dyn Constraint> {
        Box::new(self.copy())
    }
}
