//! A mixture of experts: its choice, the products of the slots, and their sum. The CPU computes some of the slots.

use super::Executor;
use crate::Result;
use djinn_device::args::{Combine, CpuExperts, CpuSlots, ExpertLinear, Group, Route, SiluMul};
use djinn_device::{Ops, Span};
use djinn_srg::{Node, NodeId, Op};
use djinn_vmu::{CpuExchange, Launch, LoadedTile};

impl<D: Ops> Executor<'_, D> {
    /// Each row's experts.
    pub(super) fn route(&self, node: &Node) -> Route {
        let Op::Route { experts, top_k, renormalise } = node.op else { unreachable!("called for a choice") };
        let [logits, weights, ids] =
            [node.inputs[0], node.outputs[0], node.outputs[1]].map(|id| self.span(id));
        Route { logits, weights, ids, experts, top_k, renormalise, rows: self.rows_of(node) }
    }

    /// Computes the product of an expert's slots, or keeps it for the next launch, which computes both.
    pub(super) fn expert_product(&mut self, node: &Node, launch: &Launch, slots: u32) -> Result<()> {
        let product = self.expert_linear(node, &self.text.tiles()[launch.tiles.start], slots);
        self.experts.push(product);
        // A hook reads or changes what is enqueued by then.
        if !launch.joins_next || self.hooked {
            ExpertLinear::check_all(&self.experts);
            self.device.expert_linears(self.compute, &self.experts)?;
            self.experts.clear();
        }
        Ok(())
    }

    /// The product of some slots by a tile of their expert's weight.
    fn expert_linear(&self, node: &Node, tile: &LoadedTile, slots: u32) -> ExpertLinear {
        let Op::ExpertLinear { expert, slots_per_row, .. } = node.op else {
            unreachable!("called for an expert")
        };
        ExpertLinear {
            x: self.span(node.inputs[0]),
            weight: tile.parts[0],
            order: self.span(node.inputs[1]),
            starts: self.span(node.inputs[2]),
            out: self.span(node.outputs[0]),
            k: self.width(node.inputs[0]),
            n: (tile.rows.end - tile.rows.start) as u32,
            out_width: self.width(node.outputs[0]),
            out_column: tile.rows.start as u32,
            expert,
            slots_per_row,
            slots,
        }
    }

    /// The choice of a node, and the group of it.
    pub(super) fn route_group(&self, node: &Node, group: NodeId) -> Result<()> {
        let (route, group) = (self.route(node), self.group(group));
        route.check();
        group.check();
        Ok(self.device.route_group(self.compute, &route, &group)?)
    }

    /// Announces that the choice which `group` lists is enqueued: to copies of experts, and to the CPU.
    pub(super) fn announce(&mut self, group: NodeId) -> Result<()> {
        let starts = self.span(self.graph.node(group).outputs[1]);
        self.text.streamer.routed(self.device, self.compute, group, starts)?;
        self.begin_experts_on_cpu(group)
    }

    /// The slots of each expert that the device computes.
    pub(super) fn group(&self, id: NodeId) -> Group {
        let node = self.graph.node(id);
        let &Op::Group { experts, .. } = &node.op else { unreachable!("called for a group") };
        let [ids, order, starts] = [node.inputs[0], node.outputs[0], node.outputs[1]].map(|id| self.span(id));
        let cpu = self.text.cpu_router(id).map_or(CpuSlots::NONE, |(router, _)| router.slots);
        Group { ids, order, starts, experts, slots: self.rows_of(node), cpu, of_cpu: false }
    }

    /// Lets the CPU begin with the slots that `group` has left to it, if any. Call it once copies of experts' weights
    /// can begin.
    fn begin_experts_on_cpu(&self, id: NodeId) -> Result<()> {
        let Some((router, exchange)) = self.text.cpu_router(id) else { return Ok(()) };
        let group = self.group(id);
        let slots = group.slots;
        let CpuExchange { starts, .. } = exchange;
        let rows = slots / router.slots.top_k;
        let floats =
            |span: Span, rows: u32, width: u32| span.slice(0, 4 * u64::from(rows) * u64::from(width));
        let [up, down] = [&router.up, &router.down].map(|tiles| self.placement.tiles[tiles[0]].tile.node);
        let [up, down] = [up, down].map(|node| self.graph.node(node));
        let [k, inner] = [up, down].map(|node| self.width(node.inputs[0]));
        let [ids, order] = [exchange.ids, exchange.order].map(|span| floats(span, slots, 1));
        let x = floats(exchange.x, rows, k);
        let both = floats(exchange.up, slots, 2 * inner);
        let act = floats(exchange.act, slots, inner);
        let y = floats(exchange.out, slots, self.width(down.outputs[0]));
        let products = |tiles: &[usize], x: Span, out: Span| {
            let product = |&tile: &usize| {
                let node = self.graph.node(self.placement.tiles[tile].tile.node);
                let args = self.expert_linear(node, &self.text.tiles_of_cpu()[tile], slots);
                ExpertLinear { x, order, starts, out, ..args }
            };
            tiles.iter().map(product).collect()
        };
        let experts = CpuExperts {
            up: products(&router.up, x, both),
            act: SiluMul { x: both, out: act, width: inner, rows: slots, read_by: None },
            down: products(&router.down, act, y),
        };
        experts.check();
        let of_cpu = Group { order, starts, of_cpu: true, ..group };
        of_cpu.check();
        let (device, compute) = (self.device, self.compute);
        device.copy_promptly(compute, self.span(up.inputs[0]), x)?;
        device.copy_promptly(compute, of_cpu.ids, ids)?;
        device.group(compute, &of_cpu)?;
        Ok(device.experts_on_cpu(compute, &experts)?)
    }

    /// The sum of the slots, which waits for those of the CPU.
    pub(super) fn combine(&self, id: NodeId, rows: u32) -> Result<()> {
        let node = self.graph.node(id);
        let &Op::Combine { top_k } = &node.op else { unreachable!("called for a sum of slots") };
        let [y, weights, out] = [node.inputs[0], node.inputs[1], node.outputs[0]].map(|id| self.span(id));
        let width = self.width(node.outputs[0]);
        let mut args =
            Combine { y, weights, out, top_k, width, rows, cpu: CpuSlots::NONE, ids: None, cpu_y: None };
        if let Some((router, exchange)) = self.text.cpu_router(id) {
            self.device.await_cpu(self.compute)?;
            args.cpu = router.slots;
            args.ids = Some(exchange.ids.slice(0, weights.len()));
            args.cpu_y = Some(exchange.out.slice(0, y.len()));
        }
        args.check();
        Ok(self.device.combine(self.compute, &args)?)
    }
}
