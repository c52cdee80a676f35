//! Passes of a model: begun, then enqueued launch by launch or replayed with one call, then finished in order.

pub(crate) mod batch;
mod capture;
pub(crate) mod choices;
mod executor;
pub(crate) mod passes;
mod progress;
mod replay;

use crate::hooks::{Bound, KvAccess, Pending, ReadBack, bind};
use crate::parts::{Exchange, Parts};
use crate::trace::{HostSpan, Recorder, lap};
use crate::{BatchEntry, Engine, Error, Result, Runtime};
use batch::{Layout, RowRuns};
use choices::{Chooses, SamplingRows};
use djinn_device::args::SelectRows;
use djinn_device::{Drawn, Ops};
use djinn_srg::Rows;
use djinn_vmu::PassStats;
use executor::Executor;
use passes::{Passes, UnderWay};
use replay::{HowToRun, Key};
use std::time::Instant;

impl Passes {
    /// Enqueues the captured part of a pass: everything but its inputs and the choice of tokens.
    pub(super) fn enqueue<D: Ops>(
        &self,
        runtime: &Runtime<D>,
        parts: &mut Parts,
        trace: Option<&mut Recorder>,
        rows: Rows,
        runs: &RowRuns,
        hooks: Pending<'_>,
    ) -> Result<()> {
        let Runtime { device, compute, .. } = runtime;
        Executor::new(runtime, parts, rows, runs, trace).pass(hooks)?;
        let Parts { graph, stack, .. } = parts;
        let (mut to, row) = (0, graph.vocab * 4);
        for copied in &runs.outputs.0 {
            let (from, bytes) = (u64::from(copied.start) * row, copied.len() as u64 * row);
            let logits = stack.span(graph, graph.logits, rows).slice(from, bytes);
            device.copy_promptly(*compute, logits, parts.logits.slice(to, bytes))?;
            to += bytes;
        }
        Ok(())
    }

    /// Enqueues the copies of a pass's inputs, and of the tokens chosen by the previous pass.
    fn enqueue_inputs<D: Ops>(
        &self,
        runtime: &Runtime<D>,
        parts: &Parts,
        exchange: usize,
        layout: &Layout,
        entries: usize,
    ) -> Result<()> {
        let Runtime { device, compute, .. } = runtime;
        let Parts { graph, plan, stack, data, exchanges, .. } = parts;
        let Exchange { begin, inputs, table, sources, .. } = exchanges[exchange];
        device.record(*compute, begin)?;
        device.copy_promptly(*compute, inputs.span(), stack.inputs())?;
        let used = entries as u64 * u64::from(plan.kv.table_width) * 4;
        device.copy_promptly(*compute, table.slice(0, used), data.table().slice(0, used))?;
        if !layout.sources.is_empty() {
            let rows = layout.sources.len() as u32;
            let (x, indices) = (exchanges[1 - exchange].drawn.span(), sources.slice(0, u64::from(rows) * 4));
            let out = stack.span(graph, graph.tokens, layout.rows());
            let select = SelectRows { x, indices, out, width: 1, rows };
            select.check();
            device.select_rows(*compute, &select)?;
        }
        Ok(())
    }

    /// Enqueues the choice of a pass's tokens, and records its end.
    fn enqueue_choice<D: Ops>(
        &self,
        runtime: &Runtime<D>,
        parts: &Parts,
        exchange: usize,
        rows: Rows,
        choices: Option<&SamplingRows>,
    ) -> Result<()> {
        let Runtime { device, compute, .. } = runtime;
        if let Some(choices) = choices {
            let choose = choices.write(device, parts, exchange, rows);
            choose.check();
            device.choose(*compute, &choose)?;
        }
        Ok(device.record(*compute, parts.exchanges[exchange].done)?)
    }
}

