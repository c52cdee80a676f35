//! The header of one safetensors file: a length as u64, that many bytes of JSON, then the data.

use crate::file::{Input, Stored};
use crate::{Result, StoredType, TensorInfo};
use safetensors::tensor::{Dtype, Metadata, TensorInfo as Entry};
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use std::collections::HashSet;
use std::fmt;

/// The format's own limit.
pub(crate) const MAX_HEADER_BYTES: u64 = 100_000_000;
const LENGTH_BYTES: u64 = 8;
/// The most tensors of a file. A header of the longest length has millions that have no bytes.
pub(crate) const MAX_TENSORS: usize = 200_000;

/// The entries of a header, without duplicates, in the order of the file.
struct Entries(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
        let mut entries = Vec::new();
        let mut names = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if !names.insert(name.clone()) {
                return Err(A::Error::custom(format!("`{name}` occurs twice")));
            }
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
            } else if name.chars().any(char::is_control) {
                return Err(A::Error::custom(format!("tensor name `{name}` has control characters")));
            } else if entries.len() == MAX_TENSORS {
                return Err(A::Error::custom(format!("it has more than {MAX_TENSORS} tensors")));
            } else {
                entries.push((name, map.next_value()?));
            }
        }
        Ok(Entries(entries))
    }
}

/// The tensors of a file in order. Their bytes exactly fill the rest of the file.
pub(crate) fn read(input: &Input) -> Result<Vec<Stored>> {
    let file_bytes = input.source.len();
    let mut length = [0; LENGTH_BYTES as usize];
    input.read(&mut length, 0, format_args!("the header's length"))?;
    let header_bytes = u64::from_le_bytes(length);
    if header_bytes > MAX_HEADER_BYTES || header_bytes > file_bytes - LENGTH_BYTES {
        return Err(input.malformed(format!(
            "the header claims {header_bytes} bytes, but the file has {file_bytes} and the limit is \
             {MAX_HEADER_BYTES}; it is truncated or no safetensors file"
        )));
    }
    let mut header = vec![0; header_bytes as usize];
    input.read(&mut header, LENGTH_BYTES, format_args!("the header"))?;
    let Entries(mut entries) =
        serde_json::from_slice(&header).map_err(|e| input.malformed(format!("the header: {e}")))?;
    drop(header);
    entries.sort_by_key(|(_, entry)| entry.data_offsets);
    let metadata = Metadata::new(None, entries.clone())
        .map_err(|e| input.malformed(format!("the header's offsets, shapes and sizes disagree: {e}")))?;
    let end = (LENGTH_BYTES + header_bytes).saturating_add(metadata.data_len() as u64);
    if end != file_bytes {
        return Err(input.malformed(format!(
            "the header describes {end} bytes, the file has {file_bytes}; it is truncated or corrupt"
        )));
    }
    Ok(entries.into_iter().map(|(name, entry)| stored(name, entry, LENGTH_BYTES + header_bytes)).collect())
}

fn stored(name: String, entry: Entry, data: u64) -> Stored {
    let shape = entry.shape.iter().map(|&dim| dim as u64).collect();
    let stored = match entry.dtype {
        Dtype::F32 => StoredType::F32,
        Dtype::F16 => StoredType::F16,
        Dtype::BF16 => StoredType::BF16,
        other => StoredType::Other(type_name(other)),
    };
    Stored {
        info: TensorInfo { name, shape, stored, lossless: false },
        offset: data + entry.data_offsets.0 as u64,
    }
}

fn type_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::BOOL => "BOOL",
        Dtype::F4 => "F4",
        Dtype::F6_E2M3 => "F6_E2M3",
        Dtype::F6_E3M2 => "F6_E3M2",
        Dtype::U8 => "U8",
        Dtype::I8 => "I8",
        Dtype::F8_E5M2 => "F8_E5M2",
        Dtype::F8_E4M3 => "F8_E4M3",
        Dtype::F8_E8M0 => "F8_E8M0",
        Dtype::F8_E4M3FNUZ => "F8_E4M3FNUZ",
        Dtype::F8_E5M2FNUZ => "F8_E5M2FNUZ",
        Dtype::I16 => "I16",
        Dtype::U16 => "U16",
        Dtype::F16 => "F16",
        Dtype::BF16 => "BF16",
        Dtype::I32 => "I32",
        Dtype::U32 => "U32",
        Dtype::F32 => "F32",
        Dtype::C64 => "C64",
        Dtype::F64 => "F64",
        Dtype::I64 => "I64",
        Dtype::U64 => "U64",
        _ => "unknown",
    }
}
