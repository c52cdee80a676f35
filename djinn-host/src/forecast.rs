//! A plan of a model on a machine, with predicted times. Nothing is loaded.

use crate::{Activations, Needs, Result, Setup, Target, context_for, without_effect};
use djinn_device::DType;
use djinn_engine::{Budget, Error, MemoryPlan, Options, Segments, check_heads};
use djinn_models::{EncodedWeights, Model};
use djinn_srg::Rows;
use djinn_srg::cost::Work;
use djinn_vmu::{Bottleneck, Placement, Prediction, predict};
use serde::Serialize;

/// The share of streamed weights that a plan suggests for the CPU, which is taken to read them as fast as the link.
pub(crate) const HALF: f64 = 0.5;

/// The work to predict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Tokens of the prompt; at least 1.
    pub prompt_tokens: u32,
    /// Tokens to generate.
    pub max_tokens: u32,
    /// Sequences that decode together; at least 1.
    pub sequences: u32,
}

/// The plan of a task on a machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskPlan {
    /// The model's name.
    pub model: String,
    /// Its parameters.
    pub parameters: u64,
    /// Bytes of its weights.
    pub weight_bytes: u64,
    /// The same with bf16 matrices encoded without loss, if that is fewer.
    pub lossless_weight_bytes: Option<u64>,
    /// The same with all matrices plain, if some are encoded.
    pub plain_weight_bytes: Option<u64>,
    /// The form of encoded weights in memory.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub encoded: Vec<EncodedWeights>,
    /// The most tokens of a sequence.
    pub context: u64,
    /// Sequences that decode together.
    pub sequences: u32,
    /// Element type of the KV cache.
    pub kv_dtype: DType,
    /// The activations of products with weights in blocks.
    pub activations: Activations,
    /// Device bytes by segment.
    pub segments: Segments,
    /// Everything on the device: the sum of the segments.
    pub device_bytes: u64,
    /// The cap on it.
    pub vram_bytes: Option<u64>,
    /// Everything in host memory.
    pub host_bytes: u64,
    /// Weights in host memory: streamed chunks and gathered tables.
    pub host_weight_bytes: u64,
    /// KV pages in host memory, for swapped sessions.
    pub host_kv_bytes: u64,
    /// Streamed weights that several layers share in host memory.
    pub shared_host_bytes: u64,
    /// Resident weights.
    pub resident_bytes: u64,
    /// The most bytes that a pass streams; with experts, a pass may need fewer.
    pub streamed_bytes_per_pass: u64,
    /// The mean for a decode pass.
    pub expected_streamed_bytes_per_pass: u64,
    /// The bytes that a decode pass uses in host memory.
    pub cpu_bytes_per_pass: u64,
    /// The chunks of the weights.
    pub chunks: Chunks,
    /// The use of the ring.
    pub ring: RingUse,
    /// Predicted times.
    pub predicted: PredictedTimes,
    /// What limits them.
    pub bottleneck: Bottlenecks,
    /// The time per token with half of the streamed weights on the CPU, which is taken to read them as fast as the link; if
    /// the link is the limit, and that is less by a tenth at least.
    pub tpot_ms_with_half_on_cpu: Option<f64>,
    /// Choices of the setup that have no effect, one sentence each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without_effect: Vec<&'static str>,
    /// The machine of the prediction.
    pub machine: Target,
}

/// Units of residency and transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Chunks {
    /// All of them.
    pub count: usize,
    /// Resident chunks.
    pub resident: usize,
    /// Streamed chunks.
    pub streamed: usize,
    /// Bytes of the largest.
    pub largest_bytes: u64,
}

/// The ring through which chunks stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RingUse {
    /// Its size.
    pub bytes: u64,
    /// Chunks of a cycle.
    pub slots: usize,
    /// Bytes per cycle that no chunk uses, because none may straddle the ring's end.
    pub skipped_bytes: u64,
}

/// Predicted times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PredictedTimes {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens to generate.
    pub max_tokens: u32,
    /// Until the first token.
    pub ttft_ms: f64,
    /// For each token after it.
    pub tpot_ms: f64,
    /// Time per token in which the link is busy.
    pub copy_ms: f64,
    /// Time per token in which the device computes.
    pub compute_ms: f64,
    /// Time per token in which the CPU computes with weights in host memory, beside a GPU.
    pub cpu_ms: f64,
}

/// What limits each phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bottlenecks {
    /// The longest pass of the prompt.
    pub prefill: Bottleneck,
    /// A decode pass.
    pub decode: Bottleneck,
}

