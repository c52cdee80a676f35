//! The engine: a loaded model, and steps over it.

use crate::logits::check_finite;
use crate::parts::Parts;
use crate::pass::batch;
use crate::pass::passes::Passes;
use crate::trace::{HostSpan, Recorder, Trace, lap};
use crate::{BatchEntry, Captured, Entry, Error, Options, Result, Runtime, Sequence, Wanted};
use djinn_device::{DeviceInfo, Drawn, Encoding, Ops, Space, Usage};
use djinn_pages::Pages;
use djinn_srg::{Dim, Graph, Op, Rows, Value};
use djinn_vmu::{Detail, MemoryPlan, PassStats, WeightSource};
use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::Instant;

/// Refuses weights that the device cannot read where they lie.
fn check_encodings(graph: &Graph, device: &DeviceInfo) -> Result<()> {
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

/// A model on a [`Runtime`], which is its own or shared with others. One thread uses all of these at a time.
pub struct Engine<D: Ops> {
    pub(crate) runtime: Rc<Runtime<D>>,
    pub(crate) parts: Parts,
    pub(crate) passes: Passes,
    /// Why no further step can run.
    stopped: Option<String>,
    /// What the latest [`step`](Engine::step) read at hooks.
    captured: Vec<Captured>,
    /// Tokens that the device chose in it.
    drawn: Vec<Drawn>,
    prefill_rows: u32,
    /// A step may follow one that is under way.
    pub(crate) ahead: bool,
    /// Rows that a prompt takes of a step.
    prompt_rows: u32,
    /// When loading began and ended.
    loaded: [Instant; 2],
    /// Collects times while a trace is wanted.
    pub(crate) trace: Option<Recorder>,
}

impl<D: Ops> Engine<D> {
    /// Loads a model on a device of its own, as [`load_on`](Engine::load_on) does.
    pub fn load(
        device: D,
        graph: Graph,
        source: &dyn WeightSource,
        options: &Options,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Self> {
        Engine::load_on(Rc::new(Runtime::new(device)?), graph, source, options, progress)
    }

    /// Frees everything and returns the device, e.g. to look at its accounting.
    ///
    /// # Panics
    /// If another model shares it.
    pub fn unload(self) -> D {
        let runtime = Rc::into_inner(self.leave());
        runtime.expect("a device is given back by the last model on it").into_device()
    }

    /// Plans the memory as the runtime has it, then loads the weights. `progress` is told the bytes read so far of all
    /// bytes, and may end the work.
    ///
    /// # Errors
    /// A budget that is too small (before anything is allocated), a weight that cannot be read, a device out of memory,
    /// or [`Error::Cancelled`].
    pub fn load_on(
        runtime: Rc<Runtime<D>>,
        graph: Graph,
        source: &dyn WeightSource,
        options: &Options,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Self> {
        let began = Instant::now();
        check_encodings(&graph, &runtime.info)?;
        let plan = runtime.plan(&graph, options)?;
        let passes = Passes::new(&runtime.device, options.replay && runtime.info.captures)?;
        let parts = Parts::load(&runtime, graph, plan, options.hook_bytes, source, progress)?;
        runtime.take(&parts.plan);
        let prompt_rows = options.prompt_rows(&parts.plan);
        // Where a step takes long, the host's time after it is little, and a token that is dropped costs much.
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
            prompt_rows,
            loaded: [began, Instant::now()],
            trace: None,
        })
    }

    /// Frees everything that the model has on the runtime.
    pub fn leave(mut self) -> Rc<Runtime<D>> {
        self.settle();
        let Engine { runtime, parts, .. } = self;
        runtime.give_back(&parts.plan, parts.is_away());
        parts.free(&runtime);
        runtime
    }

    /// Waits for what was enqueued, and frees what replays it.
    pub(crate) fn settle(&mut self) {
        let Runtime { device, compute, .. } = &*self.runtime;
        // A failure of enqueued work was returned by the step that enqueued it.
        let _ = device.sync(*compute);
        self.passes.forget(device);
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.runtime.device
    }

    /// What the device's own accounting says.
    pub fn usage(&self, space: Space) -> Usage {
        self.runtime.device.usage(space)
    }

    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.parts.graph
    }

    /// Where every byte lies.
    pub fn plan(&self) -> &MemoryPlan {
        &self.parts.plan
    }

    /// Bytes of memory for what a step reads and changes at hooks.
    pub fn hook_bytes(&self) -> u64 {
        self.parts.hooks.map_or(0, |buffer| buffer.span().len())
    }

    /// Streamed chunks whose copies are done or enqueued, and whose use is still to be enqueued.
    pub fn chunks_ahead(&self) -> u64 {
        self.parts.text.streamer.position().chunks_ahead()
    }

    /// Passes so far that the device repeated from a capture, with one call of the host.
    pub fn replayed_passes(&self) -> u64 {
        self.passes.replayed
    }

    /// Tokens that a sequence may have.
    pub fn context(&self) -> u64 {
        let kv = &self.plan().kv;
        (kv.table_width as u64 * kv.page_tokens as u64).min(self.graph().max_context)
    }

    /// Tokens of a prefill chunk: longer prompts are cut into pieces of this size.
    pub fn chunk(&self) -> u32 {
        self.prefill_rows
    }

    /// Tokens of a prompt that a step takes: one or more prefill chunks.
    pub fn prompt_rows(&self) -> u32 {
        self.prompt_rows
    }

    /// Whether products may begin at any row of a step on the device.
    pub(crate) fn rows_are_aligned(&self) -> bool {
        let graph = self.graph();
        let products = graph.nodes.iter().filter(|node| matches!(node.op, Op::Linear | Op::Attention { .. }));
        let mut values =
            products.flat_map(|node| [node.inputs[0], node.outputs[0]]).map(|id| graph.value(id));
        let aligned = |value: &Value| match value.shape.as_slice() {
            [Dim::Rows, Dim::Fixed(width)] => width.is_multiple_of(4),
            _ => true,
        };
        self.runtime.info.batch_invariant_rows == u32::MAX || values.all(aligned)
    }

    /// A book of the model's KV pages in which all are free: for a caller whose sequences no scheduler knows, while there
    /// is no other book of them.
    pub fn free_pages(&self) -> Pages {
        Pages::new(self.plan().kv.pages, self.plan().kv.host_pages)
    }

    /// Runs one step over sequences whose pages are in the caller's book. Gives the logits that are wanted, f32 `[rows wanted, vocab]`
    /// row-major in order of the entries, and what streaming did.
    ///
    /// # Errors
    /// Bad tokens or interventions and sequences that do not fit leave every sequence as it was. A failure of the device
    /// stops the model: later steps are refused.
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

    /// After a failure no step runs any more.
    pub(crate) fn stop_on<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.stopped = Some(error.to_string());
        }
        result
    }

    /// The rows of a batch over which a step may begin.
    pub(crate) fn check_batch(&self, batch: &[BatchEntry<'_>]) -> Result<Rows> {
        self.passes.expect_room(batch);
        assert!(!self.is_away(), "a step of a model that has left the device");
        if let Some(reason) = &self.stopped {
            return Err(Error::Stopped(reason.clone()));
        }
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

    /// Logits of every position of `tokens`, f32 `[tokens, vocab]` row-major, in a sequence of their own whose pages are
    /// free again afterwards.
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

    /// The logits of the latest step, which was finished, from the device: those of row `row`, f32 `[vocab]`.
    ///
    /// # Errors
    /// A failure of the device.
    ///
    /// # Panics
    /// If a step is under way, or no step has so high a row of logits.
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

    /// The tokens that the device chose in the latest [`step`](Self::step), in the order of the batch's entries.
    pub fn take_drawn(&mut self) -> Vec<Drawn> {
        std::mem::take(&mut self.drawn)
    }

    /// What the latest [`step`](Self::step) read at hooks, in the order of the batch's entries and interventions.
    pub fn take_captured(&mut self) -> Vec<Captured> {
        std::mem::take(&mut self.captured)
    }

    /// Runs the largest prompt step, and decode steps of one row until one is replayed, on a sequence of zeros
    /// that is dropped: what devices load, choose and capture at first use is then done.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn warm_up(&mut self, pages: &mut Pages) -> Result<()> {
        /// Passes until one is replayed: each of two kinds is enqueued, captured and replayed.
        const DECODES: u64 = 5;
        let decodes = if self.runtime.info.captures { DECODES } else { 1 };
        let context = self.context();
        let prompt = u64::from(self.prompt_rows).min(context.saturating_sub(decodes)).max(1);
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

    /// Notes that tokens were chosen from `began` until now.
    pub(crate) fn sampled(&mut self, began: Instant) {
        lap(&mut self.trace, HostSpan::Sample, began);
    }

    /// Collects times from now on, of whole passes; what was collected before is dropped. The loading of the
    /// model is told as well. Memory grows by some 50 bytes for each launch and each streamed chunk.
    ///
    /// # Errors
    /// If the device fails or has no more events.
    pub fn start_trace(&mut self) -> Result<()> {
        self.trace = Some(Recorder::new(&self.runtime.device, self.runtime.compute, self.loaded)?);
        self.parts.lower(Detail::Apart);
        Ok(())
    }

    /// Whether times are being collected: every launch of a pass must then be made, not replayed.
    pub fn tracing(&self) -> bool {
        self.trace.is_some()
    }

    /// Spans that were collected so far.
    pub(crate) fn traced_spans(&self) -> usize {
        self.trace.as_ref().map_or(0, Recorder::spans)
    }

    /// Ends the collection and gives what there is, also after a failure of the device, which it does not
    /// touch. `None` if none was started.
    pub fn finish_trace(&mut self) -> Option<Trace> {
        let trace = self.trace.take()?.finish(&self.parts, &self.runtime.info.name);
        self.parts.lower(Detail::Fused);
        Some(trace)
    }
}
