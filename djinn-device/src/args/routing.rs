//! Arguments of a mixture of experts' operations.
//!
//! A *slot* is a token's place with one of its experts: slot `r · top_k + j` is row `r`'s with the expert that it
//! chose `j`-th. [`Route`] chooses, [`Group`] lists each expert's slots, [`ExpertLinear`] multiplies one expert's
//! slots by its weight, and [`Combine`] adds what a row's slots give (sort-based dispatch, as in MegaBlocks, Gale et
//! al. 2023). [`CopyExpert`] fetches weights that the choice needs. [`CpuSlots`] are left to the CPU, whose
//! work is [`CpuExperts`].

use super::check::Checks;
use super::{SiluMul, Weight};
use crate::{Space, Span};
use djinn_srg::Routing;

/// `ids[r, :]` are the `top_k` greatest of `logits[r, :]` in descending order, the lower id first among equals;
/// `weights[r, j] = softmax(logits[r, :])[ids[r, j]]`, over all experts, divided by the sum of the row's weights if
/// `renormalise`, which is the softmax over the chosen ones.
///
/// A NaN is chosen as -∞ would be, so that the ids are valid and different whatever the logits are; it, and a
/// greatest logit that is infinite, make the row's weights NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// f32 `[rows, experts]`.
    pub logits: Span,
    /// f32 `[rows, top_k]`.
    pub weights: Span,
    /// u32 `[rows, top_k]`.
    pub ids: Span,
    /// Experts, up to [`Route::MOST_EXPERTS`].
    pub experts: u32,
    /// Experts of a row, up to [`Route::MOST_CHOSEN`] and to `experts`.
    pub top_k: u32,
    /// Whether a row's weights sum to one.
    pub renormalise: bool,
    /// Rows.
    pub rows: u32,
}

impl Route {
    pub(crate) fn check_sizes(&self, checks: Checks) {
        checks.experts(self.experts);
        let most = self.experts.min(Route::MOST_CHOSEN);
        assert!((1..=most).contains(&self.top_k), "route: {} of {most} experts at most", self.top_k);
        let (rows, top_k) = (self.rows.into(), self.top_k.into());
        checks.words("logits", self.logits, &[rows, self.experts.into()]);
        checks.words("weights", self.weights, &[rows, top_k]);
        checks.words("ids", self.ids, &[rows, top_k]);
    }
}

impl Route {
    /// The greatest number of experts.
    pub const MOST_EXPERTS: u32 = Routing::MOST_EXPERTS;
    /// The greatest number of experts of a row.
    pub const MOST_CHOSEN: u32 = Routing::MOST_CHOSEN;
}

/// The slots that the CPU computes: those with a row's choices `first..top_k` where one of the experts
/// `begin..end` is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuSlots {
    /// Experts of a row.
    pub top_k: u32,
    /// The first of a row's choices, by descending weight, that may be left to the CPU.
    pub first: u32,
    /// The first expert that the CPU can compute.
    pub begin: u32,
    /// The expert after the last of them.
    pub end: u32,
}

impl CpuSlots {
    /// The device computes all.
    pub const NONE: CpuSlots = CpuSlots { top_k: 1, first: 1, begin: 0, end: 0 };

    /// Whether a slot is among them, with the expert that is chosen there.
    pub const fn contains(&self, slot: u32, expert: u32) -> bool {
        slot % self.top_k >= self.first && self.begin <= expert && expert < self.end
    }

    fn check(&self, checks: Checks, slots: u32) {
        assert!(
            self.top_k > 0 && slots.is_multiple_of(self.top_k),
            "{}: {slots} slots are no multiple of {} a row",
            checks.0,
            self.top_k
        );
    }
}

/// `order[starts[e]..starts[e + 1]]` are the slots `s` with `ids[s] == e`, ascending, for every expert `e`: those that the
/// device computes, or those that the CPU does. Words of `order` after these are left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// u32 `[slots]`, each below `experts`, as [`Route`] gives them.
    pub ids: Span,
    /// u32 `[slots]`.
    pub order: Span,
    /// u32 `[experts + 1]`.
    pub starts: Span,
    /// Experts, up to [`Route::MOST_EXPERTS`].
    pub experts: u32,
    /// Rows times experts of a row.
    pub slots: u32,
    /// Which slots the CPU computes.
    pub cpu: CpuSlots,
    /// Whether these are listed, instead of all others.
    pub of_cpu: bool,
}

impl Group {
    pub(crate) fn check_sizes(&self, checks: Checks) {
        checks.experts(self.experts);
        let slots = self.slots.into();
        checks.words("ids", self.ids, &[slots]);
        checks.words("order", self.order, &[slots]);
        checks.words("starts", self.starts, &[u64::from(self.experts) + 1]);
        self.cpu.check(checks, self.slots);
    }
}

