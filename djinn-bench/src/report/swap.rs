//! Swaps as Markdown.

use super::{Column, circumstances, gb, number, table};
use crate::document::Document;
use crate::size::human;
use crate::swap::{Mode, Run, Swap, Way};

/// Two tables: transfers while nothing is computed, and decoding without swaps and beside them.
pub(crate) fn swap(document: &Document<Swap>) -> String {
    let swap = &document.body;
    let mut text = circumstances(document);
    text += &format!(
        "\n{} on {}, sessions of {} tokens, {} of keys and values each. Medians by the device's clock.\n\n",
        swap.model,
        swap.device,
        swap.tokens,
        human(swap.session_bytes)
    );
    let columns: [Column<'_, &Way>; 5] = [
        ("one session", &|way| way.name.clone()),
        ("GB copied", &|way| gb(way.bytes, 3)),
        ("GB/s", &|way| number(way.gbps, 1)),
        ("first byte after us", &|way| number(way.first_byte_us, 0)),
        ("all free after ms", &|way| number(way.total_ms, 2)),
    ];
    text += &table(1, &swap.transfers, &columns);
    text += &format!(
        "\nOne session decodes; beside it up to {} sessions leave and as many come back, all the time. GB/s of the \
         whole time.\n\n",
        swap.moving
    );
    let rows = swap.modes.iter().flat_map(|mode| {
        let failed = mode.failure.as_ref().map(|_| (mode, None));
        failed.into_iter().chain(mode.runs.iter().map(move |run| (mode, Some(run))))
    });
    let beside = |mode: &Mode, run: Option<&Run>| match run {
        None => mode.failure.clone().unwrap_or_default(),
        Some(run) => if run.swaps { "swaps both ways" } else { "nothing" }.to_owned(),
    };
    let columns: [Column<'_, (&Mode, Option<&Run>)>; 7] = [
        ("weights", &|(mode, _)| weights(mode)),
        ("beside", &|(mode, run)| beside(mode, *run)),
        ("ms/token", &|(_, run)| number(run.map(|run| run.token_ms), 2)),
        ("ratio", &|(mode, run)| number(run.map(|run| run.token_ms / mode.runs[0].token_ms), 2)),
        ("weights GB/s", &|(_, run)| number(run.and_then(|run| run.weights_gbps), 1)),
        ("swaps in GB/s", &|(_, run)| number(run.and_then(|run| run.in_gbps), 1)),
        ("swaps out GB/s", &|(_, run)| number(run.and_then(|run| run.out_gbps), 1)),
    ];
    text + &table(2, rows, &columns)
}

fn weights(mode: &Mode) -> String {
    match mode.streamed_bytes_per_pass {
        0 => mode.name.clone(),
        bytes => format!("{} ({} GB per pass)", mode.name, gb(bytes, 3)),
    }
}
