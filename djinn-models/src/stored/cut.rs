//! Cuts a model's files into pieces, and hashes them.

use super::{ContentHash, ContentPiece, ManifestFile, ModelManifest, PieceTensor};
use crate::file::{Input, Stored};
use crate::gguf::Gguf;
use crate::open::gguf_files;
use crate::safetensors::{SafetensorsDir, tensors_of};
use crate::{Error, Location, Result, SMALL_FILES};
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

/// Bytes read and hashed at a time.
const RUN: usize = 1 << 20;
/// How often progress is reported.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// A model on this machine, cut into pieces.
#[derive(Clone, Debug)]
pub struct LocalModel {
    /// Its files and pieces.
    pub manifest: ModelManifest,
    /// Where each piece can be read.
    pub places: HashMap<ContentHash, PiecePlace>,
}

/// A run of bytes of a file on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PiecePlace {
    /// The file.
    pub path: PathBuf,
    /// The bytes.
    pub range: Range<u64>,
}

/// A run of a file, without its hash.
struct Cut {
    range: Range<u64>,
    tensor: Option<PieceTensor>,
}

impl LocalModel {
    /// Cuts the files of the model at `location`, and hashes all pieces on `threads` threads. `progress` gets the
    /// bytes hashed and in all.
    ///
    /// # Errors
    /// A file that cannot be read or is malformed; a synthetic model, which has no files.
    pub fn of(location: &Location, threads: usize, progress: &mut dyn FnMut(u64, u64)) -> Result<LocalModel> {
        let mut files = Vec::new();
        let mut names = Vec::new();
        for (name, path) in files_of(location)? {
            let cuts = cuts(&path)?;
            names.push(name);
            files.push((path, cuts));
        }
        let hashes = hash(&files, threads, progress)?;
        let mut model = LocalModel { manifest: ModelManifest { files: Vec::new() }, places: HashMap::new() };
        let mut hashes = hashes.into_iter();
        for (name, (path, cuts)) in names.into_iter().zip(files) {
            let mut pieces = Vec::new();
            for (Cut { range, tensor }, hash) in cuts.into_iter().zip(&mut hashes) {
                pieces.push(ContentPiece { hash, bytes: range.end - range.start, tensor });
                model.places.entry(hash).or_insert_with(|| PiecePlace { path: path.clone(), range });
            }
            model.manifest.files.push(ManifestFile { path: name, pieces });
        }
        let malformed = |detail| Error::Unsupported {
            what: "sending this model".to_owned(),
            remedy: format!("its files do not fit a manifest: {detail}"),
        };
        model.manifest.check().map_err(malformed)?;
        Ok(model)
    }
}

/// The files that opening the model reads, by their names in a manifest.
fn files_of(location: &Location) -> Result<Vec<(String, PathBuf)>> {
    let named = |path: PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        (name, path)
    };
    let (folder, weights) = match location {
        Location::Gguf(path) => return Ok(vec![named(path.clone())]),
        Location::Directory(path) if !path.join("config.json").exists() => {
            return Ok(gguf_files(path)?.into_iter().map(named).collect());
        }
        Location::Directory(path) => (path.as_path(), path),
        Location::Safetensors(path) => (path.parent().unwrap_or(Path::new("")), path),
        Location::Synthetic(name) => {
            return Err(Error::Unsupported {
                what: format!("sending synthetic:{name}, which has no files,"),
                remedy: "a server opens it by this name".to_owned(),
            });
        }
        Location::Stored { folder, .. } => {
            return Err(Error::Unsupported {
                what: format!("sending {}", folder.display()),
                remedy: "it is in a store already".to_owned(),
            });
        }
    };
    let small = SMALL_FILES.iter().map(|name| ((*name).to_owned(), folder.join(name)));
    let small = small.filter(|(_, path)| path.exists());
    Ok(small.chain(SafetensorsDir::open(weights)?.files().map(|path| named(path.to_owned()))).collect())
}

/// The cuts of a file: a GGUF or safetensors file at its tensors, with everything before them as one piece.
fn cuts(path: &Path) -> Result<Vec<Cut>> {
    let input = Input::open(path)?;
    let len = input.source.len();
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let mut tensors = match extension.to_ascii_lowercase().as_str() {
        "safetensors" => tensors_of(&input)?,
        "gguf" => Gguf::parse(input)?.into_tensors(),
        // Bands of packed files are not tensors.
        _ => Vec::new(),
    };
    tensors.sort_by_key(|stored| stored.offset);
    let mut cuts = Vec::new();
    let mut open = Cut { range: 0..0, tensor: None };
    for Stored { info, offset } in tensors {
        if offset > open.range.start {
            open.range.end = offset;
            let tensor =
                PieceTensor { name: info.name, dtype: info.stored.name().to_owned(), shape: info.shape };
            let next = Cut { range: offset..offset, tensor: Some(tensor) };
            cuts.push(std::mem::replace(&mut open, next));
        }
    }
    open.range.end = len;
    cuts.extend((len > open.range.start).then_some(open));
    Ok(cuts)
}

/// The hashes of all cuts, in order.
fn hash(
    files: &[(PathBuf, Vec<Cut>)],
    threads: usize,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<ContentHash>> {
    let cuts: Vec<(&Path, &Range<u64>)> =
        files.iter().flat_map(|(path, cuts)| cuts.iter().map(|cut| (path.as_path(), &cut.range))).collect();
    let total = cuts.iter().map(|(_, range)| range.end - range.start).sum();
    let (next, done) = (AtomicUsize::new(0), AtomicU64::new(0));
    let hashes = Mutex::new(vec![None; cuts.len()]);
    let work = || -> Result<()> {
        let mut buffer = vec![0; RUN];
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some((path, range)) = cuts.get(index) else { return Ok(()) };
            let hash = hash_of(path, range, &mut buffer, &done);
            // The other threads can stop.
            let hash = hash.inspect_err(|_| next.store(cuts.len(), Ordering::Relaxed))?;
            hashes.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(hash);
        }
    };
    std::thread::scope(|scope| -> Result<()> {
        let (ended, ends) = mpsc::channel();
        for _ in 0..threads.clamp(1, cuts.len().max(1)) {
            let (work, ended) = (&work, ended.clone());
            scope.spawn(move || drop(ended.send(work())));
        }
        drop(ended);
        loop {
            match ends.recv_timeout(REPORT_EVERY) {
                Ok(worked) => worked?,
                Err(mpsc::RecvTimeoutError::Timeout) => progress(done.load(Ordering::Relaxed), total),
                Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    })?;
    progress(total, total);
    let hashes = hashes.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(hashes.into_iter().flatten().collect())
}

fn hash_of(path: &Path, range: &Range<u64>, buffer: &mut [u8], done: &AtomicU64) -> Result<ContentHash> {
    let input = Input::open(path)?;
    let (mut hasher, mut at) = (blake3::Hasher::new(), range.start);
    while at < range.end {
        let run = usize::try_from(range.end - at).unwrap_or(RUN).min(RUN);
        input.read(&mut buffer[..run], at, format_args!("bytes {range:?}"))?;
        hasher.update(&buffer[..run]);
        at += run as u64;
        done.fetch_add(run as u64, Ordering::Relaxed);
    }
    Ok(hasher.finalize().into())
}
