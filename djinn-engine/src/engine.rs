//! The engine: a loaded model, and steps over it.

use crate::batch::{self, Entry, Launches, Layout, Wanted};
use crate::executor::Executor;
use crate::logits::check_finite;
use crate::replay::{Choice, Key, Replays};
use crate::trace::{HostSpan, Recorder, lap};
use crate::{Error, Options, Result};
use djinn_device::{Buffer, DeviceInfo, Event, Ops, Space, Stream, Usage};
use djinn_srg::{Dim, Graph, Op, Rows, Value, ValueId};
use djinn_vmu::{
    DataSegment, MemoryPlan, PassStats, Sequence, StackSegment, TextSegment, TextStore, Transfer,
    WeightSource,
};
use std::ops::ControlFlow;
use std::time::Instant;

/// Memory of a loaded model on its device.
pub(crate) struct Memory {
    pub(crate) text: TextSegment,
    pub(crate) data: DataSegment,
    pub(crate) stack: StackSegment,
    /// Step inputs as they lie on the stack, and the page table.
    pub(crate) inputs: Buffer,
    pub(crate) table: Buffer,
    pub(crate) logits: Buffer,
}

/// A pass between its beginning and its end.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    rows: Rows,
    /// When the host was done with enqueueing it.
    enqueued: Instant,
}

/// A model on a device. One thread uses it at a time.
pub struct Engine<D: Ops> {
    pub(crate) device: D,
    info: DeviceInfo,
    pub(crate) graph: Graph,
    pub(crate) plan: MemoryPlan,
    pub(crate) compute: Stream,
    /// A pass's results are on the host.
    done: Event,
    /// None where passes are not to be replayed.
    replays: Option<Replays>,
    replayed_passes: u64,
    store: TextStore,
    pub(crate) memory: Option<Memory>,
    /// The pass that was begun and not finished.
    under_way: Option<UnderWay>,
    /// Why no further step can run.
    pub(crate) stopped: Option<String>,
    /// Copies of KV pages that were seen to end, and not told yet.
    pub(crate) transfers: Vec<Transfer>,
    chunk: u32,
    pub(crate) force_park_every: Option<u32>,
    /// Steps of generations, for forced parking.
    pub(crate) steps: u64,
    pub(crate) parkings: u64,
    /// When loading began and ended.
    pub(crate) loaded: [Instant; 2],
    /// Collects times while a trace is wanted.
    pub(crate) trace: Option<Recorder>,
}

