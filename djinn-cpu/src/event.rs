//! Events: each recording is a completion of its own, so that a wait refers to the recording of its time.

use djinn_device::{Event, Handles};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

/// Turns at which a waiting thread gives way before it sleeps.
pub(crate) const SPINS: u32 = 200;

/// Whether, and when, one recording's work was done. Set once.
#[derive(Default)]
pub(crate) struct Completion(OnceLock<Option<Duration>>);

impl Completion {
    /// The work is done at `at`, or was given up (`None`). Of several calls the first counts.
    pub(crate) fn complete(&self, at: Option<Duration>) {
        let _ = self.0.set(at);
    }

    /// Whether the work is done or given up.
    pub(crate) fn is_done(&self) -> bool {
        self.0.get().is_some()
    }

    /// When the work was done.
    pub(crate) fn at(&self) -> Option<Duration> {
        self.0.get().copied().flatten()
    }

    /// Waits until the work is done or given up.
    pub(crate) fn block(&self) {
        for _ in 0..SPINS {
            if self.is_done() {
                return;
            }
            std::thread::yield_now();
        }
        self.0.wait();
    }
}

/// The events of one device.
#[derive(Default)]
pub(crate) struct Events(RwLock<Handles<Option<Arc<Completion>>>>);

impl Events {
    /// A new event, never recorded.
    pub(crate) fn create(&self) -> Event {
        Event::from_raw(self.0.write().unwrap_or_else(PoisonError::into_inner).insert(None))
    }

    /// Events that are not freed.
    pub(crate) fn live(&self) -> usize {
        self.0.read().unwrap_or_else(PoisonError::into_inner).iter().count()
    }

    /// Forgets an event.
    ///
    /// # Panics
    /// If it is foreign or was freed.
    pub(crate) fn free(&self, event: Event) {
        let freed = self.0.write().unwrap_or_else(PoisonError::into_inner).remove(event.id());
        freed.unwrap_or_else(|| foreign(event));
    }

    /// Makes `event` stand for `completion`.
    ///
    /// # Panics
    /// If the event is foreign or was freed.
    pub(crate) fn record(&self, event: Event, completion: Arc<Completion>) {
        let mut events = self.0.write().unwrap_or_else(PoisonError::into_inner);
        *events.get_mut(event.id()).unwrap_or_else(|| foreign(event)) = Some(completion);
    }

    /// The latest recording; `None` before the first.
    ///
    /// # Panics
    /// If the event is foreign or was freed.
    pub(crate) fn latest(&self, event: Event) -> Option<Arc<Completion>> {
        let events = self.0.read().unwrap_or_else(PoisonError::into_inner);
        events.get(event.id()).unwrap_or_else(|| foreign(event)).clone()
    }
}

fn foreign(event: Event) -> ! {
    panic!("{event:?} is not an event of this device, or was freed")
}
