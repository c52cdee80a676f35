//! Packing and unpacking a model's directory.

use super::partial::{self, Partial};
use super::write::{self, JOURNAL, Packed};
use super::{EXTENSION, find, with_extension};
use crate::file::regular;
use crate::safetensors::{INDEX_FILE, SINGLE_FILE, SafetensorsDir};
use crate::small_files::{SMALL_FILES, TEMPLATES};
use crate::{Error, Location, Result};
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// Extensions of weights for other programs, and of what an interrupted run leaves.
const NOT_COPIED: [&str; 11] =
    ["bin", "gguf", "h5", "msgpack", "onnx", "ot", "pt", "pth", "safetensors", partial::SUFFIX, JOURNAL];
/// More files besides the shards than any model's directory has.
const MOST_FILES: usize = 10_000;

/// Statistics of packing or unpacking. Sizes are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PackReport {
    /// Files of weights.
    pub files: usize,
    /// Their bytes as safetensors.
    pub original_bytes: u64,
    /// Their bytes packed.
    pub packed_bytes: u64,
    /// The part of `original_bytes` that is packed in 12 bits a value.
    pub lossless_bytes: u64,
    /// Files and folders of the model's directory that were not copied. Empty for a single file of weights.
    pub left_out: Vec<String>,
}

impl PackReport {
    fn add(&mut self, file: Packed) {
        self.files += 1;
        self.original_bytes += file.original;
        self.packed_bytes += file.packed;
        self.lossless_bytes += file.lossless;
    }
}

/// Packs the safetensors files of a model into the directory `out`, and copies the other files; of those beside a single
/// file of weights only the [small files](SMALL_FILES). An interrupted run resumes. `progress` gets the bytes done and
/// in all.
///
/// # Errors
/// A model that is not a directory with safetensors files, or cannot be read. An `out` that is the model's own
/// directory, or has other files of the same names, or cannot be written.
///
/// # Panics
/// If a row does not decode to its original: a bug of the encoder.
pub fn pack(
    location: &Location,
    out: &Path,
    threads: usize,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<PackReport> {
    let (directory, weights) = match location {
        Location::Directory(path) if path.join("config.json").exists() => (path.as_path(), path),
        Location::Safetensors(path) => (path.parent().unwrap_or(Path::new("")), path),
        Location::Directory(path) | Location::Gguf(path) => {
            return Err(unpackable(format!("packing {}", path.display())));
        }
        Location::Synthetic(name) => return Err(unpackable(format!("packing synthetic:{name}"))),
        Location::Stored { folder, .. } => {
            return Err(unpackable(format!("packing {}", folder.display())));
        }
    };
    let shards: Vec<PathBuf> = SafetensorsDir::open(weights)?.files().map(Path::to_owned).collect();
    if let Some(packed) = shards.iter().find(|path| is_packed(path)) {
        return Err(Error::Unsupported {
            what: format!("packing {}, which is packed,", packed.display()),
            remedy: "djinn unpack gives its safetensors file back".to_owned(),
        });
    }
    make(directory, out)?;
    let left_out = match location {
        Location::Safetensors(_) => copy_small(directory, out).map(|()| Vec::new()),
        _ => copy_others(directory, out, &shards),
    }?;
    let mut report = PackReport { left_out, ..PackReport::default() };
    let mut tick = ticks(&shards, progress)?;
    for shard in &shards {
        let name = shard.file_name().expect("an open file has a name");
        report.add(write::pack(shard, &with_extension(&out.join(name)), threads, &mut tick)?);
    }
    Ok(report)
}

/// Restores the safetensors files of a packed directory in `out`, bitwise as before, and copies the other files.
/// `progress` gets the bytes done and in all.
///
/// # Errors
/// A `directory` without packed files, or with a corrupt or incomplete one, or without one that its index names. An
/// `out` that is the same directory, or has other files of the same names, or cannot be written.
pub fn unpack(
    directory: &Path,
    out: &Path,
    threads: usize,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<PackReport> {
    let entries = entries(directory)?;
    if let Some(path) = entries.iter().find(|path| is_incomplete(path)) {
        return Err(Error::Unsupported {
            what: format!("unpacking {}, which is not complete,", path.display()),
            remedy: "djinn pack with the same arguments completes it".to_owned(),
        });
    }
    let packed: Vec<PathBuf> = entries.into_iter().filter(|path| is_packed(path)).collect();
    if packed.is_empty() {
        return Err(Error::NotAModel {
            place: directory.display().to_string(),
            detail: format!("it has no .{EXTENSION} file"),
        });
    }
    if find(&directory.join(SINGLE_FILE)).is_some() || directory.join(INDEX_FILE).exists() {
        // Refuses an index with a shard that is not there.
        SafetensorsDir::open(directory)?;
    }
    make(directory, out)?;
    let left_out = copy_others(directory, out, &packed)?;
    let mut report = PackReport { left_out, ..PackReport::default() };
    let inputs: Vec<u64> =
        packed.iter().map(|path| Ok(super::open(path)?.source.len())).collect::<Result<_>>()?;
    let total = inputs.iter().sum();
    let mut done = 0;
    let mut tick = |bytes| {
        done += bytes;
        progress(done, total);
    };
    for path in &packed {
        let name = path.file_stem().expect("an open file has a name");
        report.add(write::unpack(path, &out.join(name), threads, &mut tick)?);
    }
    Ok(report)
}

/// Adds up bytes for `progress`.
fn ticks<'a>(shards: &[PathBuf], progress: &'a mut dyn FnMut(u64, u64)) -> Result<impl FnMut(u64) + 'a> {
    let lengths = shards.iter().map(|path| Ok(fs::metadata(path).map_err(io(path))?.len()));
    let total = lengths.sum::<Result<u64>>()?;
    let mut done = 0;
    Ok(move |bytes| {
        done += bytes;
        progress(done, total);
    })
}

