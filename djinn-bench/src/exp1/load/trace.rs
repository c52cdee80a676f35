//! Traces as CSV files, told apart by their header.

use anyhow::{Context, Result, bail, ensure};
use djinn_scheduler::sim::{Workload, parse_azure, parse_tracelab};
use std::path::Path;

#[derive(Clone, Debug)]
pub(super) struct Trace {
    pub(super) workload: Workload,
    /// Whose columns it has.
    pub(super) columns: &'static str,
    /// Tokens of its longest session.
    pub(super) longest: u64,
}

impl Trace {
    /// Reads a file whose sessions must fit `context` tokens.
    pub(super) fn read(path: &Path, context: u64) -> Result<Self> {
        let file = || path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(|| format!("--workload {}", file()))?;
        let header = text.trim_start_matches('\u{feff}').lines().next().unwrap_or_default();
        let (columns, workload, fields) = match header.split(',').next().unwrap_or_default().trim() {
            "TIMESTAMP" => ("Azure's columns", parse_azure(&text), &[1, 2][..]),
            "session_id" => ("TraceLab's columns", parse_tracelab(&text), &[3, 4, 5][..]),
            _ => bail!(
                "{}: line 1: header: `{}` begins neither Azure's columns (TIMESTAMP,ContextTokens,GeneratedTokens) nor \
                 TraceLab's (session_id,arrival_time,round_idx,…); correct it",
                file(),
                header.chars().take(60).collect::<String>()
            ),
        };
        let workload = workload.with_context(file)?;
        let mut longest = 0;
        for (at, line) in text.lines().enumerate().skip(1).filter(|(_, line)| !line.trim().is_empty()) {
            let row: Vec<&str> = line.split(',').map(str::trim).collect();
            // Rows were checked above; a session's tokens after it are those of its fields.
            let tokens: u64 = fields.iter().filter_map(|&field| row.get(field)?.parse::<u64>().ok()).sum();
            let field = header.split(',').nth(fields[fields.len() - 1]).unwrap_or_default().trim();
            ensure!(
                tokens <= context,
                "{}: line {}: {field}: the session has {tokens} tokens after it, more than the context of {context}; \
                 remove the row, or choose a longer --context or --model",
                file(),
                at + 1
            );
            longest = longest.max(tokens);
        }
        Ok(Trace { workload, columns, longest })
    }
}
