//! Options for loading a model.

use crate::{Error, Result, Sampling, Workspaces, workspaces};
use djinn_device::args::{ExpertLinear, KvPages};
use djinn_device::{Changes, DType, Draw, Drawn};
use djinn_srg::{Graph, KvPlan, Rows};
use djinn_vmu::{Budget, Demand, KvLayout, MemoryPlan};

/// Rows that products of GPUs take as one tile: those that fill up the last tile of a step cost little.
const TILE: u32 = 128;
/// Steps of fewer rows are not filled up, since that would take much memory.
const LONG_STEP: u32 = 512;
/// The most prefill chunks of a step if all weights are resident. Longer steps compute no more tokens per second.
const RESIDENT_CHUNKS: u32 = 4;
/// The same beside decodes, if no weight is encoded: shorter steps compute almost as many tokens per second.
const CHUNKS_BESIDE_DECODES: u32 = 2;
/// Prefill chunks of a step while weights stream, whatever their activations take.
const STREAMED_CHUNKS: u32 = 3;
/// The part of what a pass streams by which more chunks may increase it: a fiftieth.
const STREAMED_MORE: u64 = 50;
/// Bytes that a device is taken to reserve before it is made, beside workspaces: some 200 MiB more than GPUs do.
const RESERVED: u64 = 768 << 20;

