//! The manifest of a cached model.

use super::{CachedModel, PullEvent};
use crate::atomic;
use anyhow::{Context, Result, bail, ensure};
use djinn_models::Location;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::{self, File, Metadata};
use std::io::{Read, Write};
use std::path::{Component, Path};
use std::time::UNIX_EPOCH;

pub(super) const MANIFEST: &str = "manifest.json";
/// The longest manifest that is read, in bytes.
const MAX_MANIFEST: u64 = 16 << 20;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) name: String,
    /// `pip:REQUIREMENT` or `hub:ORG/NAME@COMMIT`.
    pub(super) source: String,
    pub(super) files: Vec<Item>,
}

/// One file of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Item {
    /// Relative to the model's directory.
    pub(super) path: String,
    pub(super) bytes: u64,
    /// In lower-case hexadecimal digits.
    pub(super) sha256: String,
    /// When the file was last changed, in nanoseconds since 1970; older manifests have no times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) modified_ns: Option<u64>,
}

impl Manifest {
    pub(super) fn read(directory: &Path) -> Result<Self> {
        let path = directory.join(MANIFEST);
        let of = || path.display().to_string();
        let text = djinn_models::file::read_bounded(&path, MAX_MANIFEST)?;
        let manifest: Self = serde_json::from_slice(&text).with_context(of)?;
        let inside = |item: &Item| {
            let mut parts = Path::new(&item.path).components();
            !item.path.is_empty() && parts.all(|part| matches!(part, Component::Normal(_)))
        };
        if manifest.files.is_empty() || !manifest.files.iter().all(inside) {
            bail!("{}: its list of files is empty or leads out of the directory", path.display());
        }
        Ok(manifest)
    }

    /// Writes the manifest.
    pub(super) fn write(&self, directory: &Path) -> Result<()> {
        let path = directory.join(MANIFEST);
        let text = serde_json::to_string_pretty(self)? + "\n";
        atomic::write(&path, text.as_bytes(), true).with_context(|| path.display().to_string())
    }

    /// Whether all files are there with their sizes.
    pub(super) fn is_whole(&self, directory: &Path) -> bool {
        self.files.iter().all(|item| item.is_there(directory).is_ok())
    }

    /// Whether all files have the sizes and times of the pull. Reads no file.
    pub(super) fn is_unchanged(&self, directory: &Path) -> bool {
        let unchanged = |item: &Item| {
            let meta = item.is_there(directory).ok();
            meta.is_some_and(|meta| item.modified_ns.is_none_or(|then| same_time(then, modified_ns(&meta))))
        };
        self.files.iter().all(unchanged)
    }

    /// The first fault of the files, by their hashes.
    pub(super) fn damage(&self, directory: &Path, progress: &dyn Fn(PullEvent)) -> Option<String> {
        for item in &self.files {
            let checked = item.is_there(directory).and_then(|_| {
                let found = Item::of(directory, &item.path, progress)?;
                ensure!(
                    found.sha256 == item.sha256,
                    "{} has changed: its SHA-256 is {}, not {}",
                    item.path,
                    found.sha256,
                    item.sha256
                );
                Ok(())
            });
            if let Err(error) = checked {
                return Some(format!("{error:#}"));
            }
        }
        self.stranger(directory)
    }

    /// A file that the manifest does not list: readers of the directory would take it for a part of the model.
    fn stranger(&self, directory: &Path) -> Option<String> {
        let names = fs::read_dir(directory).ok()?.flatten().map(|entry| entry.file_name());
        let known = |name: &str| {
            let is_listed = |item: &Item| item.path.split('/').next() == Some(name);
            name == MANIFEST || name.starts_with('.') || self.files.iter().any(is_listed)
        };
        let name = names.map(|name| name.to_string_lossy().into_owned()).find(|name| !known(name))?;
        Some(format!("{name} is no file of this model"))
    }

    /// Records the files' present times, after a check of their hashes.
    pub(super) fn renew_times(&mut self, directory: &Path) -> Result<()> {
        for item in &mut self.files {
            item.modified_ns = modified_ns(&item.is_there(directory)?);
        }
        self.write(directory)
    }

    /// The model as the cache lists it.
    pub(super) fn entry(&self, name: &str, directory: &Path) -> CachedModel {
        let weights = match self.files.as_slice() {
            [item] if item.path.to_ascii_lowercase().ends_with(".gguf") => Some(directory.join(&item.path)),
            _ => None,
        };
        CachedModel {
            name: name.to_owned(),
            source: self.source.clone(),
            bytes: self.files.iter().fold(0, |sum, item| sum.saturating_add(item.bytes)),
            location: weights.map_or_else(|| Location::Directory(directory.to_owned()), Location::Gguf),
        }
    }
}

impl Item {
    /// Hashes a file that is there.
    pub(super) fn of(directory: &Path, path: &str, progress: &dyn Fn(PullEvent)) -> Result<Self> {
        let full = directory.join(path);
        let of = || full.display().to_string();
        let file = open_regular(&full)?;
        let meta = file.metadata().with_context(of)?;
        let (bytes, sha256) =
            copy_hashed(file, &mut std::io::sink(), Some(meta.len()), progress).with_context(of)?;
        Ok(Self { path: path.to_owned(), bytes, sha256, modified_ns: modified_ns(&meta) })
    }

    /// The file's metadata, if it is a file of the right size.
    fn is_there(&self, directory: &Path) -> Result<Metadata> {
        let full = directory.join(&self.path);
        let meta = fs::metadata(&full).with_context(|| full.display().to_string())?;
        ensure!(meta.is_file(), "{} is no file", self.path);
        ensure!(meta.len() == self.bytes, "{} has {} bytes, not {}", self.path, meta.len(), self.bytes);
        Ok(meta)
    }
}

/// Opens a file, and nothing that would block or never end.
fn open_regular(path: &Path) -> Result<File> {
    let of = || path.display().to_string();
    ensure!(fs::metadata(path).with_context(of)?.is_file(), "{} is no file", path.display());
    File::open(path).with_context(of)
}

pub(super) fn modified_ns(meta: &Metadata) -> Option<u64> {
    let since = meta.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(since.as_nanos()).ok()
}

/// Whether a file has kept its time, possibly through an archive with whole seconds.
fn same_time(then: u64, now: Option<u64>) -> bool {
    const SECOND: u64 = 1_000_000_000;
    now.is_some_and(|now| now == then || (now % SECOND == 0 && now / SECOND == then / SECOND))
}

/// Copies to the end. Returns the number of bytes and their SHA-256. Fails after `total` bytes, if that is known.
pub(super) fn copy_hashed(
    mut from: impl Read,
    to: &mut impl Write,
    total: Option<u64>,
    progress: &dyn Fn(PullEvent),
) -> Result<(u64, String)> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut done = 0;
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        done += read as u64;
        if total.is_some_and(|total| done > total) {
            bail!("more than the {} bytes that were announced", total.unwrap_or(0));
        }
        hash.update(&buffer[..read]);
        to.write_all(&buffer[..read])?;
        progress(PullEvent::Bytes { done, total });
    }
    let digits: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((done, digits))
}

/// Sum of the sizes of the files in a directory. Unreadable files do not count.
pub(super) fn size_on_disk(directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => size_on_disk(&entry.path()),
        Ok(kind) if kind.is_file() => entry.metadata().map_or(0, |meta| meta.len()),
        _ => 0,
    });
    sizes.sum()
}
