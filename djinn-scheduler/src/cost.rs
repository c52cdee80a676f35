//! The cost of copying or recomputing a session's state.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Measured rates of a machine with a model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostModel {
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Bytes per second from device to host.
    pub out_bytes_per_s: f64,
    /// Bytes per second from host to device.
    pub in_bytes_per_s: f64,
    /// Prompt tokens computed per second.
    pub prefill_tokens_per_s: f64,
}

impl CostModel {
    /// Time to copy `pages` to the host.
    pub fn swap_out(&self, pages: u32) -> Duration {
        seconds(self.bytes(pages) as f64 / self.out_bytes_per_s)
    }

    /// Time to copy `pages` to the device.
    pub fn swap_in(&self, pages: u32) -> Duration {
        seconds(self.bytes(pages) as f64 / self.in_bytes_per_s)
    }

    /// Time to copy `pages` out and back.
    pub fn round_trip(&self, pages: u32) -> Duration {
        self.swap_out(pages) + self.swap_in(pages)
    }

    /// Time to compute the keys and values of `tokens` again. Unlike a copy, it keeps other sessions from computing.
    pub fn recompute(&self, tokens: u64) -> Duration {
        seconds(tokens as f64 / self.prefill_tokens_per_s)
    }

    /// Bytes of `pages`.
    pub fn bytes(&self, pages: u32) -> u64 {
        self.page_bytes.saturating_mul(pages as u64)
    }

    /// The first invalid figure, if any.
    pub(crate) fn problem(&self) -> Option<&'static str> {
        let positive = |rate: f64| rate.is_finite() && rate > 0.0;
        match () {
            () if self.page_bytes == 0 => Some("page_bytes is 0"),
            () if !positive(self.out_bytes_per_s) => Some("out_bytes_per_s is not above 0"),
            () if !positive(self.in_bytes_per_s) => Some("in_bytes_per_s is not above 0"),
            () if !positive(self.prefill_tokens_per_s) => Some("prefill_tokens_per_s is not above 0"),
            () => None,
        }
    }
}

/// A duration from seconds. Negative values and NaN give 0; the most is a century.
pub(crate) fn seconds(value: f64) -> Duration {
    const CENTURY_S: f64 = 3.2e9;
    Duration::from_secs_f64(if value > 0.0 { value.min(CENTURY_S) } else { 0.0 })
}