fn unpackable(what: String) -> Error {
    let remedy = "a directory in Hugging Face's layout with safetensors files can be packed".to_owned();
    Error::Unsupported { what, remedy }
}

fn is_packed(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == EXTENSION)
}

/// Whether the file is a packed one that was not finished.
fn is_incomplete(path: &Path) -> bool {
    let whole = path.with_extension("");
    path.extension().is_some_and(|e| e == partial::SUFFIX) && is_packed(&whole) && !whole.exists()
}

/// Makes the directory `out`, and refuses the model's own.
fn make(directory: &Path, out: &Path) -> Result<()> {
    let from = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    fs::create_dir_all(out).map_err(io(out))?;
    if from.canonicalize().map_err(io(from))? == out.canonicalize().map_err(io(out))? {
        return Err(Error::Unsupported {
            what: format!("writing to {}, where the model is,", out.display()),
            remedy: "choose another directory".to_owned(),
        });
    }
    Ok(())
}

/// Copies the files that a model is opened from.
fn copy_small(directory: &Path, out: &Path) -> Result<()> {
    let there = SMALL_FILES.iter().map(|name| (directory.join(name), out.join(name)));
    there.filter(|(from, _)| from.is_file()).try_for_each(|(from, to)| copy(&from, &to))
}

/// Copies the files beside the weights. Returns the names of those that are not copied.
fn copy_others(directory: &Path, out: &Path, weights: &[PathBuf]) -> Result<Vec<String>> {
    let mut left_out = Vec::new();
    let (mut paths, templates) = (entries(directory)?, directory.join(TEMPLATES));
    if templates.is_dir() {
        paths.retain(|path| *path != templates);
        paths.extend(entries(&templates)?);
    }
    for path in paths {
        let name = path.strip_prefix(directory).expect("an entry is in its directory");
        if weights.iter().any(|weight| weight.file_name() == Some(name.as_os_str())) {
            continue;
        }
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        if !path.is_file() || is_packed(&path) || NOT_COPIED.contains(&extension) {
            left_out.push(name.to_string_lossy().into_owned());
        } else {
            copy(&path, &out.join(name))?;
        }
    }
    Ok(left_out)
}

/// The entries of a directory whose names do not begin with a dot, sorted by name.
fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory).map_err(io(directory))? {
        let entry = entry.map_err(io(directory))?;
        if !entry.file_name().to_string_lossy().starts_with('.') {
            paths.push(entry.path());
        }
        if paths.len() > MOST_FILES {
            let detail = format!("it has more than {MOST_FILES} entries");
            return Err(Error::NotAModel { place: directory.display().to_string(), detail });
        }
    }
    paths.sort();
    Ok(paths)
}

/// Copies a file atomically, unless the same bytes are there. Makes the folder that it is in.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let folder = to.parent().unwrap_or(to);
    fs::create_dir_all(folder).map_err(io(folder))?;
    let Some(partial) = Partial::open(to)? else {
        return match hash(from)? == hash(to)? {
            true => Ok(()),
            false => Err(Error::Malformed {
                path: to.to_owned(),
                detail: "is another file than the model's; choose an empty directory".to_owned(),
            }),
        };
    };
    partial.copy(from)?;
    partial.finish()
}

fn hash(path: &Path) -> Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    let file = regular::open(path)?;
    hasher.update_reader(file).map_err(io(path))?;
    Ok(hasher.finalize())
}

fn io(path: &Path) -> impl Fn(std::io::Error) -> Error + '_ {
    |source| Error::Io { path: path.to_owned(), source }
}
