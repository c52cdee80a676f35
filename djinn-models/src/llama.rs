//! The Llama family (Llama, Mistral, Qwen2, Qwen3): configuration, graph, and the names of its weights in checkpoints.
//!
//! Architecture: Touvron et al. 2023 (RMSNorm before each sublayer, rotary positions, SwiGLU), with grouped
//! query attention (Ainslie et al. 2023) and Llama 3's rope scaling. A sliding window hides nothing from the
//! positions within its first span: such a model's context ends there.

mod architecture;
mod config;
mod gguf;
mod json;
mod names;
mod rope;
#[cfg(test)]
mod tests;

pub(crate) use architecture::Architecture;
pub(crate) use config::{Config, JSON_KEYS, RawConfig, RopeScaling};
pub(crate) use names::{Naming, weight_map};
pub(crate) use rope::inverse_frequencies;

use djinn_srg::{DType, Graph, GraphBuilder, GraphError, KvShape, RopeStyle, Scores, ValueId};

/// Builds the model's graph. `dtype` gives each weight's element type by the weight's name.
///
/// # Errors
/// [`GraphError`] when shapes do not fit together; a validated [`Config`] causes none.
pub(crate) fn graph(
    config: &Config,
    model: &str,
    dtype: &dyn Fn(&str) -> DType,
) -> Result<Graph, GraphError> {
    let kv = KvShape {
        layers: config.num_hidden_layers,
        kv_heads: config.num_key_value_heads,
        head_dim: config.head_dim,
    };
    let builder = GraphBuilder::new(model, kv, config.vocab_size, config.max_position_embeddings);
    Writer { config, dtype, builder }.write()
}

struct Writer<'a> {
    config: &'a Config,
    dtype: &'a dyn Fn(&str) -> DType,
    builder: GraphBuilder,
}

impl Writer<'_> {
    fn write(mut self) -> Result<Graph, GraphError> {
        let Config { hidden_size: d, vocab_size: vocab, .. } = *self.config;
        let table = self.weight("embed.weight", &[vocab, d])?;
        let mut x = self.builder.embed("embed", table)?;
        self.builder.hook(x, "hook_embed".to_owned());
        let inv_freq = self.weight("rope.inv_freq", &[u64::from(self.config.head_dim / 2)])?;
        let angles = self.builder.rope_table("rope", inv_freq, 1.0)?;
        for layer in 0..self.config.num_hidden_layers {
            self.builder.set_layer(Some(layer));
            x = self.block(layer, x, angles)?;
        }
        self.builder.set_layer(None);
        // Rows are chosen before the norm: the others' logits are never wanted.
        x = self.builder.select_rows("select", x)?;
        x = self.norm("ln_final", x)?;
        self.builder.hook(x, "ln_final.hook_normalized".to_owned());
        let head =
            if self.config.tie_word_embeddings { table } else { self.weight("unembed.weight", &[vocab, d])? };
        let logits = self.builder.linear("unembed", x, head, None)?;
        self.builder.finish(logits)
    }

    /// One decoder block: attention and MLP, each added to the residual stream.
    fn block(&mut self, layer: u32, x: ValueId, angles: ValueId) -> Result<ValueId, GraphError> {
        let c = self.config;
        let (d, f) = (c.hidden_size, c.intermediate_size);
        let at = |part: &str| format!("blocks.{layer}.{part}");

        let normed = self.norm(&at("ln1"), x)?;
        let qkv = self.linear(&at("attn.qkv"), normed, [c.q_rows() + 2 * c.kv_rows(), d], c.qkv_bias)?;
        if c.architecture.norms_heads() {
            let weights = [
                self.weight(&at("attn.q_norm.weight"), &[c.head_dim.into()])?,
                self.weight(&at("attn.k_norm.weight"), &[c.head_dim.into()])?,
            ];
            self.builder.head_norm(
                &at("attn.qk_norm"),
                qkv,
                weights,
                c.num_attention_heads,
                c.rms_norm_eps,
            )?;
        }
        self.builder.rope(&at("attn.rope"), qkv, angles, c.num_attention_heads, RopeStyle::Half)?;
        let scores = Scores::scaled(1.0 / (c.head_dim as f32).sqrt());
        let mixed = self.builder.attention(&at("attn"), qkv, c.num_attention_heads, scores)?;
        let attn_out = self.linear(&at("attn.out"), mixed, [d, c.q_rows()], c.out_bias)?;
        self.builder.hook(attn_out, at("hook_attn_out"));
        let mid = self.builder.add(&at("attn.add"), x, attn_out)?;
        self.builder.hook(mid, at("hook_resid_mid"));

        let normed = self.norm(&at("ln2"), mid)?;
        let gate_up = self.linear(&at("mlp.gate_up"), normed, [2 * f, d], c.mlp_bias)?;
        let hidden = self.builder.silu_mul(&at("mlp.act"), gate_up)?;
        let mlp_out = self.linear(&at("mlp.down"), hidden, [d, f], c.mlp_bias)?;
        self.builder.hook(mlp_out, at("hook_mlp_out"));
        let post = self.builder.add(&at("mlp.add"), mid, mlp_out)?;
        self.builder.hook(post, at("hook_resid_post"));
        Ok(post)
    }

    fn weight(&mut self, name: &str, shape: &[u64]) -> Result<ValueId, GraphError> {
        self.builder.weight(name, shape, (self.dtype)(name))
    }

    fn norm(&mut self, name: &str, x: ValueId) -> Result<ValueId, GraphError> {
        let weight = self.weight(&format!("{name}.weight"), &[self.config.hidden_size])?;
        self.builder.rms_norm(name, x, weight, self.config.rms_norm_eps)
    }

    fn linear(&mut self, name: &str, x: ValueId, shape: [u64; 2], bias: bool) -> Result<ValueId, GraphError> {
        let weight = self.weight(&format!("{name}.weight"), &shape)?;
        let bias = match bias {
            true => Some(self.weight(&format!("{name}.bias"), &shape[..1])?),
            false => None,
        };
        self.builder.linear(name, x, weight, bias)
    }
}
