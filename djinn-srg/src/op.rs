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

/// Which form of GELU (Hendrycks & Gimpel 2016).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GeluForm {
    /// `x/2 (1 + erf(x/√2))`, i.e. `x` times the normal distribution function (`gelu` of Hugging Face).
    Erf,
    /// `x/2 (1 + tanh(√(2/π) (x + 0.044715 x³)))` (`gelu_new`, `gelu_pytorch_tanh`).
    Tanh,
}

/// How attention scores are computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scores {
    /// Factor on the scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Number of positions that a row sees, its own included. `None`: all before it. See [`Op::Attention`].
    pub window: Option<u32>,
    /// Whether scores are biased by position. See [`Op::Attention`].
    pub alibi: bool,
}

impl Scores {
    /// Products times `scale`, over all positions.
    pub const fn scaled(scale: f32) -> Self {
        Scores { scale, window: None, alibi: false }
    }
}

/// An operation with its constants. Operands are the [`Node`](crate::Node)'s; below, `rows` is the step's
/// row count, activations are f32, and weights have the dtype of their value.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Op {
    /// `indices[rows] (u32), table[n, d] -> [rows, d]`: gathers one row of the table for each token, or for each
    /// position if positions are learned.
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
    /// `x[rows, d], weight[d], bias[d] -> [rows, d]`: `(x - mean) / sqrt(variance + eps) * weight + bias`, mean and
    /// biased variance over the row (LayerNorm, Ba et al. 2016).
    LayerNorm {
        /// Added to the variance.
        eps: f32,
    },
    /// `x[rows, k], weight[n, k], bias[n]? -> [rows, n]`: `x · weightᵀ + bias`.
    Linear,
    /// `qkv[rows, (heads + 2 kv_heads) * head_dim], query weight[head_dim], key weight[head_dim]`: RMSNorm of each
    /// query head and each key head, in place (QK-norm, Henry et al. 2020).
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
    /// softmax((q·kᵀ + bias) · scale)·v over the row's own sequence, positions `0..=p` for `p = positions[row]`.
    ///
    /// With a window, positions `max(0, p + 1 - window)..=p` (Mistral 7B, Jiang et al. 2023).
    ///
    /// The bias is 0, or with `alibi` (Press et al. 2022) `slope(h) · j` for head `h` and key position `j`, where
    /// both factors and the product are rounded to bf16: so does the published code of BLOOM and Falcon-RW, whose
    /// weights were trained with it. With `m` the largest power of two up to `heads`, the first `m` slopes are
    /// `2^(-8 (i + 1) / m)`, the others `2^(-4 (2 i + 1) / m)`, for `i` from 0.
    Attention {
        /// Query heads; head `h` reads key/value head `h * kv_heads / heads` (GQA).
        heads: u32,
        /// Key and value heads.
        kv_heads: u32,
        /// Elements of a head.
        head_dim: u32,
        /// Factor on the scores, usually `1 / sqrt(head_dim)`.
        scale: f32,
        /// Number of positions that a row sees, its own included; at least 1.
        window: Option<u32>,
        /// Whether scores are biased by position.
        alibi: bool,
    },
    /// `gate_up[rows, 2 f] -> [rows, f]`: `silu(gate) * up` (SwiGLU, Shazeer 2020).
    SiluMul,
    /// `x[rows, f] -> [rows, f]`: GELU of each element.
    Gelu {
        /// Which form.
        form: GeluForm,
    },
    /// `a[rows, d], b[rows, d] -> [rows, d]`: the sum.
    Add,
    /// `x[rows, d], logit_rows[n] (u32) -> [n, d]`: gathers the rows with wanted logits.
    SelectRows,
    /// `logits[rows, experts] -> weights[rows, top_k], ids[rows, top_k] (u32)`: each row's `top_k` greatest, and the
    /// softmax over all experts there, divided by its sum if `renormalise` (Mixtral, Jiang et al. 2024).
    Route {
        /// Experts to choose from.
        experts: u32,
        /// Experts of a row.
        top_k: u32,
        /// Whether a row's weights sum to one.
        renormalise: bool,
    },
    /// `ids[rows, top_k] (u32) -> order[slots] (u32), starts[experts + 1] (u32)`: the slots of each expert. Slot `r ·
    /// top_k + j` is row `r` with its `j`-th expert.
    Group {
        /// Experts to choose from.
        experts: u32,
        /// Experts of a row.
        top_k: u32,
    },
    /// `x[slots / slots_per_row, k], order[slots], starts[experts + 1], weight[n, k] -> [slots, n]`: `x · weightᵀ` in
    /// the rows of one expert's slots; other rows are not touched. If an earlier node made the output, it is the last
    /// input.
    ExpertLinear {
        /// The weight's expert.
        expert: u32,
        /// Experts to choose from.
        experts: u32,
        /// Slots that share a row of `x`: the experts of a row, or 1.
        slots_per_row: u32,
    },
    /// `y[slots, d], weights[rows, top_k] -> [rows, d]`: the weighted sum of each row's slots.
    Combine {
        /// Experts of a row.
        top_k: u32,
    },
}

impl Op {
    /// Whether it gathers single rows of its weight, which then stays in host memory.
    pub const fn reads_rows(&self) -> bool {
        matches!(self, Op::Embed)
    }

    /// Whether each output column depends on one row of its weights only, so that the weights can be cut into tiles of
    /// rows. Other operations read whole weights.
    pub const fn splits_by_rows(&self) -> bool {
        matches!(self, Op::Linear | Op::ExpertLinear { .. })
    }

    /// The number of experts that each row chose, if the outputs contain the choice. After it, the weights that the
    /// step reads are known.
    pub const fn announces_choice(&self) -> Option<u32> {
        match *self {
            Op::Group { top_k, .. } => Some(top_k),
            _ => None,
        }
    }

    /// The operation's name, as in traces and exports.
    pub const fn name(&self) -> &'static str {
        match self {
            Op::Embed => "embed",
            Op::RopeTable { .. } => "rope_table",
            Op::RmsNorm { .. } => "rms_norm",
            Op::LayerNorm { .. } => "layer_norm",
            Op::Linear => "linear",
            Op::HeadNorm { .. } => "head_norm",
            Op::Rope { .. } => "rope",
            Op::KvWrite { .. } => "kv_write",
            Op::Attention { .. } => "attention",
            Op::SiluMul => "silu_mul",
            Op::Gelu { .. } => "gelu",
            Op::Add => "add",
            Op::SelectRows => "select_rows",
            Op::Route { .. } => "route",
            Op::Group { .. } => "group",
            Op::ExpertLinear { .. } => "expert_linear",
            Op::Combine { .. } => "combine",
        }
    }
}