/// How to run a model. Only `kv_dtype` changes results, and on some devices `prefill_rows` and `budget.cpu_share`, in the
/// last bits.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Memory limits.
    pub budget: Budget,
    /// The most tokens of a sequence.
    pub context: u64,
    /// The most sequences of a step.
    pub sequences: u32,
    /// KV pages on the device. `None`: as many as `sequences` whole contexts take.
    pub pages: Option<u32>,
    /// Rows of a prefill chunk. Longer prompts are computed in pieces of this size.
    pub prefill_rows: u32,
    /// The most prefill chunks of a prompt in one step. Where weights stream, each pass over the link computes more with
    /// more of them: a step takes up to three, or more if a pass then streams at most 2 % more. Where all weights are
    /// resident it takes up to four, and only as many as keep all of them resident; beside decodes up to two, if no
    /// weight is encoded.
    pub prefill_chunks: u32,
    /// Rows of a step beside those of prefill chunks: with many sessions, `sequences` or more.
    pub decode_rows: u32,
    /// The most rows of a step with wanted logits.
    pub logit_rows: u32,
    /// Element type of the KV cache, one of [`KvPages::DTYPES`] that the device computes from.
    pub kv_dtype: DType,
    /// Tokens of a KV page.
    pub page_tokens: u32,
    /// KV pages in pinned host memory, for swapped sessions.
    pub host_pages: u32,
    /// Bytes of pinned host memory for hooks. 0 allows no [intervention](crate::Intervention).
    pub hook_bytes: u64,
    /// Capture decode passes and replay them, on devices that can. Traced passes are never replayed.
    pub replay: bool,
    /// Enqueue the next step of sessions while one is under way, if it needs nothing from the host. This has no effect
    /// while weights stream, on devices in host memory, and during a trace.
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
    /// These options for a [`Batcher`](crate::Batcher) with up to `sequences` sessions in a step. A long step has whole
    /// tiles of rows: in those that no session decodes in, a prompt's end is computed with its last whole chunk.
    pub fn serving(self, sequences: u32) -> Self {
        let rows = self.prefill_rows.saturating_add(sequences);
        let whole = if rows < LONG_STEP { rows } else { rows.checked_next_multiple_of(TILE).unwrap_or(rows) };
        let decode_rows = whole.saturating_sub(self.prefill_rows).max(sequences);
        Options { sequences, decode_rows, logit_rows: sequences, ..self }
    }

    /// Prompt tokens for which `plan` has memory in a step, besides those of decoding sessions.
    pub(crate) fn planned_prompt_rows(&self, plan: &MemoryPlan) -> u32 {
        u32::try_from(plan.stack.rows.rows - u64::from(self.decode_rows)).unwrap_or(u32::MAX)
    }

    /// Rows of a step in which sessions decode. `None`: as many as `plan` has memory for, since each step streams or
    /// decodes weights.
    pub fn rows_beside_decodes(&self, graph: &Graph, plan: &MemoryPlan) -> Option<u32> {
        let plain = plan.placement.streamed_bytes() == 0 && workspaces::encoded(graph).next().is_none();
        let prompt = self.prefill_rows.saturating_mul(CHUNKS_BESIDE_DECODES);
        plain.then(|| prompt.saturating_add(self.decode_rows.max(self.sequences.saturating_sub(1))))
    }

    /// An upper bound of the host bytes for `graph`, on a device that reserves up to 1 GiB. Devices need it before
    /// they are made. It covers weights, and some room for inputs and staging.
    pub fn most_host_bytes(&self, graph: &Graph) -> u64 {
        const MOST_RESERVED: u64 = 1 << 30;
        const BESIDE: u64 = 256 << 20;
        // Two steps may be under way.
        let of = |plan: MemoryPlan| plan.host_bytes.saturating_add(2 * change_bytes(&plan.kv, graph.vocab));
        self.plan(graph, MOST_RESERVED).map_or_else(|_| graph.text_bytes(), of).saturating_add(BESIDE)
    }

    /// Host bytes that the model of `graph` takes by `plan` while it is loaded, without copies of resident weights: weights,
    /// pages, the buffers of steps, and the buffers through which weights are loaded.
    pub fn host_bytes(&self, graph: &Graph, plan: &MemoryPlan) -> u64 {
        let (rows, placement) = (plan.stack.rows, &plan.placement);
        let row_bytes = 4 * (Draw::WORDS + Drawn::WORDS + 1) as u64;
        let inputs = plan.stack.input_bytes + plan.kv.table_bytes() + change_bytes(&plan.kv, graph.vocab);
        let resident = placement.chunks.iter().zip(&placement.slots).filter(|(_, slot)| slot.is_none());
        let staging = resident.map(|(chunk, _)| chunk.bytes).max().unwrap_or(0);
        let twice = inputs + rows.logit_rows * row_bytes + staging;
        let cpu_exchange = plan.cpu_exchange(graph).total();
        plan.host_bytes + cpu_exchange + graph.value(graph.logits).bytes(rows) + 2 * twice + self.hook_bytes
    }

    /// Plans the memory for `graph`, on a device that reserves `reserved_bytes`. Loads nothing.
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
        if !KvPages::DTYPES.contains(&self.kv_dtype) {
            return Err(Error::Option("the KV cache holds f32, f16, bf16 or int8"));
        }
        let table_width = self.context.div_ceil(self.page_tokens as u64);
        let pages = self.pages.map_or(table_width * self.sequences as u64, u64::from);
        let (Ok(table_width), Ok(pages)) = (u32::try_from(table_width), u32::try_from(pages)) else {
            return Err(Error::Option("the context needs more KV pages than can be numbered"));
        };
        let kv = KvLayout {
            token_bytes: KvPlan::new(graph).token_bytes(self.kv_dtype),
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
        let streamed = |plan: &MemoryPlan| plan.placement.streamed_bytes();
        let streams = streamed(&one) > 0;
        let (most, allowed) = if streams {
            let few = plan(STREAMED_CHUNKS).as_ref().map_or(u64::MAX, streamed);
            (u32::MAX, few.saturating_add(few / STREAMED_MORE))
        } else {
            (RESIDENT_CHUNKS, 0)
        };
        // More do not fit a context.
        let useful = u32::try_from(self.context.div_ceil(self.prefill_rows.into())).unwrap_or(u32::MAX);
        let several = (2..=most.min(useful).min(self.prefill_chunks)).rev();
        let mut plans = several.filter_map(|chunks| plan(chunks).ok().map(|plan| (chunks, plan)));
        let chosen =
            plans.find(|(chunks, plan)| streamed(plan) <= allowed || streams && *chunks <= STREAMED_CHUNKS);
        Ok(chosen.map_or(one, |(_, plan)| plan))
    }

    /// The workspaces of a device for `graph`, for [`plan`](Self::plan) to reserve: room for whole weights and steps if
    /// all weights stay on the device beside it. Where weights stream, the least, or if a pass then streams 2 % more at
    /// most, room for the activations of a step.
    pub fn workspaces(&self, graph: &Graph) -> Workspaces {
        let chunks = u64::from(RESIDENT_CHUNKS.min(self.prefill_chunks));
        let rows = u64::from(self.prefill_rows).saturating_mul(chunks).min(self.context);
        let whole = Workspaces::whole(graph, rows.saturating_add(self.decode_rows.into()));
        let plan = |workspaces: Workspaces| {
            let plan = self.plan(graph, RESERVED.saturating_add(workspaces.total())).ok()?;
            Some((plan.placement.streamed_bytes(), plan.stack.rows.rows))
        };
        if plan(whole).is_some_and(|(streamed, _)| streamed == 0) {
            return whole;
        }
        let least = Workspaces::least(graph);
        let Some((streamed, rows)) = plan(least) else { return least };
        let for_step = Workspaces::for_step(graph, rows);
        let allowed = streamed.saturating_add(streamed / STREAMED_MORE);
        if plan(for_step).is_some_and(|(streamed, _)| streamed <= allowed) { for_step } else { least }
    }

    /// Plans for steps with `chunks` prefill chunks of a prompt.
    fn plan_for(&self, graph: &Graph, reserved_bytes: u64, kv: KvLayout, chunks: u32) -> Result<MemoryPlan> {
        let prompt = (u64::from(self.prefill_rows) * u64::from(chunks)).min(self.context);
        // At least a row for each sequence.
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
