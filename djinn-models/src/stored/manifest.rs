//! A model's files, each a list of pieces.

use super::ContentHash;
use crate::{SMALL_FILES, packed};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A small file has fewer bytes.
const MAX_SMALL_BYTES: u64 = 256 << 20;
const MAX_FILES: usize = 10_000;
const MAX_PIECES: usize = 1_000_000;
const MAX_NAME: usize = 200;

/// The files of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelManifest {
    /// In any order, each name once.
    pub files: Vec<ManifestFile>,
}

/// A file of a model: the bytes of its pieces, one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestFile {
    /// Its name in the model's folder, with a slash between a folder in that and the file.
    pub path: String,
    /// In the order of the file.
    pub pieces: Vec<ContentPiece>,
}

/// A run of a file's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentPiece {
    /// The hash of the bytes.
    pub hash: ContentHash,
    /// The number of bytes, at least 1.
    pub bytes: u64,
    /// The tensor that the bytes are, if they are one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tensor: Option<PieceTensor>,
}

/// A tensor as its file's header describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PieceTensor {
    /// Its name in the file.
    pub name: String,
    /// Its type in the file format's spelling, such as `BF16` or `Q4_K`.
    pub dtype: String,
    /// Row-major, outermost dimension first.
    pub shape: Vec<u64>,
}

impl ManifestFile {
    /// Whether it holds tensors.
    pub fn has_tensors(&self) -> bool {
        self.is_gguf() || self.is_packed() || self.has_extension("safetensors")
    }

    pub(super) fn is_gguf(&self) -> bool {
        self.has_extension("gguf")
    }

    fn has_extension(&self, extension: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|own| own.eq_ignore_ascii_case(extension))
    }

    pub(super) fn is_packed(&self) -> bool {
        self.path.strip_suffix(packed::EXTENSION).is_some_and(|name| name.ends_with(".safetensors."))
    }

    /// Bytes of the file; `None` if the number does not fit.
    pub fn bytes(&self) -> Option<u64> {
        self.pieces.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.bytes))
    }
}

impl ModelManifest {
    /// Checks that it describes a model: one GGUF file, or `config.json` with safetensors files, packed or not, and
    /// otherwise only [small files](SMALL_FILES). Names of files with tensors have no slash.
    ///
    /// # Errors
    /// One line that says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        let pieces: usize = self.files.iter().map(|file| file.pieces.len()).sum();
        if self.files.len() > MAX_FILES || pieces > MAX_PIECES {
            return Err(format!("a model has at most {MAX_FILES} files and {MAX_PIECES} pieces"));
        }
        let mut names = BTreeSet::new();
        for file in &self.files {
            check_file(file)?;
            if !names.insert(file.path.as_str()) {
                return Err(format!("two files are called {}", file.path));
            }
        }
        let gguf = self.files.iter().filter(|file| file.is_gguf()).count();
        let tensors = self.files.iter().filter(|file| file.has_tensors()).count();
        match (gguf, tensors) {
            (1, 1) => Ok(()),
            (0, 1..) if names.contains("config.json") => self.sizes().map(drop),
            _ => Err("a model is one GGUF file, or config.json with files of safetensors".to_owned()),
        }
    }

    /// Every distinct piece, with its bytes.
    ///
    /// # Errors
    /// A hash with two sizes, or a sum that overflows.
    pub fn sizes(&self) -> Result<BTreeMap<ContentHash, u64>, String> {
        let mut sizes = BTreeMap::new();
        for piece in self.files.iter().flat_map(|file| &file.pieces) {
            if *sizes.entry(piece.hash).or_insert(piece.bytes) != piece.bytes {
                return Err(format!("the piece {} has two sizes", piece.hash));
            }
        }
        let sum = sizes.values().try_fold(0u64, |sum: u64, &bytes| sum.checked_add(bytes));
        sum.map(|_| sizes).ok_or_else(|| "the model's bytes are no number that fits".to_owned())
    }
}

fn check_file(file: &ManifestFile) -> Result<(), String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-+".contains(&b);
    let path = &file.path;
    let is_small = SMALL_FILES.contains(&path.as_str());
    if !is_small
        && (path.is_empty() || path.len() > MAX_NAME || path.starts_with('.') || !path.bytes().all(plain))
    {
        return Err(format!(
            "a file's name has up to {MAX_NAME} letters, digits and ._-+, and begins with no dot; {path:?} is another"
        ));
    }
    if file.pieces.is_empty() || file.pieces.iter().any(|piece| piece.bytes == 0) {
        return Err(format!("{path} has no bytes, or a piece without bytes"));
    }
    let bytes = file.bytes().ok_or_else(|| format!("the bytes of {path} are no number that fits"))?;
    if file.has_tensors() {
        return Ok(());
    }
    match is_small {
        false => Err(format!("{path} is no file that a model is opened from")),
        true if bytes > MAX_SMALL_BYTES => Err(format!("{path} is longer than {MAX_SMALL_BYTES} bytes")),
        true if file.pieces.len() > 1 => Err(format!("{path} is small and has more than one piece")),
        true => Ok(()),
    }
}
