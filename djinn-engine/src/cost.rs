//! Measures copy and compute rates, by which policies weigh swapping against recomputing.

use crate::{Engine, Entry, Result, Sequence, Wanted};
use djinn_device::Ops;
use djinn_pages::{Pages, Residency};
use djinn_scheduler::CostModel;
use djinn_vmu::Direction;
use std::time::Instant;

/// Tokens of the timed prompt if the device computes on the host. Longer prompts are hardly faster.
const HOST_TOKENS: u32 = 16;

impl<D: Ops> Engine<D> {
    /// Times a step of prefill chunks, and the swap of its pages to host memory and back. If the host has no room
    /// for pages, the rates of copies are nominal, since no policy copies any. All pages are free again afterwards.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn measure_cost(&mut self, pages: &mut Pages) -> Result<CostModel> {
        let mut sequence = Sequence::default();
        let measured = self.measure_on(pages, &mut sequence);
        // After a failure its pages may be in the middle of a copy, and nothing runs any more.
        if !matches!(sequence.residency(), Residency::Leaving | Residency::Arriving) {
            sequence.release(pages);
        }
        measured
    }

    fn measure_on(&mut self, pages: &mut Pages, sequence: &mut Sequence) -> Result<CostModel> {
        let info = &self.runtime.info;
        // The first run of a shape makes devices load and choose kernels.
        let (most, runs) = if info.host_memory { (HOST_TOKENS, 1) } else { (u32::MAX, 2) };
        let tokens = vec![0; u64::from(self.planned_prompt_rows().min(most)).min(self.context()) as usize];
        let mut prefill_tokens_per_s = 0.0;
        for _ in 0..runs {
            self.truncate(pages, sequence, 0);
            let began = Instant::now();
            self.step(pages, &mut [Entry::new(sequence, &tokens, Wanted::Last)])?;
            prefill_tokens_per_s = tokens.len() as f64 / began.elapsed().as_secs_f64();
        }
        let out_bytes_per_s = self.swap_rate(Direction::Out, pages, sequence)?;
        let in_bytes_per_s = match sequence.residency() {
            Residency::Host => self.swap_rate(Direction::In, pages, sequence)?,
            _ => out_bytes_per_s,
        };
        let page_bytes = self.plan().kv.page_bytes();
        Ok(CostModel { page_bytes, out_bytes_per_s, in_bytes_per_s, prefill_tokens_per_s })
    }

    /// Bytes per second of a swap in one direction.
    fn swap_rate(&mut self, direction: Direction, pages: &mut Pages, sequence: &mut Sequence) -> Result<f64> {
        /// The rate of copies that never happen.
        const NOMINAL: f64 = 1e9;
        let mut rate = NOMINAL;
        if self.begin_swap(pages, direction, 0, sequence)? {
            for transfer in self.settle_swaps()? {
                sequence.end_swap(pages, &transfer);
                let moved = transfer.moved().filter(|moved| !moved.is_zero());
                rate = moved.map_or(NOMINAL, |moved| transfer.bytes as f64 / moved.as_secs_f64());
            }
        }
        Ok(rate)
    }
}
