//! Structured output: which tokens a turn may have next.

use crate::BadLogit;
use std::fmt;

/// Decides which tokens may come next in a turn. The turn's sampler owns it, calls it on the service's thread between
/// two steps, and passes each token to it exactly once, even if the session is swapped or computed again. All sessions
/// wait for a call, so it must return soon.
pub trait Constraint: fmt::Debug + Send {
    /// Adds at least one token that may come next to `allowed`, which is empty. If the text may end here, a token that
    /// ends the turn is among them.
    ///
    /// # Errors
    /// [`ConstraintError`] if the constraint cannot continue. The session then ends.
    fn allow(&mut self, allowed: &mut TokenMask) -> Result<(), ConstraintError>;

    /// Records the chosen token, which was allowed.
    ///
    /// # Errors
    /// As [`allow`](Self::allow).
    fn accept(&mut self, token: u32) -> Result<(), ConstraintError>;

    /// Whether nothing may follow. The turn then ends without a stop token.
    fn is_complete(&self) -> bool;

    /// An independent copy in the same state.
    fn boxed_clone(&self) -> Box<dyn Constraint>;
}

impl Clone for Box<dyn Constraint> {
    fn clone(&self) -> Self {
        self.boxed_clone()
    }
}

/// Why a constraint cannot continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the constraint on the output failed: {0}")]
pub struct ConstraintError(
    /// The reason.
    pub String,
);

/// Why no token can be chosen after a context.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NoToken {
    /// The model's logits are no numbers to choose by.
    #[error(transparent)]
    Logits(#[from] BadLogit),
    /// The turn's constraint failed.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
    /// The session's reads and changes at hooks cannot be done.
    #[error("at {hook}: {detail}")]
    #[allow(missing_docs, reason = "the message says what they are")]
    Intervention { hook: String, detail: String },
}

/// A set of tokens of a vocabulary: bit `token % 32` of word `token / 32`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u32>,
    vocab: usize,
}

impl TokenMask {
    /// The empty set of a vocabulary of `vocab` tokens.
    pub fn new(vocab: usize) -> Self {
        TokenMask { words: vec![0; vocab.div_ceil(32)], vocab }
    }

    /// Size of the vocabulary.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Adds a token.
    ///
    /// # Panics
    /// If the token is outside the vocabulary.
    pub fn insert(&mut self, token: u32) {
        assert!((token as usize) < self.vocab, "token {token} is outside the vocabulary of {}", self.vocab);
        self.words[token as usize / 32] |= 1 << (token % 32);
    }

    /// Adds the tokens of a set with the same layout. Tokens outside the vocabulary are ignored.
    pub fn insert_words(&mut self, words: &[u32]) {
        for (own, more) in self.words.iter_mut().zip(words) {
            *own |= more;
        }
        if let (Some(last), rest @ 1..) = (self.words.last_mut(), self.vocab % 32) {
            *last &= (1 << rest) - 1;
        }
    }

    /// Whether a token is in the set.
    pub fn contains(&self, token: u32) -> bool {
        self.words.get(token as usize / 32).is_some_and(|word| word & (1 << (token % 32)) != 0)
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    /// Empties the set, and changes its vocabulary to `vocab` tokens.
    pub(super) fn reset(&mut self, vocab: usize) {
        self.vocab = vocab;
        self.words.clear();
        self.words.resize(vocab.div_ceil(32), 0);
    }

    pub(super) fn words(&self) -> &[u32] {
        &self.words
    }
}