/// `out[s, out_column + j] = Σ x[s / slots_per_row, i] · weight[j, i]`, for the slots `s` of one expert and `j` in
/// `0..n`. Rows of other experts' slots are left alone, and without slots the weight is not read.
///
/// A row has the bits that [`Linear`](super::Linear) gives for it in a batch within
/// [`DeviceInfo::batch_invariant_rows`](crate::DeviceInfo::batch_invariant_rows), whatever other slots there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertLinear {
    /// f32 `[slots / slots_per_row, k]`.
    pub x: Span,
    /// `[n, k]`, the expert's.
    pub weight: Weight,
    /// u32 `[slots]`, of [`Group`].
    pub order: Span,
    /// u32 `[experts + 1]`, of [`Group`].
    pub starts: Span,
    /// f32 `[slots, out_width]`.
    pub out: Span,
    /// Columns of `x`.
    pub k: u32,
    /// Rows of the weight.
    pub n: u32,
    /// Columns of `out`.
    pub out_width: u32,
    /// First column written.
    pub out_column: u32,
    /// The expert.
    pub expert: u32,
    /// Slots that share a row of `x`: the experts of a row, or 1 where each slot has a row of its own.
    pub slots_per_row: u32,
    /// All experts' slots, up to [`ExpertLinear::MOST_SLOTS`].
    pub slots: u32,
}

impl ExpertLinear {
    pub(crate) fn check_sizes(&self, checks: Checks) {
        let (slots, k, n) = (self.slots.into(), self.k.into(), self.n.into());
        let most = ExpertLinear::MOST_SLOTS;
        assert!(self.slots <= most, "expert_linear: {slots} slots are more than {most}");
        assert!(
            self.slots_per_row > 0 && self.slots.is_multiple_of(self.slots_per_row),
            "expert_linear: {slots} slots are no multiple of {} a row",
            self.slots_per_row
        );
        checks.words("x", self.x, &[slots / u64::from(self.slots_per_row), k]);
        checks.matrix("weight", self.weight, [n, k]);
        checks.words("order", self.order, &[slots]);
        checks.words("starts", self.starts, &[self.starts.len() / 4]);
        assert!(
            u64::from(self.expert) + 1 < self.starts.len() / 4,
            "expert_linear: expert {} of starts with {} bytes",
            self.expert,
            self.starts.len()
        );
        checks.words("out", self.out, &[slots, self.out_width.into()]);
        assert!(
            u64::from(self.out_column) + n <= self.out_width.into(),
            "expert_linear: {n} columns from {} do not fit {}",
            self.out_column,
            self.out_width
        );
    }
}

impl ExpertLinear {
    /// The greatest number of slots.
    pub const MOST_SLOTS: u32 = 1 << 19;

    /// Checks the products of one [`expert_linears`](crate::Ops::expert_linears), and each for itself. They differ only in
    /// `weight`, `n`, `out_column` and `expert`. They are in the order of their experts, and those of an expert in the
    /// order of their columns, which do not overlap. So none reads or overwrites what another writes.
    ///
    /// # Panics
    /// If something is wrong.
    pub fn check_all(products: &[ExpertLinear]) {
        products.iter().for_each(ExpertLinear::check);
        for (before, after) in products.iter().zip(products.iter().skip(1)) {
            let &ExpertLinear { weight, n, out_column, expert, .. } = after;
            let alike = ExpertLinear { weight, n, out_column, expert, ..*before };
            assert!(alike == *after, "expert_linears: {after:?} is unlike {before:?}");
            let follows = expert == before.expert && out_column >= before.out_column + before.n;
            assert!(
                expert > before.expert || follows,
                "expert_linears: columns from {out_column} of expert {expert} after {} from {} of expert {}",
                before.n,
                before.out_column,
                before.expert
            );
        }
    }
}

/// `out[r, i] = Σ weights[r, j] · y[r · top_k + j, i]`, added in the order of `j`. Slots that the CPU computed are read
/// from `cpu_y` instead of `y`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Combine {
    /// f32 `[rows · top_k, width]`.
    pub y: Span,
    /// f32 `[rows, top_k]`.
    pub weights: Span,
    /// f32 `[rows, width]`.
    pub out: Span,
    /// Slots of a row.
    pub top_k: u32,
    /// Columns.
    pub width: u32,
    /// Rows.
    pub rows: u32,
    /// Which slots the CPU computed.
    pub cpu: CpuSlots,
    /// u32 `[rows, top_k]`: the experts of all slots. Only with slots of the CPU.
    pub ids: Option<Span>,
    /// f32 `[rows · top_k, width]`: the results of the CPU. Only with slots of the CPU.
    pub cpu_y: Option<Span>,
}

impl Combine {
    pub(crate) fn check_sizes(&self, checks: Checks) {
        let (rows, top_k, width) = (self.rows.into(), self.top_k.into(), self.width.into());
        checks.words("y", self.y, &[rows, top_k, width]);
        checks.words("weights", self.weights, &[rows, top_k]);
        checks.words("out", self.out, &[rows, width]);
        let with_cpu = self.cpu != CpuSlots::NONE;
        let given = [self.ids, self.cpu_y].map(|span| span.is_some() == with_cpu);
        assert!(given == [true; 2], "combine: {:?} with {:?} and {:?}", self.cpu, self.ids, self.cpu_y);
        assert!(!with_cpu || self.cpu.top_k == self.top_k, "combine: {:?} of {top_k}", self.cpu);
        self.ids.inspect(|&ids| checks.words("ids", ids, &[rows, top_k]));
        self.cpu_y.inspect(|&y| checks.words("cpu_y", y, &[rows, top_k, width]));
    }
}

