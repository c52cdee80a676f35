//! `djinn plan`: where every byte would lie, and how fast it would run.

use crate::args::PlanArgs;
use crate::profile::{self, Chosen};
use crate::{loaded, output, size};
use anyhow::Result;
use djinn_engine::{MemoryPlan, Options, Segments};
use djinn_host::{DeviceName, Setup, context_for};
use djinn_models::Model;
use djinn_srg::cost::Work;
use djinn_srg::{DType, Rows};
use djinn_vmu::{Bottleneck, Prediction, predict};
use serde::Serialize;

#[derive(Serialize)]
struct Report {
    model: String,
    parameters: u64,
    weight_bytes: u64,
    context: u64,
    sequences: u32,
    kv_dtype: DType,
    segments: Segments,
    /// Everything on the device.
    device_bytes: u64,
    vram_bytes: Option<u64>,
    /// Everything that is kept on the host.
    host_bytes: u64,
    /// Weights of it: streamed chunks and gathered tables.
    host_weight_bytes: u64,
    /// KV pages of it, for parked sessions.
    host_kv_bytes: u64,
    /// Streamed weights that the host holds once for several layers.
    shared_host_bytes: u64,
    resident_bytes: u64,
    /// What crosses to the device in every pass; at most, where it depends on the experts that a pass uses.
    streamed_bytes_per_pass: u64,
    /// The same of a decode pass, on average.
    expected_streamed_bytes_per_pass: u64,
    chunks: Chunks,
    ring: Ring,
    predicted: Predicted,
    bottleneck: Bottlenecks,
    machine: Chosen,
}

#[derive(Serialize)]
struct Chunks {
    count: usize,
    resident: usize,
    streamed: usize,
    largest_bytes: u64,
}

#[derive(Serialize)]
struct Ring {
    bytes: u64,
    slots: usize,
    /// Bytes that no chunk uses because none may straddle the wrap, over one cycle.
    skipped_bytes: u64,
}

#[derive(Serialize)]
struct Predicted {
    prompt_tokens: u32,
    max_tokens: u32,
    ttft_ms: f64,
    tpot_ms: f64,
    /// Time in which the link is busy, per token.
    copy_ms: f64,
    /// Time in which operations run, per token.
    compute_ms: f64,
}

#[derive(Serialize)]
struct Bottlenecks {
    prefill: Bottleneck,
    decode: Bottleneck,
}

pub(super) fn run(args: &PlanArgs, quiet: bool) -> Result<()> {
    let machine = profile::choose(args.work.gpu.as_deref())?;
    let model = loaded::open(&args.model, args.memory.dtype, quiet)?;
    let tokens = args.work.prompt_len as u64 + args.max_tokens as u64;
    let context = args.memory.ctx.unwrap_or_else(|| context_for(tokens, &model));
    anyhow::ensure!(
        args.work.prompt_len as u64 <= context,
        "a prompt of {} tokens exceeds the context of {context}; lower --prompt-len",
        args.work.prompt_len
    );
    let sequences = args.work.batch;
    let setup = Setup {
        kv_dtype: Some(args.memory.kv_dtype.unwrap_or(machine.kv_dtype())),
        ..args.memory.setup(DeviceName::Cpu, None)
    };
    let options = Options { sequences, logit_rows: sequences, ..setup.options(&model, context)? };
    let plan = options.plan(&model.graph, machine.reserved_bytes(options.most_host_bytes(&model.graph)))?;
    let report = report(args, &model, &options, &plan, machine);
    if args.json { output::json(&report) } else { output::line(&table(&report)) }
}

fn report(args: &PlanArgs, model: &Model, options: &Options, plan: &MemoryPlan, machine: Chosen) -> Report {
    let graph = &model.graph;
    let kv_dtype = plan.kv.dtype;
    let prefill: Vec<Prediction> = prefill_passes(args.work.prompt_len, plan.stack.rows.rows, kv_dtype)
        .map(|work| predict(graph, plan, &work, &machine.machine))
        .collect();
    let longest =
        prefill.iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds)).expect("a prompt is not empty");
    let halfway = args.work.prompt_len as u64 + args.max_tokens as u64 / 2;
    let decode = Work::decode(args.work.batch as u64, halfway.min(options.context), kv_dtype);
    let decode = predict(graph, plan, &decode, &machine.machine);
    let placement = &plan.placement;
    let streamed = placement.streamed().count();
    Report {
        model: model.name.clone(),
        parameters: graph.parameters(),
        weight_bytes: graph.text_bytes(),
        context: options.context,
        sequences: options.sequences,
        kv_dtype,
        segments: plan.segments,
        device_bytes: plan.segments.total(),
        vram_bytes: options.budget.vram,
        host_bytes: plan.host_bytes,
        host_weight_bytes: plan.host_weight_bytes(),
        host_kv_bytes: plan.kv.host_bytes(),
        shared_host_bytes: placement.streamed_bytes() - placement.host_bytes(),
        resident_bytes: placement.resident_bytes(),
        streamed_bytes_per_pass: placement.streamed_bytes(),
        expected_streamed_bytes_per_pass: placement.expected_streamed_bytes(args.work.batch as u64),
        chunks: Chunks {
            count: placement.chunks.len(),
            resident: placement.chunks.len() - streamed,
            streamed,
            largest_bytes: placement.chunks.iter().map(|c| c.bytes).max().unwrap_or(0),
        },
        ring: Ring {
            bytes: placement.ring.capacity(),
            slots: placement.ring.slots().len(),
            skipped_bytes: placement.ring.skipped_bytes(),
        },
        predicted: Predicted {
            prompt_tokens: args.work.prompt_len,
            max_tokens: args.max_tokens,
            ttft_ms: prefill.iter().map(|p| p.seconds).sum::<f64>() * 1e3,
            tpot_ms: decode.seconds * 1e3,
            copy_ms: decode.copy_seconds * 1e3,
            compute_ms: decode.compute_seconds * 1e3,
        },
        bottleneck: Bottlenecks { prefill: longest.bottleneck, decode: decode.bottleneck },
        machine,
    }
}

