//! Predictions beside measurements: the time per token that `djinn plan` predicts, and the one that a run takes.

use crate::args::{Case, PlanArgs};
use crate::document::Document;
use crate::exp2::systems::FULL;
use crate::gpu::Gpu;
use crate::sample::Samples;
use crate::statistics::median;
use crate::{interrupt, process, remark, report, size, subject};
use anyhow::{Context, Result, anyhow, ensure};
use djinn_srg::cost::Work;
use djinn_vmu::{Bottleneck, predict};
use serde::{Deserialize, Serialize};
use std::process::Command;
use std::time::Duration;

/// Three budgets of two models.
const DEFAULT: [&str; 6] = [
    "synthetic:llama-2-7b@6GiB",
    "synthetic:llama-2-7b@8GiB",
    "synthetic:llama-2-7b@10GiB",
    "synthetic:llama-2-13b@12GiB",
    "synthetic:llama-2-13b@16GiB",
    "synthetic:llama-2-13b@20GiB",
];

/// The comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Comparison {
    /// The machine that predictions are for.
    pub(crate) predicted_for: String,
    pub(crate) prompt: u32,
    pub(crate) tokens: u32,
    pub(crate) runs: u32,
    pub(crate) cases: Vec<Row>,
}

/// One configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) model: String,
    pub(crate) vram_bytes: u64,
    pub(crate) streamed_bytes_per_pass: u64,
    pub(crate) bottleneck: String,
    pub(crate) predicted_tpot_ms: f64,
    /// Median over runs of the median over tokens.
    pub(crate) measured_tpot_ms: Option<f64>,
    /// predicted / measured − 1.
    pub(crate) relative_error: Option<f64>,
    pub(crate) samples_ms: Vec<f64>,
    pub(crate) failure: Option<String>,
}

/// `djinn-bench plan`.
pub(crate) fn run(args: &PlanArgs) -> Result<()> {
    subject::check_device(args.device.device)?;
    let default = || DEFAULT.iter().map(|case| case.parse().expect("a case")).collect();
    let cases: Vec<Case> = if args.cases.is_empty() { default() } else { args.cases.clone() };
    let mut rows = cases.iter().map(|case| predicted(args, case)).collect::<Result<Vec<Row>>>()?;
    interrupt::catch(interrupt::stop_all)?;
    interrupt::keep();
    let gpu = Gpu::open(args.device.device);
    for (row, case) in rows.iter_mut().zip(&cases) {
        if interrupt::stop() {
            row.failure = Some("stopped".to_owned());
            continue;
        }
        remark(&format!(
            "{} at {}: {:.2} ms predicted",
            case.model,
            size::human(case.vram),
            row.predicted_tpot_ms
        ));
        match measured(args, case, gpu.as_ref()) {
            Ok(samples) => {
                row.samples_ms = samples.samples.iter().map(|sample| sample.tpot_ms).collect();
                row.measured_tpot_ms = median(row.samples_ms.iter().copied());
                row.relative_error = row.measured_tpot_ms.map(|ms| row.predicted_tpot_ms / ms - 1.0);
            }
            Err(error) => row.failure = Some(crate::one_line(&error)),
        }
    }
    let body = Comparison {
        predicted_for: args.gpu.name.clone(),
        prompt: args.prompt,
        tokens: args.tokens,
        runs: args.runs,
        cases: rows,
    };
    let document = Document::new("plan", args.device.device, body);
    if let Some(path) = &args.json {
        document.write(path)?;
    }
    print!("{}", report::plan(&document));
    let failed = document.body.cases.iter().filter(|row| row.failure.is_some()).count();
    ensure!(failed == 0, "{failed} of {} configurations were not measured", document.body.cases.len());
    Ok(())
}

/// What `djinn plan --gpu` would say, halfway through the generation.
fn predicted(args: &PlanArgs, case: &Case) -> Result<Row> {
    let model = subject::open(&case.model)?;
    let mut options =
        subject::options(&model, args.device.device, args.prompt as u64 + args.tokens as u64 + 1)?;
    options.budget.vram = Some(case.vram);
    let mapping = djinn_cuda::mapping_bytes(options.most_host_bytes(&model.graph));
    let plan = options.plan(&model.graph, args.gpu.reserved_bytes + mapping);
    let plan = plan.with_context(|| format!("{} at {}", case.model, size::human(case.vram)))?;
    let halfway = args.prompt as u64 + args.tokens as u64 / 2;
    let prediction = predict(&model.graph, &plan, &Work::decode(1, halfway, options.kv_dtype), &args.gpu);
    let bottleneck = match prediction.bottleneck {
        Bottleneck::Link => "link",
        Bottleneck::Memory => "memory",
        Bottleneck::Compute => "compute",
    };
    Ok(Row {
        model: case.model.clone(),
        vram_bytes: case.vram,
        streamed_bytes_per_pass: plan.placement.streamed_bytes(),
        bottleneck: bottleneck.to_owned(),
        predicted_tpot_ms: prediction.seconds * 1e3,
        measured_tpot_ms: None,
        relative_error: None,
        samples_ms: vec![],
        failure: None,
    })
}

/// Takes the samples in a process of their own.
fn measured(args: &PlanArgs, case: &Case, gpu: Option<&Gpu>) -> Result<Samples> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    command.args(["sample", "--system", FULL, "--model", &case.model, "--vram", &case.vram.to_string()]);
    command.args(["--prompt", &args.prompt.to_string(), "--tokens", &args.tokens.to_string()]);
    command.args(["--runs", &args.runs.to_string(), "--device", &args.device.device.to_string()]);
    if let Some(threads) = args.device.threads {
        command.args(["--threads", &threads.to_string()]);
    }
    let ended = process::run(command, Duration::from_secs(args.timeout), gpu);
    Samples::parse(&ended.output.map_err(|why| anyhow!(why))?)
}
