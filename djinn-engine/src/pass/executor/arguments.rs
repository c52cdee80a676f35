//! What operations are given: the places and sizes of a node's values in the present step.

use super::Executor;
use djinn_device::args::{Add, KvPages, KvWrite, ReadBy, RmsNorm, Rope, SiluMul, Weight};
use djinn_device::{DeviceInfo, Ops, Span};
use djinn_srg::{Dim, Lifecycle, Node, Op, ValueId};
use djinn_vmu::{Launch, LoadedTile};
use std::ops::Range;

impl<D: Ops> Executor<'_, D> {
    /// The runs of rows that a product computes apart; `None`: all rows at once.
    pub(super) fn runs_of(&self, node: &Node, tile: &LoadedTile) -> Option<&[Range<u32>]> {
        let of_logits = self.graph.value(node.outputs[0]).shape[0] == Dim::LogitRows;
        match tile.parts[0] {
            weight if self.runs.wide && DeviceInfo::is_wide(weight, self.width(node.inputs[0])) => None,
            _ if of_logits => Some(&self.runs.logits),
            _ => Some(&self.runs.products),
        }
    }

    pub(super) fn add(&self, node: &Node) -> Add {
        let len = self.graph.value(node.outputs[0]).elements(self.rows);
        let (a, b, out) = (self.span(node.inputs[0]), self.span(node.inputs[1]), self.span(node.outputs[0]));
        Add { a, b, out, len }
    }

    pub(super) fn rms_norm(
        &self,
        node: &Node,
        launch: &Launch,
        eps: f32,
        rows: u32,
        weight: Weight,
    ) -> RmsNorm {
        let (x, out, width) =
            (self.span(node.inputs[0]), self.span(node.outputs[0]), self.width(node.outputs[0]));
        RmsNorm { x, weight, out, eps, width, rows, read_by: self.read_by(launch) }
    }

    pub(super) fn silu_mul(&self, node: &Node, launch: &Launch, rows: u32) -> SiluMul {
        let (x, out) = (self.span(node.inputs[0]), self.span(node.outputs[0]));
        SiluMul { x, out, width: self.width(node.outputs[0]), rows, read_by: self.read_by(launch) }
    }

    pub(super) fn rope(&self, node: &Node, rows: u32) -> Rope {
        let Op::Rope { heads, kv_heads, head_dim, rotary_dim, style } = node.op else {
            unreachable!("called for a rotation")
        };
        let (qkv, table) = (self.span(node.inputs[0]), self.span(node.inputs[1]));
        Rope { qkv, table, heads, kv_heads, head_dim, rotary_dim, style, rows }
    }

    pub(super) fn kv_write(&self, node: &Node, rows: u32) -> KvWrite {
        let Op::KvWrite { heads, .. } = node.op else { unreachable!("called for a cache write") };
        KvWrite {
            qkv: self.span(node.inputs[0]),
            kv: self.kv(node.outputs[0]),
            row_seq: self.span(node.inputs[1]),
            positions: self.span(node.inputs[2]),
            heads,
            rows,
        }
    }

    pub(super) fn read_by(&self, launch: &Launch) -> Option<ReadBy> {
        let next = launch.read_by?;
        let tile = &self.text.tiles()[next.tile];
        let at_once = self.runs_of(self.graph.node(next.node), tile).is_none_or(|runs| runs.len() == 1);
        let Weight { dtype, encoding, .. } = tile.parts[0];
        Some(ReadBy { dtype, encoding, alone: next.alone && at_once && !self.hooked })
    }

    pub(super) fn kv(&self, cache: ValueId) -> KvPages {
        self.data.at(self.places.place(cache))
    }

    pub(super) fn span(&self, id: ValueId) -> Span {
        debug_assert_eq!(self.graph.value(id).lifecycle, Lifecycle::Stack);
        self.stack.span(self.graph, id, self.rows)
    }

    pub(super) fn width(&self, id: ValueId) -> u32 {
        match self.graph.value(id).shape.as_slice() {
            [_, Dim::Fixed(width)] => *width as u32,
            shape => panic!("{} is no activation: {shape:?}", self.graph.value(id).name),
        }
    }
}
