//! The policy `signal`: waits last as long as clients say.

use super::Forecast;
use crate::session::{Session, Wait};
use std::time::Duration;

/// Uses the client's estimate. Without one, or after it has passed, a wait is expected to last twice its present
/// length.
#[derive(Clone, Copy, Debug)]
pub struct SignalledWaits {
    default_wait: Duration,
}

impl SignalledWaits {
    /// Waits without an estimate are expected to last at least `default_wait`.
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
            // A little overdue: about to come. Much overdue: may come at any time.
            Some(expected) => elapsed - expected,
            None => elapsed.max(self.default_wait),
        }
    }

    fn due(&self, _: &Session, wait: &Wait) -> Option<Duration> {
        wait.expected.map(|expected| wait.since + expected)
    }
}
