//! Step counters. They are updated as steps end, with a few additions each.

use super::DeviceTimes;
use djinn_vmu::PassStats;
use std::time::Duration;

/// Counts of the steps so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepCounts {
    /// Number of ended steps, and the device's time in and between them.
    pub times: DeviceTimes,
    /// Tokens computed.
    pub tokens: u64,
    /// Streaming statistics, by the device's clock.
    pub streamed: PassStats,
    /// Age of the present step by the host's clock, if there is one.
    pub under_way: Option<Duration>,
}

impl StepCounts {
    /// Adds an ended step of some tokens.
    pub(super) fn add(&mut self, tokens: u64, pass: &PassStats) {
        self.tokens += tokens;
        self.streamed.add(pass);
    }
}
