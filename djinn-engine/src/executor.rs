//! Walks the graph: the one place that turns a node into a launch.

use crate::Result;
use crate::batch::Launches;
use crate::engine::{Memory, Work};
use crate::trace::{Launch, Mark, Recorder};
use djinn_device::args::{
    Add, Attention, Combine, Embed, ExpertLinear, Gelu, Group, HeadNorm, KvPages, KvWrite, LayerNorm, Linear,
    RmsNorm, Rope, RopeTable, Route, SelectRows, SiluMul, Weight,
};
use djinn_device::{Ops, Span, Stream};
use djinn_srg::{Dim, Graph, Lifecycle, Node, NodeId, Op, Rows, ValueId};
use djinn_vmu::{ChunkId, MemoryPlan, Placement};
use std::ops::Range;

/// One pass over the graph. A launch reads one chunk of weights, or several that stay on the device; a streamed chunk is
/// held from the first launch that reads it to the last.
pub(crate) struct Executor<'a, D: Ops> {
    device: &'a D,
    compute: Stream,
    graph: &'a Graph,
    plan: &'a MemoryPlan,
    memory: &'a mut Memory,
    rows: Rows,
    launches: &'a Launches,
    /// The next tile, in order of use.
    tile: usize,
    held: Option<(ChunkId, Span)>,
    /// Marks the boundaries of launches, if they are wanted.
    trace: Option<&'a mut Recorder>,
}

/// A tile's weights on the device, with the output rows that they produce.
struct Weights {
    first_row: u64,
    rows: u64,
    parts: Vec<Weight>,
}

impl<'a, D: Ops> Executor<'a, D> {
    pub(crate) fn new(
        work: &Work<'a, D>,
        memory: &'a mut Memory,
        rows: Rows,
        launches: &'a Launches,
    ) -> Self {
        let Work { device, compute, graph, plan } = *work;
        Executor { device, compute, graph, plan, memory, rows, launches, tile: 0, held: None, trace: None }
    }

    /// Records an event at every boundary between launches.
    pub(crate) fn traced(self, trace: Option<&'a mut Recorder>) -> Self {
        Executor { trace, ..self }
    }

    /// Enqueues every operation. A step without wanted logits still uses every chunk, so that the stream
    /// stays in step.
    pub(crate) fn pass(mut self) -> Result<()> {
        let graph = self.graph;
        self.mark(Mark::Begin)?;
        let mut in_pair = false;
        for (index, node) in graph.nodes.iter().enumerate() {
            if std::mem::take(&mut in_pair) {
                continue;
            }
            let id = NodeId(index as u32);
            if let Some(next) = graph.nodes.get(index + 1) {
                in_pair = self.launch_pair(node, next, NodeId(id.0 + 1))?;
                if in_pair {
                    continue;
                }
            }
            if node.weights.is_empty() || matches!(node.op, Op::Embed) {
                self.launch(node, &[])?;
                self.mark_launch(id, None)?;
                if matches!(node.op, Op::Group { .. }) {
                    let starts = self.span(node.also[0]);
                    self.memory.text.routed(self.device, self.compute, id, starts)?;
                }
                continue;
            }
            while let Some(tile) = self.next_tile(id)? {
                let mut tiles = vec![tile];
                // A trace tells them apart.
                while self.trace.is_none() && matches!(node.op, Op::Linear) && self.next_is_here_too(id) {
                    tiles.extend(self.next_tile(id)?);
                }
                self.launch(node, &tiles)?;
                for tile in &tiles {
                    self.mark_launch(id, Some(tile))?;
                }
            }
        }
        assert_eq!(self.tile, self.plan.placement.tiles.len(), "a pass uses every tile");
        self.swap_held(None)
    }

    /// Whether the node's next tile can be used in one launch with the one before: neither waits for the other's chunk
    /// to make room.
    fn next_is_here_too(&self, node: NodeId) -> bool {
        let Placement { tiles, slots, .. } = &self.plan.placement;
        let stays = |chunk: ChunkId| slots[chunk.0 as usize].is_none();
        let next = tiles.get(self.tile).filter(|placed| placed.tile.node == node);
        next.zip(self.held)
            .is_some_and(|(next, (held, _))| next.chunk == held || (stays(next.chunk) && stays(held)))
    }

