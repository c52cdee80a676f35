//! The engine: a loaded model, and steps over it.

use crate::logits::check_finite;
use crate::parts::Parts;
use crate::pass::batch;
use crate::pass::passes::Passes;
use crate::trace::{HostSpan, Recorder, Trace, lap};
use crate::{BatchEntry, Captured, Entry, Error, Options, Result, Runtime, Sequence, Wanted};
use djinn_device::{DType, DeviceInfo, Drawn, Encoding, Ops, Space, Usage};
use djinn_pages::Pages;
use djinn_srg::{Graph, Op, Rows};
use djinn_vmu::{Detail, MemoryPlan, PassStats, WeightSource};
use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::Instant;

/// Refuses heads of more than `most` elements, the most that `device` computes attention over.
///
/// # Errors
/// [`Error::HeadDim`].
pub fn check_heads(graph: &Graph, most: u32, device: &str) -> Result<()> {
    for node in &graph.nodes {
        if let Op::Attention { head_dim, .. } = node.op
            && head_dim > most
        {
            return Err(Error::HeadDim { head_dim, most, device: device.to_owned() });
        }
    }
    Ok(())
}

/// Refuses what the device cannot compute from: an encoding of weights, a type of keys and values, a size of heads.
fn check_device(graph: &Graph, kv_dtype: DType, device: &DeviceInfo) -> Result<()> {
    if kv_dtype == DType::Int8 && !device.int8_cache {
        return Err(Error::CacheType { dtype: kv_dtype, device: device.name.clone() });
    }
    check_heads(graph, device.most_head_dim, &device.name)?;
    let reads = |encoding| encoding == Encoding::Plain || device.encodings.contains(&encoding);
    for (_, value) in graph.weights() {
        let mut runs = value.encodings.runs(0..value.encodings.rows());
        if let Some((_, encoding)) = runs.find(|&(_, encoding)| !reads(encoding)) {
            return Err(Error::Encoding {
                weight: value.name.clone(),
                encoding,
                device: device.name.clone(),
            });
        }
    }
    Ok(())
}

/// A model on a [`Runtime`] of its own or a shared one. All engines of a runtime are used from one thread at a time.
pub struct Engine<D: Ops> {
    pub(crate) runtime: Rc<Runtime<D>>,
    pub(crate) parts: Parts,
    pub(crate) passes: Passes,
    /// The failure after which no step runs.
    stopped: Option<String>,
    /// What the latest [`step`](Engine::step) read at hooks.
    captured: Vec<Captured>,
    /// Tokens that the device chose in the latest step.
    drawn: Vec<Drawn>,
    prefill_rows: u32,
    /// Whether a step may be enqueued while another one is under way.
    pub(crate) ahead: bool,
    /// See [`planned_prompt_rows`](Engine::planned_prompt_rows).
    planned_prompt_rows: u32,
    /// See [`rows_beside_decodes`](Options::rows_beside_decodes).
    rows_beside_decodes: Option<u32>,
    /// When loading began, and when it ended.
    loaded: [Instant; 2],
    /// Collects times while a trace runs.
    pub(crate) trace: Option<Recorder>,
}

