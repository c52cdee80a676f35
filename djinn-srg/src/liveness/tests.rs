//! The stack plan against the definition: values that are needed together never share a byte.

use super::{StackPlan, lifetimes};
use crate::graph::tests::{decoder, mixture};
use crate::{Graph, Rows};
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
            assert!(!(meet && share), "{} and {} collide", graph.value(*a).name, graph.value(*b).name);
        }
    }
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
