//! Copy against compute, from a Chrome trace: one row for each track, a bar for each event.

#[cfg(test)]
mod tests;

use super::{COLOURS, Canvas, FONT, GREY, Sheet, chart, refused};
use anyhow::{Context, Result, ensure};
use plotters::prelude::*;
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;

/// Tracks from top to bottom.
const TRACKS: [&str; 3] = ["copy", "compute", "host"];
/// Bars that a figure holds; a longer trace shows a stretch of them.
const MOST_BARS: usize = 1500;
/// Bars have an edge from this width on, in pixels of the figure.
const EDGED: f64 = 4.0;
/// Width of a letter of a name, and letters that a bar must have room for to be named.
const LETTER: f64 = 7.0;
const LEAST_LETTERS: usize = 4;

#[derive(Deserialize)]
struct ChromeTrace {
    #[serde(rename = "traceEvents")]
    events: Vec<TraceEvent>,
    #[serde(default, rename = "otherData")]
    other: TraceOrigin,
}

/// What Djinn's traces say beside the events.
#[derive(Default, Deserialize)]
struct TraceOrigin {
    model: Option<String>,
    device: Option<String>,
}

/// An event of the trace format; times in µs.
#[derive(Deserialize)]
struct TraceEvent {
    ph: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    pid: Value,
    #[serde(default)]
    tid: Value,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    #[serde(default)]
    args: Value,
}

/// A bar: times in ms.
#[derive(Clone, Debug, PartialEq)]
struct Bar {
    track: usize,
    name: String,
    start: f64,
    end: f64,
}

impl Bar {
    /// Whether the track only waits: for a chunk, or for the device.
    fn waits(&self) -> bool {
        self.name == "wait" || self.name.starts_with("wait for ")
    }
}

/// Draws `timeline.svg` into `folder`.
pub(crate) fn timeline(trace: &Path, folder: &Path) -> Result<()> {
    let name = || trace.display().to_string();
    let text = std::fs::read_to_string(trace).with_context(name)?;
    let parsed: ChromeTrace =
        serde_json::from_str(&text).with_context(|| format!("{}: no Chrome trace", name()))?;
    let bars = middle(bars(&parsed.events));
    ensure!(!bars.is_empty(), "{}: no events on the tracks {}", name(), TRACKS.join(", "));
    let known = |name: Option<String>, what: &str| name.unwrap_or_else(|| format!("an unnamed {what}"));
    let sheet = Sheet {
        folder,
        name: "timeline.svg".to_owned(),
        title: format!("Copy against compute: {}", known(parsed.other.model, "model")),
        foot: format!(
            "Measured on {}, by its clock. Grey: waiting. Shares are of the time shown",
            known(parsed.other.device, "device")
        ),
    };
    sheet.draw(|canvas| figure(&bars, canvas))
}

/// Complete events of the known tracks, in order of time.
fn bars(events: &[TraceEvent]) -> Vec<Bar> {
    let key = |event: &TraceEvent| (event.pid.to_string(), event.tid.to_string());
    let mut tracks = HashMap::new();
    for event in events.iter().filter(|e| e.ph == "M" && e.name == "thread_name") {
        let name = event.args.get("name").and_then(Value::as_str).unwrap_or_default();
        tracks.extend(TRACKS.iter().position(|track| *track == name).map(|track| (key(event), track)));
    }
    let bar = |event: &TraceEvent| {
        let track = *tracks.get(&key(event))?;
        let fine = event.ts.is_finite() && event.dur.is_finite() && event.dur >= 0.0;
        let (start, end) = (event.ts / 1e3, (event.ts + event.dur) / 1e3);
        fine.then(|| Bar { track, name: event.name.clone(), start, end })
    };
    let mut bars: Vec<Bar> = events.iter().filter(|e| e.ph == "X").filter_map(bar).collect();
    bars.sort_by(|a, b| a.start.total_cmp(&b.start));
    bars
}

