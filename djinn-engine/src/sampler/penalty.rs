//! The tokens whose logits a turn changes: those with biases, and those in its sequence.

use super::Sampling;
use djinn_device::Change;
use std::collections::HashMap;

/// The distinct tokens of a growing sequence, and how often each was generated.
#[derive(Clone, Debug, Default)]
pub(super) struct Penalised {
    /// [`Change::words`], each token once.
    words: Vec<[u32; Change::WORDS]>,
    /// Index of each token in `words`.
    places: HashMap<u32, usize>,
    /// Number of the sequence's tokens that were recorded.
    taken: usize,
}

impl Penalised {
    /// Has the biases only.
    pub(super) fn new(sampling: &Sampling) -> Self {
        let mut own = Penalised::default();
        for (&token, &bias) in &sampling.logit_bias {
            own.change(token, |change| change.bias = bias);
        }
        own
    }

    pub(super) fn words(&self) -> &[[u32; Change::WORDS]] {
        &self.words
    }

    /// Records a context, which begins with that of the previous call, if penalties need it.
    pub(super) fn take_in(&mut self, sampling: &Sampling, context: &[u32]) {
        if sampling.repetition_penalty != 1.0 {
            for &token in &context[self.taken..] {
                self.change(token, |change| change.seen = true);
            }
            self.taken = context.len();
        }
    }

    /// Counts a generated token, if penalties need it.
    pub(super) fn took(&mut self, sampling: &Sampling, token: u32) {
        if sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0 {
            self.change(token, |change| change.count += 1);
        }
    }

    fn change(&mut self, token: u32, how: impl FnOnce(&mut Change)) {
        let place = *self.places.entry(token).or_insert(self.words.len());
        if place == self.words.len() {
            self.words.push(Change { token, bias: 0.0, count: 0, seen: false }.words());
        }
        let mut change = Change::from_words(self.words[place]);
        how(&mut change);
        self.words[place] = change.words();
    }
}
