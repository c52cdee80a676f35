//! A decoder as a graph, and the recipe of each weight, written together so that neither can lack the other's.

use super::tensors::Kind;
use super::{Block, Decoder, Mlp, NormKind, Positions};
use crate::weights::{Part, Recipe, WeightMap};
use djinn_srg::{DType, Graph, GraphBuilder, GraphError, KvShape, Scores, ValueId};
use std::collections::HashMap;

/// The graph named `model` and its weights. `dtype` gives each weight's element type. Blocks from the one at
/// `distinct` on use the weights of those before it, in turn.
///
/// # Errors
/// [`GraphError`] when shapes do not fit together; a [checked](Decoder::check) decoder causes none.
pub(crate) fn build(
    decoder: &Decoder,
    model: &str,
    distinct: u64,
    dtype: &dyn Fn(&Recipe) -> DType,
) -> Result<(Graph, WeightMap), GraphError> {
    let sizes = &decoder.sizes;
    let kv = KvShape {
        layers: sizes.layers as u32,
        kv_heads: sizes.kv_heads as u32,
        head_dim: sizes.head_dim as u32,
    };
    let graph = GraphBuilder::new(model, kv, sizes.vocab, sizes.context);
    Writer { decoder, distinct, dtype, graph, map: WeightMap::default(), made: HashMap::new() }.write()
}

struct Writer<'a> {
    decoder: &'a Decoder,
    distinct: u64,
    dtype: &'a dyn Fn(&Recipe) -> DType,
    graph: GraphBuilder,
    map: WeightMap,
    made: HashMap<String, ValueId>,
}

