//! Results as Markdown.

mod exp1;
mod exp2;
mod exp2_remote;
mod exp3;
mod swap;
#[cfg(test)]
mod tests;

use crate::args::ReportArgs;
use crate::document::Document;
use crate::link::Link;
use crate::plan::{Comparison, Row};
use crate::size::human;
use crate::sweep::{Batch, Mode, Sweep};
use anyhow::{Context, Result, ensure};
use djinn_vmu::Placement;
pub(crate) use exp1::exp1;
pub(crate) use exp2::exp2;
pub(crate) use exp2_remote::exp2_remote;
pub(crate) use exp3::exp3;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::{Path, PathBuf};
pub(crate) use swap::swap;

pub(crate) fn run(args: &ReportArgs) -> Result<()> {
    let mut text = String::from("# Results\n");
    for path in files(&args.results)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match render(&path)? {
            Some(section) => text += &format!("\n## {name}\n\n{section}"),
            None => crate::remark(&format!("{name}: no result that this program knows; left out")),
        }
    }
    ensure!(text.contains("##"), "{}: holds no results that this program knows", args.results.display());
    match &args.out {
        Some(path) => std::fs::write(path, text).with_context(|| path.display().to_string()),
        None => {
            print!("{text}");
            Ok(())
        }
    }
}

/// The JSON files of a folder by name, or the one file.
fn files(place: &Path) -> Result<Vec<PathBuf>> {
    if place.is_file() {
        return Ok(vec![place.to_owned()]);
    }
    let entries = std::fs::read_dir(place).with_context(|| place.display().to_string())?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| place.display().to_string())?.path();
        if path.extension().is_some_and(|e| e == "json") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// A result as Markdown; `None` if it is of another kind.
fn render(path: &Path) -> Result<Option<String>> {
    fn section<T: DeserializeOwned>(value: Value, text: fn(&Document<T>) -> String) -> Result<String> {
        Ok(text(&serde_json::from_value(value)?))
    }
    let value = json(path)?;
    let section = match kind(&value) {
        Some("exp1") => section(value, exp1),
        Some("exp2") => section(value, exp2),
        Some("exp2-remote") => section(value, exp2_remote),
        Some("exp3") => section(value, exp3),
        Some("link") => section(value, link),
        Some("sweep") => section(value, sweep),
        Some("swap") => section(value, swap),
        Some("plan") => section(value, plan),
        // Those of the project's scripts bring it along.
        _ => return Ok(value.get("report").and_then(Value::as_str).map(str::to_owned)),
    };
    section.map(Some).with_context(|| path.display().to_string())
}

fn json(path: &Path) -> Result<Value> {
    let name = || path.display().to_string();
    serde_json::from_str(&std::fs::read_to_string(path).with_context(name)?).with_context(name)
}

/// Reads a result of `experiment` from its file.
pub(crate) fn read<T: DeserializeOwned>(path: &Path, experiment: &str) -> Result<Document<T>> {
    let (name, value) = (|| path.display().to_string(), json(path)?);
    ensure!(kind(&value) == Some(experiment), "{}: no result of {experiment}", name());
    serde_json::from_value(value).with_context(name)
}

/// The experiment that a file of results is of, where it says so.
pub(crate) fn experiment(path: &Path) -> Result<Option<String>> {
    Ok(kind(&json(path)?).map(str::to_owned))
}

fn kind(value: &Value) -> Option<&str> {
    value.get("experiment").and_then(Value::as_str)
}

/// Where, when and how.
fn circumstances<T>(document: &Document<T>) -> String {
    let machine = &document.machine;
    let mut places: Vec<String> = machine.gpu.iter().cloned().collect();
    places.extend(machine.driver.iter().map(|driver| format!("driver {driver}")));
    places.extend(machine.cpu.clone());
    places.push(format!("{} threads", machine.threads));
    places.extend(machine.memory_bytes.map(human));
    let commit = if document.commit.is_empty() { "unknown" } else { &document.commit };
    format!("{}, {}, commit {commit}: `{}`\n", places.join(", "), document.date, document.command)
}

/// A column of a table: its head, and what it says of a row.
type Column<'a, R> = (&'a str, &'a dyn Fn(&R) -> String);

/// A table of `rows`: the first `left` columns are text, the others numbers.
fn table<R>(left: usize, rows: impl IntoIterator<Item = R>, columns: &[Column<'_, R>]) -> String {
    let heads = columns.iter().map(|(head, _)| (*head).to_owned()).collect();
    grid(left, heads, rows.into_iter().map(|row| columns.iter().map(|(_, cell)| cell(&row)).collect()))
}

/// A table of `heads` and cells, where the columns depend on what was measured.
fn grid(left: usize, heads: Vec<String>, rows: impl Iterator<Item = Vec<String>>) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let rule: Vec<&str> = (0..heads.len()).map(|i| if i < left { "---" } else { "--:" }).collect();
    let rule = format!("|{}|\n", rule.join("|"));
    [line(heads), rule].into_iter().chain(rows.map(line)).collect()
}

