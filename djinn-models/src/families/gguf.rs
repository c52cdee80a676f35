//! Decoders from GGUF metadata, for the architectures that llama.cpp writes.
//!
//! Results are the family's, even if llama.cpp's differ: it runs Falcon's exact GELU in its tanh form, and ignores the
//! sliding window of these architectures.

mod keys;
mod rope;
#[cfg(test)]
mod tests;

use super::unsupported;
use crate::decoder::{
    Biases, Block, Decoder, Experts, Fused, KeyNames, Mlp, Norm, NormKind, Origin, Positions, Qkv, Sizes,
    Tensors, Window,
};
use crate::gguf::Gguf;
use crate::{Error, Result, TensorFile};
use djinn_srg::GeluForm;

/// These follow the architecture's name and a dot.
const KEYS: KeyNames = KeyNames {
    hidden: "embedding_length",
    intermediate: "feed_forward_length",
    layers: "block_count",
    heads: "attention.head_count",
    kv_heads: "attention.head_count_kv",
    head_dim: "attention.key_length",
    vocab: "vocab_size",
    context: "context_length",
    eps: "attention.layer_norm_rms_epsilon",
    theta: "rope.freq_base",
    scaling: "rope.scaling",
    rotary_dim: "rope.dimension_count",
    window: "attention.sliding_window",
    experts: "expert_count",
    chosen: "expert_used_count",
    biases: &[],
};

/// The width of an expert's MLP, where files have another for MLPs without experts.
const EXPERT_INTERMEDIATE: &str = "expert_feed_forward_length";

const TENSORS: Tensors = Tensors {
    prefix: "",
    blocks: "blk.",
    embedding: "token_embd",
    positions: "position_embd",
    final_norm: "output_norm",
    head: "output",
    norms: ["attn_norm", "ffn_norm"],
    qkv: Qkv::Split(["attn_q", "attn_k", "attn_v"]),
    head_norms: ["attn_q_norm", "attn_k_norm"],
    out: "attn_output",
    mlp: ["ffn_gate", "ffn_up", "ffn_down"],
    router: "ffn_gate_inp",
    experts: Experts::Stacked(["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"]),
    transposed: false,
    ignored: &[],
    read_before: &[rope::DIVISORS],
};

/// Reads `general.architecture` and its keys. The tensors determine the rest: the vocabulary's size, biases, a tied
/// embedding, and Llama 3's rope scaling.
///
/// # Errors
/// [`Error::Unsupported`] names another architecture or an unsupported feature. [`Error::Config`] names a key that is
/// missing or out of range. [`Error::MissingTensor`].
pub(crate) fn from_gguf(gguf: &Gguf) -> Result<Decoder> {
    keys::refuse_other_files(gguf)?;
    let architecture = gguf.get_str("general.architecture")?;
    let file = File { gguf, prefix: &format!("{architecture}.") };
    let decoder = match architecture {
        "llama" => file.llama()?,
        "qwen2" => Decoder { architecture: "Qwen2ForCausalLM", ..file.rotated_in_halves()? },
        "qwen3" => file.qwen3()?,
        "qwen3moe" => file.qwen3_moe()?,
        "gpt2" => file.gpt2()?,
        "falcon" => file.falcon()?,
        other => {
            let remedy = "supported: llama, qwen2, qwen3, qwen3moe, gpt2, falcon";
            return Err(unsupported(format!("architecture {}", keys::shown(other)), remedy));
        }
    };
    file.refuse_unread_keys(&decoder)?;
    decoder.check(&file.origin(&decoder))?;
    Ok(decoder)
}

/// A file, and the prefix of its keys.
struct File<'a> {
    gguf: &'a Gguf,
    prefix: &'a str,
}

