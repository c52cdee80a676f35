//! The measurements of a run.

use crate::session::SessionId;
use serde::Serialize;
use std::time::Duration;

/// The parts of a turn's latency, from its request to its last token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LatencyParts {
    /// Until there was room and a step for it.
    pub queue: Duration,
    /// Until its state was back from the host.
    pub restore: Duration,
    /// Until its prompt, and what was discarded, was computed.
    pub prefill: Duration,
    /// Until its last token, including preemptions.
    pub decode: Duration,
}

/// One turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TurnRecord {
    /// The session.
    pub session: SessionId,
    /// When the turn was asked for.
    pub asked: Duration,
    /// When its last token came.
    pub ended: Duration,
    /// Tokens generated.
    pub tokens: u64,
    /// Where the time went.
    pub parts: LatencyParts,
}

impl TurnRecord {
    /// From request to last token.
    pub fn latency(&self) -> Duration {
        self.ended - self.asked
    }
}

/// The machine at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// The time.
    pub at: Duration,
    /// Sessions.
    pub sessions: u32,
    /// Sessions that compute or could.
    pub ready: u32,
    /// Sessions whose pages are on the device.
    pub on_device: u32,
    /// Sessions whose pages are in host memory.
    pub on_host: u32,
    /// Sessions whose pages are on the way.
    pub moving: u32,
    /// Sessions without pages.
    pub gone: u32,
    /// Device pages held.
    pub device_pages: u32,
    /// Host pages held.
    pub host_pages: u32,
}

/// A run's results.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// The policy's name.
    pub policy: String,
    /// The measured span, for rates and turns.
    pub measured: Duration,
    /// When the run ended.
    pub ended: Duration,
    /// Why the backend could not go on, if it failed.
    pub failure: Option<String>,
    /// Turns that ended within the measured span.
    pub turns: Vec<TurnRecord>,
    /// Tokens generated within the measured span.
    pub tokens: u64,
    /// Sessions that came.
    pub arrived: u64,
    /// Sessions that finished.
    pub finished: u64,
    /// Those that finished within the measured span.
    pub finished_in_span: u64,
    /// Sessions that were refused.
    pub refused: u64,
    /// Sessions that were neither finished nor refused at the end.
    pub open: u64,
    /// Copies to the host.
    pub swaps_out: u64,
    /// Copies to the device.
    pub swaps_in: u64,
    /// Copies that failed.
    pub failed_copies: u64,
    /// Bytes copied to the host.
    pub bytes_out: u64,
    /// Bytes copied to the device.
    pub bytes_in: u64,
    /// Contexts given up.
    pub discards: u64,
    /// Contexts that left the device while their sessions computed.
    pub preemptions: u64,
    /// Prompt tokens found as shared prefixes.
    pub found: u64,
    /// Steps.
    pub steps: u64,
    /// Decodes of all steps.
    pub decodes: u64,
    /// The time each signal took, within the measured span; only in real time.
    pub signals: Vec<Duration>,
    /// For each swap-out of a waiting session within the measured span: the time from its signal, or from the end of
    /// its turn if there was none, until the backend had begun the copy.
    pub signal_to_submit: Vec<Duration>,
    /// The same until the copy had ended, which frees the device pages. Failed copies are left out.
    pub signal_to_free: Vec<Duration>,
    /// The machine over time.
    pub samples: Vec<Sample>,
}

impl Report {
    /// Tokens generated per second: the work.
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.measured.as_secs_f64().max(1e-9)
    }

    /// Turns ended per second.
    pub fn turns_per_second(&self) -> f64 {
        self.turns.len() as f64 / self.measured.as_secs_f64().max(1e-9)
    }

    /// Sessions that decode in a step, on average.
    pub fn mean_decodes(&self) -> f64 {
        self.decodes as f64 / self.steps.max(1) as f64
    }

    /// A percentile of turn latency, `share` from 0 to 1.
    pub fn latency(&self, share: f64) -> Duration {
        percentile(self.turns.iter().map(TurnRecord::latency), share)
    }

    /// A percentile of each part of latency on its own.
    pub fn parts(&self, share: f64) -> LatencyParts {
        let of = |part: fn(&LatencyParts) -> Duration| {
            percentile(self.turns.iter().map(|t| part(&t.parts)), share)
        };
        LatencyParts {
            queue: of(|p| p.queue),
            restore: of(|p| p.restore),
            prefill: of(|p| p.prefill),
            decode: of(|p| p.decode),
        }
    }
}

/// The nearest-rank percentile, `share` from 0 to 1; 0 of nothing.
pub fn percentile(values: impl Iterator<Item = Duration>, share: f64) -> Duration {
    let mut sorted: Vec<_> = values.collect();
    sorted.sort_unstable();
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1).min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::percentile;
    use std::time::Duration;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let values = || (1..=100).rev().map(Duration::from_secs);
        let at = |share| percentile(values(), share).as_secs();
        assert_eq!([at(0.0), at(0.5), at(0.99), at(1.0)], [1, 50, 99, 100]);
        assert_eq!(percentile([].into_iter(), 0.5), Duration::ZERO);
    }
}
