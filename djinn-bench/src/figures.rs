//! Figures as SVG: density against latency, sessions and residency over time; bandwidth by system, memory over
//! time; copy against compute.

mod exp1;
mod timeline;

use crate::args::FiguresArgs;
use crate::exp2::results::{Exp2, Medians, Row};
use crate::report;
use crate::size::human;
use anyhow::{Context, Result, anyhow};
pub(crate) use exp1::exp1;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::path::Path;
pub(crate) use timeline::timeline;

const WIDTH: u32 = 960;
const HEIGHT: u32 = 540;
/// Width of a legend beside a figure.
const LEGEND: i32 = 170;
const FONT: &str = "sans-serif";
/// Colours that colour-blind readers tell apart (Okabe and Ito 2008).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
    RGBColor(204, 121, 167),
    RGBColor(110, 110, 110),
    RGBColor(0, 0, 0),
];

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// `djinn-bench figures`.
pub(crate) fn run(args: &FiguresArgs) -> Result<()> {
    if let Some(results) = &args.exp1 {
        exp1(&report::read_exp1(results)?.body, &args.out)?;
    }
    if let Some(results) = &args.exp2 {
        exp2(&report::read_exp2(results)?.body, &args.out)?;
    }
    if let Some(trace) = &args.trace {
        timeline(trace, &args.out)?;
    }
    Ok(())
}

/// Bandwidth by system and memory over time, into `folder`.
///
/// # Errors
/// If nothing was measured, or a file cannot be written.
pub(crate) fn exp2(exp2: &Exp2, folder: &Path) -> Result<()> {
    draw(folder, "bandwidth.svg", |canvas| bandwidth(exp2, canvas))?;
    draw(folder, "memory.svg", |canvas| memory(exp2, canvas))
}

/// Draws onto a white canvas and writes it to `folder`.
fn draw(folder: &Path, name: &str, figure: impl FnOnce(&Canvas<'_>) -> Result<()>) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let mut svg = String::new();
    {
        let canvas = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        canvas.fill(&WHITE).map_err(refused)?;
        figure(&canvas).with_context(|| name.to_owned())?;
        canvas.present().map_err(refused)?;
    }
    let path = folder.join(name);
    std::fs::write(&path, svg).with_context(|| path.display().to_string())
}

/// A failure to draw, whose own type is not `Sync`.
fn refused(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot draw: {error}")
}

/// Bars: what each system moved for a token, by the time that a token took; a line for the link itself.
fn bandwidth(exp2: &Exp2, canvas: &Canvas<'_>) -> Result<()> {
    let streaming = |row| Medians::streaming(row).map(|medians| (row, medians.effective_gbps));
    let rows: Vec<(&Row, f64)> = exp2.systems.iter().filter_map(streaming).collect();
    let link = exp2.link.pinned.up_gbps;
    let (width, most) =
        (rows.len().max(1) as f64, rows.iter().map(|(_, gbps)| *gbps).fold(link, f64::max) * 1.15);
    let config = &exp2.config;
    let title = format!("Bandwidth by system: {}, {}", config.model, human(config.vram_bytes));
    let mut chart = ChartBuilder::on(canvas)
        .caption(title, (FONT, 22))
        .margin(16)
        .x_label_area_size(48)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..width, 0.0..most)
        .map_err(refused)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .max_light_lines(2)
        .y_desc("streamed GB/s per token")
        .label_style((FONT, 14))
        .draw()
        .map_err(refused)?;
    for (i, (row, gbps)) in rows.iter().enumerate() {
        let (left, middle) = (i as f64, i as f64 + 0.5);
        let colour = COLOURS[usize::from(!row.own)].filled();
        let bar = Rectangle::new([(left + 0.15, 0.0), (left + 0.85, *gbps)], colour);
        chart.draw_series([bar]).map_err(refused)?;
        // The value is within its bar if that is high enough: above it the link's line may run.
        let within = *gbps > most / 10.0;
        let (colour, dy, vertical) = if within { (&WHITE, 6, VPos::Top) } else { (&BLACK, -4, VPos::Bottom) };
        let label = |text, at, dy, colour: &'static RGBColor, vertical| {
            let style = TextStyle::from((FONT, 13)).color(colour).pos(Pos::new(HPos::Center, vertical));
            EmptyElement::at((middle, at)) + Text::new(text, (0, dy), style)
        };
        let labels = [
            label(row.name.clone(), 0.0, 8, &BLACK, VPos::Top),
            label(format!("{gbps:.1}"), *gbps, dy, colour, vertical),
        ];
        chart.draw_series(labels).map_err(refused)?;
    }
    let line = LineSeries::new([(0.0, link), (width, link)], COLOURS[3].stroke_width(2));
    chart.draw_series(line).map_err(refused)?;
    let label = format!("link, pinned: {link:.1} GB/s");
    let style = TextStyle::from((FONT, 13)).color(&COLOURS[3]).pos(Pos::new(HPos::Right, VPos::Bottom));
    let label = EmptyElement::at((width, link)) + Text::new(label, (-4, -4), style);
    chart.draw_series([label]).map_err(refused)?;
    Ok(())
}

