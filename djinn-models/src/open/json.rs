//! JSON files as typed keys: every error names the file, the key and the value.

use crate::{Error, Result, file};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// Far above the size of any configuration.
const MAX_BYTES: u64 = 16 << 20;

/// An object of a JSON file. A key with the value `null` counts as absent.
pub(crate) struct JsonKeys {
    path: PathBuf,
    /// The object's path in the file: `rope_scaling.`, or empty for the outermost.
    prefix: String,
    map: Map<String, Value>,
}

impl JsonKeys {
    /// Reads the file.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Malformed`] when it is no JSON object.
    pub(crate) fn open(path: &Path) -> Result<JsonKeys> {
        Self::parse(path, &file::read_bounded(path, MAX_BYTES)?)
    }

    /// The same; `None` if there is no such file.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn open_if_present(path: &Path) -> Result<Option<JsonKeys>> {
        let bytes = file::read_if_present(path, MAX_BYTES)?;
        bytes.map(|bytes| Self::parse(path, &bytes)).transpose()
    }

    pub(crate) fn parse(path: &Path, text: &[u8]) -> Result<JsonKeys> {
        let malformed = |detail| Error::Malformed { path: path.to_owned(), detail };
        match serde_json::from_slice(text) {
            Ok(Value::Object(map)) => Ok(JsonKeys::new(path, map)),
            Ok(_) => Err(malformed("expected a JSON object".to_owned())),
            Err(error) => Err(malformed(format!("invalid JSON: {error}"))),
        }
    }

    /// A configuration without a file; `path` replaces its path in messages.
    pub(crate) fn new(path: &Path, map: Map<String, Value>) -> JsonKeys {
        JsonKeys { path: path.to_owned(), prefix: String::new(), map }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the key is present, even as null.
    pub(crate) fn contains(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// The keys, in no particular order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.map.keys().map(String::as_str)
    }

    /// An error about `key`.
    pub(crate) fn error(&self, key: &str, detail: String) -> Error {
        Error::Config { path: self.path.clone(), key: format!("{}{key}", self.prefix), detail }
    }

    /// The value, unless it is absent or null.
    pub(crate) fn value(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub(crate) fn u64(&self, key: &str) -> Result<Option<u64>> {
        self.typed(key, "a whole number", Value::as_u64)
    }

    pub(crate) fn f64(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number", Value::as_f64)
    }

    pub(crate) fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false", Value::as_bool)
    }

    /// Whether the key is there and true.
    pub(crate) fn flag(&self, key: &str) -> Result<bool> {
        Ok(self.bool(key)?.unwrap_or(false))
    }

    pub(crate) fn string(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a string", Value::as_str)
    }

    pub(crate) fn object(&self, key: &str) -> Result<Option<JsonKeys>> {
        let map = self.typed(key, "an object", Value::as_object)?;
        Ok(map.map(|map| JsonKeys {
            path: self.path.clone(),
            prefix: format!("{}{key}.", self.prefix),
            map: map.clone(),
        }))
    }

    /// The value of a key that must be there.
    pub(crate) fn need<T>(&self, key: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| self.error(key, "missing".to_owned()))
    }

    /// One or several values of a type; empty when the key is absent.
    pub(crate) fn list<'a, T>(
        &'a self,
        key: &str,
        what: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Vec<T>> {
        let values = match self.value(key) {
            None => return Ok(Vec::new()),
            Some(Value::Array(values)) => values.as_slice(),
            Some(value) => std::slice::from_ref(value),
        };
        values.iter().map(|v| read(v).ok_or_else(|| self.mismatch(key, what, v))).collect()
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        what: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let read = |value| read(value).ok_or_else(|| self.mismatch(key, what, value));
        self.value(key).map(read).transpose()
    }

    fn mismatch(&self, key: &str, what: &str, value: &Value) -> Error {
        let text = value.to_string();
        let short: String = text.chars().take(60).collect();
        let dots = if short.len() < text.len() { "…" } else { "" };
        self.error(key, format!("expected {what}, found {short}{dots}"))
    }
}
