//! Metrics for Prometheus: vLLM's names with the prefix `djinn_`.

use crate::FinishReason;
use crate::model::Loads;
use djinn_engine::Occupancy;
use serde_json::{Value, json};
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Upper bounds of a histogram's buckets, in seconds.
const BOUNDS: [f64; 18] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
    900.0,
];

/// The same for the server's own work, which is short.
const SHORT_BOUNDS: [f64; 15] = [
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
    0.5, 1.0,
];

/// Times, counted in buckets.
#[derive(Debug)]
pub(crate) struct Histogram {
    bounds: &'static [f64],
    /// One more than there are bounds.
    buckets: Box<[AtomicU64]>,
    nanos: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new(&BOUNDS)
    }
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Histogram { bounds, buckets, nanos: AtomicU64::new(0) }
    }

    /// For times of the server's own work.
    pub(crate) fn short() -> Self {
        Self::new(&SHORT_BOUNDS)
    }

    pub(crate) fn observe(&self, time: Duration) {
        let bucket = self.bounds.partition_point(|&bound| bound < time.as_secs_f64());
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The buckets' counts and upper bounds, the sum of all times in seconds, and the 50th, 90th and 99th percentile
    /// in milliseconds.
    pub(crate) fn told(&self) -> Value {
        let counts: Vec<u64> = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        let percentile = |share: f64| self.percentile(&counts, share).map(|seconds| seconds * 1e3);
        json!({
            "bounds_s": self.bounds,
            "counts": counts,
            "count": counts.iter().sum::<u64>(),
            "sum_s": self.nanos.load(Ordering::Relaxed) as f64 / 1e9,
            "p50_ms": percentile(0.5),
            "p90_ms": percentile(0.9),
            "p99_ms": percentile(0.99),
        })
    }

    /// A percentile in seconds: within a bucket, times count as spread evenly, and times above the last bound as that
    /// bound. `None` without times.
    fn percentile(&self, counts: &[u64], share: f64) -> Option<f64> {
        let wanted = counts.iter().sum::<u64>() as f64 * share;
        let (mut below, mut from) = (0.0, 0.0);
        for (&count, &bound) in counts.iter().zip(self.bounds) {
            let count = count as f64;
            if count > 0.0 && below + count >= wanted {
                return Some(from + (bound - from) * (wanted - below) / count);
            }
            (below, from) = (below + count, bound);
        }
        counts.iter().any(|&count| count > 0).then_some(from)
    }

    /// Its lines, with the model's label if it belongs to one.
    fn write(&self, page: &mut String, name: &str, model: Option<&str>) {
        let own = model.map_or_else(String::new, |model| format!("model_name=\"{}\"", label(model)));
        let comma = if own.is_empty() { "" } else { "," };
        let mut count = 0;
        for (at, bucket) in self.buckets.iter().enumerate() {
            count += bucket.load(Ordering::Relaxed);
            let bound = self.bounds.get(at).map_or("+Inf".to_owned(), f64::to_string);
            line(page, format_args!("{name}_bucket{{{own}{comma}le=\"{bound}\"}} {count}"));
        }
        let braced = if own.is_empty() { own } else { format!("{{{own}}}") };
        let sum = self.nanos.load(Ordering::Relaxed) as f64 / 1e9;
        line(page, format_args!("{name}_sum{braced} {sum}"));
        line(page, format_args!("{name}_count{braced} {count}"));
    }
}

/// Counters of the server.
#[derive(Debug)]
pub(crate) struct ServerMetrics {
    requests: AtomicU64,
    refused: AtomicU64,
    /// From tokens to the writes of their events.
    pub(crate) writes: Arc<Histogram>,
}

impl Default for ServerMetrics {
    fn default() -> Self {
        let writes = Arc::new(Histogram::short());
        ServerMetrics { requests: AtomicU64::new(0), refused: AtomicU64::new(0), writes }
    }
}

impl ServerMetrics {
    pub(crate) fn request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that was refused under load.
    pub(crate) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Requests so far.
    pub(crate) fn told(&self) -> Value {
        json!({
            "requests": count(&self.requests),
            "refused": count(&self.refused),
        })
    }

