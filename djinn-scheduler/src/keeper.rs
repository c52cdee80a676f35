//! Session-state management: how many pages a context takes, and where it goes when it leaves the device.

use crate::policy::{Decision, View};
use crate::session::Session;
use crate::state::Capacity;
use std::fmt;

/// Decides where the state of a session goes, and accounts for its size.
pub trait StateKeeper: fmt::Debug + Send {
    /// The name in the settings.
    fn name(&self) -> &str;

    /// Pages that a context of `tokens` tokens takes. Never fewer for more tokens, and at least 1 for 1.
    fn pages(&self, capacity: &Capacity, tokens: u64) -> u32 {
        capacity.pages(tokens)
    }

    /// What is done with a session on the device when the policy says `wish` of it, or when its pages others
    /// demand (`pressing`). A swap takes `pages(context)` of `view.host_free`; when `pressing`, an
    /// answer of `Keep` means that the next candidate is asked.
    fn place(&self, view: &View<'_>, session: &Session, wish: Decision, pressing: bool) -> Decision;
}

/// The default: to the host while it has room and copies work; otherwise, under demand, recompute.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpillToHost;

impl StateKeeper for SpillToHost {
    fn name(&self) -> &str {
        "tiered"
    }

    fn place(&self, view: &View<'_>, session: &Session, wish: Decision, pressing: bool) -> Decision {
        const GIVE_UP_AFTER: u32 = 3;
        let fits = self.pages(view.state.capacity(), session.context) <= view.host_free;
        match wish {
            Decision::Swap if fits && session.failed_copies < GIVE_UP_AFTER => Decision::Swap,
            Decision::Swap if !pressing => Decision::Keep,
            Decision::Swap => Decision::Discard,
            other => other,
        }
    }
}
