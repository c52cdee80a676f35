//! Traces of a running service: begun and ended between two steps, and bounded.

use super::Service;
use crate::{Result, Trace};
use djinn_device::Ops;
use std::time::{Duration, Instant};

/// The most spans of a trace: about 12 MB in memory, and 40 MB as a file.
const MOST_SPANS: usize = 1 << 18;

/// A client's request, to be done when no step is under way.
pub(super) enum TraceWish {
    /// Begin, and end after this time.
    Begin(Duration, Box<dyn FnOnce(Result<()>) + Send>),
    /// End, and return the trace.
    End(Box<dyn FnOnce(Option<Trace>) + Send>),
}

impl std::fmt::Debug for TraceWish {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            TraceWish::Begin(..) => "Begin",
            TraceWish::End(..) => "End",
        })
    }
}

/// The progress of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceProgress {
    /// Whether it still collects. Otherwise it has reached a limit and waits to be taken.
    pub running: bool,
    /// Time since it began.
    pub age: Duration,
}

/// The trace of a service.
#[derive(Debug, Default)]
pub(super) struct Tracing {
    wishes: Vec<TraceWish>,
    /// When the latest trace began, and when it will end.
    times: Option<(Instant, Instant)>,
    /// A trace that has reached a limit.
    kept: Option<Trace>,
}

impl<D: Ops> Service<D> {
    pub(super) fn wish(&mut self, wish: TraceWish) {
        self.tracing.wishes.push(wish);
    }

    /// How far the trace is, if there is one.
    pub(super) fn trace_progress(&self) -> Option<TraceProgress> {
        let (began, _) = self.tracing.times?;
        Some(TraceProgress { running: self.engine().tracing(), age: began.elapsed() })
    }

    /// Does what was requested, if no step is under way.
    pub(super) fn trace_between_steps(&mut self) {
        let Tracing { wishes, times, .. } = &self.tracing;
        if times.is_none() && wishes.is_empty() {
            return;
        }
        let engine = self.batcher.engine();
        let is_over = engine.tracing()
            && (times.is_some_and(|(_, until)| until <= Instant::now())
                || engine.traced_spans() >= MOST_SPANS);
        let is_wanted = is_over || !wishes.is_empty();
        let waits = is_wanted && self.batcher.is_stepping();
        self.batcher.hold_back(waits);
        if waits || !is_wanted {
            return;
        }
        if is_over {
            self.tracing.kept = self.batcher.engine_mut().finish_trace();
        }
        for wish in std::mem::take(&mut self.tracing.wishes) {
            match wish {
                TraceWish::Begin(most, answer) => {
                    let begun = self.batcher.engine_mut().start_trace();
                    if begun.is_ok() {
                        let now = Instant::now();
                        (self.tracing.times, self.tracing.kept) = (Some((now, now + most)), None);
                    }
                    answer(begun);
                }
                TraceWish::End(answer) => {
                    self.tracing.times = None;
                    let running = self.batcher.engine_mut().finish_trace();
                    answer(running.or(self.tracing.kept.take()));
                }
            }
        }
    }
}