/// The bars of a stretch from the middle of the device's work: as long as a figure holds its bars. The host's are
/// cut to the stretch.
fn middle(bars: Vec<Bar>) -> Vec<Bar> {
    let host = TRACKS.len() - 1;
    let (mut shown, hosts): (Vec<Bar>, Vec<Bar>) = bars.into_iter().partition(|bar| bar.track != host);
    if shown.is_empty() {
        return hosts.into_iter().take(MOST_BARS).collect();
    }
    let extra = shown.len().saturating_sub(MOST_BARS);
    shown.drain(..extra / 2);
    shown.truncate(MOST_BARS);
    let start = shown[0].start;
    let end = shown.iter().map(|bar| bar.end).fold(start, f64::max);
    let within = hosts.into_iter().filter(|bar| bar.start < end && bar.end > start);
    shown.extend(within.map(|bar| Bar { start: bar.start.max(start), end: bar.end.min(end), ..bar }));
    shown.sort_by(|a, b| a.start.total_cmp(&b.start));
    shown
}

/// Time in which bars of a track ran, overlaps counted once.
fn covered<'a>(bars: impl Iterator<Item = &'a Bar>) -> f64 {
    let (mut sum, mut until) = (0.0, f64::NEG_INFINITY);
    for bar in bars {
        sum += (bar.end - bar.start.max(until)).max(0.0);
        until = until.max(bar.end);
    }
    sum
}

/// What share of `span` ms a track worked and waited, in words.
fn shares(bars: &[Bar], track: usize, span: f64) -> String {
    let share = |waits| {
        let of_kind = bars.iter().filter(|bar| bar.track == track && bar.waits() == waits);
        100.0 * covered(of_kind) / span
    };
    format!("{}: worked {:.1} %, waited {:.1} %", TRACKS[track], share(false), share(true))
}

fn figure(bars: &[Bar], canvas: &Canvas<'_>) -> Result<()> {
    let start = bars.first().map_or(0.0, |bar| bar.start);
    let span = (bars.iter().map(|bar| bar.end).fold(start, f64::max) - start).max(1e-6);
    let mut chart = chart(canvas, None, [44, 16], 0.0..span, 0.0..TRACKS.len() as f64)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(0)
        .max_light_lines(0)
        .x_desc("ms")
        .label_style((FONT, 14))
        .draw()
        .map_err(refused)?;
    for (track, own) in COLOURS.iter().take(TRACKS.len()).enumerate() {
        let low = (TRACKS.len() - 1 - track) as f64 + 0.15;
        let label = Text::new(shares(bars, track, span), (0.0, low + 0.8), (FONT, 14));
        chart.draw_series([label]).map_err(refused)?;
        for bar in bars.iter().filter(|bar| bar.track == track) {
            let (left, right) = (bar.start - start, bar.end - start);
            let (colour, ink) = if bar.waits() { (&GREY, BLACK) } else { (own, WHITE) };
            let shape = Rectangle::new([(left, low), (right, low + 0.6)], colour.filled());
            chart.draw_series([shape]).map_err(refused)?;
            let pixels = (right - left) / span * super::WIDTH as f64;
            if pixels > EDGED {
                let edge = Rectangle::new([(left, low), (right, low + 0.6)], WHITE);
                chart.draw_series([edge]).map_err(refused)?;
            }
            let letters = (pixels / LETTER) as usize;
            if letters >= LEAST_LETTERS {
                let style = TextStyle::from((FONT, 11)).color(&ink);
                let whole = bar.name.chars().count() <= letters;
                let short = || bar.name.chars().take(letters - 1).chain(['…']).collect();
                let name: String = if whole { bar.name.clone() } else { short() };
                let text = Text::new(name, (left + span * 0.003, low + 0.35), style);
                chart.draw_series([text]).map_err(refused)?;
            }
        }
    }
    Ok(())
}
