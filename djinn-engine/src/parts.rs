//! What a loaded model is made of: what a pass computes, and the memory that it works in.

use crate::options::change_bytes;
use crate::{Result, Runtime};
use djinn_device::{Buffer, Draw, Drawn, Ops, Space, Stream};
use djinn_srg::{Graph, Rows};
use djinn_vmu::{
    Allocations, DataSegment, Detail, MemoryPlan, Program, StackSegment, TextSegment, WeightSource,
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
    /// What steps read and write at hook points, in host memory, if they may.
    pub(crate) hooks: Option<Buffer>,
    /// Logits that are wanted, in host memory.
    pub(crate) logits: Buffer,
    /// Of the step under way, and of the one after it.
    pub(crate) exchanges: [Exchange; 2],
    held: Allocations,
}

/// What a step takes from the host and gives to it, in host memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchange {
    /// Inputs as they lie on the stack.
    pub(crate) inputs: Buffer,
    /// The block table.
    pub(crate) table: Buffer,
    /// How tokens are chosen from rows of logits, what changes these before, and which are chosen.
    pub(crate) draws: Buffer,
    pub(crate) changes: Buffer,
    pub(crate) drawn: Buffer,
    /// By row: the word of the other exchange's `drawn` that is its token, where that is not known to the host.
    pub(crate) sources: Buffer,
}

impl Parts {
    /// Allocates the memory of `plan` and loads the weights; `progress` is told the bytes. Nothing stays allocated on an error.
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

    /// What it allocates is `held`.
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
        let mut host = |bytes| held.alloc(device, Space::Host, bytes);
        let logits = host(logits_bytes)?;
        let words = |each: usize| plan.stack.rows.logit_rows * each as u64 * 4;
        let mut exchange = || {
            let (inputs, table) = (host(plan.stack.input_bytes)?, host(plan.kv.table_bytes())?);
            let (draws, drawn) = (host(words(Draw::WORDS))?, host(words(Drawn::WORDS))?);
            let (changes, sources) = (host(change_bytes(&plan.kv, graph.vocab))?, host(words(1))?);
            Ok::<_, crate::Error>(Exchange { inputs, table, draws, changes, drawn, sources })
        };
        let exchanges = [exchange()?, exchange()?];
        let hooks = (hook_bytes > 0).then(|| host(hook_bytes)).transpose()?;
        let data = DataSegment::new(device, plan.kv, held)?;
        let total = plan.host_weight_bytes() + plan.segments.resident;
        let (store, mut told) = (&mut shared.borrow_mut().store, |read| progress(read, total));
        let text = TextSegment::load(device, &graph, &plan, source, store, &mut told, held)?;
        let (program, held) = (Program::new(&graph, &plan, Detail::Fused), Allocations::default());
        Ok(Parts { graph, plan, program, text, data, stack, hooks, logits, exchanges, held })
    }

    /// Makes the buffer through which callers read and write pages.
    pub(crate) fn open_staging<D: Ops>(&mut self, device: &D) -> djinn_vmu::Result<()> {
        self.data.open_staging(device, &mut self.held)
    }

    /// Lowers the graph anew.
    pub(crate) fn lower(&mut self, detail: Detail) {
        self.program = Program::new(&self.graph, &self.plan, detail);
    }

    /// Shares the link between swaps and the weights of a pass of `rows` that is about to be enqueued.
    pub(crate) fn share_link<D: Ops>(&mut self, device: &D, rows: Rows) -> Result<()> {
        let bytes = self.plan.placement.expected_streamed_bytes(rows.rows);
        Ok(self.data.share_link(device, self.text.streamer.stream(), bytes)?)
    }

    /// Streams that a pass enqueues work on: without streaming only the first, since a replay that joins another may
    /// queue behind the copies of others.
    pub(crate) fn streams(&self, compute: Stream) -> Vec<Stream> {
        let copies = (self.plan.placement.streamed_bytes() > 0).then(|| self.text.streamer.stream());
        [compute].into_iter().chain(copies).collect()
    }

    /// Whether nothing of it is on the device.
    pub(crate) fn is_away(&self) -> bool {
        self.held.is_away()
    }

    /// Bytes of device memory that the model takes to come back; 0 while it is there.
    pub(crate) fn missing_bytes<D: Ops>(&self, runtime: &Runtime<D>) -> u64 {
        self.held.missing_bytes(&runtime.shared.borrow().store)
    }

    /// Bytes of resident weights that are kept in host memory as well.
    pub(crate) fn copy_bytes<D: Ops>(&self, runtime: &Runtime<D>) -> u64 {
        // A load that is under way has the store, and others go on meanwhile.
        runtime.shared.try_borrow().map_or(0, |shared| self.held.copy_bytes(&shared.store))
    }

    /// Gives the device's memory to others, once all work on it is done. What is in host memory stays.
    pub(crate) fn evict<D: Ops>(&mut self, runtime: &Runtime<D>) {
        self.held.evict(&runtime.device, &mut runtime.shared.borrow_mut().store);
    }

    /// Takes it again: weights are what they were, and all else holds nothing.
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

    /// Gives the copies up by which the model comes back fast; the bytes of host memory that are free by that.
    pub(crate) fn drop_copies<D: Ops>(&mut self, runtime: &Runtime<D>) -> u64 {
        self.held.drop_copies(&runtime.device, &mut runtime.shared.borrow_mut().store)
    }

    /// Frees the memory, once all work on it is done.
    pub(crate) fn free<D: Ops>(self, runtime: &Runtime<D>) {
        self.held.free(&runtime.device, &mut runtime.shared.borrow_mut().store);
    }
}
