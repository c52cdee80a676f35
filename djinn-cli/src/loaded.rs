//! From a model's name to an engine that holds it.

use crate::cache::{Cache, Resolver};
use crate::progress::{Progress, PullProgress};
use anyhow::{Result, anyhow, bail};
use djinn_device::DType;
use djinn_engine::Options;
use djinn_host::{AnyEngine, Error, Setup};
use djinn_models::{Location, Model, OpenOptions};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

/// Finds a model, pulling it where needed, and opens it. No weights are read.
pub(crate) fn open(spec: &str, dtype: Option<DType>, quiet: bool) -> Result<Model> {
    let location = locate(spec, quiet)?;
    Ok(djinn_models::open(&location, &OpenOptions { dtype })?)
}

fn locate(spec: &str, quiet: bool) -> Result<Location> {
    let progress = PullProgress::new(quiet);
    let tell = |event| progress.tell(event);
    let location = Resolver::new(Cache::from_env()?, &tell).resolve(spec)?;
    Ok(location)
}

/// A model on its device.
pub(crate) struct Loaded {
    pub(crate) engine: Box<dyn AnyEngine>,
    /// How long it took.
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
    let progress = Progress::new(format!("loading {}", model.name), quiet);
    let mut tell = |done, total| {
        progress.tell(done, Some(total));
        if ended() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let mut engine = djinn_host::load(model, setup, options, &mut tell).map_err(in_flags)?;
    progress.finish(engine.plan().host_weight_bytes() + engine.plan().segments.resident);
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

/// A failure of the library, with the command's flags where it names fields.
pub(crate) fn in_flags(error: Error) -> anyhow::Error {
    match error {
        Error::Gpu { device, source } => anyhow!(source).context(format!("--device {device}")),
        Error::NoTokenizer { model } => anyhow!("{model} has no tokenizer; give --prompt-tokens 1,2,3"),
        Error::NoTemplate { model } => {
            anyhow!("--system needs a chat template, which {model} lacks; drop it")
        }
        error => error.into(),
    }
}
