//! Metadata by key, with the caller's type. A missing key and a wrong type are [`Error::Config`] and name the key.

use super::{Array, Gguf, Value};
use crate::{Error, Result};

impl Gguf {
    /// Whether the file has the key.
    pub fn contains(&self, key: &str) -> bool {
        self.metadata.contains_key(key)
    }

    /// The value of a key, whatever its type.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// `None` if the key is missing, and otherwise the result of `read`: `gguf.optional("llama.rope.freq_base",
    /// Gguf::get_f32)`.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn optional<'a, T>(
        &'a self,
        key: &str,
        read: impl FnOnce(&'a Self, &str) -> Result<T>,
    ) -> Result<Option<T>> {
        if self.contains(key) { read(self, key).map(Some) } else { Ok(None) }
    }

    /// An integer of any type that fits.
    ///
    /// # Errors
    /// The key is missing, no integer, or out of range.
    pub fn get_u32(&self, key: &str) -> Result<u32> {
        self.require(key, "an integer from 0 to 4294967295", |value| value.to_u64()?.try_into().ok())
    }

    /// An integer of any type that is not negative.
    ///
    /// # Errors
    /// The key is missing, no integer, or negative.
    pub fn get_u64(&self, key: &str) -> Result<u64> {
        self.require(key, "an integer of at least 0", Value::to_u64)
    }

    /// An f32, or an f64 rounded to it.
    ///
    /// # Errors
    /// The key is missing or of another type.
    pub fn get_f32(&self, key: &str) -> Result<f32> {
        self.require(key, "a floating-point number", |value| match *value {
            Value::F32(n) => Some(n),
            Value::F64(n) => Some(n as f32),
            _ => None,
        })
    }

    /// A boolean.
    ///
    /// # Errors
    /// The key is missing or of another type.
    pub fn get_bool(&self, key: &str) -> Result<bool> {
        self.require(key, "a boolean", |value| match *value {
            Value::Bool(b) => Some(b),
            _ => None,
        })
    }

    /// A string.
    ///
    /// # Errors
    /// The key is missing or of another type.
    pub fn get_str(&self, key: &str) -> Result<&str> {
        self.require(key, "a string", |value| match value {
            Value::String(s) => Some(s.as_str()),
            _ => None,
        })
    }

    /// An array of strings.
    ///
    /// # Errors
    /// The key is missing or of another type.
    pub fn get_array_str(&self, key: &str) -> Result<&[String]> {
        self.require(key, "an array of strings", |value| match value {
            Value::Array(Array::String(strings)) => Some(strings.as_slice()),
            _ => None,
        })
    }

    /// An array of f32.
    ///
    /// # Errors
    /// The key is missing or of another type.
    pub fn get_array_f32(&self, key: &str) -> Result<&[f32]> {
        self.require(key, "an array of f32 numbers", |value| match value {
            Value::Array(Array::F32(numbers)) => Some(numbers.as_slice()),
            _ => None,
        })
    }

    /// An array of integers of any type, widened.
    ///
    /// # Errors
    /// The key is missing, of another type, or a number does not fit in an i64.
    pub fn get_array_int(&self, key: &str) -> Result<Vec<i64>> {
        fn widen<T: Copy + Into<i64>>(numbers: &[T]) -> Option<Vec<i64>> {
            Some(numbers.iter().map(|&n| n.into()).collect())
        }
        self.require(key, "an array of integers", |value| match value {
            Value::Array(Array::U8(v)) => widen(v),
            Value::Array(Array::I8(v)) => widen(v),
            Value::Array(Array::U16(v)) => widen(v),
            Value::Array(Array::I16(v)) => widen(v),
            Value::Array(Array::U32(v)) => widen(v),
            Value::Array(Array::I32(v)) => widen(v),
            Value::Array(Array::I64(v)) => widen(v),
            Value::Array(Array::U64(v)) => v.iter().map(|&n| n.try_into().ok()).collect(),
            _ => None,
        })
    }

    fn require<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<T> {
        let error = |detail| Err(Error::Config { path: self.path().to_owned(), key: key.into(), detail });
        match self.get(key) {
            None => error(format!("is missing; {expected} is needed")),
            Some(value) => match read(value) {
                Some(read) => Ok(read),
                None => error(format!("is {}, not {expected}", value.summary())),
            },
        }
    }
}
