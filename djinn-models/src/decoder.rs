//! What a decoder is made of, whatever its family calls the pieces: sizes, norms, positions, blocks.
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
    /// In Hugging Face's words: `LlamaForCausalLM`.
    pub(crate) architecture: &'static str,
    pub(crate) sizes: Sizes,
    pub(crate) norm: Norm,
    pub(crate) positions: Positions,
    pub(crate) block: Block,
    pub(crate) mlp: Mlp,
    pub(crate) biases: Biases,
    /// Whether each query and key head is normed before its rotation.
    pub(crate) head_norms: bool,
    pub(crate) window: Option<Window>,
    /// Whether the logits are products with the embedding.
    pub(crate) tied: bool,
    /// Where its weights are in the checkpoint.
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

/// How a row knows its position.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Positions {
    /// Queries and keys are rotated (Su et al. 2021).
    Rotary(Rotary),
    /// A table of as many rows as there are positions is added to the embedding (Radford et al. 2019).
    Learned,
    /// Scores are biased by distance (Press et al. 2022).
    Alibi,
}

/// How a block joins attention and MLP to the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Block {
    /// One after the other, each behind a norm of its own.
    Sequential,
    /// Side by side behind one norm (Wang & Komatsuzaki 2021).
    Parallel,
    /// Side by side, each behind a norm of its own.
    ParallelTwoNorms,
}

/// What follows attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mlp {
    /// `down(silu(gate) * up)`.
    SwiGlu,
    /// `down(gelu(up))`.
    Gelu(GeluForm),
    /// `chosen` of `count` SwiGLUs for each row, by a router's softmax (Jiang et al. 2024).
    Experts { count: u64, chosen: u64 },
}

/// Which products have a bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Biases {
    pub(crate) qkv: bool,
    pub(crate) out: bool,
    pub(crate) mlp: bool,
    pub(crate) head: bool,
}

/// Attention to the latest positions alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// Positions that a row sees, its own among them.
    pub(crate) positions: u64,
    /// Which blocks have it, in order; those past the end have it too.
    pub(crate) blocks: Vec<bool>,
}

impl Decoder {
    /// Rows of the query projection.
    pub(crate) fn q_rows(&self) -> u64 {
        self.sizes.heads * self.sizes.head_dim
    }

    /// Rows of the key projection, and of the value projection.
    pub(crate) fn kv_rows(&self) -> u64 {
        self.sizes.kv_heads * self.sizes.head_dim
    }

    /// Positions that a row of `block` sees, if not all.
    pub(crate) fn window(&self, block: u64) -> Option<u32> {
        let window = self.window.as_ref()?;
        let has = window.blocks.get(block as usize).copied().unwrap_or(true);
        // A window as long as the context hides nothing.
        (has && window.positions < self.sizes.context).then_some(window.positions as u32)
    }
}