    /// The node's next tile, or `None` after its last.
    fn next_tile(&mut self, node: NodeId) -> Result<Option<Weights>> {
        let plan = self.plan;
        let Some(placed) = plan.placement.tiles.get(self.tile).filter(|p| p.tile.node == node) else {
            return Ok(None);
        };
        self.tile += 1;
        if self.held.is_none_or(|(chunk, _)| chunk != placed.chunk) {
            self.swap_held(Some(placed.chunk))?;
        }
        let (_, span) = self.held.expect("just acquired");
        let parts = placed.tile.parts.iter().zip(&placed.offsets);
        let parts = parts.map(|(part, &offset)| Weight {
            span: span.slice(offset, part.bytes),
            dtype: self.graph.value(part.value).dtype,
        });
        let rows = &placed.tile.rows;
        Ok(Some(Weights { first_row: rows.start, rows: rows.end - rows.start, parts: parts.collect() }))
    }

    fn swap_held(&mut self, next: Option<ChunkId>) -> Result<()> {
        let text = &mut self.memory.text;
        if let Some((chunk, _)) = self.held.take() {
            text.release(self.device, self.compute, chunk)?;
        }
        if let Some(chunk) = next {
            self.held = Some((chunk, text.acquire(self.device, self.compute, chunk)?));
            if self.plan.placement.slots[chunk.0 as usize].is_some() {
                self.mark(Mark::Acquired)?;
            }
        }
        Ok(())
    }

    fn mark(&mut self, mark: Mark) -> Result<()> {
        match &mut self.trace {
            Some(trace) => trace.mark(self.device, self.compute, mark),
            None => Ok(()),
        }
    }

    fn mark_launch(&mut self, node: NodeId, weights: Option<&Weights>) -> Result<()> {
        let rows = self.launch_rows(self.graph.node(node));
        if self.trace.is_none() || rows == 0 {
            return Ok(());
        }
        let tile = weights.map(|w| (w.first_row, w.first_row + w.rows));
        self.mark(Mark::Launch(Launch { node, tile, rows }))
    }

    /// Rows that the node's launch computes; none are launched for 0.
    fn launch_rows(&self, node: &Node) -> u32 {
        self.graph.value(node.output).rows(self.rows) as u32
    }

