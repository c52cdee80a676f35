//! Eviction policies: whose pages leave the device, when, and when they come back. One file per policy.

mod learned;
mod lru;
mod never;
mod signal;
mod ttl;
mod waits;
mod weighed;

pub use learned::LearnedWaits;
pub use lru::Lru;
pub use never::NeverEvict;
pub use signal::SignalledWaits;
pub use ttl::Ttl;
pub(crate) use ttl::TtlSettings;
pub use waits::Waits;
pub(crate) use weighed::WeighedSettings;
pub use weighed::{CostPolicy, Forecast, Weights};

use crate::cost::CostModel;
use crate::session::{Session, Wait};
use crate::state::State;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// What a policy sees.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// All sessions and pages.
    pub state: &'a State,
    /// The cost of copies and of recomputation.
    pub cost: &'a CostModel,
    /// The time.
    pub now: Duration,
    /// Device pages that queued sessions miss, or sessions about to come back.
    pub short: u32,
    /// Free host pages.
    pub host_free: u32,
}

impl View<'_> {
    /// Whether the host has room for the first `pages` device pages of a session. Pages that it holds already
    /// need none.
    pub fn fits_host(&self, session: &Session, pages: u32) -> bool {
        let lacks = || self.state.pages().host_lacks(session.table(), pages);
        // A session's own pages follow the shared ones.
        pages <= self.host_free || lacks().rev().nth(self.host_free as usize).is_none()
    }
}

/// What to do with the pages of a waiting session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    /// They stay on the device.
    Keep,
    /// They go to the host.
    Swap,
    /// They are freed, and computed again when they are wanted.
    Discard,
}

/// A policy's verdict on a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What to do.
    pub decision: Decision,
    /// Why.
    pub why: Why,
    /// With `Keep`, at the beginning of a wait: no demand takes the pages for this time. The rules bound it.
    pub lease: Duration,
    /// With `Keep`: when the verdict may change merely because time has passed.
    pub review: Option<Duration>,
}

impl Verdict {
    /// Keep without a lease.
    pub fn keep(why: Why) -> Self {
        Verdict { decision: Decision::Keep, why, lease: Duration::ZERO, review: None }
    }

    /// Move it off the device.
    pub fn go(decision: Decision, why: Why) -> Self {
        Verdict { decision, why, lease: Duration::ZERO, review: None }
    }
}

/// The reason for a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The policy moves nothing.
    NeverEvicts,
    /// The policy moves only on demand.
    OnDemandOnly,
    /// No session needs the pages.
    NoPressure,
    /// The wait is too short for a move to pay.
    Short {
        /// The rest of the wait.
        remaining: Duration,
        /// Time for the copies, and for the recomputation if the host is full.
        copies: Duration,
    },
    /// The wait is long and pages are missing.
    Long {
        /// The rest of the wait.
        remaining: Duration,
        /// Time for the copies, or for the recomputation.
        costs: Duration,
        /// Pages that are missing.
        short: u32,
    },
    /// The time to live is not over.
    WithinTtl {
        /// The time to live.
        ttl: Duration,
    },
    /// The time to live is over.
    TtlOver {
        /// The time to live.
        ttl: Duration,
    },
    /// The session's state is not on the device.
    NotOnDevice,
    /// The session computes.
    Computing,
    /// The keeper leaves the pages on the device: the host is full, or copies to it have failed.
    HostFull,
    /// The session does not exist.
    Missing,
    /// An estimate of zero.
    NoTime,
    /// Another reason, of a policy outside of this crate.
    Other(&'static str),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Why::NeverEvicts => f.write_str("the policy never evicts"),
            Why::OnDemandOnly => f.write_str("the policy evicts only on demand"),
            Why::NoPressure => f.write_str("no session waits for pages"),
            Why::Short { remaining, copies } => write!(
                f,
                "{} ms of wait left, moving would cost {} ms",
                remaining.as_millis(),
                copies.as_millis()
            ),
            Why::Long { remaining, costs, short } => write!(
                f,
                "{} ms of wait left, moving costs {} ms, {short} pages are missing",
                remaining.as_millis(),
                costs.as_millis()
            ),
            Why::WithinTtl { ttl } => write!(f, "kept for {} ms", ttl.as_millis()),
            Why::TtlOver { ttl } => write!(f, "waited for more than {} ms", ttl.as_millis()),
            Why::NotOnDevice => f.write_str("its state is not on the device"),
            Why::Computing => f.write_str("it still computes"),
            Why::HostFull => f.write_str("the host is full, or copies to it fail"),
            Why::Missing => f.write_str("there is no such session"),
            Why::NoTime => {
                f.write_str("estimated_resume_ms is 0; give 1 or more, or leave it out if it is unknown")
            }
            Why::Other(text) => f.write_str(text),
        }
    }
}

impl Serialize for Why {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Chooses whose pages leave. Decisions are pure: the same view gives the same answer. Only
/// [`observe`](EvictionPolicy::observe) changes a policy.
pub trait EvictionPolicy: fmt::Debug + Send {
    /// The name in the settings.
    fn name(&self) -> &str;

    /// Whether a session is admitted only with all pages that it may ever need, which it then keeps.
    fn reserves(&self) -> bool {
        false
    }

    /// What to do, without demand, with a session that waits on the device. Asked at the beginning of its wait, and at
    /// every plan after that while it has no lease. `view.short` falls as earlier candidates go.
    fn verdict(&self, view: &View<'_>, session: &Session) -> Verdict;

    /// The order in which waiting sessions give up pages on demand: the greatest first, `None` never. A policy that
    /// always answers `None` must reserve.
    fn rank(&self, view: &View<'_>, session: &Session) -> Option<u64>;

    /// When to bring a swapped session back before its client asks.
    fn restore_at(&self, _view: &View<'_>, _session: &Session) -> Option<Duration> {
        None
    }

    /// Learns from a wait that ended after `lasted`.
    fn observe(&mut self, _wait: &Wait, _lasted: Duration) {}
}
