//! Values from outside: Rust's own, and JSON within bounds.

use super::{Dict, Key, Kind, Seq, SeqKind, Value};
use crate::error::{Error, Result};
use crate::printable::one_line;
use crate::text::Text;
use indexmap::IndexMap;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use std::fmt::Formatter;
use std::sync::Arc;

/// Longest JSON text, in bytes.
const MAX_BYTES: usize = 16 << 20;
/// Most values in it, keys included.
const MAX_VALUES: usize = 1_000_000;
/// Deepest nesting of what comes from outside; templates may wrap it further.
const MAX_DEPTH: u16 = 100;

impl Value {
    /// Reads JSON; the order of keys is kept, of equal keys the last counts, and strings are literal.
    ///
    /// # Errors
    /// [`Error::Data`] if it is no JSON, or too long, too deep or of too many values.
    pub fn from_json(text: &str) -> Result<Self> {
        if text.len() > MAX_BYTES {
            return Err(Error::Data(format!("has {} bytes, more than {MAX_BYTES}", text.len())));
        }
        let mut left = MAX_VALUES;
        let mut reader = serde_json::Deserializer::from_str(text);
        let read = Reader { left: &mut left, depth: 0 }.deserialize(&mut reader);
        let value = read.and_then(|value| reader.end().map(|()| value));
        value.map_err(|error| Error::Data(format!("is not valid JSON: {}", one_line(&error.to_string()))))
    }

    /// A list.
    ///
    /// # Errors
    /// [`Error::Data`] if its items are nested too deeply.
    pub fn from_items(items: Vec<Value>) -> Result<Self> {
        let depth = 1 + items.iter().map(Value::depth).max().unwrap_or(0);
        (depth <= MAX_DEPTH).then_some(()).ok_or_else(too_deep)?;
        Ok(Self(Kind::Seq(Arc::new(Seq { kind: SeqKind::List, items, depth }))))
    }

    /// An object; of equal keys the last counts.
    ///
    /// # Errors
    /// [`Error::Data`] if its values are nested too deeply.
    pub fn from_pairs<K: Into<Value>>(pairs: impl IntoIterator<Item = (K, Value)>) -> Result<Self> {
        let entries: IndexMap<Key, Value> = pairs.into_iter().map(|(key, v)| (Key(key.into()), v)).collect();
        let depth = 1 + entries.values().map(Value::depth).max().unwrap_or(0);
        (depth <= MAX_DEPTH).then_some(()).ok_or_else(too_deep)?;
        Ok(Self(Kind::Dict(Arc::new(Dict { entries, depth }))))
    }
}

fn too_deep() -> Error {
    Error::Data(format!("is nested more than {MAX_DEPTH} deep"))
}

impl From<Text> for Value {
    fn from(text: Text) -> Self {
        Self(Kind::Str(Arc::new(text)))
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Text::literal(text).into()
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Text::literal(text).into()
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self(Kind::Bool(value))
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self(Kind::Int(value.into()))
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self(Kind::Float(value))
    }
}

/// Reads one value, counting.
struct Reader<'a> {
    left: &'a mut usize,
    depth: u16,
}

impl Reader<'_> {
    fn nested(&mut self) -> Reader<'_> {
        Reader { left: &mut *self.left, depth: self.depth + 1 }
    }
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        if self.depth > MAX_DEPTH {
            return Err(D::Error::custom(too_deep()));
        }
        let Some(left) = self.left.checked_sub(1) else {
            return Err(D::Error::custom(format!("it has more than {MAX_VALUES} values")));
        };
        *self.left = left;
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::NONE)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value(Kind::Int(value.into())))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut from: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = from.next_element_seed(self.nested())? {
            items.push(item);
        }
        items.shrink_to_fit();
        Value::from_items(items).map_err(A::Error::custom)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut from: A) -> Result<Value, A::Error> {
        let mut entries = IndexMap::new();
        while let Some(key) = from.next_key::<String>()? {
            entries.insert(Key(key.into()), from.next_value_seed(self.nested())?);
        }
        Value::from_pairs(entries.into_iter().map(|(key, value)| (key.0, value))).map_err(A::Error::custom)
    }
}
