//! Programs compute every node and read every tile once, in order, with each streamed chunk between its brackets.

use super::*;
use crate::Budget;
use crate::plan::tests::{decoder, demand, mixture};
use djinn_srg::DType;
use djinn_srg::GraphBuilder;
use proptest::prelude::*;

/// Nodes in the order in which launches finish them.
fn nodes(program: &Program) -> Vec<NodeId> {
    let of = |launch: &Launch| [Some(launch.node), launch.fused.map(|fused| fused.node)];
    let mut nodes: Vec<NodeId> = program.launches.iter().flat_map(of).flatten().collect();
    nodes.dedup();
    nodes
}

proptest! {
    #[test]
    fn every_node_and_tile_comes_once_in_order_within_its_chunk(
        layers in 1u32..4, d8 in 1u64..6, ffn in 1u64..400, vocab in 1u64..2000, tied: bool,
        fraction in 0.0f64..=1.0, cap in 1u64..4, experts in 0u32..5, apart: bool,
    ) {
        let chosen = experts.min(2);
        let graph = mixture(layers, 8 * d8, ffn, vocab, tied, [experts, chosen]);
        let chunk = Some(cap * djinn_srg::tile_bytes(&graph) * 2);
        let budget = Budget { resident_fraction: Some(fraction), chunk, ..Budget::default() };
        let plan = MemoryPlan::new(&graph, &budget, &demand(&graph, 16, 64)).unwrap();
        let placement = &plan.placement;
        let detail = if apart { Detail::Apart } else { Detail::Fused };
        let program = Program::new(&graph, &plan, detail);
        let all: Vec<NodeId> = (0..graph.nodes.len() as u32).map(NodeId).collect();
        prop_assert_eq!(nodes(&program), all);
        let (mut tile, mut held) = (0, None);
        for (at, launch) in program.launches.iter().enumerate() {
            prop_assert_eq!(launch.tiles.start, tile);
            tile = launch.tiles.end;
            prop_assert!(!apart || launch.fused.is_none() && launch.tiles.len() <= 1);
            if let Some(chunk) = launch.acquire {
                prop_assert_eq!(held.replace(chunk), None, "one chunk at a time");
            }
            for placed in &placement.tiles[launch.tiles.clone()] {
                let of_pair = launch.fused.is_some_and(|fused| fused.node == placed.tile.node);
                prop_assert!(of_pair || placed.tile.node == launch.node);
                let streamed = placement.slots[placed.chunk.0 as usize].is_some();
                prop_assert!(!streamed || held == Some(placed.chunk));
            }
            if let Some(chunk) = launch.release {
                prop_assert_eq!(held.take(), Some(chunk));
            }
            if let Some(NextProduct { node, tiles, alone }) = launch.read_by.clone() {
                let (product, next) = (graph.node(node), &program.launches[at + 1]);
                let given = launch.fused.map_or(launch.node, |fused| fused.node);
                prop_assert_eq!((tiles.start, &product.op), (launch.tiles.end, &djinn_srg::Op::Linear));
                prop_assert_eq!((next.node, &next.tiles), (node, &tiles));
                prop_assert!(!apart && product.inputs[0] == graph.node(given).outputs[0]);
                let tiles = placement.tiles.iter().filter(|placed| placed.tile.node == node).count();
                let whole = next.tiles.len() == tiles && launch.release.is_none() && next.acquire.is_none();
                let reads = |other: &&djinn_srg::Node| other.inputs.contains(&product.inputs[0]);
                prop_assert_eq!(alone, whole && graph.nodes.iter().filter(reads).count() == 1);
            }
        }
        for (at, launch) in program.launches.iter().enumerate() {
            let of_expert = |launch: &Launch| matches!(graph.node(launch.node).op, Op::ExpertLinear { .. });
            let chunk = |launch: &Launch| placement.tiles[launch.tiles.start].chunk;
            let resident = |launch: &Launch| placement.slots[chunk(launch).0 as usize].is_none();
            let next = program.launches.get(at + 1).filter(|next| of_expert(launch) && of_expert(next));
            let joins = next.is_some_and(|next| {
                let nearby = chunk(launch) == chunk(next) || resident(launch) && resident(next);
                nearby && graph.node(launch.node).outputs == graph.node(next.node).outputs
            });
            prop_assert_eq!(launch.joins_next, joins && !apart);
        }
        for (at, launch) in program.launches.iter().enumerate() {
            let given = graph.node(launch.node).outputs[0];
            let next = program.launches.get(at + 1).map(|next| next.node);
            let adds = next.is_some_and(|next| {
                let readers = graph.nodes.iter().filter(|node| node.inputs.contains(&given)).count();
                let node = graph.node(next);
                node.op == djinn_srg::Op::Add && node.inputs.contains(&given) && readers == 1
            });
            let tiles = placement.tiles.iter().filter(|placed| placed.tile.node == launch.node).count();
            let product = graph.node(launch.node).op == djinn_srg::Op::Linear && launch.tiles.len() == tiles;
            prop_assert_eq!(launch.added_by, next.filter(|_| !apart && product && adds));
        }
        prop_assert_eq!((tile, held), (placement.tiles.len(), None));
        let acquired: Vec<ChunkId> = program.launches.iter().filter_map(|launch| launch.acquire).collect();
        prop_assert_eq!(acquired, placement.streamed().collect::<Vec<_>>());
        let announced = program.launches.iter().filter(|launch| launch.announces.is_some()).count() as u32;
        prop_assert_eq!(announced, if experts > 0 { layers } else { 0 });
    }
}

