//! Settings as YAML or TOML text: which parts, and their constants.

#[cfg(test)]
mod tests;

use crate::error::{Error, Result};
use crate::policy::Weights;
use crate::schedule::Rules;
use serde::Deserialize;
use std::time::Duration;

/// The table `scheduler` of a settings file. What is left out has its default.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Name of the eviction policy: `none`, `lru`, `ttl`, `signal`, `predicted`, or a registered one.
    pub policy: String,
    /// Name of the state keeper: `tiered`, or a registered one.
    pub state: String,
    /// Name of the handler of prefill: `chunked`, or a registered one.
    pub prefill: String,
    /// Name of the handler of decode: `single`, or a registered one.
    pub decode: String,
    /// Name of the backend, where the file names one.
    pub backend: Option<String>,
    /// `ttl`: how long a session that waits is kept.
    pub ttl: Duration,
    /// `signal` and `predicted`: a wait of which nothing is known.
    pub default_wait: Duration,
    /// `signal` and `predicted`: constants of the weighing.
    pub weights: Weights,
    /// Bounds.
    pub rules: Rules,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            policy: "signal".to_owned(),
            state: "tiered".to_owned(),
            prefill: "chunked".to_owned(),
            decode: "single".to_owned(),
            backend: None,
            ttl: Duration::from_secs(2),
            default_wait: Duration::from_millis(300),
            weights: Weights::default(),
            rules: Rules::default(),
        }
    }
}

/// Other tables of the same file belong to others.
#[derive(Debug, Default, Deserialize)]
struct File {
    #[serde(default)]
    scheduler: Option<Table>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Table {
    policy: Option<String>,
    state: Option<String>,
    prefill: Option<String>,
    decode: Option<String>,
    backend: Option<String>,
    ttl_ms: Option<u64>,
    default_wait_ms: Option<u64>,
    hysteresis: Option<f64>,
    restore_ahead: Option<f64>,
    recompute_below: Option<f64>,
    lease_ms: Option<u64>,
    max_lease_ms: Option<u64>,
    max_wait_ms: Option<u64>,
    queue_timeout_ms: Option<u64>,
    max_queue: Option<u64>,
    headroom_percent: Option<f64>,
}

/// Fields that only some policies read, and those.
const OWNERS: [(&str, &[&str]); 5] = [
    ("ttl_ms", &["ttl"]),
    ("default_wait_ms", &["signal", "predicted"]),
    ("hysteresis", &["signal", "predicted"]),
    ("restore_ahead", &["signal", "predicted"]),
    ("recompute_below", &["signal", "predicted"]),
];

impl Settings {
    /// Reads the table `scheduler` of a YAML text.
    pub fn from_yaml(text: &str) -> Result<Self> {
        if text.trim().is_empty() {
            return Ok(Settings::default());
        }
        let file: File = serde_saphyr::from_str(text).map_err(|error| {
            let line = error.location().map_or(1, |location| location.line() as usize);
            malformed(text, line, &error.without_snippet().to_string())
        })?;
        Self::from_table(text, file.scheduler.unwrap_or_default())
    }

