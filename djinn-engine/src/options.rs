//! What a caller chooses when it loads a model.

use crate::{Error, Result, Sampling};
use djinn_device::args::ExpertLinear;
use djinn_device::{Changes, DType};
use djinn_srg::{Graph, KvPlan, Rows};
use djinn_vmu::{Budget, Demand, KvLayout, MemoryPlan};

/// How to run a model. None of these changes results, but for `kv_dtype` and, in the last bits on some
/// devices, `prefill_rows`.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Memory.
    pub budget: Budget,
    /// Tokens that a sequence may have.
    pub context: u64,
    /// Sequences that a step may hold.
    pub sequences: u32,
    /// KV pages on the device; as many as `sequences` whole contexts take, if not given.
    pub pages: Option<u32>,
    /// Rows of a prefill chunk: longer prompts are cut into pieces of this size.
    pub prefill_rows: u32,
    /// Prefill chunks of a prompt that a step takes where weights stream, if there is room: more for each time that they
    /// cross the link. Where all weights are resident it takes one.
    pub prefill_chunks: u32,
    /// Rows of a step beside those of prefill chunks: as many as `sequences` where many are served at once.
    pub decode_rows: u32,
    /// Rows of a step whose logits may be wanted.
    pub logit_rows: u32,
    /// Element type of the KV cache: f32, f16 or bf16.
    pub kv_dtype: DType,
    /// Tokens of a KV page.
    pub page_tokens: u32,
    /// KV pages in pinned host memory, for sessions that are parked.
    pub host_pages: u32,
    /// Pinned host memory for what a step reads and writes at hook points; 0 allows no [intervention](crate::Intervention).
    pub hook_bytes: u64,
    /// Capture decode passes and replay them, on devices that can. Traced passes never are.
    pub replay: bool,
    /// Enqueue the next step of sessions while one is under way, where it needs nothing of the host. Not where weights
    /// stream or the device computes in the host's memory, nor while a trace is wanted.
    pub ahead: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            budget: Budget::default(),
            context: 2048,
            sequences: 1,
            pages: None,
            prefill_rows: 512,
            prefill_chunks: 1,
            decode_rows: 0,
            logit_rows: 1,
            kv_dtype: DType::F32,
            page_tokens: 16,
            host_pages: 0,
            hook_bytes: 0,
            replay: true,
            ahead: true,
        }
    }
}

impl Options {
    /// The same for a [`Batcher`](crate::Batcher) of up to `sequences` sessions in a step.
    pub fn serving(self, sequences: u32) -> Self {
        Options { sequences, decode_rows: sequences, logit_rows: sequences, ..self }
    }

    /// Rows that a prompt takes of a step.
    pub(crate) fn prompt_rows(&self, plan: &MemoryPlan) -> u32 {
        u32::try_from(plan.stack.rows.rows - u64::from(self.decode_rows)).unwrap_or(u32::MAX)
    }

    /// Host bytes for `graph` under these options, at most, on a device that takes up to 1 GiB for itself: for
    /// devices that must know before they are made. Weights, and some room for inputs and staging.
    pub fn most_host_bytes(&self, graph: &Graph) -> u64 {
        const RESERVED: u64 = 1 << 30;
        const BESIDE: u64 = 256 << 20;
        // Of the two steps that may be under way.
        let of = |plan: MemoryPlan| plan.host_bytes.saturating_add(2 * change_bytes(&plan.kv, graph.vocab));
        self.plan(graph, RESERVED).map_or_else(|_| graph.text_bytes(), of).saturating_add(BESIDE)
    }

    /// Plans the memory of `graph` under these options, on a device that takes `reserved_bytes` for itself;
    /// loads nothing.
    pub fn plan(&self, graph: &Graph, reserved_bytes: u64) -> Result<MemoryPlan> {
        if self.context > graph.max_context {
            return Err(Error::ContextTooLong { asked: self.context, most: graph.max_context });
        }
        if [self.sequences, self.prefill_rows, self.prefill_chunks, self.logit_rows, self.page_tokens]
            .contains(&0)
            || self.context == 0
        {
            return Err(Error::Option("context, sequences, rows and page size must not be zero"));
        }
        if self.pages == Some(0) {
            return Err(Error::Option("the KV cache needs one page at least; raise the budget for it"));
        }
        if self.kv_dtype == DType::U32 {
            return Err(Error::Option("the KV cache holds f32, f16 or bf16"));
        }
        let table_width = self.context.div_ceil(self.page_tokens as u64);
        let pages = self.pages.map_or(table_width * self.sequences as u64, u64::from);
        let (Ok(table_width), Ok(pages)) = (u32::try_from(table_width), u32::try_from(pages)) else {
            return Err(Error::Option("the context needs more KV pages than can be numbered"));
        };
        let kv = KvLayout {
            token_elements: KvPlan::new(graph).token_elements(),
            dtype: self.kv_dtype,
            page_tokens: self.page_tokens,
            pages,
            sequences: self.sequences,
            table_width,
            host_pages: self.host_pages,
            check: self.budget.stream_check,
        };
        let plan = |chunks| self.plan_for(graph, reserved_bytes, kv, chunks);
        let one = plan(1)?;
        let streams = one.placement.streamed_bytes() > 0;
        Ok(if streams && self.prefill_chunks > 1 { plan(self.prefill_chunks).unwrap_or(one) } else { one })
    }

    /// Plans steps that take `chunks` prefill chunks of a prompt.
    fn plan_for(&self, graph: &Graph, reserved_bytes: u64, kv: KvLayout, chunks: u32) -> Result<MemoryPlan> {
        let prompt = (u64::from(self.prefill_rows) * u64::from(chunks)).min(self.context);
        // A row at least for each sequence.
        let rows = (prompt + u64::from(self.decode_rows)).max(self.sequences.into());
        let logit_rows = (self.logit_rows as u64).min(rows);
        let most_chosen = graph.nodes.iter().filter_map(|node| node.op.announces_choice()).max();
        if rows * u64::from(most_chosen.unwrap_or(0)) > ExpertLinear::MOST_SLOTS.into() {
            return Err(Error::Option(
                "a step's rows, each with its experts, are too many; lower the rows of a step",
            ));
        }
        let demand = Demand { rows: Rows { rows, logit_rows }, kv, reserved_bytes };
        Ok(MemoryPlan::new(graph, &self.budget, &demand)?)
    }
}

/// Bytes for the changes of a step's logits.
pub(crate) fn change_bytes(kv: &KvLayout, vocab: u64) -> u64 {
    let context = u64::from(kv.table_width) * u64::from(kv.page_tokens);
    let tokens = vocab.min(context + 1 + Sampling::MAX_BIASES as u64);
    u64::from(kv.sequences) * Changes::most_words(tokens, vocab) * 4
}
