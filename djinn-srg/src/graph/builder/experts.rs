//! Mixtures of experts: a router's choice, the products of the chosen, and their sum.

use super::{GraphBuilder, Result};
use crate::{DType, Dim, Lifecycle, NodeId, Op, ValueId};

/// What a router chose, as [`GraphBuilder::route`] gives it to the experts. A *slot* is a row's place with one of its
/// experts: slot `r · top_k + j` is row `r`'s with the expert that it chose `j`-th.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routing {
    /// f32 `[rows, top_k]`: what each choice counts.
    pub weights: ValueId,
    /// u32 `[rows, top_k]`: the experts.
    pub ids: ValueId,
    /// u32 `[slots]`: the slots, by expert.
    pub order: ValueId,
    /// u32 `[experts + 1]`: where each expert's slots begin in `order`.
    pub starts: ValueId,
    /// Experts to choose from.
    pub experts: u32,
    /// Experts of a row.
    pub top_k: u32,
    /// The node after which `order` and `starts` are known.
    pub group: NodeId,
}

impl Routing {
    /// The greatest number of experts.
    pub const MOST_EXPERTS: u32 = 1024;
    /// The greatest number of experts of a row.
    pub const MOST_CHOSEN: u32 = 16;
}

impl GraphBuilder {
    /// Chooses `top_k` experts for each row of `logits[rows, experts]`, and groups their slots by expert: the nodes
    /// `name` and `name.group`.
    ///
    /// # Errors
    /// More experts than [`Routing::MOST_EXPERTS`], or more of a row than there are or
    /// [`Routing::MOST_CHOSEN`].
    pub fn route(&mut self, name: &str, logits: ValueId, top_k: u32, renormalise: bool) -> Result<Routing> {
        let (dim, width) = self.activation(name, logits)?;
        self.expect(name, "rows of the logits", dim, Dim::Rows)?;
        let most = Routing::MOST_EXPERTS;
        let Some(experts) = u32::try_from(width).ok().filter(|n| (1..=most).contains(n)) else {
            return Err(self.shape(name, format!("{width} experts are not within 1 to {most}")));
        };
        let most = experts.min(Routing::MOST_CHOSEN);
        if !(1..=most).contains(&top_k) {
            return Err(self.shape(name, format!("{top_k} experts of a row are not within 1 to {most}")));
        }
        let each = || vec![Dim::Rows, Dim::Fixed(top_k.into())];
        let stack = Lifecycle::Stack;
        let weights = self.value(&format!("{name}.weights"), each(), DType::F32, stack)?;
        let ids = self.value(&format!("{name}.ids"), each(), DType::U32, stack)?;
        let order = self.value(&format!("{name}.order"), vec![Dim::Slots(top_k)], DType::U32, stack)?;
        let starts = vec![Dim::Fixed(u64::from(experts) + 1)];
        let starts = self.value(&format!("{name}.starts"), starts, DType::U32, stack)?;
        self.push_into(name, Op::Route { experts, top_k, renormalise }, vec![logits], vec![], weights)?;
        self.also(ids);
        let op = Op::Group { experts, top_k };
        self.push_into(&format!("{name}.group"), op, vec![ids], vec![], order)?;
        self.also(starts);
        let group = NodeId(self.graph.nodes.len() as u32 - 1);
        Ok(Routing { weights, ids, order, starts, experts, top_k, group })
    }

    /// `x · weight[n, k]ᵀ` for the slots of `expert`, in their rows of `[slots, n]`: of a value that the first
    /// expert's call makes, and that the others' get as `into`. `x` is `[rows, k]`, whose rows their slots share, or
    /// `[slots, k]`.
    ///
    /// # Errors
    /// Shapes that do not fit, or an expert that there is not.
    pub fn expert_linear(
        &mut self,
        name: &str,
        x: ValueId,
        routing: &Routing,
        expert: u32,
        weight: ValueId,
        into: Option<ValueId>,
    ) -> Result<ValueId> {
        let &Routing { order, starts, experts, top_k, .. } = routing;
        let (dim, k) = self.activation(name, x)?;
        let slots_per_row = match dim {
            Dim::Rows => top_k,
            Dim::Slots(each) if each == top_k => 1,
            other => return Err(self.shape(name, format!("x: expected rows or slots, found {other:?}"))),
        };
        let [n, columns] = self.graph.value(weight).matrix();
        self.expect(name, "weight columns", columns, k)?;
        if expert >= experts {
            return Err(self.shape(name, format!("expert {expert} of {experts}")));
        }
        let op = Op::ExpertLinear { expert, experts, slots_per_row };
        let (inputs, weights) = (vec![x, order, starts], vec![weight]);
        let Some(into) = into else { return self.push(name, op, inputs, weights, Dim::Slots(top_k), n) };
        let found = self.activation(name, into)?;
        self.expect(name, "output", found, (Dim::Slots(top_k), n))?;
        if into == x {
            return Err(self.shape(name, "x is the output".to_owned()));
        }
        self.push_into(name, op, [inputs, vec![into]].concat(), weights, into)?;
        Ok(into)
    }

    /// What the slots of each row give, `y[slots, d]`, by their weights and added: `[rows, d]`.
    ///
    /// # Errors
    /// A `y` that is not of this routing's slots.
    pub fn combine(&mut self, name: &str, y: ValueId, routing: &Routing) -> Result<ValueId> {
        let &Routing { weights, top_k, .. } = routing;
        let (dim, d) = self.activation(name, y)?;
        self.expect(name, "rows", dim, Dim::Slots(top_k))?;
        self.push(name, Op::Combine { top_k }, vec![y, weights], vec![], Dim::Rows, d)
    }

    /// One more output of the latest node.
    fn also(&mut self, output: ValueId) {
        self.graph.nodes.last_mut().expect("a node was pushed").also.push(output);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KvShape;

    fn builder() -> (GraphBuilder, ValueId) {
        let mut b = GraphBuilder::new("t", KvShape { layers: 1, kv_heads: 1, head_dim: 4 }, 10, 8);
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
        assert_eq!(
            b.graph.node(routing.group).outputs().collect::<Vec<_>>(),
            [routing.order, routing.starts]
        );
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
}