/// A number with `digits` after the point, or a dash.
fn number(value: impl Into<Option<f64>>, digits: usize) -> String {
    value.into().map_or_else(|| "–".to_owned(), |value| format!("{value:.digits$}"))
}

/// Bytes in 1e9.
fn gb(bytes: u64, digits: usize) -> String {
    number(bytes as f64 / 1e9, digits)
}

/// A ratio − 1 in percent, or a dash.
fn percent(error: Option<f64>) -> String {
    error.map_or_else(|| "–".to_owned(), |error| format!("{:+.1} %", 100.0 * error))
}

pub(crate) fn link(document: &Document<Link>) -> String {
    circumstances(document) + "\n" + &link_table(&document.body)
}

fn link_table(link: &Link) -> String {
    let kind = if link.memcpy { "memory copies (no link is crossed)" } else { "the link" };
    let rows =
        [("pinned", link.pinned), ("pinned, both at once", link.both), ("pageable, staged", link.staged)];
    let mut text = format!("{}: {kind}, GB/s.\n\n", link.device);
    text += &table(
        1,
        rows,
        &[
            ("", &|(name, _)| (*name).to_owned()),
            ("to the device", &|(_, rates)| number(rates.up_gbps, 1)),
            ("from the device", &|(_, rates)| number(rates.down_gbps, 1)),
        ],
    );
    if let Some(expected) = &link.expected {
        text += &format!("\n{} gives {:.1} GB/s at least.\n", expected.link, expected.gbps);
    }
    for warning in &link.warnings {
        text += &format!("\nWarning: {warning}.\n");
    }
    text
}

pub(crate) fn sweep(document: &Document<Sweep>) -> String {
    let sweep = &document.body;
    let mut text = circumstances(document);
    let on_cpu = sweep.cpu_share.map_or_else(String::new, |share| {
        format!(
            ", the CPU computes with {share} of what streams in steps of up to {} tokens",
            Placement::CPU_ROWS
        )
    });
    text += &format!(
        "\n{} on {}, {}-token prompts{on_cpu}, medians of {} passes.\n\n",
        sweep.model, sweep.device, sweep.prompt, sweep.tokens
    );
    let rows = sweep.modes.iter().flat_map(|mode| {
        let failed = mode.failure.as_ref().map(|_| (mode, None));
        failed.into_iter().chain(mode.batches.iter().map(move |batch| (mode, Some(batch))))
    });
    let weights = |mode: &Mode| match mode.vram_bytes {
        // A cap that all weights fit.
        Some(vram) if mode.failure.is_none() && mode.streamed_bytes_per_pass == 0 => {
            format!("resident, {}", human(vram))
        }
        Some(vram) => format!("{}, {}", mode.name, human(vram)),
        None => mode.name.clone(),
    };
    let failure = |mode: &Mode| mode.failure.clone().unwrap_or_default();
    let served = |batch: &Option<&Batch>| batch.and_then(|batch| batch.served.as_ref().cloned());
    let columns: [Column<'_, (&Mode, Option<&Batch>)>; 8] = [
        ("weights", &|(mode, _)| weights(mode)),
        ("batch", &|(mode, batch)| batch.map_or_else(|| failure(mode), |batch| batch.batch.to_string())),
        ("GB streamed per pass", &|(mode, batch)| {
            batch.map_or_else(|| number(None, 0), |_| gb(mode.streamed_bytes_per_pass, 3))
        }),
        ("ms per pass", &|(_, batch)| number(batch.map(|batch| batch.pass_ms), 2)),
        ("tokens/s", &|(_, batch)| number(batch.map(|batch| batch.tokens_per_s), 1)),
        ("ratio", &|(_, batch)| number(batch.map(|batch| batch.ratio), 2)),
        ("served, ms per step", &|(_, batch)| number(served(batch).map(|served| served.step_ms), 2)),
        ("device idle, %", &|(_, batch)| number(served(batch).map(|served| served.idle_share * 100.0), 2)),
    ];
    text + &table(1, rows, &columns)
}

/// Predictions beside measurements.
pub(crate) fn plan(document: &Document<Comparison>) -> String {
    let comparison = &document.body;
    let mut text = circumstances(document);
    text += &format!(
        "\nTime per token, predicted for {}, {}-token prompt, medians of {} runs.\n\n",
        comparison.predicted_for, comparison.prompt, comparison.runs
    );
    let limit = |case: &Row| case.failure.clone().unwrap_or_else(|| format!("the {}", case.bottleneck));
    let columns: [Column<'_, &Row>; 7] = [
        ("model", &|case| case.model.clone()),
        ("limited by", &|case| limit(case)),
        ("budget", &|case| human(case.vram_bytes)),
        ("GB streamed per pass", &|case| gb(case.streamed_bytes_per_pass, 3)),
        ("predicted ms", &|case| number(case.predicted_tpot_ms, 2)),
        ("measured ms", &|case| number(case.measured_tpot_ms, 2)),
        ("error", &|case| percent(case.relative_error)),
    ];
    text + &table(2, &comparison.cases, &columns)
}