/// Lines: each system's memory from the start of its process; a line for the cap.
fn memory(exp2: &Exp2, canvas: &Canvas<'_>) -> Result<()> {
    let rows: Vec<&Row> = exp2.systems.iter().filter(|row| !row.memory.is_empty()).collect();
    let all = || rows.iter().flat_map(|row| &row.memory);
    let seconds = all().map(|p| p.seconds).fold(1e-3, f64::max);
    let cap = in_gib(exp2.config.vram_bytes);
    let most = all().map(|p| in_gib(p.bytes)).fold(cap, f64::max) * 1.1;
    let what = if exp2.link.memcpy { "Memory of the process" } else { "Device memory" };
    let (plot, legend) = canvas.split_horizontally(WIDTH as i32 - LEGEND);
    let mut chart = ChartBuilder::on(&plot)
        .caption(format!("{what} over time: {}", exp2.config.model), (FONT, 22))
        .margin(16)
        .x_label_area_size(48)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..seconds, 0.0..most)
        .map_err(refused)?;
    chart
        .configure_mesh()
        .max_light_lines(2)
        .x_desc("seconds since the process began")
        .y_desc("GiB")
        .label_style((FONT, 14))
        .draw()
        .map_err(refused)?;
    let entry = |i: usize, name: &str, style| legend_entry(&legend, i, name, style);
    for (i, row) in rows.iter().enumerate() {
        // A second round of the colours has thin lines.
        let style = COLOURS[i % COLOURS.len()].stroke_width(if i < COLOURS.len() { 3 } else { 1 });
        let points = row.memory.iter().map(|p| (p.seconds, in_gib(p.bytes)));
        chart.draw_series(LineSeries::new(points, style)).map_err(refused)?;
        entry(i, &row.name, style)?;
    }
    let style = BLACK.stroke_width(1);
    let line = DashedLineSeries::new([(0.0, cap), (seconds, cap)], 6, 4, style);
    chart.draw_series(line).map_err(refused)?;
    entry(rows.len(), &format!("cap, {}", human(exp2.config.vram_bytes)), style)
}

/// The line of a legend with the number `i`.
fn legend_entry(legend: &Canvas<'_>, i: usize, name: &str, style: ShapeStyle) -> Result<()> {
    let y = 64 + 20 * i as i32;
    legend.draw(&PathElement::new([(0, y), (22, y)], style)).map_err(refused)?;
    let text = TextStyle::from((FONT, 13)).pos(Pos::new(HPos::Left, VPos::Center));
    legend.draw(&Text::new(name.to_owned(), (28, y), text)).map_err(refused)
}

fn in_gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}
