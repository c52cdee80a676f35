//! What a server tells at `/v1/live`, as far as it is shown.

use djinn_vmu::size;
use serde::Deserialize;

#[derive(Debug, Deserialize)]
pub(super) struct View {
    pub(super) version: String,
    pub(super) server: ServerTold,
    pub(super) models: Vec<LiveModel>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ServerTold {
    pub(super) served: u64,
    pub(super) most_requests: u64,
}

/// A model. What its engine holds is absent while it does not run.
#[derive(Debug, Deserialize)]
pub(super) struct LiveModel {
    pub(super) id: String,
    pub(super) up: bool,
    pub(super) status: Status,
    pub(super) tokens: Tokens,
    pub(super) latency: Latency,
    pub(super) segments: Option<SegmentBytes>,
    pub(super) host: Option<HostBytes>,
    pub(super) weights: Option<Weights>,
    pub(super) pages: Option<PageCounts>,
    pub(super) queue: Option<Queue>,
    pub(super) steps: Option<Steps>,
    pub(super) swaps: Option<Swaps>,
    #[serde(default)]
    pub(super) sessions: Vec<LiveSession>,
    #[serde(default)]
    pub(super) sessions_not_listed: u64,
}

/// Whether a model is on the device; a server has several, or none of them yet.
#[derive(Debug, Deserialize)]
pub(super) struct Status {
    value: String,
    weights: String,
    loaded_bytes: Option<u64>,
    total_bytes: Option<u64>,
    reason: Option<String>,
}

impl Status {
    pub(super) fn is_loaded(&self) -> bool {
        self.value == "loaded"
    }

    /// Why nothing is computed.
    pub(super) fn text(&self) -> String {
        match (&self.reason, self.value.as_str(), self.loaded_bytes, self.total_bytes) {
            (Some(reason), ..) => format!("not loaded: {reason}"),
            (None, "loading", Some(done), Some(total)) if total > 0 => {
                format!("loading: {} of {}", size::human(done), size::human(total))
            }
            (None, "loading", ..) => "loading".to_owned(),
            (None, "loaded", ..) => "the model is not ready".to_owned(),
            (None, ..) if self.weights == "host" => {
                "in host memory until it is asked for something".to_owned()
            }
            (None, ..) => "not loaded until it is asked for something".to_owned(),
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Tokens {
    pub(super) generated: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Latency {
    pub(super) first_token: Times,
    pub(super) between_tokens: Times,
    pub(super) whole: Times,
}

/// Percentiles in milliseconds; none before the first time.
#[derive(Debug, Deserialize)]
pub(super) struct Times {
    pub(super) count: u64,
    pub(super) p50_ms: Option<f64>,
    pub(super) p90_ms: Option<f64>,
    pub(super) p99_ms: Option<f64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct SegmentBytes {
    pub(super) resident: u64,
    pub(super) ring: u64,
    pub(super) data: u64,
    pub(super) stack: u64,
    pub(super) other: u64,
    pub(super) total: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct HostBytes {
    pub(super) weights: u64,
    pub(super) pages: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Weights {
    pub(super) streamed_bytes: u64,
    pub(super) ring_chunks: u64,
    pub(super) ring_ahead: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct PageCounts {
    pub(super) bytes: u64,
    pub(super) device: u64,
    pub(super) device_free: u64,
    pub(super) host: u64,
    pub(super) host_free: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Queue {
    pub(super) running: u64,
    pub(super) waiting: u64,
    pub(super) parked: u64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Steps {
    pub(super) count: u64,
    pub(super) tokens: u64,
    pub(super) busy_ms: f64,
    pub(super) copy_ms: f64,
    pub(super) stall_ms: f64,
    pub(super) streamed_bytes: u64,
    /// How long the present step runs, if there is one.
    pub(super) under_way_ms: Option<f64>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Swaps {
    pub(super) out: MovedPages,
    #[serde(rename = "in")]
    pub(super) back: MovedPages,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct MovedPages {
    pub(super) bytes: u64,
    pub(super) busy_ms: f64,
}

#[derive(Debug, Deserialize)]
pub(super) struct LiveSession {
    /// None of a request that named no session.
    pub(super) id: Option<String>,
    /// None while it has no keys and values.
    pub(super) number: Option<u64>,
    pub(super) state: String,
    pub(super) phase: Option<String>,
    pub(super) tool: Option<String>,
    pub(super) tokens: u64,
    pub(super) kv_bytes: u64,
    pub(super) residency: String,
    #[serde(default)]
    pub(super) device_pages: u64,
    #[serde(default)]
    pub(super) host_pages: u64,
    pub(super) idle_ms: Option<u64>,
    pub(super) paused_at: Option<Pause>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Pause {
    pub(super) hook: String,
}

/// What grows as a model works.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counters {
    pub(super) steps: Steps,
    pub(super) swaps: Swaps,
    pub(super) generated: u64,
}

impl LiveModel {
    pub(super) fn work(&self) -> Option<Counters> {
        Some(Counters { steps: self.steps?, swaps: self.swaps?, generated: self.tokens.generated })
    }
}
