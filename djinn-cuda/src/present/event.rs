//! The table of a device's events.

use crate::Result;
use crate::present::stream::{RawEvent, RawStream};
use djinn_device::{Event, Handles};
use std::cell::RefCell;
use std::time::Duration;

/// The driver tells times between two events as f32 milliseconds: to half a microsecond within this span.
const FINE_MS: f32 = 4096.0;

/// Events by id, and the clock of their timestamps.
pub(crate) struct Events {
    all: RefCell<Handles<Entry>>,
    clock: RefCell<Clock>,
}

/// A recent event whose time is known.
struct Clock {
    /// Carries no work but the recording of `mark`.
    stream: RawStream,
    mark: RawEvent,
    /// Milliseconds from the device's origin to the mark.
    at: f64,
}

impl Clock {
    fn new() -> Result<Self> {
        let (stream, mark) = (RawStream::new()?, RawEvent::new()?);
        stream.record(&mark)?;
        stream.sync()?;
        Ok(Clock { stream, mark, at: 0.0 })
    }

    /// When the event's work was done, since the origin.
    fn time(&mut self, event: &RawEvent) -> Result<Option<Duration>> {
        let Some(mut ms) = event.since(&self.mark)? else { return Ok(None) };
        if ms > FINE_MS {
            let mark = RawEvent::new()?;
            self.stream.record(&mark)?;
            self.stream.sync()?;
            self.at += mark.since(&self.mark)?.map_or(0.0, f64::from);
            self.mark = mark;
            ms = event.since(&self.mark)?.unwrap_or(0.0);
        }
        Ok(Some(Duration::from_secs_f64((self.at + f64::from(ms)).max(0.0) / 1e3)))
    }
}

struct Entry {
    raw: RawEvent,
    /// Whether it was recorded. A fresh event is done, has no time, and nothing waits for it.
    recorded: bool,
    /// Its point in the capture under way. The driver orders captured work only by events that are recorded in the
    /// capture, and tells the times of the others only. So each of our events has one of either kind.
    point: Option<RawEvent>,
}

impl Events {
    /// No events; the origin of their times is now.
    pub(crate) fn new() -> Result<Self> {
        Ok(Events { all: RefCell::default(), clock: RefCell::new(Clock::new()?) })
    }

    pub(crate) fn create(&self) -> Result<Event> {
        let raw = RawEvent::new()?;
        let entry = Entry { raw, recorded: false, point: None };
        Ok(Event::from_raw(self.all.borrow_mut().insert(entry)))
    }

    /// The driver destroys an event once the work that it stands for is done.
    pub(crate) fn free(&self, event: Event) {
        self.all.borrow_mut().remove(event.id()).unwrap_or_else(|| foreign(event));
    }

    pub(crate) fn record(&self, stream: &RawStream, event: Event) -> Result<()> {
        let mut all = self.all.borrow_mut();
        let entry = all.get_mut(event.id()).unwrap_or_else(|| foreign(event));
        stream.record(&entry.raw)?;
        entry.recorded = true;
        Ok(())
    }

    pub(crate) fn wait(&self, stream: &RawStream, event: Event) -> Result<()> {
        self.recorded(event, |raw| stream.wait(raw)).unwrap_or(Ok(()))
    }

    /// [`record`](Self::record), while the stream is captured.
    pub(crate) fn capture_record(&self, stream: &RawStream, event: Event) -> Result<()> {
        let mut all = self.all.borrow_mut();
        let entry = all.get_mut(event.id()).unwrap_or_else(|| foreign(event));
        stream.record_in_replay(&entry.raw)?;
        if entry.point.is_none() {
            entry.point = Some(RawEvent::new()?);
        }
        entry.point.as_ref().map_or(Ok(()), |point| stream.record(point))
    }

    /// [`wait`](Self::wait), while the stream is captured: only for what was recorded in the capture.
    pub(crate) fn capture_wait(&self, stream: &RawStream, event: Event) -> Result<()> {
        let all = self.all.borrow();
        let entry = all.get(event.id()).unwrap_or_else(|| foreign(event));
        entry.point.as_ref().map_or(Ok(()), |point| stream.wait(point))
    }

    /// Ends a capture, and returns the events recorded in it. Until the first replay they stand for nothing new.
    pub(crate) fn end_capture(&self) -> Vec<Event> {
        let mut recorded = Vec::new();
        for (id, entry) in self.all.borrow_mut().iter_mut() {
            if entry.point.take().is_some() {
                recorded.push(Event::from_raw(id));
            }
        }
        recorded
    }

    /// Notes that a replay recorded these events.
    pub(crate) fn replayed(&self, events: &[Event]) {
        let mut all = self.all.borrow_mut();
        for &event in events {
            all.get_mut(event.id()).unwrap_or_else(|| foreign(event)).recorded = true;
        }
    }

    pub(crate) fn is_done(&self, event: Event) -> Result<bool> {
        self.recorded(event, RawEvent::is_done).unwrap_or(Ok(true))
    }

    pub(crate) fn sync(&self, event: Event) -> Result<()> {
        self.recorded(event, RawEvent::sync).unwrap_or(Ok(()))
    }

    pub(crate) fn timestamp(&self, event: Event) -> Result<Option<Duration>> {
        self.recorded(event, |raw| self.clock.borrow_mut().time(raw)).unwrap_or(Ok(None))
    }

    /// Calls `then` with an event if it was recorded.
    fn recorded<T>(&self, event: Event, then: impl FnOnce(&RawEvent) -> T) -> Option<T> {
        let all = self.all.borrow();
        let entry = all.get(event.id()).unwrap_or_else(|| foreign(event));
        entry.recorded.then(|| then(&entry.raw))
    }
}

fn foreign(event: Event) -> ! {
    panic!("{event:?} is not an event of this device, or was freed")
}
