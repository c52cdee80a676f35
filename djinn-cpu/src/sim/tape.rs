//! Captured work: the calls themselves, to be made again.

use djinn_device::{Capture, Event, Handles, Operation, Span, Stream};
use std::sync::Arc;

/// A call that enqueues.
#[derive(Clone, Copy, Debug)]
pub(super) enum Call {
    Copy {
        src: Span,
        dst: Span,
    },
    Fill {
        dst: Span,
        byte: u8,
    },
    /// What an operation may leave unwritten.
    Poison(Span),
    Operation(Operation),
    Record(Event),
    Wait(Event),
}

impl Call {
    /// Whether it records an event or waits for it.
    fn has(self, event: Event) -> bool {
        matches!(self, Call::Record(used) | Call::Wait(used) if used == event)
    }
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
    kept: Handles<Arc<Tape>>,
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
        Capture::from_raw(self.kept.insert(Arc::new(tape)))
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
    /// If a capture covers the stream.
    pub(super) fn refuse_stream(&self, stream: Stream) {
        let covers = self.kept.iter().any(|(_, tape)| tape.streams.contains(&stream));
        assert!(!covers, "the host frees {stream:?}, which a kept capture covers");
    }

    /// # Panics
    /// If a capture records the event or waits for it.
    pub(super) fn refuse_event(&self, event: Event) {
        let has = |tape: &Tape| tape.calls.iter().any(|(_, call)| call.has(event));
        assert!(
            !self.kept.iter().any(|(_, tape)| has(tape)),
            "the host frees {event:?}, which a capture has"
        );
    }

    /// # Panics
    /// If the capture is foreign or was freed.
    pub(super) fn get(&self, capture: Capture) -> Arc<Tape> {
        self.kept
            .get(capture.id())
            .cloned()
            .unwrap_or_else(|| panic!("{capture:?} is not a capture of this device"))
    }

    /// # Panics
    /// If the capture is foreign or was freed.
    pub(super) fn free(&mut self, capture: Capture) -> Arc<Tape> {
        let tape = self.get(capture);
        self.kept.remove(capture.id());
        tape
    }
}