impl<D: Ops> Engine<D> {
    /// Loads a model on a new runtime, as [`load_on`](Engine::load_on) does.
    pub fn load(
        device: D,
        graph: Graph,
        source: &dyn WeightSource,
        options: &Options,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Self> {
        Engine::load_on(Rc::new(Runtime::new(device)?), graph, source, options, progress)
    }

    /// Frees everything and returns the device.
    ///
    /// # Panics
    /// If another model shares it.
    pub fn unload(self) -> D {
        let runtime = Rc::into_inner(self.leave());
        runtime.expect("a device is given back by the last model on it").into_device()
    }

    /// Plans the memory within the runtime's budget, then loads the weights. `progress` gets the bytes read and the
    /// bytes in all, and may cancel.
    ///
    /// # Errors
    /// A budget that is too small (before anything is allocated), an unreadable weight, a device out of memory, or
    /// [`Error::Cancelled`].
    pub fn load_on(
        runtime: Rc<Runtime<D>>,
        graph: Graph,
        source: &dyn WeightSource,
        options: &Options,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Self> {
        let began = Instant::now();
        check_device(&graph, options.kv_dtype, &runtime.info)?;
        if options.budget.cpu_share > 0.0 && !runtime.info.cpu_products {
            return Err(Error::CpuProducts { device: runtime.info.name.clone() });
        }
        let plan = runtime.plan(&graph, options)?;
        let passes = Passes::new(options.replay && runtime.info.captures);
        let parts = Parts::load(&runtime, graph, plan, options.hook_bytes, source, progress)?;
        runtime.take(&parts.plan);
        let planned_prompt_rows = options.planned_prompt_rows(&parts.plan);
        let rows_beside_decodes = options.rows_beside_decodes(&parts.graph, &parts.plan);
        // After a long step the host's time matters little, and a dropped token is expensive.
        let is_short = parts.plan.placement.streamed_bytes() == 0 && !runtime.info.host_memory;
        let ahead = options.ahead && is_short;
        Ok(Engine {
            runtime,
            parts,
            passes,
            stopped: None,
            captured: Vec::new(),
            drawn: Vec::new(),
            prefill_rows: u64::from(options.prefill_rows).min(options.context) as u32,
            ahead,
            planned_prompt_rows,
            rows_beside_decodes,
            loaded: [began, Instant::now()],
            trace: None,
        })
    }

    /// Works on a loaded engine before it is used. If that fails, the engine [leaves](Self::leave).
    ///
    /// # Errors
    /// Those of `work`.
    pub fn prepared<T, E>(mut self, work: impl FnOnce(&mut Self) -> Result<T, E>) -> Result<(Self, T), E> {
        match work(&mut self) {
            Ok(given) => Ok((self, given)),
            Err(error) => {
                self.leave();
                Err(error)
            }
        }
    }

    /// Frees the model's memory on the runtime. A dropped engine does not.
    pub fn leave(mut self) -> Rc<Runtime<D>> {
        self.settle();
        self.end_trace();
        let Engine { runtime, parts, .. } = self;
        runtime.give_back(&parts.plan, parts.is_away());
        parts.free(&runtime);
        runtime
    }

    /// Waits for the enqueued work, and frees its captures.
    pub(crate) fn settle(&mut self) {
        let Runtime { device, compute, .. } = &*self.runtime;
        // The step that enqueued failing work has returned the failure.
        let _ = device.sync(*compute);
        self.passes.forget(device);
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.runtime.device
    }

    /// The device's own account of a memory space.
    pub fn usage(&self, space: Space) -> Usage {
        self.runtime.device.usage(space)
    }

    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.parts.graph
    }

    /// The memory plan.
    pub fn plan(&self) -> &MemoryPlan {
        &self.parts.plan
    }

    /// Bytes of host memory for reads and changes at hooks.
    pub fn hook_bytes(&self) -> u64 {
        self.parts.hooks.map_or(0, |buffer| buffer.span().len())
    }

    /// Streamed chunks that are in the ring or on their way, and not used yet.
    pub fn chunks_ahead(&self) -> u64 {
        self.parts.text.streamer.position().chunks_ahead()
    }

    /// Passes that were replayed from a capture, with one call of the host.
    pub fn replayed_passes(&self) -> u64 {
        self.passes.replayed
    }

    /// The most tokens of a sequence.
    pub fn context(&self) -> u64 {
        let kv = &self.plan().kv;
        (kv.table_width as u64 * kv.page_tokens as u64).min(self.graph().max_context)
    }

    /// Tokens of a prefill chunk. Longer prompts are computed in pieces of this size.
    pub fn chunk(&self) -> u32 {
        self.prefill_rows
    }

    /// Prompt tokens for which a step's memory is planned: one or more prefill chunks. The scheduler may give a prompt more
    /// rows when few sessions decode.
    pub fn planned_prompt_rows(&self) -> u32 {
        self.planned_prompt_rows
    }

    /// Rows of a step in which sessions decode. `None`: as many as there is memory for.
    pub fn rows_beside_decodes(&self) -> Option<u32> {
        self.rows_beside_decodes
    }

    /// A new book of the model's KV pages, all of them free. It is for callers without a scheduler; only one book may
    /// be in use.
    pub fn free_pages(&self) -> Pages {
        Pages::new(self.plan().kv.pages, self.plan().kv.host_pages)
    }

    /// Runs one step over sequences with pages in the caller's book. Returns the wanted logits, f32 `[rows wanted,
    /// vocab]` row-major in the order of the entries, and the pass's statistics.
    ///
    /// # Errors
    /// Bad tokens, bad interventions and sequences that do not fit leave every sequence as it was. A failure of the
    /// device stops the model: later steps are refused.
    ///
    /// # Panics
    /// As [`begin`](Self::begin).
    pub fn step(&mut self, pages: &mut Pages, batch: &mut [Entry<'_>]) -> Result<(Vec<f32>, PassStats)> {
        let entries: Vec<BatchEntry<'_>> = batch.iter().map(Entry::in_batch).collect();
        self.check_batch(&entries)?;
        self.grow(pages, batch)?;
        let entries: Vec<BatchEntry<'_>> = batch.iter().map(Entry::in_batch).collect();
        let begun = self.begin(&entries);
        if let Err(Error::Intervention { .. }) = begun {
            for Entry { sequence, tokens, .. } in batch {
                self.truncate(pages, sequence, sequence.tokens - tokens.len() as u64);
            }
        }
        begun?;
        let ((logits, drawn, captured), stats) =
            self.finish(|logits, drawn, captured| (logits.to_vec(), drawn, captured))?;
        (self.captured, self.drawn) = (captured, drawn);
        Ok((logits, stats))
    }

    /// Records a failure, after which no step runs.
    pub(crate) fn stop_on<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.stopped = Some(error.to_string());
        }
        result
    }

