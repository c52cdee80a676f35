//! Checks of arguments. A failure is a bug of the caller, so it panics, with the operation and the sizes.

use crate::{DType, Span};

/// Every span starts at a multiple of this.
pub(super) const ALIGN: u64 = 16;

/// The checks of one operation, named in messages.
#[derive(Clone, Copy)]
pub(crate) struct Checks(pub(crate) &'static str);

impl Checks {
    /// The product of sizes; none may be zero.
    pub(super) fn product(self, name: &str, sizes: &[u64]) -> u64 {
        assert!(sizes.iter().all(|&n| n > 0), "{}: {name} has an empty side: {sizes:?}", self.0);
        let product = sizes.iter().try_fold(1_u64, |a, &b| a.checked_mul(b));
        product.unwrap_or_else(|| panic!("{}: the size of {name} overflows: {sizes:?}", self.0))
    }

    /// `span` is aligned and holds exactly the product of `sizes`, in elements of `bytes` bytes.
    pub(super) fn holds(self, name: &str, span: Span, sizes: &[u64], bytes: u64) {
        self.counts(name, span, sizes, bytes);
        self.aligned(name, span, ALIGN);
    }

    /// `span` holds exactly the product of `sizes`, in elements of `bytes` bytes.
    pub(super) fn counts(self, name: &str, span: Span, sizes: &[u64], bytes: u64) {
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
    pub(super) fn per_row(self, name: &str, span: Span, rows: u64) {
        self.counts(name, span, &[rows], 4);
        self.aligned(name, span, 4);
    }

    /// As [`holds`](Checks::holds), for f32 and u32.
    pub(super) fn words(self, name: &str, span: Span, sizes: &[u64]) {
        self.holds(name, span, sizes, 4);
    }

    /// A type of weights.
    pub(super) fn dtype(self, name: &str, dtype: DType) {
        self.one_of(name, dtype, &[DType::F32, DType::F16, DType::BF16]);
    }

    pub(super) fn one_of(self, name: &str, dtype: DType, types: &[DType]) {
        assert!(types.contains(&dtype), "{}: {name} cannot be {}", self.0, dtype.name());
    }

    pub(super) fn aligned(self, name: &str, span: Span, align: u64) {
        assert!(
            span.offset().is_multiple_of(align),
            "{}: {name} starts at byte {}, no multiple of {align}",
            self.0,
            span.offset()
        );
    }
}

/// Elements of a row of queries, keys and values.
pub(super) fn qkv_width(heads: u32, kv_heads: u32, head_dim: u32) -> [u64; 2] {
    [u64::from(heads) + 2 * u64::from(kv_heads), head_dim.into()]
}
