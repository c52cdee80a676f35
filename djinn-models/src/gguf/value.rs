//! Metadata values with their types.

use super::cursor::Cursor;
use crate::Result;

/// Deeper nested arrays are refused; known files have none.
const MAX_NESTING: u32 = 4;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the format's own types")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(String),
    Array(Array),
}

/// An array: all elements have one type.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the format's own types")]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    String(Vec<String>),
    Array(Vec<Array>),
}

impl Value {
    /// The number, if the value is an integer of any type that is not negative.
    pub fn to_u64(&self) -> Option<u64> {
        match *self {
            Value::U8(n) => Some(n.into()),
            Value::U16(n) => Some(n.into()),
            Value::U32(n) => Some(n.into()),
            Value::U64(n) => Some(n),
            Value::I8(n) => n.try_into().ok(),
            Value::I16(n) => n.try_into().ok(),
            Value::I32(n) => n.try_into().ok(),
            Value::I64(n) => n.try_into().ok(),
            _ => None,
        }
    }

    /// The value in short, on one line, for a message.
    pub(crate) fn summary(&self) -> String {
        match self {
            Value::String(s) => {
                let cut: String = s.chars().take(40).collect();
                format!("the text `{}`{}", cut.escape_debug(), if cut.len() < s.len() { "…" } else { "" })
            }
            Value::Array(array) => format!("an array of {} {}", array.len(), array.type_name()),
            Value::U8(n) => n.to_string(),
            Value::I8(n) => n.to_string(),
            Value::U16(n) => n.to_string(),
            Value::I16(n) => n.to_string(),
            Value::U32(n) => n.to_string(),
            Value::I32(n) => n.to_string(),
            Value::U64(n) => n.to_string(),
            Value::I64(n) => n.to_string(),
            Value::F32(n) => format!("{n:?}"),
            Value::F64(n) => format!("{n:?}"),
            Value::Bool(b) => b.to_string(),
        }
    }

    /// Reads a type and a value of it.
    pub(super) fn read(cursor: &mut Cursor<'_>, key: &str) -> Result<Self> {
        let what = format!("metadata key `{key}`");
        let type_id = cursor.u32(&what)?;
        Ok(match type_id {
            0 => Value::U8(u8::from_le_bytes(cursor.bytes(&what)?)),
            1 => Value::I8(i8::from_le_bytes(cursor.bytes(&what)?)),
            2 => Value::U16(u16::from_le_bytes(cursor.bytes(&what)?)),
            3 => Value::I16(i16::from_le_bytes(cursor.bytes(&what)?)),
            4 => Value::U32(cursor.u32(&what)?),
            5 => Value::I32(i32::from_le_bytes(cursor.bytes(&what)?)),
            6 => Value::F32(f32::from_le_bytes(cursor.bytes(&what)?)),
            7 => Value::Bool(read_bool(cursor, &what)?),
            8 => Value::String(cursor.string(&what)?),
            9 => Value::Array(Array::read(cursor, &what, 1)?),
            10 => Value::U64(cursor.u64(&what)?),
            11 => Value::I64(i64::from_le_bytes(cursor.bytes(&what)?)),
            12 => Value::F64(f64::from_le_bytes(cursor.bytes(&what)?)),
            _ => return Err(cursor.malformed(format!("{what} has the unknown type {type_id}"))),
        })
    }
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(v) => v.len(),
            Array::I8(v) => v.len(),
            Array::U16(v) => v.len(),
            Array::I16(v) => v.len(),
            Array::U32(v) => v.len(),
            Array::I32(v) => v.len(),
            Array::U64(v) => v.len(),
            Array::I64(v) => v.len(),
            Array::F32(v) => v.len(),
            Array::F64(v) => v.len(),
            Array::Bool(v) => v.len(),
            Array::String(v) => v.len(),
            Array::Array(v) => v.len(),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements' type, in the plural.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Array::U8(_) => "u8 numbers",
            Array::I8(_) => "i8 numbers",
            Array::U16(_) => "u16 numbers",
            Array::I16(_) => "i16 numbers",
            Array::U32(_) => "u32 numbers",
            Array::I32(_) => "i32 numbers",
            Array::U64(_) => "u64 numbers",
            Array::I64(_) => "i64 numbers",
            Array::F32(_) => "f32 numbers",
            Array::F64(_) => "f64 numbers",
            Array::Bool(_) => "booleans",
            Array::String(_) => "strings",
            Array::Array(_) => "arrays",
        }
    }

    fn read(cursor: &mut Cursor<'_>, what: &str, nesting: u32) -> Result<Self> {
        let type_id = cursor.u32(what)?;
        let count = cursor.u64(what)?;
        Ok(match type_id {
            0 => Array::U8(read_numbers(cursor, what, count, u8::from_le_bytes)?),
            1 => Array::I8(read_numbers(cursor, what, count, i8::from_le_bytes)?),
            2 => Array::U16(read_numbers(cursor, what, count, u16::from_le_bytes)?),
            3 => Array::I16(read_numbers(cursor, what, count, i16::from_le_bytes)?),
            4 => Array::U32(read_numbers(cursor, what, count, u32::from_le_bytes)?),
            5 => Array::I32(read_numbers(cursor, what, count, i32::from_le_bytes)?),
            6 => Array::F32(read_numbers(cursor, what, count, f32::from_le_bytes)?),
            7 => Array::Bool(read_items(cursor, what, count, 1, read_bool)?),
            8 => Array::String(read_items(cursor, what, count, 8, |cursor, what| cursor.string(what))?),
            9 if nesting == MAX_NESTING => {
                return Err(cursor.malformed(format!("{what}: arrays nest deeper than {MAX_NESTING}")));
            }
            9 => Array::Array(read_items(cursor, what, count, 12, |cursor, what| {
                Array::read(cursor, what, nesting + 1)
            })?),
            10 => Array::U64(read_numbers(cursor, what, count, u64::from_le_bytes)?),
            11 => Array::I64(read_numbers(cursor, what, count, i64::from_le_bytes)?),
            12 => Array::F64(read_numbers(cursor, what, count, f64::from_le_bytes)?),
            _ => return Err(cursor.malformed(format!("{what} is an array of the unknown type {type_id}"))),
        })
    }
}

fn read_bool(cursor: &mut Cursor<'_>, what: &str) -> Result<bool> {
    match cursor.bytes(what)? {
        [0] => Ok(false),
        [1] => Ok(true),
        [byte] => Err(cursor.malformed(format!("{what}: a boolean is {byte}, neither 0 nor 1"))),
    }
}

/// Numbers of `N` bytes each. Their total is checked before memory is allocated.
fn read_numbers<T, const N: usize>(
    cursor: &mut Cursor<'_>,
    what: &str,
    count: u64,
    decode: fn([u8; N]) -> T,
) -> Result<Vec<T>> {
    read_items(cursor, what, count, N as u64, |cursor, what| Ok(decode(cursor.bytes(what)?)))
}

/// Items of at least `item_bytes` each in the file. Their number is checked before memory is allocated.
fn read_items<T>(
    cursor: &mut Cursor<'_>,
    what: &str,
    count: u64,
    item_bytes: u64,
    mut read: impl FnMut(&mut Cursor<'_>, &str) -> Result<T>,
) -> Result<Vec<T>> {
    cursor.check_count(count, item_bytes, what)?;
    let mut items = Vec::new();
    for _ in 0..count {
        items.push(read(cursor, what)?);
    }
    Ok(items)
}
