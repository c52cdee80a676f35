//! Keys and values of a stopped session's earlier tokens: reads and changes.

use crate::{Error, Result};
use djinn_device::DType;
use djinn_device::reference::{decode_vectors, encode_vectors};
use std::ops::Range;

/// A layer's keys and values of some tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvRange {
    /// The block.
    pub layer: u32,
    /// The tokens.
    pub positions: Range<u64>,
}

/// Keys and values as a layer's cache holds them.
#[derive(Clone, Debug, PartialEq)]
pub struct KvValues {
    /// The layer, and the tokens.
    pub range: KvRange,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Values of a head.
    pub head_dim: u32,
    /// f32 `[tokens, kv_heads, head_dim]`, after the rotation.
    pub keys: Vec<f32>,
    /// f32 `[tokens, kv_heads, head_dim]`.
    pub values: Vec<f32>,
}

/// Keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvHalf {
    /// Keys.
    Keys,
    /// Values.
    Values,
}

/// A change of keys or values of earlier tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct KvEdit {
    /// Layer and tokens.
    pub range: KvRange,
    /// Keys or values.
    pub half: KvHalf,
    /// The change.
    pub op: KvOp,
}

/// How keys or values change. The result is rounded to the cache's element type.
#[derive(Clone, Debug, PartialEq)]
pub enum KvOp {
    /// Replaces them: f32 `[kv_heads, head_dim]` for every token, or `[tokens, kv_heads, head_dim]`.
    Set(Vec<f32>),
    /// Adds these, in the same shapes.
    Add(Vec<f32>),
    /// Multiplies them.
    Scale(f32),
    /// Clamps each number to a lower and an upper bound; either may be infinite.
    Clamp(f32, f32),
    /// Removes each token's component along a direction: f32 `[kv_heads, head_dim]`, of any length but 0.
    ProjectOut(Vec<f32>),
}

/// Called when a change is recorded, or refused.
pub type KvAnswer = Box<dyn FnOnce(Result<()>) + Send>;

/// New contents for a layer's keys or values. They are written whenever the session's context has reached them.
#[derive(Clone, Debug)]
pub(crate) struct KvWritten {
    pub(crate) range: KvRange,
    pub(crate) half: KvHalf,
    /// `[tokens, kv_heads, head_dim]` in the cache's element type, each vector with its scale if the type has one.
    pub(crate) bytes: Vec<u8>,
}

impl KvWritten {
    /// Drops tokens from `tokens` on. At least one remains.
    pub(crate) fn truncate(&mut self, tokens: u64) {
        let Range { start, end } = self.range.positions;
        if end > tokens {
            self.bytes.truncate(self.bytes.len() / (end - start) as usize * (tokens - start) as usize);
            self.range.positions.end = tokens;
        }
    }
}

impl KvEdit {
    fn fail(&self, detail: impl std::fmt::Display) -> Error {
        let hook = format!("the keys and values of block {}", self.range.layer);
        Error::Intervention { hook, detail: detail.to_string() }
    }

    /// Checks the numbers, for tokens of `width` values.
    pub(crate) fn check(&self, width: usize) -> Result<()> {
        let tokens = (self.range.positions.end - self.range.positions.start) as usize;
        let (numbers, fits) = match &self.op {
            KvOp::Set(values) | KvOp::Add(values) => {
                (values.as_slice(), values.len() == width || values.len() == tokens * width)
            }
            KvOp::Scale(factor) => (std::slice::from_ref(factor), true),
            KvOp::Clamp(low, high) if low <= high => (&[][..], true),
            KvOp::Clamp(low, high) => return Err(self.fail(format!("{low} to {high} are no bounds"))),
            KvOp::ProjectOut(direction) => (direction.as_slice(), direction.len() == width),
        };
        if !fits {
            let (count, all) = (numbers.len(), tokens * width);
            let alone = matches!(self.op, KvOp::ProjectOut(_));
            let or = if alone { String::new() } else { format!(" or {all}") };
            return Err(
                self.fail(format!("{count} values; {tokens} tokens of {width} values each take {width}{or}"))
            );
        }
        if !numbers.iter().all(|x| x.is_finite()) {
            return Err(self.fail("the change has numbers that are not finite"));
        }
        match &self.op {
            KvOp::ProjectOut(direction) if direction.iter().all(|&x| x == 0.0) => {
                Err(self.fail("a direction of length 0 is none"))
            }
            _ => Ok(()),
        }
    }

    /// The new contents, given the `old` values.
    ///
    /// # Errors
    /// A number that the cache's element type cannot represent.
    pub(crate) fn apply(self, old: &KvValues, dtype: DType) -> Result<KvWritten> {
        let dim = old.head_dim as usize;
        let old = match self.half {
            KvHalf::Keys => &old.keys,
            KvHalf::Values => &old.values,
        };
        // One row for each token, or the same for all.
        let pairs = |values: &[f32], op: fn(f32, f32) -> f32| -> Vec<f32> {
            old.iter().zip(values.iter().cycle()).map(|(&old, &value)| op(old, value)).collect()
        };
        let new = match &self.op {
            KvOp::Set(values) => pairs(values, |_, value| value),
            KvOp::Add(values) => pairs(values, |old, value| old + value),
            KvOp::Scale(factor) => pairs(&[*factor], |old, factor| old * factor),
            // Bounds that hold already change nothing.
            KvOp::Clamp(low, high) => old.iter().map(|x| x.max(*low).min(*high)).collect(),
            KvOp::ProjectOut(direction) => {
                old.chunks_exact(direction.len()).flat_map(|row| without(row, direction)).collect()
            }
        };
        let bytes = encode_vectors(&new, dtype, dim);
        match decode_vectors(&bytes, dtype, dim).iter().all(|x| x.is_finite()) {
            true => Ok(KvWritten { range: self.range, half: self.half, bytes }),
            false => Err(self.fail(format!("a value becomes larger than {dtype} can hold"))),
        }
    }
}

/// A row without its component along a direction.
fn without(row: &[f32], direction: &[f32]) -> Vec<f32> {
    let dot =
        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum() };
    let part = dot(row, direction) / dot(direction, direction);
    row.iter().zip(direction).map(|(&x, &along)| (f64::from(x) - part * f64::from(along)) as f32).collect()
}
