//! Tensors as checkpoints store them, and the one way to read them.

use crate::Result;
use djinn_srg::DType;
use std::ops::Range;

/// How a checkpoint stores a tensor's elements. Block formats are GGML's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(non_camel_case_types, missing_docs, reason = "the formats' own names")]
pub enum Encoding {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    /// A stored type that Djinn does not decode, by its format's name: the tensor is listed, reading it is
    /// refused.
    Other(&'static str),
}

impl Encoding {
    /// Elements and bytes of a block; `None` for types that are not decoded.
    pub const fn block(self) -> Option<(u64, u64)> {
        Some(match self {
            Encoding::F32 => (1, 4),
            Encoding::F16 | Encoding::BF16 => (1, 2),
            Encoding::Q4_0 => (32, 18),
            Encoding::Q4_1 => (32, 20),
            Encoding::Q5_0 => (32, 22),
            Encoding::Q5_1 => (32, 24),
            Encoding::Q8_0 => (32, 34),
            Encoding::Q2_K => (256, 84),
            Encoding::Q3_K => (256, 110),
            Encoding::Q4_K => (256, 144),
            Encoding::Q5_K => (256, 176),
            Encoding::Q6_K => (256, 210),
            Encoding::Other(_) => return None,
        })
    }

    /// The value type with the same bytes, if there is one.
    pub const fn dtype(self) -> Option<DType> {
        match self {
            Encoding::F32 => Some(DType::F32),
            Encoding::F16 => Some(DType::F16),
            Encoding::BF16 => Some(DType::BF16),
            _ => None,
        }
    }

    /// The type's name in its format's own spelling.
    pub const fn name(self) -> &'static str {
        match self {
            Encoding::F32 => "F32",
            Encoding::F16 => "F16",
            Encoding::BF16 => "BF16",
            Encoding::Q4_0 => "Q4_0",
            Encoding::Q4_1 => "Q4_1",
            Encoding::Q5_0 => "Q5_0",
            Encoding::Q5_1 => "Q5_1",
            Encoding::Q8_0 => "Q8_0",
            Encoding::Q2_K => "Q2_K",
            Encoding::Q3_K => "Q3_K",
            Encoding::Q4_K => "Q4_K",
            Encoding::Q5_K => "Q5_K",
            Encoding::Q6_K => "Q6_K",
            Encoding::Other(name) => name,
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
    /// How its elements are stored.
    pub encoding: Encoding,
}

/// A checkpoint's tensors by name; one implementation for each file format.
pub trait TensorFile: Send + Sync {
    /// The tensor, if the checkpoint has it.
    fn tensor(&self, name: &str) -> Option<&TensorInfo>;

    /// Every tensor, in no particular order.
    fn tensors(&self) -> Box<dyn Iterator<Item = &TensorInfo> + '_>;

    /// Decodes a run of a tensor's elements, counted in row-major order, into `out` as little-endian `dtype`, whose
    /// length is exactly theirs. Equal types are copied; narrowing rounds to nearest even. Blocks are read whole.
    fn read(&self, name: &str, elements: Range<u64>, dtype: DType, out: &mut [u8]) -> Result<()>;
}
