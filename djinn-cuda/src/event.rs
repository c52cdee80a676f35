//! The table of a device's events.

use crate::Result;
use crate::stream::{RawEvent, RawStream};
use djinn_device::Event;
use std::cell::RefCell;
use std::time::Duration;

/// Events by id, and the origin of their timestamps.
///
/// The driver tells times as f32 milliseconds since the origin: to a microsecond for 10 seconds, to 10
/// microseconds for two minutes, and coarser after.
pub(crate) struct Events {
    all: RefCell<Vec<Entry>>,
    origin: RawEvent,
}

struct Entry {
    raw: RawEvent,
    /// A fresh event is done, has no time, and is waited for by nobody.
    recorded: bool,
}

impl Events {
    /// No events; the origin is recorded now, on `stream`.
    pub(crate) fn new(stream: &RawStream) -> Result<Self> {
        let origin = RawEvent::new()?;
        stream.record(&origin)?;
        stream.sync()?;
        Ok(Events { all: RefCell::default(), origin })
    }

    pub(crate) fn create(&self) -> Result<Event> {
        let raw = RawEvent::new()?;
        let mut all = self.all.borrow_mut();
        all.push(Entry { raw, recorded: false });
        Ok(Event::from_raw(all.len() as u32 - 1))
    }

    pub(crate) fn record(&self, stream: &RawStream, event: Event) -> Result<()> {
        let mut all = self.all.borrow_mut();
        let count = all.len();
        let entry = all.get_mut(event.id() as usize).unwrap_or_else(|| foreign(event, count));
        stream.record(&entry.raw)?;
        entry.recorded = true;
        Ok(())
    }

    pub(crate) fn wait(&self, stream: &RawStream, event: Event) -> Result<()> {
        self.recorded(event, |raw| stream.wait(raw)).unwrap_or(Ok(()))
    }

    pub(crate) fn is_done(&self, event: Event) -> Result<bool> {
        self.recorded(event, RawEvent::is_done).unwrap_or(Ok(true))
    }

    pub(crate) fn sync(&self, event: Event) -> Result<()> {
        self.recorded(event, RawEvent::sync).unwrap_or(Ok(()))
    }

    pub(crate) fn timestamp(&self, event: Event) -> Result<Option<Duration>> {
        self.recorded(event, |raw| raw.since(&self.origin)).unwrap_or(Ok(None))
    }

    /// What `then` says of an event that was recorded.
    fn recorded<T>(&self, event: Event, then: impl FnOnce(&RawEvent) -> T) -> Option<T> {
        let all = self.all.borrow();
        let entry = all.get(event.id() as usize).unwrap_or_else(|| foreign(event, all.len()));
        entry.recorded.then(|| then(&entry.raw))
    }
}

fn foreign(event: Event, count: usize) -> ! {
    panic!("{event:?} is not an event of this device, which has {count}")
}
