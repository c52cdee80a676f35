//! What changes a row's logits before its token is chosen.

use super::Draw;

/// A change of a token's logit. Only finite logits change, and they stay finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// The token.
    pub token: u32,
    /// Added to its logit, before penalties.
    pub bias: f32,
    /// How often the turn generated it, below 2^31.
    pub count: u32,
    /// Whether its sequence has it.
    pub seen: bool,
}

impl Change {
    /// Words of a change.
    pub const WORDS: usize = 4;
    const SEEN: u32 = 1 << 31;

    /// The change for one more generation of a token that no other change mentions.
    const fn once(token: u32) -> Change {
        Change { token, bias: 0.0, count: 1, seen: true }
    }

    /// As devices read it. The last word is 0; a device may use it while it works.
    pub fn words(&self) -> [u32; Change::WORDS] {
        let seen = if self.seen { Change::SEEN } else { 0 };
        [self.token, self.bias.to_bits(), self.count | seen, 0]
    }

    /// Decodes words.
    pub fn from_words([token, bias, count, _]: [u32; Change::WORDS]) -> Change {
        let seen = count & Change::SEEN != 0;
        Change { token, bias: f32::from_bits(bias), count: count & !Change::SEEN, seen }
    }
}

/// What changes a row's logits before its token is chosen, in this order: tokens that are not allowed are ruled out, by a
/// logit of negative infinity; then, token by token, the bias is added, the repetition penalty applied, and the
/// frequency and the presence penalty subtracted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Changes<'a> {
    /// [`Change::words`] of tokens, each at most once.
    pub tokens: &'a [[u32; Change::WORDS]],
    /// The allowed tokens, by bit `token % 32` of word `token / 32`; `None` allows all.
    pub allowed: Option<&'a [u32]>,
    /// A generated token that [`tokens`](Self::tokens) do not count yet.
    pub latest: Option<u32>,
}

/// The first word of [`Draw::words`] that refers to a row's changes.
const FIRST: usize = 12;

impl<'a> Changes<'a> {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.allowed.is_none() && self.latest.is_none()
    }

    /// The most words that [`put`](Self::put) appends, for up to `tokens` tokens and a vocabulary of `vocab`.
    pub fn most_words(tokens: u64, vocab: u64) -> u64 {
        tokens * Change::WORDS as u64 + vocab.div_ceil(32).next_multiple_of(4)
    }

    /// Appends the changes to `all`, and their place to `draw`. The latest token is [put](Self::put_latest)
    /// separately.
    pub fn put(&self, draw: &mut [u32; Draw::WORDS], all: &mut Vec<u32>) {
        (draw[FIRST], draw[FIRST + 1]) = (all.len() as u32, self.tokens.len() as u32);
        all.extend_from_slice(self.tokens.as_flattened());
        draw[FIRST + 2] = 0;
        if let Some(allowed) = self.allowed {
            draw[FIRST + 2] = all.len() as u32 + 1;
            all.extend_from_slice(allowed);
            all.resize(all.len().next_multiple_of(4), 0);
        }
    }

    /// Notes in `draw` that the latest token is word `at` of the earlier results.
    pub fn put_latest(draw: &mut [u32; Draw::WORDS], at: u32) {
        draw[FIRST + 3] = at + 1;
    }

    /// The changes in `all` that `draw` refers to, with the latest token from the words `earlier`.
    ///
    /// # Panics
    /// If they are out of range.
    pub fn find(draw: &[u32; Draw::WORDS], vocab: usize, all: &'a [u32], earlier: &[u32]) -> Self {
        let [first, count, allowed, latest] = [0, 1, 2, 3].map(|i| draw[FIRST + i] as usize);
        Changes {
            tokens: all[first..first + count * Change::WORDS].as_chunks().0,
            allowed: allowed.checked_sub(1).map(|at| &all[at..at + vocab.div_ceil(32)]),
            latest: latest.checked_sub(1).map(|at| earlier[at]),
        }
    }

    /// Changes a row of logits.
    pub fn apply(&self, draw: &Draw, logits: &mut [f32]) {
        if let Some(allowed) = self.allowed {
            for (&word, logits) in
                allowed.iter().zip(logits.chunks_mut(32)).filter(|(word, _)| **word != u32::MAX)
            {
                for (bit, logit) in logits.iter_mut().enumerate() {
                    // Others stay, so that a bad logit is still found.
                    if word & (1 << bit) == 0 && logit.is_finite() {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
        let mut change = |change: Change| {
            if let Some(logit) = logits.get_mut(change.token as usize) {
                *logit = draw.changed(*logit, &change);
            }
        };
        let mut latest = self.latest;
        for &words in self.tokens {
            let known = Change::from_words(words);
            let is_latest = latest.take_if(|latest| *latest == known.token).is_some();
            change(if is_latest { Change { count: known.count + 1, seen: true, ..known } } else { known });
        }
        latest.into_iter().for_each(|token| change(Change::once(token)));
    }
}

impl Draw {
    /// A token's logit after its change. Rounded as here, so that it is the same on every device.
    pub fn changed(&self, logit: f32, change: &Change) -> f32 {
        if !logit.is_finite() {
            return logit;
        }
        let finite = |logit: f32| logit.clamp(f32::MIN, f32::MAX);
        let mut changed = finite(logit + change.bias);
        if change.seen {
            let factor = self.repetition_penalty;
            changed = finite(if changed < 0.0 { changed * factor } else { changed / factor });
        }
        if change.count > 0 {
            changed =
                finite(changed - (self.frequency_penalty * change.count as f32 + self.presence_penalty));
        }
        changed
    }
}
