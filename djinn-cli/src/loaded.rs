//! From a model's name to an engine that holds it.

use crate::cache::Cache;
use crate::output;
use crate::progress::PullProgress;
use crate::size;
use anyhow::{Error, Result, anyhow, bail};
use djinn_device::{Error as DeviceError, Space};
use djinn_engine::{Error as EngineError, Options};
use djinn_host::{AnyEngine, DeviceArgs, Error as HostError, Meter, Setup};
use djinn_models::{Location, Model, OpenOptions};
use std::ffi::OsStr;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

/// Finds a model, pulling it where needed, and opens it. No weights are read.
pub(crate) fn open(spec: &str, options: &OpenOptions, quiet: bool) -> Result<Model> {
    let location = find(spec, quiet)?;
    djinn_models::open(&location, options).map_err(|error| pickled(&location).unwrap_or_else(|| error.into()))
}

/// The error for a folder whose only weights are pickled: reading those runs code, so that Djinn does not.
fn pickled(location: &Location) -> Option<Error> {
    let Location::Directory(folder) = location else { return None };
    let names = fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.file_name()));
    let mut names: Vec<_> = names.collect();
    names.sort();
    let is = |name: &OsStr, extensions: &[&str]| {
        let extension = Path::new(name).extension().and_then(OsStr::to_str);
        extension.is_some_and(|own| extensions.contains(&own))
    };
    if names.iter().any(|name| is(name, &["safetensors", "gguf", djinn_models::packed::EXTENSION])) {
        return None;
    }
    let file = names.iter().find(|name| is(name, &["bin", "pt", "pth"]))?;
    Some(anyhow!(
        "{} is no model: its weights are pickled ({}), which Djinn does not read; convert them to safetensors first",
        folder.display(),
        file.to_string_lossy()
    ))
}

/// The error of a load for which flags asked for memory, each for some bytes. A flag is named if the load would have
/// fitted without it.
pub(crate) fn blame(error: HostError, asked: &[(&str, u64)]) -> Error {
    let of = |fits: &dyn Fn(u64) -> bool| {
        let found = asked.iter().find(|(_, bytes)| *bytes > 0 && fits(*bytes));
        found.map(|(flag, bytes)| format!("{flag} of {}", size::human(*bytes)))
    };
    match &error {
        HostError::HostMemory { needed_bytes, available_bytes } => {
            match of(&|bytes| needed_bytes.saturating_sub(bytes) <= *available_bytes) {
                Some(flag) => {
                    let available = size::human(*available_bytes);
                    anyhow!(
                        "{flag} does not fit beside the model: this machine has {available} available; give less"
                    )
                }
                None => error.into(),
            }
        }
        HostError::Engine(EngineError::Device(DeviceError::OutOfMemory {
            space: Space::Host,
            requested_bytes,
            ..
        })) => match of(&|bytes| bytes == *requested_bytes) {
            Some(flag) => Error::from(error).context(format!("{flag} is too much")),
            None => error.into(),
        },
        _ => error.into(),
    }
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

/// The setup for a model. A choice that has no effect on it is dropped, with a remark.
pub(crate) fn setup(device: &DeviceArgs, memory: &Setup, model: &Model, quiet: bool) -> Setup {
    settled(device.with(memory), [model], quiet)
}

/// The same for models that share a device.
pub(crate) fn settled<'a>(asked: Setup, models: impl IntoIterator<Item = &'a Model>, quiet: bool) -> Setup {
    let settled = asked.for_models(models);
    if settled.activations != asked.activations && !quiet {
        output::remark(djinn_host::IDLE_INT8);
    }
    settled
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
    if !quiet {
        djinn_host::without_effect(options, plan).into_iter().for_each(output::remark);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_without_which_it_fits_is_named() {
        let told = |needed_bytes: u64, asked: &[(&str, u64)]| {
            blame(HostError::HostMemory { needed_bytes, available_bytes: 10 << 30 }, asked).to_string()
        };
        let both = [("--kv-cache", 2 << 30), ("--swap-space", 6 << 30)];
        let message = told(15 << 30, &both);
        assert!(message.starts_with("--swap-space of 6.00 GiB does not fit beside the model"), "{message}");
        assert!(message.contains("10.0 GiB available"), "{message}");
        assert!(told(12 << 30, &both).starts_with("--kv-cache of 2.00 GiB"));
        // What was counted may be less than what was asked for.
        assert!(told(1 << 46, &[("--swap-space", 1 << 50)]).starts_with("--swap-space of 1.00 PiB"));
        for asked in [&both[..], &[("--swap-space", 0)], &[]] {
            assert!(told(30 << 30, asked).starts_with("the model needs 30.0 GiB"), "{asked:?}");
        }
    }
}
