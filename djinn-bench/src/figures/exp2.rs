//! Experiment 2: the time per token of each system beside the link's limit, and memory over time.

use super::{COLOURS, Canvas, FONT, Sheet, chart, refused, source, whole};
use crate::document::Document;
use crate::exp2::results::{Exp2, Medians, Row};
use crate::size::human;
use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::path::Path;

/// `token-time.svg` and `memory.svg`, into `folder`.
pub(crate) fn exp2(document: &Document<Exp2>, folder: &Path) -> Result<()> {
    let exp2 = &document.body;
    let config = &exp2.config;
    let sheet = |name: &str, title: String, foot: &str| Sheet {
        folder,
        name: name.to_owned(),
        title: format!("{title}: {}, {} for the capped systems", config.model, human(config.vram_bytes)),
        foot: format!("Blue: Djinn; orange: others. {foot}. {}", source(document)),
    };
    let link = fastest_link(exp2);
    let tick = format!("Black: the least time for the bytes that cross the link, {link:.1} GB/s");
    sheet("token-time.svg", "Milliseconds per token".to_owned(), &tick)
        .draw(|canvas| token_time(exp2, link, canvas))?;
    let what = if exp2.link.memcpy { "Memory of the process" } else { "Device memory" };
    sheet("memory.svg", format!("{what} over time"), "Dashed: the cap").draw(|canvas| memory(exp2, canvas))
}

/// The most that the link gave, in 1e9 bytes/s. Parts of an experiment were compared with the link of their own call.
fn fastest_link(exp2: &Exp2) -> f64 {
    let share = |row: &Row| Some(row.medians.as_ref()?.effective_gbps / row.link_share.filter(|&s| s > 0.0)?);
    exp2.systems.iter().filter_map(share).fold(exp2.link.pinned.up_gbps, f64::max)
}

/// A bar for each system's time per token, and a mark where its bytes alone would take it.
fn token_time(exp2: &Exp2, link: f64, canvas: &Canvas<'_>) -> Result<()> {
    let rows: Vec<(&Row, &Medians)> =
        exp2.systems.iter().filter_map(|row| Some((row, row.medians.as_ref()?))).collect();
    let most = rows.iter().map(|(_, medians)| medians.tpot_ms).fold(1e-3, f64::max) * 1.5;
    let mut chart = chart(canvas, None, [44, 130], 0.0..most, 0.0..rows.len().max(1) as f64)?;
    chart
        .configure_mesh()
        .disable_mesh()
        .y_labels(0)
        .x_label_formatter(&whole)
        .x_desc("ms per token (median)")
        .label_style((FONT, 14))
        .draw()
        .map_err(refused)?;
    for (i, (row, medians)) in rows.iter().enumerate() {
        let (low, high) = ((rows.len() - 1 - i) as f64 + 0.18, (rows.len() - i) as f64 - 0.18);
        let colour = COLOURS[usize::from(!row.own)].filled();
        let bar = Rectangle::new([(0.0, low), (medians.tpot_ms, high)], colour);
        chart.draw_series([bar]).map_err(refused)?;
        let middle = (low + high) / 2.0;
        let text = |words: String, x: f64, dx, side| {
            let style = TextStyle::from((FONT, 13)).pos(Pos::new(side, VPos::Center));
            EmptyElement::at((x, middle)) + Text::new(words, (dx, 0), style)
        };
        let gb = medians.streamed_bytes_per_pass as f64 / 1e9;
        let limit = gb / link * 1e3;
        let (words, end) = if gb > 0.0 {
            let edges = [(limit, low), (limit, high)];
            chart.draw_series([PathElement::new(edges, BLACK.stroke_width(3))]).map_err(refused)?;
            let words = format!("{:.1} ms; the link takes {limit:.1} ms for {gb:.2} GB", medians.tpot_ms);
            (words, limit.max(medians.tpot_ms))
        } else {
            (format!("{:.1} ms; all resident", medians.tpot_ms), medians.tpot_ms)
        };
        let labels = [text(row.name.clone(), 0.0, -8, HPos::Right), text(words, end, 8, HPos::Left)];
        chart.draw_series(labels).map_err(refused)?;
    }
    Ok(())
}

/// A panel for each system: its memory from the start of its process; a line for the cap, where it holds.
fn memory(exp2: &Exp2, canvas: &Canvas<'_>) -> Result<()> {
    let rows: Vec<&Row> = exp2.systems.iter().filter(|row| !row.memory.is_empty()).collect();
    let cap = in_gib(exp2.config.vram_bytes);
    let points = rows.iter().flat_map(|row| &row.memory);
    let most = points.map(|point| in_gib(point.bytes)).fold(cap, f64::max) * 1.15;
    let columns = rows.len().clamp(1, 4);
    let panels = canvas.split_evenly((rows.len().div_ceil(columns).max(1), columns));
    for (row, panel) in rows.iter().zip(&panels) {
        let seconds = row.memory.iter().map(|point| point.seconds).fold(1e-3, f64::max);
        let mut chart = chart(panel, Some(&row.name), [34, 46], 0.0..seconds, 0.0..most)?;
        let digits = usize::from(seconds < 5.0);
        chart
            .configure_mesh()
            .max_light_lines(0)
            .x_labels(4)
            .y_labels(4)
            .x_label_formatter(&|x| format!("{x:.digits$}"))
            .y_label_formatter(&|y| if most < 4.0 { format!("{y:.2}") } else { whole(y) })
            .x_desc("seconds")
            .y_desc("GiB")
            .label_style((FONT, 11))
            .draw()
            .map_err(refused)?;
        let line = row.memory.iter().map(|point| (point.seconds, in_gib(point.bytes)));
        let colour = COLOURS[usize::from(!row.own)];
        chart.draw_series(LineSeries::new(line, colour.stroke_width(2))).map_err(refused)?;
        if row.capped {
            let line = DashedLineSeries::new([(0.0, cap), (seconds, cap)], 6, 4, BLACK.stroke_width(1));
            chart.draw_series(line).map_err(refused)?;
        }
    }
    Ok(())
}

fn in_gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}
