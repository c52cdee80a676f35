//! Swaps as Markdown.

use super::{circumstances, number, table};
use crate::document::Document;
use crate::size::human;
use crate::swap::{Mode, Swap};

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
    let rows: Vec<Vec<String>> = swap
        .transfers
        .iter()
        .map(|way| {
            vec![
                way.name.clone(),
                format!("{:.3}", way.bytes as f64 / 1e9),
                number(way.gbps, 1),
                number(way.first_byte_us, 0),
                number(way.total_ms, 2),
            ]
        })
        .collect();
    text +=
        &table(1, &["one session", "GB copied", "GB/s", "first byte after us", "all free after ms"], &rows);
    text += &format!(
        "\nOne session decodes; beside it up to {} sessions leave and as many come back, all the time. GB/s of the \
         whole time.\n\n",
        swap.moving
    );
    let rows: Vec<Vec<String>> = swap.modes.iter().flat_map(decoding).collect();
    let head = ["weights", "beside", "ms/token", "ratio", "weights GB/s", "swaps in GB/s", "swaps out GB/s"];
    text + &table(2, &head, &rows)
}

fn decoding(mode: &Mode) -> Vec<Vec<String>> {
    let streamed = format!("{} ({:.3} GB per pass)", mode.name, mode.streamed_bytes_per_pass as f64 / 1e9);
    let what = if mode.streamed_bytes_per_pass > 0 { streamed } else { mode.name.clone() };
    if let Some(failure) = &mode.failure {
        let none = || number(None, 0);
        return vec![vec![what, failure.clone(), none(), none(), none(), none(), none()]];
    }
    let first = mode.runs.first().map(|run| run.token_ms);
    let row = |run: &crate::swap::Run| {
        vec![
            what.clone(),
            if run.swaps { "swaps both ways" } else { "nothing" }.to_owned(),
            format!("{:.2}", run.token_ms),
            number(first.map(|first| run.token_ms / first), 2),
            number(run.weights_gbps, 1),
            number(run.in_gbps, 1),
            number(run.out_gbps, 1),
        ]
    };
    mode.runs.iter().map(row).collect()
}
