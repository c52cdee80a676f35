//! Arguments of the operations: typed spans with sizes, checked once before a launch.
//!
//! Activations are row-major f32 `[rows, width]`; token ids, positions and tables are u32; weights are
//! row-major in their own dtype. Every span starts at a multiple of 16 bytes unless said otherwise.

mod attention;
pub(crate) mod check;
mod choice;
mod routing;
#[cfg(test)]
mod tests;

pub use attention::{Attention, KvPages, KvWrite, Rope, RopeTable};
pub use choice::Choose;
pub use routing::{Combine, CopyExpert, CpuExperts, CpuSlots, ExpertLinear, Group, Route};

use crate::{DType, Encoding, Span};
use check::{ALIGN, Checks, qkv_width};

/// A weight: its bytes and their encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    /// Exactly the weight's bytes.
    pub span: Span,
    /// f32, f16 or bf16: the type of plain and of lossless elements.
    pub dtype: DType,
    /// Plain, or for the matrices of [`Embed`], [`Linear`] and [`ExpertLinear`] one of
    /// [`DeviceInfo::encodings`](crate::DeviceInfo::encodings).
    pub encoding: Encoding,
}

impl Weight {
    /// A weight of plain elements.
    pub const fn plain(span: Span, dtype: DType) -> Self {
        Weight { span, dtype, encoding: Encoding::Plain }
    }
}

/// `out[r, :] = table[tokens[r] - first_row, :]`, for the rows with a token in `first_row .. first_row + table_rows`.
/// Other rows of `out` are not touched, so several launches gather from a table in several tiles. Positions are looked
/// up in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Embed {
    /// u32 `[rows]`.
    pub tokens: Span,
    /// `[table_rows, width]`, in either space.
    pub table: Weight,
    /// Vocabulary id of the table's first row.
    pub first_row: u32,
    /// Rows of the table.
    pub table_rows: u32,
    /// Columns.
    pub width: u32,
    /// f32 `[rows, width]`.
    pub out: Span,
    /// Rows.
    pub rows: u32,
}

impl Embed {
    pub(crate) fn check_sizes(&self, checks: Checks) {
        let (rows, width) = (self.rows.into(), self.width.into());
        checks.words("tokens", self.tokens, &[rows]);
        checks.matrix("table", self.table, [self.table_rows.into(), width]);
        checks.words("out", self.out, &[rows, width]);
        let end = self.first_row.checked_add(self.table_rows);
        assert!(end.is_some(), "embed: {} rows from {} overflow", self.table_rows, self.first_row);
    }
}

/// The product that reads an operation's output next. A device may keep the output rounded to the type of its weight as
/// well. What the product gives does not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadBy {
    /// Type of the product's weight.
    pub dtype: DType,
    /// How that weight is stored.
    pub encoding: Encoding,
    /// Nothing else reads the output, and the product with all its rows and tiles is the next call on the stream. All of
    /// these tiles have this type, and are plain, lossless, or in blocks. A device may then keep the output rounded only, and
    /// leave anything in its place.
    pub alone: bool,
}

/// `out[r, :] = x[r, :] / sqrt(mean(x[r, :]²) + eps) · weight`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNorm {
    /// f32 `[rows, width]`.
    pub x: Span,
    /// `[width]`.
    pub weight: Weight,
    /// f32 `[rows, width]`; may be `x` itself.
    pub out: Span,
    /// Added to the mean of squares.
    pub eps: f32,
    /// Columns.
    pub width: u32,
    /// Rows.
    pub rows: u32,
    /// The product that reads `out` next, if one does.
    pub read_by: Option<ReadBy>,
}

impl RmsNorm {
    pub(crate) fn check_sizes(&self, checks: Checks) {
        let (rows, width) = (self.rows.into(), self.width.into());
        checks.words("x", self.x, &[rows, width]);
        checks.weight("weight", self.weight, &[width]);
        checks.words("out", self.out, &[rows, width]);
    }
}

/// `out[r, :] = (x[r, :] - mean) / sqrt(variance + eps) · weight + bias`, with the mean and the biased variance of
/// `x[r, :]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNorm {
    /// f32 `[rows, width]`.
    pub x: Span,
    /// `[width]`.
    pub weight: Weight,
    /// `[width]`, of any dtype.
    pub bias: Weight,
    /// f32 `[rows, width]`; may be `x` itself.
    pub out: Span,
    /// Added to the variance.
    pub eps: f32,
    /// Columns.
    pub width: u32,
    /// Rows.
    pub rows: u32,
}

impl LayerNorm {
    pub(crate) fn check_sizes(&self, checks: Checks) {
        let (rows, width) = (self.rows.into(), self.width.into());
        checks.words("x", self.x, &[rows, width]);
        checks.weight("weight", self.weight, &[width]);
        checks.weight("bias", self.bias, &[width]);
        checks.words("out", self.out, &[rows, width]);
    }
}

