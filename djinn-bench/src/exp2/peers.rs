//! The peers' scripts: carried in the program, written to a folder of their own, run by the user's Python.

use crate::args::Exp2Args;
use anyhow::{Context, Result};
use djinn_host::DeviceName;
use std::process::Command;
use tempfile::TempDir;

const SCRIPTS: &[(&str, &str)] = &[
    ("peer.py", include_str!("../../peers/peer.py")),
    ("accelerate_offload.py", include_str!("../../peers/accelerate_offload.py")),
    ("blocking.py", include_str!("../../peers/blocking.py")),
    ("three_slot.py", include_str!("../../peers/three_slot.py")),
    ("resident.py", include_str!("../../peers/resident.py")),
    ("deepspeed_offload.py", include_str!("../../peers/deepspeed_offload.py")),
];

/// Models whose shapes the scripts know, and how they call them.
const MODELS: &[(&str, &str)] = &[
    ("synthetic:tiny", "tiny"),
    ("synthetic:llama-2-7b", "7b"),
    ("synthetic:llama-3.1-8b", "8b"),
    ("synthetic:llama-2-13b", "13b"),
    ("synthetic:llama-2-70b", "70b"),
];

/// A model's name without `?distinct=N`: layers that share weights have the same shapes.
fn shapes_of(model: &str) -> &str {
    match model.split_once("?distinct=") {
        Some((name, layers)) if layers.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => model,
    }
}

/// The scripts on disk.
pub(super) struct Peers {
    folder: TempDir,
}

impl Peers {
    pub(super) fn new() -> Result<Peers> {
        let folder =
            tempfile::Builder::new().prefix("djinn-peers-").tempdir().context("no folder for the peers")?;
        for (name, text) in SCRIPTS {
            std::fs::write(folder.path().join(name), text).context("cannot write the peers' scripts")?;
        }
        Ok(Peers { folder })
    }

    /// The process that takes `runs` samples by `script`; or why there is none.
    pub(super) fn command(
        &self,
        args: &Exp2Args,
        device: DeviceName,
        script: &str,
        runs: u32,
    ) -> Result<Command, String> {
        let shapes = shapes_of(&args.model);
        let Some((_, model)) = MODELS.iter().find(|(name, _)| *name == shapes) else {
            let known: Vec<&str> = MODELS.iter().map(|(name, _)| *name).collect();
            return Err(format!("the peers know {}, not {}", known.join(", "), args.model));
        };
        let mut command = Command::new(&args.python);
        command.arg(self.folder.path().join(script)).args(["--model", model]);
        command.args(["--vram-gib", &(args.vram as f64 / (1u64 << 30) as f64).to_string()]);
        command.args(["--prompt", &args.prompt.to_string(), "--tokens", &args.tokens.to_string()]);
        command.args(["--runs", &runs.to_string(), "--device", &device.to_string(), "--json"]);
        if let Some(most) = args.most_seconds {
            command.args(["--most-seconds", &most.to_string()]);
        }
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        Ok(command)
    }
}