/// The passes that bring a prompt in: pieces of at most `rows` tokens, logits for the last one only.
fn prefill_passes(tokens: u32, rows: u64, kv_dtype: DType) -> impl Iterator<Item = Work> {
    let tokens = tokens as u64;
    (0..tokens.div_ceil(rows)).map(move |piece| {
        let start = piece * rows;
        let count = rows.min(tokens - start);
        let last = start + count == tokens;
        let rows = Rows { rows: count, logit_rows: u64::from(last) };
        Work { rows, context: start + count.div_ceil(2), sequences: 1, kv_dtype }
    })
}

fn table(r: &Report) -> String {
    let human = size::human;
    let cap = r.vram_bytes.map_or_else(|| "no cap".to_owned(), |cap| format!("cap {}", human(cap)));
    let mut lines = vec![
        format!(
            "{}: {:.3} billion parameters, {}",
            r.model,
            r.parameters as f64 / 1e9,
            human(r.weight_bytes)
        ),
        format!("device memory: {} ({} bytes), {cap}", human(r.device_bytes), r.device_bytes),
    ];
    lines.extend(segments(r));
    let p = &r.predicted;
    let machine = match r.machine.chosen {
        "named" => r.machine.machine.name.clone(),
        "measured" => format!("{}, as measured by djinn doctor", r.machine.machine.name),
        _ => format!("{}, the default; choose with --gpu or djinn doctor --save", r.machine.machine.name),
    };
    lines.extend([
        host(r.host_weight_bytes, r.host_kv_bytes, r.shared_host_bytes),
        streamed(r),
        format!("predicted for {machine}:"),
        format!(
            "  first token of a {}-token prompt after {:.1} ms, limited by {}",
            p.prompt_tokens,
            p.ttft_ms,
            limit(r.bottleneck.prefill)
        ),
        format!(
            "  then {:.2} ms per token, limited by {} (copies {:.2} ms, operations {:.2} ms)",
            p.tpot_ms,
            limit(r.bottleneck.decode),
            p.copy_ms,
            p.compute_ms
        ),
    ]);
    lines.join("\n")
}

fn host(weights: u64, kv: u64, shared: u64) -> String {
    let shared = match shared {
        0 => String::new(),
        bytes => format!(", for {} more that layers share", size::human(bytes)),
    };
    let kv = match kv {
        0 => String::new(),
        bytes => format!("; {} of KV pages for parked sessions", size::human(bytes)),
    };
    format!("host memory: {} of weights{shared}{kv}", size::human(weights))
}

fn streamed(r: &Report) -> String {
    let (most, expected) = (r.streamed_bytes_per_pass, r.expected_streamed_bytes_per_pass);
    let human = size::human;
    if expected == most {
        return format!("streamed per pass: {} ({most} bytes)", human(most));
    }
    format!(
        "streamed per pass: at most {} ({most} bytes), about {} per decode pass",
        human(most),
        human(expected)
    )
}

/// A line for each segment that has bytes, and for those that every plan has.
fn segments(r: &Report) -> Vec<String> {
    let row = |name: &str, bytes: u64, what: &str| format!("  {name:<10} {:>11}  {what}", size::human(bytes));
    let kv = format!("KV cache of {} x {} tokens, {}", r.sequences, r.context, r.kv_dtype);
    let mut lines = vec![
        row("resident", r.segments.resident, &format!("{} of {} chunks", r.chunks.resident, r.chunks.count)),
        row("ring", r.segments.ring, &format!("for {} streamed chunks", r.chunks.streamed)),
    ];
    if r.segments.bounce > 0 {
        lines.push(row("bounce", r.segments.bounce, "joins chunks that straddle the ring's wrap"));
    }
    lines.extend([row("data", r.segments.data, &kv), row("stack", r.segments.stack, "activations")]);
    if r.segments.check > 0 {
        lines.push(row("check", r.segments.check, "checksums of streamed chunks"));
    }
    if r.segments.flags > 0 {
        lines.push(row("flags", r.segments.flags, "which streamed chunks a pass moved"));
    }
    lines
}

fn limit(bottleneck: Bottleneck) -> &'static str {
    match bottleneck {
        Bottleneck::Link => "the link",
        Bottleneck::Memory => "device memory",
        Bottleneck::Compute => "arithmetic",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_memory_is_told_by_what_it_holds() {
        assert_eq!(host(3 << 30, 0, 0), "host memory: 3.00 GiB of weights");
        assert_eq!(
            host(3 << 30, 2 << 30, 1 << 30),
            "host memory: 3.00 GiB of weights, for 1.00 GiB more that layers share; 2.00 GiB of KV pages for parked \
             sessions"
        );
    }
}
