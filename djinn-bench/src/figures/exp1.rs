//! Experiment 1: density against latency, sessions in the system over time, where each session's pages were.

#[cfg(test)]
mod tests;

use super::{
    COLOURS, Canvas, FONT, GREY, LEGEND, Sheet, WIDTH, chart, legend_entry, legend_text, refused, round_axis,
    source, whole,
};
use crate::document::Document;
use crate::exp1::results::{Density, Exp1, Row};
use crate::size::human;
use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::path::Path;

/// Where pages are, over time: words, colour, and the column of it in samples.
const PLACES: [(&str, RGBColor, usize); 4] = [
    ("on the device", COLOURS[0], 3),
    ("moving", COLOURS[1], 5),
    ("on the host", COLOURS[2], 4),
    ("without pages", GREY, 6),
];

/// Where one session's pages are.
const LANES: [(&str, RGBColor); 5] = [
    ("on the device", COLOURS[0]),
    ("moving", COLOURS[1]),
    ("on the host", COLOURS[2]),
    ("not admitted yet", GREY),
    ("pages given up", COLOURS[5]),
];

/// `density.svg` where that was measured, `sessions.svg`, and `residency-POLICY.svg` for each policy, into `folder`.
pub(crate) fn exp1(document: &Document<Exp1>, folder: &Path) -> Result<()> {
    let exp1 = &document.body;
    let config = &exp1.config;
    let simulated = config.device == "simulated";
    let vram = format!("{} of device memory", human(config.vram_bytes));
    let foot = if simulated {
        format!("Simulated, times {}; simulated on {}", exp1.times, source(document))
    } else {
        source(document)
    };
    let sheet = |name: &str, what: String| Sheet {
        folder,
        name: name.to_owned(),
        title: format!("{what}: {}, {vram}{}", config.model, if simulated { ", simulated" } else { "" }),
        foot: foot.clone(),
    };
    if let Some(density) = exp1.density.as_ref().filter(|density| !density.points.is_empty()) {
        sheet("density.svg", "Turn latency by agents".to_owned()).draw(|canvas| latency(density, canvas))?;
    }
    sheet("sessions.svg", "Sessions in the system".to_owned()).draw(|canvas| sessions(exp1, canvas))?;
    for row in &exp1.policies {
        let what = format!("Each session's pages under {}", row.policy);
        let name = format!("residency-{}.svg", row.policy);
        sheet(&name, what).draw(|canvas| residency(row, canvas))?;
    }
    Ok(())
}

/// Lines: P99 turn latency by agents, a line for each policy; a line for the bound. A latency far beyond the bound
/// would flatten all others: its point is at the upper edge, with its value.
fn latency(density: &Density, canvas: &Canvas<'_>) -> Result<()> {
    let (plot, legend) = canvas.split_horizontally(WIDTH as i32 - LEGEND);
    let right = density.points.iter().map(|point| point.agents as f64).fold(1.0, f64::max) * 1.05;
    let latencies = || density.points.iter().map(|point| point.p99.latency_s);
    let top = latencies().filter(|&s| s < 1.5 * density.bound_s).fold(density.bound_s, f64::max) * 1.1;
    let bottom = latencies().fold(density.bound_s, f64::min) * 0.9;
    let mut chart = chart(&plot, None, [44, 64], 0.0..right, bottom..top)?;
    chart
        .configure_mesh()
        .max_light_lines(2)
        .x_label_formatter(&whole)
        .x_desc("agents")
        .y_desc("P99 turn latency, seconds")
        .label_style((FONT, 14))
        .draw()
        .map_err(refused)?;
    legend_text(&legend, 0, "policy: the most agents", 0)?;
    legend_text(&legend, 1, "within the bound", 0)?;
    let policies = density.policies();
    for (i, policy) in policies.iter().enumerate() {
        // Each line is thinner than the one below it, so that equal ones are all seen.
        let style = COLOURS[i % COLOURS.len()].stroke_width(2 * (policies.len() - i) as u32);
        let points: Vec<(f64, f64)> = density
            .points
            .iter()
            .filter(|point| point.policy == *policy)
            .map(|point| (point.agents as f64, point.p99.latency_s))
            .collect();
        let within = points.iter().map(|&(agents, seconds)| (agents, seconds.min(top)));
        chart.draw_series(LineSeries::new(within.clone(), style)).map_err(refused)?;
        let dots = within.map(|point| Circle::new(point, style.stroke_width + 1, style.color.filled()));
        chart.draw_series(dots).map_err(refused)?;
        let beyond = points.iter().filter(|(_, seconds)| *seconds > top).map(|&(agents, seconds)| {
            let words = format!("{policy}, {agents:.0} agents: {seconds:.1} s");
            let style = TextStyle::from((FONT, 13)).color(&style.color).pos(Pos::new(HPos::Left, VPos::Top));
            EmptyElement::at((agents, top)) + Text::new(words, (12, 4), style)
        });
        chart.draw_series(beyond).map_err(refused)?;
        legend_entry(&legend, 2 + i, &format!("{policy}: {}", density.most(policy)), style)?;
    }
    let (bound, style) = (density.bound_s, BLACK.stroke_width(1));
    chart.draw_series(DashedLineSeries::new([(0.0, bound), (right, bound)], 6, 4, style)).map_err(refused)?;
    let words = format!("bound: {} × one alone", density.factor);
    legend_entry(&legend, 2 + policies.len(), &words, style)
}

