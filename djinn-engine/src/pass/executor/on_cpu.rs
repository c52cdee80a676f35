//! Products that the CPU computes where their weights lie.

use super::Executor;
use super::arguments::is_in_host_memory;
use crate::Result;
use djinn_device::args::Linear;
use djinn_device::{Ops, Span};
use djinn_vmu::LoadedTile;

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
}
