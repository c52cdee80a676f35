//! Places of caches that are not alike.

use super::*;
use crate::{GraphBuilder, Heads, Scores};

#[test]
fn blocks_without_attention_and_with_other_heads_have_their_places() {
    let mut b = GraphBuilder::new("t", 10, 8);
    let table = b.weight("table", &[10, 32], DType::F32).unwrap();
    let mut x = b.embed("embed", table).unwrap();
    for (layer, kv_heads) in [(0, 2), (2, 1), (3, 2)] {
        b.set_layer(Some(layer));
        let heads = Heads { heads: 2, kv_heads, head_dim: 16 };
        let columns = u64::from((2 + 2 * kv_heads) * 16);
        let w = b.weight(&format!("{layer}.w"), &[columns, 32], DType::F32).unwrap();
        let qkv = b.linear(&format!("{layer}.qkv"), x, w, None).unwrap();
        x = b.attention(&format!("{layer}.attn"), qkv, heads, Scores::scaled(0.25)).unwrap();
    }
    let last = b.select_rows("select", x).unwrap();
    let logits = b.linear("unembed", last, table, None).unwrap();
    let graph = b.finish(logits).unwrap();

    let plan = KvPlan::new(&graph);
    let place = |first, kv_heads| KvPlace { first, first_vector: first / 16, kv_heads, head_dim: 16 };
    assert_eq!(plan.places().collect::<Vec<_>>(), [place(0, 2), place(64, 1), place(96, 2)]);
    let types = [DType::F32, DType::BF16, DType::Int8];
    assert_eq!(types.map(|dtype| plan.token_bytes(dtype)), [640, 320, 160 + 10 * 4]);
    assert_eq!(types.map(|dtype| place(96, 2).first_byte(dtype)), [384, 192, 96 + 6 * 4]);
    // What is written is what attention reads.
    for (node, next) in graph.nodes.iter().zip(&graph.nodes[1..]).filter(|(n, _)| n.op.name() == "kv_write") {
        assert_eq!(node.outputs[0], next.inputs[1]);
        plan.place(node.outputs[0]);
    }
}

#[test]
#[should_panic(expected = "is not in the KV cache")]
fn other_values_have_no_place() {
    let graph = crate::graph::tests::decoder(1, 2, 8, 16, 24, 30);
    KvPlan::new(&graph).place(graph.logits);
}
