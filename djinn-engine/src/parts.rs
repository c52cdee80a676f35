//! The parts of a loaded model: graph, program, and memory.

use crate::options::change_bytes;
use crate::{Result, Runtime};
use djinn_device::{Buffer, Draw, Drawn, Event, Ops, Space, Stream};
use djinn_pages::PageCopies;
use djinn_srg::{Graph, Rows};
use djinn_vmu::{
    Allocations, DataSegment, Detail, Direction, MemoryPlan, Program, StackSegment, TextSegment, WeightSource,
};
use std::ops::ControlFlow;

/// A model's graph, and its memory on a device.
pub(crate) struct Parts {
    pub(crate) graph: Graph,
    pub(crate) plan: MemoryPlan,
    pub(crate) program: Program,
    pub(crate) text: TextSegment,
    pub(crate) data: DataSegment,
    pub(crate) stack: StackSegment,
    /// Host memory for reads and changes at hooks, if there is any.
    pub(crate) hooks: Option<Buffer>,
    /// Host memory for wanted logits.
    pub(crate) logits: Buffer,
    /// One for the step under way, one for the next.
    pub(crate) exchanges: [Exchange; 2],
    held: Allocations,
}

/// Host memory for a step's inputs and results, and the events at its ends on the compute stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchange {
    /// Before the first copy of inputs.
    pub(crate) begin: Event,
    /// After the results are on the host.
    pub(crate) done: Event,
    /// Inputs, laid out as on the stack.
    pub(crate) inputs: Buffer,
    pub(crate) table: Buffer,
    /// How tokens are chosen from rows of logits, the changes of these logits, and the chosen tokens.
    pub(crate) draws: Buffer,
    pub(crate) changes: Buffer,
    pub(crate) drawn: Buffer,
    /// By row: the index in the other exchange's `drawn` of a token that the host does not know yet.
    pub(crate) sources: Buffer,
}

