//! Mixtures of experts: a router's choice, the chosen experts' products, and their sum.

#[cfg(test)]
mod tests;

use super::{GraphBuilder, Result};
use crate::{DType, Dim, Lifecycle, NodeId, Op, ValueId};

/// A router's choice, from [`GraphBuilder::route`], for the experts. A *slot* is a pair of a row and one of its
/// experts: slot `r · top_k + j` is row `r` with its `j`-th expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routing {
    /// f32 `[rows, top_k]`: the weight of each choice.
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
    /// More experts than [`Routing::MOST_EXPERTS`], or a `top_k` above `experts` or [`Routing::MOST_CHOSEN`].
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
        let weights = self.value(&format!("{name}.weights"), each(), Some(DType::F32), stack)?;
        let ids = self.value(&format!("{name}.ids"), each(), Some(DType::U32), stack)?;
        let order = self.value(&format!("{name}.order"), vec![Dim::Slots(top_k)], Some(DType::U32), stack)?;
        let starts = vec![Dim::Fixed(u64::from(experts) + 1)];
        let starts = self.value(&format!("{name}.starts"), starts, Some(DType::U32), stack)?;
        let op = Op::Route { experts, top_k, renormalise };
        self.push_into(name, op, vec![logits], vec![], vec![weights, ids]);
        let op = Op::Group { experts, top_k };
        self.push_into(&format!("{name}.group"), op, vec![ids], vec![], vec![order, starts]);
        let group = NodeId(self.graph.nodes.len() as u32 - 1);
        Ok(Routing { weights, ids, order, starts, experts, top_k, group })
    }

    /// `x · weight[n, k]ᵀ` for the slots of `expert`, in their rows of `[slots, n]`. The first expert's call makes
    /// that value, and the others get it as `into`. `x` is `[rows, k]`, with one row for all slots of a row, or
    /// `[slots, k]`.
    ///
    /// # Errors
    /// Shapes that do not fit, or an expert out of range.
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
        self.push_into(name, op, [inputs, vec![into]].concat(), weights, vec![into]);
        Ok(into)
    }

    /// The weighted sum of each row's slots in `y[slots, d]`: `[rows, d]`.
    ///
    /// # Errors
    /// A `y` with other slots than this routing's.
    pub fn combine(&mut self, name: &str, y: ValueId, routing: &Routing) -> Result<ValueId> {
        let &Routing { weights, top_k, .. } = routing;
        let (dim, d) = self.activation(name, y)?;
        self.expect(name, "rows", dim, Dim::Slots(top_k))?;
        self.push(name, Op::Combine { top_k }, vec![y, weights], vec![], Dim::Rows, d)
    }
}
