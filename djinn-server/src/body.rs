//! A request's body: a JSON object whose fields are read one by one, so that an error names the field.

use crate::ApiError;
use crate::fields::{Endpoint, Support};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// The fields of a request.
#[derive(Debug)]
pub(crate) struct Fields {
    fields: Map<String, Value>,
}

impl Fields {
    /// Reads a body, and refuses fields that the endpoint knows and does not support. Unknown ones have no effect.
    ///
    /// # Errors
    /// 400 for what is no JSON object, is deeper than 128 levels, or has a field that is refused.
    pub(crate) fn parse(body: &[u8], endpoint: &Endpoint) -> Result<Self, ApiError> {
        let text =
            std::str::from_utf8(body).map_err(|_| ApiError::invalid("the request's body is not UTF-8"))?;
        let value = serde_json::from_str(text);
        let value =
            value.map_err(|error| ApiError::invalid(format!("the request's body is no JSON: {error}")))?;
        let Value::Object(fields) = value else {
            return Err(ApiError::invalid("the request's body must be a JSON object"));
        };
        Self::new(fields, endpoint)
    }

    /// As [`parse`](Self::parse); an empty body has no fields.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub(crate) fn parse_or_none(body: &[u8], endpoint: &Endpoint) -> Result<Self, ApiError> {
        Self::parse(if body.is_empty() { b"{}" } else { body }, endpoint)
    }

    /// All fields, as an object.
    pub(crate) fn whole(&self) -> Value {
        Value::Object(self.fields.clone())
    }

    /// The fields of a request that was translated from another API's; the same refusals.
    ///
    /// # Errors
    /// 400 for a field that is refused.
    pub(crate) fn new(fields: Map<String, Value>, endpoint: &Endpoint) -> Result<Self, ApiError> {
        let fields = Fields { fields };
        for field in endpoint.fields {
            if let (Support::Refused { neutral, instead }, Some(value)) =
                (&field.support, fields.get(field.name))
                && !neutral
                    .iter()
                    .any(|text| serde_json::from_str(text).is_ok_and(|neutral: Value| neutral == *value))
            {
                let name = field.name;
                return Err(ApiError::unsupported(name, format!("`{name}` is not supported; {instead}")));
            }
        }
        Ok(fields)
    }

    /// A field's value; null counts as absent.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.fields.get(name).filter(|value| !value.is_null())
    }

    /// A field of the type `T`.
    ///
    /// # Errors
    /// 400 that names the field.
    pub(crate) fn read<T: DeserializeOwned>(&self, name: &'static str) -> Result<Option<T>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let value = T::deserialize(value);
        value.map(Some).map_err(|error| ApiError::field(name, format!("`{name}`: {error}")))
    }

    /// A number within `range`.
    pub(crate) fn number(
        &self,
        name: &'static str,
        range: RangeInclusive<f32>,
    ) -> Result<Option<f32>, ApiError> {
        let value = self.read::<f32>(name)?;
        check(name, value, &range)
    }

    /// A whole number within `range`.
    pub(crate) fn integer(
        &self,
        name: &'static str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, ApiError> {
        let value = self.read::<u64>(name)?;
        check(name, value, &range)
    }

    /// True or false; false where it is absent.
    pub(crate) fn flag(&self, name: &'static str) -> Result<bool, ApiError> {
        Ok(self.read(name)?.unwrap_or(false))
    }
}

fn check<T: PartialOrd + std::fmt::Display>(
    name: &'static str,
    value: Option<T>,
    range: &RangeInclusive<T>,
) -> Result<Option<T>, ApiError> {
    match value {
        Some(value) if !range.contains(&value) => {
            let (from, to) = (range.start(), range.end());
            Err(ApiError::field(name, format!("`{name}` is {value}; give {from} to {to}")))
        }
        value => Ok(value),
    }
}