    /// Reads the table `scheduler` of a TOML text.
    pub fn from_toml(text: &str) -> Result<Self> {
        let file: File = toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = before.map_or(1, |before| before.matches('\n').count() + 1);
            malformed(text, line, error.message())
        })?;
        Self::from_table(text, file.scheduler.unwrap_or_default())
    }

    fn from_table(text: &str, table: Table) -> Result<Self> {
        let mut settings = Settings::default();
        let Settings { weights, rules, ttl, default_wait, .. } = &mut settings;
        let day_ms = 24 * 3_600_000;
        let check = Check { text };
        check.ms("ttl_ms", table.ttl_ms, 0, day_ms, ttl)?;
        check.ms("default_wait_ms", table.default_wait_ms, 1, day_ms, default_wait)?;
        check.number("hysteresis", table.hysteresis, 0.0, 1_000.0, &mut weights.hysteresis)?;
        check.number("restore_ahead", table.restore_ahead, 0.0, 100.0, &mut weights.restore_ahead)?;
        check.number("recompute_below", table.recompute_below, 0.0, 100.0, &mut weights.recompute_below)?;
        check.ms("lease_ms", table.lease_ms, 0, 600_000, &mut rules.lease)?;
        check.ms("max_lease_ms", table.max_lease_ms, 0, 600_000, &mut rules.max_lease)?;
        check.ms("max_wait_ms", table.max_wait_ms, 1, day_ms, &mut rules.max_wait)?;
        check.ms("queue_timeout_ms", table.queue_timeout_ms, 1, day_ms, &mut rules.queue_timeout)?;
        let mut percent = rules.headroom * 100.0;
        check.number("headroom_percent", table.headroom_percent, 0.0, 50.0, &mut percent)?;
        rules.headroom = percent / 100.0;
        if let Some(max_queue) = table.max_queue {
            check.range("max_queue", max_queue as f64, 0.0, 1e6)?;
            rules.max_queue = max_queue as usize;
        }
        let Table { policy, state, prefill, decode, backend, .. } = table;
        let take = |name: Option<String>, field: &mut String| *field = name.unwrap_or(field.clone());
        take(policy, &mut settings.policy);
        take(state, &mut settings.state);
        take(prefill, &mut settings.prefill);
        take(decode, &mut settings.decode);
        settings.backend = backend;
        check.owners(&settings.policy)?;
        Ok(settings)
    }
}

struct Check<'a> {
    text: &'a str,
}

impl Check<'_> {
    fn error(&self, field: &str, problem: String) -> Error {
        let found = self.text.lines().position(|line| names(line, field));
        Error::Settings { line: found.map_or(1, |at| at + 1), field: field.to_owned(), problem }
    }

    fn range(&self, field: &str, value: f64, from: f64, to: f64) -> Result<()> {
        if (from..=to).contains(&value) {
            return Ok(());
        }
        Err(self.error(field, format!("{value} is out of range; give {from} to {to}")))
    }

    fn ms(&self, field: &str, value: Option<u64>, from: u64, to: u64, into: &mut Duration) -> Result<()> {
        let Some(value) = value else { return Ok(()) };
        self.range(field, value as f64, from as f64, to as f64)?;
        *into = Duration::from_millis(value);
        Ok(())
    }

    fn number(&self, field: &str, value: Option<f64>, from: f64, to: f64, into: &mut f64) -> Result<()> {
        let Some(value) = value else { return Ok(()) };
        self.range(field, value, from, to)?;
        *into = value;
        Ok(())
    }

    /// A constant that the chosen policy of this crate does not read would be ignored without a word.
    fn owners(&self, policy: &str) -> Result<()> {
        const OWN: [&str; 5] = ["none", "lru", "ttl", "signal", "predicted"];
        for (field, owners) in OWNERS.iter().filter(|_| OWN.contains(&policy)) {
            if self.text.lines().any(|line| names(line, field)) && !owners.contains(&policy) {
                let problem = format!(
                    "the policy `{policy}` does not read it, only {}; leave it out",
                    owners.join(", ")
                );
                return Err(self.error(field, problem));
            }
        }
        Ok(())
    }
}

/// An unknown name with the line that has it.
pub(crate) fn at_its_line(text: &str, error: Error) -> Error {
    match error {
        Error::UnknownName { field, name, known } => {
            Check { text }.error(field, format!("there is no `{name}`; known names: {known}"))
        }
        other => other,
    }
}

/// Whether a line sets a field, as `field: value`, `field = value` or within braces.
fn names(line: &str, field: &str) -> bool {
    let code = line.split('#').next().unwrap_or_default();
    code.match_indices(field).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + field.len()..].trim_start_matches(['"', '\'']).trim_start();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_') && after.starts_with([':', '='])
    })
}

/// An error of a reader: its line, the field on that line, and the remedy.
fn malformed(text: &str, line: usize, detail: &str) -> Error {
    let source = text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let field = match source.split_once([':', '=']) {
        Some((key, _)) => {
            key.trim_matches(|c: char| !is_name(c)).rsplit(|c| !is_name(c)).next().unwrap_or("")
        }
        None => "",
    };
    let field = if field.is_empty() { "scheduler" } else { field }.to_owned();
    let detail = detail.lines().next().unwrap_or_default();
    let detail = detail.strip_prefix("error: ").unwrap_or(detail);
    Error::Settings { line, field, problem: format!("{detail}; see the crate's README for fields and types") }
}
