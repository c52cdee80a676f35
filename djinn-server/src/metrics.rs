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
            "requests": self.requests.load(Ordering::Relaxed),
            "refused": self.refused.load(Ordering::Relaxed),
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
        for (name, help, count) in counts {
            let count = count.load(Ordering::Relaxed);
            line(page, format_args!("# HELP {name} {help}\n# TYPE {name} counter\n{name} {count}"));
        }
        let name = "djinn_http_write_seconds";
        let help = "From a token of the engine to the write of its event, without the client's part.";
        line(page, format_args!("# HELP {name} {help}\n# TYPE {name} histogram"));
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
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
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

/// The page, in Prometheus' text format.
pub(crate) fn page(models: &[ModelPage<'_>], server: &ServerMetrics) -> String {
    let mut page = String::new();
    let mut family =
        |name: &str, kind: &str, help: &str, write: &dyn Fn(&mut String, &str, &ModelPage<'_>)| {
            line(&mut page, format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
            for model in models {
                write(&mut page, name, model);
            }
        };
    /// A gauge of the engine's state, left out while the engine does not run.
    fn gauge(of: fn(&Occupancy) -> f64) -> impl Fn(&mut String, &str, &ModelPage<'_>) {
        move |page, name, model| {
            if let Some((occupancy, _)) = &model.occupancy {
                line(page, format_args!("{name}{{model_name=\"{}\"}} {}", label(model.name), of(occupancy)));
            }
        }
    }
    fn counter(of: fn(&ModelMetrics) -> &AtomicU64) -> impl Fn(&mut String, &str, &ModelPage<'_>) {
        move |page, name, model| {
            let count = of(model.metrics).load(Ordering::Relaxed);
            line(page, format_args!("{name}{{model_name=\"{}\"}} {count}", label(model.name)));
        }
    }
    fn histogram(of: fn(&ModelMetrics) -> &Histogram) -> impl Fn(&mut String, &str, &ModelPage<'_>) {
        move |page, name, model| of(model.metrics).write(page, name, Some(model.name))
    }
    let up = |page: &mut String, name: &str, model: &ModelPage<'_>| {
        let up = u8::from(model.is_up);
        line(page, format_args!("{name}{{model_name=\"{}\"}} {up}", label(model.name)));
    };
    family("djinn_model_up", "gauge", "Whether the model's engine runs.", &up);
    let loaded = |page: &mut String, name: &str, model: &ModelPage<'_>| {
        line(
            page,
            format_args!("{name}{{model_name=\"{}\"}} {}", label(model.name), u8::from(model.is_loaded)),
        );
    };
    family("djinn_model_loaded", "gauge", "Whether the model is on the device.", &loaded);
    type OfLoads = fn(&Loads) -> f64;
    let loads: [(&str, &str, OfLoads); 3] = [
        ("djinn_model_loads_total", "Times that the model came to the device.", |loads| loads.count as f64),
        ("djinn_model_load_bytes_total", "Bytes of weights that it was loaded with.", |loads| {
            loads.bytes as f64
        }),
        ("djinn_model_load_seconds_total", "Time that this took.", |loads| loads.time.as_secs_f64()),
    ];
    for (name, help, of) in loads {
        family(name, "counter", help, &|page, name, model| {
            line(page, format_args!("{name}{{model_name=\"{}\"}} {}", label(model.name), of(&model.loads)));
        });
    }
    let age = |page: &mut String, name: &str, model: &ModelPage<'_>| {
        if let Some((_, age)) = model.occupancy {
            let (model, age) = (label(model.name), age.as_secs_f64());
            line(page, format_args!("{name}{{model_name=\"{model}\"}} {age}"));
        }
    };
    let help =
        "Since the model's engine told the numbers that follow; it is asked each time, and may be busy.";
    family("djinn_engine_counts_age_seconds", "gauge", help, &age);
    let running = gauge(|held| held.running as f64);
    family("djinn_num_requests_running", "gauge", "Sessions that compute.", &running);
    let waiting = gauge(|held| held.waiting as f64);
    family("djinn_num_requests_waiting", "gauge", "Sessions that wait for KV pages.", &waiting);
    let parked = gauge(|held| held.parked as f64);
    family("djinn_num_sessions_parked", "gauge", "Sessions between turns, or held by their client.", &parked);
    let named = |page: &mut String, name: &str, model: &ModelPage<'_>| {
        line(page, format_args!("{name}{{model_name=\"{}\"}} {}", label(model.name), model.sessions));
    };
    family("djinn_num_sessions", "gauge", "Sessions that are remembered by name.", &named);
    let used = gauge(|held| 1.0 - f64::from(held.device_free) / f64::from(held.device_pages.max(1)));
    family("djinn_kv_cache_usage_perc", "gauge", "Share of the device's KV pages in use, 0 to 1.", &used);
    let busy = gauge(|held| held.times.busy.as_secs_f64());
    family("djinn_device_busy_seconds_total", "counter", "Of the device's time, in steps.", &busy);
    let idle = gauge(|held| held.times.idle.as_secs_f64());
    let help = "Of the device's time, between two steps of a session that computes.";
    family("djinn_device_idle_seconds_total", "counter", help, &idle);
    let prompts = counter(|metrics| &metrics.prompt_tokens);
    family("djinn_prompt_tokens_total", "counter", "Tokens of prompts.", &prompts);
    let hits = counter(|metrics| &metrics.reused_tokens);
    family(
        "djinn_prefix_cache_hits_total",
        "counter",
        "Tokens of prompts that were not computed again.",
        &hits,
    );
    let generated = counter(|metrics| &metrics.generation_tokens);
    family("djinn_generation_tokens_total", "counter", "Generated tokens.", &generated);
    let finished = |page: &mut String, name: &str, model: &ModelPage<'_>| {
        let ModelMetrics { finished_stop, finished_calls, finished_length, .. } = model.metrics;
        let counts = [("stop", finished_stop), ("tool_calls", finished_calls), ("length", finished_length)];
        for (reason, count) in counts {
            let (count, model) = (count.load(Ordering::Relaxed), label(model.name));
            line(page, format_args!("{name}{{model_name=\"{model}\",finished_reason=\"{reason}\"}} {count}"));
        }
    };
    family("djinn_request_success_total", "counter", "Answers that ended, by reason.", &finished);
    let first = histogram(|metrics| &metrics.first_token);
    family("djinn_time_to_first_token_seconds", "histogram", "From the request to its first token.", &first);
    let between = histogram(|metrics| &metrics.between_tokens);
    family("djinn_inter_token_latency_seconds", "histogram", "Between a request's tokens.", &between);
    let whole = histogram(|metrics| &metrics.whole);
    family("djinn_e2e_request_latency_seconds", "histogram", "From a request to an answer's end.", &whole);
    server.write(&mut page);
    page
}

pub(crate) fn line(page: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to text does not fail.
    let _ = writeln!(page, "{text}");
}

fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