/// The slots of some experts through their gated feed-forward blocks, computed by the CPU: `down(silu_mul(up(x)))`.
/// All spans lie in host memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuExperts {
    /// The first products. Their output is `act.x`.
    pub up: Vec<ExpertLinear>,
    /// The activation. Rows of other slots are left undefined in its input and its output.
    pub act: SiluMul,
    /// The last products. Their `x` is `act.out`.
    pub down: Vec<ExpertLinear>,
}

impl CpuExperts {
    /// Checks the products as those of two [`expert_linears`](crate::Ops::expert_linears), and that they follow one another.
    /// There is at least one of each.
    ///
    /// # Panics
    /// If something is wrong.
    pub fn check(&self) {
        ExpertLinear::check_all(&self.up);
        ExpertLinear::check_all(&self.down);
        self.act.check();
        let slots = self.act.rows;
        assert!(!self.up.is_empty() && !self.down.is_empty(), "experts on the CPU: none");
        let follows = self.up.iter().all(|up| up.out == self.act.x && up.slots == slots)
            && self.down.iter().all(|down| down.x == self.act.out && down.slots == slots);
        assert!(follows, "experts on the CPU: {:?} is not between its products", self.act);
    }
}

/// `dst = src` if the expert has slots, i.e. `starts[expert + 1] > starts[expert]`, and `moved = 1`; else `moved = 0`,
/// and `src` and `dst` are not touched. The device decides: the host enqueues it without knowing the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyExpert {
    /// Any bytes, in either space, from anywhere on; multiples of 16 are the fastest.
    pub src: Span,
    /// As many bytes, on the device, from anywhere on.
    pub dst: Span,
    /// u32 `[experts + 1]`, of [`Group`].
    pub starts: Span,
    /// u32, one, at a multiple of 4 bytes.
    pub moved: Span,
    /// The expert.
    pub expert: u32,
    /// Experts, up to [`Route::MOST_EXPERTS`].
    pub experts: u32,
}

impl CopyExpert {
    pub(crate) fn check_sizes(&self, checks: Checks) {
        checks.experts(self.experts);
        let (src, dst) = (self.src, self.dst);
        assert!(
            !src.is_empty() && src.len() == dst.len(),
            "copy_expert: a copy of {} bytes to {}",
            src.len(),
            dst.len()
        );
        assert!(dst.buffer().space() == Space::Device, "copy_expert: a copy to host memory, {dst:?}");
        checks.words("starts", self.starts, &[u64::from(self.experts) + 1]);
        assert!(self.expert < self.experts, "copy_expert: expert {} of {}", self.expert, self.experts);
        assert!(
            self.moved.len() == 4 && self.moved.offset().is_multiple_of(4),
            "copy_expert: moved is no word, but {:?}",
            self.moved
        );
    }
}

impl CopyExpert {
    /// Checks the copies of one [`copy_experts`](crate::Ops::copy_experts), and each for itself. They follow one choice of a
    /// router. Their destinations lie apart in one buffer, in which nothing else lies that they use. `moved` ascends in
    /// another, and stays where it is from one part of an expert to the next.
    ///
    /// # Panics
    /// If something is wrong.
    pub fn check_all(copies: &[CopyExpert]) {
        copies.iter().for_each(CopyExpert::check);
        let Some(first) = copies.first() else { return };
        let mut written: Vec<Span> = copies.iter().map(|copy| copy.dst).collect();
        written.sort_unstable_by_key(|dst| dst.offset());
        for copy in copies {
            let alike = (copy.starts, copy.experts) == (first.starts, first.experts);
            assert!(alike, "copy_experts: {copy:?} follows another choice than {first:?}");
            let ring = first.dst.buffer();
            let [src, moved, starts] = [copy.src, copy.moved, copy.starts].map(|span| span.buffer() != ring);
            assert!(
                copy.dst.buffer() == ring && src && moved && starts,
                "copy_experts: {copy:?} beside {ring:?}"
            );
        }
        for (before, after) in copies.iter().zip(&copies[1..]) {
            let ascends = before.moved.buffer() == after.moved.buffer()
                && before.moved.offset() < after.moved.offset()
                || before.moved == after.moved && before.expert == after.expert;
            assert!(ascends, "copy_experts: {:?} after {:?}", after.moved, before.moved);
        }
        for (before, after) in written.iter().zip(&written[1..]) {
            assert!(!before.overlaps(*after), "copy_experts: {after:?} overlaps {before:?}");
        }
    }
}

impl Checks {
    fn experts(self, experts: u32) {
        let most = Route::MOST_EXPERTS;
        assert!((1..=most).contains(&experts), "{}: {experts} experts are not within 1 to {most}", self.0);
    }
}
