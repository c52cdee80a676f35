//! What the processor computes where the weights lie: products, and slots of experts.

use super::Executor;
use super::arguments::is_in_host_memory;
use crate::Result;
use djinn_device::args::{Combine, CpuExperts, CpuSlots, ExpertLinear, Group, Linear, SiluMul};
use djinn_device::{Ops, Span};
use djinn_srg::{NodeId, Op};
use djinn_vmu::{CpuExchange, LoadedTile};

impl<D: Ops> Executor<'_, D> {
    /// A product of rows of `x` with successive tiles, if these lie in host memory. Inputs go there before it, and results
    /// come back. Otherwise enqueues nothing and returns false.
    pub(super) fn linear_on_cpu(&self, tiles: &[LoadedTile], [x, out]: [Span; 2], rows: u32) -> Result<bool> {
        if !is_in_host_memory(tiles) {
            return Ok(false);
        }
        let (device, compute) = (self.device, self.compute);
        let (first, end) = (tiles[0].rows.start, tiles[tiles.len() - 1].rows.end);
        let row_bytes = (end - first) * 4;
        let [host_x, host_out] = self.text.cpu_exchange();
        let (host_x, host_out) = (host_x.slice(0, x.len()), host_out.slice(0, u64::from(rows) * row_bytes));
        let args = |tile: &LoadedTile| Linear {
            x: host_x,
            weight: tile.parts[0],
            bias: tile.parts.get(1).copied(),
            out: host_out,
            k: (x.len() / 4) as u32 / rows,
            n: (tile.rows.end - tile.rows.start) as u32,
            out_width: (end - first) as u32,
            out_column: (tile.rows.start - first) as u32,
            rows,
        };
        let products: Vec<Linear> = tiles.iter().map(args).collect();
        products.iter().for_each(Linear::check);
        device.copy_promptly(compute, x, host_x)?;
        device.linear_on_cpu(compute, &products)?;
        let out_bytes = out.len() / u64::from(rows);
        for row in 0..u64::from(rows) {
            let to = out.slice(row * out_bytes + first * 4, row_bytes);
            device.copy_promptly(compute, host_out.slice(row * row_bytes, row_bytes), to)?;
        }
        Ok(true)
    }

    /// The slots of each expert that the device computes.
    pub(super) fn group(&self, id: NodeId, slots: u32) -> Group {
        let node = self.graph.node(id);
        let &Op::Group { experts, .. } = &node.op else { unreachable!("called for a group") };
        let [ids, order, starts] = [node.inputs[0], node.outputs[0], node.outputs[1]].map(|id| self.span(id));
        let cpu = self.text.cpu_router(id).map_or(CpuSlots::NONE, |(router, _)| router.slots);
        Group { ids, order, starts, experts, slots, cpu, of_cpu: false }
    }

    /// Lets the processor begin with the slots that `group` has left to it, if any. Call it once copies of experts' weights
    /// can begin.
    pub(super) fn begin_experts_on_cpu(&self, group: NodeId, slots: u32) -> Result<()> {
        let Some((router, exchange)) = self.text.cpu_router(group) else { return Ok(()) };
        let CpuExchange { starts, .. } = exchange;
        let rows = slots / router.slots.top_k;
        let floats =
            |span: Span, rows: u32, width: u32| span.slice(0, 4 * u64::from(rows) * u64::from(width));
        let [up, down] = [&router.up, &router.down].map(|tiles| self.placement.tiles[tiles[0]].tile.node);
        let [up, down] = [up, down].map(|node| self.graph.node(node));
        let [hidden, inner] = [up, down].map(|node| self.width(node.inputs[0]));
        let [ids, order] = [exchange.ids, exchange.order].map(|span| floats(span, slots, 1));
        let x = floats(exchange.x, rows, hidden);
        let both = floats(exchange.up, slots, 2 * inner);
        let act = floats(exchange.act, slots, inner);
        let y = floats(exchange.out, slots, hidden);
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
        let of_cpu = Group { order, starts, of_cpu: true, ..self.group(group, slots) };
        of_cpu.check();
        let (device, compute) = (self.device, self.compute);
        device.copy_promptly(compute, self.span(up.inputs[0]), x)?;
        device.copy_promptly(compute, of_cpu.ids, ids)?;
        device.group(compute, &of_cpu)?;
        Ok(device.experts_on_cpu(compute, &experts)?)
    }

    /// The sum of the slots, which waits for those of the processor.
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
