//! Experiment 2 as Markdown: the systems side by side, then what each mechanism contributes.

use super::{circumstances, link_table, number, table};
use crate::document::Document;
use crate::exp2::results::{Config, Exp2, Row};
use crate::exp2::systems::FULL;
use crate::size::human;

/// All of it.
pub(crate) fn exp2(document: &Document<Exp2>) -> String {
    let exp2 = &document.body;
    let mut text = circumstances(document) + "\n" + &setting(&exp2.config, exp2.occupied_bytes);
    text += &format!("\n### Systems\n\n{}", systems(&exp2.systems));
    for row in &exp2.systems {
        text += &row.note.as_ref().map_or_else(String::new, |note| format!("\n{}: {note}.\n", row.name));
    }
    if let Some(ablations) = ablations(&exp2.systems) {
        text += &format!("\n### What each mechanism contributes\n\n{ablations}");
    }
    if let Some(check) = &exp2.logits {
        text += &format!(
            "\nLogits of {} with every weight streamed, beside transformers in f32, {} positions: difference norm {:.2e}, \
             relative {:.2e} (worst position).\n",
            check.checkpoint, check.positions, check.difference_norm, check.relative_error
        );
    }
    text + "\n### Link\n\n" + &link_table(&exp2.link)
}

fn setting(config: &Config, occupied: Option<u64>) -> String {
    let tokens = config.tokens - 1;
    let processes = if config.process_per_run {
        "every run of Djinn in a process of its own"
    } else {
        "all runs of a system in one process, after one load and one warm-up that is not timed"
    };
    let occupied =
        occupied.map_or_else(String::new, |bytes| format!(", {} of the card occupied", human(bytes)));
    format!(
        "{} on {}, {} for the capped systems{occupied}; {}-token prompt, {tokens} further tokens; medians of {} runs \
         ({} of ablations, {} of peers) at most, {processes}.\n",
        config.model,
        config.device,
        human(config.vram_bytes),
        config.prompt,
        config.runs,
        config.ablation_runs,
        config.peer_runs
    )
}

fn systems(rows: &[Row]) -> String {
    let cells = |row: &Row| {
        let medians = row.medians.as_ref();
        let mib = |bytes: Option<u64>| number(bytes.map(|b| b as f64 / (1 << 20) as f64), 0);
        let own_peak = row.samples.iter().filter_map(|s| s.device_peak_bytes).max();
        let name = match row.failure.as_ref().or(row.unavailable.as_ref()) {
            Some(why) => format!("{} ({}): {why}", row.name, row.title),
            None => format!("{} ({})", row.name, row.title),
        };
        vec![
            name.replace('|', "/"),
            if row.capped { "yes" } else { "no" }.to_owned(),
            row.samples.len().to_string(),
            number(medians.map(|m| m.streamed_bytes_per_pass as f64 / 1e9), 3),
            number(medians.map(|m| m.ttft_ms), 1),
            number(medians.map(|m| m.tpot_ms), 2),
            number(medians.map(|m| m.tpot_mean_ms), 2),
            number(medians.map(|m| m.total_ms), 0),
            number(medians.filter(|m| m.streamed_bytes_per_pass > 0).map(|m| m.effective_gbps), 1),
            number(row.link_share, 3),
            mib(row.peak_bytes),
            mib(own_peak),
        ]
    };
    let head = [
        "system",
        "capped",
        "runs",
        "GB off the device",
        "TTFT ms",
        "ms/token (median)",
        "ms/token (mean)",
        "total ms",
        "GB/s",
        "share of link",
        "peak MiB (outside)",
        "peak MiB (own)",
    ];
    table(2, &head, &rows.iter().map(cells).collect::<Vec<_>>())
}

/// Each ablation beside FULL; `None` without both.
fn ablations(rows: &[Row]) -> Option<String> {
    let full = rows.iter().find(|row| row.name == FULL)?.medians.as_ref()?;
    let cells: Vec<Vec<String>> = rows
        .iter()
        .filter_map(|row| {
            let medians = row.medians.as_ref()?;
            let why = row.why.as_ref()?;
            let same = match row.same_as_full {
                Some(true) => "equal",
                Some(false) => "DIFFERENT",
                None => "–",
            };
            let streamed = medians.streamed_bytes_per_pass as f64 - full.streamed_bytes_per_pass as f64;
            Some(vec![
                row.name.clone(),
                format!("{:+.2}", medians.tpot_ms - full.tpot_ms),
                format!("{:.3}", medians.tpot_ms / full.tpot_ms),
                format!("{:+.1}", medians.ttft_ms - full.ttft_ms),
                format!("{:+.3}", streamed / 1e9),
                same.to_owned(),
                why.clone(),
            ])
        })
        .collect();
    if cells.is_empty() {
        return None;
    }
    let head = ["without", "ms/token", "times FULL", "TTFT ms", "GB per pass", "logits", "why"];
    Some(table(1, &head, &cells))
}
