//! Which tensors of a checkpoint make up each weight of the graph.

use super::{Config, rope};
use crate::weights::{Part, RowOrder, WeightMap};

/// Whose tensor names a checkpoint uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    /// `model.layers.0.self_attn.q_proj.weight`.
    HuggingFace,
    /// `blk.0.attn_q.weight`; rows of queries and keys lie in interleaved-rope order.
    Gguf,
}

/// A tensor's name in Hugging Face's checkpoints and in GGUF; within its block for those of blocks.
#[derive(Clone, Copy)]
pub(crate) struct Name(&'static str, &'static str);

pub(crate) const EMBEDDING: Name = Name("model.embed_tokens.weight", "token_embd.weight");
pub(crate) const HEAD: Name = Name("lm_head.weight", "output.weight");
const FINAL_NORM: Name = Name("model.norm.weight", "output_norm.weight");
const ATTENTION_NORM: Name = Name("input_layernorm", "attn_norm");
pub(crate) const QUERY: Name = Name("self_attn.q_proj", "attn_q");
const KEY: Name = Name("self_attn.k_proj", "attn_k");
const VALUE: Name = Name("self_attn.v_proj", "attn_v");
pub(crate) const ATTENTION_OUT: Name = Name("self_attn.o_proj", "attn_output");
const QUERY_NORM: Name = Name("self_attn.q_norm", "attn_q_norm");
const KEY_NORM: Name = Name("self_attn.k_norm", "attn_k_norm");
const MLP_NORM: Name = Name("post_attention_layernorm", "ffn_norm");
const GATE: Name = Name("mlp.gate_proj", "ffn_gate");
pub(crate) const UP: Name = Name("mlp.up_proj", "ffn_up");
const DOWN: Name = Name("mlp.down_proj", "ffn_down");

impl Naming {
    /// A tensor outside the blocks.
    pub(crate) fn top(self, name: Name) -> &'static str {
        match self {
            Naming::HuggingFace => name.0,
            Naming::Gguf => name.1,
        }
    }

    /// The `weight` or `bias` of a tensor pair in a block.
    pub(crate) fn in_block(self, layer: u32, name: Name, kind: &str) -> String {
        match self {
            Naming::HuggingFace => format!("model.layers.{layer}.{}.{kind}", name.0),
            Naming::Gguf => format!("blk.{layer}.{}.{kind}", name.1),
        }
    }
}

/// The recipe of every weight of [`super::graph`] from a checkpoint that names its tensors by `naming`.
pub(crate) fn weight_map(config: &Config, naming: Naming) -> WeightMap {
    let (d, f) = (config.hidden_size, config.intermediate_size);
    let (q, kv) = (config.q_rows(), config.kv_rows());
    // Hugging Face row (head, half, pair) is GGUF row (head, pair, half).
    let rotary = match naming {
        Naming::HuggingFace => RowOrder::AsStored,
        Naming::Gguf => RowOrder::Interleaved { head_rows: u64::from(config.head_dim) },
    };
    let stored = RowOrder::AsStored;
    let (qkv, out) = (kinds(config.qkv_bias), kinds(config.out_bias));
    let mlp = kinds(config.mlp_bias);

    let mut map = WeightMap::default();
    map.rows("embed.weight", vec![Part::new(naming.top(EMBEDDING), &[config.vocab_size, d])]);
    map.computed("rope.inv_freq", &rope::inverse_frequencies(config));
    for layer in 0..config.num_hidden_layers {
        let mut put = |value: &str, kinds: &[&str], parts: &[(Name, [u64; 2], RowOrder)]| {
            for &kind in kinds {
                let parts = parts.iter().map(|&(name, shape, order)| {
                    let shape = if kind == "bias" { &shape[..1] } else { &shape[..] };
                    Part::new(&naming.in_block(layer, name, kind), shape).ordered(order)
                });
                map.rows(&format!("blocks.{layer}.{value}.{kind}"), parts.collect());
            }
        };
        put("attn.qkv", qkv, &[(QUERY, [q, d], rotary), (KEY, [kv, d], rotary), (VALUE, [kv, d], stored)]);
        put("attn.out", out, &[(ATTENTION_OUT, [d, q], stored)]);
        put("mlp.gate_up", mlp, &[(GATE, [f, d], stored), (UP, [f, d], stored)]);
        put("mlp.down", mlp, &[(DOWN, [d, f], stored)]);
        let head = u64::from(config.head_dim);
        let of_heads = [("attn.q_norm", QUERY_NORM, head), ("attn.k_norm", KEY_NORM, head)];
        let of_heads = of_heads.into_iter().filter(|_| config.architecture.norms_heads());
        for (value, name, width) in of_heads.chain([("ln1", ATTENTION_NORM, d), ("ln2", MLP_NORM, d)]) {
            let tensor = naming.in_block(layer, name, "weight");
            map.rows(&format!("blocks.{layer}.{value}.weight"), vec![Part::new(&tensor, &[width])]);
        }
    }
    map.rows("ln_final.weight", vec![Part::new(naming.top(FINAL_NORM), &[d])]);
    if config.tie_word_embeddings {
        map.ignore(naming.top(HEAD));
    } else {
        map.rows("unembed.weight", vec![Part::new(naming.top(HEAD), &[config.vocab_size, d])]);
    }
    match naming {
        Naming::Gguf => map.ignore("rope_freqs.weight"),
        // Buffers that early versions of transformers saved; they follow from the configuration.
        Naming::HuggingFace => (0..config.num_hidden_layers)
            .for_each(|layer| map.ignore(&format!("model.layers.{layer}.self_attn.rotary_emb.inv_freq"))),
    }
    map
}

fn kinds(bias: bool) -> &'static [&'static str] {
    if bias { &["weight", "bias"] } else { &["weight"] }
}
