//! What a model keeps of its passes. One is under way at a time, or two, where the second takes its tokens from the first.

use super::batch::{BatchEntry, Outputs, RowRuns, Wanted};
use super::replay::{Key, Replays};
use crate::hooks::{Bound, Pending};
use crate::parts::Parts;
use crate::{Captured, Engine, Error, Result, Runtime};
use djinn_device::{Device, Drawn, Event, Ops};
use djinn_srg::Rows;
use djinn_vmu::PassStats;
use std::collections::VecDeque;
use std::ops::{Deref, Range};
use std::time::{Duration, Instant};

/// A pass between its beginning and its end.
#[derive(Debug)]
pub(super) struct UnderWay {
    /// Which of the two exchanges it uses.
    pub(super) place: usize,
    pub(super) rows: Rows,
    /// Whether it chooses tokens, and by entry from which row of logits.
    pub(super) chooses: bool,
    pub(super) chosen: Vec<Option<u32>>,
    pub(super) outputs: Outputs,
    /// When the host was done with enqueueing it.
    pub(super) enqueued: Instant,
    /// What it does at hooks.
    pub(super) hooks: Bound,
}

/// The ends of a pass on the compute stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    /// Nothing of the pass was enqueued before.
    pub(super) begin: Event,
    /// Its results are on the host.
    pub(super) done: Event,
}

impl Ends {
    fn new<D: Device>(device: &D) -> djinn_device::Result<Self> {
        Ok(Ends { begin: device.event()?, done: device.event()? })
    }
}

/// The passes of a model.
#[derive(Debug)]
pub(crate) struct Passes {
    /// By exchange.
    pub(super) ends: [Ends; 2],
    /// None where passes are not to be replayed.
    pub(super) replays: Option<Replays>,
    pub(crate) replayed: u64,
    /// In order.
    pub(super) under_way: VecDeque<UnderWay>,
    /// When the pass that was finished last ran, by the device's clock.
    pub(super) latest: Option<Range<Duration>>,
}

impl Passes {
    /// # Errors
    /// A device without events.
    pub(crate) fn new<D: Device>(device: &D, replay: bool) -> djinn_device::Result<Self> {
        let ends = [Ends::new(device)?, Ends::new(device)?];
        let replays = replay.then(Replays::default);
        Ok(Passes { ends, replays, replayed: 0, under_way: VecDeque::new(), latest: None })
    }

    /// # Panics
    /// If a pass is under way.
    pub(crate) fn expect_idle(&self) {
        assert!(self.under_way.is_empty(), "a pass is under way");
    }

    /// # Panics
    /// If a pass over `batch` cannot begin: one is under way, and the batch does not take its tokens from it alone and
    /// leave all but tokens on the device, or two are.
    pub(crate) fn expect_room(&self, batch: &[BatchEntry<'_>]) {
        let follows = |entry: &BatchEntry<'_>| {
            entry.after.is_some() && entry.wanted == Wanted::Nothing && entry.interventions.is_empty()
        };
        match self.under_way.len() {
            0 => assert!(batch.iter().all(|entry| entry.after.is_none()), "no pass is under way"),
            1 => assert!(batch.iter().all(follows), "a pass is under way"),
            _ => panic!("two passes are under way"),
        }
    }

    /// Captures a pass and replays it. Where there is no room for a capture, this pass and all later ones are enqueued.
    pub(super) fn capture<D: Ops>(
        &mut self,
        runtime: &Runtime<D>,
        parts: &mut Parts,
        key: Key,
        runs: &RowRuns,
    ) -> Result<()> {
        let Runtime { device, compute, .. } = runtime;
        let streams = parts.streams(*compute);
        let hooks = Pending(&key.hooks);
        let captured = device.capture(&streams, || self.enqueue(runtime, parts, None, key.rows, runs, hooks));
        let replays = self.replays.as_mut().expect("a pass is captured to be replayed");
        let capture = match captured {
            Err(Error::Device(djinn_device::Error::Resource { .. })) => {
                parts.text.streamer.withdrawn(key.position);
                device.sync(*compute)?;
                replays.free(device);
                self.replays = None;
                return self.enqueue(runtime, parts, None, key.rows, runs, hooks);
            }
            captured => captured?,
        };
        if let Some(evicted) = replays.keep(key, capture, parts.text.streamer.position()) {
            device.sync(*compute)?;
            device.free_capture(evicted);
        }
        Ok(device.replay(capture)?)
    }

    /// The exchange of the next pass.
    pub(super) fn free_place(&self) -> usize {
        self.under_way.front().map_or(0, |pass| 1 - pass.place)
    }

    /// Frees all captures, whose replays are done.
    pub(crate) fn free<D: Ops>(mut self, device: &D) {
        if let Some(replays) = &mut self.replays {
            replays.free(device);
        }
    }
}

impl<D: Ops, R: Deref<Target = Runtime<D>>> Engine<D, R> {
    /// Whether a step may begin while the one that was begun is under way, with the tokens that this one chooses. See
    /// [`Options::ahead`](crate::Options::ahead).
    pub fn takes_next(&self) -> bool {
        self.ahead && self.trace.is_none()
    }

    /// Whether the step that was begun first is over, so that finishing it waits for nothing.
    ///
    /// # Errors
    /// A failure of the device.
    pub fn is_done(&mut self) -> Result<bool> {
        let Some(pass) = self.passes.under_way.front() else { return Ok(true) };
        let done = self.runtime.device.is_done(self.passes.ends[pass.place].done);
        self.stop_on(done.map_err(Error::from))
    }

    /// Waits until the step that was begun first is over.
    ///
    /// # Errors
    /// A failure of the device.
    pub fn wait(&mut self) -> Result<()> {
        let Some(pass) = self.passes.under_way.front() else { return Ok(()) };
        let done = self.runtime.device.sync_event(self.passes.ends[pass.place].done);
        self.stop_on(done.map_err(Error::from))
    }

    /// When the step that was finished last ran, since an origin of the device's own: from the copy of its inputs to the
    /// choice of its tokens. `None` before the first.
    pub fn latest_span(&self) -> Option<Range<Duration>> {
        self.passes.latest.clone()
    }

    /// Waits for the step that was begun first, and reads the logits that are wanted where the device left them, f32
    /// `[rows wanted, vocab]` row-major, the tokens that it chose, and what it read at hooks; all in the order of the
    /// entries, and of their interventions.
    ///
    /// # Errors
    /// A failure of the device.
    ///
    /// # Panics
    /// If none was begun.
    pub fn finish<T>(
        &mut self,
        read: impl FnOnce(&[f32], Vec<Drawn>, Vec<Captured>) -> T,
    ) -> Result<(T, PassStats)> {
        self.finish_with(|logits, drawn, back| read(logits, drawn, back.captured))
    }
}
