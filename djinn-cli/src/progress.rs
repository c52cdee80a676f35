//! How far a pull is.

use crate::cache::PullEvent;
use djinn_host::Meter;
use std::cell::RefCell;

/// The steps of a pull, each with its own bar.
pub(crate) struct PullProgress {
    quiet: bool,
    step: RefCell<Option<Meter>>,
}

impl PullProgress {
    /// Nothing is shown yet.
    pub(crate) fn new(quiet: bool) -> Self {
        PullProgress { quiet, step: RefCell::new(None) }
    }

    /// Shows what a pull reports.
    pub(crate) fn show(&self, event: PullEvent) {
        let mut step = self.step.borrow_mut();
        match event {
            PullEvent::Step(what) => {
                let next = step.insert(Meter::new(what, self.quiet));
                next.announce();
            }
            PullEvent::Bytes { done, total } => {
                if let Some(step) = &*step {
                    step.set(done, total);
                }
            }
        }
    }
}
