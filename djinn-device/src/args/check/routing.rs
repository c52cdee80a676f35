//! Checks of a mixture of experts' operations.

use super::Op;
use crate::Space;
use crate::args::{Combine, CopyExpert, ExpertLinear, Group, Route};

impl Op {
    fn experts(self, experts: u32) {
        let most = Route::MOST_EXPERTS;
        assert!((1..=most).contains(&experts), "{}: {experts} experts are not within 1 to {most}", self.0);
    }
}

impl Route {
    /// Checks sizes, alignment and overlap.
    ///
    /// # Panics
    /// If one of them is wrong.
    pub fn check(&self) {
        let op = Op("route");
        op.experts(self.experts);
        let most = self.experts.min(Route::MOST_CHOSEN);
        assert!((1..=most).contains(&self.top_k), "route: {} of {most} experts at most", self.top_k);
        let (rows, top_k) = (self.rows.into(), self.top_k.into());
        op.words("logits", self.logits, &[rows, self.experts.into()]);
        op.words("weights", self.weights, &[rows, top_k]);
        op.words("ids", self.ids, &[rows, top_k]);
        op.disjoint(self.weights, &[("logits", self.logits), ("ids", self.ids)]);
        op.disjoint(self.ids, &[("logits", self.logits)]);
    }
}

impl Group {
    /// Checks sizes, alignment and overlap.
    ///
    /// # Panics
    /// If one of them is wrong.
    pub fn check(&self) {
        let op = Op("group");
        op.experts(self.experts);
        let slots = self.slots.into();
        op.words("ids", self.ids, &[slots]);
        op.words("order", self.order, &[slots]);
        op.words("starts", self.starts, &[u64::from(self.experts) + 1]);
        op.disjoint(self.order, &[("ids", self.ids), ("starts", self.starts)]);
        op.disjoint(self.starts, &[("ids", self.ids)]);
    }
}

impl ExpertLinear {
    /// Checks sizes, alignment and overlap.
    ///
    /// # Panics
    /// If one of them is wrong.
    pub fn check(&self) {
        let op = Op("expert_linear");
        let (slots, k, n) = (self.slots.into(), self.k.into(), self.n.into());
        let most = ExpertLinear::MOST_SLOTS;
        assert!(self.slots <= most, "expert_linear: {slots} slots are more than {most}");
        assert!(
            self.slots_per_row > 0 && self.slots.is_multiple_of(self.slots_per_row),
            "expert_linear: {slots} slots are no multiple of {} a row",
            self.slots_per_row
        );
        op.words("x", self.x, &[slots / u64::from(self.slots_per_row), k]);
        op.weight("weight", self.weight, &[n, k]);
        op.words("order", self.order, &[slots]);
        op.words("starts", self.starts, &[self.starts.len() / 4]);
        assert!(
            u64::from(self.expert) + 1 < self.starts.len() / 4,
            "expert_linear: expert {} of starts with {} bytes",
            self.expert,
            self.starts.len()
        );
        op.words("out", self.out, &[slots, self.out_width.into()]);
        let inputs =
            [("x", self.x), ("weight", self.weight.span), ("order", self.order), ("starts", self.starts)];
        op.disjoint(self.out, &inputs);
        assert!(
            u64::from(self.out_column) + n <= self.out_width.into(),
            "expert_linear: {n} columns from {} do not fit {}",
            self.out_column,
            self.out_width
        );
    }
}

impl Combine {
    /// Checks sizes, alignment and overlap.
    ///
    /// # Panics
    /// If one of them is wrong.
    pub fn check(&self) {
        let op = Op("combine");
        let (rows, top_k, width) = (self.rows.into(), self.top_k.into(), self.width.into());
        op.words("y", self.y, &[rows, top_k, width]);
        op.words("weights", self.weights, &[rows, top_k]);
        op.words("out", self.out, &[rows, width]);
        op.disjoint(self.out, &[("y", self.y), ("weights", self.weights)]);
    }
}

impl CopyExpert {
    /// Checks sizes, spaces, alignment and overlap.
    ///
    /// # Panics
    /// If one of them is wrong.
    pub fn check(&self) {
        let op = Op("copy_expert");
        op.experts(self.experts);
        let (src, dst) = (self.src, self.dst);
        assert!(
            !src.is_empty() && src.len() == dst.len(),
            "copy_expert: a copy of {} bytes to {}",
            src.len(),
            dst.len()
        );
        assert!(dst.buffer().space() == Space::Device, "copy_expert: a copy to host memory, {dst:?}");
        op.words("starts", self.starts, &[u64::from(self.experts) + 1]);
        assert!(self.expert < self.experts, "copy_expert: expert {} of {}", self.expert, self.experts);
        assert!(
            self.moved.len() == 4 && self.moved.offset().is_multiple_of(4),
            "copy_expert: moved is no word, but {:?}",
            self.moved
        );
        op.disjoint(dst, &[("src", src), ("starts", self.starts), ("moved", self.moved)]);
        op.disjoint(self.moved, &[("src", src), ("starts", self.starts)]);
    }
}
