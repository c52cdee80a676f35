//! Takes all sessions off a device that others will use.

use super::EventLoop;
use crate::backend::Backend;
use crate::error::{Error, Result};
use std::sync::Arc;
use std::time::Duration;

impl EventLoop {
    /// Begins to take all sessions off the device: see [`Scheduler::vacate`](crate::Scheduler::vacate). Book its
    /// copies with [`book_copies`](Self::book_copies) before the next call of [`pump`](Self::pump).
    ///
    /// # Panics
    /// If a step is under way.
    pub fn vacate(&mut self, backend: &mut dyn Backend, gives_up: bool, now: Duration) {
        let plan = self.scheduler_mut().vacate(gives_up, now);
        backend.submit(&plan, self.scheduler.state(), now);
        self.plan = Arc::new(plan);
    }

    /// Books ended copies while no step is under way, and plans nothing.
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
