//! The result of a choice.

/// A chosen token, or the reason why there is none.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawn {
    /// The token; or the first one whose logit is NaN, or the greatest of the row where that is infinite.
    pub token: u32,
    /// Its logit before changes; negative infinity if these rule all tokens out.
    pub logit: f32,
    /// `logit - ln Σ exp(logit(i))` over the row before changes; 0 if it was not requested, or no token could be
    /// chosen.
    pub logprob: f32,
    /// Whether a token could be chosen: no logit is NaN or infinity, and one is finite, also after the changes.
    pub is_sound: bool,
    /// The most probable tokens before changes, with their log-probabilities, best first; of equals, the lower id
    /// first. As many as were requested and have finite logits; none if no token could be chosen.
    pub best: Vec<(u32, f32)>,
}

impl Drawn {
    /// The most tokens of [`best`](Self::best).
    pub const MOST_BEST: usize = 20;
    /// Words of a row of results: four, then two for each of the best tokens.
    pub const WORDS: usize = 4 + 2 * Drawn::MOST_BEST;
    /// The index of the token among them.
    pub const TOKEN: usize = 1;

    /// Writes it to a row as devices do. Words beyond those of the best tokens stay as they are.
    ///
    /// # Panics
    /// If the row is too short.
    pub fn write(&self, row: &mut [u32]) {
        let state = if self.is_sound { 1 } else { 2 } | (self.best.len() as u32) << 8;
        row[..4].copy_from_slice(&[state, self.token, self.logit.to_bits(), self.logprob.to_bits()]);
        for (pair, (token, logprob)) in row[4..].as_chunks_mut::<2>().0.iter_mut().zip(&self.best) {
            *pair = [*token, logprob.to_bits()];
        }
    }

    /// Decodes a row; `None` if nothing was to be chosen.
    ///
    /// # Panics
    /// If the row is too short.
    pub fn read(row: &[u32]) -> Option<Drawn> {
        let (state, logit, logprob) = (row[0], f32::from_bits(row[2]), f32::from_bits(row[3]));
        let pairs = row[4..].as_chunks::<2>().0.iter().take((state >> 8) as usize);
        let best = pairs.map(|&[token, logprob]| (token, f32::from_bits(logprob))).collect();
        (state != 0).then_some(Drawn { token: row[1], logit, logprob, is_sound: state & 0xff == 1, best })
    }

    pub(crate) fn bad(token: usize, logit: f32) -> Drawn {
        Drawn { token: token as u32, logit, logprob: 0.0, is_sound: false, best: Vec::new() }
    }
}
