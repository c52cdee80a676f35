//! Output of commands and servers: as text, JSON, or DOT.

mod export;
mod logits;
mod plan;
mod srg;

pub use logits::{LogitRows, logits_table};
pub use plan::plan_table;

use crate::{CostPhase, IDLE_INT8, PlanAsked, Result, Setup, SrgAsked, Target, Task, TaskPlan};
use djinn_engine::Options;
use djinn_models::Model;
use djinn_srg::cost::Work;
use djinn_vmu::{Detail, Program};

/// A large number in words: `13.016 billion`, `134.5 million`, `127304`.
pub fn count(number: u64) -> String {
    match number as f64 {
        billions if billions >= 1e9 => format!("{:.3} billion", billions / 1e9),
        millions if millions >= 1e6 => format!("{:.1} million", millions / 1e6),
        _ => number.to_string(),
    }
}

/// The plan of a model for a machine, as `djinn plan` prints it, without the last line feed.
///
/// # Errors
/// As [`TaskPlan::new`].
pub fn plan_text(model: &Model, asked: &PlanAsked, target: Target) -> Result<String> {
    let PlanAsked { work, max_tokens, json, memory } = asked;
    let task = Task { prompt_tokens: work.prompt_len, max_tokens: *max_tokens, sequences: work.batch };
    let asked = Setup { device: target.device(), ..*memory };
    let memory = asked.for_models([model]);
    let mut forecast = TaskPlan::new(model, &memory, target, task)?;
    if memory.activations != asked.activations {
        forecast.without_effect.push(IDLE_INT8);
    }
    Ok(if *json { as_json(&forecast) } else { plan_table(&forecast) })
}

/// The graph of a model with its costs on a machine, as `djinn srg` prints it, without the last line feed.
///
/// # Errors
/// As [`Options::plan`](djinn_engine::Options::plan).
pub fn srg_text(model: &Model, asked: &SrgAsked, target: &Target) -> Result<String> {
    let kv_dtype = asked.kv_dtype.unwrap_or_else(|| target.kv_dtype(model));
    let (machine, tokens) = (&target.machine, u64::from(asked.work.prompt_len));
    let (work, phase) = match asked.phase {
        CostPhase::Prefill => (Work::prefill(tokens, kv_dtype), format!("prefill of {tokens} tokens")),
        CostPhase::Decode => {
            let sequences = asked.work.batch;
            let phase = format!("decode of {sequences} x 1 token at {tokens} tokens");
            (Work::decode(sequences.into(), tokens, kv_dtype), phase)
        }
    };
    if asked.json {
        // All weights are resident: their places only affect the chunks.
        let plan = Options { context: 1, ..Options::default() }.plan(&model.graph, 0)?;
        let program = Program::new(&model.graph, &plan, Detail::Fused);
        return Ok(as_json(&export::json(&model.graph, &program, &work, machine)));
    }
    Ok(match asked.dot {
        true => export::dot(&model.graph, &work, machine).trim_end().to_owned(),
        false => srg::table(&model.graph, &work, machine, &phase),
    })
}

/// Serialization of finite numbers and text keys cannot fail.
fn as_json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
