//! Settings as YAML or TOML text: which parts, and their constants.

mod constants;
#[cfg(test)]
mod tests;

pub use constants::Constants;
pub(crate) use constants::{DAY_MS, Number, Whole};

use crate::error::{Error, Result};
use crate::schedule::Rules;
use serde::{Deserialize, Deserializer};

/// The table `scheduler` of a settings file. Omitted fields have their defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Name of the eviction policy: one of [`Registry::policies`](crate::Registry::policies).
    pub policy: String,
    /// Name of the state keeper: `tiered`, or a registered one.
    pub state: String,
    /// Name of the handler of prefill: `chunked`, or a registered one.
    pub prefill: String,
    /// Name of the handler of decode: `single`, or a registered one.
    pub decode: String,
    /// Name of the backend, if the file names one.
    pub backend: Option<String>,
    /// Bounds.
    pub rules: Rules,
    /// All other fields, which belong to the policy.
    pub constants: Constants,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            policy: "signal".to_owned(),
            state: "tiered".to_owned(),
            prefill: "chunked".to_owned(),
            decode: "single".to_owned(),
            backend: None,
            rules: Rules::default(),
            constants: Constants::default(),
        }
    }
}

/// Other tables of the file are ignored here.
#[derive(Debug, Default, Deserialize)]
struct File {
    #[serde(default)]
    scheduler: Option<Constants>,
}

/// The scheduler's own fields.
#[derive(Debug, Deserialize)]
#[serde(default)]
struct Table {
    policy: String,
    state: String,
    prefill: String,
    decode: String,
    #[serde(deserialize_with = "some")]
    backend: Option<String>,
    lease_ms: Whole<0, 600_000>,
    max_lease_ms: Whole<0, 600_000>,
    max_wait_ms: Whole<1, DAY_MS>,
    queue_timeout_ms: Whole<1, DAY_MS>,
    max_queue: Whole<0, 1_000_000>,
    headroom_percent: Number<50>,
}

impl Default for Table {
    fn default() -> Self {
        let Settings { policy, state, prefill, decode, backend, rules, .. } = Settings::default();
        Table {
            policy,
            state,
            prefill,
            decode,
            backend,
            lease_ms: Whole(rules.lease.as_millis() as u64),
            max_lease_ms: Whole(rules.max_lease.as_millis() as u64),
            max_wait_ms: Whole(rules.max_wait.as_millis() as u64),
            queue_timeout_ms: Whole(rules.queue_timeout.as_millis() as u64),
            max_queue: Whole(rules.max_queue as u64),
            headroom_percent: Number(rules.headroom * 100.0),
        }
    }
}

fn some<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    String::deserialize(deserializer).map(Some)
}

impl Settings {
    /// Reads the table `scheduler` of a YAML text. [`Registry::yaml`](crate::Registry::yaml) also checks the policy's
    /// constants.
    ///
    /// # Errors
    /// [`Error::Settings`] has the line, the field and what to do.
    pub fn from_yaml(text: &str) -> Result<Self> {
        if text.trim().is_empty() {
            return Ok(Settings::default());
        }
        let file: File = serde_saphyr::from_str(text).map_err(|error| {
            let line = error.location().map_or(1, |location| location.line() as usize);
            malformed(text, line, &error.without_snippet().to_string())
        })?;
        Self::from_fields(file).map_err(|error| at_its_line(text, error))
    }

    /// Reads the table `scheduler` of a TOML text, as [`from_yaml`](Self::from_yaml) does.
    ///
    /// # Errors
    /// As [`from_yaml`](Self::from_yaml).
    pub fn from_toml(text: &str) -> Result<Self> {
        let file: File = toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = before.map_or(1, |before| before.matches('\n').count() + 1);
            malformed(text, line, error.message())
        })?;
        Self::from_fields(file).map_err(|error| at_its_line(text, error))
    }

    fn from_fields(file: File) -> Result<Self> {
        let Some(mut constants) = file.scheduler else { return Ok(Settings::default()) };
        let table: Table = constants.take()?;
        let rules = Rules {
            lease: table.lease_ms.ms(),
            max_lease: table.max_lease_ms.ms(),
            max_wait: table.max_wait_ms.ms(),
            queue_timeout: table.queue_timeout_ms.ms(),
            max_queue: table.max_queue.0 as usize,
            headroom: table.headroom_percent.0 / 100.0,
        };
        let Table { policy, state, prefill, decode, backend, .. } = table;
        Ok(Settings { policy, state, prefill, decode, backend, rules, constants })
    }
}

/// The same error with the line that sets the field.
pub(crate) fn at_its_line(text: &str, error: Error) -> Error {
    match error {
        Error::Setting { field, problem } => {
            let found = text.lines().position(|line| names(line, &field));
            Error::Settings { line: found.map_or(1, |at| at + 1), field, problem }
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

/// A parser's error: its line, the field on that line, and what to do.
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