impl TaskPlan {
    /// Plans `task` for `model` on `target`, which replaces the setup's device. By default the cap is the card's
    /// memory.
    ///
    /// # Errors
    /// If the budget or the context is too small for the task, or the card does not compute the model.
    pub fn new(model: &Model, setup: &Setup, target: Target, task: Task) -> Result<Self> {
        setup.check_target(target.card.is_some())?;
        if let Some(card) = target.card {
            check_heads(&model.graph, djinn_cuda::MOST_HEAD_DIM, card.name)?;
        }
        let tokens = u64::from(task.prompt_tokens) + u64::from(task.max_tokens);
        let setup = Setup {
            device: target.device(),
            vram: setup.vram.or(target.card.map(|card| card.memory_bytes())),
            ..*setup
        };
        let options = setup.options(model, context_for(tokens, model));
        let options = Options { sequences: task.sequences, logit_rows: task.sequences, ..options };
        let (tokens, context) = (u64::from(task.prompt_tokens), options.context);
        if tokens > context {
            return Err(Error::ContextFull { tokens, context }.into());
        }
        let reserved_bytes = target.reserved_bytes(Needs::of(model, &options));
        let plan = options.plan(&model.graph, reserved_bytes)?;
        let mut told = forecast(model, &options, &plan, target.clone(), task);
        told.activations = setup.activations.unwrap_or_default();
        let takes_share = target.card.is_some() && u64::from(task.sequences) <= Placement::CPU_ROWS;
        if takes_share && options.budget.cpu_share == 0.0 && told.bottleneck.decode == Bottleneck::Link {
            let options = Options { budget: Budget { cpu_share: HALF, ..options.budget }, ..options };
            // The ring is larger then, and may not fit.
            let plan = options.plan(&model.graph, reserved_bytes).ok();
            let tpot_ms = plan.map(|plan| times(model, &options, &plan, &target, task).0.tpot_ms);
            told.tpot_ms_with_half_on_cpu = tpot_ms.filter(|&ms| ms < 0.9 * told.predicted.tpot_ms);
        }
        Ok(told)
    }
}

fn forecast(model: &Model, options: &Options, plan: &MemoryPlan, target: Target, task: Task) -> TaskPlan {
    let (graph, placement, kv_dtype) = (&model.graph, &plan.placement, plan.kv.dtype);
    let streamed = placement.streamed().count();
    let (predicted, bottleneck) = times(model, options, plan, &target, task);
    TaskPlan {
        model: model.name.clone(),
        parameters: graph.parameters(),
        weight_bytes: graph.text_bytes(),
        lossless_weight_bytes: djinn_models::packed::lossless_bytes(graph),
        plain_weight_bytes: djinn_models::packed::plain_bytes(graph),
        encoded: model.encoded.clone(),
        context: options.context,
        sequences: options.sequences,
        kv_dtype,
        activations: Activations::Float,
        segments: plan.segments,
        device_bytes: plan.segments.total(),
        vram_bytes: options.budget.vram,
        host_bytes: plan.host_bytes,
        host_weight_bytes: plan.host_weight_bytes(),
        host_kv_bytes: plan.kv.host_bytes(),
        shared_host_bytes: placement.streamed_bytes() - placement.host_bytes(),
        resident_bytes: placement.resident_bytes(),
        streamed_bytes_per_pass: placement.streamed_bytes(),
        cpu_bytes_per_pass: placement.expected_cpu_bytes(task.sequences.into()),
        expected_streamed_bytes_per_pass: placement.expected_streamed_bytes(task.sequences.into()),
        chunks: Chunks {
            count: placement.chunks.len(),
            resident: placement.chunks.len() - streamed,
            streamed,
            largest_bytes: placement.chunks.iter().map(|c| c.bytes).max().unwrap_or(0),
        },
        ring: RingUse {
            bytes: placement.ring.capacity(),
            slots: placement.ring.slots().len(),
            skipped_bytes: placement.ring.skipped_bytes(),
        },
        predicted,
        bottleneck,
        tpot_ms_with_half_on_cpu: None,
        without_effect: without_effect(options, plan),
        machine: target,
    }
}

fn times(
    model: &Model,
    options: &Options,
    plan: &MemoryPlan,
    target: &Target,
    task: Task,
) -> (PredictedTimes, Bottlenecks) {
    let (kv_dtype, machine) = (plan.kv.dtype, &target.machine);
    let prefill: Vec<Prediction> = prefill_passes(task.prompt_tokens.into(), plan.stack.rows.rows, kv_dtype)
        .map(|work| predict(&model.graph, plan, &work, machine))
        .collect();
    let longest =
        prefill.iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds)).expect("a prompt is not empty");
    let halfway = u64::from(task.prompt_tokens) + u64::from(task.max_tokens) / 2;
    let decode = Work::decode(task.sequences.into(), halfway.min(options.context), kv_dtype);
    let decode = predict(&model.graph, plan, &decode, machine);
    let predicted = PredictedTimes {
        prompt_tokens: task.prompt_tokens,
        max_tokens: task.max_tokens,
        ttft_ms: prefill.iter().map(|p| p.seconds).sum::<f64>() * 1e3,
        tpot_ms: decode.seconds * 1e3,
        copy_ms: decode.copy_seconds * 1e3,
        compute_ms: decode.compute_seconds * 1e3,
        cpu_ms: decode.cpu_seconds * 1e3,
    };
    (predicted, Bottlenecks { prefill: longest.bottleneck, decode: decode.bottleneck })
}

/// The passes of a prompt: pieces of at most `rows` tokens, with logits for the last one only.
fn prefill_passes(tokens: u64, rows: u64, kv_dtype: DType) -> impl Iterator<Item = Work> {
    (0..tokens.div_ceil(rows)).map(move |piece| {
        let start = piece * rows;
        let count = rows.min(tokens - start);
        let last = start + count == tokens;
        let rows = Rows { rows: count, logit_rows: u64::from(last) };
        Work { rows, context: start + count.div_ceil(2), sequences: 1, kv_dtype }
    })
}
