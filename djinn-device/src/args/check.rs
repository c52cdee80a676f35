//! Checks of arguments. A failure is a bug of the caller, so it panics, with the operation and the sizes.

mod routing;

use super::{
    Add, Argmax, Attention, Checksum, CopyPages, Embed, Gelu, HeadNorm, KvPages, KvWrite, LayerNorm, Linear,
    RmsNorm, Rope, RopeTable, SelectRows, SiluMul, Weight,
};
use crate::{DType, Span};

/// Every span starts at a multiple of this.
const ALIGN: u64 = 16;

/// The checks of one operation, named in messages.
#[derive(Clone, Copy)]
struct Op(&'static str);

impl Op {
    /// The product of sizes, none of which may be zero.
    fn product(self, name: &str, sizes: &[u64]) -> u64 {
        assert!(sizes.iter().all(|&n| n > 0), "{}: {name} has an empty side: {sizes:?}", self.0);
        let product = sizes.iter().try_fold(1_u64, |a, &b| a.checked_mul(b));
        product.unwrap_or_else(|| panic!("{}: the size of {name} overflows: {sizes:?}", self.0))
    }

    /// `span` is aligned and holds exactly the product of `sizes`, in elements of `bytes` bytes.
    fn holds(self, name: &str, span: Span, sizes: &[u64], bytes: u64) {
        self.counts(name, span, sizes, bytes);
        self.aligned(name, span, ALIGN);
    }

    /// `span` holds exactly the product of `sizes`, in elements of `bytes` bytes.
    fn counts(self, name: &str, span: Span, sizes: &[u64], bytes: u64) {
        let elements = self.product(name, sizes);
        let want = self.product(name, &[elements, bytes]);
        assert!(
            span.len() == want,
            "{}: {name} has {} bytes instead of {want}: {sizes:?} of {bytes} bytes each",
            self.0,
            span.len()
        );
    }

    /// A number for each row; may begin at any row of a step.
    fn per_row(self, name: &str, span: Span, rows: u64) {
        self.counts(name, span, &[rows], 4);
        self.aligned(name, span, 4);
    }

    /// As [`holds`](Op::holds), for f32 and u32.
    fn words(self, name: &str, span: Span, sizes: &[u64]) {
        self.holds(name, span, sizes, 4);
    }

    fn weight(self, name: &str, weight: Weight, sizes: &[u64]) {
        self.dtype(name, weight.dtype);
        self.holds(name, weight.span, sizes, weight.dtype.bytes());
    }

    fn dtype(self, name: &str, dtype: DType) {
        let floats = matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
        assert!(floats, "{}: {name} cannot be {}", self.0, dtype.name());
    }

    fn aligned(self, name: &str, span: Span, align: u64) {
        assert!(
            span.offset().is_multiple_of(align),
            "{}: {name} starts at byte {}, no multiple of {align}",
            self.0,
            span.offset()
        );
    }

    fn disjoint(self, out: Span, inputs: &[(&str, Span)]) {
        for &(name, input) in inputs {
            assert!(!out.overlaps(input), "{}: the output {out:?} overlaps {name} {input:?}", self.0);
        }
    }

    /// As [`disjoint`](Op::disjoint), but an input may be the output itself.
    fn disjoint_or_same(self, out: Span, inputs: &[(&str, Span)]) {
        for &(name, input) in inputs {
            let fits = input == out || !out.overlaps(input);
            assert!(fits, "{}: the output {out:?} overlaps part of {name} {input:?}", self.0);
        }
    }

    fn pages(self, kv: &KvPages) {
        self.dtype("the cache", kv.dtype);
        let planes = (u64::from(kv.layer) + 1) * 2;
        let sides = [planes, kv.kv_heads.into(), kv.page_tokens.into(), kv.head_dim.into(), kv.dtype.bytes()];
        let least = self.product("a page", &sides);
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

/// Elements of a row of queries, keys and values.
fn qkv_width(heads: u32, kv_heads: u32, head_dim: u32) -> [u64; 2] {
    [u64::from(heads) + 2 * u64::from(kv_heads), head_dim.into()]
}

impl Embed {
    /// Checks sizes, alignment and overlap.
    ///
    /// # Panics
    /// If one of them is wrong.
    pub fn check(&self) {
        let op = Op("embed");
        let (rows, width) = (self.rows.into(), self.width.into());
        op.words("tokens", self.tokens, &[rows]);
        op.weight("table", self.table, &[self.table_rows.into(), width]);
        op.words("out", self.out, &[rows, width]);
        op.disjoint(self.out, &[("tokens", self.tokens), ("table", self.table.span)]);
        let end = self.first_row.checked_add(self.table_rows);
        assert!(end.is_some(), "embed: {} rows from {} overflow", self.table_rows, self.first_row);
    }
}

impl RopeTable {
    /// Checks sizes, alignment and overlap.
    ///
    /// # Panics
    /// If one of them is wrong.
    pub fn check(&self) {
        let op = Op("rope_table");
        let (rows, half) = (self.rows.into(), self.half.into());
        op.words("positions", self.positions, &[rows]);
        op.words("inv_freq", self.inv_freq, &[half]);
        op.words("out", self.out, &[rows, 2, half]);
        op.disjoint(self.out, &[("positions", self.positions), ("inv_freq", self.inv_freq)]);
    }
}

impl RmsNorm {
    /// Checks sizes, alignment and overlap.
    ///
    /// # Panics
    /// If one of them is wrong.
    pub fn check(&self) {
        let op = Op("rms_norm");
        let (rows, width) = (self.rows.into(), self.width.into());
        op.words("x", self.x, &[rows, width]);
        op.weight("weight", self.weight, &[width]);
        op.words("out", self.out, &[rows, width]);
        op.disjoint_or_same(self.out, &[("x", self.x)]);
        op.disjoint(self.out, &[("weight", self.weight.span)]);
    }
}

impl LayerNorm {
    /// Checks sizes, alignment and overlap.
    ///
    /// # Panics
    /// If one of them is wrong.
    pub fn check(&self) {
        let op = Op("layer_norm");
        let (rows, width) = (self.rows.into(), self.width.into());
        op.words("x", self.x, &[rows, width]);
        op.weight("weight", self.weight, &[width]);
        op.weight("bias", self.bias, &[width]);
        op.words("out", self.out, &[rows, width]);
        op.disjoint_or_same(self.out, &[("x", self.x)]);
        op.disjoint(self.out, &[("weight", self.weight.span), ("bias", self.bias.span)]);
    }
}

impl HeadNorm {
    /// Checks sizes, alignment and overlap.
    ///
    /// # Panics
    /// If one of them is wrong.
    pub fn check(&self) {
        let op = Op("head_norm");
        let [heads, dim] = qkv_width(self.heads, self.kv_heads, self.head_dim);
        op.words("qkv", self.qkv, &[self.rows.into(), heads, dim]);
        op.weight("query", self.query, &[dim]);
        op.weight("key", self.key, &[dim]);
        op.disjoint(self.qkv, &[("query", self.query.span), ("key", self.key.span)]);
        let (query, key) = (self.query.dtype.name(), self.key.dtype.name());
        assert!(query == key, "head_norm: weights of {query} and of {key}");
    }
}

impl Linear {
    /// Checks sizes, alignment and overlap.
    ///
    /// # Panics
    /// If one of them is wrong.
    pub fn check(&self) {
        let op = Op("linear");
        let (rows, k, n) = (self.rows.into(), self.k.into(), self.n.into());
        op.words("x", self.x, &[rows, k]);
        op.weight("weight", self.weight, &[n, k]);
        op.words("out", self.out, &[rows, self.out_width.into()]);
        op.disjoint(self.out, &[("x", self.x), ("weight", self.weight.span)]);
        if let Some(bias) = self.bias {
            op.weight("bias", bias, &[n]);
            op.disjoint(self.out, &[("bias", bias.span)]);
        }
        assert!(
            u64::from(self.out_column) + n <= self.out_width.into(),
            "linear: {n} columns from {} do not fit {}",
            self.out_column,
            self.out_width
        );
    }
}

impl Rope {
    /// Checks sizes, alignment and overlap.
    ///
    /// # Panics
    /// If one of them is wrong.
    pub fn check(&self) {
        let op = Op("rope");
        let [heads, dim] = qkv_width(self.heads, self.kv_heads, self.head_dim);
        op.words("qkv", self.qkv, &[self.rows.into(), heads, dim]);
        op.words("table", self.table, &[self.rows.into(), self.rotary_dim.into()]);
        op.disjoint(self.qkv, &[("table", self.table)]);
        assert!(
            self.rotary_dim.is_multiple_of(2) && self.rotary_dim <= self.head_dim,
            "rope: {} rotated elements of {}, which must be pairs",
            self.rotary_dim,
            self.head_dim
        );
    }
}

impl KvWrite {
    /// Checks sizes, alignment and overlap.
    ///
    /// # Panics
    /// If one of them is wrong.
    pub fn check(&self) {
        let op = Op("kv_write");
        op.pages(&self.kv);
        let [heads, dim] = qkv_width(self.heads, self.kv.kv_heads, self.kv.head_dim);
        op.words("qkv", self.qkv, &[self.rows.into(), heads, dim]);
        op.words("row_seq", self.row_seq, &[self.rows.into()]);
        op.words("positions", self.positions, &[self.rows.into()]);
        let inputs = [
            ("qkv", self.qkv),
            ("row_seq", self.row_seq),
            ("positions", self.positions),
            ("the page table", self.kv.page_table),
        ];
        op.disjoint(self.kv.pages, &inputs);
    }
}

impl Attention {
    /// Checks sizes, alignment and overlap.
    ///
    /// # Panics
    /// If one of them is wrong.
    pub fn check(&self) {
        let op = Op("attention");
        op.pages(&self.kv);
        let rows = self.rows.into();
        let [heads, dim] = qkv_width(self.heads, self.kv.kv_heads, self.kv.head_dim);
        op.words("qkv", self.qkv, &[rows, heads, dim]);
        op.per_row("row_seq", self.row_seq, rows);
        op.per_row("positions", self.positions, rows);
        op.words("out", self.out, &[rows, self.heads.into(), dim]);
        assert!(
            self.heads.is_multiple_of(self.kv.kv_heads),
            "attention: {} query heads are no multiple of {} key heads",
            self.heads,
            self.kv.kv_heads
        );
        let window = self.window.unwrap_or(u32::MAX);
        assert!(window > 0, "attention: a window of {window} positions");
        let inputs = [
            ("qkv", self.qkv),
            ("row_seq", self.row_seq),
            ("positions", self.positions),
            ("the page table", self.kv.page_table),
            ("the cache", self.kv.pages),
        ];
        op.disjoint(self.out, &inputs);
    }
}

impl SiluMul {
    /// Checks sizes, alignment and overlap.
    ///
    /// # Panics
    /// If one of them is wrong.
    pub fn check(&self) {
        let op = Op("silu_mul");
        let (rows, width) = (self.rows.into(), self.width.into());
        op.words("x", self.x, &[rows, 2, width]);
        op.words("out", self.out, &[rows, width]);
        op.disjoint(self.out, &[("x", self.x)]);
    }
}

impl Gelu {
    /// Checks sizes, alignment and overlap.
    ///
    /// # Panics
    /// If one of them is wrong.
    pub fn check(&self) {
        let op = Op("gelu");
        op.words("x", self.x, &[self.len]);
        op.words("out", self.out, &[self.len]);
        op.disjoint_or_same(self.out, &[("x", self.x)]);
    }
}

impl Add {
    /// Checks sizes, alignment and overlap.
    ///
    /// # Panics
    /// If one of them is wrong.
    pub fn check(&self) {
        let op = Op("add");
        for (name, span) in [("a", self.a), ("b", self.b), ("out", self.out)] {
            op.words(name, span, &[self.len]);
        }
        op.disjoint_or_same(self.out, &[("a", self.a), ("b", self.b)]);
    }
}

impl SelectRows {
    /// Checks sizes, alignment and overlap.
    ///
    /// # Panics
    /// If one of them is wrong.
    pub fn check(&self) {
        let op = Op("select_rows");
        let (rows, width) = (self.rows.into(), self.width.into());
        let row = op.product("a row", &[width, 4]);
        assert!(
            !self.x.is_empty() && self.x.len().is_multiple_of(row),
            "select_rows: x has {} bytes, no whole number of rows of {row}",
            self.x.len()
        );
        op.aligned("x", self.x, ALIGN);
        op.words("indices", self.indices, &[rows]);
        op.words("out", self.out, &[rows, width]);
        op.disjoint(self.out, &[("x", self.x), ("indices", self.indices)]);
    }
}

impl Argmax {
    /// Checks sizes, alignment and overlap.
    ///
    /// # Panics
    /// If one of them is wrong.
    pub fn check(&self) {
        let op = Op("argmax");
        op.words("x", self.x, &[self.rows.into(), self.width.into()]);
        op.words("out", self.out, &[self.rows.into()]);
        op.disjoint(self.out, &[("x", self.x)]);
    }
}

impl CopyPages {
    /// Checks sizes, alignment and overlap; not the numbers of pages in the lists.
    ///
    /// # Panics
    /// If one of them is wrong.
    pub fn check(&self) {
        let op = Op("copy_pages");
        assert!(
            self.page_bytes > 0 && self.page_bytes.is_multiple_of(ALIGN),
            "copy_pages: a page of {} bytes, no multiple of {ALIGN}",
            self.page_bytes
        );
        let run = op.product("the copy", &[self.count.into(), self.page_bytes]);
        for (name, span, list) in [("src", self.src, self.src_pages), ("dst", self.dst, self.dst_pages)] {
            let least = if list.is_some() { self.page_bytes } else { run };
            assert!(
                span.len() >= least && span.len().is_multiple_of(self.page_bytes),
                "copy_pages: {name} has {} bytes, no whole number of pages of {} from {least} on",
                span.len(),
                self.page_bytes
            );
            op.aligned(name, span, ALIGN);
        }
        op.disjoint(self.dst, &[("src", self.src)]);
        for (name, list) in [("src_pages", self.src_pages), ("dst_pages", self.dst_pages)] {
            if let Some(list) = list {
                op.words(name, list, &[self.count.into()]);
                op.disjoint(self.dst, &[(name, list)]);
            }
        }
    }
}

impl Checksum {
    /// Checks sizes, alignment and overlap.
    ///
    /// # Panics
    /// If one of them is wrong.
    pub fn check(&self) {
        let op = Op("checksum");
        op.aligned("src", self.src, ALIGN);
        op.holds("out", self.out, &[1], 8);
        op.disjoint(self.out, &[("src", self.src)]);
    }
}

#[cfg(test)]
mod tests;
