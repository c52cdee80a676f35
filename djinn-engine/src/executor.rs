//! Walks the graph: the one place that turns a node into a launch.

use crate::Result;
use crate::engine::Memory;
use djinn_device::args::{
    Add, Attention, Embed, KvPages, KvWrite, Linear, RmsNorm, Rope, RopeTable, SelectRows, SiluMul, Weight,
};
use djinn_device::{Ops, Span, Stream};
use djinn_srg::{Dim, Graph, Lifecycle, Node, NodeId, Op, Rows, ValueId};
use djinn_vmu::{ChunkId, MemoryPlan};

/// One pass over the graph. Every launch reads at most one chunk of weights; a chunk is held from the first
/// launch that reads it to the last.
pub(crate) struct Executor<'a, D: Ops> {
    device: &'a D,
    compute: Stream,
    graph: &'a Graph,
    plan: &'a MemoryPlan,
    memory: &'a mut Memory,
    rows: Rows,
    /// The next tile, in order of use.
    tile: usize,
    held: Option<(ChunkId, Span)>,
}

/// A tile's weights on the device, with the output rows that they produce.
struct Weights {
    first_row: u64,
    rows: u64,
    parts: Vec<Weight>,
}

impl<'a, D: Ops> Executor<'a, D> {
    pub(crate) fn new(
        device: &'a D,
        compute: Stream,
        graph: &'a Graph,
        plan: &'a MemoryPlan,
        memory: &'a mut Memory,
        rows: Rows,
    ) -> Self {
        Executor { device, compute, graph, plan, memory, rows, tile: 0, held: None }
    }

    /// Enqueues every operation. A step without wanted logits still uses every chunk, so that the stream
    /// stays in step.
    pub(crate) fn pass(mut self) -> Result<()> {
        let graph = self.graph;
        for (index, node) in graph.nodes.iter().enumerate() {
            if node.weights.is_empty() || matches!(node.op, Op::Embed) {
                self.launch(node, None)?;
                continue;
            }
            while let Some(weights) = self.next_tile(NodeId(index as u32))? {
                self.launch(node, Some(&weights))?;
            }
        }
        assert_eq!(self.tile, self.plan.placement.tiles.len(), "a pass uses every tile");
        self.swap_held(None)
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
        }
        Ok(())
    }

    fn launch(&self, node: &Node, weights: Option<&Weights>) -> Result<()> {
        let out = self.graph.value(node.output);
        let rows = match out.shape.first() {
            Some(Dim::LogitRows) => self.rows.logit_rows,
            _ => self.rows.rows,
        } as u32;
        if rows == 0 {
            return Ok(());
        }
        let (device, stream) = (self.device, self.compute);
        let input = |i: usize| self.span(node.inputs[i]);
        let weight = |i: usize| weights.expect("the operation has weights").parts[i];
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
            Op::RmsNorm { eps } => enqueue!(
                rms_norm,
                RmsNorm {
                    x: input(0),
                    weight: weight(0),
                    out: self.span(node.output),
                    eps,
                    width: width(node.output),
                    rows,
                }
            ),
            Op::Linear => {
                let tile = weights.expect("a product has weights");
                enqueue!(
                    linear,
                    Linear {
                        x: input(0),
                        weight: tile.parts[0],
                        bias: tile.parts.get(1).copied(),
                        out: self.span(node.output),
                        k: width(node.inputs[0]),
                        n: tile.rows as u32,
                        out_width: width(node.output),
                        out_column: tile.first_row as u32,
                        rows,
                    }
                )
            }
            Op::Rope { heads, kv_heads, head_dim, rotary_dim, style } => enqueue!(
                rope,
                Rope { qkv: input(0), table: input(1), heads, kv_heads, head_dim, rotary_dim, style, rows }
            ),
            Op::KvWrite { heads, .. } => enqueue!(
                kv_write,
                KvWrite {
                    qkv: input(0),
                    kv: self.kv(node),
                    row_seq: input(1),
                    positions: input(2),
                    heads,
                    rows,
                }
            ),
            Op::Attention { heads, scale, .. } => enqueue!(
                attention,
                Attention {
                    qkv: input(0),
                    kv: self.kv(node),
                    row_seq: input(2),
                    positions: input(3),
                    out: self.span(node.output),
                    heads,
                    scale,
                    rows,
                }
            ),
            Op::SiluMul => enqueue!(
                silu_mul,
                SiluMul { x: input(0), out: self.span(node.output), width: width(node.output), rows }
            ),
            Op::Add => enqueue!(
                add,
                Add { a: input(0), b: input(1), out: self.span(node.output), len: out.elements(self.rows) }
            ),
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
        }
        Ok(())
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
