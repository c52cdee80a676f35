//! A decoder, whatever its family calls the parts: sizes, norms, positions, blocks.
//!
//! A family turns a configuration into a [`Decoder`]; [`build`] turns that into a graph and into the recipe of each
//! weight. Attention, rotary embedding, MLP, norm and mixture of experts are written once, in `graph`.

mod graph;
mod limits;
mod rope;
mod tensors;
#[cfg(test)]
mod tests;

pub(crate) use graph::build;
pub(crate) use limits::{KeyNames, Origin, Sizes};
pub(crate) use rope::{RopeScaling, Rotary};
pub(crate) use tensors::{Experts, Fused, Qkv, Tensors};

use djinn_srg::GeluForm;

/// A decoder-only transformer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Decoder {
    /// Hugging Face's name: `LlamaForCausalLM`.
    pub(crate) architecture: &'static str,
    pub(crate) sizes: Sizes,
    pub(crate) norm: Norm,
    pub(crate) positions: Positions,
    pub(crate) block: Block,
    pub(crate) mlp: Mlp,
    pub(crate) biases: Biases,
    /// Whether each query and key head has a norm before its rotation.
    pub(crate) head_norms: bool,
    pub(crate) window: Option<Window>,
    /// Whether the output projection is the embedding.
    pub(crate) tied: bool,
    /// The names of its weights in the checkpoint.
    pub(crate) tensors: Tensors,
}

/// The norm before each sublayer, and the last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Norm {
    pub(crate) kind: NormKind,
    pub(crate) eps: f32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NormKind {
    /// RMSNorm: a weight.
    Rms,
    /// Layer normalisation: a weight and a bias.
    Layer,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Positions {
    /// Queries and keys are rotated (Su et al. 2021).
    Rotary(Rotary),
    /// A table with a row for each position is added to the embedding (Radford et al. 2019).
    Learned,
    /// Scores are biased by distance (Press et al. 2022).
    Alibi,
}

/// How a block joins attention and MLP to the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Block {
    /// One after the other, each with a norm.
    Sequential,
    /// Side by side with one norm (Wang & Komatsuzaki 2021).
    Parallel,
    /// Side by side, each with a norm.
    ParallelTwoNorms,
}

/// What follows attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mlp {
    /// `down(silu(gate) * up)`.
    SwiGlu,
    /// `down(gelu(up))`.
    Gelu(GeluForm),
    /// `chosen` of `count` SwiGLUs for each row, weighted by a router's softmax over all of them, divided by the sum of the
    /// chosen ones if `renormalise` (Jiang et al. 2024).
    Experts { count: u64, chosen: u64, renormalise: bool },
}

/// Which products have a bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Biases {
    pub(crate) qkv: bool,
    pub(crate) out: bool,
    pub(crate) mlp: bool,
    pub(crate) head: bool,
}

/// Attention to the latest positions only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// Number of positions that a row sees, its own included.
    pub(crate) positions: u64,
    /// The blocks with a window, in order. Blocks beyond the end have one, too.
    pub(crate) blocks: Vec<bool>,
}

impl Decoder {
    pub(crate) fn q_rows(&self) -> u64 {
        self.sizes.heads * self.sizes.head_dim
    }

    /// Rows of the key projection, and of the value projection.
    pub(crate) fn kv_rows(&self) -> u64 {
        self.sizes.kv_heads * self.sizes.head_dim
    }

    /// Number of positions that a row of `block` sees; `None` for all.
    pub(crate) fn window(&self, block: u64) -> Option<u32> {
        let window = self.window.as_ref()?;
        let has = window.blocks.get(block as usize).copied().unwrap_or(true);
        // A window as long as the context masks nothing.
        (has && window.positions < self.sizes.context).then_some(window.positions as u32)
    }
}