impl Writer<'_> {
    fn write(mut self) -> Result<(Graph, WeightMap), GraphError> {
        let decoder = self.decoder;
        let (d, vocab) = (decoder.sizes.hidden, decoder.sizes.vocab);
        let tensors = &decoder.tensors;
        let embedding = tensors.top(tensors.embedding, Kind::Weight);
        let table = self.weight("embed.weight", &[vocab, d], vec![Part::new(embedding, &[vocab, d])])?;
        let mut x = self.graph.embed("embed", table)?;
        self.graph.hook(x, "hook_embed".to_owned());
        if decoder.positions == Positions::Learned {
            x = self.learned_positions(x)?;
        }
        let angles = match &decoder.positions {
            Positions::Rotary(rotary) => {
                let frequencies = Recipe::computed(&rotary.inverse_frequencies());
                let weight = self.recipe("rope.inv_freq", &[rotary.dim / 2], frequencies)?;
                Some(self.graph.rope_table("rope", weight, 1.0)?)
            }
            Positions::Learned | Positions::Alibi => None,
        };
        for block in 0..decoder.sizes.layers {
            self.graph.set_layer(Some(block as u32));
            x = self.block(block, x, angles)?;
        }
        self.graph.set_layer(None);
        // Rows are chosen before the norm: the others' logits are never wanted.
        x = self.graph.select_rows("select", x)?;
        x = self.norm("ln_final", x, |kind| tensors.top(tensors.final_norm, kind))?;
        self.graph.hook(x, "ln_final.hook_normalized".to_owned());
        let logits = self.head(x, table)?;
        for name in tensors.ignored(decoder.sizes.layers) {
            self.map.ignore(name);
        }
        Ok((self.graph.finish(logits)?, self.map))
    }

    fn learned_positions(&mut self, x: ValueId) -> Result<ValueId, GraphError> {
        let tensors = &self.decoder.tensors;
        let shape = [self.decoder.sizes.context, self.decoder.sizes.hidden];
        let tensor = tensors.top(tensors.positions, Kind::Weight);
        let table = self.weight("pos_embed.weight", &shape, vec![Part::new(tensor, &shape)])?;
        let positions = self.graph.embed_positions("pos_embed", table)?;
        self.graph.hook(positions, "hook_pos_embed".to_owned());
        self.graph.add("embed.add", x, positions)
    }

    fn head(&mut self, x: ValueId, table: ValueId) -> Result<ValueId, GraphError> {
        let decoder = self.decoder;
        let shape = [decoder.sizes.vocab, decoder.sizes.hidden];
        let weight = decoder.tensors.head(Kind::Weight);
        if decoder.tied {
            self.map.ignore(weight);
            return self.graph.linear("unembed", x, table, None);
        }
        let weight = self.weight("unembed.weight", &shape, vec![Part::new(weight, &shape)])?;
        let bias = match decoder.biases.head {
            true => {
                let part = Part::new(decoder.tensors.head(Kind::Bias), &shape[..1]);
                Some(self.weight("unembed.bias", &shape[..1], vec![part])?)
            }
            false => None,
        };
        self.graph.linear("unembed", x, weight, bias)
    }

    /// One block: attention and MLP, both added to the residual stream.
    fn block(&mut self, block: u64, x: ValueId, angles: Option<ValueId>) -> Result<ValueId, GraphError> {
        let decoder = self.decoder;
        let tensors = &decoder.tensors;
        let at = |part: &str| format!("blocks.{block}.{part}");
        let normed = self.norm(&at("ln1"), x, |kind| tensors.in_block(block, tensors.norms[0], kind))?;
        let attn_out = self.attention(block, normed, angles)?;
        self.graph.hook(attn_out, at("hook_attn_out"));
        let mid = self.graph.add(&at("attn.add"), x, attn_out)?;
        let second = |kind| tensors.in_block(block, tensors.norms[1], kind);
        let normed = match decoder.block {
            Block::Sequential => {
                self.graph.hook(mid, at("hook_resid_mid"));
                self.norm(&at("ln2"), mid, second)?
            }
            Block::Parallel => normed,
            Block::ParallelTwoNorms => self.norm(&at("ln2"), x, second)?,
        };
        let mlp_out = match decoder.mlp {
            Mlp::Experts { count, chosen } => self.experts(block, normed, count, chosen)?,
            Mlp::SwiGlu | Mlp::Gelu(_) => self.mlp(block, normed)?,
        };
        self.graph.hook(mlp_out, at("hook_mlp_out"));
        let post = self.graph.add(&at("mlp.add"), mid, mlp_out)?;
        self.graph.hook(post, at("hook_resid_post"));
        Ok(post)
    }

    fn attention(
        &mut self,
        block: u64,
        normed: ValueId,
        angles: Option<ValueId>,
    ) -> Result<ValueId, GraphError> {
        let decoder = self.decoder;
        let (d, q) = (decoder.sizes.hidden, decoder.q_rows());
        let (heads, head_dim) = (decoder.sizes.heads as u32, decoder.sizes.head_dim);
        let at = |part: &str| format!("blocks.{block}.{part}");
        let rows = q + 2 * decoder.kv_rows();
        let qkv = self.linear(&at("attn.qkv"), normed, [rows, d], decoder.biases.qkv, |kind| {
            decoder.qkv(block, kind)
        })?;
        if decoder.head_norms {
            let weights = [("attn.q_norm.weight", 0), ("attn.k_norm.weight", 1)].map(|(name, i)| {
                let tensor = decoder.tensors.in_block(block, decoder.tensors.head_norms[i], Kind::Weight);
                self.weight(&at(name), &[head_dim], vec![Part::new(tensor, &[head_dim])])
            });
            let [query, key] = weights;
            self.graph.head_norm(&at("attn.qk_norm"), qkv, [query?, key?], heads, decoder.norm.eps)?;
        }
        if let (Positions::Rotary(rotary), Some(angles)) = (&decoder.positions, angles) {
            self.graph.rope(&at("attn.rope"), qkv, angles, heads, rotary.style)?;
        }
        let scores = Scores {
            scale: 1.0 / (head_dim as f32).sqrt(),
            window: decoder.window(block),
            alibi: decoder.positions == Positions::Alibi,
        };
        let mixed = self.graph.attention(&at("attn"), qkv, heads, scores)?;
        let out = decoder.tensors.out;
        self.linear(&at("attn.out"), mixed, [d, q], decoder.biases.out, |kind| {
            vec![decoder.product(decoder.tensors.in_block(block, out, kind), [d, q], kind)]
        })
    }

    fn mlp(&mut self, block: u64, normed: ValueId) -> Result<ValueId, GraphError> {
        let decoder = self.decoder;
        let (d, f, bias) = (decoder.sizes.hidden, decoder.sizes.intermediate, decoder.biases.mlp);
        let at = |part: &str| format!("blocks.{block}.{part}");
        let part = |which: usize, shape, kind| {
            decoder.product(decoder.tensors.in_block(block, decoder.tensors.mlp[which], kind), shape, kind)
        };
        let hidden = match decoder.mlp {
            Mlp::Gelu(form) => {
                let up =
                    self.linear(&at("mlp.up"), normed, [f, d], bias, |kind| vec![part(1, [f, d], kind)])?;
                self.graph.gelu(&at("mlp.act"), up, form)?
            }
            _ => {
                let gate_up = self.linear(&at("mlp.gate_up"), normed, [2 * f, d], bias, |kind| {
                    vec![part(0, [f, d], kind), part(1, [f, d], kind)]
                })?;
                self.graph.silu_mul(&at("mlp.act"), gate_up)?
            }
        };
        self.linear(&at("mlp.down"), hidden, [d, f], bias, |kind| vec![part(2, [d, f], kind)])
    }

    /// Each expert's products run for the rows that the router sent to it.
    fn experts(&mut self, block: u64, x: ValueId, count: u64, chosen: u64) -> Result<ValueId, GraphError> {
        let decoder = self.decoder;
        let (d, f) = (decoder.sizes.hidden, decoder.sizes.intermediate);
        let at = |part: &str| format!("blocks.{block}.mlp.{part}");
        let router = decoder.tensors.in_block(block, decoder.tensors.router, Kind::Weight);
        let shape = [count, d];
        let weight = self.weight(&at("router.weight"), &shape, vec![Part::new(router, &shape)])?;
        let logits = self.graph.linear(&at("router"), x, weight, None)?;
        let routing = self.graph.route(&at("route"), logits, chosen as u32, true)?;
        let products = |writer: &mut Self, x, part: &str, shape: [u64; 2], down| {
            let mut out = None;
            for expert in 0..count {
                let name = at(&format!("experts.{expert}.{part}"));
                let parts = decoder.expert(block, expert, down, count);
                let weight = writer.weight(&format!("{name}.weight"), &shape, parts)?;
                out = Some(writer.graph.expert_linear(&name, x, &routing, expert as u32, weight, out)?);
            }
            Ok::<_, GraphError>(out.expect("a checked decoder has experts"))
        };
        let gate_up = products(self, x, "gate_up", [2 * f, d], false)?;
        let hidden = self.graph.silu_mul(&at("act"), gate_up)?;
        let down = products(self, hidden, "down", [d, f], true)?;
        self.graph.combine(&at("combine"), down, &routing)
    }

    fn norm(
        &mut self,
        name: &str,
        x: ValueId,
        tensor: impl Fn(Kind) -> String,
    ) -> Result<ValueId, GraphError> {
        let shape = [self.decoder.sizes.hidden];
        let eps = self.decoder.norm.eps;
        let part = |kind| vec![Part::new(tensor(kind), &shape)];
        let weight = self.weight(&format!("{name}.weight"), &shape, part(Kind::Weight))?;
        match self.decoder.norm.kind {
            NormKind::Rms => self.graph.rms_norm(name, x, weight, eps),
            NormKind::Layer => {
                let bias = self.weight(&format!("{name}.bias"), &shape, part(Kind::Bias))?;
                self.graph.layer_norm(name, x, weight, bias, eps)
            }
        }
    }

    fn linear(
        &mut self,
        name: &str,
        x: ValueId,
        shape: [u64; 2],
        bias: bool,
        parts: impl Fn(Kind) -> Vec<Part>,
    ) -> Result<ValueId, GraphError> {
        let weight = self.weight(&format!("{name}.weight"), &shape, parts(Kind::Weight))?;
        let bias = match bias {
            true => Some(self.weight(&format!("{name}.bias"), &shape[..1], parts(Kind::Bias))?),
            false => None,
        };
        self.graph.linear(name, x, weight, bias)
    }

    fn weight(&mut self, name: &str, shape: &[u64], parts: Vec<Part>) -> Result<ValueId, GraphError> {
        self.recipe(name, shape, Recipe::Rows(parts))
    }

    fn recipe(&mut self, name: &str, shape: &[u64], recipe: Recipe) -> Result<ValueId, GraphError> {
        let name = self.own_name(name);
        if let Some(&made) = self.made.get(&name) {
            return Ok(made);
        }
        let dtype = (self.dtype)(&recipe);
        self.map.insert(&name, recipe, dtype);
        let value = self.graph.weight(&name, shape, dtype)?;
        self.made.insert(name, value);
        Ok(value)
    }

    /// The name of the weight that stands for the one of this name.
    fn own_name(&self, name: &str) -> String {
        let of_block = || {
            let (block, rest) = name.strip_prefix("blocks.")?.split_once('.')?;
            let block: u64 = block.parse().ok()?;
            (block >= self.distinct).then(|| format!("blocks.{}.{rest}", block % self.distinct))
        };
        of_block().unwrap_or_else(|| name.to_owned())
    }
}
