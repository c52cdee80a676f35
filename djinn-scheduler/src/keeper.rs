//! State keepers: how many pages a context takes, and where they go when it leaves the device.

use crate::policy::{Decision, View};
use crate::session::Session;
use crate::state::Capacity;
use std::fmt;

/// Decides where a session's state goes, and how large it is.
pub trait StateKeeper: fmt::Debug + Send {
    /// The name in the settings.
    fn name(&self) -> &str;

    /// Pages for a context of `tokens` tokens. More tokens never take fewer; 1 token takes at least 1.
    fn pages(&self, capacity: &Capacity, tokens: u64) -> u32 {
        capacity.pages(tokens)
    }

    /// What to do with a session on the device if the policy wants `wish`, or if other sessions demand its pages
    /// (`pressing`). A swap of `pages(context)` pages must [fit](View::fits_host). If `pressing`, the answer
    /// `Keep` passes on to the next candidate.
    fn place(&self, view: &View<'_>, session: &Session, wish: Decision, pressing: bool) -> Decision;
}

/// The default: to the host while it has room and copies work. Otherwise, on demand, discard.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpillToHost;

impl StateKeeper for SpillToHost {
    fn name(&self) -> &str {
        "tiered"
    }

    fn place(&self, view: &View<'_>, session: &Session, wish: Decision, pressing: bool) -> Decision {
        const GIVE_UP_AFTER: u32 = 3;
        let fits = || view.fits_host(session, self.pages(view.state.capacity(), session.context));
        match wish {
            Decision::Swap if session.failed_copies < GIVE_UP_AFTER && fits() => Decision::Swap,
            Decision::Swap if !pressing => Decision::Keep,
            Decision::Swap => Decision::Discard,
            other => other,
        }
    }
}