/// A panel for each policy: sessions in the system over time, stacked by where their pages are.
fn sessions(exp1: &Exp1, canvas: &Canvas<'_>) -> Result<()> {
    let (plot, legend) = canvas.split_horizontally(WIDTH as i32 - LEGEND);
    let samples = || exp1.policies.iter().flat_map(|row| &row.samples);
    let seconds = samples().map(|sample| sample[0]).fold(1e-3, f64::max);
    let (most, step) = round_axis(samples().map(|sample| sample[1]).fold(1.0, f64::max));
    let columns = if exp1.policies.len() > 3 { 2 } else { 1 };
    let panels = plot.split_evenly((exp1.policies.len().div_ceil(columns).max(1), columns));
    for (row, panel) in exp1.policies.iter().zip(&panels) {
        let mut chart = chart(panel, Some(&row.policy), [34, 50], 0.0..seconds, (0.0..most).step(step))?;
        chart
            .configure_mesh()
            .disable_mesh()
            .x_label_formatter(&whole)
            .y_label_formatter(&whole)
            .x_desc("seconds")
            .y_desc("sessions")
            .label_style((FONT, 11))
            .draw()
            .map_err(refused)?;
        // From the sum of all places down to the first alone, one over the other.
        for shown in (0..PLACES.len()).rev() {
            let sum =
                |sample: &[f64; 9]| PLACES[..=shown].iter().map(|(.., column)| sample[*column]).sum::<f64>();
            let mut points: Vec<(f64, f64)> =
                row.samples.iter().map(|sample| (sample[0], sum(sample))).collect();
            let end = points.last().map_or(0.0, |point| point.0);
            points.extend([(end, 0.0), (0.0, 0.0)]);
            chart.draw_series([Polygon::new(points, PLACES[shown].1.filled())]).map_err(refused)?;
        }
    }
    for (i, (words, colour, _)) in PLACES.iter().enumerate() {
        legend_entry(&legend, i, words, colour.stroke_width(8))?;
    }
    Ok(())
}

/// A stretch of a lane in one place: lane, first column, column after the last, index into `LANES`.
type Run = (usize, usize, usize, usize);

/// Bars: a lane for each session, one below the other; a lane that is free is used again. A mark where a session ends.
fn residency(row: &Row, canvas: &Canvas<'_>) -> Result<()> {
    let (plot, legend) = canvas.split_horizontally(WIDTH as i32 - LEGEND);
    let Lanes { runs, ends, count } = lanes(row);
    let times = &row.map.seconds;
    let end = row.samples.last().map_or(0.0, |sample| sample[0]).max(times.last().copied().unwrap_or(0.0));
    let end = end.max(1e-3) * 1.005;
    let (most, step) = round_axis(count as f64);
    let mut chart = chart(&plot, None, [44, 64], 0.0..end, (0.0..most).step(step))?;
    chart
        .configure_mesh()
        .disable_mesh()
        .x_label_formatter(&whole)
        .y_label_formatter(&whole)
        .x_desc("seconds")
        .y_desc("sessions at once")
        .label_style((FONT, 14))
        .draw()
        .map_err(refused)?;
    let at = |column: usize| times.get(column).copied().unwrap_or(end);
    let bars = runs.into_iter().map(|(lane, from, to, place)| {
        let (low, high) = (lane as f64 + 0.08, lane as f64 + 0.92);
        Rectangle::new([(at(from), low), (at(to), high)], LANES[place].1.filled())
    });
    chart.draw_series(bars).map_err(refused)?;
    let marks = ends.into_iter().map(|(lane, column)| {
        let edges = [(at(column), lane as f64), (at(column), lane as f64 + 1.0)];
        PathElement::new(edges, BLACK.stroke_width(3))
    });
    chart.draw_series(marks).map_err(refused)?;
    for (i, (words, colour)) in LANES.iter().enumerate() {
        legend_entry(&legend, i, words, colour.stroke_width(8))?;
    }
    let y = 24 + 20 * LANES.len() as i32;
    let mark = PathElement::new([(11, y - 6), (11, y + 6)], BLACK.stroke_width(3));
    legend.draw(&mark).map_err(refused)?;
    legend_text(&legend, LANES.len(), "session ended", 28)
}

/// All sessions as lanes.
#[derive(Debug, PartialEq)]
struct Lanes {
    runs: Vec<Run>,
    /// Lane and column of each end within the time.
    ends: Vec<(usize, usize)>,
    count: usize,
}

fn lanes(row: &Row) -> Lanes {
    let mut free_from: Vec<usize> = Vec::new();
    let (mut runs, mut ends): (Vec<Run>, Vec<(usize, usize)>) = Default::default();
    for line in &row.map.sessions {
        let lane = free_from.iter().position(|&free| free <= line.from).unwrap_or(free_from.len());
        if lane == free_from.len() {
            free_from.push(0);
        }
        let end = line.from + line.cells.len();
        free_from[lane] = end;
        ends.extend((end < row.map.seconds.len()).then_some((lane, end)));
        let mut admitted = false;
        let first = runs.len();
        for (column, cell) in (line.from..).zip(line.cells.chars()) {
            admitted |= cell != 'g';
            let place = match cell {
                'd' => 0,
                'm' => 1,
                'h' => 2,
                _ if !admitted => 3,
                _ => 4,
            };
            match runs[first..].last_mut() {
                Some((.., to, same)) if *same == place => *to += 1,
                _ => runs.push((lane, column, column + 1, place)),
            }
        }
    }
    Lanes { runs, ends, count: free_from.len() }
}
