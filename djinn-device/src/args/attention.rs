//! Arguments of attention over a paged cache, and of what prepares queries, keys and values for it.

use super::ReadBy;
use super::check::{ALIGN, Checks, qkv_width};
use crate::{DType, RopeStyle, Span};

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

impl RopeTable {
    pub(crate) fn check_sizes(&self, checks: Checks) {
        let (rows, half) = (self.rows.into(), self.half.into());
        checks.words("positions", self.positions, &[rows]);
        checks.words("inv_freq", self.inv_freq, &[half]);
        checks.words("out", self.out, &[rows, 2, half]);
    }

    /// Cosine and sine of a position. The angle is rounded to f32 as Hugging Face does.
    #[inline]
    pub fn pair(position: u32, inv_freq: f32, scale: f32) -> (f32, f32) {
        let (sin, cos) = f64::from(position as f32 * inv_freq).sin_cos();
        (cos as f32 * scale, sin as f32 * scale)
    }
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

impl Rope {
    pub(crate) fn check_sizes(&self, checks: Checks) {
        let [heads, dim] = qkv_width(self.heads, self.kv_heads, self.head_dim);
        checks.words("qkv", self.qkv, &[self.rows.into(), heads, dim]);
        checks.words("table", self.table, &[self.rows.into(), self.rotary_dim.into()]);
        assert!(
            self.rotary_dim.is_multiple_of(2) && self.rotary_dim <= self.head_dim,
            "rope: {} rotated elements of {}, which must be pairs",
            self.rotary_dim,
            self.head_dim
        );
    }
}

/// Where the KV cache of one layer lies: pages of `page_tokens` tokens for *all* layers. The layer's part of a page is
/// row-major `[k|v][kv_head][slot][head_dim]` in `dtype`.
///
/// int8 has planes of `[slot][head_dim]` integers, and `[slot]` scales after them, f32 in little-endian order: a number is
/// an integer times its vector's scale. Where a page's tokens are a multiple of 16, planes and scales begin at multiples of
/// 16 bytes; elsewhere scales are aligned to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvPages {
    /// All pages; page `p` starts at `p · page_bytes`.
    pub pages: Span,
    /// One of [`DTYPES`](KvPages::DTYPES).
    pub dtype: DType,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Tokens of a page.
    pub page_tokens: u32,
    /// Bytes of a page before the layer's part: a multiple of the largest power of two, up to 16, that divides a vector's.
    pub offset: u64,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// u32 `[sequences, table_width]`: pages of each sequence in order of position.
    pub page_table: Span,
    /// Columns of the page table.
    pub table_width: u32,
}

impl KvPages {
    /// Types of keys and values.
    pub const DTYPES: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::Int8];

    /// Bytes of the keys, or the values, of one head in a page, scales included.
    pub fn plane_bytes(&self) -> u64 {
        u64::from(self.page_tokens) * self.dtype.vector_bytes(self.head_dim.into())
    }
}

/// Writes keys and values of `qkv[rows, (heads + 2 kv_heads) · head_dim]` into the pages, at each row's
/// sequence and position, rounded to the pages' dtype (to nearest even; int8 as
/// [`encode_vectors`](crate::reference::encode_vectors) says).
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

impl KvWrite {
    pub(crate) fn check_sizes(&self, checks: Checks) {
        checks.pages(&self.kv);
        let [heads, dim] = qkv_width(self.heads, self.kv.kv_heads, self.kv.head_dim);
        checks.words("qkv", self.qkv, &[self.rows.into(), heads, dim]);
        checks.words("row_seq", self.row_seq, &[self.rows.into()]);
        checks.words("positions", self.positions, &[self.rows.into()]);
    }
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
    /// u32 `[rows]`: each row's sequence. Where more than [`batch_invariant_run`](crate::DeviceInfo::batch_invariant_run) rows of one
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
    /// How many positions a row sees, its own the last; at least 1. `None`: all.
    pub window: Option<u32>,
    /// Whether scores are biased by position.
    pub alibi: bool,
    /// Rows.
    pub rows: u32,
    /// Whether no more than [`batch_invariant_run`](crate::DeviceInfo::batch_invariant_run) rows of one sequence are adjacent, so
    /// that a device need not look for such runs. `false` is right for all rows.
    pub short_runs: bool,
    /// The product that reads `out` next, if one does.
    pub read_by: Option<ReadBy>,
}

impl Attention {
    pub(crate) fn check_sizes(&self, checks: Checks) {
        checks.pages(&self.kv);
        let rows = self.rows.into();
        let [heads, dim] = qkv_width(self.heads, self.kv.kv_heads, self.kv.head_dim);
        checks.words("qkv", self.qkv, &[rows, heads, dim]);
        checks.per_row("row_seq", self.row_seq, rows);
        checks.per_row("positions", self.positions, rows);
        checks.words("out", self.out, &[rows, self.heads.into(), dim]);
        assert!(
            self.heads.is_multiple_of(self.kv.kv_heads),
            "attention: {} query heads are no multiple of {} key heads",
            self.heads,
            self.kv.kv_heads
        );
        let window = self.window.unwrap_or(u32::MAX);
        assert!(window > 0, "attention: a window of {window} positions");
    }
}

impl Checks {
    fn pages(self, kv: &KvPages) {
        self.one_of("the cache", kv.dtype, &KvPages::DTYPES);
        let vector = kv.dtype.vector_bytes(kv.head_dim.into());
        let sides = [2, kv.kv_heads.into(), kv.page_tokens.into(), vector];
        let least = self.product("a page", &sides).saturating_add(kv.offset);
        let align = 1 << vector.trailing_zeros().min(ALIGN.ilog2());
        assert!(kv.offset.is_multiple_of(align), "{}: a layer at byte {} of a page", self.0, kv.offset);
        assert!(
            least <= kv.page_bytes && kv.page_bytes.is_multiple_of(ALIGN),
            "{}: a page of {} bytes, no multiple of {ALIGN} from {least} on: {kv:?}",
            self.0,
            kv.page_bytes
        );
        assert!(
            !kv.pages.is_empty() && kv.pages.len().is_multiple_of(kv.page_bytes),
            "{}: the cache has {} bytes, no whole number of pages of {}",
            self.0,
            kv.pages.len(),
            kv.page_bytes
        );
        self.aligned("the cache", kv.pages, ALIGN);
        let row = self.product("the page table", &[kv.table_width.into(), 4]);
        assert!(
            !kv.page_table.is_empty() && kv.page_table.len().is_multiple_of(row),
            "{}: the page table has {} bytes, no whole number of rows of {row}",
            self.0,
            kv.page_table.len()
        );
        self.aligned("the page table", kv.page_table, ALIGN);
    }
}
