//! Predictions beside measurements: the time per token that `djinn plan` predicts, and the one that a run takes.

use crate::args::{Case, PlanArgs};
use crate::document::Document;
use crate::exp2::systems::FULL;
use crate::gpu::Gpu;
use crate::sample::{self, Samples};
use crate::statistics::median;
use crate::{interrupt, model, process, remark, report, size};
use anyhow::{Context, Result, anyhow, ensure};
use djinn_host::{Setup, Target, Task, TaskPlan, kv_dtype};
use djinn_vmu::Bottleneck;
use serde::{Deserialize, Serialize};
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

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Comparison {
    pub(crate) predicted_for: String,
    pub(crate) prompt: u32,
    pub(crate) tokens: u32,
    pub(crate) runs: u32,
    pub(crate) cases: Vec<Row>,
}

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

pub(crate) fn run(args: &PlanArgs) -> Result<()> {
    let setup = args.device.setup()?;
    let default = || DEFAULT.iter().map(|case| case.parse().expect("a case")).collect();
    let cases: Vec<Case> = if args.cases.is_empty() { default() } else { args.cases.clone() };
    let mut rows = cases.iter().map(|case| predicted(args, &setup, case)).collect::<Result<Vec<Row>>>()?;
    interrupt::catch(interrupt::stop_all)?;
    interrupt::keep();
    let gpu = Gpu::open(setup.device);
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
        match measured(args, &setup, case, gpu.as_ref()) {
            Ok(samples) => {
                row.samples_ms = samples.samples.iter().map(|sample| sample.tpot_ms).collect();
                row.measured_tpot_ms = median(row.samples_ms.iter().copied());
                row.relative_error = row.measured_tpot_ms.map(|ms| row.predicted_tpot_ms / ms - 1.0);
            }
            Err(error) => row.failure = Some(crate::one_line(error.as_ref())),
        }
    }
    let body = Comparison {
        predicted_for: args.gpu.name.to_owned(),
        prompt: args.prompt,
        tokens: args.tokens,
        runs: args.runs,
        cases: rows,
    };
    let document = Document::new("plan", setup.device, body);
    document.publish(args.json.as_deref(), report::plan)?;
    let failed = document.body.cases.iter().filter(|row| row.failure.is_some()).count();
    ensure!(failed == 0, "{failed} of {} configurations were not measured", document.body.cases.len());
    Ok(())
}

/// What `djinn plan --gpu` says, for keys and values as the device of the run keeps them.
fn predicted(args: &PlanArgs, setup: &Setup, case: &Case) -> Result<Row> {
    let model = model::open(setup, &case.model)?;
    let setup = Setup { vram: Some(case.vram), kv_dtype: Some(kv_dtype(setup.device, &model)), ..*setup };
    let task = Task { prompt_tokens: args.prompt, max_tokens: args.tokens, sequences: 1 };
    let forecast = TaskPlan::new(&model, &setup, Target::card(args.gpu), task);
    let forecast = forecast.with_context(|| format!("{} at {}", case.model, size::human(case.vram)))?;
    let bottleneck = match forecast.bottleneck.decode {
        Bottleneck::Link => "link",
        Bottleneck::Memory => "memory",
        Bottleneck::Compute => "compute",
        Bottleneck::Cpu => "cpu",
    };
    Ok(Row {
        model: case.model.clone(),
        vram_bytes: case.vram,
        streamed_bytes_per_pass: forecast.streamed_bytes_per_pass,
        bottleneck: bottleneck.to_owned(),
        predicted_tpot_ms: forecast.predicted.tpot_ms,
        measured_tpot_ms: None,
        relative_error: None,
        samples_ms: vec![],
        failure: None,
    })
}

/// Takes the samples in a process of their own.
fn measured(args: &PlanArgs, setup: &Setup, case: &Case, gpu: Option<&Gpu>) -> Result<Samples> {
    let setup = Setup { vram: Some(case.vram), ..*setup };
    let command = sample::command(FULL, &setup, &case.model, [args.prompt, args.tokens, args.runs], None)?;
    let ended = process::run(command, Duration::from_secs(args.timeout), gpu);
    Samples::parse(&ended.output.map_err(|why| anyhow!(why))?)
}
