//! Settings files: keys and values in TOML or YAML, without tables.

use crate::{Error, Result};
use serde_json::{Map, Value};
use std::path::Path;

/// Longest settings file, in bytes.
const MAX_BYTES: u64 = 64 << 10;

/// Values by key.
pub type FlatSettings = Map<String, Value>;

/// Reads a settings file. Its extension determines the format.
///
/// # Errors
/// [`Error::Model`] if it cannot be read, is not a regular file or is longer than 64 KiB, or as [`parse`].
pub fn read(file: &Path) -> Result<FlatSettings> {
    let bytes = djinn_models::file::read_bounded(file, MAX_BYTES)?;
    let text = String::from_utf8(bytes).map_err(|_| malformed(file, "it is not UTF-8"))?;
    parse(file, &text)
}

/// Reads the text of a settings file.
///
/// # Errors
/// [`Error::Settings`] if it is neither TOML nor YAML, or has other contents than keys and values.
pub fn parse(file: &Path, text: &str) -> Result<FlatSettings> {
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("yaml" | "yml") if text.trim().is_empty() => Ok(FlatSettings::new()),
        Some("yaml" | "yml") => {
            serde_saphyr::from_str(text).map_err(|error| malformed(file, &error.to_string()))
        }
        Some("toml") => toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = before.map_or(1, |text| text.matches('\n').count() + 1);
            malformed(file, &format!("line {line}: {}", error.message()))
        }),
        _ => Err(malformed(file, "it is neither .toml nor .yaml")),
    }
}

fn malformed(file: &Path, detail: &str) -> Error {
    let detail = detail.lines().next().unwrap_or_default().to_owned();
    Error::Settings { file: file.to_owned(), detail }
}
