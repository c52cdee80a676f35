//! A device that others take over: all sessions leave it.

use super::EventLoop;
use crate::backend::Backend;
use crate::error::{Error, Result};
use std::sync::Arc;
use std::time::Duration;

impl EventLoop {
    /// Begins to take all sessions off the device: see [`Scheduler::vacate`](crate::Scheduler::vacate). Book the copies with
    /// [`book_copies`](Self::book_copies) before the next call of [`pump`](Self::pump).
    ///
    /// # Panics
    /// If a step is under way.
    pub fn vacate(&mut self, backend: &mut dyn Backend, gives_up: bool, now: Duration) {
        let plan = self.scheduler_mut().vacate(gives_up, now);
        backend.submit(&plan, self.scheduler.state(), now);
        self.plan = Arc::new(plan);
    }

    /// Books copies that ended while no step is under way, and plans nothing.
    ///
    /// # Errors
    /// [`Error::Backend`]: the backend is broken.
    pub fn book_copies(&mut self, backend: &mut dyn Backend, now: Duration) -> Result<()> {
        let completion = backend.poll(now);
        if let Some(reason) = completion.failure {
            return Err(Error::Backend { reason });
        }
        self.scheduler_mut().on_copied(&completion.copies);
        Ok(())
    }
}
