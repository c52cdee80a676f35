//! The stack plan against the definition: values that are needed together never share a byte, but for a sum in the place
//! of a term.

use super::{StackPlan, lifetimes};
use crate::graph::tests::{decoder, mixture};
use crate::{Graph, Op, Rows, ValueId};
use proptest::prelude::*;

fn disjoint(graph: &Graph, plan: &StackPlan, rows: Rows) {
    let lives: Vec<_> = lifetimes(graph).into_iter().flatten().collect();
    for (i, (a, life_a)) in lives.iter().enumerate() {
        let (start_a, end_a) = (plan.offset(*a), plan.offset(*a) + graph.value(*a).bytes(rows));
        assert!(end_a <= plan.bytes, "{} ends at {end_a} of {}", graph.value(*a).name, plan.bytes);
        for (b, life_b) in &lives[i + 1..] {
            let meet = life_a.start() <= life_b.end() && life_b.start() <= life_a.end();
            let (start_b, end_b) = (plan.offset(*b), plan.offset(*b) + graph.value(*b).bytes(rows));
            let share = start_a < end_b && start_b < end_a;
            let adds = adds(graph, life_a.end(), *a, *b) || adds(graph, life_b.end(), *b, *a);
            let in_place = (start_a, end_a) == (start_b, end_b) && adds;
            assert!(
                !(meet && share) || in_place,
                "{} and {} collide",
                graph.value(*a).name,
                graph.value(*b).name
            );
        }
    }
}

/// Whether the node at `at` adds `term` to another value, which gives `sum`.
fn adds(graph: &Graph, &at: &u32, term: ValueId, sum: ValueId) -> bool {
    let node = graph.nodes.get(at as usize);
    node.is_some_and(|node| node.op == Op::Add && node.inputs.contains(&term) && node.outputs == [sum])
}

proptest! {
    #[test]
    fn values_that_live_together_are_disjoint(layers in 1u32..5, heads in 1u32..5, d in 1u64..40,
                                              ffn in 1u64..50, rows in 1u64..40, logit_rows in 1u64..10) {
        let graph = decoder(layers, heads, 4, d, ffn, 17);
        let largest = Rows { rows, logit_rows };
        let plan = StackPlan::new(&graph, largest);
        disjoint(&graph, &plan, largest);
        disjoint(&graph, &plan, Rows { rows: 1, logit_rows: 1 });
    }

    #[test]
    fn slots_that_live_together_are_disjoint(layers in 1u32..3, experts in 1u32..9, top_k in 1u32..9, d in 1u64..40,
                                             ffn in 1u64..50, rows in 1u64..40) {
        let graph = mixture(layers, [experts, top_k.min(experts)], d, ffn, 17);
        let plan = StackPlan::new(&graph, Rows { rows, logit_rows: 1 });
        disjoint(&graph, &plan, Rows { rows, logit_rows: 1 });
        disjoint(&graph, &plan, Rows { rows: 1, logit_rows: 1 });
    }
}

#[test]
fn layers_reuse_the_same_bytes() {
    let rows = Rows { rows: 32, logit_rows: 1 };
    let few = StackPlan::new(&decoder(2, 2, 8, 64, 128, 99), rows);
    let many = StackPlan::new(&decoder(20, 2, 8, 64, 128, 99), rows);
    assert_eq!(few.bytes, many.bytes);
}

#[test]
fn a_residual_stream_stays_where_it_is() {
    let graph = decoder(3, 2, 8, 64, 128, 99);
    let plan = StackPlan::new(&graph, Rows { rows: 32, logit_rows: 1 });
    let sums: Vec<_> = graph.nodes.iter().filter(|node| node.op == Op::Add).collect();
    assert_eq!(sums.len(), 6);
    for sum in sums {
        let [residual, product] = [0, 1].map(|i| plan.offset(sum.inputs[i]));
        assert_eq!(plan.offset(sum.outputs[0]), residual, "{}", sum.name);
        assert_ne!(residual, product, "{}", sum.name);
    }
}
