//! Experiment 1: density against latency, sessions in the system over time, where each session's pages were.

use super::{COLOURS, Canvas, FONT, LEGEND, WIDTH, draw, legend_entry, refused};
use crate::exp1::results::{Density, Exp1, Row};
use anyhow::Result;
use plotters::prelude::*;
use std::path::Path;

/// Where pages are: letter of a map, words, colour, and the column of it in samples.
const PLACES: [(char, &str, RGBColor, usize); 4] = [
    ('d', "on the device", COLOURS[0], 3),
    ('m', "moving", COLOURS[1], 5),
    ('h', "on the host", COLOURS[2], 4),
    ('g', "without pages", RGBColor(190, 190, 190), 6),
];

/// `density.svg` where that was measured, `sessions.svg`, and `residency-POLICY.svg` for each policy, into `folder`.
///
/// # Errors
/// If a file cannot be written.
pub(crate) fn exp1(exp1: &Exp1, folder: &Path) -> Result<()> {
    if let Some(density) = exp1.density.as_ref().filter(|density| !density.points.is_empty()) {
        draw(folder, "density.svg", |canvas| latency(exp1, density, canvas))?;
    }
    draw(folder, "sessions.svg", |canvas| sessions(exp1, canvas))?;
    for row in &exp1.policies {
        draw(folder, &format!("residency-{}.svg", row.policy), |canvas| residency(row, canvas))?;
    }
    Ok(())
}

/// Lines: P99 turn latency by agents, a line for each policy; a line for the bound.
fn latency(exp1: &Exp1, density: &Density, canvas: &Canvas<'_>) -> Result<()> {
    let (plot, legend) = canvas.split_horizontally(WIDTH as i32 - LEGEND);
    let agents = density.points.iter().map(|point| point.agents as f64);
    let right = agents.fold(1.0, f64::max) * 1.05;
    // One policy that is far off would flatten the others.
    let top = density.points.iter().map(|point| point.p99.latency_s).fold(density.bound_s, f64::max);
    let top = top.min(4.0 * density.bound_s) * 1.05;
    let mut chart = ChartBuilder::on(&plot)
        .caption(format!("Turn latency by agents: {}", exp1.config.model), (FONT, 22))
        .margin(16)
        .x_label_area_size(48)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..right, 0.0..top)
        .map_err(refused)?;
    chart
        .configure_mesh()
        .max_light_lines(2)
        .x_desc("agents")
        .y_desc("P99 turn latency, s (at most 4 bounds are drawn)")
        .label_style((FONT, 14))
        .draw()
        .map_err(refused)?;
    let policies = density.policies();
    for (i, policy) in policies.iter().enumerate() {
        let style = COLOURS[i % COLOURS.len()].stroke_width(3);
        let points: Vec<(f64, f64)> = density
            .points
            .iter()
            .filter(|point| point.policy == *policy)
            .map(|point| (point.agents as f64, point.p99.latency_s.min(top)))
            .collect();
        chart.draw_series(LineSeries::new(points.clone(), style)).map_err(refused)?;
        let dots = points.into_iter().map(|point| Circle::new(point, 4, style.color.filled()));
        chart.draw_series(dots).map_err(refused)?;
        legend_entry(&legend, i, &format!("{policy}: {}", density.most(policy)), style)?;
    }
    let (bound, style) = (density.bound_s, BLACK.stroke_width(1));
    chart.draw_series(DashedLineSeries::new([(0.0, bound), (right, bound)], 6, 4, style)).map_err(refused)?;
    legend_entry(&legend, policies.len(), &format!("{} × unloaded", density.factor), style)
}

