//! Figures as SVG: what each is called, where it was measured, and the parts that they share.

mod exp1;
mod exp2;
mod exp2_remote;
mod timeline;

use crate::args::FiguresArgs;
use crate::document::Document;
use crate::report;
use anyhow::{Context, Result, anyhow};
pub(crate) use exp1::exp1;
pub(crate) use exp2::exp2;
pub(crate) use exp2_remote::exp2_remote;
use plotters::coord::Shift;
use plotters::coord::ranged1d::AsRangedCoord;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::path::Path;
pub(crate) use timeline::timeline;

const WIDTH: u32 = 960;
const HEIGHT: u32 = 540;
/// Height of the line at the foot of a figure.
const FOOT: u32 = 26;
const LEGEND: i32 = 190;
const FONT: &str = "sans-serif";
const GREY: RGBColor = RGBColor(190, 190, 190);
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

pub(crate) fn run(args: &FiguresArgs) -> Result<()> {
    if let Some(results) = &args.exp1 {
        exp1(&report::read(results, "exp1")?, &args.out)?;
    }
    if let Some(results) = &args.exp2 {
        match report::experiment(results)?.as_deref() {
            Some("exp2-remote") => exp2_remote(&report::read(results, "exp2-remote")?, &args.out)?,
            _ => exp2(&report::read(results, "exp2")?, &args.out)?,
        }
    }
    if let Some(trace) = &args.trace {
        timeline(trace, &args.out)?;
    }
    Ok(())
}

/// The file of a figure, with what is written above and below it.
struct Sheet<'a> {
    folder: &'a Path,
    name: String,
    title: String,
    /// The machine, and what else a reader must know of the figure.
    foot: String,
}

impl Sheet<'_> {
    /// Draws onto a white canvas between title and foot, and writes the file.
    fn draw(self, figure: impl FnOnce(&Canvas<'_>) -> Result<()>) -> Result<()> {
        let Sheet { folder, name, title, foot } = self;
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let mut svg = String::new();
        {
            let canvas = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
            canvas.fill(&WHITE).map_err(refused)?;
            let framed = canvas.margin(10, 0, 0, 0).titled(&title, (FONT, 20)).map_err(refused)?;
            let (body, below) = framed.split_vertically(framed.dim_in_pixel().1 - FOOT);
            figure(&body).with_context(|| name.clone())?;
            let style = TextStyle::from((FONT, 12)).color(&COLOURS[6]);
            below.draw(&Text::new(foot, (16, 4), style)).map_err(refused)?;
            canvas.present().map_err(refused)?;
        }
        let path = folder.join(&name);
        std::fs::write(&path, svg).with_context(|| path.display().to_string())
    }
}

type Chart<'a, 'b, X, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Y>>;

/// A chart's area and axes: `areas` are the height below it and the width left of it, for labels.
fn chart<'a, 'b, X: AsRangedCoord, Y: AsRangedCoord>(
    on: &'a Canvas<'b>,
    caption: Option<&str>,
    areas: [u32; 2],
    x: X,
    y: Y,
) -> Result<Chart<'a, 'b, X::CoordDescType, Y::CoordDescType>> {
    let mut builder = ChartBuilder::on(on);
    builder.margin(if caption.is_some() { 6 } else { 16 });
    builder.x_label_area_size(areas[0]).y_label_area_size(areas[1]);
    if let Some(caption) = caption {
        builder.caption(caption, (FONT, 14));
    }
    builder.build_cartesian_2d(x, y).map_err(refused)
}

/// Where and when a result was measured, and by which build.
fn source<T>(document: &Document<T>) -> String {
    let machine = &document.machine;
    let place = match (&machine.gpu, &machine.cpu) {
        (Some(gpu), _) => gpu.clone(),
        (None, Some(cpu)) => format!("{cpu}, {} threads", machine.threads),
        (None, None) => format!("{} threads", machine.threads),
    };
    let day = document.date.split('T').next().unwrap_or_default();
    let commit = if document.commit.is_empty() { "unknown" } else { &document.commit };
    format!("{place}; commit {commit}, {day}")
}

/// A failure to draw, whose own type is not `Sync`.
fn refused(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot draw: {error}")
}

/// The line of a legend with the number `i`.
fn legend_entry(legend: &Canvas<'_>, i: usize, name: &str, style: ShapeStyle) -> Result<()> {
    let y = 24 + 20 * i as i32;
    legend.draw(&PathElement::new([(0, y), (22, y)], style)).map_err(refused)?;
    legend_text(legend, i, name, 28)
}

/// Words in the line of a legend with the number `i`, from `x` on.
fn legend_text(legend: &Canvas<'_>, i: usize, words: &str, x: i32) -> Result<()> {
    let style = TextStyle::from((FONT, 13)).pos(Pos::new(HPos::Left, VPos::Center));
    legend.draw(&Text::new(words.to_owned(), (x, 24 + 20 * i as i32), style)).map_err(refused)
}

/// A label of an axis without digits after the point.
fn whole(value: &f64) -> String {
    format!("{value:.0}")
}

/// The end of an axis for values up to `most`, and a step that gives it some five labels: 1, 2 or 5 times a power of
/// ten, at least 1.
fn round_axis(most: f64) -> (f64, f64) {
    let rough = (most / 5.0).max(1.0);
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(10.0 * power);
    // The last label is within the axis.
    (((most / step).ceil().max(1.0) + 0.02) * step, step)
}