    /// Launches two successive nodes at once where the device has an operation for both; whether it did. A trace
    /// shows them apart.
    fn launch_pair(&mut self, node: &Node, next: &Node, next_id: NodeId) -> Result<bool> {
        let rows = self.launch_rows(node);
        if rows == 0 || self.trace.is_some() {
            return Ok(false);
        }
        match (&node.op, &next.op) {
            (Op::Add, &Op::RmsNorm { eps }) if next.inputs[0] == node.output => {
                let add = self.add(node);
                let out = self.span(next.output);
                // The plan may lay an output across inputs that are dead by the second operation.
                let apart = |span: Span| span == out || !span.overlaps(out);
                if !apart(add.a) || !apart(add.b) {
                    return Ok(false);
                }
                let weights = self.next_tile(next_id)?.expect("a norm has a weight");
                let norm = self.rms_norm(next, eps, rows, weights.parts[0]);
                add.check();
                norm.check();
                self.device.add_rms_norm(self.compute, &add, &norm)?;
                Ok(true)
            }
            (Op::Rope { .. }, Op::KvWrite { .. }) if next.inputs[0] == node.inputs[0] => {
                let (rope, write) = (self.rope(node, rows), self.kv_write(next, rows));
                rope.check();
                write.check();
                self.device.rope_kv_write(self.compute, &rope, &write)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Launches a node with its weights, of which only a product may have several tiles.
    fn launch(&self, node: &Node, tiles: &[Weights]) -> Result<()> {
        let rows = self.launch_rows(node);
        if rows == 0 {
            return Ok(());
        }
        let (device, stream) = (self.device, self.compute);
        let input = |i: usize| self.span(node.inputs[i]);
        let weight = |i: usize| tiles[0].parts[i];
        let width = |id| self.width(id);
        macro_rules! enqueue {
            ($op:ident, $args:expr) => {{
                let args = $args;
                args.check();
                device.$op(stream, &args)?;
            }};
        }
        match node.op {
            Op::Embed => return self.embed(node, rows),
            Op::RopeTable { scale } => enqueue!(
                rope_table,
                RopeTable {
                    positions: input(0),
                    inv_freq: weight(0).span,
                    out: self.span(node.output),
                    half: width(node.output) / 2,
                    scale,
                    rows,
                }
            ),
            Op::RmsNorm { eps } => enqueue!(rms_norm, self.rms_norm(node, eps, rows, weight(0))),
            Op::LayerNorm { eps } => enqueue!(
                layer_norm,
                LayerNorm {
                    x: input(0),
                    weight: weight(0),
                    bias: weight(1),
                    out: self.span(node.output),
                    eps,
                    width: width(node.output),
                    rows,
                }
            ),
            Op::HeadNorm { heads, kv_heads, head_dim, eps } => enqueue!(
                head_norm,
                HeadNorm {
                    qkv: input(0),
                    query: weight(0),
                    key: weight(1),
                    eps,
                    heads,
                    kv_heads,
                    head_dim,
                    rows
                }
            ),
            Op::Linear => self.linear(node, tiles)?,
            Op::Rope { .. } => enqueue!(rope, self.rope(node, rows)),
            Op::KvWrite { .. } => enqueue!(kv_write, self.kv_write(node, rows)),
            Op::Attention { .. } => self.attention(node)?,
            Op::SiluMul => enqueue!(
                silu_mul,
                SiluMul { x: input(0), out: self.span(node.output), width: width(node.output), rows }
            ),
            Op::Gelu { form } => enqueue!(
                gelu,
                Gelu {
                    x: input(0),
                    out: self.span(node.output),
                    form,
                    len: self.graph.value(node.output).elements(self.rows),
                }
            ),
            Op::Add => enqueue!(add, self.add(node)),
            Op::SelectRows => enqueue!(
                select_rows,
                SelectRows {
                    x: input(0),
                    indices: input(1),
                    out: self.span(node.output),
                    width: width(node.output),
                    rows,
                }
            ),
            Op::Route { experts, top_k, renormalise } => {
                let (weights, ids) = (self.span(node.output), self.span(node.also[0]));
                enqueue!(route, Route { logits: input(0), weights, ids, experts, top_k, renormalise, rows })
            }
            Op::Group { experts, .. } => {
                let (order, starts) = (self.span(node.output), self.span(node.also[0]));
                enqueue!(group, Group { ids: input(0), order, starts, experts, slots: rows })
            }
            Op::ExpertLinear { expert, slots_per_row, .. } => {
                let tile = &tiles[0];
                enqueue!(
                    expert_linear,
                    ExpertLinear {
                        x: input(0),
                        weight: tile.parts[0],
                        order: input(1),
                        starts: input(2),
                        out: self.span(node.output),
                        k: width(node.inputs[0]),
                        n: tile.rows as u32,
                        out_width: width(node.output),
                        out_column: tile.first_row as u32,
                        expert,
                        slots_per_row,
                        slots: rows,
                    }
                )
            }
            Op::Combine { top_k } => {
                let (y, weights, out, width) =
                    (input(0), input(1), self.span(node.output), width(node.output));
                enqueue!(combine, Combine { y, weights, out, top_k, width, rows })
            }
        }
        Ok(())
    }

    /// A product, in the launches that keep sequences apart.
    fn linear(&self, node: &Node, tiles: &[Weights]) -> Result<()> {
        let (k, out_width) = (self.width(node.inputs[0]), self.width(node.output));
        let (x, out) = (self.span(node.inputs[0]), self.span(node.output));
        let of_logits = self.graph.value(node.output).shape[0] == Dim::LogitRows;
        let launches = if of_logits { &self.launches.logits } else { &self.launches.products };
        for rows in launches {
            let args = |tile: &Weights| Linear {
                x: words(x, rows, k),
                weight: tile.parts[0],
                bias: tile.parts.get(1).copied(),
                out: words(out, rows, out_width),
                k,
                n: tile.rows as u32,
                out_width,
                out_column: tile.first_row as u32,
                rows: rows.end - rows.start,
            };
            let products: Vec<Linear> = tiles.iter().map(args).collect();
            products.iter().for_each(Linear::check);
            self.device.linear_tiles(self.compute, &products)?;
        }
        Ok(())
    }

    fn attention(&self, node: &Node) -> Result<()> {
        let Op::Attention { heads, scale, window, alibi, .. } = node.op else {
            unreachable!("called for attention")
        };
        let (qkv_width, out_width) = (self.width(node.inputs[0]), self.width(node.output));
        for rows in &self.launches.attention {
            let args = Attention {
                qkv: words(self.span(node.inputs[0]), rows, qkv_width),
                kv: self.kv(node),
                row_seq: words(self.span(node.inputs[2]), rows, 1),
                positions: words(self.span(node.inputs[3]), rows, 1),
                out: words(self.span(node.output), rows, out_width),
                heads,
                scale,
                window,
                alibi,
                rows: rows.end - rows.start,
            };
            args.check();
            self.device.attention(self.compute, &args)?;
        }
        Ok(())
    }

    fn add(&self, node: &Node) -> Add {
        let len = self.graph.value(node.output).elements(self.rows);
        Add { a: self.span(node.inputs[0]), b: self.span(node.inputs[1]), out: self.span(node.output), len }
    }

    fn rms_norm(&self, node: &Node, eps: f32, rows: u32, weight: Weight) -> RmsNorm {
        let (x, out, width) = (self.span(node.inputs[0]), self.span(node.output), self.width(node.output));
        RmsNorm { x, weight, out, eps, width, rows }
    }

    fn rope(&self, node: &Node, rows: u32) -> Rope {
        let Op::Rope { heads, kv_heads, head_dim, rotary_dim, style } = node.op else {
            unreachable!("called for a rotation")
        };
        let (qkv, table) = (self.span(node.inputs[0]), self.span(node.inputs[1]));
        Rope { qkv, table, heads, kv_heads, head_dim, rotary_dim, style, rows }
    }

    fn kv_write(&self, node: &Node, rows: u32) -> KvWrite {
        let Op::KvWrite { heads, .. } = node.op else { unreachable!("called for a cache write") };
        KvWrite {
            qkv: self.span(node.inputs[0]),
            kv: self.kv(node),
            row_seq: self.span(node.inputs[1]),
            positions: self.span(node.inputs[2]),
            heads,
            rows,
        }
    }

    /// Gathers from wherever the table's tiles are kept.
    fn embed(&self, node: &Node, rows: u32) -> Result<()> {
        let table = node.weights[0];
        for (first_row, table_rows, span) in self.memory.text.table(self.graph, table) {
            let args = Embed {
                tokens: self.span(node.inputs[0]),
                table: Weight { span, dtype: self.graph.value(table).dtype },
                first_row: first_row as u32,
                table_rows: table_rows as u32,
                width: self.width(node.output),
                out: self.span(node.output),
                rows,
            };
            args.check();
            self.device.embed(self.compute, &args)?;
        }
        Ok(())
    }

    fn kv(&self, node: &Node) -> KvPages {
        self.memory.data.layer(node.layer.expect("attention belongs to a block"))
    }

    fn span(&self, id: ValueId) -> Span {
        debug_assert_eq!(self.graph.value(id).lifecycle, Lifecycle::Stack);
        self.memory.stack.span(self.graph, id, self.rows)
    }

    fn width(&self, id: ValueId) -> u32 {
        match self.graph.value(id).shape.as_slice() {
            [_, Dim::Fixed(width)] => *width as u32,
            shape => panic!("{} is no activation: {shape:?}", self.graph.value(id).name),
        }
    }
}

/// Some rows of a matrix of four-byte elements.
fn words(all: Span, rows: &Range<u32>, width: u32) -> Span {
    let row_bytes = u64::from(width) * 4;
    all.slice(u64::from(rows.start) * row_bytes, u64::from(rows.end - rows.start) * row_bytes)
}
