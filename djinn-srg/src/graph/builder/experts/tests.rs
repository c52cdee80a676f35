//! Experts are built in the order in which a pass uses them, or refused.

use super::*;

fn builder() -> (GraphBuilder, ValueId) {
    let mut b = GraphBuilder::new("t", 10, 8);
    let table = b.weight("table", &[10, 6], DType::F32).unwrap();
    let x = b.embed("embed", table).unwrap();
    (b, x)
}

fn routed(b: &mut GraphBuilder, x: ValueId, experts: u64, top_k: u32) -> Result<Routing> {
    let router = b.weight(&format!("router{experts}.{top_k}"), &[experts, 6], DType::F32)?;
    let logits = b.linear(&format!("logits{experts}.{top_k}"), x, router, None)?;
    b.route(&format!("route{experts}.{top_k}"), logits, top_k, true)
}

#[test]
fn experts_write_one_value_in_turn() {
    let (mut b, x) = builder();
    let routing = routed(&mut b, x, 3, 2).unwrap();
    let mut into = None;
    for expert in 0..3 {
        let w = b.weight(&format!("w{expert}"), &[8, 6], DType::F32).unwrap();
        into = Some(b.expert_linear(&format!("e{expert}"), x, &routing, expert, w, into).unwrap());
    }
    let mid = b.silu_mul("act", into.unwrap()).unwrap();
    let w = b.weight("down", &[6, 4], DType::F32).unwrap();
    let y = b.expert_linear("down0", mid, &routing, 0, w, None).unwrap();
    let out = b.combine("combine", y, &routing).unwrap();
    assert_eq!(b.graph.value(out).shape, [Dim::Rows, Dim::Fixed(6)]);
    assert_eq!(b.graph.value(mid).shape, [Dim::Slots(2), Dim::Fixed(4)]);
    let node = |name: &str| b.graph.nodes.iter().find(|n| n.name == name).unwrap();
    assert_eq!(b.graph.node(routing.group).name, "route3.2.group");
    assert_eq!(b.graph.node(routing.group).outputs, [routing.order, routing.starts]);
    let op = |slots_per_row, expert| Op::ExpertLinear { expert, experts: 3, slots_per_row };
    assert_eq!((&node("e2").op, &node("down0").op), (&op(2, 2), &op(1, 0)));
    assert_eq!((node("e0").inputs.len(), node("e2").inputs.last()), (3, into.as_ref()));
}

#[test]
fn what_does_not_fit_is_refused_by_node() {
    let (mut b, x) = builder();
    let text = |outcome: Result<Routing>| outcome.unwrap_err().to_string();
    assert!(text(routed(&mut b, x, 2000, 2)).ends_with("2000 experts are not within 1 to 1024"));
    assert!(text(routed(&mut b, x, 8, 9)).ends_with("9 experts of a row are not within 1 to 8"));
    assert!(text(routed(&mut b, x, 64, 17)).ends_with("17 experts of a row are not within 1 to 16"));
    let two = routed(&mut b, x, 8, 2).unwrap();
    let three = routed(&mut b, x, 8, 3).unwrap();
    assert!(b.route("again", two.ids, 1, true).is_err(), "ids are no activation");
    let w = b.weight("w", &[6, 6], DType::F32).unwrap();
    let y = b.expert_linear("y", x, &two, 0, w, None).unwrap();
    let text = |outcome: Result<ValueId>| outcome.unwrap_err().to_string();
    assert_eq!(text(b.expert_linear("a", x, &two, 8, w, None)), "a: expert 8 of 8");
    assert_eq!(text(b.expert_linear("b", y, &two, 1, w, Some(y))), "b: x is the output");
    assert!(text(b.expert_linear("c", x, &three, 1, w, Some(y))).starts_with("c: output: expected"));
    assert!(text(b.expert_linear("d", y, &three, 1, w, None)).contains("expected rows or slots"));
    assert_eq!(text(b.combine("e", y, &three)), "e: rows: expected Slots(3), found Slots(2)");
    assert_eq!(text(b.combine("f", x, &two)), "f: rows: expected Slots(2), found Rows");
    let narrow = b.weight("narrow", &[6, 5], DType::F32).unwrap();
    assert_eq!(
        text(b.expert_linear("g", x, &two, 1, narrow, None)),
        "g: weight columns: expected 6, found 5"
    );
}
