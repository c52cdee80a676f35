//! Progress of steps that were begun: query, wait, finish.

use super::choices::SamplingRows;
use crate::{Captured, Engine, Error, Result};
use djinn_device::{Changes, Draw, Drawn, Ops};
use djinn_vmu::PassStats;
use std::ops::Range;
use std::time::Duration;

impl<D: Ops> Engine<D> {
    /// Whether a step may begin while one is under way, with the tokens that it chooses. See
    /// [`Options::ahead`](crate::Options::ahead).
    pub fn takes_next(&self) -> bool {
        self.ahead && self.trace.is_none()
    }

    /// Whether the oldest step under way is done, so that finishing it does not wait.
    ///
    /// # Errors
    /// A failure of the device.
    pub fn is_done(&mut self) -> Result<bool> {
        let Some(pass) = self.passes.under_way.front() else { return Ok(true) };
        let done = self.runtime.device.is_done(self.parts.exchanges[pass.exchange].done);
        self.stop_on(done.map_err(Error::from))
    }

    /// Waits for the oldest step under way.
    ///
    /// # Errors
    /// A failure of the device.
    pub fn wait(&mut self) -> Result<()> {
        let Some(pass) = self.passes.under_way.front() else { return Ok(()) };
        let done = self.runtime.device.sync_event(self.parts.exchanges[pass.exchange].done);
        self.stop_on(done.map_err(Error::from))
    }

    /// When the latest finished step ran, by the device's clock: from the copy of its inputs to the choice of its
    /// tokens. `None` before the first.
    pub fn latest_span(&self) -> Option<Range<Duration>> {
        self.passes.latest.clone()
    }

    /// Waits for the oldest step under way. Reads the wanted logits in place, f32 `[rows wanted, vocab]` row-major,
    /// the chosen tokens and the captures, all in the order of the entries and their interventions.
    ///
    /// # Errors
    /// A failure of the device.
    ///
    /// # Panics
    /// If no step is under way.
    pub fn finish<T>(
        &mut self,
        read: impl FnOnce(&[f32], Vec<Drawn>, Vec<Captured>) -> T,
    ) -> Result<(T, PassStats)> {
        self.finish_with(|logits, drawn, back| read(logits, drawn, back.captured))
    }

    /// Gives the step under way its sampling settings, if it was begun to choose
    /// [later](super::choices::Chooses::Later). By entry; `None` for those that choose no token.
    ///
    /// # Errors
    /// A failure of the device.
    ///
    /// # Panics
    /// If the oldest step under way is not such a step, or if an entry was not to choose a token.
    pub(crate) fn choose_later(&mut self, entries: &[Option<(Draw, Changes<'_>)>]) -> Result<()> {
        let Engine { runtime, parts, passes, .. } = self;
        let pass = passes.under_way.front_mut().filter(|pass| pass.waits);
        let pass = pass.expect("the step waits to be told how it chooses");
        pass.waits = false;
        let mut choices = SamplingRows::default();
        for (entry, row) in entries.iter().zip(&pass.chosen) {
            if let Some((draw, changes)) = entry {
                choices.set(row.expect("it chooses") as usize, draw, changes);
            }
        }
        let (exchange, rows) = (pass.exchange, pass.rows);
        let chosen = passes.enqueue_choice(runtime, parts, exchange, rows, Some(&choices));
        self.stop_on(chosen)
    }
}
