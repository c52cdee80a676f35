//! Graphs that build, and shapes that do not fit.

use super::*;
use crate::{DType, GeluForm, RopeStyle, Scores};

/// A small decoder in the shape of a Llama block, for tests of the analyses.
pub(crate) fn decoder(layers: u32, heads: u32, head_dim: u32, d: u64, ffn: u64, vocab: u64) -> Graph {
    build([layers, heads, head_dim], [d, ffn, vocab], None).expect("shapes fit")
}

/// As [`decoder`], with `top_k` of some experts of `ffn` columns in each block.
pub(crate) fn mixture(layers: u32, [experts, top_k]: [u32; 2], d: u64, ffn: u64, vocab: u64) -> Graph {
    build([layers, 2, 4], [d, ffn, vocab], Some([experts, top_k])).expect("shapes fit")
}

fn build(
    [layers, heads, head_dim]: [u32; 3],
    [d, ffn, vocab]: [u64; 3],
    experts: Option<[u32; 2]>,
) -> Result<Graph, GraphError> {
    let mut b = GraphBuilder::new("test", vocab, 128);
    let table = b.weight("embed.weight", &[vocab, d], DType::F16)?;
    let inv_freq = b.weight("rope.inv_freq", &[head_dim as u64 / 2], DType::F32)?;
    let rope = b.rope_table("rope", inv_freq, 1.0)?;
    let mut x = b.embed("embed", table)?;
    for i in 0..layers {
        b.set_layer(Some(i));
        let name = |part: &str| format!("blocks.{i}.{part}");
        let norm = b.weight(&name("ln1.weight"), &[d], DType::F16)?;
        let normed = b.rms_norm(&name("ln1"), x, norm, 1e-5)?;
        let width = (heads as u64 + 2) * head_dim as u64;
        let w = b.weight(&name("attn.qkv.weight"), &[width, d], DType::F16)?;
        let bias = b.weight(&name("attn.qkv.bias"), &[width], DType::F16)?;
        let qkv = b.linear(&name("attn.qkv"), normed, w, Some(bias))?;
        let geometry = Heads { heads, kv_heads: 1, head_dim };
        b.rope(&name("attn.rope"), qkv, rope, geometry, RopeStyle::Half)?;
        let attended = b.attention(&name("attn"), qkv, geometry, Scores::scaled(0.5))?;
        let w = b.weight(&name("attn.out.weight"), &[d, heads as u64 * head_dim as u64], DType::F16)?;
        let out = b.linear(&name("attn.out"), attended, w, None)?;
        x = b.add(&name("attn.add"), x, out)?;
        if let Some(experts) = experts {
            let y = mix(&mut b, &name, x, [d, ffn], experts)?;
            x = b.add(&name("mlp.add"), x, y)?;
            continue;
        }
        let w = b.weight(&name("mlp.gate_up.weight"), &[2 * ffn, d], DType::F16)?;
        let gate_up = b.linear(&name("mlp.gate_up"), x, w, None)?;
        let mid = b.silu_mul(&name("mlp.act"), gate_up)?;
        let w = b.weight(&name("mlp.down.weight"), &[d, ffn], DType::F16)?;
        let down = b.linear(&name("mlp.down"), mid, w, None)?;
        x = b.add(&name("mlp.add"), x, down)?;
        b.hook(x, name("hook_out"))?;
        b.hook(x, name("hook_resid_post"))?;
    }
    b.set_layer(None);
    let last = b.select_rows("select", x)?;
    let logits = b.linear("unembed", last, table, None)?;
    b.finish(logits)
}

