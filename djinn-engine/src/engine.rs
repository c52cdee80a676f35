//! The engine: a loaded model, and steps over it.

use crate::executor::Executor;
use crate::replay::{Choice, Key, Replays};
use crate::trace::{HostSpan, Recorder, lap};
use crate::{Error, Options, Result};
use djinn_device::{Buffer, Event, Ops, Space, Stream, Usage};
use djinn_srg::{Graph, Rows, ValueId};
use djinn_vmu::{
    DataSegment, MemoryPlan, PassStats, Sequence, StackSegment, TextSegment, TextStore, WeightSource,
};
use std::time::Instant;

/// Whose logits a step gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// None.
    Nothing,
    /// Those of the entry's last token.
    Last,
    /// Those of all its tokens.
    All,
}

/// One sequence's share of a step.
#[derive(Debug)]
pub struct Entry<'a> {
    /// The sequence; grows by the tokens.
    pub sequence: &'a mut Sequence,
    /// Tokens to append, at least one.
    pub tokens: &'a [u32],
    /// Whose logits are wanted.
    pub wanted: Wanted,
}

impl Entry<'_> {
    fn logit_rows(&self) -> u64 {
        match self.wanted {
            Wanted::Nothing => 0,
            Wanted::Last => 1,
            Wanted::All => self.tokens.len() as u64,
        }
    }
}

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

