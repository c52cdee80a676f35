//! Where settings come from: the file that `--config` names, or else the working directory's file over the user's
//! own. The working directory may be a stranger's, so its file sets only what does no harm.

use super::file::FileSettings;
use crate::own;
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};

/// What a settings file in the working directory may set: how much memory, which device and how tokens are drawn.
/// What is asked, shown, stopped at, run or written is not for a folder to say.
pub(super) const HARMLESS: [&str; 26] = [
    "activations",
    "batch",
    "chunk",
    "cpu-share",
    "ctx",
    "device",
    "dtype",
    "encoding",
    "gpu",
    "greedy",
    "kv-dtype",
    "max-tokens",
    "min-p",
    "prefill-chunk",
    "prompt-len",
    "ram",
    "repetition-penalty",
    "resident-fraction",
    "ring",
    "seed",
    "stream-check",
    "temperature",
    "threads",
    "top-k",
    "top-p",
    "vram",
];

/// The folders in which settings files are looked for.
pub(super) struct Places {
    pub(super) working: PathBuf,
    /// The user's own folder for Djinn; none on a system that names none.
    pub(super) own: Option<PathBuf>,
}

/// What the settings files say.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) settings: FileSettings,
    /// What the user should know: that the working directory has a say.
    pub(super) remark: Option<String>,
}

impl Places {
    /// The working directory, and `$XDG_CONFIG_HOME/djinn` or `~/.config/djinn`.
    pub(super) fn from_env() -> Self {
        Places { working: PathBuf::new(), own: own::folder("XDG_CONFIG_HOME", ".config") }
    }

    /// Reads the file `named`, or else those in the two folders: the working directory's comes first.
    pub(super) fn load(&self, named: Option<&Path>) -> Result<Found> {
        if let Some(file) = named {
            return Ok(Found { settings: FileSettings::read(file)?, remark: None });
        }
        let own = match &self.own {
            Some(folder) => only(folder, "config")?.map(|file| FileSettings::read(&file)).transpose()?,
            None => None,
        };
        let Some(file) = only(&self.working, "djinn")? else {
            return Ok(Found { settings: own.unwrap_or_default(), remark: None });
        };
        let nearer = FileSettings::read(&file)?;
        if let Some(key) = nearer.keys().find(|key| !HARMLESS.contains(key)) {
            let own = self.own.as_ref().map_or("your own settings".to_owned(), |folder| {
                folder.join("config.toml").display().to_string()
            });
            let place = file.display();
            bail!(
                "{place}: key `{key}` is not for a file in the working directory; set it in {own}, or name the file with --config {place}"
            );
        }
        let keys: Vec<&str> = nearer.keys().collect();
        let remark = (!keys.is_empty()).then(|| format!("{} sets {}", file.display(), keys.join(", ")));
        Ok(Found { settings: nearer.over(own.unwrap_or_default()), remark })
    }
}

/// The settings file called `name` in `folder`, if there is one; refuses several.
fn only(folder: &Path, name: &str) -> Result<Option<PathBuf>> {
    let paths = ["toml", "yaml", "yml"].map(|extension| folder.join(format!("{name}.{extension}")));
    // A link that leads nowhere is there as well.
    let found: Vec<PathBuf> = paths.into_iter().filter(|path| path.symlink_metadata().is_ok()).collect();
    if found.len() > 1 {
        let found: Vec<String> = found.iter().map(|path| path.display().to_string()).collect();
        bail!("several settings files: {}; keep one, or name it with --config", found.join(", "));
    }
    Ok(found.into_iter().next())
}
