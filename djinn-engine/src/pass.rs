//! Passes of a model, one at a time: begun, then enqueued launch by launch or replayed with one call, and finished.

pub(crate) mod batch;
mod executor;
pub(crate) mod passes;
mod replay;

use crate::hooks::{Bound, KvAccess, Pending, ReadBack, bind};
use crate::parts::Parts;
use crate::trace::{HostSpan, Recorder, lap};
use crate::{BatchEntry, Captured, Engine, Error, Result, Runtime};
use batch::{Layout, RowRuns};
use djinn_device::args::Choose;
use djinn_device::{Draw, Drawn, Ops};
use djinn_srg::Rows;
use djinn_vmu::PassStats;
use executor::Executor;
use passes::{Passes, UnderWay};
use replay::{Choice, Key};
use std::ops::Deref;
use std::time::Instant;

impl Passes {
    /// Captures a pass and replays it. Where there is no room for a capture, this pass and all later ones are enqueued.
    fn capture<D: Ops>(
        &mut self,
        runtime: &Runtime<D>,
        parts: &mut Parts,
        key: Key,
        runs: &RowRuns,
    ) -> Result<()> {
        let Runtime { device, compute, .. } = runtime;
        let streams = parts.streams(*compute);
        let hooks = Pending(&key.hooks);
        let captured = device.capture(&streams, || self.enqueue(runtime, parts, None, key.rows, runs, hooks));
        let replays = self.replays.as_mut().expect("a pass is captured to be replayed");
        let capture = match captured {
            Err(Error::Device(djinn_device::Error::Resource { .. })) => {
                parts.text.streamer.withdrawn(key.position);
                device.sync(*compute)?;
                replays.free(device);
                self.replays = None;
                return self.enqueue(runtime, parts, None, key.rows, runs, hooks);
            }
            captured => captured?,
        };
        if let Some(evicted) = replays.keep(key, capture, parts.text.streamer.position()) {
            device.sync(*compute)?;
            device.free_capture(evicted);
        }
        Ok(device.replay(capture)?)
    }

    /// Enqueues a pass, from the copies of its inputs to the choice from its logits and their copies, and records that it
    /// is done.
    fn enqueue<D: Ops>(
        &self,
        runtime: &Runtime<D>,
        parts: &mut Parts,
        trace: Option<&mut Recorder>,
        rows: Rows,
        runs: &RowRuns,
        hooks: Pending<'_>,
    ) -> Result<()> {
        let Runtime { device, compute, .. } = runtime;
        device.copy_promptly(*compute, parts.inputs.span(), parts.stack.inputs())?;
        device.copy_promptly(*compute, parts.table.span(), parts.data.table())?;
        Executor::new(runtime, parts, rows, runs, trace).pass(hooks)?;
        let Parts { graph, stack, draws, drawn, .. } = parts;
        if runs.outputs.chooses {
            let (logits, count) = (stack.span(graph, graph.logits, rows), rows.logit_rows);
            let draws = draws.slice(0, count * Draw::WORDS as u64 * 4);
            let drawn = drawn.slice(0, count * Drawn::WORDS as u64 * 4);
            let choose = Choose { logits, draws, drawn, vocab: graph.vocab as u32, rows: count as u32 };
            choose.check();
            device.choose(*compute, &choose)?;
        }
        let (mut to, row) = (0, graph.vocab * 4);
        for copied in &runs.outputs.copied {
            let (from, bytes) = (u64::from(copied.start) * row, copied.len() as u64 * row);
            let logits = stack.span(graph, graph.logits, rows).slice(from, bytes);
            device.copy_promptly(*compute, logits, parts.logits.slice(to, bytes))?;
            to += bytes;
        }
        Ok(device.record(*compute, self.done)?)
    }
}

