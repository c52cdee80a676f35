//! Arguments of the choice of tokens.

use super::check::Checks;
use crate::{Change, Draw, Drawn, Span};
use djinn_srg::Graph;

/// `drawn[r]` is the token that `draws[r]` chooses from `logits[r, :]`; see [`Draw`].
///
/// The random numbers are counted by seed and position, so a row's token depends on its logits and its settings alone.
/// Devices whose exponentials differ in the last bits may choose differently where two tokens are as near as that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choose {
    /// f32 `[rows, vocab]`. Changed for a choice, they are as before after it.
    pub logits: Span,
    /// u32 `[rows, 16]`, each row [`Draw::words`] with where its changes are ([`Changes::put`](crate::Changes::put)), or
    /// zeros where nothing is to be chosen. In either space.
    pub draws: Span,
    /// u32, whole [`Change`]s: those of all rows, as rows of `draws` say. In either space.
    pub changes: Span,
    /// u32: some of the words are the latest tokens of rows, as rows of `draws` say. In either space.
    pub earlier: Span,
    /// u32 `[rows, 44]`, each row as of [`Drawn::write`]; zeros in the first four words where nothing was to be chosen. In
    /// either space.
    pub drawn: Span,
    /// Logits of a row, up to [`Choose::MOST_VOCAB`].
    pub vocab: u32,
    /// Rows.
    pub rows: u32,
}

impl Choose {
    /// The most logits of a row.
    pub const MOST_VOCAB: u32 = Graph::MOST_VOCAB;

    pub(crate) fn check_sizes(&self, checks: Checks) {
        let (vocab, most) = (self.vocab, Choose::MOST_VOCAB);
        assert!(vocab <= most, "choose: {vocab} logits of a row are more than {most}");
        checks.words("logits", self.logits, &[self.rows.into(), vocab.into()]);
        checks.words("draws", self.draws, &[self.rows.into(), Draw::WORDS as u64]);
        let words = |span: Span, of: usize| [span.len() / 4 / of as u64, of as u64];
        checks.words("changes", self.changes, &words(self.changes, Change::WORDS));
        checks.words("earlier", self.earlier, &words(self.earlier, 1));
        checks.words("drawn", self.drawn, &[self.rows.into(), Drawn::WORDS as u64]);
    }
}
