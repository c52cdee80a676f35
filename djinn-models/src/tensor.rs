//! Stored tensors, and the interface for reading them.

use crate::Result;
use djinn_srg::{BlockFormat, DType, Encoding};
use std::ops::Range;

/// The stored form of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoredType {
    /// Floats of IEEE 754's binary32.
    F32,
    /// Floats of IEEE 754's binary16.
    F16,
    /// The upper halves of binary32.
    BF16,
    /// GGML's blocks.
    Blocks(BlockFormat),
    /// A stored type that Djinn does not decode, by its format's name. The tensor is listed, but reading it is
    /// refused.
    Other(&'static str),
}

impl StoredType {
    /// Elements and bytes of a block; `None` for types that are not decoded.
    pub const fn block(self) -> Option<(u64, u64)> {
        match self {
            StoredType::F32 => Some((1, 4)),
            StoredType::F16 | StoredType::BF16 => Some((1, 2)),
            StoredType::Blocks(format) => Some((format.elements(), format.bytes())),
            StoredType::Other(_) => None,
        }
    }

    /// The value type with the same bytes, if there is one.
    pub const fn dtype(self) -> Option<DType> {
        match self {
            StoredType::F32 => Some(DType::F32),
            StoredType::F16 => Some(DType::F16),
            StoredType::BF16 => Some(DType::BF16),
            StoredType::Blocks(_) | StoredType::Other(_) => None,
        }
    }

    /// The encoding with the same bytes, if there is one.
    pub const fn encoding(self) -> Option<Encoding> {
        match self {
            StoredType::F32 | StoredType::F16 | StoredType::BF16 => Some(Encoding::Plain),
            StoredType::Blocks(format) => Some(Encoding::Blocks(format)),
            StoredType::Other(_) => None,
        }
    }

    /// The type's name in its format's own spelling.
    pub const fn name(self) -> &'static str {
        match self {
            StoredType::F32 => "F32",
            StoredType::F16 => "F16",
            StoredType::BF16 => "BF16",
            StoredType::Blocks(format) => format.name(),
            StoredType::Other(name) => name,
        }
    }
}

/// A tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name in the file.
    pub name: String,
    /// Row-major shape, outermost dimension first (GGUF's order is reversed on reading).
    pub shape: Vec<u64>,
    /// The stored form of its elements.
    pub stored: StoredType,
    /// Whether all of its rows are stored in 12 bits an element, in a [packed](crate::packed) file.
    pub lossless: bool,
}

impl TensorInfo {
    /// The encoding of the tensor in the file, if there is one.
    pub const fn encoding(&self) -> Option<Encoding> {
        if self.lossless { Some(Encoding::Lossless) } else { self.stored.encoding() }
    }
}

/// A checkpoint's tensors by name; one implementation for each file format.
pub trait TensorFile: Send + Sync {
    /// The tensor, if the checkpoint has it.
    fn tensor(&self, name: &str) -> Option<&TensorInfo>;

    /// Every tensor, in no particular order.
    fn tensors(&self) -> Box<dyn Iterator<Item = &TensorInfo> + '_>;

    /// Decodes a run of a tensor's elements, counted in row-major order, into `out` as little-endian `dtype`; `out`
    /// has exactly their length. Equal types are copied; narrowing rounds to nearest even. Blocks are read as a whole.
    fn read(&self, name: &str, elements: Range<u64>, dtype: DType, out: &mut [u8]) -> Result<()>;

    /// The stored bytes of a run of a tensor's elements, in whole blocks without padding, or whole rows if they are
    /// lossless; `out` has exactly their length.
    fn read_stored(&self, name: &str, elements: Range<u64>, out: &mut [u8]) -> Result<()>;
}
