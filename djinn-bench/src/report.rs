//! Results as Markdown.

mod exp1;
mod exp2;
mod older;
mod swap;
#[cfg(test)]
mod tests;

use crate::args::ReportArgs;
use crate::document::Document;
use crate::link::Link;
use crate::plan::Comparison;
use crate::size::human;
use crate::sweep::Sweep;
use anyhow::{Context, Result, ensure};
pub(crate) use exp1::exp1;
pub(crate) use exp2::exp2;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::{Path, PathBuf};
pub(crate) use swap::swap;

/// `djinn-bench report`.
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
    let name = || path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(name)?;
    let value: Value = serde_json::from_str(&text).with_context(name)?;
    let section = match value.get("experiment").and_then(Value::as_str) {
        Some("exp1") => Some(exp1(&read(value).with_context(name)?)),
        Some("exp2") => Some(exp2(&read(value).with_context(name)?)),
        Some("link") => Some(link(&read(value).with_context(name)?)),
        Some("sweep") => Some(sweep(&read(value).with_context(name)?)),
        Some("swap") => Some(swap(&read(value).with_context(name)?)),
        Some("plan") => Some(plan(&read(value).with_context(name)?)),
        _ => older::render(&value),
    };
    Ok(section)
}

/// Reads a result of experiment 2 from its file.
pub(crate) fn read_exp2(path: &Path) -> Result<Document<crate::exp2::results::Exp2>> {
    read_of(path, "exp2")
}

/// Reads a result of experiment 1 from its file.
pub(crate) fn read_exp1(path: &Path) -> Result<Document<crate::exp1::results::Exp1>> {
    read_of(path, "exp1")
}

fn read_of<T: DeserializeOwned>(path: &Path, experiment: &str) -> Result<Document<T>> {
    let name = || path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(name)?;
    let value: Value = serde_json::from_str(&text).with_context(name)?;
    let found = value.get("experiment").and_then(Value::as_str);
    ensure!(found == Some(experiment), "{}: no result of {experiment}", name());
    read(value).with_context(name)
}

fn read<T: DeserializeOwned>(value: Value) -> Result<Document<T>> {
    Ok(serde_json::from_value(value)?)
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

/// A table: the first `left` columns are text, the others numbers.
fn table(left: usize, head: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let heads: Vec<String> = head.iter().map(|h| (*h).to_owned()).collect();
    let rule: Vec<&str> = (0..head.len()).map(|i| if i < left { "---" } else { "--:" }).collect();
    let rule = format!("|{}|\n", rule.join("|"));
    let rows: String = rows.iter().map(|row| line(row)).collect();
    format!("{}{rule}{rows}", line(&heads))
}

/// A number with `digits` after the point, or a dash.
fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.digits$}"))
}

/// The link.
pub(crate) fn link(document: &Document<Link>) -> String {
    circumstances(document) + "\n" + &link_table(&document.body)
}

fn link_table(link: &Link) -> String {
    let kind = if link.memcpy { "memory copies (no link is crossed)" } else { "the link" };
    let row = |name: &str, rates: crate::link::Rates| {
        vec![name.to_owned(), format!("{:.1}", rates.up_gbps), format!("{:.1}", rates.down_gbps)]
    };
    let rows = [
        row("pinned", link.pinned),
        row("pinned, both at once", link.both),
        row("pageable, staged", link.staged),
    ];
    let mut text = format!("{}: {kind}, GB/s.\n\n", link.device);
    text += &table(1, &["", "to the device", "from the device"], &rows);
    if let Some(expected) = &link.expected {
        text += &format!("\n{} gives {:.1} GB/s at least.\n", expected.link, expected.gbps);
    }
    for warning in &link.warnings {
        text += &format!("\nWarning: {warning}.\n");
    }
    text
}

/// Batches.
pub(crate) fn sweep(document: &Document<Sweep>) -> String {
    let sweep = &document.body;
    let mut text = circumstances(document);
    text += &format!(
        "\n{} on {}, {}-token prompts, medians of {} passes.\n\n",
        sweep.model, sweep.device, sweep.prompt, sweep.tokens
    );
    let mut rows = Vec::new();
    for mode in &sweep.modes {
        let what = match mode.vram_bytes {
            Some(vram) => format!("{}, {}", mode.name, human(vram)),
            None => mode.name.clone(),
        };
        let streamed = format!("{:.3}", mode.streamed_bytes_per_pass as f64 / 1e9);
        if let Some(failure) = &mode.failure {
            rows.push(vec![what, failure.clone(), "–".into(), "–".into(), "–".into(), "–".into()]);
            continue;
        }
        rows.extend(mode.batches.iter().map(|batch| {
            vec![
                what.clone(),
                batch.batch.to_string(),
                streamed.clone(),
                format!("{:.2}", batch.pass_ms),
                format!("{:.1}", batch.tokens_per_s),
                format!("{:.2}", batch.ratio),
            ]
        }));
    }
    text + &table(1, &["weights", "batch", "GB streamed per pass", "ms per pass", "tokens/s", "ratio"], &rows)
}

/// Predictions beside measurements.
pub(crate) fn plan(document: &Document<Comparison>) -> String {
    let comparison = &document.body;
    let mut text = circumstances(document);
    text += &format!(
        "\nTime per token, predicted for {}, {}-token prompt, medians of {} runs.\n\n",
        comparison.predicted_for, comparison.prompt, comparison.runs
    );
    let rows: Vec<Vec<String>> = comparison
        .cases
        .iter()
        .map(|case| {
            vec![
                case.model.clone(),
                case.failure.clone().unwrap_or_else(|| format!("the {}", case.bottleneck)),
                human(case.vram_bytes),
                format!("{:.3}", case.streamed_bytes_per_pass as f64 / 1e9),
                format!("{:.2}", case.predicted_tpot_ms),
                number(case.measured_tpot_ms, 2),
                case.relative_error.map_or_else(|| "–".to_owned(), |e| format!("{:+.1} %", 100.0 * e)),
            ]
        })
        .collect();
    let head =
        ["model", "limited by", "budget", "GB streamed per pass", "predicted ms", "measured ms", "error"];
    text + &table(2, &head, &rows)
}
