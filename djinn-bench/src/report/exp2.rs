//! Experiment 2 as Markdown: the systems side by side, then what each mechanism contributes.

use super::{Column, circumstances, link_table, number, table};
use crate::document::Document;
use crate::exp2::results::{Config, Exp2, Medians, Row};
use crate::exp2::systems::FULL;
use crate::size::human;

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
    let name = |row: &Row| match row.failure.as_ref().or(row.unavailable.as_ref()) {
        Some(why) => format!("{} ({}): {why}", row.name, row.title),
        None => format!("{} ({})", row.name, row.title),
    };
    let median = |row: &Row, value: fn(&Medians) -> f64| row.medians.as_ref().map(value);
    let effective = |row: &Row| {
        let medians = row.medians.as_ref().filter(|medians| medians.streamed_bytes_per_pass > 0);
        medians.map(|medians| medians.effective_gbps)
    };
    let mib = |bytes: Option<u64>| number(bytes.map(|bytes| bytes as f64 / (1 << 20) as f64), 0);
    let own_peak = |row: &Row| row.samples.iter().filter_map(|sample| sample.device_peak_bytes).max();
    let columns: [Column<'_, &Row>; 12] = [
        ("system", &|row| name(row).replace('|', "/")),
        ("capped", &|row| if row.capped { "yes" } else { "no" }.to_owned()),
        ("runs", &|row| row.samples.len().to_string()),
        ("GB off the device", &|row| number(median(row, |m| m.streamed_bytes_per_pass as f64 / 1e9), 3)),
        ("TTFT ms", &|row| number(median(row, |m| m.ttft_ms), 1)),
        ("ms/token (median)", &|row| number(median(row, |m| m.tpot_ms), 2)),
        ("ms/token (mean)", &|row| number(median(row, |m| m.tpot_mean_ms), 2)),
        ("total ms", &|row| number(median(row, |m| m.total_ms), 0)),
        ("GB/s", &|row| number(effective(row), 1)),
        ("share of link", &|row| number(row.link_share, 3)),
        ("peak MiB (outside)", &|row| mib(row.peak_bytes)),
        ("peak MiB (own)", &|row| mib(own_peak(row))),
    ];
    table(2, rows, &columns)
}

/// An ablation that was measured, and what its mechanism does.
type Ablation<'a> = (&'a Row, &'a Medians, &'a String);

/// Each ablation beside FULL; `None` without both.
fn ablations(rows: &[Row]) -> Option<String> {
    let full = rows.iter().find(|row| row.name == FULL)?.medians.as_ref()?;
    let rows: Vec<Ablation<'_>> =
        rows.iter().filter_map(|row| Some((row, row.medians.as_ref()?, row.why.as_ref()?))).collect();
    if rows.is_empty() {
        return None;
    }
    let streamed = |of: &Medians| of.streamed_bytes_per_pass as f64 / 1e9;
    let columns: [Column<'_, Ablation<'_>>; 7] = [
        ("without", &|(row, ..)| row.name.clone()),
        ("ms/token", &|(_, without, _)| format!("{:+.2}", without.tpot_ms - full.tpot_ms)),
        ("times FULL", &|(_, without, _)| number(without.tpot_ms / full.tpot_ms, 3)),
        ("TTFT ms", &|(_, without, _)| format!("{:+.1}", without.ttft_ms - full.ttft_ms)),
        ("GB per pass", &|(_, without, _)| format!("{:+.3}", streamed(without) - streamed(full))),
        ("logits", &|(row, ..)| match row.same_as_full {
            Some(true) => "equal".to_owned(),
            Some(false) => "DIFFERENT".to_owned(),
            None => "–".to_owned(),
        }),
        ("why", &|(.., why)| (*why).clone()),
    ];
    Some(table(1, rows, &columns))
}