fn mix(
    b: &mut GraphBuilder,
    name: &dyn Fn(&str) -> String,
    x: ValueId,
    [d, ffn]: [u64; 2],
    [experts, top_k]: [u32; 2],
) -> Result<ValueId, GraphError> {
    let router = b.weight(&name("mlp.router.weight"), &[experts.into(), d], DType::F16)?;
    let logits = b.linear(&name("mlp.router"), x, router, None)?;
    let routing = b.route(&name("mlp.route"), logits, top_k, true)?;
    let product = |b: &mut GraphBuilder, part: &str, x, shape: [u64; 2]| {
        let mut out = None;
        for e in 0..experts {
            let expert = name(&format!("mlp.experts.{e}.{part}"));
            let w = b.weight(&format!("{expert}.weight"), &shape, DType::F16)?;
            out = Some(b.expert_linear(&expert, x, &routing, e, w, out)?);
        }
        Ok::<_, GraphError>(out.expect("there are experts"))
    };
    let gate_up = product(b, "gate_up", x, [2 * ffn, d])?;
    let mid = b.silu_mul(&name("mlp.act"), gate_up)?;
    let y = product(b, "down", mid, [d, ffn])?;
    b.combine(&name("mlp.combine"), y, &routing)
}

#[test]
fn a_decoder_builds() {
    let graph = decoder(3, 4, 8, 32, 48, 100);
    assert_eq!(graph.nodes.iter().filter(|n| n.op.name() == "attention").count(), 3);
    let per_layer = 32 + 48 * 32 + 48 + 32 * 32 + 96 * 32 + 32 * 48;
    assert_eq!(graph.parameters(), 100 * 32 + 4 + 3 * per_layer);
    assert_eq!(graph.text_bytes(), 2 * graph.parameters() + 2 * 4);
    let value = |name| graph.hook(name).map(|hook| graph.value(hook.value).name.as_str());
    assert_eq!(value("blocks.2.hook_resid_post"), Some("blocks.2.mlp.add.out"));
    assert_eq!(value("blocks.2.hook_out"), value("blocks.2.hook_resid_post"));
    assert_eq!(value("blocks.3.hook_out"), None);
}

#[test]
fn wrong_shapes_are_refused_by_node() {
    let mut b = GraphBuilder::new("t", 10, 8);
    let table = b.weight("table", &[10, 6], DType::F32).unwrap();
    let x = b.embed("embed", table).unwrap();
    let w = b.weight("w", &[5, 7], DType::F32).unwrap();
    let error = b.linear("proj", x, w, None).unwrap_err();
    assert_eq!(error.to_string(), "proj: weight columns: expected 6, found 7");
    assert!(matches!(b.weight("w", &[1], DType::F32), Err(GraphError::DuplicateName(n)) if n == "w"));
    b.hook(x, "x".to_owned()).unwrap();
    assert!(matches!(b.hook(x, "x".to_owned()), Err(GraphError::DuplicateName(n)) if n == "x"));
    assert!(matches!(b.weight("huge", &[u64::MAX, 9], DType::F32), Err(GraphError::TooLarge(_))));
    let w = b.weight("qkv", &[28, 6], DType::F32).unwrap();
    let qkv = b.linear("qkv_proj", x, w, None).unwrap();
    let plain = Scores::scaled(1.0);
    let heads = |heads| Heads { heads, kv_heads: 2, head_dim: 4 };
    let error = b.attention("attn", qkv, heads(3), plain).unwrap_err().to_string();
    assert!(error.contains("3 heads do not share 2"), "{error}");
    assert!(b.attention("attn2", qkv, heads(2), plain).is_err());
    let error = classic(Some(0), 64).unwrap_err().to_string();
    assert_eq!(error, "attn: a window of no position");
}

