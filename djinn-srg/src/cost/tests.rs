//! Costs against hand-made counts.

use super::*;
use crate::graph::tests::{classic, decoder, mixture};

#[test]
fn a_decode_pass_reads_every_weight_once_but_the_embedding_table() {
    let graph = decoder(2, 4, 8, 32, 64, 100);
    let cost = pass(&graph, &Work::decode(1, 10, DType::F16));
    // The tied table is read in full by the output projection, and one row of it by the embedding.
    assert_eq!(cost.text_bytes, (graph.text_bytes() + 32 * 2) as f64);
    // Ten positions read and one written, keys and values, one kv head of 8, in both layers.
    assert_eq!(cost.data_bytes, (2 * (10 + 1) * 2 * 8 * 2) as f64);
}

#[test]
fn linear_flops_are_two_per_weight_and_row() {
    let graph = decoder(1, 1, 8, 32, 64, 100);
    let unembed = NodeId(graph.nodes.len() as u32 - 1);
    let cost = node(&graph, unembed, &Work::decode(3, 5, DType::F16));
    assert_eq!(cost.flops, 2.0 * 3.0 * 100.0 * 32.0);
}

#[test]
fn experts_count_by_how_often_they_are_chosen() {
    let graph = mixture(2, [8, 2], 32, 48, 100);
    let expert = 3 * 48 * 32 * 2;
    let experts = (2 * 8 * expert) as f64;
    let read = |rows| pass(&graph, &Work::decode(rows, 10, DType::F16)).text_bytes;
    // What is no expert's is read by every step, but for a row of the embedding for each of the step's.
    let dense = |rows: u64| graph.text_bytes() as f64 - experts + (rows * 32 * 2) as f64;
    for (rows, share) in [(1, 0.25), (2, 1.0 - 0.5625), (1000, 1.0)] {
        assert!((read(rows) - dense(rows) - share * experts).abs() < 1e-3, "{rows} rows");
    }
    let node = |name: &str| {
        let index = graph.nodes.iter().position(|n| n.name == name).unwrap();
        node(&graph, NodeId(index as u32), &Work::decode(12, 10, DType::F16))
    };
    // Three of 24 slots are an expert's.
    assert_eq!(node("blocks.1.mlp.experts.3.down").flops, 2.0 * 3.0 * 48.0 * 32.0);
    assert_eq!(node("blocks.1.mlp.experts.3.down").stack_bytes, 3.0 * 4.0 * (48.0 + 32.0 + 1.0));
    assert_eq!(node("blocks.1.mlp.act").flops, 4.0 * 24.0 * 48.0);
    assert_eq!(node("blocks.1.mlp.combine").flops, 2.0 * 24.0 * 32.0);
}

#[test]
fn a_window_bounds_what_attention_reads_and_computes() {
    let cost = |window, work: Work| {
        let graph = classic(window, 64).unwrap();
        let attention = graph.nodes.iter().position(|n| n.name == "attn").unwrap();
        node(&graph, NodeId(attention as u32), &work)
    };
    let decode = Work::decode(3, 40, DType::F16);
    // Two key and two value vectors of 8 for each position.
    assert_eq!(cost(None, decode).data_bytes, (3 * 40 * 2 * 2 * 8 * 2) as f64);
    assert_eq!(cost(Some(10), decode).data_bytes, (3 * 10 * 2 * 2 * 8 * 2) as f64);
    assert_eq!(cost(Some(10), decode).flops, 4.0 * 3.0 * 16.0 * 10.0);
    assert_eq!(cost(Some(41), decode), cost(None, decode));
    // All of a prompt's positions are in some row's window.
    let prefill = Work::prefill(40, DType::F16);
    assert_eq!(cost(Some(10), prefill).data_bytes, cost(None, prefill).data_bytes);
    assert_eq!(cost(Some(10), prefill).flops * 2.0, cost(None, prefill).flops);
}

#[test]
fn each_row_reads_a_row_of_the_position_table() {
    let graph = classic(None, 64).unwrap();
    let embed = graph.nodes.iter().position(|n| n.name == "pos_embed").unwrap();
    let cost = node(&graph, NodeId(embed as u32), &Work::decode(3, 5, DType::F16));
    assert_eq!(cost.text_bytes, (3 * 16 * 4) as f64);
}