    /// Refuses to go on after a failure.
    pub(crate) fn check_runs(&self) -> Result<()> {
        self.stopped.as_ref().map_or(Ok(()), |reason| Err(Error::Stopped(reason.clone())))
    }

    /// The rows of a batch, after its checks.
    pub(crate) fn check_batch(&self, batch: &[BatchEntry<'_>]) -> Result<Rows> {
        self.passes.expect_room(batch);
        assert!(!self.is_away(), "a step of a model that has left the device");
        self.check_runs()?;
        let Parts { graph, plan, .. } = &self.parts;
        let rows = batch::rows(batch, graph.vocab)?;
        let most = plan.stack.rows;
        assert!(
            rows.rows <= most.rows
                && rows.logit_rows <= most.logit_rows
                && batch.len() <= plan.kv.sequences as usize,
            "a batch of {} sequences and {rows:?} in a plan for {most:?}",
            batch.len()
        );
        Ok(rows)
    }

    /// Makes room for a batch, all or nothing.
    fn grow(&mut self, pages: &mut Pages, batch: &mut [Entry<'_>]) -> Result<()> {
        let (context, page_tokens) = (self.context(), u64::from(self.plan().kv.page_tokens));
        let before: Vec<u64> = batch.iter().map(|entry| entry.sequence.tokens).collect();
        let (mut fresh, mut full) = (Vec::new(), None);
        for entry in &mut *batch {
            let tokens = entry.sequence.tokens + entry.tokens.len() as u64;
            let room = (u64::from(pages.device_free()) + entry.sequence.pages().len() as u64) * page_tokens;
            if tokens > context || !entry.sequence.grow(pages, tokens, page_tokens, &mut fresh) {
                full = Some(Error::ContextFull { tokens, context: context.min(room) });
                break;
            }
        }
        self.prepare(&fresh, &[])?;
        let Some(full) = full else { return Ok(()) };
        for (entry, tokens) in batch.iter_mut().zip(before) {
            entry.sequence.truncate(pages, tokens, page_tokens);
        }
        Err(full)
    }

    /// Logits of every position of `tokens`, f32 `[tokens, vocab]` row-major. The sequence's pages are free again
    /// afterwards.
    ///
    /// # Errors
    /// As [`step`](Self::step); [`BadLogit`](crate::BadLogit) if one is not finite.
    pub fn logits(&mut self, pages: &mut Pages, tokens: &[u32]) -> Result<Vec<f32>> {
        let mut sequence = Sequence::default();
        let result = (|| {
            let mut logits = Vec::new();
            for piece in tokens.chunks(self.plan().stack.rows.logit_rows as usize) {
                logits.extend(self.step(pages, &mut [Entry::new(&mut sequence, piece, Wanted::All)])?.0);
            }
            let rows = (0..).zip(logits.chunks_exact(self.graph().vocab as usize));
            rows.into_iter().try_for_each(|(position, row)| check_finite(row, position))?;
            Ok(logits)
        })();
        sequence.release(pages);
        result
    }

    /// Row `row` of the logits of the latest finished step, f32 `[vocab]`, read from the device.
    ///
    /// # Errors
    /// A failure of the device.
    ///
    /// # Panics
    /// If a step is under way, or if the latest step has no such row.
    pub fn latest_logits(&self, row: usize) -> Result<Vec<f32>> {
        self.passes.expect_idle();
        let Parts { graph, plan, stack, logits, .. } = &self.parts;
        let Runtime { device, compute, .. } = &*self.runtime;
        let bytes = graph.vocab * 4;
        let place = stack.span(graph, graph.logits, plan.stack.rows).slice(row as u64 * bytes, bytes);
        let host = logits.slice(0, bytes);
        device.copy_promptly(*compute, place, host)?;
        device.sync(*compute)?;
        Ok(device.read_host(host, |logits| bytemuck::cast_slice(logits).to_vec()))
    }

    /// The tokens that the device chose in the latest [`step`](Self::step), in the order of the entries.
    pub fn take_drawn(&mut self) -> Vec<Drawn> {
        std::mem::take(&mut self.drawn)
    }

    /// The captures of the latest [`step`](Self::step), in the order of the entries and their interventions.
    pub fn take_captured(&mut self) -> Vec<Captured> {
        std::mem::take(&mut self.captured)
    }

    /// Runs the largest prompt step, and decode steps of one row until one is replayed, on a sequence of zeros.
    /// Devices load kernels, choose algorithms and capture at first use, which is then done.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn warm_up(&mut self, pages: &mut Pages) -> Result<()> {
        /// Passes until one is replayed: both kinds of pass are enqueued, captured and replayed.
        const DECODES: u64 = 5;
        let decodes = if self.runtime.info.captures { DECODES } else { 1 };
        let context = self.context();
        let prompt = u64::from(self.planned_prompt_rows).min(context.saturating_sub(decodes)).max(1);
        let decodes = decodes.min(context - prompt);
        let before = self.replayed_passes();
        let mut sequence = Sequence::default();
        let mut advance = |engine: &mut Self, tokens: &[u32]| {
            engine.step(pages, &mut [Entry::new(&mut sequence, tokens, Wanted::Last)]).map(drop)
        };
        let outcome = (|| {
            advance(self, &vec![0; prompt as usize])?;
            for _ in 0..decodes {
                if self.replayed_passes() == before {
                    advance(self, &[0])?;
                }
            }
            Ok(())
        })();
        sequence.release(pages);
        outcome
    }

    /// Records that tokens were chosen from `began` until now.
    pub(crate) fn sampled(&mut self, began: Instant) {
        lap(&mut self.trace, HostSpan::Sample, began);
    }

    /// Begins a trace of whole passes and of the model's loading. An earlier trace is dropped. Memory grows by about
    /// 50 bytes for each launch and each streamed chunk.
    ///
    /// # Errors
    /// A device that fails or has no more events.
    pub fn start_trace(&mut self) -> Result<()> {
        self.end_trace();
        self.trace = Some(Recorder::new(&self.runtime.device, self.runtime.compute, self.loaded)?);
        self.parts.lower(Detail::Apart);
        Ok(())
    }

    /// Whether a trace runs. Its passes are launched one by one, not replayed.
    pub fn tracing(&self) -> bool {
        self.trace.is_some()
    }

    pub(crate) fn traced_spans(&self) -> usize {
        self.trace.as_ref().map_or(0, Recorder::spans)
    }

    /// Ends the trace and returns it, also after a failure of the device. `None` if none was started.
    pub fn finish_trace(&mut self) -> Option<Trace> {
        let trace = self.trace.as_mut()?.finish(&self.parts, &self.runtime.info.name);
        self.end_trace();
        Some(trace)
    }

    fn end_trace(&mut self) {
        if let Some(recorder) = self.trace.take() {
            recorder.free(&self.runtime.device);
            self.parts.lower(Detail::Fused);
        }
    }
}
