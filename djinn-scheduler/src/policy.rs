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

/// The policy `signal`: weighs by what clients say.
pub type SignalPolicy = CostPolicy<SignalledWaits>;

/// The policy `predicted`: as `signal`, with waits learned online per tool.
pub type PredictedPolicy = CostPolicy<LearnedWaits>;

/// What a policy may look at.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// All sessions and pages.
    pub state: &'a State,
    /// What copies and recomputation cost.
    pub cost: &'a CostModel,
    /// The time.
    pub now: Duration,
    /// Device pages that those who queue, or are about to come back, miss.
    pub short: u32,
    /// Host pages that are free.
    pub host_free: u32,
}

/// What to do with the pages of a session that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    /// They stay on the device.
    Keep,
    /// They go to the host.
    Swap,
    /// They are given up, and computed again when they are wanted.
    Discard,
}

/// A policy's word on one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What to do.
    pub decision: Decision,
    /// Why.
    pub why: Why,
    /// With `Keep`, at the beginning of a wait: for this time no demand takes the pages. The rules bound it.
    pub lease: Duration,
    /// With `Keep`: when the word may change with nothing but time passing.
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

/// The reason of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The policy moves nothing.
    NeverEvicts,
    /// The policy moves only on demand.
    OnDemandOnly,
    /// No session needs the pages.
    NoPressure,
    /// The wait is shorter than it pays to move for.
    Short {
        /// What is left of the wait.
        remaining: Duration,
        /// Time of the copies, and of the recomputation where the host is full.
        copies: Duration,
    },
    /// The wait is long and pages are missing.
    Long {
        /// What is left of the wait.
        remaining: Duration,
        /// Time of the copies, or of the recomputation.
        costs: Duration,
        /// Pages that are missing.
        short: u32,
    },
    /// The time to keep is not over.
    WithinTtl {
        /// The time to keep.
        ttl: Duration,
    },
    /// The time to keep is over.
    TtlOver {
        /// The time to keep.
        ttl: Duration,
    },
    /// The session's state is not on the device.
    NotOnDevice,
    /// The session computes.
    Computing,
    /// The host is full and no session queues.
    HostFull,
    /// There is no such session.
    Missing,
    /// An estimate of no time at all.
    NoTime,
    /// Another reason, of a policy outside this crate.
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
            Why::HostFull => f.write_str("the host is full"),
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

/// Chooses whose pages leave. Decisions are pure: the same view gives the same answer; only
/// [`observe`](EvictionPolicy::observe) changes a policy.
pub trait EvictionPolicy: fmt::Debug + Send {
    /// The name in the settings.
    fn name(&self) -> &str;

    /// Whether a session is admitted only when all pages that it may ever need are free, and then keeps them.
    fn reserves(&self) -> bool {
        false
    }

    /// What to do, unasked, with a session that waits on the device. Asked when its wait begins, and at every
    /// plan from then on while it has no lease; `view.short` falls as earlier candidates go.
    fn verdict(&self, view: &View<'_>, session: &Session) -> Verdict;

    /// The order in which waiting sessions give up pages that others demand: the greatest first, `None`
    /// never. A policy that answers `None` for ever must reserve.
    fn rank(&self, view: &View<'_>, session: &Session) -> Option<u64>;

    /// From when on a session that waits in host memory should be brought back before it asks.
    fn restore_at(&self, _view: &View<'_>, _session: &Session) -> Option<Duration> {
        None
    }

    /// A wait ended after `lasted`.
    fn observe(&mut self, _wait: &Wait, _lasted: Duration) {}
}
