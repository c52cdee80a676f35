//! The policy `lru`: on demand, the session that computed longest ago.

use super::{EvictionPolicy, Verdict, View, Why};
use crate::session::Session;

/// Least recently used first, and only on demand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lru;

impl EvictionPolicy for Lru {
    fn name(&self) -> &str {
        "lru"
    }

    fn verdict(&self, _: &View<'_>, _: &Session) -> Verdict {
        Verdict::keep(Why::OnDemandOnly)
    }

    fn rank(&self, view: &View<'_>, session: &Session) -> Option<u64> {
        Some(view.now.saturating_sub(session.last_use).as_micros() as u64)
    }
}
