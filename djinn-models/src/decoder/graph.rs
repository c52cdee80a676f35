//! A decoder as a graph, with the recipe of each weight. Both are written together, so that every weight has a recipe.

use super::tensors::Kind;
use super::{Block, Decoder, Experts, Mlp, NormKind, Positions, Sizes};
use crate::weights::{Part, Recipe, Storage, WeightMap};
use djinn_srg::{Graph, GraphBuilder, GraphError, Heads, Scores, ValueId};
use std::collections::HashMap;

/// The graph named `model` and its weights. `storage` gives the form of each weight in memory. Blocks from `distinct`
/// on use the weights of earlier blocks, in turn.
///
/// # Errors
/// [`GraphError`] if shapes do not fit; a [checked](Decoder::check) decoder has none.
pub(crate) fn build(
    decoder: &Decoder,
    model: &str,
    distinct: u64,
    storage: &dyn Fn(&Recipe) -> Storage,
) -> Result<(Graph, WeightMap), GraphError> {
    let sizes = &decoder.sizes;
    let graph = GraphBuilder::new(model, sizes.vocab, sizes.context);
    Writer { decoder, distinct, storage, graph, map: WeightMap::default(), made: HashMap::new() }.write()
}

/// The module that contains a module: `self_attn` for `self_attn.o_proj`; `None` if its name has no parent.
fn parent(module: &str) -> &str {
    module.rsplit_once('.').map_or("", |(parent, _)| parent)
}

