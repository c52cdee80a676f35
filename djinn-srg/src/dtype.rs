//! Element types of values.

use serde::{Deserialize, Serialize};

/// The element type of a value in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16: the upper half of a binary32.
    BF16,
    /// Integers from -127 to 127, of keys and values alone: each vector of a head has an f32 that one stands for, its
    /// scale.
    Int8,
    /// Unsigned 32-bit integers: token ids, positions, page tables.
    U32,
}

impl DType {
    /// Bytes of one element.
    pub const fn bytes(self) -> u64 {
        match self {
            DType::F32 | DType::U32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::Int8 => 1,
        }
    }

    /// Bytes of the scale that a vector of keys or values has; 0 of types without.
    pub const fn scale_bytes(self) -> u64 {
        if matches!(self, DType::Int8) { 4 } else { 0 }
    }

    /// Bytes of a vector of `elements` keys or values, its scale included.
    pub const fn vector_bytes(self, elements: u64) -> u64 {
        elements * self.bytes() + self.scale_bytes()
    }

    /// The lower-case name, as in flags and the JSON exports.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::Int8 => "int8",
            DType::U32 => "u32",
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
