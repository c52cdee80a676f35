//! A request's body: a JSON object. Fields are read one by one, so that an error names the field.

mod room;

pub(crate) use room::{ParsingRoom, RoomTaken};

use crate::ApiError;
use crate::fields::{Endpoint, Support};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::fmt::Display;
use std::ops::RangeInclusive;

/// Characters of a client's value that an error repeats.
const MOST_QUOTED: usize = 200;

/// The most bytes of a stop string.
pub(crate) const LONGEST_STOP: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Fields {
    whole: Part,
    /// What they take of the room for parsed bodies.
    _room: Option<RoomTaken>,
}

impl Fields {
    /// Reads a body, and refuses fields that the endpoint knows but does not support. Unknown fields have no effect.
    ///
    /// # Errors
    /// 400 if it is not a JSON object, is deeper than 128 levels, or has a refused field.
    pub(crate) fn parse(body: &[u8], endpoint: &Endpoint) -> Result<Self, ApiError> {
        Self::of_text(body, "the request's body", endpoint)
    }

    /// The same, with a name for the text in errors.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub(crate) fn of_text(text: &[u8], name: &str, endpoint: &Endpoint) -> Result<Self, ApiError> {
        let wrong = |why: &dyn Display| ApiError::invalid(format!("{name} {why}"));
        let text = std::str::from_utf8(text).map_err(|_| wrong(&"is not UTF-8"))?;
        let value = serde_json::from_str(text);
        match value.map_err(|error| wrong(&format_args!("is no JSON: {error}")))? {
            Value::Object(fields) => Self::new(fields, endpoint),
            _ => Err(wrong(&"must be a JSON object")),
        }
    }

    /// The same with the room that they take.
    pub(crate) fn in_room(self, room: Option<RoomTaken>) -> Self {
        Fields { _room: room, ..self }
    }

    /// The fields of a query, all texts.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn of_query(query: &HashMap<String, String>, endpoint: &Endpoint) -> Result<Self, ApiError> {
        let fields = query.iter().map(|(name, value)| (name.clone(), Value::String(value.clone())));
        Self::new(fields.collect(), endpoint)
    }

    /// All fields.
    pub(crate) fn whole(&self) -> &Part {
        &self.whole
    }

    /// The fields of a request that was translated from another API, with the same refusals.
    ///
    /// # Errors
    /// 400 for a refused field.
    pub(crate) fn new(fields: Map<String, Value>, endpoint: &Endpoint) -> Result<Self, ApiError> {
        let fields = Fields { whole: Part { place: String::new(), fields }, _room: None };
        for field in endpoint.fields {
            if let (Support::Refused { neutral, instead }, Some(value)) =
                (&field.support, fields.get(field.name))
                && !neutral.iter().any(|text| {
                    serde_json::from_str(text).is_ok_and(|neutral: Value| is_same(&neutral, value))
                })
            {
                let name = field.name;
                return Err(ApiError::unsupported(name, format!("`{name}` is not supported; {instead}")));
            }
        }
        Ok(fields)
    }

    /// The same, if the endpoint lists them all: where a misspelt field would change a result unseen.
    ///
    /// # Errors
    /// 400 that names the first other one.
    pub(crate) fn only_of(self, endpoint: &Endpoint) -> Result<Self, ApiError> {
        let known: Vec<&str> = endpoint.fields.iter().map(|field| field.name).collect();
        self.whole.only(&known)?;
        Ok(self)
    }

    /// A field's value; null counts as absent.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.whole.get(name)
    }

    /// Whether a field is present and null.
    pub(crate) fn is_null(&self, name: &str) -> bool {
        self.whole.fields.get(name).is_some_and(Value::is_null)
    }

    /// A field of the type `T`.
    ///
    /// # Errors
    /// 400 that names the field.
    pub(crate) fn read<T: DeserializeOwned>(&self, name: &'static str) -> Result<Option<T>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let value = T::deserialize(value);
        value.map(Some).map_err(|error| ApiError::field(name, format!("`{name}`: {}", in_words(&error))))
    }

    /// A number within `range`.
    pub(crate) fn number(
        &self,
        name: &'static str,
        range: RangeInclusive<f32>,
    ) -> Result<Option<f32>, ApiError> {
        let value = self.read::<f32>(name)?;
        check(name, value, &range, numbers)
    }

    /// A whole number within `range`.
    pub(crate) fn integer(
        &self,
        name: &'static str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, ApiError> {
        let value = self.read::<u64>(name)?;
        check(name, value, &range, |from, to| match to {
            u64::MAX => format!("{from} or more"),
            to => format!("{from} to {to}"),
        })
    }

    /// A flag; false if it is absent.
    pub(crate) fn flag(&self, name: &'static str) -> Result<bool, ApiError> {
        Ok(self.read(name)?.unwrap_or(false))
    }
}

/// The first field that is not in `known`, and what to say of it.
fn unknown(fields: &Map<String, Value>, known: &[&str]) -> Option<(String, String)> {
    let name = fields.keys().find(|name| !known.contains(&name.as_str()))?;
    let name = djinn_models::printable::one_line(name).to_string();
    Some((name, format!("is unknown; known are {}", known.join(", "))))
}