    fn write(&self, page: &mut String) {
        let counts = [
            ("djinn_http_requests_total", "HTTP requests.", &self.requests),
            (
                "djinn_http_requests_refused_total",
                "HTTP requests that were refused under load.",
                &self.refused,
            ),
        ];
        for (name, help, counter) in counts {
            family(page, name, "counter", help);
            line(page, format_args!("{name} {}", count(counter)));
        }
        let name = "djinn_http_write_seconds";
        let help = "From a token of the engine to the write of its event, without the client's part.";
        family(page, name, "histogram", help);
        self.writes.write(page, name, None);
    }
}

/// Counters of one model.
#[derive(Debug, Default)]
pub(crate) struct ModelMetrics {
    prompt_tokens: AtomicU64,
    reused_tokens: AtomicU64,
    generation_tokens: AtomicU64,
    finished_stop: AtomicU64,
    finished_calls: AtomicU64,
    finished_length: AtomicU64,
    first_token: Histogram,
    between_tokens: Histogram,
    whole: Histogram,
}

impl ModelMetrics {
    /// Tokens and times so far.
    pub(crate) fn told(&self) -> Value {
        json!({
            "tokens": {
                "prompt": count(&self.prompt_tokens),
                "cached": count(&self.reused_tokens),
                "generated": count(&self.generation_tokens),
            },
            "answers": {
                "stop": count(&self.finished_stop),
                "tool_calls": count(&self.finished_calls),
                "length": count(&self.finished_length),
            },
            "latency": {
                "first_token": self.first_token.told(),
                "between_tokens": self.between_tokens.told(),
                "whole": self.whole.told(),
            },
        })
    }

    /// Counts a generation with a prompt of this length.
    pub(crate) fn began(&self, prompt_tokens: u64) {
        self.prompt_tokens.fetch_add(prompt_tokens, Ordering::Relaxed);
    }

    /// Counts prompt tokens with keys and values from before.
    pub(crate) fn reused(&self, tokens: u64) {
        self.reused_tokens.fetch_add(tokens, Ordering::Relaxed);
    }

    pub(crate) fn token(&self, asked: Instant, latest: Option<Instant>, now: Instant) {
        self.generation_tokens.fetch_add(1, Ordering::Relaxed);
        match latest {
            None => self.first_token.observe(now - asked),
            Some(latest) => self.between_tokens.observe(now - latest),
        }
    }

    pub(crate) fn finished(&self, reason: FinishReason, time: Duration) {
        let count = match reason {
            FinishReason::Stop => &self.finished_stop,
            FinishReason::ToolCalls => &self.finished_calls,
            FinishReason::Length => &self.finished_length,
        };
        count.fetch_add(1, Ordering::Relaxed);
        self.whole.observe(time);
    }
}

/// One model's part of the page.
pub(crate) struct ModelPage<'a> {
    pub(crate) name: &'a str,
    pub(crate) metrics: &'a ModelMetrics,
    /// With its age.
    pub(crate) occupancy: Option<(Occupancy, Duration)>,
    /// Sessions that are remembered by name.
    pub(crate) sessions: usize,
    /// Whether its engine runs, or will at the next request.
    pub(crate) is_up: bool,
    /// Whether it is on the device.
    pub(crate) is_loaded: bool,
    /// Its loads so far.
    pub(crate) loads: Loads,
}

impl ModelPage<'_> {
    /// A number of the engine's state; none while the engine does not run.
    fn held(&self, of: fn(&Occupancy) -> f64) -> Option<f64> {
        self.occupancy.as_ref().map(|(occupancy, _)| of(occupancy))
    }
}

