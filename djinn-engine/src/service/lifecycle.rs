//! Creates and ends a service.

use super::Service;
use super::debugger::Stops;
use super::tracing::Tracing;
use super::transfer::Transfers;
use crate::{Batcher, Engine, Result};
use djinn_device::Ops;
use djinn_scheduler::policy::Lru;
use djinn_scheduler::{
    ChunkedPrefill, CostModel, DecodeOne, EventLoop, Parts, Rules, Scheduler, SpillToHost,
};
use djinn_vmu::WeightSource;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

impl<D: Ops> Service<D> {
    /// A service without sessions. `make` creates a scheduler for the engine's capacity.
    ///
    /// # Errors
    /// Those of [`Batcher::new`] and of `make`. The engine has then [left](Engine::leave) its runtime.
    pub fn new(
        engine: Engine<D>,
        make: impl FnOnce(djinn_scheduler::Capacity) -> djinn_scheduler::Result<Scheduler>,
    ) -> Result<Self> {
        let batcher = Batcher::new(engine)?;
        let scheduler = match make(batcher.capacity()) {
            Ok(scheduler) => scheduler,
            Err(error) => {
                batcher.into_engine()?.leave();
                return Err(error.into());
            }
        };
        let core = EventLoop::new(scheduler);
        let (ended, stops) = (BTreeSet::new(), Stops::default());
        Ok(Service {
            core,
            batcher,
            origin: Instant::now(),
            sessions: 0,
            ended,
            stops,
            keeps_transfers: false,
            transfers: Transfers::default(),
            tracing: Tracing::default(),
            asked: Vec::new(),
        })
    }

    /// A service for one conversation at a time. Waiting sessions give their pages up.
    ///
    /// # Errors
    /// Those of [`Batcher::new`](crate::Batcher::new).
    pub fn single(engine: Engine<D>) -> Result<Self> {
        // With one session there is no choice, so the rates decide nothing.
        let cost = CostModel {
            page_bytes: engine.plan().kv.page_bytes(),
            out_bytes_per_s: 1e9,
            in_bytes_per_s: 1e9,
            prefill_tokens_per_s: 1e3,
        };
        let rules = Rules { lease: Duration::ZERO, headroom: 0.0, ..Rules::default() };
        let parts = Parts {
            policy: Box::new(Lru),
            keeper: Box::new(SpillToHost),
            prefill: Box::new(ChunkedPrefill),
            decode: Box::new(DecodeOne),
            cost,
            rules,
        };
        Service::new(engine, |capacity| Scheduler::new(capacity, parts))
    }

    /// Whether work is under way on the device or about to be, so that the model must not leave it.
    pub fn is_busy(&self) -> bool {
        let under_way = self.batcher.is_stepping() || self.batcher.is_copying();
        let imports = self.transfers.is_busy() || self.transfers.lease_left(self.now()).is_some();
        self.can_compute() || under_way || imports
    }

    /// Whether a session can compute, or a client waits for work on the device.
    pub fn wants_device(&self) -> bool {
        self.can_compute() || self.transfers.wants_device()
    }

    fn can_compute(&self) -> bool {
        let due = self.next_end_of_a_stop().is_some_and(|left| left.is_zero());
        due || !self.asked.is_empty() || self.state().sessions().any(|session| session.is_ready())
    }

    /// Gives new sessions ids after that of the latest session of an earlier service with the same clients.
    pub(super) fn continue_ids_after(&mut self, last_session: u64) {
        self.sessions = self.sessions.max(last_session);
    }

    /// The id of the latest session.
    pub(super) fn last_session(&self) -> u64 {
        self.sessions
    }

    /// Prepares for the model to leave the device. Sessions go to host memory if there is room, and are computed again
    /// otherwise. They stay open, and clients may open more. Unfinished imports are lost. Call [`restore`](Self::restore)
    /// before any computation.
    ///
    /// # Errors
    /// A failure of the device.
    ///
    /// # Panics
    /// If a step is under way, or the model is away.
    pub fn evict(&mut self) -> Result<()> {
        self.drop_imports();
        for gives_up in [false, true] {
            let now = self.now();
            self.core.vacate(&mut self.batcher, gives_up, now);
            self.batcher.settle_copies()?;
            let booked = self.core.book_copies(&mut self.batcher, now);
            booked.map_err(|error| self.batcher.take_error().unwrap_or(error.into()))?;
        }
        self.core.scheduler_mut().pages_mut().lose_device();
        self.batcher.evict();
        Ok(())
    }

    /// Brings the model back: see [`Engine::restore`].
    ///
    /// # Errors
    /// As there. The model then stays away.
    ///
    /// # Panics
    /// If the model is on the device.
    pub fn restore(
        &mut self,
        source: &dyn WeightSource,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<()> {
        self.batcher.engine_mut().restore(source, progress)
    }

    /// See [`Engine::drop_copies`].
    pub fn drop_copies(&mut self) -> u64 {
        self.batcher.engine_mut().drop_copies()
    }

    /// Drops all sessions and returns the engine.
    ///
    /// # Errors
    /// A failure of the device.
    pub fn into_engine(self) -> Result<Engine<D>> {
        self.batcher.into_engine()
    }
}
