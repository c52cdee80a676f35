//! Runs a program: the one place that turns a node into a launch.

mod arguments;
mod experts;
mod on_cpu;

use super::batch::{RowRuns, words};
use crate::hooks::Pending;
use crate::parts::Parts;
use crate::trace::{Mark, Recorder};
use crate::{Result, Runtime};
use djinn_device::args::{ExpertLinear, HeadNorm, LayerNorm, Linear, RopeTable, SiluMul};
use djinn_device::{Ops, Stream};
use djinn_srg::{Graph, KvPlan, Node, NodeId, Op, Rows};
use djinn_vmu::{DataSegment, Fused, Launch, LoadedTile, Placement, Program, StackSegment, TextSegment};

/// One pass: binds the rows of a step to the launches of a program.
pub(super) struct Executor<'a, D: Ops> {
    device: &'a D,
    compute: Stream,
    graph: &'a Graph,
    program: &'a Program,
    placement: &'a Placement,
    places: &'a KvPlan,
    text: &'a mut TextSegment,
    data: &'a DataSegment,
    stack: &'a StackSegment,
    rows: Rows,
    runs: &'a RowRuns,
    /// A hook reads or changes what the present launch gives.
    hooked: bool,
    /// The addition that the product before it has done.
    added: Option<NodeId>,
    /// Products that wait for the next launch, to be enqueued with it.
    experts: Vec<ExpertLinear>,
    /// Records the boundaries of launches during a trace.
    trace: Option<&'a mut Recorder>,
}

impl<'a, D: Ops> Executor<'a, D> {
    /// For a step of `rows`. `trace` records an event at every boundary between launches.
    pub(super) fn new(
        runtime: &'a Runtime<D>,
        parts: &'a mut Parts,
        rows: Rows,
        runs: &'a RowRuns,
        trace: Option<&'a mut Recorder>,
    ) -> Self {
        let Runtime { device, compute, .. } = runtime;
        let Parts { graph, plan, program, text, data, stack, .. } = parts;
        Executor {
            device,
            compute: *compute,
            graph,
            program,
            placement: &plan.placement,
            places: &plan.kv_places,
            text,
            data,
            stack,
            rows,
            runs,
            hooked: false,
            added: None,
            experts: Vec::new(),
            trace,
        }
    }

    /// Enqueues every launch, and those that join the next with it. A step without wanted logits still uses every chunk,
    /// so that the weight stream stays in order. In a trace no launch joins another, so that each has its own time.
    pub(super) fn pass(mut self, mut hooks: Pending<'_>) -> Result<()> {
        let Executor { device, compute, graph, program, .. } = self;
        self.mark(Mark::Begin)?;
        self.text.streamer.resume(device)?;
        for (index, launch) in program.launches.iter().enumerate() {
            if let Some(chunk) = launch.acquire {
                self.text.streamer.acquire(device, compute, chunk)?;
                self.mark(Mark::Acquired)?;
            }
            let node = graph.node(launch.node);
            let rows = self.rows_of(node);
            if rows > 0 {
                self.hooked = hooks.are_at(index);
                match launch.fused {
                    Some(Fused { node: next, most_rows }) if u64::from(rows) <= most_rows && !self.hooked => {
                        self.launch_pair(next, launch)?;
                    }
                    Some(Fused { node: next, .. }) => {
                        self.launch(launch.node, launch)?;
                        hooks.enqueue_within(device, compute, index, launch.node)?;
                        self.launch(next, launch)?;
                    }
                    None => self.launch(launch.node, launch)?,
                }
                hooks.enqueue_after(device, compute, index)?;
                self.mark(Mark::Launch { index, rows })?;
            }
            if let Some(chunk) = launch.release {
                self.text.streamer.release(device, compute, chunk)?;
            }
            launch.announces.map_or(Ok(()), |group| self.announce(group))?;
        }
        debug_assert!(self.experts.is_empty(), "{:?} were not enqueued", self.experts);
        Ok(())
    }

    fn mark(&mut self, mark: Mark) -> Result<()> {
        self.trace.as_mut().map_or(Ok(()), |trace| trace.mark(self.device, self.compute, mark))
    }

    /// Runs a launch's node fused with the next one.
    fn launch_pair(&mut self, id: NodeId, launch: &Launch) -> Result<()> {
        let [node, next] = [launch.node, id].map(|id| self.graph.node(id));
        let rows = self.rows_of(node);
        match (&node.op, &next.op) {
            (Op::Add, &Op::RmsNorm { eps }) => {
                let weight = self.text.tiles()[launch.tiles.start].parts[0];
                let (add, norm) = (self.add(node), self.rms_norm(next, launch, eps, rows, weight));
                add.check();
                norm.check();
                if self.added == Some(launch.node) {
                    self.device.rms_norm(self.compute, &norm)?;
                } else {
                    self.device.add_rms_norm(self.compute, &add, &norm)?;
                }
            }
            (Op::Rope { .. }, Op::KvWrite { .. }) => {
                let (rope, write) = (self.rope(node, rows), self.kv_write(next, rows));
                rope.check();
                write.check();
                self.device.rope_kv_write(self.compute, &rope, &write)?;
            }
            (Op::Route { .. }, Op::Group { .. }) => self.route_group(node, id)?,
            (Op::Linear, Op::SiluMul) => {
                self.linear(node, launch, Some(self.silu_mul(next, launch, rows)))?;
            }
            (first, second) => panic!("no operation computes {first:?} and {second:?}"),
        }
        Ok(())
    }

