//! A policy that knows the future: a bound, for simulations only.

use crate::policy::{CostPolicy, Forecast, Weights};
use crate::session::{Session, SessionId, Wait};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Waiting sessions, with the end of each wait. The simulation writes it, and the policy reads it.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    next_use: Arc<Mutex<BTreeMap<SessionId, Duration>>>,
}

impl Oracle {
    /// The session will be back at `at`.
    pub fn tell(&self, session: SessionId, at: Duration) {
        self.lock().insert(session, at);
    }

    fn next_use(&self, session: SessionId) -> Option<Duration> {
        self.lock().get(&session).copied()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SessionId, Duration>> {
        self.next_use.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Forecast for Oracle {
    fn name(&self) -> &str {
        "belady"
    }

    fn remaining(&self, session: &Session, _: &Wait, now: Duration) -> Duration {
        const NEVER: Duration = Duration::from_secs(3_200_000_000);
        self.next_use(session.id).unwrap_or(NEVER).saturating_sub(now)
    }

    fn due(&self, session: &Session, _: &Wait) -> Option<Duration> {
        self.next_use(session.id)
    }
}

/// Belady's MIN over the true ends of waits.
pub type Belady = CostPolicy<Oracle>;

impl Belady {
    /// A policy that looks into `oracle`.
    pub fn knowing(oracle: &Oracle) -> Self {
        CostPolicy::new(oracle.clone(), Weights::default())
    }
}
