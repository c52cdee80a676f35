//! Graphs that build, and shapes that do not fit.

use super::*;
use crate::RopeStyle;

/// A small decoder in the shape of a Llama block, for tests of the analyses.
pub(crate) fn decoder(layers: u32, heads: u32, head_dim: u32, d: u64, ffn: u64, vocab: u64) -> Graph {
    build(layers, heads, head_dim, d, ffn, vocab).expect("shapes fit")
}

fn build(layers: u32, heads: u32, head_dim: u32, d: u64, ffn: u64, vocab: u64) -> Result<Graph, GraphError> {
    let kv = KvShape { layers, kv_heads: 1, head_dim };
    let mut b = GraphBuilder::new("test", kv, vocab, 128);
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
        b.rope(&name("attn.rope"), qkv, rope, heads, RopeStyle::Half)?;
        let attended = b.attention(&name("attn"), qkv, heads, 0.5)?;
        let w = b.weight(&name("attn.out.weight"), &[d, heads as u64 * head_dim as u64], DType::F16)?;
        let out = b.linear(&name("attn.out"), attended, w, None)?;
        x = b.add(&name("attn.add"), x, out)?;
        let w = b.weight(&name("mlp.gate_up.weight"), &[2 * ffn, d], DType::F16)?;
        let gate_up = b.linear(&name("mlp.gate_up"), x, w, None)?;
        let mid = b.silu_mul(&name("mlp.act"), gate_up)?;
        let w = b.weight(&name("mlp.down.weight"), &[d, ffn], DType::F16)?;
        let down = b.linear(&name("mlp.down"), mid, w, None)?;
        x = b.add(&name("mlp.add"), x, down)?;
        b.hook(x, name("hook_resid_post"));
    }
    b.set_layer(None);
    let last = b.select_rows("select", x)?;
    let logits = b.linear("unembed", last, table, None)?;
    b.finish(logits)
}

#[test]
fn a_decoder_builds() {
    let graph = decoder(3, 4, 8, 32, 48, 100);
    assert_eq!(graph.nodes.iter().filter(|n| n.op.name() == "attention").count(), 3);
    let per_layer = 32 + 48 * 32 + 48 + 32 * 32 + 96 * 32 + 32 * 48;
    assert_eq!(graph.parameters(), 100 * 32 + 4 + 3 * per_layer);
    assert_eq!(graph.text_bytes(), 2 * graph.parameters() + 2 * 4);
    assert!(graph.values.iter().any(|v| v.hook.as_deref() == Some("blocks.2.hook_resid_post")));
}

#[test]
fn wrong_shapes_are_refused_by_node() {
    let mut b = GraphBuilder::new("t", KvShape { layers: 1, kv_heads: 2, head_dim: 4 }, 10, 8);
    let table = b.weight("table", &[10, 6], DType::F32).unwrap();
    let x = b.embed("embed", table).unwrap();
    let w = b.weight("w", &[5, 7], DType::F32).unwrap();
    let error = b.linear("proj", x, w, None).unwrap_err();
    assert_eq!(error.to_string(), "proj: weight columns: expected 6, found 7");
    assert!(matches!(b.weight("w", &[1], DType::F32), Err(GraphError::DuplicateName(n)) if n == "w"));
    assert!(matches!(b.weight("huge", &[u64::MAX, 9], DType::F32), Err(GraphError::TooLarge(_))));
    let w = b.weight("qkv", &[28, 6], DType::F32).unwrap();
    let qkv = b.linear("qkv_proj", x, w, None).unwrap();
    assert!(
        b.attention("attn", qkv, 3, 1.0).unwrap_err().to_string().contains("3 heads do not share 2")
            || b.attention("attn2", qkv, 2, 1.0).is_err()
    );
}