#[test]
fn a_value_is_complete_after_its_last_writer() {
    let graph = decoder(2, 32, 64, 100, false);
    let plan = MemoryPlan::new(&graph, &Budget::default(), &demand(&graph, 16, 64)).unwrap();
    let value = |name: &str| graph.ids().find(|(_, value)| value.name == name).expect("it is there").0;
    for detail in [Detail::Fused, Detail::Apart] {
        let program = Program::new(&graph, &plan, detail);
        let node = |at: usize| graph.node(program.launches[at].node).name.as_str();
        // The rotation works in place.
        assert_eq!(program.completes(&graph, value("1.qkv.out")).map(node), Some("1.rope"));
        assert_eq!(program.completes(&graph, value("1.add2.out")).map(node), Some("1.add2"));
        assert_eq!(program.completes(&graph, graph.tokens), None, "no launch writes the step's inputs");
        let told = program.launches.iter().any(|launch| launch.read_by.is_some());
        assert_eq!(told, detail == Detail::Fused, "what products read next");
    }
}

/// With few rows a sum and its norm are one launch wherever they lie; with many, only if the norm's output meets no
/// input of the sum.
#[test]
fn a_pair_is_one_launch_for_as_many_rows_as_its_values_are_apart() {
    let mut b = GraphBuilder::new("pairs", 10, 16);
    let table = b.weight("embed", &[10, 8], DType::F32).unwrap();
    let mut x = b.embed("x", table).unwrap();
    for i in 0..3 {
        let norm = b.weight(&format!("{i}.ln"), &[8], DType::F32).unwrap();
        let w = b.weight(&format!("{i}.w"), &[8 + 8 * i, 8], DType::F32).unwrap();
        let back = b.weight(&format!("{i}.back"), &[8, 8 + 8 * i], DType::F32).unwrap();
        let y = b.linear(&format!("{i}.y"), x, w, None).unwrap();
        let z = b.linear(&format!("{i}.z"), y, back, None).unwrap();
        let sum = b.add(&format!("{i}.sum"), x, z).unwrap();
        x = b.rms_norm(&format!("{i}.norm"), sum, norm, 1e-5).unwrap();
    }
    let last = b.select_rows("select", x).unwrap();
    let logits = b.linear("logits", last, table, None).unwrap();
    let graph = b.finish(logits).unwrap();
    let plan = MemoryPlan::new(&graph, &Budget::default(), &demand(&graph, 40, 64)).unwrap();
    let program = Program::new(&graph, &plan, Detail::Fused);
    let mut pairs = 0;
    for launch in &program.launches {
        let Some(fused) = launch.fused else { continue };
        pairs += 1;
        for rows in 1..=40 {
            let place = |id: ValueId| {
                let start = plan.stack.offset(id);
                start..start + graph.value(id).bytes(Rows { rows, logit_rows: 1 })
            };
            let out = place(graph.node(fused.node).outputs[0]);
            let apart = |input: Range<u64>| input == out || input.end <= out.start || out.end <= input.start;
            let all = graph.node(launch.node).inputs.iter().all(|&input| apart(place(input)));
            assert_eq!(rows <= fused.most_rows, all, "{rows} rows of {fused:?}");
        }
    }
    assert_eq!(pairs, 3);
}

/// Experts join in ascending order, for one output, from one input.
#[test]
fn experts_join_what_is_alike_and_in_order() {
    let mut b = GraphBuilder::new("experts", 10, 16);
    let table = b.weight("embed", &[10, 8], DType::F32).unwrap();
    let x = b.embed("x", table).unwrap();
    let router = b.weight("router", &[4, 8], DType::F32).unwrap();
    let chosen = b.linear("chosen", x, router, None).unwrap();
    let routing = b.route("route", chosen, 2, true).unwrap();
    let mut product = |name: &str, x, expert, into| {
        let w = b.weight(&format!("{name}.w"), &[8, 8], DType::F32).unwrap();
        b.expert_linear(name, x, &routing, expert, w, into).unwrap()
    };
    let first = product("first0", x, 0, None);
    product("first1", x, 1, Some(first));
    product("first3", x, 3, Some(first));
    product("first2", x, 2, Some(first));
    let second = product("second3", x, 3, None);
    let third = product("third0", first, 0, None);
    product("third1", second, 1, Some(third));
    product("third2", second, 2, Some(third));
    let mixed = b.combine("combine", third, &routing).unwrap();
    let last = b.select_rows("select", mixed).unwrap();
    let logits = b.linear("logits", last, table, None).unwrap();
    let graph = b.finish(logits).unwrap();
    let plan = MemoryPlan::new(&graph, &Budget::default(), &demand(&graph, 16, 64)).unwrap();
    let joined = |detail| -> Vec<String> {
        let launches = Program::new(&graph, &plan, detail).launches.into_iter();
        launches.filter(|launch| launch.joins_next).map(|at| graph.node(at.node).name.clone()).collect()
    };
    assert_eq!(joined(Detail::Fused), ["first0", "first1", "third1"]);
    assert!(joined(Detail::Apart).is_empty());
}
