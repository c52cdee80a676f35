//! `djinn pull`, `list` and `rm`: the model cache.

use crate::args::ListArgs;
use crate::cache::{self, Cache, CachedModel};
use crate::progress::PullProgress;
use crate::{output, size};
use anyhow::{Result, bail};
use djinn_models::{Location, printable};
use serde::Serialize;

/// Fetches a model, or checks the one that is there.
pub(super) fn pull(name: &str, quiet: bool) -> Result<()> {
    let progress = PullProgress::new(quiet);
    let entry = Cache::from_env()?.pull(name, &|event| progress.show(event))?;
    drop(progress);
    if quiet {
        return Ok(());
    }
    output::line(&format!(
        "{}: {} from {}, intact",
        entry.name,
        size::human(entry.bytes),
        shown(&entry.source)
    ))
}

#[derive(Serialize)]
struct Listed {
    name: String,
    bytes: u64,
    source: String,
    path: String,
    /// Whether the files have their hashes, if that was checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    intact: Option<bool>,
    /// What is wrong with them.
    #[serde(skip_serializing_if = "Option::is_none")]
    damage: Option<String>,
}

/// Lists the cache, and with `--check` its faults.
pub(super) fn list(args: &ListArgs, quiet: bool) -> Result<()> {
    let cache = Cache::from_env()?;
    let progress = PullProgress::new(quiet);
    let mut models = Vec::new();
    for entry in cache.list()? {
        let mut model = listed(&entry);
        if args.check {
            progress.show(cache::PullEvent::Step(format!("checking {}", entry.name)));
            model.damage = cache.damage(&entry.name, &|event| progress.show(event))?;
            model.intact = Some(model.damage.is_none());
        }
        models.push(model);
    }
    drop(progress);
    if args.json {
        output::json(&serde_json::json!({ "models": models }))?;
    } else if models.is_empty() {
        output::line("the cache is empty; `djinn pull smollm2` fetches the default model")?;
    } else {
        let width = models.iter().map(|m| m.name.len()).max().unwrap_or(0);
        let rows: Vec<String> = models.iter().map(|model| row(model, width)).collect();
        output::line(&rows.join("\n"))?;
    }
    let damaged: Vec<&str> =
        models.iter().filter(|m| m.intact == Some(false)).map(|m| m.name.as_str()).collect();
    match damaged.as_slice() {
        [] => Ok(()),
        [name] => bail!("{name} is damaged; `djinn pull {name}` fetches it again"),
        names => {
            bail!("{} are damaged; `djinn pull NAME` fetches one of them again", names.join(", "))
        }
    }
}

fn listed(entry: &CachedModel) -> Listed {
    Listed {
        name: entry.name.clone(),
        bytes: entry.bytes,
        source: entry.source.clone(),
        path: path(&entry.location),
        intact: None,
        damage: None,
    }
}

fn row(model: &Listed, width: usize) -> String {
    let state = match (model.intact, &model.damage) {
        (None, _) => String::new(),
        (Some(_), None) => "  intact".to_owned(),
        (Some(_), Some(damage)) => format!("  damaged: {}", shown(damage)),
    };
    let (name, size) = (&model.name, size::human(model.bytes));
    format!("{name:width$}  {size:>9}  {}  {}{state}", shown(&model.source), shown(&model.path))
}

pub(super) fn rm(name: &str, quiet: bool) -> Result<()> {
    let bytes = Cache::from_env()?.rm(name)?;
    if quiet {
        return Ok(());
    }
    output::line(&format!("removed {name}: {} freed", size::human(bytes)))
}

/// Manifests and folders may contain anything.
fn shown(text: &str) -> String {
    printable::one_line(text)
}

fn path(location: &Location) -> String {
    match location {
        Location::Directory(path) | Location::Gguf(path) | Location::Safetensors(path) => {
            path.display().to_string()
        }
        Location::Synthetic(name) => format!("synthetic:{name}"),
        Location::Stored { folder, .. } => folder.display().to_string(),
    }
}
