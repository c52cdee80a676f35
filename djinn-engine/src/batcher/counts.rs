//! What steps did, counted as they end at the cost of a few additions each.

use super::DeviceTimes;
use djinn_vmu::PassStats;
use std::time::Duration;

/// What steps did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepCounts {
    /// How many ended, and the device's time in and between them.
    pub times: DeviceTimes,
    /// Tokens that they computed.
    pub tokens: u64,
    /// What streaming did in them, by the device's clock.
    pub streamed: PassStats,
    /// How long the present step is under way, by the host's clock, if there is one.
    pub under_way: Option<Duration>,
}

impl StepCounts {
    /// A step of some tokens that ended.
    pub(super) fn add(&mut self, tokens: u64, pass: &PassStats) {
        self.tokens += tokens;
        self.streamed.add(pass);
    }
}
