//! The policy `signal`: waits last as long as clients say.

use super::Forecast;
use crate::session::{Session, Wait};
use std::time::Duration;

/// Believes the client's estimate. Without one, or once it has passed, a wait will last as long again as it
/// has lasted.
#[derive(Clone, Copy, Debug)]
pub struct SignalledWaits {
    default_wait: Duration,
}

impl SignalledWaits {
    /// Waits that nothing is known about last at least `default_wait`.
    pub fn new(default_wait: Duration) -> Self {
        SignalledWaits { default_wait }
    }
}

impl Forecast for SignalledWaits {
    fn name(&self) -> &str {
        "signal"
    }

    fn remaining(&self, _: &Session, wait: &Wait, now: Duration) -> Duration {
        let elapsed = wait.elapsed(now);
        match wait.expected {
            Some(expected) if elapsed < expected => expected - elapsed,
            // Overdue by a little is about to come; overdue by much may come at any time.
            Some(expected) => elapsed - expected,
            None => elapsed.max(self.default_wait),
        }
    }

    fn due(&self, _: &Session, wait: &Wait) -> Option<Duration> {
        wait.expected.map(|expected| wait.since + expected)
    }
}
