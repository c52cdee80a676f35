//! Clocks: simulated time, which jumps, and the machine's, which passes.

use std::time::{Duration, Instant};

/// What time it is for a driver, and how it waits.
pub trait Clock {
    /// The time since the clock's origin. It never goes back.
    fn now(&mut self) -> Duration;

    /// Waits until `until`; for a short moment at most where something is `under_way`, whose end only asking
    /// tells when it ends.
    fn wait(&mut self, until: Option<Duration>, under_way: bool);

    /// Whether time passes by itself, so that what a call costs can be seen.
    fn is_real(&self) -> bool {
        true
    }
}

/// Simulated time: waiting takes none. Backends must know when what is under way ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Virtual {
    now: Duration,
}

impl Clock for Virtual {
    fn now(&mut self) -> Duration {
        self.now
    }

    fn wait(&mut self, until: Option<Duration>, _: bool) {
        self.now = self.now.max(until.unwrap_or_default());
    }

    fn is_real(&self) -> bool {
        false
    }
}

/// The machine's monotonic time, from the first look at it.
#[derive(Clone, Copy, Debug, Default)]
pub struct WallClock {
    origin: Option<Instant>,
}

/// Longest sleep while something is under way.
const MOMENT: Duration = Duration::from_micros(50);

impl Clock for WallClock {
    fn now(&mut self) -> Duration {
        self.origin.get_or_insert_with(Instant::now).elapsed()
    }

    fn wait(&mut self, until: Option<Duration>, under_way: bool) {
        let left = until.map(|until| until.saturating_sub(self.now()));
        match (left, under_way) {
            // It may have ended already: give way to other threads, but look again at once.
            (Some(Duration::ZERO), true) => std::thread::yield_now(),
            (left, true) => std::thread::sleep(left.unwrap_or(MOMENT).min(MOMENT)),
            (Some(left), false) => std::thread::sleep(left),
            (None, false) => {}
        }
    }
}
