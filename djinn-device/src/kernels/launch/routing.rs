//! Launches of a mixture of experts' operations.

use super::View;
use crate::args;
use crate::cpu::memory::Memory;
use crate::kernels::reference::routing as reference;
use crate::kernels::{Kernels, Path, data};

impl Kernels {
    /// See [`args::Route`].
    pub(crate) fn route(&self, memory: &Memory, args: &args::Route) {
        let view = View(memory);
        let op = data::Route {
            logits: view.floats(args.logits),
            experts: args.experts as usize,
            top_k: args.top_k as usize,
            renormalise: args.renormalise,
            weights: view.output(args.weights),
            ids: view.output_indices(args.ids),
        };
        match &self.path {
            Path::Reference => reference::route(op),
            Path::Fast(fast) => fast.route(op),
        }
    }

    /// See [`args::Group`].
    pub(crate) fn group(&self, memory: &Memory, args: &args::Group) {
        let view = View(memory);
        let op = data::Group {
            ids: view.indices(args.ids),
            order: view.output_indices(args.order),
            starts: view.output_indices(args.starts),
        };
        match &self.path {
            Path::Reference => reference::group(op),
            Path::Fast(fast) => fast.group(op),
        }
    }

    /// See [`args::ExpertLinear`].
    pub(crate) fn expert_linear(&self, memory: &Memory, args: &args::ExpertLinear) {
        let view = View(memory);
        let (starts, expert) = (view.indices(args.starts), args.expert as usize);
        let op = data::ExpertLinear {
            x: view.floats(args.x),
            weight: view.weight(args.weight),
            slots: &view.indices(args.order)[starts[expert] as usize..starts[expert + 1] as usize],
            slots_per_row: args.slots_per_row as usize,
            k: args.k as usize,
            n: args.n as usize,
            out_width: args.out_width as usize,
            out_column: args.out_column as usize,
            out: view.output(args.out),
        };
        match &self.path {
            Path::Reference => reference::expert_linear(op),
            Path::Fast(fast) => fast.expert_linear(op),
        }
    }

    /// See [`args::Combine`].
    pub(crate) fn combine(&self, memory: &Memory, args: &args::Combine) {
        let view = View(memory);
        let op = data::Combine {
            y: view.floats(args.y),
            weights: view.floats(args.weights),
            top_k: args.top_k as usize,
            width: args.width as usize,
            out: view.output(args.out),
        };
        match &self.path {
            Path::Reference => reference::combine(op),
            Path::Fast(fast) => fast.combine(op),
        }
    }

    /// See [`args::CopyExpert`]. On either path: a copy that has a stream to itself is one thread's.
    pub(crate) fn copy_expert(&self, memory: &Memory, args: &args::CopyExpert) {
        let view = View(memory);
        let (starts, expert) = (view.indices(args.starts), args.expert as usize);
        reference::copy_expert(data::CopyExpert {
            src: view.bytes(args.src),
            dst: view.output_bytes(args.dst),
            starts: [starts[expert], starts[expert + 1]],
            moved: &mut view.output_indices(args.moved)[0],
        });
    }
}
