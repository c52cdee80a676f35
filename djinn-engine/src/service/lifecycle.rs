//! How a service begins and ends.

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
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

impl<D: Ops> Service<D> {
    /// A service without sessions. `make` gives a scheduler for what the engine has room for.
    ///
    /// # Errors
    /// Those of [`Batcher::new`] and of `make`.
    pub fn new(
        engine: Engine<D>,
        make: impl FnOnce(djinn_scheduler::Capacity) -> djinn_scheduler::Result<Scheduler>,
    ) -> Result<Self> {
        let batcher = Batcher::new(engine)?;
        let core = EventLoop::new(make(batcher.capacity())?);
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
        })
    }

    /// A service for one conversation at a time, with nothing to weigh: others that wait give their pages up.
    ///
    /// # Errors
    /// Those of [`Batcher::new`](crate::Batcher::new).
    pub fn single(engine: Engine<D>) -> Result<Self> {
        // Nothing is decided by these rates: there is no choice.
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

    /// Drops all sessions and gives the engine back.
    ///
    /// # Errors
    /// A failure of the device.
    pub fn into_engine(self) -> Result<Engine<D>> {
        self.batcher.into_engine()
    }
}
