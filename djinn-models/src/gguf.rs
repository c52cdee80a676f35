//! GGUF files, versions 2 and 3, little-endian: typed metadata and GGML's tensors.
//!
//! Opening reads the header only, through a small buffer. Every count and length is checked against the rest of the
//! file before memory is allocated. GGML's `docs/gguf.md` describes the layout.

mod cursor;
mod keys;
mod types;
mod value;

#[cfg(test)]
mod tests;

pub use value::{Array, Value};

use crate::file::{self, Input, Stored};
use crate::safetensors::MAX_TENSORS;
use crate::{Error, Result, TensorFile, TensorInfo};
use cursor::Cursor;
use djinn_srg::DType;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;

/// More than ten times the header of a model with the largest vocabularies in use. It bounds the memory for a hostile
/// file.
const MAX_HEADER_BYTES: u64 = 128 << 20;
const MAGIC: [u8; 4] = *b"GGUF";
const DEFAULT_ALIGNMENT: u32 = 32;
/// Far above any file: one with a hundred keys has many. Each takes more memory than its bytes in the file.
const MAX_KEYS: u64 = 1 << 16;
/// `GGML_MAX_DIMS`.
const MAX_DIMS: u32 = 4;

/// An open GGUF file. Tensors are read from several threads at once.
#[derive(Debug)]
pub struct Gguf {
    input: Input,
    version: u32,
    metadata: BTreeMap<String, Value>,
    tensors: HashMap<String, Stored>,
}

/// A tensor in the header. Its offset counts from the start of the data.
struct Entry {
    info: TensorInfo,
    offset: u64,
    bytes: u64,
}

impl Gguf {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// A file that cannot be read or is malformed, or of an unsupported kind, which the error names: version 1,
    /// big-endian, one part of a split model.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::parse(Input::open(path.as_ref())?)
    }

    /// The same for a file that is in memory.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self> {
        Self::parse(Input::from_bytes("GGUF in memory", bytes))
    }

    pub(crate) fn parse(input: Input) -> Result<Self> {
        let mut cursor = Cursor::new(&input, input.source.len().min(MAX_HEADER_BYTES));
        let version = read_version(&mut cursor)?;
        let tensor_count = cursor.u64("the number of tensors")?;
        let key_count = cursor.u64("the number of metadata keys")?;
        let metadata = read_metadata(&mut cursor, key_count)?;
        refuse_split(&metadata)?;
        let alignment = alignment(&input, &metadata)?;
        let entries = read_entries(&mut cursor, tensor_count, alignment)?;
        let data = cursor.position().next_multiple_of(alignment);
        let tensors = place(&input, entries, data)?;
        Ok(Self { input, version, metadata, tensors })
    }

    /// The places of its tensors, unordered.
    pub(crate) fn into_tensors(self) -> Vec<Stored> {
        self.tensors.into_values().collect()
    }

    /// The file's name in errors.
    pub fn path(&self) -> &Path {
        &self.input.path
    }

    /// The format's version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// All metadata, ordered by key.
    pub fn metadata(&self) -> &BTreeMap<String, Value> {
        &self.metadata
    }
}

impl TensorFile for Gguf {
    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name).map(|stored| &stored.info)
    }

    fn tensors(&self) -> Box<dyn Iterator<Item = &TensorInfo> + '_> {
        Box::new(self.tensors.values().map(|stored| &stored.info))
    }

    fn read(&self, name: &str, elements: Range<u64>, dtype: DType, out: &mut [u8]) -> Result<()> {
        let stored = self.tensors.get(name).ok_or_else(|| file::missing(name))?;
        file::read(&self.input, stored, elements, dtype, out)
    }

    fn read_stored(&self, name: &str, elements: Range<u64>, out: &mut [u8]) -> Result<()> {
        let stored = self.tensors.get(name).ok_or_else(|| file::missing(name))?;
        file::read_stored(&self.input, stored, elements, out)
    }
}

fn read_version(cursor: &mut Cursor<'_>) -> Result<u32> {
    let magic = cursor.bytes::<4>("the magic number")?;
    if magic != MAGIC {
        return Err(cursor.malformed(format!("is no GGUF file: it starts with {magic:02x?}, not \"GGUF\"")));
    }
    let version = cursor.u32("the version")?;
    let refuse = |what: String, remedy: &str| Err(Error::Unsupported { what, remedy: remedy.into() });
    match version {
        2 | 3 => Ok(version),
        1 => refuse("GGUF version 1".into(), "convert the model again with a current llama.cpp"),
        _ if version & 0xffff == 0 => {
            refuse("a big-endian GGUF file".into(), "convert it with gguf-py's gguf_convert_endian.py")
        }
        _ => refuse(format!("GGUF version {version}"), "versions 2 and 3 are read"),
    }
}

