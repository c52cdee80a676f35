//! `djinn pull`, `list` and `rm`: the model cache.

use crate::args::ListArgs;
use crate::cache::Cache;
use crate::progress::PullProgress;
use crate::{output, size};
use anyhow::Result;
use djinn_models::Location;
use serde::Serialize;

/// Fetches a model, or checks the one that is there.
pub(super) fn pull(name: &str, quiet: bool) -> Result<()> {
    let progress = PullProgress::new(quiet);
    let entry = Cache::from_env()?.pull(name, &|event| progress.tell(event))?;
    drop(progress);
    if quiet {
        return Ok(());
    }
    output::line(&format!("{}: {} from {}, intact", entry.name, size::human(entry.bytes), entry.source))
}

#[derive(Serialize)]
struct Listed {
    name: String,
    bytes: u64,
    source: String,
    path: String,
}

/// Lists what the cache holds.
pub(super) fn list(args: &ListArgs) -> Result<()> {
    let listed = Cache::from_env()?.list()?.into_iter().map(|entry| Listed {
        name: entry.name,
        bytes: entry.bytes,
        source: entry.source,
        path: path(&entry.location),
    });
    let models: Vec<Listed> = listed.collect();
    if args.json {
        return output::json(&serde_json::json!({ "models": models }));
    }
    if models.is_empty() {
        return output::line("the cache is empty; `djinn pull smollm2` fetches the default model");
    }
    let width = models.iter().map(|m| m.name.len()).max().unwrap_or(0);
    let rows = models
        .iter()
        .map(|m| format!("{:width$}  {:>9}  {}  {}", m.name, size::human(m.bytes), m.source, m.path));
    output::line(&rows.collect::<Vec<_>>().join("\n"))
}

/// Removes a model from the cache.
pub(super) fn rm(name: &str, quiet: bool) -> Result<()> {
    let bytes = Cache::from_env()?.rm(name)?;
    if quiet {
        return Ok(());
    }
    output::line(&format!("removed {name}: {} freed", size::human(bytes)))
}

fn path(location: &Location) -> String {
    match location {
        Location::Directory(path) | Location::Gguf(path) | Location::Safetensors(path) => {
            path.display().to_string()
        }
        Location::Synthetic(name) => format!("synthetic:{name}"),
    }
}