impl<D: Ops, R: Deref<Target = Runtime<D>>> Engine<D, R> {
    /// Begins a step over a batch whose pages were prepared, and returns once it is enqueued. Nothing else may be asked
    /// of its pages until it was [finished](Self::finish).
    ///
    /// # Errors
    /// Bad tokens or interventions. A failure of the device stops the model: later steps are refused.
    ///
    /// # Panics
    /// If the batch is larger than the plan's step, or a step that was begun is under way.
    pub fn begin(&mut self, batch: &[BatchEntry<'_>]) -> Result<()> {
        self.begin_with(batch, &[])
    }

    /// The same, with what is done to keys and values that are in the pages, in order of the entries.
    pub(crate) fn begin_with(&mut self, batch: &[BatchEntry<'_>], caches: &[KvAccess<'_>]) -> Result<()> {
        self.check_batch(batch)?;
        let layout = Layout::new(batch, &self.runtime.info);
        let hooks = bind(&self.runtime.device, &self.parts, batch, &layout, caches)?;
        let begun = self.begin_pass(batch, &layout, hooks);
        self.stop_on(begun)
    }

    fn begin_pass(&mut self, batch: &[BatchEntry<'_>], layout: &Layout, hooks: Bound) -> Result<()> {
        let began = Instant::now();
        let Engine { runtime, parts, passes, trace, .. } = self;
        let (device, rows) = (&runtime.device, layout.rows());
        parts.share_link(device, rows)?;
        layout.write(device, parts, batch);
        let began = lap(trace, HostSpan::Upload, began);
        let outputs = layout.runs.outputs.clone();
        let position = parts.text.streamer.position();
        let key = Key { rows, position, hooks: hooks.work().to_vec(), outputs: outputs.clone() };
        let one_token_each = batch.len() as u64 == rows.rows;
        let choice = match &mut passes.replays {
            Some(replays) if one_token_each && trace.is_none() => replays.choose(&key),
            _ => Choice::Enqueue,
        };
        match choice {
            Choice::Enqueue => {
                let hooks = Pending(&key.hooks);
                passes.enqueue(runtime, parts, trace.as_mut(), rows, &layout.runs, hooks)?
            }
            Choice::Capture => passes.capture(runtime, parts, key, &layout.runs)?,
            Choice::Replay(capture, end) => {
                device.replay(capture)?;
                parts.text.streamer.replayed(end);
                passes.replayed += 1;
            }
        }
        let enqueued = lap(trace, HostSpan::Enqueue, began);
        passes.under_way = Some(UnderWay { rows, outputs, enqueued, hooks });
        Ok(())
    }

    /// Whether the step that was begun is over, so that finishing it waits for nothing.
    ///
    /// # Errors
    /// A failure of the device.
    pub fn is_done(&mut self) -> Result<bool> {
        let done = self.runtime.device.is_done(self.passes.done);
        self.stop_on(done.map_err(Error::from))
    }

    /// Waits until the step that was begun is over.
    ///
    /// # Errors
    /// A failure of the device.
    pub fn wait(&mut self) -> Result<()> {
        let done = self.runtime.device.sync_event(self.passes.done);
        self.stop_on(done.map_err(Error::from))
    }

    /// Waits for the step that was begun, and reads the logits that are wanted where the device left them, f32
    /// `[rows wanted, vocab]` row-major, the tokens that it chose, and what it read at hooks; all in the order of the
    /// entries, and of their interventions.
    ///
    /// # Errors
    /// A failure of the device.
    ///
    /// # Panics
    /// If none was begun.
    pub fn finish<T>(
        &mut self,
        read: impl FnOnce(&[f32], Vec<Drawn>, Vec<Captured>) -> T,
    ) -> Result<(T, PassStats)> {
        self.finish_with(|logits, drawn, back| read(logits, drawn, back.captured))
    }

    /// The same, with what it read of keys and values.
    pub(crate) fn finish_with<T>(
        &mut self,
        read: impl FnOnce(&[f32], Vec<Drawn>, ReadBack) -> T,
    ) -> Result<(T, PassStats)> {
        let under_way = self.passes.under_way.take();
        let UnderWay { rows, outputs, enqueued, hooks } =
            under_way.expect("a pass is finished that was not begun");
        self.wait()?;
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
        let chosen = if outputs.chooses { rows.logit_rows * Drawn::WORDS as u64 * 4 } else { 0 };
        let drawn = runtime.device.read_host(parts.drawn.slice(0, chosen), |bytes| {
            let words: &[[u32; Drawn::WORDS]] = bytemuck::cast_slice(bytes);
            words.iter().filter_map(|&words| Drawn::from_words(words)).collect()
        });
        let logits = parts.logits.slice(0, outputs.copied_rows() * parts.graph.vocab * 4);
        let read = |bytes: &[u8]| read(bytemuck::cast_slice(bytes), drawn, captured);
        Ok((runtime.device.read_host(logits, read), stats))
    }
}
