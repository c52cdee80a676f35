//! Values: what operations read and write, with shape and lifecycle.

use crate::{DType, RowEncodings};
use serde::Serialize;
use std::ops::Range;

/// Index of a [`Value`] in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct ValueId(pub u32);

/// One dimension of a value's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Dim {
    /// As many as the step has rows (prefill tokens plus decode tokens).
    Rows,
    /// The number of the step's rows with wanted logits.
    LogitRows,
    /// A multiple of the step's rows. A *slot* is a pair of a row and one of its experts.
    Slots(u32),
    /// A constant of the model.
    Fixed(u64),
}

/// Numbers of a step's rows, for the symbolic dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rows {
    /// Rows of the step ([`Dim::Rows`]).
    pub rows: u64,
    /// Rows whose logits are computed ([`Dim::LogitRows`]).
    pub logit_rows: u64,
}

impl Dim {
    /// The dimension's size in a step of `rows`.
    pub const fn resolve(self, rows: Rows) -> u64 {
        match self {
            Dim::Rows => rows.rows,
            Dim::LogitRows => rows.logit_rows,
            Dim::Slots(each) => rows.rows.saturating_mul(each as u64),
            Dim::Fixed(n) => n,
        }
    }
}

/// Which segment holds a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Lifecycle {
    /// Weights: read-only, shared by all sessions.
    Text,
    /// KV cache: one per session, outlives the step, can be swapped.
    Data,
    /// Activations and step inputs: valid during the step.
    Stack,
}

/// A tensor that the graph names.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Value {
    /// Unique in the graph, such as `blocks.3.attn.qkv.weight`. Weight sources know weights by this name.
    pub name: String,
    /// Row-major shape.
    pub shape: Vec<Dim>,
    /// Element type; `None` for data, whose type the run chooses. Blocks decode to another type.
    pub dtype: Option<DType>,
    /// How a weight's rows are stored.
    #[serde(skip_serializing_if = "RowEncodings::is_plain")]
    pub encodings: RowEncodings,
    /// Segment.
    pub lifecycle: Lifecycle,
    /// The decoder block that the value belongs to.
    pub layer: Option<u32>,
}

impl Value {
    /// Rows of the operation that writes this value in a step of `rows`: those of its first dimension, or all of the
    /// step's if that is a constant (a cache).
    pub fn rows(&self, rows: Rows) -> u64 {
        match self.shape.first() {
            Some(Dim::Fixed(_)) | None => rows.rows,
            Some(dim) => dim.resolve(rows),
        }
    }

    /// Elements in a step of `rows`. Saturates instead of overflowing.
    pub fn elements(&self, rows: Rows) -> u64 {
        self.shape.iter().fold(1, |n, dim| n.saturating_mul(dim.resolve(rows)))
    }

    /// Bytes of an activation in a step of `rows`. Saturates instead of overflowing.
    ///
    /// # Panics
    /// If it is a data value.
    pub fn bytes(&self, rows: Rows) -> u64 {
        self.elements(rows).saturating_mul(self.dtype().bytes())
    }

    /// The element type of a weight or an activation.
    ///
    /// # Panics
    /// If it is a data value.
    pub fn dtype(&self) -> DType {
        self.dtype.unwrap_or_else(|| panic!("the type of {} is the run's", self.name))
    }

    /// Bytes of a weight.
    pub fn text_bytes(&self) -> u64 {
        self.stored_bytes(0..self.matrix()[0])
    }

    /// Stored bytes of some rows of a weight. See [`matrix`](Self::matrix).
    ///
    /// # Panics
    /// If it is not a weight, or if blocks do not divide its rows, which the builder has refused.
    pub fn stored_bytes(&self, rows: Range<u64>) -> u64 {
        let bytes = self.encodings.bytes(self.dtype(), self.matrix()[1], rows);
        bytes.unwrap_or_else(|| panic!("{} does not fit its encodings {:?}", self.name, self.encodings))
    }

    /// The bytes by which rows of a weight are cut into tiles. Lossless rows count as plain ones, so tiles of both
    /// have the same rows, and products of the same shapes.
    ///
    /// # Panics
    /// As [`stored_bytes`](Self::stored_bytes).
    pub fn cut_bytes(&self, rows: Range<u64>) -> u64 {
        let bytes = self.encodings.without_lossless().bytes(self.dtype(), self.matrix()[1], rows);
        bytes.unwrap_or_else(|| panic!("{} does not fit its encodings {:?}", self.name, self.encodings))
    }

    /// The constant shape of a weight as `[rows, columns]`; a vector counts as one column.
    ///
    /// # Panics
    /// If the value is no weight or has more than two dimensions.
    pub fn matrix(&self) -> [u64; 2] {
        match (self.lifecycle, self.shape.as_slice()) {
            (Lifecycle::Text, &[Dim::Fixed(rows)]) => [rows, 1],
            (Lifecycle::Text, &[Dim::Fixed(rows), Dim::Fixed(columns)]) => [rows, columns],
            _ => panic!("{} is no weight of one or two dimensions: {:?}", self.name, self.shape),
        }
    }
}
