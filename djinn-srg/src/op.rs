//! The closed list of operations that a decoder is made of.

use serde::Serialize;

/// How rotary embedding pairs the elements of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RopeStyle {
    /// Element `i` with `i + rotary_dim / 2` (Hugging Face's `rotate_half`, GPT-NeoX).
    Half,
    /// Element `2i` with `2i + 1` (the RoPE paper, GPT-J).
    Interleaved,
}

/// An operation with its constants. Operands are the [`Node`](crate::Node)'s; below, `rows` is the step's
/// row count, activations are f32, and weights have the dtype of their value.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Op {
    /// `tokens[rows] (u32), table[vocab, d] -> [rows, d]`: gathers one row of the table for each token.
    Embed,
    /// `positions[rows] (u32), inv_freq[r / 2] (f32) -> [rows, r]`: for each position the cosines, then the
    /// sines, of `position * inv_freq[i]`, times `scale`.
    RopeTable {
        /// Attention factor of YaRN-like scalings; 1 otherwise.
        scale: f32,
    },
    /// `x[rows, d], weight[d] -> [rows, d]`: `x / sqrt(mean(x²) + eps) * weight` (RMSNorm,
    /// Zhang & Sennrich 2019).
    RmsNorm {
        /// Added to the mean of squares.
        eps: f32,
    },
    /// `x[rows, k], weight[n, k], bias[n]? -> [rows, n]`: `x · weightᵀ + bias`.
    Linear,
    /// `qkv[rows, (heads + 2 kv_heads) * head_dim], query weight[head_dim], key weight[head_dim]`: RMSNorm of each
    /// query head and of each key head by itself, in place (QK-norm, Henry et al. 2020).
    HeadNorm {
        /// Query heads.
        heads: u32,
        /// Key and value heads.
        kv_heads: u32,
        /// Elements of a head.
        head_dim: u32,
        /// Added to the mean of squares.
        eps: f32,
    },
    /// `qkv[rows, (heads + 2 kv_heads) * head_dim]`, table of [`Op::RopeTable`]: rotates queries and keys in
    /// place (RoFormer, Su et al. 2021).
    Rope {
        /// Query heads.
        heads: u32,
        /// Key and value heads.
        kv_heads: u32,
        /// Elements of a head.
        head_dim: u32,
        /// Leading elements of a head that are rotated.
        rotary_dim: u32,
        /// Pairing.
        style: RopeStyle,
    },
    /// `qkv[rows, …], row_seq[rows], positions[rows] -> kv(layer)`: appends each row's key and value to its
    /// sequence's pages.
    KvWrite {
        /// Query heads.
        heads: u32,
        /// Key and value heads.
        kv_heads: u32,
        /// Elements of a head.
        head_dim: u32,
    },
    /// `qkv[rows, …], kv(layer), row_seq[rows], positions[rows] -> [rows, heads * head_dim]`: causal
    /// softmax(q·kᵀ · scale)·v over the row's own sequence, positions `0..=positions[row]`.
    Attention {
        /// Query heads; head `h` reads key/value head `h * kv_heads / heads` (GQA).
        heads: u32,
        /// Key and value heads.
        kv_heads: u32,
        /// Elements of a head.
        head_dim: u32,
        /// Factor on the scores, usually `1 / sqrt(head_dim)`.
        scale: f32,
    },
    /// `gate_up[rows, 2 f] -> [rows, f]`: `silu(gate) * up` (SwiGLU, Shazeer 2020).
    SiluMul,
    /// `a[rows, d], b[rows, d] -> [rows, d]`: the sum.
    Add,
    /// `x[rows, d], logit_rows[n] (u32) -> [n, d]`: gathers the rows whose logits are wanted.
    SelectRows,
}

impl Op {
    /// The operation's name, as in traces and exports.
    pub const fn name(&self) -> &'static str {
        match self {
            Op::Embed => "embed",
            Op::RopeTable { .. } => "rope_table",
            Op::RmsNorm { .. } => "rms_norm",
            Op::Linear => "linear",
            Op::HeadNorm { .. } => "head_norm",
            Op::Rope { .. } => "rope",
            Op::KvWrite { .. } => "kv_write",
            Op::Attention { .. } => "attention",
            Op::SiluMul => "silu_mul",
            Op::Add => "add",
            Op::SelectRows => "select_rows",
        }
    }
}
