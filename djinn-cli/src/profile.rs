//! Machines that predictions are for: known GPUs, and the one that `djinn doctor --save` measured.

use crate::cache::Cache;
use anyhow::{Context, Result};
use djinn_srg::DType;
use djinn_srg::cost::Machine;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

const FILE: &str = "machine.json";
/// The machine where none is named and none was measured.
const DEFAULT: &str = "h200";

/// A machine, and how it was chosen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Chosen {
    #[serde(flatten)]
    pub(crate) machine: Machine,
    /// `named`, `measured` or `default`.
    pub(crate) chosen: &'static str,
}

impl Chosen {
    /// The KV cache's element type: a GPU that the user names holds what `run --device cuda` would, else the
    /// plan is that of the CPU device.
    pub(crate) fn kv_dtype(&self) -> DType {
        if self.chosen == "named" { DType::F16 } else { DType::F32 }
    }

    /// Device memory that the device itself takes with so much pinned host memory, likewise.
    pub(crate) fn reserved_bytes(&self, pinned_bytes: u64) -> u64 {
        match self.chosen {
            "named" => self.machine.reserved_bytes + djinn_cuda::mapping_bytes(pinned_bytes),
            _ => 0,
        }
    }
}

/// A measured machine in its file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Profile {
    name: String,
    flops: f64,
    memory: f64,
    link: f64,
    launch: f64,
}

/// Where the measured machine is kept.
pub(crate) fn path() -> Result<PathBuf> {
    Ok(Cache::from_env()?.root().join(FILE))
}

/// The machine called `gpu`, else the measured one, else the default.
pub(crate) fn choose(gpu: Option<&str>) -> Result<Chosen> {
    if let Some(name) = gpu {
        let machine = Machine::named(name).with_context(|| format!("--gpu {name} is not known"))?;
        return Ok(Chosen { machine, chosen: "named" });
    }
    if let Some(machine) = measured()? {
        return Ok(Chosen { machine, chosen: "measured" });
    }
    Ok(Chosen { machine: Machine::named(DEFAULT).expect("a known name"), chosen: "default" })
}

fn measured() -> Result<Option<Machine>> {
    // Without a place for the cache there is no measured machine either.
    let Ok(path) = path() else { return Ok(None) };
    let text = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        text => text.with_context(|| path.display().to_string())?,
    };
    let remedy = || format!("{}: measure again with `djinn doctor --save`", path.display());
    let Profile { name, flops, memory, link, launch } = serde_json::from_str(&text).with_context(remedy)?;
    let rates_are_fine = [flops, memory, link].iter().all(|r| r.is_finite() && *r > 0.0);
    anyhow::ensure!(
        rates_are_fine && launch.is_finite() && launch >= 0.0,
        "{}: its rates must be positive numbers",
        remedy()
    );
    Ok(Some(Machine { name, flops, memory, link, launch, reserved_bytes: 0 }))
}

/// Keeps a measured machine; says where.
pub(crate) fn save(machine: &Machine) -> Result<PathBuf> {
    let Machine { name, flops, memory, link, launch, .. } = machine.clone();
    let text = serde_json::to_string_pretty(&Profile { name, flops, memory, link, launch })?;
    let path = path()?;
    let folder = path.parent().context("the cache has no folder")?;
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    std::fs::write(&path, text + "\n").with_context(|| path.display().to_string())?;
    Ok(path)
}
