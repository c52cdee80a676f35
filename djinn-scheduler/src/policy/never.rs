//! The policy `none`: admits what fits, and moves nothing.

use super::{EvictionPolicy, Verdict, View, Why};
use crate::session::Session;

/// Sessions get all pages that they may ever need, or queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct NeverEvict;

impl EvictionPolicy for NeverEvict {
    fn name(&self) -> &str {
        "none"
    }

    fn reserves(&self) -> bool {
        true
    }

    fn verdict(&self, _: &View<'_>, _: &Session) -> Verdict {
        Verdict::keep(Why::NeverEvicts)
    }

    fn rank(&self, _: &View<'_>, _: &Session) -> Option<u64> {
        None
    }
}