/// A panel for each policy: sessions in the system over time, stacked by where their pages are.
fn sessions(exp1: &Exp1, canvas: &Canvas<'_>) -> Result<()> {
    let (plot, legend) = canvas.split_horizontally(WIDTH as i32 - LEGEND);
    let plot = plot
        .titled(&format!("Sessions in the system: {}", exp1.config.model), (FONT, 22))
        .map_err(refused)?;
    let samples = || exp1.policies.iter().flat_map(|row| &row.samples);
    let seconds = samples().map(|sample| sample[0]).fold(1e-3, f64::max);
    let most = samples().map(|sample| sample[1]).fold(1.0, f64::max) * 1.05;
    let columns = if exp1.policies.len() > 3 { 2 } else { 1 };
    let panels = plot.split_evenly((exp1.policies.len().div_ceil(columns).max(1), columns));
    for (row, panel) in exp1.policies.iter().zip(&panels) {
        let mut chart = ChartBuilder::on(panel)
            .caption(&row.policy, (FONT, 14))
            .margin(6)
            .x_label_area_size(26)
            .y_label_area_size(40)
            .build_cartesian_2d(0.0..seconds, 0.0..most)
            .map_err(refused)?;
        chart.configure_mesh().disable_mesh().y_labels(4).label_style((FONT, 11)).draw().map_err(refused)?;
        // From the sum of all places down to the first alone, one over the other.
        for shown in (0..PLACES.len()).rev() {
            let sum =
                |sample: &[f64; 9]| PLACES[..=shown].iter().map(|(.., column)| sample[*column]).sum::<f64>();
            let mut points: Vec<(f64, f64)> =
                row.samples.iter().map(|sample| (sample[0], sum(sample))).collect();
            let end = points.last().map_or(0.0, |point| point.0);
            points.extend([(end, 0.0), (0.0, 0.0)]);
            chart.draw_series([Polygon::new(points, PLACES[shown].2.filled())]).map_err(refused)?;
        }
    }
    places(&legend)
}

fn places(legend: &Canvas<'_>) -> Result<()> {
    for (i, (_, words, colour, _)) in PLACES.iter().enumerate() {
        legend_entry(legend, i, words, colour.stroke_width(8))?;
    }
    Ok(())
}

/// A stretch of a lane in one place: lane, first column, column after the last, index into `PLACES`.
type Run = (usize, usize, usize, usize);

/// Bars: a lane for each session, one below the other; a lane that is free is used again.
fn residency(row: &Row, canvas: &Canvas<'_>) -> Result<()> {
    let (plot, legend) = canvas.split_horizontally(WIDTH as i32 - LEGEND);
    let (runs, lanes) = runs(row);
    let times = &row.map.seconds;
    let end = row.samples.last().map_or(0.0, |sample| sample[0]).max(times.last().copied().unwrap_or(0.0));
    let end = end.max(1e-3) * 1.005;
    let mut chart = ChartBuilder::on(&plot)
        .caption(format!("Where pages are, session by session: {}", row.policy), (FONT, 22))
        .margin(16)
        .x_label_area_size(48)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..end, 0.0..lanes.max(1) as f64)
        .map_err(refused)?;
    chart
        .configure_mesh()
        .disable_mesh()
        .x_desc("seconds")
        .y_desc("sessions")
        .label_style((FONT, 14))
        .draw()
        .map_err(refused)?;
    let at = |column: usize| times.get(column).copied().unwrap_or(end);
    let bars = runs.into_iter().map(|(lane, from, to, place)| {
        let (low, high) = (lane as f64 + 0.08, lane as f64 + 0.92);
        Rectangle::new([(at(from), low), (at(to), high)], PLACES[place].2.filled())
    });
    chart.draw_series(bars).map_err(refused)?;
    places(&legend)
}

/// The stretches of all sessions, and how many lanes they take.
fn runs(row: &Row) -> (Vec<Run>, usize) {
    let mut free_from: Vec<usize> = Vec::new();
    let mut runs: Vec<Run> = Vec::new();
    for line in &row.map.sessions {
        let lane = free_from.iter().position(|&free| free <= line.from).unwrap_or(free_from.len());
        if lane == free_from.len() {
            free_from.push(0);
        }
        free_from[lane] = line.from + line.cells.len();
        for (column, cell) in (line.from..).zip(line.cells.chars()) {
            let Some(place) = PLACES.iter().position(|(letter, ..)| *letter == cell) else { continue };
            match runs.last_mut() {
                Some((last, _, to, same)) if *last == lane && *to == column && *same == place => *to += 1,
                _ => runs.push((lane, column, column + 1, place)),
            }
        }
    }
    (runs, free_from.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exp1::results::Row;

    #[test]
    fn stretches_are_joined_and_lanes_are_used_again() {
        let map = serde_json::json!({"seconds": [0.0, 1.0, 2.0, 3.0, 4.0], "sessions": [
            {"session": 1, "from": 0, "cells": "ddh"},
            {"session": 2, "from": 1, "cells": "gdmm"},
            {"session": 3, "from": 3, "cells": "dd"},
        ]});
        let row = Row { map: serde_json::from_value(map).unwrap(), ..Row::default() };
        let (runs, lanes) = runs(&row);
        assert_eq!(lanes, 2);
        let expected = [(0, 0, 2, 0), (0, 2, 3, 2), (1, 1, 2, 3), (1, 2, 3, 0), (1, 3, 5, 1), (0, 3, 5, 0)];
        assert_eq!(runs, expected);
    }
}