/// In `qkv[rows, (heads + 2 kv_heads) · head_dim]`, [`RmsNorm`] of each query head by `query` and of each key head
/// by `key`, in place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadNorm {
    /// f32, in and out.
    pub qkv: Span,
    /// `[head_dim]`.
    pub query: Weight,
    /// `[head_dim]`, of the same dtype.
    pub key: Weight,
    /// Added to the mean of squares.
    pub eps: f32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Rows.
    pub rows: u32,
}

impl HeadNorm {
    pub(crate) fn check_sizes(&self, checks: Checks) {
        let [heads, dim] = qkv_width(self.heads, self.kv_heads, self.head_dim);
        checks.words("qkv", self.qkv, &[self.rows.into(), heads, dim]);
        checks.weight("query", self.query, &[dim]);
        checks.weight("key", self.key, &[dim]);
        let (query, key) = (self.query.dtype.name(), self.key.dtype.name());
        assert!(query == key, "head_norm: weights of {query} and of {key}");
    }
}

/// `out[r, out_column + j] = Σ x[r, i] · weight[j, i] + bias[j]`, for `j` in `0..n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linear {
    /// f32 `[rows, k]`.
    pub x: Span,
    /// `[n, k]`.
    pub weight: Weight,
    /// `[n]`.
    pub bias: Option<Weight>,
    /// f32 `[rows, out_width]`; only `n` columns from `out_column` on are written.
    pub out: Span,
    /// Columns of `x`.
    pub k: u32,
    /// Rows of the weight.
    pub n: u32,
    /// Columns of `out`.
    pub out_width: u32,
    /// First column written.
    pub out_column: u32,
    /// Rows.
    pub rows: u32,
}

impl Linear {
    pub(crate) fn check_sizes(&self, checks: Checks) {
        let (rows, k, n) = (self.rows.into(), self.k.into(), self.n.into());
        checks.words("x", self.x, &[rows, k]);
        checks.matrix("weight", self.weight, [n, k]);
        checks.words("out", self.out, &[rows, self.out_width.into()]);
        if let Some(bias) = self.bias {
            checks.weight("bias", bias, &[n]);
        }
        assert!(
            u64::from(self.out_column) + n <= self.out_width.into(),
            "linear: {n} columns from {} do not fit {}",
            self.out_column,
            self.out_width
        );
    }
}

/// `out[r, i] = silu(x[r, i]) · x[r, width + i]`, for `x[rows, 2 width]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiluMul {
    /// f32 `[rows, 2 width]`.
    pub x: Span,
    /// f32 `[rows, width]`.
    pub out: Span,
    /// Columns of `out`.
    pub width: u32,
    /// Rows.
    pub rows: u32,
    /// The product that reads `out` next, if one does.
    pub read_by: Option<ReadBy>,
}

impl SiluMul {
    pub(crate) fn check_sizes(&self, checks: Checks) {
        let (rows, width) = (self.rows.into(), self.width.into());
        checks.words("x", self.x, &[rows, 2, width]);
        checks.words("out", self.out, &[rows, width]);
    }
}

/// `out = gelu(x)`, element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gelu {
    /// f32 `[len]`.
    pub x: Span,
    /// f32 `[len]`; may be `x` itself.
    pub out: Span,
    /// Which form.
    pub form: crate::GeluForm,
    /// Elements.
    pub len: u64,
}

impl Gelu {
    pub(crate) fn check_sizes(&self, checks: Checks) {
        checks.words("x", self.x, &[self.len]);
        checks.words("out", self.out, &[self.len]);
    }
}

/// `out = a + b`, element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Add {
    /// f32 `[len]`.
    pub a: Span,
    /// f32 `[len]`.
    pub b: Span,
    /// f32 `[len]`; may be `a` or `b` itself.
    pub out: Span,
    /// Elements.
    pub len: u64,
}

impl Add {
    pub(crate) fn check_sizes(&self, checks: Checks) {
        for (name, span) in [("a", self.a), ("b", self.b), ("out", self.out)] {
            checks.words(name, span, &[self.len]);
        }
    }
}

/// `out[i, :] = x[indices[i], :]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelectRows {
    /// f32 `[_, width]`, or any words. This and `indices` may lie in host memory.
    pub x: Span,
    /// u32 `[rows]`, each a row of `x`.
    pub indices: Span,
    /// f32 `[rows, width]`.
    pub out: Span,
    /// Columns.
    pub width: u32,
    /// Rows of `out`.
    pub rows: u32,
}

impl SelectRows {
    pub(crate) fn check_sizes(&self, checks: Checks) {
        let (rows, width) = (self.rows.into(), self.width.into());
        let row = checks.product("a row", &[width, 4]);
        assert!(
            !self.x.is_empty() && self.x.len().is_multiple_of(row),
            "select_rows: x has {} bytes, no whole number of rows of {row}",
            self.x.len()
        );
        checks.aligned("x", self.x, ALIGN);
        checks.words("indices", self.indices, &[rows]);
        checks.words("out", self.out, &[rows, width]);
    }
}