fn read_metadata(cursor: &mut Cursor<'_>, count: u64) -> Result<BTreeMap<String, Value>> {
    // A key's length, its type and one byte of value.
    cursor.check_count(count, 13, "metadata keys")?;
    if count > MAX_KEYS {
        return Err(cursor.malformed(format!("it has {count} metadata keys, more than {MAX_KEYS}")));
    }
    let mut metadata = BTreeMap::new();
    for _ in 0..count {
        let key = cursor.string("a metadata key")?;
        let value = Value::read(cursor, &key)?;
        if metadata.insert(key.clone(), value).is_some() {
            return Err(cursor.malformed(format!("metadata key `{key}` occurs twice")));
        }
    }
    Ok(metadata)
}

fn refuse_split(metadata: &BTreeMap<String, Value>) -> Result<()> {
    match metadata.get("split.count").and_then(Value::to_u64) {
        Some(parts) if parts > 1 => Err(Error::Unsupported {
            what: format!("a GGUF model split into {parts} files"),
            remedy: "join them first: llama-gguf-split --merge FIRST_PART.gguf MODEL.gguf".into(),
        }),
        _ => Ok(()),
    }
}

fn alignment(input: &Input, metadata: &BTreeMap<String, Value>) -> Result<u64> {
    let Some(value) = metadata.get("general.alignment") else {
        return Ok(DEFAULT_ALIGNMENT.into());
    };
    match value.to_u64().filter(|&n| n.is_power_of_two() && n <= 1 << 30) {
        Some(alignment) => Ok(alignment),
        None => Err(Error::Config {
            path: input.path.clone(),
            key: "general.alignment".into(),
            detail: format!("is {}, not a power of two up to 2^30", value.summary()),
        }),
    }
}

fn read_entries(cursor: &mut Cursor<'_>, count: u64, alignment: u64) -> Result<Vec<Entry>> {
    // A name's length, the number of dimensions, the type and the offset.
    cursor.check_count(count, 24, "tensors")?;
    if count > MAX_TENSORS as u64 {
        return Err(cursor.malformed(format!("it has {count} tensors, more than {MAX_TENSORS}")));
    }
    let mut entries = Vec::new();
    for _ in 0..count {
        let entry = read_entry(cursor)?;
        if !entry.offset.is_multiple_of(alignment) {
            return Err(cursor.malformed(format!(
                "tensor {} starts at byte {} of the data, which is no multiple of the alignment {alignment}",
                entry.info.name, entry.offset
            )));
        }
        entries.push(entry);
    }
    Ok(entries)
}

fn read_entry(cursor: &mut Cursor<'_>) -> Result<Entry> {
    let name = cursor.string("a tensor's name")?;
    if name.chars().any(char::is_control) {
        return Err(cursor.malformed(format!("tensor name `{name}` has control characters")));
    }
    let dims = cursor.u32("a tensor's number of dimensions")?;
    if dims > MAX_DIMS {
        return Err(
            cursor.malformed(format!("tensor {name} has {dims} dimensions, at most {MAX_DIMS} exist"))
        );
    }
    let mut shape = Vec::new();
    for _ in 0..dims {
        shape.push(cursor.u64("a tensor's dimension")?);
    }
    shape.reverse();
    let type_id = cursor.u32("a tensor's type")?;
    let offset = cursor.u64("a tensor's offset")?;
    let Some((stored, block)) = types::by_id(type_id) else {
        return Err(Error::Unsupported {
            what: format!("GGML type {type_id} of tensor {name}"),
            remedy: "convert the checkpoint to bf16, f16, f32, Q8_0 or a K-quantised type".into(),
        });
    };
    let Some(bytes) = file::stored_bytes(&shape, block) else {
        return Err(cursor.malformed(format!(
            "tensor {name} of shape {shape:?} is no whole number of {} blocks in each row, or too large",
            stored.name()
        )));
    };
    Ok(Entry { info: TensorInfo { name, shape, stored, lossless: false }, offset, bytes })
}

/// Checks that the tensors lie inside the file, whose data starts at `data`, and do not overlap.
fn place(input: &Input, mut entries: Vec<Entry>, data: u64) -> Result<HashMap<String, Stored>> {
    let available = input.source.len().saturating_sub(data);
    entries.sort_by_key(|entry| (entry.offset, entry.bytes));
    let mut end = 0;
    let mut previous = String::new();
    let mut tensors = HashMap::with_capacity(entries.len());
    for Entry { info, offset, bytes } in entries {
        let name = info.name.clone();
        if bytes > 0 && offset < end {
            return Err(input.malformed(format!("tensors {previous} and {name} overlap")));
        }
        let tensor_end = offset.saturating_add(bytes);
        if tensor_end > available {
            return Err(input.malformed(format!(
                "tensor {name} ends at byte {} but the file has {}; it is truncated or corrupt",
                tensor_end.saturating_add(data),
                input.source.len()
            )));
        }
        end = end.max(tensor_end);
        previous.clone_from(&name);
        if tensors.insert(name, Stored { info, offset: data + offset }).is_some() {
            return Err(input.malformed(format!("tensor {previous} is listed twice")));
        }
    }
    Ok(tensors)
}