/// The parts of GPT-2's shape: learned positions, LayerNorm with biases, GELU; with a window and biased scores.
pub(crate) fn classic(window: Option<u32>, context: u64) -> Result<Graph, GraphError> {
    let (d, vocab) = (16, 100);
    let mut b = GraphBuilder::new("classic", vocab, context);
    let table = b.weight("embed.weight", &[vocab, d], DType::F16)?;
    let positions = b.weight("pos_embed.weight", &[64, d], DType::F32)?;
    let (tokens, places) = (b.embed("embed", table)?, b.embed_positions("pos_embed", positions)?);
    let mut x = b.add("embed.add", tokens, places)?;
    b.set_layer(Some(0));
    let weight = b.weight("ln1.weight", &[d], DType::F16)?;
    let bias = b.weight("ln1.bias", &[d], DType::F32)?;
    let normed = b.layer_norm("ln1", x, weight, bias, 1e-5)?;
    let w = b.weight("attn.qkv.weight", &[48, d], DType::F16)?;
    let qkv = b.linear("attn.qkv", normed, w, None)?;
    let attended = b.attention(
        "attn",
        qkv,
        Heads { heads: 2, kv_heads: 2, head_dim: 8 },
        Scores { scale: 0.5, window, alibi: true },
    )?;
    x = b.add("attn.add", x, attended)?;
    x = b.gelu("mlp.act", x, GeluForm::Tanh)?;
    b.set_layer(None);
    let last = b.select_rows("select", x)?;
    let logits = b.linear("unembed", last, table, None)?;
    b.finish(logits)
}

#[test]
fn positions_are_gathered_like_tokens() {
    let graph = classic(None, 64).unwrap();
    let node = |name: &str| graph.nodes.iter().find(|n| n.name == name).unwrap();
    assert_eq!(node("embed").inputs, [graph.tokens]);
    assert_eq!(node("pos_embed").inputs, [graph.positions]);
    let tables: Vec<_> = crate::gathered_tables(&graph).into_iter().map(|t| &graph.value(t).name).collect();
    assert_eq!(tables, ["embed.weight", "pos_embed.weight"]);
    // The position table is no tile; the tied one is.
    let tiles = crate::tiles(&graph, 1 << 20);
    let names = tiles.iter().flat_map(|t| &t.parts).map(|p| graph.value(p.value).name.as_str());
    let names: Vec<&str> = names.collect();
    assert_eq!(names, ["ln1.weight", "ln1.bias", "attn.qkv.weight", "embed.weight"]);
    let error = classic(None, 65).unwrap_err().to_string();
    assert_eq!(error, "pos_embed: 64 positions are fewer than the context of 65");
}

#[test]
fn a_norm_s_bias_has_its_width() {
    let mut b = GraphBuilder::new("t", 10, 8);
    let table = b.weight("table", &[10, 6], DType::F32).unwrap();
    let x = b.embed("embed", table).unwrap();
    let weight = b.weight("weight", &[6], DType::F32).unwrap();
    let bias = b.weight("bias", &[5], DType::F32).unwrap();
    let error = b.layer_norm("ln", x, weight, bias, 1e-5).unwrap_err().to_string();
    assert_eq!(error, "ln: norm bias: expected [6, 1], found [5, 1]");
}

#[test]
fn constants_are_exported() {
    let export = |op: Op| serde_json::to_value(op).unwrap();
    let gelu = export(Op::Gelu { form: GeluForm::Erf });
    assert_eq!(gelu, serde_json::json!({ "op": "gelu", "form": "erf" }));
    let graph = classic(Some(7), 64).unwrap();
    let attention = graph.nodes.iter().find(|n| n.name == "attn").unwrap();
    let json = export(attention.op.clone());
    assert_eq!((&json["window"], &json["alibi"]), (&serde_json::json!(7), &serde_json::json!(true)));
}

#[test]
fn a_part_of_a_hook_lies_within_it() {
    let hook = Hook {
        name: "blocks.0.attn.hook_k".to_owned(),
        value: ValueId(3),
        after: NodeId(5),
        columns: (64, 16),
    };
    let part = hook.part(4..8).unwrap();
    assert_eq!((part.columns, part.part(1..2).unwrap().columns), ((68, 4), (69, 1)));
    assert!(part.is_part_of(&hook) && hook.is_part_of(&hook) && !hook.is_part_of(&part));
    for columns in [4..4, 15..17, 16..17] {
        assert_eq!(hook.part(columns.clone()), None, "{columns:?}");
    }
    for columns in [(63, 2), (79, 2), (64, 0)] {
        assert!(!Hook { columns, ..hook.clone() }.is_part_of(&hook), "{columns:?}");
    }
    assert!(!Hook { after: NodeId(6), ..part }.is_part_of(&hook));
}