/// Whether these are at most `most` stop strings, of 1 to [`LONGEST_STOP`] bytes each.
pub(crate) fn stops_fit(stops: &[String], most: usize) -> bool {
    stops.len() <= most && stops.iter().all(|stop| (1..=LONGEST_STOP).contains(&stop.len()))
}

/// Refuses a value outside a range, which `words` names.
fn check<T: PartialOrd + Display + Copy>(
    name: &'static str,
    value: Option<T>,
    range: &RangeInclusive<T>,
    words: impl FnOnce(T, T) -> String,
) -> Result<Option<T>, ApiError> {
    match value {
        Some(value) if !range.contains(&value) => {
            let range = words(*range.start(), *range.end());
            Err(ApiError::field(name, format!("`{name}` is {value}; give {range}")))
        }
        value => Ok(value),
    }
}

/// A range of numbers in words. The least and the greatest numbers of the type are no bounds of the API.
fn numbers(from: f32, to: f32) -> String {
    const POSITIVE: f32 = f32::MIN_POSITIVE;
    match (from, to) {
        (f32::MIN, f32::MAX) => "a finite number".to_owned(),
        (POSITIVE, f32::MAX) => "a number above 0".to_owned(),
        (POSITIVE, to) => format!("a number above 0 and at most {to}"),
        (from, f32::MAX) => format!("{from} or more"),
        (from, to) => format!("{from} to {to}"),
    }
}

/// Whether two JSON values mean the same, as 1 and 1.0 do.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

/// Why a JSON value cannot be read. Types have the names of JSON's documentation, not of Rust's.
pub(crate) fn in_words(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let Some((found, expected)) = text.rsplit_once(", expected ") else { return cut(&text) };
    let expected = match expected {
        "f32" | "f64" => "a number",
        "i64" | "i128" => "a whole number",
        "i32" => "a whole number from -2147483648 to 2147483647",
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number from 0",
        "a string" => "a text",
        "a sequence" => "a list",
        "a map" => "an object",
        expected if expected.starts_with("struct ") => "an object",
        expected => expected,
    };
    format!("{}, expected {expected}", cut(found))
}

/// The text's beginning: it may quote a client's value.
fn cut(text: &str) -> String {
    match text.char_indices().nth(MOST_QUOTED) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// An object of the body, with its place there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Part {
    place: String,
    fields: Map<String, Value>,
}

impl Part {
    pub(crate) fn of(fields: &Fields, name: &'static str) -> Result<Self, ApiError> {
        Self::new(name.to_owned(), fields.get(name))
    }

    /// The object at a place; the body itself has the place "". Null counts as empty.
    ///
    /// # Errors
    /// 400 if it is not an object.
    pub(crate) fn new(place: String, value: Option<&Value>) -> Result<Self, ApiError> {
        match value {
            None | Some(Value::Null) => Ok(Part { place, fields: Map::new() }),
            Some(Value::Object(fields)) => Ok(Part { place, fields: fields.clone() }),
            Some(_) => Err(ApiError::field(place.clone(), format!("`{place}` must be an object"))),
        }
    }

    pub(crate) fn part(&self, name: &str) -> Result<Self, ApiError> {
        Self::new(self.place_of(name), self.fields.get(name))
    }

    /// A field's place in the body.
    pub(crate) fn place_of(&self, name: &str) -> String {
        if self.place.is_empty() { name.to_owned() } else { format!("{}.{name}", self.place) }
    }

    /// 400 for a field.
    pub(crate) fn wrong(&self, name: &str, detail: impl Display) -> ApiError {
        let place = self.place_of(name);
        let message = format!("`{place}` {detail}");
        ApiError::field(place, message)
    }

    /// A field's value; null counts as absent.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.fields.get(name).filter(|value| !value.is_null())
    }

    pub(crate) fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let value = T::deserialize(value);
        value.map(Some).map_err(|error| self.wrong(name, format_args!("is wrong: {}", in_words(&error))))
    }

    /// A whole number from 1 to `most`.
    pub(crate) fn whole(&self, name: &str, most: u64) -> Result<Option<u64>, ApiError> {
        match self.read::<u64>(name)? {
            Some(number) if !(1..=most).contains(&number) => {
                Err(self.wrong(name, format_args!("is {number}; give 1 to {most}")))
            }
            number => Ok(number),
        }
    }

    /// A number that is finite as f32.
    pub(crate) fn finite(&self, name: &str) -> Result<Option<f32>, ApiError> {
        match self.read::<f32>(name)? {
            Some(number) if !number.is_finite() => Err(self.wrong(name, "is not finite")),
            number => Ok(number),
        }
    }

    /// Refuses fields that are not in `known`.
    ///
    /// # Errors
    /// 400 that names the first.
    pub(crate) fn only(&self, known: &[&str]) -> Result<(), ApiError> {
        match unknown(&self.fields, known) {
            None => Ok(()),
            Some((name, why)) => Err(self.wrong(&name, why)),
        }
    }
}
