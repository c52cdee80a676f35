//! Fields of a settings file, until a part takes them as its own type.

use crate::error::{Error, Result};
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, IgnoredAny, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, forward_to_deserialize_any};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// A day in milliseconds: the longest time that a field may set.
pub(crate) const DAY_MS: u64 = 24 * 3_600_000;

/// Fields that no part has taken yet, and the names of all fields that parts read.
#[derive(Clone, Debug, Default)]
pub struct Constants {
    fields: BTreeMap<String, Scalar>,
    known: Vec<&'static str>,
}

/// A value of a settings file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
enum Scalar {
    Whole(u64),
    Number(f64),
    Text(String),
    Other(IgnoredAny),
}

impl PartialEq for Constants {
    /// Compares the remaining fields. The names that were read are for messages only.
    fn eq(&self, other: &Self) -> bool {
        self.fields == other.fields
    }
}

impl<'de> Deserialize<'de> for Constants {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Constants { fields: BTreeMap::deserialize(deserializer)?, known: Vec::new() })
    }
}

impl Constants {
    /// Takes the fields of `T`, a struct.
    ///
    /// # Errors
    /// [`Error::Setting`] names a field with a value of the wrong type or range.
    pub fn take<T: DeserializeOwned>(&mut self) -> Result<T> {
        T::deserialize(self).map_err(|Problem { field, problem }| Error::Setting { field, problem })
    }

    /// Refuses remaining fields.
    ///
    /// # Errors
    /// [`Error::Setting`] names the first one, and the fields that `policy` and the scheduler read.
    pub(crate) fn expect_none(&self, policy: &str) -> Result<()> {
        let Some(field) = self.fields.keys().next() else { return Ok(()) };
        let known = self.known.join(", ");
        let problem = format!("it is not read with the policy `{policy}`; leave it out, or give {known}");
        Err(Error::Setting { field: field.clone(), problem })
    }
}

impl<'de> Deserializer<'de> for &mut Constants {
    type Error = Problem;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Problem> {
        self.known.extend(names);
        let own: Vec<_> = names.iter().filter_map(|name| self.fields.remove_entry(*name)).collect();
        visitor.visit_map(Taken { own: own.into_iter(), value: None })
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        MapAccessDeserializer::new(Taken { own: Vec::new().into_iter(), value: None })
            .deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// The fields of one struct, in turn.
struct Taken {
    own: std::vec::IntoIter<(String, Scalar)>,
    value: Option<(String, Scalar)>,
}

impl<'de> MapAccess<'de> for Taken {
    type Error = Problem;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Problem> {
        self.value = self.own.next();
        self.value.as_ref().map(|(name, _)| seed.deserialize(name.as_str().into_deserializer())).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Problem> {
        let (field, value) = self.value.take().expect("a value follows its name");
        let read = match value {
            Scalar::Whole(whole) => seed.deserialize(whole.into_deserializer()),
            Scalar::Number(number) => seed.deserialize(number.into_deserializer()),
            Scalar::Text(text) => seed.deserialize(text.into_deserializer()),
            Scalar::Other(_) => Err(serde::de::Error::custom("it is neither a number nor a text")),
        };
        read.map_err(|Problem { problem, .. }: Problem| Problem { field, problem })
    }
}

/// What is wrong with a field.
#[derive(Debug, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Problem {
    field: String,
    problem: String,
}

impl serde::de::Error for Problem {
    fn custom<T: fmt::Display>(problem: T) -> Self {
        Problem { field: String::new(), problem: problem.to_string() }
    }
}

/// A whole number from `LEAST` to `MOST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u64")]
pub(crate) struct Whole<const LEAST: u64, const MOST: u64>(pub(crate) u64);

impl<const LEAST: u64, const MOST: u64> Whole<LEAST, MOST> {
    pub(crate) fn ms(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

impl<const LEAST: u64, const MOST: u64> TryFrom<u64> for Whole<LEAST, MOST> {
    type Error = String;

    fn try_from(value: u64) -> Result<Self, String> {
        match (LEAST..=MOST).contains(&value) {
            true => Ok(Whole(value)),
            false => Err(format!("{value} is out of range; give {LEAST} to {MOST}")),
        }
    }
}

/// A number from 0 to `MOST`.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "f64")]
pub(crate) struct Number<const MOST: u32>(pub(crate) f64);

impl<const MOST: u32> TryFrom<f64> for Number<MOST> {
    type Error = String;

    fn try_from(value: f64) -> Result<Self, String> {
        match (0.0..=f64::from(MOST)).contains(&value) {
            true => Ok(Number(value)),
            false => Err(format!("{value} is out of range; give 0 to {MOST}")),
        }
    }
}
