//! Safetensors checkpoints: one file, or shards with an index.
//!
//! Opening reads the headers only. The `safetensors` crate parses header entries and checks their offsets (contiguous,
//! no holes, sizes match the shapes). Lengths, duplicates and the file's size are checked here before that.

mod header;
mod index;
mod write;

#[cfg(test)]
mod tests;

pub use write::TensorWriter;

use crate::file::{self, Input, Stored};
use crate::{Error, Result, TensorFile, TensorInfo, packed};
use djinn_srg::DType;
pub(crate) use header::{MAX_HEADER_BYTES, MAX_TENSORS, read as tensors_of};
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

/// The name of a single-file checkpoint in Hugging Face's layout.
pub const SINGLE_FILE: &str = "model.safetensors";
/// The name of the index of shards in Hugging Face's layout.
pub const INDEX_FILE: &str = "model.safetensors.index.json";

/// An open safetensors checkpoint. Tensors are read from several threads at once.
#[derive(Debug)]
pub struct SafetensorsDir {
    shards: Vec<Input>,
    tensors: HashMap<String, (usize, Stored)>,
}

impl SafetensorsDir {
    /// Opens a directory with [`SINGLE_FILE`] or else [`INDEX_FILE`], an index file, or a single safetensors file.
    /// [Packed](crate::packed) files replace missing safetensors files.
    ///
    /// # Errors
    /// A file that is missing, unreadable or malformed; a tensor in two shards, or not in the shard that the index
    /// names. Tensors with types that weights do not have (integers, 8-bit floats) are listed with
    /// [`StoredType::Other`](crate::StoredType::Other), and refused when they are read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        if !path.is_dir() {
            return match path.extension() {
                Some(extension) if extension == "json" => index::open(path),
                _ => Self::from_inputs([packed::open(path)?]),
            };
        }
        let index = path.join(INDEX_FILE);
        if let Some(single) = packed::find(&path.join(SINGLE_FILE)) {
            Self::from_inputs([packed::open(&single)?])
        } else if index.exists() {
            index::open(&index)
        } else {
            Err(Error::NotAModel {
                place: path.display().to_string(),
                detail: format!("it has neither {SINGLE_FILE} nor {INDEX_FILE}"),
            })
        }
    }

    /// The same for one file that is in memory.
    ///
    /// # Errors
    /// As [`SafetensorsDir::open`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self> {
        Self::from_inputs([Input::from_bytes("safetensors in memory", bytes)])
    }

    /// The same for one packed file that is in memory.
    ///
    /// # Errors
    /// As [`SafetensorsDir::open`].
    pub fn from_packed_bytes(bytes: Vec<u8>) -> Result<Self> {
        Self::from_inputs([packed::unpacked(Input::from_bytes("packed file in memory", bytes))?])
    }

    /// The checkpoint's files.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.shards.iter().map(|input| input.path.as_path())
    }

    pub(crate) fn from_inputs(inputs: impl IntoIterator<Item = Input>) -> Result<Self> {
        let mut checkpoint = Self { shards: Vec::new(), tensors: HashMap::new() };
        for input in inputs {
            let shard = checkpoint.shards.len();
            for mut stored in header::read(&input)? {
                stored.info.lossless = keeps_rows(&input, &stored);
                let name = stored.info.name.clone();
                if let Some((other, _)) = checkpoint.tensors.get(&name) {
                    let other = checkpoint.shards[*other].path.display();
                    return Err(input.malformed(format!("tensor {name} is also in {other}")));
                }
                checkpoint.tensors.insert(name, (shard, stored));
            }
            checkpoint.shards.push(input);
        }
        Ok(checkpoint)
    }

    /// Stored bytes of a tensor from its byte `offset` on; they must be inside it.
    pub(crate) fn read_bytes(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<()> {
        let (shard, stored) = self.tensors.get(name).ok_or_else(|| file::missing(name))?;
        self.shards[*shard].read(out, stored.offset + offset, format_args!("tensor {name}"))
    }

    /// The file that holds a tensor.
    fn shard_of(&self, name: &str) -> Option<&Path> {
        let (shard, _) = self.tensors.get(name)?;
        Some(&self.shards[*shard].path)
    }
}

/// Whether all rows of a tensor are stored as lossless rows.
fn keeps_rows(input: &Input, stored: &Stored) -> bool {
    let Some(bytes) =
        stored.info.stored.block().and_then(|block| file::stored_bytes(&stored.info.shape, block))
    else {
        return false;
    };
    bytes > 0 && input.source.keeps_rows(stored.offset..stored.offset + bytes)
}

impl TensorFile for SafetensorsDir {
    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name).map(|(_, stored)| &stored.info)
    }

    fn tensors(&self) -> Box<dyn Iterator<Item = &TensorInfo> + '_> {
        Box::new(self.tensors.values().map(|(_, stored)| &stored.info))
    }

    fn read(&self, name: &str, elements: Range<u64>, dtype: DType, out: &mut [u8]) -> Result<()> {
        let (shard, stored) = self.tensors.get(name).ok_or_else(|| file::missing(name))?;
        file::read(&self.shards[*shard], stored, elements, dtype, out)
    }

    fn read_stored(&self, name: &str, elements: Range<u64>, out: &mut [u8]) -> Result<()> {
        let (shard, stored) = self.tensors.get(name).ok_or_else(|| file::missing(name))?;
        file::read_stored(&self.shards[*shard], stored, elements, out)
    }
}
