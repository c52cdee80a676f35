//! Arguments of the choice of tokens.

use super::check::Checks;
use crate::{Draw, Drawn, Span};

/// `drawn[r]` is the token that `draws[r]` chooses from `logits[r, :]`; see [`Draw`].
///
/// The random numbers are counted by seed and position, so a row's token depends on its logits and its settings alone.
/// Devices whose exponentials differ in the last bits may choose differently where two tokens are as near as that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choose {
    /// f32 `[rows, vocab]`.
    pub logits: Span,
    /// u32 `[rows, 8]`, each row [`Draw::words`], or zeros where nothing is to be chosen. In either space.
    pub draws: Span,
    /// u32 `[rows, 4]`, each row [`Drawn::words`]; zeros where nothing was to be chosen. In either space.
    pub drawn: Span,
    /// Logits of a row, up to [`Choose::MOST_VOCAB`].
    pub vocab: u32,
    /// Rows.
    pub rows: u32,
}

impl Choose {
    /// The most logits of a row.
    pub const MOST_VOCAB: u32 = 1 << 22;

    pub(crate) fn check_sizes(&self, checks: Checks) {
        let (vocab, most) = (self.vocab, Choose::MOST_VOCAB);
        assert!(vocab <= most, "choose: {vocab} logits of a row are more than {most}");
        checks.words("logits", self.logits, &[self.rows.into(), vocab.into()]);
        checks.words("draws", self.draws, &[self.rows.into(), Draw::WORDS as u64]);
        checks.words("drawn", self.drawn, &[self.rows.into(), Drawn::WORDS as u64]);
    }
}
