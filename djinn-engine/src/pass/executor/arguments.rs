//! What operations are given: the places and sizes of a node's values in the present step.

use super::Executor;
use crate::pass::batch::{is_aligned, words};
use djinn_device::args::{
    Add, Attention, Embed, Gelu, KvPages, KvWrite, ReadBy, RmsNorm, Rope, SelectRows, SiluMul, Weight,
};
use djinn_device::{DeviceInfo, GeluForm, Ops, Space, Span};
use djinn_srg::{Dim, Lifecycle, Node, Op, ValueId};
use djinn_vmu::{Launch, LoadedTile};
use std::mem;
use std::ops::Range;

/// Whether the CPU computes the products with these tiles.
pub(super) fn is_in_host_memory(tiles: &[LoadedTile]) -> bool {
    tiles.iter().any(|tile| tile.parts[0].span.buffer().space() == Space::Host)
}

impl<D: Ops> Executor<'_, D> {
    /// The runs of rows that a product with these tiles of its weight computes apart; `None`: all rows at once.
    pub(super) fn runs_of(&self, node: &Node, tiles: &[LoadedTile]) -> Option<&[Range<u32>]> {
        let k = self.width(node.inputs[0]);
        let is_wide = |tile: &LoadedTile| DeviceInfo::is_wide(tile.parts[0], k);
        match self.graph.value(node.outputs[0]).shape[0] {
            _ if self.runs.wide && tiles.iter().all(is_wide) => None,
            Dim::LogitRows => Some(&self.runs.logits),
            _ if self.is_aligned(node) => Some(&self.runs.products),
            _ => Some(&self.runs.narrow_products),
        }
    }

    /// Whether a launch of a product or attention may begin at any row.
    pub(super) fn is_aligned(&self, node: &Node) -> bool {
        [node.inputs[0], node.outputs[0]].into_iter().all(|id| is_aligned(self.width(id)))
    }

    /// The rows of what a node gives: of a group and of experts' products, slots.
    pub(super) fn rows_of(&self, node: &Node) -> u32 {
        self.graph.value(node.outputs[0]).rows(self.rows) as u32
    }

    /// The look-ups in a table's tiles.
    pub(super) fn embed(&self, node: &Node) -> impl Iterator<Item = Embed> {
        let (tokens, out) = (self.span(node.inputs[0]), self.span(node.outputs[0]));
        let (width, rows) = (self.width(node.outputs[0]), self.rows_of(node));
        self.text.table(node.weights[0]).iter().map(move |LoadedTile { rows: table, parts }| {
            let (first_row, table_rows) = (table.start as u32, (table.end - table.start) as u32);
            Embed { tokens, table: parts[0], first_row, table_rows, width, out, rows }
        })
    }

    pub(super) fn gelu(&self, node: &Node, form: GeluForm) -> Gelu {
        let len = self.graph.value(node.outputs[0]).elements(self.rows);
        Gelu { x: self.span(node.inputs[0]), out: self.span(node.outputs[0]), form, len }
    }

    pub(super) fn select_rows(&self, node: &Node) -> SelectRows {
        let [x, indices, out] = [node.inputs[0], node.inputs[1], node.outputs[0]].map(|id| self.span(id));
        SelectRows { x, indices, out, width: self.width(node.outputs[0]), rows: self.rows_of(node) }
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

    pub(super) fn attention_of(&self, node: &Node, rows: &Range<u32>, read_by: Option<ReadBy>) -> Attention {
        let Op::Attention { heads, scale, window, alibi, .. } = node.op else {
            unreachable!("called for attention")
        };
        let (qkv_width, out_width) = (self.width(node.inputs[0]), self.width(node.outputs[0]));
        Attention {
            qkv: words(self.span(node.inputs[0]), rows, qkv_width),
            kv: self.kv(node.inputs[1]),
            row_seq: words(self.span(node.inputs[2]), rows, 1),
            positions: words(self.span(node.inputs[3]), rows, 1),
            out: words(self.span(node.outputs[0]), rows, out_width),
            heads,
            scale,
            window,
            alibi,
            rows: rows.end - rows.start,
            short_runs: rows.start < self.runs.chunks,
            read_by,
        }
    }

    pub(super) fn read_by(&self, launch: &Launch) -> Option<ReadBy> {
        let next = launch.read_by.as_ref()?;
        let tiles = &self.text.tiles()[next.tiles.clone()];
        if is_in_host_memory(tiles) {
            return None;
        }
        let at_once = self.runs_of(self.graph.node(next.node), tiles).is_none_or(|runs| runs.len() == 1);
        // A file may store parts of a fused weight as blocks and others as plain elements.
        let kind = |tile: &LoadedTile| (tile.parts[0].dtype, mem::discriminant(&tile.parts[0].encoding));
        let alike = tiles.iter().all(|tile| kind(tile) == kind(&tiles[0]));
        let Weight { dtype, encoding, .. } = tiles[0].parts[0];
        Some(ReadBy { dtype, encoding, alone: next.alone && at_once && alike && !self.hooked })
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
