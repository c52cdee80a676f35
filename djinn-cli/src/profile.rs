//! The machine that predictions are for: a card, or this one as `djinn doctor --save` measured it.

use crate::atomic;
use crate::cache::Cache;
use anyhow::{Context, Result};
use djinn_host::{Target, WorkArgs};
use djinn_vmu::Machine;
use std::path::PathBuf;

const FILE: &str = "machine.json";

/// Where the measured machine is kept.
pub(crate) fn path() -> Result<PathBuf> {
    Ok(Cache::from_env()?.root().join(FILE))
}

/// The card that is named, else this machine: as it was measured before, or measured now. What the flags say of it
/// wins.
pub(crate) fn choose(work: &WorkArgs) -> Result<Target> {
    work.target(|| match measured()? {
        Some(machine) => Ok(Target::measured(machine)),
        None => Ok(Target::quick()?),
    })
}

/// This machine as it was measured before, if it was.
pub(crate) fn measured() -> Result<Option<Machine>> {
    // Without a place for the cache there is no measured machine either.
    let Ok(path) = path() else { return Ok(None) };
    let text = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        text => text.with_context(|| path.display().to_string())?,
    };
    let remedy = || format!("{}: measure again with `djinn doctor --save`", path.display());
    let machine: Machine = serde_json::from_str(&text).with_context(remedy)?;
    let encoded = machine.encoded.values().flat_map(|rates| [rates.flops, rates.memory]);
    let mut rates = [machine.flops, machine.memory, machine.link].into_iter().chain(encoded);
    let rates_are_fine = rates.all(|rate| rate.is_finite() && rate > 0.0);
    anyhow::ensure!(
        rates_are_fine && machine.launch.is_finite() && machine.launch >= 0.0,
        "{}: its rates must be positive numbers",
        remedy()
    );
    Ok(Some(machine))
}

/// Keeps a measured machine; says where.
pub(crate) fn save(machine: &Machine) -> Result<PathBuf> {
    let text = serde_json::to_string_pretty(machine)? + "\n";
    let path = path()?;
    let folder = path.parent().context("the cache has no folder")?;
    crate::own::create(folder)?;
    atomic::write(&path, text.as_bytes(), true).with_context(|| path.display().to_string())?;
    Ok(path)
}
