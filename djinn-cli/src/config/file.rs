//! A settings file: flat keys, named like the flags, in TOML or YAML.

use super::{flags, is_switch};
use crate::args::Cli;
use anyhow::{Result, bail};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command, CommandFactory};
use djinn_host::{nearest, settings};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::path::Path;

/// Greedy decoding and the keys that ask for sampling exclude each other in one file.
const GREEDY: &str = "greedy";
const SAMPLING: [&str; 4] = ["min-p", "temperature", "top-k", "top-p"];

/// Values by key, as the command line would spell them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FileSettings {
    values: BTreeMap<String, Vec<String>>,
}

impl FileSettings {
    pub(super) fn read(file: &Path) -> Result<Self> {
        let table = settings::read(file).map_err(|error| match error {
            error @ djinn_host::Error::Model(_) => {
                anyhow::Error::from(error).context("cannot read the settings file")
            }
            error => error.into(),
        })?;
        Self::spelled(file, &table)
    }

    /// Reads a settings file's text; the extension of `file` gives the format.
    #[cfg(test)]
    pub(super) fn parse(file: &Path, text: &str) -> Result<Self> {
        Self::spelled(file, &settings::parse(file, text)?)
    }

    /// The values of `table`, which `file` holds, as the command line would spell them.
    fn spelled(file: &Path, table: &settings::FlatSettings) -> Result<Self> {
        let place = file.display();
        let command = Cli::command();
        let mut values = BTreeMap::new();
        for (key, value) in table {
            let Some((sub, arg)) = find(&command, key) else {
                let known = keys(&command);
                match nearest(key, known.iter().map(String::as_str)) {
                    Some(near) => bail!("{place}: unknown key `{key}`; did you mean `{near}`?"),
                    None => {
                        let known: Vec<String> = known.into_iter().collect();
                        let (what, known) = (format!("{place}: unknown key `{key}`"), known.join(", "));
                        return Err(djinn_host::Error::UnknownName { what, known }.into());
                    }
                }
            };
            let spelled = spell(arg, value).map_err(|why| anyhow::anyhow!("{place}: key `{key}`: {why}"))?;
            if let Some(why) = refusal(sub, key, &spelled) {
                bail!("{place}: key `{key}`: {why}");
            }
            values.insert(key.clone(), spelled);
        }
        Ok(FileSettings { values })
    }

    /// The keys that are set, in order.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// These settings where they say something, else those of `farther`.
    pub(super) fn over(self, mut farther: FileSettings) -> FileSettings {
        // Greedy decoding and the ways to sample exclude each other.
        if self.get(GREEDY) == ["true"] {
            SAMPLING.iter().for_each(|key| drop(farther.values.remove(*key)));
        } else if SAMPLING.iter().any(|key| self.values.contains_key(*key)) {
            farther.values.remove(GREEDY);
        }
        farther.values.extend(self.values);
        farther
    }

    /// The values of a key; none if the file does not have it.
    pub(super) fn get(&self, key: &str) -> &[String] {
        self.values.get(key).map_or(&[], Vec::as_slice)
    }
}

/// Whether a flag may be set in the file: all but those that a command cannot do without, and the file's
/// own name.
fn has_key(arg: &Arg) -> bool {
    super::key(arg).is_some_and(|key| key != "config") && !arg.is_required_set()
}

/// The flag that a key stands for, in a command that has it.
fn find<'a>(command: &'a Command, key: &str) -> Option<(Option<&'a str>, &'a Arg)> {
    flags(command).find(|(_, arg)| has_key(arg) && super::key(arg) == Some(key))
}

pub(super) fn keys(command: &Command) -> BTreeSet<String> {
    flags(command)
        .filter(|(_, arg)| has_key(arg))
        .filter_map(|(_, arg)| super::key(arg))
        .map(str::to_owned)
        .collect()
}

/// The value as the command line would spell it.
fn spell(arg: &Arg, value: &Value) -> Result<Vec<String>, String> {
    let scalar = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let found = || match value {
        Value::Object(_) => "a table".to_owned(),
        // Both formats have numbers that JSON has not; YAML has keys without a value.
        Value::Null => "nothing, or a number that is not finite".to_owned(),
        other => other.to_string(),
    };
    if is_switch(arg) {
        let on = value.as_bool().ok_or_else(|| format!("expected true or false, found {}", found()))?;
        return Ok(vec![on.to_string()]);
    }
    let spelled = match (arg.get_action(), value) {
        (ArgAction::Append, Value::Array(values)) => values.iter().map(scalar).collect(),
        _ => scalar(value).map(|text| vec![text]),
    };
    let expected = match arg.get_action() {
        ArgAction::Append => "a list of texts or numbers",
        _ => "a text or a number",
    };
    spelled.ok_or_else(|| format!("expected {expected}, found {}", found()))
}

/// Why the flag does not take these values.
fn refusal(sub: Option<&str>, key: &str, values: &[String]) -> Option<String> {
    if values.is_empty() || values == ["true"] || values == ["false"] {
        return None;
    }
    let mut line = vec!["djinn".to_owned()];
    line.extend(sub.map(str::to_owned));
    line.extend(values.iter().map(|value| format!("--{key}={value}")));
    // What else the command line lacks does not matter here.
    let error = Cli::command().try_get_matches_from(line).err()?;
    if !matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation) {
        return None;
    }
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(", "),
        _ => String::new(),
    };
    let value = text(ContextKind::InvalidValue);
    let detail = match error.source() {
        Some(source) => super::usage::plain(&source.to_string()),
        None => format!("expected one of {}", text(ContextKind::ValidValue)),
    };
    Some(format!("invalid value `{value}`: {detail}"))
}
