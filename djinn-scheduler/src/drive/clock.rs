//! Clocks: simulated and real time.

use std::time::{Duration, Instant};

/// A driver's time, and how it waits.
pub trait Clock {
    /// The time since the clock's origin. It never goes back.
    fn now(&mut self) -> Duration;

    /// Waits until `until`, but only for a short moment if work is `under_way` whose end must be polled.
    fn wait(&mut self, until: Option<Duration>, under_way: bool);

    /// Whether time passes while code runs, so that a call's cost can be measured.
    fn is_real(&self) -> bool {
        true
    }
}

/// Simulated time: waiting takes none. Backends must know when their work ends.
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

/// The machine's monotonic time, from the first call.
#[derive(Clone, Copy, Debug, Default)]
pub struct WallClock {
    origin: Option<Instant>,
}

/// The longest sleep while work is under way.
const MOMENT: Duration = Duration::from_micros(50);

impl Clock for WallClock {
    fn now(&mut self) -> Duration {
        self.origin.get_or_insert_with(Instant::now).elapsed()
    }

    fn wait(&mut self, until: Option<Duration>, under_way: bool) {
        let left = until.map(|until| until.saturating_sub(self.now()));
        match (left, under_way) {
            // It may have ended already: yield to other threads, and poll again at once.
            (Some(Duration::ZERO), true) => std::thread::yield_now(),
            (left, true) => std::thread::sleep(left.unwrap_or(MOMENT).min(MOMENT)),
            (Some(left), false) => std::thread::sleep(left),
            (None, false) => {}
        }
    }
}