impl<D: Ops> Engine<D> {
    /// Begins a step over a batch whose pages were prepared, and returns once it is enqueued. Its pages must not be
    /// used otherwise until it is [finished](Self::finish).
    ///
    /// # Errors
    /// Bad tokens or interventions. A failure of the device stops the model: later steps are refused.
    ///
    /// # Panics
    /// If the batch is larger than the plan's step. If a step is under way, unless the engine [takes the
    /// next](Self::takes_next), all entries come [after](BatchEntry::after) one of that step's, and only choose tokens.
    pub fn begin(&mut self, batch: &[BatchEntry<'_>]) -> Result<()> {
        self.begin_with(batch, &[], Chooses::Now)
    }

    /// The same, with accesses to keys and values in the pages, in the order of the entries.
    pub(crate) fn begin_with(
        &mut self,
        batch: &[BatchEntry<'_>],
        caches: &[KvAccess<'_>],
        chooses: Chooses,
    ) -> Result<()> {
        self.check_batch(batch)?;
        let mut layout = Layout::new(batch, &self.runtime.info);
        if let Some(before) = self.passes.under_way.front() {
            layout.follow(batch, &before.chosen);
        }
        let hooks = bind(&self.runtime.device, &self.parts, batch, &layout, caches)?;
        let begun = self.begin_pass(batch, &layout, hooks, chooses);
        self.stop_on(begun)
    }

    fn begin_pass(
        &mut self,
        batch: &[BatchEntry<'_>],
        layout: &Layout,
        hooks: Bound,
        chooses: Chooses,
    ) -> Result<()> {
        let began = Instant::now();
        let Engine { runtime, parts, passes, trace, .. } = self;
        let (device, rows) = (&runtime.device, layout.rows());
        parts.share_link(device, rows)?;
        let exchange = passes.free_exchange();
        layout.write(device, parts, &parts.exchanges[exchange], batch);
        let began = lap(trace, HostSpan::Upload, began);
        passes.enqueue_inputs(runtime, parts, exchange, layout, batch.len())?;
        let outputs = layout.runs.outputs.clone();
        // What single slots give is on the device only if the device computes them all.
        parts.text.streamer.begin_pass(rows.rows, hooks.are_at_slots(&parts.graph));
        let position = parts.text.streamer.position();
        let key = Key { rows, position, hooks: hooks.work().to_vec(), outputs: outputs.clone() };
        let one_token_each = batch.len() as u64 == rows.rows;
        let how = match &mut passes.replays {
            Some(replays) if one_token_each && trace.is_none() => replays.choose(&key),
            _ => HowToRun::Enqueue,
        };
        match how {
            HowToRun::Enqueue => {
                let hooks = Pending(&key.hooks);
                passes.enqueue(runtime, parts, trace.as_mut(), rows, &layout.runs, hooks)?
            }
            HowToRun::Capture => passes.capture(runtime, parts, key, &layout.runs)?,
            HowToRun::Replay(capture, end) => {
                device.replay(capture)?;
                parts.text.streamer.replayed(end);
                passes.replayed += 1;
            }
        }
        let waits = chooses == Chooses::Later;
        if !waits {
            passes.enqueue_choice(runtime, parts, exchange, rows, layout.choices.as_ref())?;
        }
        let enqueued = lap(trace, HostSpan::Enqueue, began);
        let (chooses, chosen) = (layout.choices.is_some(), layout.chosen.clone());
        let pass = UnderWay { exchange, rows, chooses, waits, chosen, outputs, enqueued, hooks };
        passes.under_way.push_back(pass);
        Ok(())
    }

    /// As [`Engine::finish`], with the keys and values that it read.
    pub(crate) fn finish_with<T>(
        &mut self,
        read: impl FnOnce(&[f32], Vec<Drawn>, ReadBack) -> T,
    ) -> Result<(T, PassStats)> {
        let waited = self.wait();
        let pass = self.passes.under_way.pop_front();
        let UnderWay { exchange, rows, chooses, outputs, enqueued, hooks, .. } =
            pass.expect("a pass was begun");
        waited?;
        let Exchange { begin, done, .. } = self.parts.exchanges[exchange];
        let [begin, end] = [begin, done].map(|event| self.runtime.device.timestamp(event));
        self.passes.latest = begin.zip(end).map(|(begin, end)| begin..end);
        lap(&mut self.trace, HostSpan::Wait, enqueued);
        let Engine { runtime, parts, trace, .. } = self;
        let (device, streamer) = (&runtime.device, &mut parts.text.streamer);
        let ended = streamer.end_pass(device);
        if let (Ok(_), Some(trace)) = (&ended, trace) {
            trace.end_pass(device, &parts.plan, streamer.times(device));
        }
        let stats = self.stop_on(ended.map_err(Error::from))?;
        let captured = hooks.read(&self.runtime.device);
        let Engine { runtime, parts, .. } = self;
        let chosen = if chooses { rows.logit_rows } else { 0 };
        let drawn = choices::read(&runtime.device, parts.exchanges[exchange].drawn.span(), chosen);
        let logits = parts.logits.slice(0, outputs.copied_rows() * parts.graph.vocab * 4);
        let read = |bytes: &[u8]| read(bytemuck::cast_slice(bytes), drawn, captured);
        Ok((runtime.device.read_host(logits, read), stats))
    }
}