impl Parts {
    /// Allocates the memory of `plan` and loads the weights. `progress` gets the bytes. After an error nothing stays
    /// allocated.
    pub(crate) fn load<D: Ops>(
        runtime: &Runtime<D>,
        graph: Graph,
        plan: MemoryPlan,
        hook_bytes: u64,
        source: &dyn WeightSource,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Self> {
        let mut held = Allocations::default();
        match Self::build(runtime, graph, plan, hook_bytes, source, progress, &mut held) {
            Ok(parts) => Ok(Parts { held, ..parts }),
            Err(error) => {
                held.free(&runtime.device, &mut runtime.shared.borrow_mut().store);
                Err(error)
            }
        }
    }

    /// `held` owns the allocations.
    fn build<D: Ops>(
        runtime: &Runtime<D>,
        graph: Graph,
        plan: MemoryPlan,
        hook_bytes: u64,
        source: &dyn WeightSource,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
        held: &mut Allocations,
    ) -> Result<Self> {
        let Runtime { device, shared, .. } = runtime;
        let stack = StackSegment::new(device, plan.stack.clone(), held)?;
        let logits_bytes = graph.value(graph.logits).bytes(plan.stack.rows);
        let logits = held.alloc(device, Space::Host, logits_bytes)?;
        let words = |each: usize| plan.stack.rows.logit_rows * each as u64 * 4;
        let mut exchange = || {
            let (begin, done) = (held.event(device)?, held.event(device)?);
            let mut host = |bytes| held.alloc(device, Space::Host, bytes);
            let (inputs, table) = (host(plan.stack.input_bytes)?, host(plan.kv.table_bytes())?);
            let (draws, drawn) = (host(words(Draw::WORDS))?, host(words(Drawn::WORDS))?);
            let (changes, sources) = (host(change_bytes(&plan.kv, graph.vocab))?, host(words(1))?);
            Ok::<_, crate::Error>(Exchange { begin, done, inputs, table, draws, changes, drawn, sources })
        };
        let exchanges = [exchange()?, exchange()?];
        let hooks = (hook_bytes > 0).then(|| held.alloc(device, Space::Host, hook_bytes)).transpose()?;
        let data = DataSegment::new(device, plan.kv, held)?;
        let total = plan.host_weight_bytes() + plan.segments.resident;
        let (store, mut told) = (&mut shared.borrow_mut().store, |read| progress(read, total));
        let text = TextSegment::load(device, &graph, &plan, source, store, &mut told, held)?;
        let (program, held) = (Program::new(&graph, &plan, Detail::Fused), Allocations::default());
        Ok(Parts { graph, plan, program, text, data, stack, hooks, logits, exchanges, held })
    }

    /// Allocates the buffer through which callers read and write pages.
    pub(crate) fn open_staging<D: Ops>(&mut self, device: &D) -> djinn_vmu::Result<()> {
        self.data.open_staging(device, &mut self.held)
    }

    /// See [`DataSegment::swap`].
    pub(crate) fn swap<D: Ops>(
        &mut self,
        runtime: &Runtime<D>,
        direction: Direction,
        ticket: u64,
        way: &PageCopies,
    ) -> djinn_vmu::Result<()> {
        self.data.swap(&runtime.device, runtime.compute, direction, ticket, way, &mut self.held)
    }

    /// Lowers the graph again.
    pub(crate) fn lower(&mut self, detail: Detail) {
        self.program = Program::new(&self.graph, &self.plan, detail);
    }

    /// Shares the link between swaps and the weights of the next pass, which has `rows`.
    pub(crate) fn share_link<D: Ops>(&mut self, device: &D, rows: Rows) -> Result<()> {
        let bytes = self.plan.placement.expected_streamed_bytes(rows.rows);
        Ok(self.data.share_link(device, self.text.streamer.stream(), bytes)?)
    }

    /// The streams of a pass. Without streaming only the compute stream, since a replay that joins another stream may
    /// queue behind other copies.
    pub(crate) fn streams(&self, compute: Stream) -> Vec<Stream> {
        let copies = (self.plan.placement.streamed_bytes() > 0).then(|| self.text.streamer.stream());
        [compute].into_iter().chain(copies).collect()
    }

    /// Whether the model has left the device.
    pub(crate) fn is_away(&self) -> bool {
        self.held.is_away()
    }

    /// Bytes of device memory that the model needs to come back; 0 while it is there.
    pub(crate) fn missing_bytes<D: Ops>(&self, runtime: &Runtime<D>) -> u64 {
        self.held.missing_bytes(&runtime.shared.borrow().store)
    }

    /// Bytes of resident weights that are also kept in host memory.
    pub(crate) fn copy_bytes<D: Ops>(&self, runtime: &Runtime<D>) -> u64 {
        // A load that is under way borrows the store.
        runtime.shared.try_borrow().map_or(0, |shared| self.held.copy_bytes(&shared.store))
    }

    /// Frees the model's device memory, once all work on it is done. Its host memory stays.
    pub(crate) fn evict<D: Ops>(&mut self, runtime: &Runtime<D>) {
        self.held.evict(&runtime.device, &mut runtime.shared.borrow_mut().store);
    }

    /// Allocates the device memory again. Weights are as before; everything else is empty.
    pub(crate) fn restore<D: Ops>(
        &mut self,
        runtime: &Runtime<D>,
        source: &dyn WeightSource,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<()> {
        let Parts { graph, plan, text, held, .. } = self;
        let (total, store) = (plan.segments.resident, &mut runtime.shared.borrow_mut().store);
        let mut told = |done| progress(done, total);
        Ok(text.restore(&runtime.device, (graph, plan), source, store, &mut told, held)?)
    }

    /// Drops the host copies of resident weights. Returns the bytes that this frees.
    pub(crate) fn drop_copies<D: Ops>(&mut self, runtime: &Runtime<D>) -> u64 {
        self.held.drop_copies(&runtime.device, &mut runtime.shared.borrow_mut().store)
    }

    /// Frees the memory, once all work on it is done.
    pub(crate) fn free<D: Ops>(self, runtime: &Runtime<D>) {
        self.held.free(&runtime.device, &mut runtime.shared.borrow_mut().store);
    }
}
