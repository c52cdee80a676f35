//! The policy `ttl`: keep for a time, then swap.

use super::{Decision, EvictionPolicy, Verdict, View, Why};
use crate::session::Session;
use crate::settings::{DAY_MS, Whole};
use serde::Deserialize;
use std::time::Duration;

/// Swaps sessions that have waited longer than a fixed time; 0 swaps at every wait.
#[derive(Clone, Copy, Debug)]
pub struct Ttl {
    ttl: Duration,
}

impl Ttl {
    /// Keeps for `ttl`.
    pub fn new(ttl: Duration) -> Self {
        Ttl { ttl }
    }
}

#[derive(Debug, Deserialize)]
#[serde(default)]
pub(crate) struct TtlSettings {
    ttl_ms: Whole<0, DAY_MS>,
}

impl Default for TtlSettings {
    fn default() -> Self {
        TtlSettings { ttl_ms: Whole(2_000) }
    }
}

impl From<TtlSettings> for Ttl {
    fn from(settings: TtlSettings) -> Self {
        Ttl::new(settings.ttl_ms.ms())
    }
}

impl EvictionPolicy for Ttl {
    fn name(&self) -> &str {
        "ttl"
    }

    fn verdict(&self, view: &View<'_>, session: &Session) -> Verdict {
        let (ttl, end) = (self.ttl, session.quiet_since() + self.ttl);
        if view.now >= end {
            Verdict::go(Decision::Swap, Why::TtlOver { ttl })
        } else {
            Verdict { review: Some(end), ..Verdict::keep(Why::WithinTtl { ttl }) }
        }
    }

    fn rank(&self, view: &View<'_>, session: &Session) -> Option<u64> {
        Some(view.now.saturating_sub(session.quiet_since()).as_micros() as u64)
    }
}
