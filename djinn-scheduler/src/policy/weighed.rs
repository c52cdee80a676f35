//! Weighs keeping against swapping and recomputing, with a forecast of the wait.

use super::{Decision, EvictionPolicy, Verdict, View, Why};
use crate::session::{Session, Wait};
use crate::settings::{DAY_MS, Number, Whole};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Forecasts waits.
pub trait Forecast: fmt::Debug + Send {
    /// The policy's name.
    fn name(&self) -> &str;

    /// The median of the rest of the wait.
    fn remaining(&self, session: &Session, wait: &Wait, now: Duration) -> Duration;

    /// The earliest time at which the session is likely to be back, if that is known well enough to act on.
    fn due(&self, session: &Session, wait: &Wait) -> Option<Duration>;

    /// Learns from a wait that ended after `lasted`.
    fn observe(&mut self, _wait: &Wait, _lasted: Duration) {}
}

/// Constants of the weighing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Weights {
    /// A wait must last this multiple of the copies out and back before its pages are moved. A wrong guess costs a
    /// stalled turn, more than a right one gains. If the host has no room, the time to compute the context again is
    /// added to the copies, since making room costs that.
    pub hysteresis: f64,
    /// A restore begins this multiple of its own duration before the session is due.
    pub restore_ahead: f64,
    /// A context is recomputed if that takes less than this part of the copies: recomputing keeps other sessions from
    /// computing, while copies do not.
    pub recompute_below: f64,
}

impl Default for Weights {
    fn default() -> Self {
        Weights { hysteresis: 2.0, restore_ahead: 2.0, recompute_below: 0.25 }
    }
}

/// The settings of the policies that weigh.
#[derive(Debug, Deserialize)]
#[serde(default)]
pub(crate) struct WeighedSettings {
    default_wait_ms: Whole<1, DAY_MS>,
    hysteresis: Number<1_000>,
    restore_ahead: Number<100>,
    recompute_below: Number<100>,
}

impl Default for WeighedSettings {
    fn default() -> Self {
        let Weights { hysteresis, restore_ahead, recompute_below } = Weights::default();
        WeighedSettings {
            default_wait_ms: Whole(300),
            hysteresis: Number(hysteresis),
            restore_ahead: Number(restore_ahead),
            recompute_below: Number(recompute_below),
        }
    }
}

impl WeighedSettings {
    /// A policy with the `forecast` made from the default wait.
    pub(crate) fn policy<F: Forecast>(&self, forecast: impl FnOnce(Duration) -> F) -> CostPolicy<F> {
        let weights = Weights {
            hysteresis: self.hysteresis.0,
            restore_ahead: self.restore_ahead.0,
            recompute_below: self.recompute_below.0,
        };
        CostPolicy::new(forecast(self.default_wait_ms.ms()), weights)
    }
}

/// A policy with a forecast. Pages leave when pages are missing and the wait is long against the copies; the farthest
/// return goes first. They come back before they are due.
///
/// Evicting what is used farthest in the future is Belady's rule ("A study of replacement algorithms for a
/// virtual-storage computer", 1966), here with a forecast.
#[derive(Clone, Debug)]
pub struct CostPolicy<F> {
    forecast: F,
    weights: Weights,
}

impl<F: Forecast> CostPolicy<F> {
    /// Weighs by `forecast`.
    pub fn new(forecast: F, weights: Weights) -> Self {
        CostPolicy { forecast, weights }
    }

    /// The forecast.
    pub fn forecast(&self) -> &F {
        &self.forecast
    }

    fn remaining(&self, session: &Session, now: Duration) -> Duration {
        match &session.wait {
            Some(wait) => self.forecast.remaining(session, wait, now),
            // Paused by its client without an estimate: the longer it was, the longer it will be.
            None => now.saturating_sub(session.last_use),
        }
    }
}

impl<F: Forecast> EvictionPolicy for CostPolicy<F> {
    fn name(&self) -> &str {
        self.forecast.name()
    }

    fn verdict(&self, view: &View<'_>, session: &Session) -> Verdict {
        let remaining = self.remaining(session, view.now);
        let copies = view.cost.round_trip(session.device_pages());
        let recompute = view.cost.recompute(session.context);
        // If the host is full, every way out makes some session be computed again.
        let full = !view.fits_host(session, session.device_pages());
        let moving = if full { copies + recompute } else { copies };
        let threshold = moving.mul_f64(self.weights.hysteresis);
        if remaining <= threshold {
            // Once overdue by as much again, the forecast is not believed any more.
            let lease = remaining + threshold;
            let review = Some(view.now + lease);
            return Verdict { lease, review, ..Verdict::keep(Why::Short { remaining, copies: moving }) };
        }
        if view.short == 0 {
            return Verdict::keep(Why::NoPressure);
        }
        let (short, discard) = (view.short, recompute < copies.mul_f64(self.weights.recompute_below));
        let costs = if discard { recompute } else { moving };
        let decision = if discard { Decision::Discard } else { Decision::Swap };
        Verdict::go(decision, Why::Long { remaining, costs, short })
    }

    fn rank(&self, view: &View<'_>, session: &Session) -> Option<u64> {
        Some(self.remaining(session, view.now).as_micros() as u64)
    }

    fn restore_at(&self, view: &View<'_>, session: &Session) -> Option<Duration> {
        let due = self.forecast.due(session, session.wait.as_ref()?)?;
        let ahead = view.cost.swap_in(session.host_pages()).mul_f64(self.weights.restore_ahead);
        Some(due.saturating_sub(ahead))
    }

    fn observe(&mut self, wait: &Wait, lasted: Duration) {
        self.forecast.observe(wait, lasted);
    }
}