/// An intervention on some columns of some rows. With `y` those columns of row `indices[i]`:
/// `y = clamp(scale·y + along·(y · direction)·direction + add[i, :], low, high)`.
///
/// A `scale` of 0 sets `y` to `add[i, :]` whatever it was, and needs an `along` of 0. With an `along` of 0 the direction
/// is not read. An addend of 0 and bounds that are not passed leave each bit as it is. NaN passes no bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EditRows {
    /// f32 `[_, x_width]`; changed in place.
    pub x: Span,
    /// u32 `[rows]`, distinct rows of `x`. This, `direction` and `add` may lie in host memory.
    pub indices: Span,
    /// f32 `[width]`.
    pub direction: Span,
    /// f32 `[add_rows, width]`.
    pub add: Span,
    /// What `y` is multiplied by.
    pub scale: f32,
    /// How much of `y`'s part along the direction is added; -1 takes it out if the direction has length 1.
    pub along: f32,
    /// The least that an element may be.
    pub low: f32,
    /// The most.
    pub high: f32,
    /// The first column.
    pub column: u32,
    /// Columns.
    pub width: u32,
    /// Columns of `x`.
    pub x_width: u32,
    /// Rows.
    pub rows: u32,
    /// As many as rows, or 1: then all rows have the same addend.
    pub add_rows: u32,
}

impl EditRows {
    pub(crate) fn check_sizes(&self, checks: Checks) {
        let (rows, width, x_width) = (self.rows.into(), self.width.into(), self.x_width.into());
        let row = checks.product("a row", &[x_width, 4]);
        assert!(
            !self.x.is_empty() && self.x.len().is_multiple_of(row),
            "edit_rows: x has {} bytes, no whole number of rows of {row}",
            self.x.len()
        );
        checks.aligned("x", self.x, ALIGN);
        checks.words("indices", self.indices, &[rows]);
        checks.words("direction", self.direction, &[width]);
        assert!(
            self.add_rows == 1 || self.add_rows == self.rows,
            "edit_rows: {} addends for {rows} rows",
            self.add_rows
        );
        checks.words("add", self.add, &[self.add_rows.into(), width]);
        assert!(
            u64::from(self.column) + width <= x_width,
            "edit_rows: columns {} to {} of {x_width}",
            self.column,
            u64::from(self.column) + width
        );
        assert!(
            self.scale != 0.0 || self.along == 0.0,
            "edit_rows: what is set has no part along a direction, and {} of it is asked for",
            self.along
        );
        assert!(self.low <= self.high, "edit_rows: bounds {} and {}", self.low, self.high);
    }

    /// What one element becomes, given the dot product of `y` with the direction.
    #[inline(always)]
    pub fn element(&self, y: f32, dot: f32, direction: f32, add: f32) -> f32 {
        let mut y = if self.scale == 0.0 { add } else { y * self.scale };
        if self.along != 0.0 {
            y += self.along * dot * direction;
        }
        if self.scale != 0.0 && add != 0.0 {
            y += add;
        }
        if y < self.low {
            self.low
        } else if y > self.high {
            self.high
        } else {
            y
        }
    }
}

/// `out = checksum(src)`: the wrapping sum, over the 32-bit little-endian words `w` of `src` (the last one
/// padded with zeros), of `mix(w ^ mix(index))`, where `mix` is SplitMix64's finaliser; 8 bytes,
/// little-endian. The order of summation does not matter, so any device may split it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum {
    /// Any bytes.
    pub src: Span,
    /// u64, one.
    pub out: Span,
}

impl Checksum {
    pub(crate) fn check_sizes(&self, checks: Checks) {
        checks.aligned("src", self.src, ALIGN);
        checks.holds("out", self.out, &[1], 8);
    }
}

impl Checksum {
    /// SplitMix64's finaliser (Steele, Lea and Flood, OOPSLA 2014; Stafford's variant 13 of the constants).
    #[inline(always)]
    pub const fn mix(mut z: u64) -> u64 {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// What [`Checksum`] gives for some bytes.
pub fn checksum(bytes: &[u8]) -> u64 {
    let mut sum = 0_u64;
    for (index, chunk) in bytes.chunks(4).enumerate() {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        let word = u64::from(u32::from_le_bytes(word));
        sum = sum.wrapping_add(Checksum::mix(word ^ Checksum::mix(index as u64)));
    }
    sum
}

impl Checks {
    /// Plain elements.
    fn weight(self, name: &str, weight: Weight, sizes: &[u64]) {
        self.dtype(name, weight.dtype);
        assert!(weight.encoding == Encoding::Plain, "{}: {name} cannot be {}", self.0, weight.encoding);
        self.holds(name, weight.span, sizes, weight.dtype.bytes());
    }

    /// Rows of any encoding.
    fn matrix(self, name: &str, weight: Weight, sizes: [u64; 2]) {
        if weight.encoding == Encoding::Plain {
            return self.weight(name, weight, &sizes);
        }
        self.product(name, &sizes);
        let layout = weight.encoding.tile(weight.dtype, sizes[0], sizes[1]);
        let want = layout.map(|layout| layout.bytes);
        assert!(
            want == Some(weight.span.len()),
            "{}: {name} has {} bytes instead of {want:?}: {sizes:?} of {}",
            self.0,
            weight.span.len(),
            weight.encoding
        );
        self.aligned(name, weight.span, ALIGN);
    }
}
