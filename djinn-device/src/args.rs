//! Arguments of the operations: typed spans with sizes, checked once before a launch.
//!
//! Activations are row-major f32 `[rows, width]`; token ids, positions and tables are u32; weights are
//! row-major in their own dtype. Every span starts at a multiple of 16 bytes unless said otherwise.

mod check;
mod routing;

pub use routing::{Combine, CopyExpert, ExpertLinear, Group, Route};

use crate::{DType, RopeStyle, Span};

/// A weight: bytes with their element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    /// Exactly the weight's bytes.
    pub span: Span,
    /// f32, f16 or bf16.
    pub dtype: DType,
}

/// `out[r, :] = table[tokens[r] - first_row, :]`, for the rows whose token lies in
/// `first_row .. first_row + table_rows`; other rows of `out` are left alone, so that a table in several
/// tiles is gathered by several launches. Positions are looked up in the same way.
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

/// `out[r, i] = cos(positions[r] · inv_freq[i]) · scale`, `out[r, half + i] = sin(…) · scale`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeTable {
    /// u32 `[rows]`.
    pub positions: Span,
    /// f32 `[half]`.
    pub inv_freq: Span,
    /// f32 `[rows, 2 half]`.
    pub out: Span,
    /// Frequencies.
    pub half: u32,
    /// Attention factor.
    pub scale: f32,
    /// Rows.
    pub rows: u32,
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

/// Rotates, in place, the first `rotary_dim` elements of each query and key head of
/// `qkv[rows, (heads + 2 kv_heads) · head_dim]`: `(a, b) -> (a cos - b sin, b cos + a sin)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rope {
    /// f32, in and out.
    pub qkv: Span,
    /// f32 `[rows, rotary_dim]`, of [`RopeTable`].
    pub table: Span,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Leading elements of a head that are rotated.
    pub rotary_dim: u32,
    /// Pairing.
    pub style: RopeStyle,
    /// Rows.
    pub rows: u32,
}

/// Where the KV cache of one layer lies: pages of `page_tokens` tokens for *all* layers. Within a page,
/// row-major `[layer][k|v][kv_head][slot][head_dim]` in `dtype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvPages {
    /// All pages; page `p` starts at `p · page_bytes`.
    pub pages: Span,
    /// f32, f16 or bf16.
    pub dtype: DType,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Tokens of a page.
    pub page_tokens: u32,
    /// The layer.
    pub layer: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// u32 `[sequences, table_width]`: pages of each sequence in order of position.
    pub page_table: Span,
    /// Columns of the page table.
    pub table_width: u32,
}

/// Writes keys and values of `qkv[rows, (heads + 2 kv_heads) · head_dim]` into the pages, at each row's
/// sequence and position, rounded to the pages' dtype (to nearest even).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvWrite {
    /// f32.
    pub qkv: Span,
    /// Destination.
    pub kv: KvPages,
    /// u32 `[rows]`: each row's sequence.
    pub row_seq: Span,
    /// u32 `[rows]`: each row's position in its sequence.
    pub positions: Span,
    /// Query heads.
    pub heads: u32,
    /// Rows.
    pub rows: u32,
}

/// `out[r, h, :] = softmax((q[r, h, :] · K + bias) · scale) · V` over positions `0..=p` of the row's sequence, where
/// `p = positions[r]`, keys and values read from the pages (the row's own included: [`KvWrite`] ran before).
///
/// With a window, over positions `max(0, p + 1 - window)..=p`. What no row sees is not read: its pages may hold
/// anything, and so may their entries of the page table.
///
/// The bias is 0, or with `alibi` that of [`Op::Attention`](djinn_srg::Op::Attention), whose slopes follow from
/// `heads`. A device may take the same number from all scores of a row, which changes no softmax.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// f32 `[rows, (heads + 2 kv_heads) · head_dim]`; only the queries are read.
    pub qkv: Span,
    /// Keys and values.
    pub kv: KvPages,
    /// u32 `[rows]`: each row's sequence. Where more than [`run_alone`](crate::DeviceInfo::run_alone) rows of one
    /// sequence are adjacent, their positions ascend by one. From here on aligned to 4 bytes, as positions are.
    pub row_seq: Span,
    /// u32 `[rows]`: each row's position in its sequence.
    pub positions: Span,
    /// f32 `[rows, heads · head_dim]`.
    pub out: Span,
    /// Query heads.
    pub heads: u32,
    /// Factor on the scores.
    pub scale: f32,
    /// Positions that a row sees, its own the last; at least 1, and all without.
    pub window: Option<u32>,
    /// Whether scores are biased by position.
    pub alibi: bool,
    /// Rows.
    pub rows: u32,
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
}

/// `out = gelu(x)`, element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gelu {
    /// f32 `[len]`.
    pub x: Span,
    /// f32 `[len]`; may be `x` itself.
    pub out: Span,
    /// Which form.
    pub form: crate::Gelu,
    /// Elements.
    pub len: u64,
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

/// `out[i, :] = x[indices[i], :]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelectRows {
    /// f32 `[_, width]`.
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

/// `out[r]` is the first index of the greatest element of `x[r, :]`, i.e. the greedy choice from logits. A NaN is
/// never the greatest: where nothing is greater than -∞ it is the first index that is no NaN, or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argmax {
    /// f32 `[rows, width]`.
    pub x: Span,
    /// u32 `[rows]`.
    pub out: Span,
    /// Columns.
    pub width: u32,
    /// Rows.
    pub rows: u32,
}

/// Page `dst_pages[i]` of `dst` becomes page `src_pages[i]` of `src`, for `i` in `0..count`: a gather of scattered
/// pages into a run, a scatter of a run, or both. Pages that are not named are left alone. A page past its span's
/// last is the caller's to rule out (CPU devices panic, others touch memory that is not theirs), and so is a page
/// written twice in one copy, which then holds either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyPages {
    /// Whole pages, in either space.
    pub src: Span,
    /// Whole pages, in either space; shares no byte with `src`.
    pub dst: Span,
    /// u32 `[count]`; without it, page `i` is read from page `i`, and `src` holds at least `count` pages.
    pub src_pages: Option<Span>,
    /// u32 `[count]`, all different; without it, page `i` is written to page `i`, and `dst` holds at least `count`.
    pub dst_pages: Option<Span>,
    /// Bytes of a page, a multiple of 16.
    pub page_bytes: u64,
    /// Pages copied.
    pub count: u32,
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
