//! What a model in the cache consists of.

use super::{Entry, MANIFEST, Progress};
use anyhow::{Context, Result, bail};
use djinn_models::Location;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Component, Path};

/// `manifest.json`.
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
}

impl Manifest {
    pub(super) fn read(directory: &Path) -> Result<Self> {
        let path = directory.join(MANIFEST);
        let text = fs::read(&path).with_context(|| path.display().to_string())?;
        let manifest: Self = serde_json::from_slice(&text).with_context(|| path.display().to_string())?;
        let inside = |item: &Item| {
            let mut parts = Path::new(&item.path).components();
            !item.path.is_empty() && parts.all(|part| matches!(part, Component::Normal(_)))
        };
        if manifest.files.is_empty() || !manifest.files.iter().all(inside) {
            bail!("{}: its list of files is empty or leads out of the directory", path.display());
        }
        Ok(manifest)
    }

    pub(super) fn write(&self, directory: &Path) -> Result<()> {
        let path = directory.join(MANIFEST);
        let mut file = File::create(&path).with_context(|| path.display().to_string())?;
        file.write_all(serde_json::to_string_pretty(self)?.as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all().with_context(|| path.display().to_string())
    }

    /// Whether all files are there with their sizes.
    pub(super) fn is_whole(&self, directory: &Path) -> bool {
        let whole = |item: &Item| {
            fs::metadata(directory.join(&item.path))
                .is_ok_and(|meta| meta.is_file() && meta.len() == item.bytes)
        };
        self.files.iter().all(whole)
    }

    /// Whether all files have their hashes.
    pub(super) fn is_intact(&self, directory: &Path, progress: &dyn Fn(Progress)) -> Result<bool> {
        for item in &self.files {
            let found = Item::of(directory, &item.path, progress)?;
            if found != *item {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The model as the cache lists it.
    pub(super) fn entry(&self, directory: &Path) -> Entry {
        let weights = match self.files.as_slice() {
            [item] if item.path.to_ascii_lowercase().ends_with(".gguf") => Some(directory.join(&item.path)),
            _ => None,
        };
        Entry {
            name: self.name.clone(),
            source: self.source.clone(),
            bytes: self.files.iter().fold(0, |sum, item| sum.saturating_add(item.bytes)),
            location: weights.map_or_else(|| Location::Directory(directory.to_owned()), Location::Gguf),
        }
    }
}

impl Item {
    /// Hashes a file that is there.
    pub(super) fn of(directory: &Path, path: &str, progress: &dyn Fn(Progress)) -> Result<Self> {
        let full = directory.join(path);
        let of = || full.display().to_string();
        let file = File::open(&full).with_context(of)?;
        let total = file.metadata().with_context(of)?.len();
        let (bytes, sha256) =
            copy_hashed(file, &mut std::io::sink(), Some(total), progress).with_context(of)?;
        Ok(Self { path: path.to_owned(), bytes, sha256 })
    }
}

/// Copies to the end; gives the number of bytes and their SHA-256. Stops with an error after `total` bytes
/// where that is known.
pub(super) fn copy_hashed(
    mut from: impl Read,
    to: &mut impl Write,
    total: Option<u64>,
    progress: &dyn Fn(Progress),
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
        progress(Progress::Bytes { done, total });
    }
    let digits: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((done, digits))
}

/// Sum of the sizes of the files in a directory; what cannot be read counts nothing.
pub(super) fn size_on_disk(directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => size_on_disk(&entry.path()),
        Ok(kind) if kind.is_file() => entry.metadata().map_or(0, |meta| meta.len()),
        _ => 0,
    });
    sizes.sum()
}
