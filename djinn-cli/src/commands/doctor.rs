//! `djinn doctor`: what this machine has and sustains, with a remedy for each problem.

mod checks;
mod disk;

use crate::args::DoctorArgs;
use crate::{output, profile};
use anyhow::Result;
use djinn_host::rates;
use djinn_vmu::Machine;
use serde::Serialize;
use std::time::Duration;

/// How long each rate is measured.
const SPAN: Duration = Duration::from_millis(300);

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    name: &'static str,
    value: String,
    /// Whether it is fine.
    ok: bool,
    /// What to do; `None` if it is fine.
    remedy: Option<String>,
}

impl Finding {
    fn fine(name: &'static str, value: impl Into<String>) -> Self {
        Finding { name, value: value.into(), ok: true, remedy: None }
    }

    fn poor(name: &'static str, value: impl Into<String>, remedy: impl Into<String>) -> Self {
        Finding { name, value: value.into(), ok: false, remedy: Some(remedy.into()) }
    }
}

#[derive(Serialize)]
struct Findings {
    device: String,
    findings: Vec<Finding>,
    /// Rates for the predictions of `djinn plan`.
    machine: Machine,
    /// Where they were saved.
    saved: Option<String>,
}

pub(super) fn run(args: &DoctorArgs, quiet: bool) -> Result<()> {
    if !quiet {
        output::remark("measuring for about two seconds");
    }
    let rates = rates::measure(args.threads.unwrap_or(0) as usize, SPAN)?;
    let mut findings = checks::system();
    findings.extend(checks::rates(&rates));
    findings.push(disk::check());
    findings.push(checks::cuda());
    let saved = if args.save { Some(profile::save(&rates.machine)?) } else { None };
    let saved = saved.map(|path| path.display().to_string());
    let report = Findings { device: rates.device.clone(), findings, machine: rates.machine, saved };
    if args.json { output::json(&report) } else { output::line(&table(&report)) }
}

fn table(report: &Findings) -> String {
    let width = report.findings.iter().map(|f| f.name.len()).max().unwrap_or(0);
    let mut lines = Vec::new();
    for finding in &report.findings {
        let mark = if finding.ok { "ok" } else { "!!" };
        lines.push(format!("{mark} {:width$}  {}", finding.name, finding.value));
        if let Some(remedy) = &finding.remedy {
            lines.push(format!("   {:width$}  remedy: {remedy}", ""));
        }
    }
    lines.push(match &report.saved {
        Some(path) => format!("kept for djinn plan in {path}"),
        None => "djinn doctor --save keeps these rates for djinn plan".to_owned(),
    });
    lines.join("\n")
}
