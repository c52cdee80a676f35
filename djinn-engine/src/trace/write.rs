//! Writes a trace in the Chrome trace event format, for Perfetto and chrome://tracing.
//!
//! Times are microseconds since the trace's first instant. All spans are complete events (`X`) on three tracks. Names
//! of tracks are metadata (`M`), and the ring's contents are a counter (`C`).

use super::{HostSpan, LaunchName, Nanos, Span, Trace, What};
use serde_json::{Map, Value, json};
use std::io::{self, Write};

/// The tracks, in their order on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Track {
    Copy = 1,
    Compute = 2,
    Host = 3,
}

const TRACKS: [(Track, &str); 3] =
    [(Track::Copy, "copy"), (Track::Compute, "compute"), (Track::Host, "host")];

impl HostSpan {
    const fn name(self) -> &'static str {
        match self {
            HostSpan::Load => "load",
            HostSpan::Upload => "upload",
            HostSpan::Enqueue => "enqueue",
            HostSpan::Wait => "wait",
            HostSpan::Sample => "sample",
        }
    }
}

impl Trace {
    /// Writes one JSON object with the array `traceEvents`. Device spans have the name of a chunk or node, and pass,
    /// sizes and rates as arguments. Host spans are placed on the device's clock, within
    /// [`clock_error`](Trace::clock_error). On a device with virtual time the two clocks have only their start in
    /// common.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut spans: Vec<&Span> = self.spans.iter().collect();
        spans.sort_by_key(|span| (span.begin, span.end));
        let origin = spans.first().map_or(0, |span| span.begin);
        let other = json!({
            "model": self.model,
            "device": self.device,
            "passes": self.passes,
            "clock_error_us": micros(super::nanos(self.clock_error)),
        });
        write!(out, "{{\"displayTimeUnit\":\"ms\",\"otherData\":{other},\"traceEvents\":[")?;
        let name = format!("djinn: {} on {}", self.model, self.device);
        write!(out, "\n{}", json!({"ph": "M", "pid": 1, "name": "process_name", "args": {"name": name}}))?;
        for (track, name) in TRACKS {
            let tid = track as u32;
            let event = |what, args| json!({"ph": "M", "pid": 1, "tid": tid, "name": what, "args": args});
            write!(out, ",\n{}", event("thread_name", json!({"name": name})))?;
            write!(out, ",\n{}", event("thread_sort_index", json!({"sort_index": tid})))?;
        }
        for span in &spans {
            write!(out, ",\n{}", self.event(span, origin))?;
        }
        for (at, bytes) in ring(&spans) {
            let (ts, args) = (micros(at - origin), json!({ "bytes": bytes }));
            write!(out, ",\n{}", json!({"ph": "C", "pid": 1, "name": "ring", "ts": ts, "args": args}))?;
        }
        writeln!(out, "\n]}}")
    }

    fn event(&self, span: &Span, origin: Nanos) -> Value {
        let (track, name, mut args) = match span.what {
            What::Copy { chunk, bytes, .. } => {
                let seconds = (span.end - span.begin) as f64 / 1e9;
                let rate = (seconds > 0.0).then(|| bytes as f64 / seconds / 1e9);
                let weights = &self.chunks[chunk.0 as usize];
                let args = json!({"chunk": chunk.0, "weights": weights, "bytes": bytes, "GB/s": rate});
                (Track::Copy, format!("chunk {}: {}", chunk.0, ends(weights)), args)
            }
            What::Stall(chunk) => {
                (Track::Compute, format!("wait for chunk {}", chunk.0), json!({"chunk": chunk.0}))
            }
            What::Join(chunk) => {
                (Track::Compute, format!("join chunk {}", chunk.0), json!({"chunk": chunk.0}))
            }
            What::Check(chunk) => {
                (Track::Compute, format!("check chunk {}", chunk.0), json!({"chunk": chunk.0}))
            }
            What::Launch { index, rows } => {
                let LaunchName { node, op, layer, tile } = &self.launches[index];
                let mut args = json!({"op": op, "rows": rows});
                if let Some(layer) = *layer {
                    args["layer"] = layer.into();
                }
                if let Some(tile) = tile {
                    args["tile_rows"] = json!([tile.start, tile.end]);
                }
                (Track::Compute, node.clone(), args)
            }
            What::Host(what) => (Track::Host, what.name().to_owned(), Value::Object(Map::new())),
        };
        if span.what != What::Host(HostSpan::Load) {
            args["pass"] = span.pass.into();
        }
        let (ts, dur) = (micros(span.begin - origin), micros(span.end - span.begin));
        json!({"ph": "X", "pid": 1, "tid": track as u32, "name": name, "ts": ts, "dur": dur, "args": args})
    }
}

/// A short name for a chunk's weights.
fn ends(weights: &[String]) -> String {
    match weights {
        [] => String::new(),
        [one] => one.clone(),
        [first, .., last] => format!("{first} to {last}"),
    }
}

/// Nanoseconds in microseconds; exact for a hundred days.
fn micros(time: Nanos) -> f64 {
    time as f64 / 1e3
}

/// Bytes of the ring in use, being filled or waiting for their last use: each change, in order of time.
fn ring(spans: &[&Span]) -> Vec<(Nanos, i64)> {
    let mut changes = Vec::new();
    for span in spans {
        if let What::Copy { bytes, done, .. } = span.what {
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            changes.extend([(span.begin, bytes), (done, -bytes)]);
        }
    }
    // Bytes that are freed in the moment of the next copy make room for it.
    changes.sort_unstable();
    let mut held = 0;
    changes.iter_mut().for_each(|(_, bytes)| {
        held += *bytes;
        *bytes = held;
    });
    changes
}
