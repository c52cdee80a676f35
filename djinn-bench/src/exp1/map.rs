//! Where each session's pages were over time: seen from the plans that a backend gets.

use crate::{interrupt, remark};
use djinn_scheduler::sim::RunSpan;
use djinn_scheduler::{Backend, Completion, Plan, Residency, SessionId, State};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Columns of a map, at most.
const COLUMNS: u32 = 240;
/// Between two remarks on how far a run is.
const AGAIN: Duration = Duration::from_secs(10);

/// Sessions by columns of time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Map {
    /// Time of each column, in seconds.
    pub(crate) seconds: Vec<f64>,
    /// Sessions in order of their coming.
    pub(crate) sessions: Vec<Line>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) session: u64,
    /// The column in which it was first seen.
    pub(crate) from: usize,
    /// A letter for each column from there: `d`evice, `h`ost, `m`oving, or `g`one, i.e. without pages.
    pub(crate) cells: String,
}

/// A backend that is watched. Ctrl-C makes it fail, which ends the run.
#[derive(Debug)]
pub(super) struct Watched<B> {
    backend: B,
    every: Duration,
    next: Duration,
    presses: u32,
    /// When the next remark is due, where the clock is the user's.
    say_at: Option<Duration>,
    end: Duration,
    seconds: Vec<f64>,
    lines: BTreeMap<SessionId, Line>,
    admitted: u32,
}

/// What was seen of a run.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) map: Map,
    /// The most sessions whose pages were on the device at once.
    pub(super) admitted: u32,
}

impl<B: Backend> Watched<B> {
    pub(super) fn new(backend: B, span: RunSpan) -> Self {
        Watched {
            backend,
            every: span.end / COLUMNS,
            next: Duration::ZERO,
            presses: interrupt::presses(),
            say_at: None,
            end: span.end,
            seconds: Vec::new(),
            lines: BTreeMap::new(),
            admitted: 0,
        }
    }

    /// Tells the user from time to time how far the run is.
    pub(super) fn telling(self) -> Self {
        Watched { say_at: Some(AGAIN), ..self }
    }

    fn say(&mut self, now: Duration) {
        if self.say_at.is_some_and(|at| now >= at) {
            self.say_at = Some(now + AGAIN);
            remark(&format!("after {:.0} of {:.0} s", now.as_secs_f64(), self.end.as_secs_f64()));
        }
    }

    pub(super) fn into_parts(self) -> (B, Seen) {
        let map = Map { seconds: self.seconds, sessions: self.lines.into_values().collect() };
        (self.backend, Seen { map, admitted: self.admitted })
    }

    fn look(&mut self, state: &State, now: Duration) {
        let on_device = state.sessions().filter(|session| session.residency() == Residency::Device);
        self.admitted = self.admitted.max(on_device.count() as u32);
        if now < self.next {
            return;
        }
        self.next = now + self.every;
        let column = self.seconds.len();
        self.seconds.push(now.as_secs_f64());
        for session in state.sessions() {
            let new = || Line { session: session.id.0, from: column, cells: String::new() };
            self.lines.entry(session.id).or_insert_with(new).cells.push(match session.residency() {
                Residency::Device => 'd',
                Residency::Host => 'h',
                Residency::Leaving | Residency::Arriving => 'm',
                Residency::Gone => 'g',
            });
        }
    }
}

impl<B: Backend> Backend for Watched<B> {
    fn name(&self) -> &str {
        self.backend.name()
    }

    fn submit(&mut self, plan: &Plan, state: &State, now: Duration) {
        self.look(state, now);
        self.backend.submit(plan, state, now);
    }

    fn takes_next(&self) -> bool {
        self.backend.takes_next()
    }

    fn next_event(&self) -> Option<Duration> {
        self.backend.next_event()
    }

    fn poll(&mut self, now: Duration) -> Completion {
        self.say(now);
        let mut completion = self.backend.poll(now);
        if interrupt::presses() != self.presses {
            completion.failure.get_or_insert_with(|| "interrupted".to_owned());
        }
        completion
    }
}