impl File<'_> {
    /// Llama, and models that llama.cpp stores as one: Mistral and Mixtral.
    fn llama(&self) -> Result<Decoder> {
        let tensors = Tensors { qkv: Qkv::SplitInPairs(["attn_q", "attn_k", "attn_v"]), ..TENSORS };
        let base = Decoder { architecture: "LlamaForCausalLM", tensors, ..self.rotated_in_halves()? };
        let count = self.optional_u64(KEYS.experts)?.unwrap_or(0);
        if count == 0 {
            return Ok(base);
        }
        let mlp = Mlp::Experts { count, chosen: self.u64(KEYS.chosen)?, renormalise: true };
        Ok(Decoder { architecture: "MixtralForCausalLM", mlp, ..base })
    }

    fn qwen3(&self) -> Result<Decoder> {
        Ok(Decoder { architecture: "Qwen3ForCausalLM", head_norms: true, ..self.rotated_in_halves()? })
    }

    /// llama.cpp's conversion has no key for `norm_topk_prob`: published models have it.
    fn qwen3_moe(&self) -> Result<Decoder> {
        let base = self.qwen3()?;
        let (count, chosen) = (self.u64(KEYS.experts)?, self.u64(KEYS.chosen)?);
        Ok(Decoder {
            architecture: "Qwen3MoeForCausalLM",
            mlp: Mlp::Experts { count, chosen, renormalise: true },
            sizes: Sizes { intermediate: self.u64(EXPERT_INTERMEDIATE)?, ..base.sizes },
            ..base
        })
    }

    /// A Llama with rows of queries and keys in the order of Hugging Face's checkpoints.
    fn rotated_in_halves(&self) -> Result<Decoder> {
        let sizes = self.sizes()?;
        // llama.cpp's conversion omits a Mistral's window, and its own "llama" sees every position. The model was
        // trained with the window, so a file with the key gives the results of the Hugging Face checkpoint.
        let positions = self.optional_u64(KEYS.window)?.filter(|&positions| positions > 0);
        Ok(Decoder {
            architecture: "",
            sizes,
            norm: Norm { kind: NormKind::Rms, eps: self.f32(KEYS.eps)? },
            positions: Positions::Rotary(self.rotary(sizes.head_dim)?),
            block: Block::Sequential,
            mlp: Mlp::SwiGlu,
            biases: Biases {
                qkv: self.has_bias("attn_q"),
                out: self.has_bias(TENSORS.out),
                mlp: self.has_bias(TENSORS.mlp[1]),
                head: false,
            },
            head_norms: false,
            window: positions.map(|positions| Window { positions, blocks: Vec::new() }),
            tied: self.tied(),
            tensors: TENSORS,
        })
    }

    fn gpt2(&self) -> Result<Decoder> {
        let base = self.fused()?;
        Ok(Decoder {
            architecture: "GPT2LMHeadModel",
            positions: Positions::Learned,
            mlp: Mlp::Gelu(GeluForm::Tanh),
            biases: Biases { qkv: true, out: true, mlp: true, head: false },
            tensors: Tensors { read_before: &[], ..base.tensors.clone() },
            ..base
        })
    }

    /// Falcon 7B, 11B, 40B and 180B. llama.cpp writes no key for biases, ALiBi or sequential blocks (RW): their
    /// additional tensors are refused as unknown.
    fn falcon(&self) -> Result<Decoder> {
        let base = self.fused()?;
        // llama.cpp's first norm is the MLP's if there are two.
        let two = self.has("blk.0.attn_norm_2.weight");
        let norms = if two { ["attn_norm_2", "attn_norm"] } else { ["attn_norm", ""] };
        Ok(Decoder {
            architecture: "FalconForCausalLM",
            positions: Positions::Rotary(self.rotary(base.sizes.head_dim)?),
            block: if two { Block::ParallelTwoNorms } else { Block::Parallel },
            mlp: Mlp::Gelu(GeluForm::Erf),
            tensors: Tensors { norms, ..base.tensors.clone() },
            ..base
        })
    }

    /// Common to the architectures with one matrix for queries, keys and values.
    fn fused(&self) -> Result<Decoder> {
        let qkv = Qkv::Fused("attn_qkv", Fused::InTurn);
        Ok(Decoder {
            architecture: "",
            sizes: self.sizes()?,
            norm: self.layer_norm()?,
            positions: Positions::Learned,
            block: Block::Sequential,
            mlp: Mlp::Gelu(GeluForm::Erf),
            biases: Biases::default(),
            head_norms: false,
            window: None,
            tied: self.tied(),
            tensors: Tensors { qkv, ..TENSORS },
        })
    }

    fn sizes(&self) -> Result<Sizes> {
        let (hidden, heads) = (self.u64(KEYS.hidden)?, self.u64(KEYS.heads)?);
        let origin = Origin { path: self.gguf.path(), prefix: self.prefix, keys: &KEYS };
        let head_dim = match self.optional_u64(KEYS.head_dim)? {
            Some(size) => size,
            None => Sizes::split_head(hidden, heads, &origin)?,
        };
        let value = self.optional_u64("attention.value_length")?;
        if let Some(size) = value.filter(|&size| size != head_dim) {
            let what = format!("{}attention.value_length {size} with keys of {head_dim}", self.prefix);
            return Err(unsupported(what, "supported: both equal"));
        }
        Ok(Sizes {
            hidden,
            intermediate: self.u64(KEYS.intermediate)?,
            layers: self.u64(KEYS.layers)?,
            heads,
            kv_heads: self.optional_u64(KEYS.kv_heads)?.unwrap_or(heads),
            head_dim,
            vocab: self.vocab()?,
            context: self.u64(KEYS.context)?,
        })
    }

    fn layer_norm(&self) -> Result<Norm> {
        Ok(Norm { kind: NormKind::Layer, eps: self.f32("attention.layer_norm_epsilon")? })
    }

    fn vocab(&self) -> Result<u64> {
        let name = format!("{}.weight", TENSORS.embedding);
        let architecture = self.prefix.trim_end_matches('.').to_owned();
        let table = self.gguf.tensor(&name).ok_or(Error::MissingTensor { name, architecture })?;
        Ok(table.shape.first().copied().unwrap_or(0))
    }

    fn tied(&self) -> bool {
        !self.has(&format!("{}.weight", TENSORS.head))
    }

    fn has_bias(&self, module: &str) -> bool {
        self.has(&format!("{}0.{module}.bias", TENSORS.blocks))
    }

    fn has(&self, tensor: &str) -> bool {
        self.gguf.tensor(tensor).is_some()
    }

    /// The origin of the sizes, for error messages.
    fn origin<'a>(&'a self, decoder: &Decoder) -> Origin<'a> {
        static LAYER: KeyNames = KeyNames { eps: "attention.layer_norm_epsilon", ..KEYS };
        static RMS: KeyNames = KEYS;
        let keys = if decoder.norm.kind == NormKind::Layer { &LAYER } else { &RMS };
        Origin { path: self.gguf.path(), prefix: self.prefix, keys }
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    fn u64(&self, key: &str) -> Result<u64> {
        self.gguf.get_u64(&self.key(key))
    }

    fn f32(&self, key: &str) -> Result<f32> {
        self.gguf.get_f32(&self.key(key))
    }

    fn optional_u64(&self, key: &str) -> Result<Option<u64>> {
        self.gguf.optional(&self.key(key), Gguf::get_u64)
    }

    fn optional_f32(&self, key: &str) -> Result<Option<f32>> {
        self.gguf.optional(&self.key(key), Gguf::get_f32)
    }
}