/// A model on a device. One thread uses it at a time.
pub struct Engine<D: Ops> {
    pub(crate) device: D,
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
    /// Why no further step can run.
    pub(crate) stopped: Option<String>,
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
    /// Plans the memory, then loads the weights. `progress` is told the bytes read so far of all bytes.
    ///
    /// # Errors
    /// A budget that is too small (before anything is allocated), a weight that cannot be read, or a
    /// device out of memory.
    pub fn load(
        device: D,
        graph: Graph,
        source: &dyn WeightSource,
        options: &Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self> {
        let began = Instant::now();
        let plan = options.plan(&graph, device.info().reserved_bytes)?;
        let (compute, done) = (device.stream()?, device.event()?);
        let replays = (options.replay && device.info().captures).then(Replays::default);
        let mut engine = Engine {
            device,
            graph,
            plan,
            compute,
            done,
            replays,
            replayed_passes: 0,
            store: TextStore::new(),
            memory: None,
            stopped: None,
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
        progress: &mut dyn FnMut(u64, u64),
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

    /// Tokens that a sequence may have.
    pub fn context(&self) -> u64 {
        let kv = &self.plan.kv;
        (kv.table_width as u64 * kv.page_tokens as u64).min(self.graph.max_context)
    }

    /// Runs one pass over the batch. Gives the logits, f32 `[rows wanted, vocab]` row-major in order of
    /// the entries, and what streaming did.
    ///
    /// # Errors
    /// Bad tokens and sequences that do not fit leave every sequence as it was. A failure of the device
    /// stops the engine: later steps are refused.
    ///
    /// # Panics
    /// If the batch is larger than the plan's step.
    pub fn step(&mut self, batch: &mut [Entry<'_>]) -> Result<(Vec<f32>, PassStats)> {
        if let Some(reason) = &self.stopped {
            return Err(Error::Stopped(reason.clone()));
        }
        let rows = self.admit(batch)?;
        let result = self.run(batch, rows);
        if let Err(error) = &result {
            self.stopped = Some(error.to_string());
        }
        result
    }

    /// Checks a batch and makes room for it, all or nothing.
    fn admit(&mut self, batch: &mut [Entry<'_>]) -> Result<Rows> {
        let mut rows = Rows { rows: 0, logit_rows: 0 };
        for entry in batch.iter() {
            if entry.tokens.is_empty() {
                return Err(Error::EmptyPrompt);
            }
            let vocab = self.graph.vocab;
            if let Some(&token) = entry.tokens.iter().find(|&&t| t as u64 >= vocab) {
                return Err(Error::UnknownToken { token, vocab });
            }
            rows.rows += entry.tokens.len() as u64;
            rows.logit_rows += entry.logit_rows();
        }
        let most = self.plan.stack.rows;
        assert!(
            rows.rows <= most.rows
                && rows.logit_rows <= most.logit_rows
                && batch.len() <= self.plan.kv.sequences as usize,
            "a batch of {} sequences and {rows:?} in a plan for {most:?}",
            batch.len()
        );
        let context = self.context();
        let Engine { device, memory, compute, .. } = self;
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
                        data.settle(device)?;
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

    fn run(&mut self, batch: &[Entry<'_>], rows: Rows) -> Result<(Vec<f32>, PassStats)> {
        let began = Instant::now();
        self.write_inputs(batch, rows);
        let began = lap(&mut self.trace, HostSpan::Upload, began);
        let one_token_each = batch.len() as u64 == rows.rows;
        match self.choose(rows, one_token_each) {
            (_, Choice::Enqueue) => self.enqueue(rows)?,
            (key, Choice::Capture) => self.capture(key)?,
            (_, Choice::Replay(capture, end)) => {
                self.device.replay(capture)?;
                self.memory.as_mut().expect("loaded").text.replayed(end);
                self.replayed_passes += 1;
            }
        }
        let began = lap(&mut self.trace, HostSpan::Enqueue, began);
        let (device, graph) = (&self.device, &self.graph);
        device.sync_event(self.done)?;
        lap(&mut self.trace, HostSpan::Wait, began);
        let memory = self.memory.as_mut().expect("loaded");
        let host = memory.logits.slice(0, graph.value(graph.logits).bytes(rows));
        let stats = memory.text.end_pass(device)?;
        if let Some(trace) = &mut self.trace {
            trace.end_pass(device, &self.plan, memory.text.times(device));
        }
        let logits = device.read_host(host, bytemuck::pod_collect_to_vec);
        Ok((logits, stats))
    }

    fn choose(&mut self, rows: Rows, one_token_each: bool) -> (Key, Choice) {
        let key = Key { rows, phase: self.memory.as_ref().expect("loaded").text.phase() };
        match &mut self.replays {
            Some(replays) if one_token_each && self.trace.is_none() => (key, replays.choose(key)),
            _ => (key, Choice::Enqueue),
        }
    }

    /// Captures a pass and replays it.
    fn capture(&mut self, key: Key) -> Result<()> {
        let copies = self.memory.as_ref().expect("loaded").text.copy_stream();
        let work = Work { device: &self.device, compute: self.compute, graph: &self.graph, plan: &self.plan };
        let memory = self.memory.as_mut().expect("loaded");
        let (done, rows) = (self.done, key.rows);
        let captured =
            work.device.capture(&[work.compute, copies], || work.enqueue(memory, None, rows, done));
        let capture = match captured {
            Err(Error::Device(djinn_device::Error::Resource { .. })) => {
                // No room for it. From now on passes are enqueued.
                memory.text.withdrawn(key.phase);
                self.device.sync(self.compute)?;
                self.replays.take().expect("a pass is captured to be replayed").free(&self.device);
                return self.enqueue(rows);
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

    fn enqueue(&mut self, rows: Rows) -> Result<()> {
        let work = Work { device: &self.device, compute: self.compute, graph: &self.graph, plan: &self.plan };
        let memory = self.memory.as_mut().expect("loaded");
        work.enqueue(memory, self.trace.as_mut(), rows, self.done)
    }

    /// Writes the step's inputs and page table to where its copies take them from.
    fn write_inputs(&mut self, batch: &[Entry<'_>], rows: Rows) {
        let Engine { device, graph, plan, memory, .. } = self;
        let memory = memory.as_ref().expect("loaded");
        let (mut tokens, mut positions, mut row_seq, mut wanted) = (vec![], vec![], vec![], vec![]);
        for (seq, entry) in batch.iter().enumerate() {
            let first = entry.sequence.tokens() - entry.tokens.len() as u64;
            let rows = tokens.len() as u32..(tokens.len() + entry.tokens.len()) as u32;
            wanted.extend(rows.skip(entry.tokens.len() - entry.logit_rows() as usize));
            tokens.extend_from_slice(entry.tokens);
            positions.extend((first..).take(entry.tokens.len()).map(|p| p as u32));
            row_seq.extend(std::iter::repeat_n(seq as u32, entry.tokens.len()));
        }
        assert_eq!(wanted.len() as u64, rows.logit_rows, "rows were counted on admission");
        let place = |id: ValueId| plan.stack.offset(id) as usize;
        device.write_host(memory.inputs.span(), |bytes| {
            put(&mut bytes[place(graph.tokens)..], &tokens);
            put(&mut bytes[place(graph.positions)..], &positions);
            put(&mut bytes[place(graph.row_seq)..], &row_seq);
            put(&mut bytes[place(graph.logit_rows)..], &wanted);
        });
        let width = plan.kv.table_width as usize * 4;
        device.write_host(memory.table.span(), |bytes| {
            for (row, entry) in bytes.chunks_exact_mut(width).zip(batch) {
                put(row, entry.sequence.pages());
            }
        });
    }

    /// Logits of every position of `tokens`, f32 `[tokens, vocab]` row-major, in a sequence of their own.
    pub fn logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let mut sequence = Sequence::default();
        let result = (|| {
            let mut logits = Vec::new();
            for piece in tokens.chunks(self.plan.stack.rows.logit_rows as usize) {
                let entry = Entry { sequence: &mut sequence, tokens: piece, wanted: Wanted::All };
                logits.extend(self.step(&mut [entry])?.0);
            }
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
struct Work<'a, D> {
    device: &'a D,
    compute: Stream,
    graph: &'a Graph,
    plan: &'a MemoryPlan,
}

impl<D: Ops> Work<'_, D> {
    /// Enqueues a pass, from the copies of its inputs to that of its logits, and records `done` after it.
    fn enqueue(
        &self,
        memory: &mut Memory,
        trace: Option<&mut Recorder>,
        rows: Rows,
        done: Event,
    ) -> Result<()> {
        let Work { device, compute, graph, plan } = *self;
        device.copy(compute, memory.inputs.span(), memory.stack.inputs())?;
        device.copy(compute, memory.table.span(), memory.data.table())?;
        Executor::new(device, compute, graph, plan, memory, rows).traced(trace).pass()?;
        let wanted = graph.value(graph.logits).bytes(rows);
        if wanted > 0 {
            let logits = memory.stack.span(graph, graph.logits, rows);
            device.copy(compute, logits, memory.logits.slice(0, wanted))?;
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
