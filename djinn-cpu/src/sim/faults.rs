//! Faults that are planted from outside while a device runs.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// What a planted fault does. The device is lost by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimFault {
    /// The call fails.
    Call,
    /// The call succeeds, and the work that it enqueued leaves poison where it should write: a later call tells. A call
    /// that enqueues no such work fails.
    Work,
    /// The call panics, as a bug of the device's program does.
    Panic,
}

/// Faults to come, one after another. They are counted over all devices that are made with them, so that one may wait for
/// the device that replaces a lost one.
#[derive(Clone, Debug, Default)]
pub struct SimFaults {
    planted: Arc<Mutex<VecDeque<(u64, SimFault)>>>,
}

impl SimFaults {
    /// Plants a fault in the `call`th call that can fail, counted from 1: from now on, or from the fault that was planted
    /// before and is still to come. `is_done` is not counted: how often it is asked depends on the host's speed.
    pub fn plant(&self, call: u64, fault: SimFault) {
        self.with(|planted| planted.push_back((call, fault)));
    }

    /// Takes away the faults that are still to come; how many.
    pub fn clear(&self) -> usize {
        self.with(|planted| std::mem::take(planted).len())
    }

    /// Counts a call, and gives the fault that it meets.
    pub(super) fn meet(&self) -> Option<SimFault> {
        self.with(|planted| {
            let (left, _) = planted.front_mut()?;
            *left = left.saturating_sub(1);
            if *left > 0 { None } else { planted.pop_front().map(|(_, fault)| fault) }
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut VecDeque<(u64, SimFault)>) -> T) -> T {
        work(&mut self.planted.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