struct Writer<'a> {
    decoder: &'a Decoder,
    distinct: u64,
    storage: &'a dyn Fn(&Recipe) -> Storage,
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
        self.hook(x, &["embed.hook_out", "hook_embed", &tensors.module(tensors.embedding)])?;
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
        // Rows are selected before the norm, since the others' logits are not wanted.
        x = self.graph.select_rows("select", x)?;
        x = self.norm("ln_final", x, |kind| tensors.top(tensors.final_norm, kind))?;
        let module = tensors.module(tensors.final_norm);
        self.hook(x, &["ln_final.hook_out", "unembed.hook_in", &module])?;
        let logits = self.head(x, table)?;
        self.hook(logits, &["unembed.hook_out", tensors.head])?;
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
        let module = tensors.module(tensors.positions);
        self.hook(positions, &["pos_embed.hook_out", "hook_pos_embed", &module])?;
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
        self.hook_in(block, x, &["hook_in", "hook_resid_pre", "pre_attn"], &[])?;
        let normed = self.norm(&at("ln1"), x, |kind| tensors.in_block(block, tensors.norms[0], kind))?;
        self.hook_in(block, normed, &["ln1.hook_out", "attn.hook_in"], &[tensors.norms[0]])?;
        let attn_out = self.attention(block, normed, angles)?;
        let modules = [tensors.out, parent(tensors.out)];
        self.hook_in(block, attn_out, &["attn.hook_out", "attn.o.hook_out", "hook_attn_out"], &modules)?;
        let mid = self.graph.add(&at("attn.add"), x, attn_out)?;
        let normed = match decoder.block {
            Block::Parallel => normed,
            Block::Sequential => {
                self.hook_in(block, mid, &["hook_resid_mid", "post_attn"], &[])?;
                self.second_norm(block, mid)?
            }
            Block::ParallelTwoNorms => self.second_norm(block, x)?,
        };
        self.hook_in(block, normed, &["mlp.hook_in"], &[])?;
        let mlp_out = match decoder.mlp {
            Mlp::Experts { count, chosen, renormalise } => {
                self.experts(block, normed, count, chosen, renormalise)?
            }
            Mlp::SwiGlu | Mlp::Gelu(_) => self.mlp(block, normed)?,
        };
        let modules = match (decoder.mlp, tensors.experts) {
            (Mlp::Experts { .. }, Experts::Apart { module, .. }) => ["", parent(module)],
            (Mlp::Experts { .. }, Experts::Stacked(_)) => [""; 2],
            _ => [tensors.mlp[2], parent(tensors.mlp[2])],
        };
        self.hook_in(block, mlp_out, &["mlp.hook_out", "hook_mlp_out"], &modules)?;
        let post = self.graph.add(&at("mlp.add"), mid, mlp_out)?;
        self.hook_in(block, post, &["hook_out", "hook_resid_post", "post_block"], &[])?;
        self.hook(post, &[&tensors.block(block)])?;
        Ok(post)
    }

    fn second_norm(&mut self, block: u64, x: ValueId) -> Result<ValueId, GraphError> {
        let tensors = &self.decoder.tensors;
        let tensor = |kind| tensors.in_block(block, tensors.norms[1], kind);
        let normed = self.norm(&format!("blocks.{block}.ln2"), x, tensor)?;
        self.hook_in(block, normed, &["ln2.hook_out"], &[tensors.norms[1]])?;
        Ok(normed)
    }

    /// Names an activation.
    fn hook(&mut self, value: ValueId, names: &[&str]) -> Result<(), GraphError> {
        names.iter().try_for_each(|name| self.graph.hook(value, (*name).to_owned()))
    }

    /// Names an activation of a block, also by the checkpoint's modules that end with it.
    fn hook_in(
        &mut self,
        block: u64,
        value: ValueId,
        names: &[&str],
        modules: &[&str],
    ) -> Result<(), GraphError> {
        names.iter().try_for_each(|name| self.graph.hook(value, format!("blocks.{block}.{name}")))?;
        let path = self.decoder.tensors.block(block);
        let mut modules = modules.iter().filter(|module| !module.is_empty());
        modules.try_for_each(|module| self.graph.hook(value, format!("{path}.{module}")))
    }

    /// Names queries, keys and values, which lie side by side in this order.
    fn hook_parts(&mut self, block: u64, qkv: ValueId, names: &[&[&str]]) -> Result<(), GraphError> {
        let (q, kv) = (self.decoder.q_rows(), self.decoder.kv_rows());
        for (columns, names) in [(0, q), (q, kv), (q + kv, kv)].into_iter().zip(names) {
            for name in *names {
                self.graph.hook_columns(qkv, columns, format!("blocks.{block}.{name}"))?;
            }
        }
        Ok(())
    }

    fn attention(
        &mut self,
        block: u64,
        normed: ValueId,
        angles: Option<ValueId>,
    ) -> Result<ValueId, GraphError> {
        let decoder = self.decoder;
        let (d, q) = (decoder.sizes.hidden, decoder.q_rows());
        let Sizes { heads, kv_heads, head_dim, .. } = decoder.sizes;
        let heads = Heads { heads: heads as u32, kv_heads: kv_heads as u32, head_dim: head_dim as u32 };
        let at = |part: &str| format!("blocks.{block}.{part}");
        let rows = q + 2 * decoder.kv_rows();
        let qkv = self.linear(&at("attn.qkv"), normed, [rows, d], decoder.biases.qkv, |kind| {
            decoder.qkv(block, kind)
        })?;
        let names: [&[&str]; 3] = [
            &["attn.q.hook_out", "attn.hook_q"],
            &["attn.k.hook_out", "attn.hook_k"],
            &["attn.v.hook_out", "attn.hook_v"],
        ];
        self.hook_parts(block, qkv, &names)?;
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
            self.hook_parts(block, qkv, &[&["attn.hook_rot_q"], &["attn.hook_rot_k"]])?;
        }
        let scores = Scores {
            scale: 1.0 / (head_dim as f32).sqrt(),
            window: decoder.window(block),
            alibi: decoder.positions == Positions::Alibi,
        };
        let mixed = self.graph.attention(&at("attn"), qkv, heads, scores)?;
        self.hook_in(block, mixed, &["attn.o.hook_in", "attn.hook_z"], &[])?;
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
                self.hook_in(block, up, &["mlp.hook_pre"], &[decoder.tensors.mlp[1]])?;
                self.graph.gelu(&at("mlp.act"), up, form)?
            }
            _ => {
                let gate_up = self.linear(&at("mlp.gate_up"), normed, [2 * f, d], bias, |kind| {
                    vec![part(0, [f, d], kind), part(1, [f, d], kind)]
                })?;
                self.graph.silu_mul(&at("mlp.act"), gate_up)?
            }
        };
        self.hook_in(block, hidden, &["mlp.hook_post"], &[])?;
        self.linear(&at("mlp.down"), hidden, [d, f], bias, |kind| vec![part(2, [d, f], kind)])
    }

    /// Each expert's products run for the rows that the router sent to it.
    fn experts(
        &mut self,
        block: u64,
        x: ValueId,
        count: u64,
        chosen: u64,
        renormalise: bool,
    ) -> Result<ValueId, GraphError> {
        let decoder = self.decoder;
        let (d, f) = (decoder.sizes.hidden, decoder.sizes.intermediate);
        let at = |part: &str| format!("blocks.{block}.mlp.{part}");
        let router = decoder.tensors.in_block(block, decoder.tensors.router, Kind::Weight);
        let shape = [count, d];
        let weight = self.weight(&at("router.weight"), &shape, vec![Part::new(router, &shape)])?;
        let logits = self.graph.linear(&at("router"), x, weight, None)?;
        let routing = self.graph.route(&at("route"), logits, chosen as u32, renormalise)?;
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
        let storage = (self.storage)(&recipe);
        let value = self.graph.encoded_weight(&name, shape, storage.dtype, storage.encodings.clone())?;
        self.map.insert(&name, recipe, storage);
        self.made.insert(name, value);
        Ok(value)
    }

    /// The actual name of a weight that may be shared.
    fn own_name(&self, name: &str) -> String {
        let of_block = || {
            let (block, rest) = name.strip_prefix("blocks.")?.split_once('.')?;
            let block: u64 = block.parse().ok()?;
            (block >= self.distinct).then(|| format!("blocks.{}.{rest}", block % self.distinct))
        };
        of_block().unwrap_or_else(|| name.to_owned())
    }
}