impl<D: Ops> Engine<D> {
    /// Plans the memory, then loads the weights. `progress` is told the bytes read so far of all bytes, and may end
    /// the work.
    ///
    /// # Errors
    /// A budget that is too small (before anything is allocated), a weight that cannot be read, a device out of memory,
    /// or [`Error::Cancelled`].
    pub fn load(
        device: D,
        graph: Graph,
        source: &dyn WeightSource,
        options: &Options,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Self> {
        let began = Instant::now();
        let info = device.info();
        let plan = options.plan(&graph, info.reserved_bytes)?;
        let (compute, done) = (device.stream()?, device.event()?);
        let replays = (options.replay && info.captures).then(Replays::default);
        let mut engine = Engine {
            device,
            info,
            graph,
            plan,
            compute,
            done,
            replays,
            replayed_passes: 0,
            store: TextStore::new(),
            memory: None,
            under_way: None,
            stopped: None,
            transfers: Vec::new(),
            chunk: u64::from(options.prefill_rows).min(options.context) as u32,
            force_park_every: options.force_park_every,
            steps: 0,
            parkings: 0,
            loaded: [began; 2],
            trace: None,
        };
        engine.memory = Some(engine.allocate(source, options.budget.stream_check, progress)?);
        engine.loaded[1] = Instant::now();
        Ok(engine)
    }

    fn allocate(
        &mut self,
        source: &dyn WeightSource,
        check: bool,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Memory> {
        let Engine { device, graph, plan, store, .. } = self;
        // On an error the device is dropped with the engine, and what it holds with it.
        let rows = plan.stack.rows;
        let stack = StackSegment::new(device, plan.stack.clone())?;
        let data = DataSegment::new(device, plan.kv)?;
        let inputs = device.alloc(Space::Host, plan.stack.input_bytes)?;
        let table = device.alloc(Space::Host, plan.kv.table_bytes())?;
        let logits = device.alloc(Space::Host, graph.value(graph.logits).bytes(rows))?;
        let total = plan.host_weight_bytes() + plan.segments.resident;
        let mut told = |read| progress(read, total);
        let text = TextSegment::load(device, graph, plan, source, store, check, &mut told)?;
        Ok(Memory { text, data, stack, inputs, table, logits })
    }

    /// Passes so far that the device repeated from a capture, with one call of the host.
    pub fn replayed_passes(&self) -> u64 {
        self.replayed_passes
    }

    /// The model's graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Where every byte lies.
    pub fn plan(&self) -> &MemoryPlan {
        &self.plan
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// What the device's own accounting says.
    pub fn usage(&self, space: Space) -> Usage {
        self.device.usage(space)
    }

    /// KV pages that no sequence refers to: on the device, and in host memory.
    pub fn free_pages(&self) -> (u32, u32) {
        let data = &self.memory.as_ref().expect("loaded").data;
        (data.free_pages(), data.free_host_pages())
    }

    /// Tokens that a sequence may have.
    pub fn context(&self) -> u64 {
        let kv = &self.plan.kv;
        (kv.table_width as u64 * kv.page_tokens as u64).min(self.graph.max_context)
    }

    /// Tokens of a chunk: longer prompts are cut into pieces of this size.
    pub fn chunk(&self) -> u32 {
        self.chunk
    }

    /// Whether products may begin at any row of a step on this device.
    pub(crate) fn rows_are_aligned(&self) -> bool {
        let Engine { info, graph, .. } = self;
        let products = graph.nodes.iter().filter(|node| matches!(node.op, Op::Linear | Op::Attention { .. }));
        let mut values = products.flat_map(|node| [node.inputs[0], node.output]).map(|id| graph.value(id));
        let aligned = |value: &Value| match value.shape.as_slice() {
            [Dim::Rows, Dim::Fixed(width)] => width.is_multiple_of(4),
            _ => true,
        };
        info.rows_alone == u32::MAX || values.all(aligned)
    }

    /// Runs one pass over the batch. Gives the logits, f32 `[rows wanted, vocab]` row-major in order of
    /// the entries, and what streaming did.
    ///
    /// # Errors
    /// Bad tokens and sequences that do not fit leave every sequence as it was. A failure of the device
    /// stops the engine: later steps are refused.
    ///
    /// # Panics
    /// If the batch is larger than the plan's step, or a step that was [begun](Engine::begin) is under way.
    pub fn step(&mut self, batch: &mut [Entry<'_>]) -> Result<(Vec<f32>, PassStats)> {
        self.begin(batch)?;
        self.finish(<[f32]>::to_vec)
    }

    /// Begins a pass as [`step`](Engine::step) does, and returns once it is enqueued. Nothing else may be asked of
    /// its sequences until it was [finished](Engine::finish).
    pub fn begin(&mut self, batch: &mut [Entry<'_>]) -> Result<()> {
        assert!(self.under_way.is_none(), "a pass is begun while another is under way");
        if let Some(reason) = &self.stopped {
            return Err(Error::Stopped(reason.clone()));
        }
        let rows = self.admit(batch)?;
        let result = self.run(batch, rows);
        self.stop_on(result)
    }

    /// Whether the pass that was begun is over, so that finishing it waits for nothing.
    ///
    /// # Errors
    /// A failure of the device.
    pub fn is_done(&mut self) -> Result<bool> {
        let done = self.device.is_done(self.done).map_err(Error::from);
        self.stop_on(done)
    }

    /// Waits for the pass that was begun, and reads its logits where the device left them, as of
    /// [`step`](Engine::step).
    ///
    /// # Panics
    /// If none was begun.
    pub fn finish<R>(&mut self, read: impl FnOnce(&[f32]) -> R) -> Result<(R, PassStats)> {
        let under_way = self.under_way.take().expect("a pass is finished that was not begun");
        let result = self.collect(under_way, read);
        self.stop_on(result)
    }

    pub(crate) fn stop_on<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.stopped = Some(error.to_string());
        }
        result
    }

    /// Checks a batch and makes room for it, all or nothing.
    fn admit(&mut self, batch: &mut [Entry<'_>]) -> Result<Rows> {
        let rows = batch::rows(batch, self.graph.vocab)?;
        let most = self.plan.stack.rows;
        assert!(
            rows.rows <= most.rows
                && rows.logit_rows <= most.logit_rows
                && batch.len() <= self.plan.kv.sequences as usize,
            "a batch of {} sequences and {rows:?} in a plan for {most:?}",
            batch.len()
        );
        let context = self.context();
        let Engine { device, memory, compute, transfers, .. } = self;
        let data = &mut memory.as_mut().expect("loaded").data;
        let before: Vec<u64> = batch.iter().map(|e| e.sequence.tokens()).collect();
        for i in 0..batch.len() {
            let entry = &mut batch[i];
            let tokens = before[i] + entry.tokens.len() as u64;
            let more = entry.tokens.len() as u64;
            let fits = tokens <= context
                && match data.grow(device, *compute, entry.sequence, more)? {
                    // Pages of a parked or ended session are free once the copies that touch them are done.
                    Err(full) if full.leaving > 0 => {
                        transfers.extend(data.settle(device)?);
                        data.grow(device, *compute, entry.sequence, more)?.is_ok()
                    }
                    grown => grown.is_ok(),
                };
            if !fits {
                for (entry, &tokens) in batch[..i].iter_mut().zip(&before) {
                    data.truncate(entry.sequence, tokens);
                }
                return Err(Error::ContextFull { tokens, context });
            }
        }
        Ok(rows)
    }

    fn run(&mut self, batch: &[Entry<'_>], rows: Rows) -> Result<()> {
        let began = Instant::now();
        self.share_link(rows)?;
        let layout = Layout::new(batch, &self.info);
        self.write_inputs(batch, &layout);
        let began = lap(&mut self.trace, HostSpan::Upload, began);
        let one_token_each = batch.len() as u64 == rows.rows;
        match self.choose(rows, one_token_each) {
            (_, Choice::Enqueue) => self.enqueue(rows, &layout.launches)?,
            (key, Choice::Capture) => self.capture(key, &layout.launches)?,
            (_, Choice::Replay(capture, end)) => {
                self.device.replay(capture)?;
                self.memory.as_mut().expect("loaded").text.replayed(end);
                self.replayed_passes += 1;
            }
        }
        let enqueued = lap(&mut self.trace, HostSpan::Enqueue, began);
        self.under_way = Some(UnderWay { rows, enqueued });
        Ok(())
    }

    fn collect<R>(&mut self, pass: UnderWay, read: impl FnOnce(&[f32]) -> R) -> Result<(R, PassStats)> {
        let (device, graph) = (&self.device, &self.graph);
        device.sync_event(self.done)?;
        lap(&mut self.trace, HostSpan::Wait, pass.enqueued);
        let memory = self.memory.as_mut().expect("loaded");
        let host = memory.logits.slice(0, graph.value(graph.logits).bytes(pass.rows));
        let stats = memory.text.end_pass(device)?;
        if let Some(trace) = &mut self.trace {
            trace.end_pass(device, &self.plan, memory.text.times(device));
        }
        Ok((device.read_host(host, |bytes| read(bytemuck::cast_slice(bytes))), stats))
    }

    fn choose(&mut self, rows: Rows, one_token_each: bool) -> (Key, Choice) {
        let key = Key { rows, phase: self.memory.as_ref().expect("loaded").text.phase() };
        match &mut self.replays {
            Some(replays) if one_token_each && self.trace.is_none() => (key, replays.choose(key)),
            _ => (key, Choice::Enqueue),
        }
    }

    /// Captures a pass and replays it.
    fn capture(&mut self, key: Key, launches: &Launches) -> Result<()> {
        let copies = self.memory.as_ref().expect("loaded").text.copy_stream();
        let work = Work { device: &self.device, compute: self.compute, graph: &self.graph, plan: &self.plan };
        let memory = self.memory.as_mut().expect("loaded");
        let (done, step) = (self.done, (key.rows, launches));
        let streams = [work.compute, copies];
        // Without copies the second stream stays out: a replay that joins it may queue behind copies of other streams.
        let part = if work.plan.placement.streamed_bytes() == 0 { &streams[..1] } else { &streams };
        let captured = work.device.capture(part, || work.enqueue(memory, None, step, done));
        let capture = match captured {
            Err(Error::Device(djinn_device::Error::Resource { .. })) => {
                // No room for it. From now on passes are enqueued.
                memory.text.withdrawn(key.phase);
                self.device.sync(self.compute)?;
                self.replays.take().expect("a pass is captured to be replayed").free(&self.device);
                return self.enqueue(key.rows, launches);
            }
            captured => captured?,
        };
        let end = memory.text.phase();
        let replays = self.replays.as_mut().expect("a pass is captured to be replayed");
        if let Some(evicted) = replays.keep(key, capture, end) {
            self.device.sync(self.compute)?;
            self.device.free_capture(evicted);
        }
        Ok(self.device.replay(capture)?)
    }

    fn enqueue(&mut self, rows: Rows, launches: &Launches) -> Result<()> {
        let work = Work { device: &self.device, compute: self.compute, graph: &self.graph, plan: &self.plan };
        let memory = self.memory.as_mut().expect("loaded");
        work.enqueue(memory, self.trace.as_mut(), (rows, launches), self.done)
    }

    /// Writes the step's inputs and page table to where its copies take them from.
    fn write_inputs(&mut self, batch: &[Entry<'_>], layout: &Layout) {
        let Engine { device, graph, plan, memory, .. } = self;
        let memory = memory.as_ref().expect("loaded");
        let place = |id: ValueId| plan.stack.offset(id) as usize;
        device.write_host(memory.inputs.span(), |bytes| {
            put(&mut bytes[place(graph.tokens)..], &layout.tokens);
            put(&mut bytes[place(graph.positions)..], &layout.positions);
            put(&mut bytes[place(graph.row_seq)..], &layout.row_seq);
            put(&mut bytes[place(graph.logit_rows)..], &layout.wanted);
        });
        let width = plan.kv.table_width as usize * 4;
        device.write_host(memory.table.span(), |bytes| {
            for (row, entry) in bytes.chunks_exact_mut(width).zip(batch) {
                put(row, entry.sequence.pages());
            }
        });
    }

    /// Logits of every position of `tokens`, f32 `[tokens, vocab]` row-major, in a sequence of their own.
    ///
    /// # Errors
    /// As [`step`](Engine::step); [`BadLogit`](crate::BadLogit) if one is not finite.
    pub fn logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let mut sequence = Sequence::default();
        let result = (|| {
            let mut logits = Vec::new();
            for piece in tokens.chunks(self.plan.stack.rows.logit_rows as usize) {
                logits.extend(self.step(&mut [Entry::new(&mut sequence, piece, Wanted::All)])?.0);
            }
            let rows = (0..).zip(logits.chunks_exact(self.graph.vocab as usize));
            rows.into_iter().try_for_each(|(position, row)| check_finite(row, position))?;
            Ok(logits)
        })();
        self.release(sequence);
        result
    }

    /// Shortens a sequence to its first `tokens` tokens.
    pub fn truncate(&mut self, sequence: &mut Sequence, tokens: u64) {
        self.memory.as_mut().expect("loaded").data.truncate(sequence, tokens);
    }

    /// Gives a sequence's KV pages back.
    pub fn release(&mut self, sequence: Sequence) {
        self.memory.as_mut().expect("loaded").data.release(sequence);
    }

    /// Frees everything and returns the device, e.g. to look at its accounting.
    pub fn unload(mut self) -> D {
        if let Some(memory) = self.memory.take() {
            // A failure of enqueued work was returned by the step that enqueued it.
            let _ = self.device.sync(self.compute);
            if let Some(replays) = &mut self.replays {
                replays.free(&self.device);
            }
            memory.text.free(&self.device, &mut self.store);
            memory.data.free(&self.device);
            memory.stack.free(&self.device);
            for buffer in [memory.inputs, memory.table, memory.logits] {
                self.device.free(buffer);
            }
        }
        self.device
    }
}

/// What a pass is enqueued on.
pub(crate) struct Work<'a, D> {
    pub(crate) device: &'a D,
    pub(crate) compute: Stream,
    pub(crate) graph: &'a Graph,
    pub(crate) plan: &'a MemoryPlan,
}

impl<D: Ops> Work<'_, D> {
    /// Enqueues a pass, from the copies of its inputs to that of its logits, and records `done` after it.
    fn enqueue(
        &self,
        memory: &mut Memory,
        trace: Option<&mut Recorder>,
        (rows, launches): (Rows, &Launches),
        done: Event,
    ) -> Result<()> {
        let Work { device, compute, graph, .. } = *self;
        device.copy_promptly(compute, memory.inputs.span(), memory.stack.inputs())?;
        device.copy_promptly(compute, memory.table.span(), memory.data.table())?;
        Executor::new(self, memory, rows, launches).traced(trace).pass()?;
        let wanted = graph.value(graph.logits).bytes(rows);
        if wanted > 0 {
            let logits = memory.stack.span(graph, graph.logits, rows);
            device.copy_promptly(compute, logits, memory.logits.slice(0, wanted))?;
        }
        Ok(device.record(compute, done)?)
    }
}

/// Writes `words` little-endian at the start of `bytes`.
fn put(bytes: &mut [u8], words: &[u32]) {
    for (out, word) in bytes.chunks_exact_mut(4).zip(words) {
        out.copy_from_slice(&word.to_le_bytes());
    }
}
