//! Captured work: the calls themselves, to be made again.

use djinn_device::{Capture, Event, Operation, Span, Stream};
use std::sync::Arc;

/// A call that enqueues.
#[derive(Clone, Copy, Debug)]
pub(super) enum Call {
    Copy { src: Span, dst: Span },
    Fill { dst: Span, byte: u8 },
    Operation(Operation),
    Record(Event),
    Wait(Event),
}

/// The calls of one capture, in order.
#[derive(Debug, Default)]
pub(super) struct Tape {
    pub(super) streams: Vec<Stream>,
    /// One for each stream, for its replays' beginning and end.
    pub(super) joints: Vec<Event>,
    pub(super) calls: Vec<(Stream, Call)>,
}

/// A device's captures.
#[derive(Default)]
pub(super) struct Tapes {
    open: Option<Tape>,
    kept: Vec<Option<Arc<Tape>>>,
}

impl Tapes {
    /// # Panics
    /// If a capture is under way, or there are no streams.
    pub(super) fn begin(&mut self, streams: &[Stream], joints: Vec<Event>) {
        assert!(self.open.is_none(), "a capture begins within another");
        assert!(!streams.is_empty(), "a capture of no stream");
        self.open = Some(Tape { streams: streams.to_vec(), joints, calls: Vec::new() });
    }

    pub(super) fn end(&mut self) -> Tape {
        self.open.take().expect("a capture was begun")
    }

    pub(super) fn store(&mut self, tape: Tape) -> Capture {
        self.kept.push(Some(Arc::new(tape)));
        Capture::from_raw(self.kept.len() as u32 - 1)
    }

    /// Keeps a call if a capture is under way; whether it is.
    ///
    /// # Panics
    /// If the call is on a stream that the capture does not cover.
    pub(super) fn keep(&mut self, stream: Stream, call: Call) -> bool {
        let Some(tape) = &mut self.open else { return false };
        assert!(tape.streams.contains(&stream), "{call:?} on {stream:?}, which is not captured");
        let recorded = |event| tape.calls.iter().any(|(_, c)| matches!(c, Call::Record(e) if *e == event));
        match call {
            Call::Wait(event) if !recorded(event) => {}
            _ => tape.calls.push((stream, call)),
        }
        true
    }

    /// # Panics
    /// If a capture is under way.
    pub(super) fn refuse(&self, what: &str) {
        assert!(self.open.is_none(), "the host {what} while work is captured");
    }

    /// # Panics
    /// If the capture is foreign or was freed.
    pub(super) fn get(&self, capture: Capture) -> Arc<Tape> {
        let tape = self.kept.get(capture.id() as usize).and_then(Option::as_ref);
        tape.cloned().unwrap_or_else(|| panic!("{capture:?} is not a capture of this device"))
    }

    /// # Panics
    /// If the capture is foreign or was freed.
    pub(super) fn free(&mut self, capture: Capture) -> Arc<Tape> {
        let tape = self.get(capture);
        self.kept[capture.id() as usize] = None;
        tape
    }
}
