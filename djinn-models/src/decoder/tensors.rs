//! The tensors of a checkpoint for each weight of the graph, by the family's names.

use super::Decoder;
use crate::weights::{Part, RowOrder};

/// A checkpoint's names. A module's name stands for `NAME.weight` and `NAME.bias`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tensors {
    /// Precedes every name except the head's: `model.`.
    pub(crate) prefix: &'static str,
    /// Precedes a block's number: `layers.`.
    pub(crate) blocks: &'static str,
    pub(crate) embedding: &'static str,
    /// The table of learned positions.
    pub(crate) positions: &'static str,
    pub(crate) final_norm: &'static str,
    /// Without the prefix.
    pub(crate) head: &'static str,
    /// In a block: the norms before attention and before the MLP.
    pub(crate) norms: [&'static str; 2],
    pub(crate) qkv: Qkv,
    /// Norms of query heads and of key heads.
    pub(crate) head_norms: [&'static str; 2],
    pub(crate) out: &'static str,
    /// Gate, up and down. The gate's is unused if there is none.
    pub(crate) mlp: [&'static str; 3],
    pub(crate) router: &'static str,
    pub(crate) experts: Experts,
    /// Whether a product's matrix is stored `[inputs, outputs]` (Conv1D).
    pub(crate) transposed: bool,
    /// In each block: redundant tensors.
    pub(crate) ignored: &'static [&'static str],
    /// Tensors outside the blocks that the configuration has read already.
    pub(crate) read_before: &'static [&'static str],
}

/// How queries, keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Qkv {
    Split([&'static str; 3]),
    /// Three matrices; rows `2i` and `2i + 1` of a query or key head are a rotary pair (GGUF's Llama).
    SplitInPairs([&'static str; 3]),
    Fused(&'static str, Fused),
}

/// The order of rows in a fused matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fused {
    /// All queries, all keys, all values.
    InTurn,
    /// For each key head its queries, its key, its value.
    Grouped,
}

/// How the matrices of experts are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Experts {
    /// A tensor for each expert, with its number after the name: `experts.3.w1`.
    Apart { module: &'static str, names: [&'static str; 3] },
    /// One tensor `[experts, rows, columns]` for all experts (GGUF).
    Stacked([&'static str; 3]),
}

/// A matrix with its bias, or only one of them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Weight,
    Bias,
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Kind::Weight => "weight",
            Kind::Bias => "bias",
        }
    }
}

impl Tensors {
    /// Names that a family does not have are empty.
    pub(crate) const NONE: Tensors = Tensors {
        prefix: "",
        blocks: "",
        embedding: "",
        positions: "",
        final_norm: "",
        head: "lm_head",
        norms: ["", ""],
        qkv: Qkv::Split(["", "", ""]),
        head_norms: ["", ""],
        out: "",
        mlp: ["", "", ""],
        router: "",
        experts: Experts::Stacked(["", "", ""]),
        transposed: false,
        ignored: &[],
        read_before: &[],
    };

    /// Drops the prefix if the checkpoint's names do not have it: a decoder may be stored without its surrounding
    /// model.
    pub(crate) fn fit_prefix(&mut self, has: impl Fn(&str) -> bool) {
        let embedding = self.top(self.embedding, Kind::Weight);
        if !has(&embedding) && has(&embedding[self.prefix.len()..]) {
            self.prefix = "";
        }
    }

    pub(super) fn module(&self, module: &str) -> String {
        format!("{}{module}", self.prefix)
    }

    pub(super) fn block(&self, block: u64) -> String {
        format!("{}{}{block}", self.prefix, self.blocks)
    }

    /// The name of a weight or bias outside the blocks.
    pub(crate) fn top(&self, module: &str, kind: Kind) -> String {
        format!("{}.{}", self.module(module), kind.name())
    }

    pub(crate) fn head(&self, kind: Kind) -> String {
        format!("{}.{}", self.head, kind.name())
    }

    pub(crate) fn in_block(&self, block: u64, module: &str, kind: Kind) -> String {
        format!("{}.{module}.{}", self.block(block), kind.name())
    }

    /// Optional tensors of the checkpoint that are not read.
    pub(crate) fn ignored(&self, layers: u64) -> impl Iterator<Item = String> {
        let of_block =
            move |block| self.ignored.iter().map(move |name| format!("{}.{name}", self.block(block)));
        let before = self.read_before.iter().map(|name| (*name).to_owned());
        (0..layers).flat_map(of_block).chain(before)
    }
}

impl Decoder {
    /// A product's matrix `[rows, columns]` or bias, from one tensor.
    pub(super) fn product(&self, tensor: String, [rows, columns]: [u64; 2], kind: Kind) -> Part {
        match (kind, self.tensors.transposed) {
            (Kind::Bias, _) => Part::new(tensor, &[rows]),
            (Kind::Weight, false) => Part::new(tensor, &[rows, columns]),
            (Kind::Weight, true) => Part::new(tensor, &[columns, rows]).transposed(),
        }
    }

    /// Queries, then keys, then values.
    pub(super) fn qkv(&self, block: u64, kind: Kind) -> Vec<Part> {
        let (q, kv, d) = (self.q_rows(), self.kv_rows(), self.sizes.hidden);
        let head_rows = self.sizes.head_dim;
        let name = |module: &str| self.tensors.in_block(block, module, kind);
        let split = |names: [&str; 3], orders: [RowOrder; 3]| {
            let rows = [q, kv, kv];
            let part = |i: usize| self.product(name(names[i]), [rows[i], d], kind).ordered(orders[i]);
            (0..3).map(part).collect()
        };
        match self.tensors.qkv {
            Qkv::Split(names) => split(names, [RowOrder::AsStored; 3]),
            Qkv::SplitInPairs(names) => {
                let pairs = RowOrder::Interleaved { head_rows };
                split(names, [pairs, pairs, RowOrder::AsStored])
            }
            Qkv::Fused(module, Fused::InTurn) => vec![self.product(name(module), [q + 2 * kv, d], kind)],
            Qkv::Fused(module, Fused::Grouped) => {
                let heads = self.sizes.heads / self.sizes.kv_heads;
                let group = (heads + 2) * head_rows;
                let run = |first, rows, count| {
                    let order = RowOrder::Grouped { group_rows: group, first, rows };
                    self.product(name(module), [q + 2 * kv, d], kind).ordered(order).of_rows(count)
                };
                vec![
                    run(0, heads * head_rows, q),
                    run(heads * head_rows, head_rows, kv),
                    run((heads + 1) * head_rows, head_rows, kv),
                ]
            }
        }
    }

    /// Gate and up of an expert, or its down.
    pub(super) fn expert(&self, block: u64, expert: u64, down: bool, count: u64) -> Vec<Part> {
        let (d, f) = (self.sizes.hidden, self.sizes.intermediate);
        let (which, [rows, columns]) = if down { (2..3, [d, f]) } else { (0..2, [f, d]) };
        let part = |i: usize| match self.tensors.experts {
            Experts::Apart { module, names } => {
                let module = format!("{module}.{expert}.{}", names[i]);
                Part::new(self.tensors.in_block(block, &module, Kind::Weight), &[rows, columns])
            }
            Experts::Stacked(names) => {
                let tensor = self.tensors.in_block(block, names[i], Kind::Weight);
                Part::new(tensor, &[count, rows, columns]).slab(expert)
            }
        };
        which.map(part).collect()
    }
}
