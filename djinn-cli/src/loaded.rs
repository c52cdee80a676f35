//! From a model's name to an engine that holds it.

use crate::cache::Cache;
use crate::progress::PullProgress;
use anyhow::{Result, bail};
use djinn_engine::Options;
use djinn_host::{AnyEngine, Meter, Setup};
use djinn_models::{Location, Model, OpenOptions};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

/// Finds a model, pulling it where needed, and opens it. No weights are read.
pub(crate) fn open(spec: &str, options: &OpenOptions, quiet: bool) -> Result<Model> {
    Ok(djinn_models::open(&find(spec, quiet)?, options)?)
}

/// Finds a model, pulling it where needed.
pub(crate) fn find(spec: &str, quiet: bool) -> Result<Location> {
    let progress = PullProgress::new(quiet);
    Cache::from_env()?.resolve(spec, &|event| progress.show(event))
}

/// What a model is called in requests: by the name that the user gave it, or by its own, where that is a path.
pub(crate) fn name(spec: &str, own: &str) -> String {
    if spec.contains(['/', '\\', ':']) || Path::new(spec).exists() { own.to_owned() } else { spec.to_owned() }
}

pub(crate) struct Loaded {
    pub(crate) engine: Box<dyn AnyEngine>,
    pub(crate) time: Duration,
}

/// Plans the memory, then loads the weights, unless `ended` says that the user wants no more of it; from then on the
/// engine is traced, if `traced`.
pub(crate) fn load(
    model: &Model,
    setup: &Setup,
    options: &Options,
    traced: bool,
    quiet: bool,
    ended: &dyn Fn() -> bool,
) -> Result<Loaded> {
    let start = Instant::now();
    let progress = Meter::new(format!("loading {}", model.name), quiet);
    let mut on_progress = |done, total| {
        progress.set(done, Some(total));
        if ended() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let mut engine = djinn_host::load(model, setup, options, &mut on_progress)?;
    let plan = engine.plan();
    progress.finish(plan.host_weight_bytes() + plan.segments.resident);
    if traced {
        engine.start_trace()?;
    }
    Ok(Loaded { engine, time: start.elapsed() })
}

/// Refuses a prompt where the model should be.
pub(crate) fn refuse_prompt(spec: &str) -> Result<()> {
    if spec.contains(char::is_whitespace) && !Path::new(spec).exists() {
        bail!("{spec:?} is no model; the model comes before the prompt: djinn run MODEL PROMPT");
    }
    Ok(())
}