    /// Runs one node of a launch. Only a product may read several tiles.
    fn launch(&mut self, id: NodeId, launch: &Launch) -> Result<()> {
        let (device, stream, node) = (self.device, self.compute, self.graph.node(id));
        let rows = self.rows_of(node);
        let input = |i: usize| self.span(node.inputs[i]);
        let output = |i: usize| self.span(node.outputs[i]);
        let width = || self.width(node.outputs[0]);
        let tiles = &self.text.tiles()[launch.tiles.clone()];
        let weight = |i: usize| tiles[0].parts[i];
        macro_rules! enqueue {
            ($op:ident, $args:expr) => {{
                let args = $args;
                args.check();
                device.$op(stream, &args)?;
            }};
        }
        match node.op {
            Op::Embed => {
                for args in self.embed(node) {
                    enqueue!(embed, args);
                }
            }
            Op::RopeTable { scale } => {
                let (positions, inv_freq, half) = (input(0), weight(0).span, width() / 2);
                enqueue!(rope_table, RopeTable { positions, inv_freq, out: output(0), half, scale, rows })
            }
            Op::RmsNorm { eps } => enqueue!(rms_norm, self.rms_norm(node, launch, eps, rows, weight(0))),
            Op::LayerNorm { eps } => {
                let (x, weight, bias) = (input(0), weight(0), weight(1));
                enqueue!(layer_norm, LayerNorm { x, weight, bias, out: output(0), eps, width: width(), rows })
            }
            Op::HeadNorm { heads, kv_heads, head_dim, eps } => {
                let (qkv, query, key) = (input(0), weight(0), weight(1));
                enqueue!(head_norm, HeadNorm { qkv, query, key, eps, heads, kv_heads, head_dim, rows })
            }
            Op::Linear => self.added = self.linear(node, launch, None)?,
            Op::Rope { .. } => enqueue!(rope, self.rope(node, rows)),
            Op::KvWrite { .. } => enqueue!(kv_write, self.kv_write(node, rows)),
            Op::Attention { .. } => self.attention(node, launch)?,
            Op::SiluMul => enqueue!(silu_mul, self.silu_mul(node, launch, rows)),
            Op::Gelu { form } => enqueue!(gelu, self.gelu(node, form)),
            Op::Add if self.added == Some(launch.node) => (),
            Op::Add => enqueue!(add, self.add(node)),
            Op::SelectRows => enqueue!(select_rows, self.select_rows(node)),
            Op::Route { .. } => enqueue!(route, self.route(node)),
            Op::Group { .. } => enqueue!(group, self.group(id)),
            Op::ExpertLinear { .. } => self.expert_product(node, launch, rows)?,
            Op::Combine { .. } => self.combine(launch.node, rows)?,
        }
        Ok(())
    }

    /// A product and the activation fused with it, in launches that keep sequences apart. Gives the addition after the
    /// product if the device did that as well.
    fn linear(&self, node: &Node, launch: &Launch, act: Option<SiluMul>) -> Result<Option<NodeId>> {
        let act = act.inspect(SiluMul::check);
        let tiles = &self.text.tiles()[launch.tiles.clone()];
        let (k, out_width) = (self.width(node.inputs[0]), self.width(node.outputs[0]));
        let (x, out) = (self.span(node.inputs[0]), self.span(node.outputs[0]));
        let all = 0..self.rows_of(node);
        let runs = self.runs_of(node, tiles).unwrap_or(std::slice::from_ref(&all));
        for rows in runs {
            let (x, out) = (words(x, rows, k), words(out, rows, out_width));
            if self.linear_on_cpu(tiles, [x, out], rows.end - rows.start)? {
                continue;
            }
            let args = |tile: &LoadedTile| Linear {
                x,
                weight: tile.parts[0],
                bias: tile.parts.get(1).copied(),
                out,
                k,
                n: (tile.rows.end - tile.rows.start) as u32,
                out_width,
                out_column: tile.rows.start as u32,
                rows: rows.end - rows.start,
            };
            let products: Vec<Linear> = tiles.iter().map(args).collect();
            products.iter().for_each(Linear::check);
            let sum = launch.added_by.filter(|_| !self.hooked);
            match (act, sum) {
                (Some(act), _) if runs.len() == 1 => {
                    self.device.linear_silu_mul(self.compute, &products, &act)?;
                    return Ok(None);
                }
                (None, Some(sum)) if runs.len() == 1 => {
                    let add = self.add(self.graph.node(sum));
                    add.check();
                    return Ok(self.device.linear_add(self.compute, &products, &add)?.then_some(sum));
                }
                _ => self.device.linear_tiles(self.compute, &products)?,
            }
        }
        act.map_or(Ok(()), |act| self.device.silu_mul(self.compute, &act))?;
        Ok(None)
    }

    fn attention(&self, node: &Node, launch: &Launch) -> Result<()> {
        let RowRuns { attention, narrow_attention, .. } = self.runs;
        let runs = if self.is_aligned(node) { attention } else { narrow_attention };
        for rows in runs {
            let read_by = self.read_by(launch).filter(|_| runs.len() == 1);
            let args = self.attention_of(node, rows, read_by);
            args.check();
            self.device.attention(self.compute, &args)?;
        }
        Ok(())
    }
}
