//! Experiment 2 through a network: what an answer takes at the client, at the server, and on this machine.

use super::{COLOURS, Canvas, FONT, Sheet, chart, refused, source, whole};
use crate::document::Document;
use crate::exp2::remote::Distributed;
use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::path::Path;

/// A panel's name, and a bar with its name for each place that has one.
type Panel<'a> = (&'a str, Vec<(&'a str, f64)>);

/// `remote.svg`, into `folder`.
pub(crate) fn exp2_remote(document: &Document<Distributed>, folder: &Path) -> Result<()> {
    let Distributed { config, medians, .. } = &document.body;
    let bars = |client, server, local: Option<f64>| {
        let places = [("client", Some(client)), ("server", Some(server)), ("this machine", local)];
        places.into_iter().filter_map(|(place, ms)| Some((place, ms?))).collect()
    };
    let panels: [Panel<'_>; 2] = [
        ("ms to the first token", bars(medians.ttft_ms, medians.server_ttft_ms, medians.local_ttft_ms)),
        ("ms per token", bars(medians.tpot_ms, medians.server_tpot_ms, medians.local_tpot_ms)),
    ];
    let sheet = Sheet {
        folder,
        name: "remote.svg".to_owned(),
        title: format!("{} through a network, {}-token prompts", config.model, config.prompt),
        foot: format!("The same answers by the clocks of client and server. {}", source(document)),
    };
    sheet.draw(|canvas| {
        let (upper, lower) = canvas.split_vertically(canvas.dim_in_pixel().1 / 2);
        panels.iter().zip([upper, lower]).try_for_each(|(panel, canvas)| bars_of(panel, &canvas))
    })
}

fn bars_of((name, bars): &Panel<'_>, canvas: &Canvas<'_>) -> Result<()> {
    let most = bars.iter().map(|(_, ms)| *ms).fold(1e-3, f64::max) * 1.3;
    let mut chart = chart(canvas, None, [44, 130], 0.0..most, 0.0..bars.len() as f64)?;
    chart
        .configure_mesh()
        .disable_mesh()
        .y_labels(0)
        .x_label_formatter(&|ms| if most < 5.0 { format!("{ms:.1}") } else { whole(ms) })
        .x_desc(*name)
        .label_style((FONT, 14))
        .draw()
        .map_err(refused)?;
    for (i, (place, ms)) in bars.iter().enumerate() {
        let (low, high) = ((bars.len() - 1 - i) as f64 + 0.18, (bars.len() - i) as f64 - 0.18);
        let colour = COLOURS[usize::from(*place == "this machine")].filled();
        chart.draw_series([Rectangle::new([(0.0, low), (*ms, high)], colour)]).map_err(refused)?;
        let text = |words: String, x: f64, dx, side| {
            let style = TextStyle::from((FONT, 13)).pos(Pos::new(side, VPos::Center));
            EmptyElement::at((x, (low + high) / 2.0)) + Text::new(words, (dx, 0), style)
        };
        let labels = [
            text((*place).to_owned(), 0.0, -8, HPos::Right),
            text(format!("{ms:.2} ms"), *ms, 8, HPos::Left),
        ];
        chart.draw_series(labels).map_err(refused)?;
    }
    Ok(())
}