/// A number of a model. `None` leaves its line out.
type Number = fn(&ModelPage<'_>) -> Option<f64>;

/// Families with one number of each model: their names, kinds, helps and numbers.
const NUMBERS: [(&str, &str, &str, Number); 16] = [
    ("djinn_model_up", "gauge", "Whether the model's engine runs.", |model| Some(model.is_up.into())),
    ("djinn_model_loaded", "gauge", "Whether the model is on the device.", |model| {
        Some(model.is_loaded.into())
    }),
    ("djinn_model_loads_total", "counter", "Times that the model came to the device.", |model| {
        Some(model.loads.count as f64)
    }),
    ("djinn_model_load_bytes_total", "counter", "Bytes of weights that it was loaded with.", |model| {
        Some(model.loads.bytes as f64)
    }),
    ("djinn_model_load_seconds_total", "counter", "Time that this took.", |model| {
        Some(model.loads.time.as_secs_f64())
    }),
    (
        "djinn_engine_counts_age_seconds",
        "gauge",
        "Since the model's engine told the numbers that follow; it is asked each time, and may be busy.",
        |model| model.occupancy.map(|(_, age)| age.as_secs_f64()),
    ),
    ("djinn_num_requests_running", "gauge", "Sessions that compute.", |model| {
        model.held(|held| held.running as f64)
    }),
    ("djinn_num_requests_waiting", "gauge", "Sessions that wait for KV pages.", |model| {
        model.held(|held| held.waiting as f64)
    }),
    ("djinn_num_sessions_parked", "gauge", "Sessions between turns, or held by their client.", |model| {
        model.held(|held| held.parked as f64)
    }),
    ("djinn_num_sessions", "gauge", "Sessions that are remembered by name.", |model| {
        Some(model.sessions as f64)
    }),
    ("djinn_kv_cache_usage_perc", "gauge", "Share of the device's KV pages in use, 0 to 1.", |model| {
        model.held(|held| 1.0 - f64::from(held.device_free) / f64::from(held.device_pages.max(1)))
    }),
    ("djinn_device_busy_seconds_total", "counter", "Of the device's time, in steps.", |model| {
        model.held(|held| held.times.busy.as_secs_f64())
    }),
    (
        "djinn_device_idle_seconds_total",
        "counter",
        "Of the device's time, between two steps of a session that computes.",
        |model| model.held(|held| held.times.idle.as_secs_f64()),
    ),
    ("djinn_prompt_tokens_total", "counter", "Tokens of prompts.", |model| {
        Some(count(&model.metrics.prompt_tokens) as f64)
    }),
    (
        "djinn_prefix_cache_hits_total",
        "counter",
        "Tokens of prompts that were not computed again.",
        |model| Some(count(&model.metrics.reused_tokens) as f64),
    ),
    ("djinn_generation_tokens_total", "counter", "Generated tokens.", |model| {
        Some(count(&model.metrics.generation_tokens) as f64)
    }),
];

type Times = fn(&ModelMetrics) -> &Histogram;

/// Families with a histogram of each model.
const HISTOGRAMS: [(&str, &str, Times); 3] = [
    ("djinn_time_to_first_token_seconds", "From the request to its first token.", |own| &own.first_token),
    ("djinn_inter_token_latency_seconds", "Between a request's tokens.", |own| &own.between_tokens),
    ("djinn_e2e_request_latency_seconds", "From a request to an answer's end.", |own| &own.whole),
];

/// The page, in Prometheus' text format.
pub(crate) fn page(models: &[ModelPage<'_>], server: &ServerMetrics) -> String {
    let mut page = String::new();
    for (name, kind, help, of) in NUMBERS {
        family(&mut page, name, kind, help);
        for model in models {
            if let Some(number) = of(model) {
                line(&mut page, format_args!("{name}{{model_name=\"{}\"}} {number}", label(model.name)));
            }
        }
    }
    let name = "djinn_request_success_total";
    family(&mut page, name, "counter", "Answers that ended, by reason.");
    for ModelPage { name: model, metrics, .. } in models {
        let ModelMetrics { finished_stop, finished_calls, finished_length, .. } = metrics;
        let counts = [("stop", finished_stop), ("tool_calls", finished_calls), ("length", finished_length)];
        for (reason, finished) in counts {
            let (count, model) = (count(finished), label(model));
            let labels = format_args!("model_name=\"{model}\",finished_reason=\"{reason}\"");
            line(&mut page, format_args!("{name}{{{labels}}} {count}"));
        }
    }
    for (name, help, of) in HISTOGRAMS {
        family(&mut page, name, "histogram", help);
        for model in models {
            of(model.metrics).write(&mut page, name, Some(model.name));
        }
    }
    server.write(&mut page);
    page
}

fn family(page: &mut String, name: &str, kind: &str, help: &str) {
    line(page, format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
}

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

pub(crate) fn line(page: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to text does not fail.
    let _ = writeln!(page, "{text}");
}

fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
