//! Tiles cover every weight's rows once, in order, whatever the tile size.

use super::*;
use crate::graph::tests::{decoder, mixture};
use proptest::prelude::*;

proptest! {
    #[test]
    fn tiles_cover_each_use_exactly(layers in 1u32..4, d in 1u64..50, ffn in 1u64..90, vocab in 1u64..200,
                                    size in 1u64..5000, experts in 0u32..5) {
        let graph = match experts {
            0 => decoder(layers, 2, 4, d, ffn, vocab),
            experts => mixture(layers, [experts, 1], d, ffn, vocab),
        };
        let tiles = tiles(&graph, size);
        let mut at = 0;
        for (i, node) in graph.nodes.iter().enumerate() {
            if node.weights.is_empty() || matches!(node.op, Op::Embed) {
                continue;
            }
            let rows = graph.value(node.weights[0]).matrix()[0];
            let mut next = 0;
            while next < rows {
                let tile = &tiles[at];
                prop_assert_eq!(tile.node, NodeId(i as u32));
                prop_assert_eq!(tile.rows.start, next);
                prop_assert!(tile.rows.end > next && tile.rows.end <= rows);
                let expert = match node.op {
                    Op::ExpertLinear { expert, .. } => Some(expert),
                    _ => None,
                };
                prop_assert_eq!(tile.condition.map(|c| (c.expert, c.experts, c.top_k)), expert.map(|e| (e, experts, 1)));
                if let Some(condition) = tile.condition {
                    let group = graph.node(condition.group);
                    prop_assert_eq!((group.op.name(), group.layer), ("group", node.layer));
                }
                for (part, &w) in tile.parts.iter().zip(&node.weights) {
                    let v = graph.value(w);
                    prop_assert_eq!(part.bytes, v.stored_bytes(next..tile.rows.end));
                }
                next = tile.rows.end;
                at += 1;
            }
        }
        prop_assert_eq!(at, tiles.len());
    }
}

#[test]
fn large_products_are_cut_near_the_tile_size() {
    let graph = decoder(1, 32, 128, 4096, 11008, 32000);
    let limit = tile_bytes(&graph);
    let tiles = tiles(&graph, limit);
    assert!(tiles.iter().all(|t| t.bytes() <= limit));
    assert!(tiles.iter().filter(|t| graph.node(t.node).name == "unembed").count() > 1);
    assert_eq!(gathered_tables(&graph).len(), 1);
}

#[test]
fn a_weight_whose_rows_are_empty_is_one_tile() {
    let graph = decoder(1, 2, 4, 8, 0, 16);
    let tiles = tiles(&graph, 64);
    let down: Vec<_> = tiles.iter().filter(|t| graph.node(t.node).name == "blocks.0.mlp.down").collect();
    let [tile] = down[..] else { panic!("{down:?}") };
    assert_eq!((&tile.rows, tile.bytes()), (&(0..8), 0));
}
