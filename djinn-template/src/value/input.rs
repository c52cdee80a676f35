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

macro_rules! from {
    ($($from:ty, $value:ident => $kind:expr;)*) => {$(
        impl From<$from> for Value {
            fn from($value: $from) -> Self {
                Self($kind)
            }
        }
    )*};
}

from! {
    Text, text => Kind::Str(Arc::new(text));
    Arc<Text>, text => Kind::Str(text);
    &str, text => Kind::Str(Arc::new(Text::literal(text)));
    String, text => Kind::Str(Arc::new(Text::literal(text)));
    bool, value => Kind::Bool(value);
    i64, value => Kind::Int(value.into());
    u64, value => Kind::Int(value.into());
    i128, value => Kind::Int(value);
    f64, value => Kind::Float(value);
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

macro_rules! visit {
    ($($name:ident($from:ty))*) => {$(
        fn $name<E>(self, value: $from) -> Result<Value, E> {
            Ok(value.into())
        }
    )*};
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::NONE)
    }

    visit! { visit_bool(bool) visit_i64(i64) visit_u64(u64) visit_f64(f64) visit_str(&str) }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut from: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = from.next_element_seed(self.nested())? {
            items.push(item);
        }
        items.shrink_to_fit();
        Value::from_items(items).map_err(A::Error::custom)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut from: A) -> Result<Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some(key) = from.next_key::<String>()? {
            pairs.push((key, from.next_value_seed(self.nested())?));
        }
        Value::from_pairs(pairs).map_err(A::Error::custom)
    }
}
