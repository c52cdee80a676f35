//! Models of a content store: each file is a list of pieces, and a piece is stored under the hash of its bytes.
//!
//! A [`ModelManifest`] lists a model's files and their pieces. Files of tensors are cut at their tensors, so two
//! models with equal tensors have equal pieces, which a store keeps once. A model with its pieces in a folder opens
//! like any other ([`Location::Stored`](crate::Location::Stored)): its files are read from their pieces, and never
//! written as files.

mod cut;
mod hash;
mod manifest;
mod source;

pub use cut::{LocalModel, PiecePlace};
pub use hash::ContentHash;
pub use manifest::{ContentPiece, ManifestFile, ModelManifest, PieceTensor};

use crate::file::{self, Input};
use crate::gguf::Gguf;
use crate::open::{self, JsonKeys};
use crate::safetensors::SafetensorsDir;
use crate::{Error, Model, OpenOptions, Result, TensorFile, packed};
use source::PiecesSource;
use std::path::{Path, PathBuf};

/// The name of the manifest in a model's folder.
pub const MANIFEST_FILE: &str = "manifest.json";
/// The longest name of a model in a store, in bytes.
pub const LONGEST_NAME: usize = 128;
/// The code of a server's refusal of a name that another model has.
pub const NAME_TAKEN: &str = "model_exists";
/// The header for a piece's next byte. Headers of uploads are those of the IETF's draft of resumable uploads.
pub const OFFSET_HEADER: &str = "upload-offset";
/// The header for whether a piece is complete.
pub const COMPLETE_HEADER: &str = "upload-complete";
/// The header for a piece's bytes in all.
pub const LENGTH_HEADER: &str = "upload-length";
/// Far above any manifest: a hundred thousand pieces take less.
const MAX_MANIFEST_BYTES: u64 = 64 << 20;

/// The path of a piece in a store's folder `blobs`.
pub fn blob_path(blobs: &Path, hash: &ContentHash) -> PathBuf {
    let name = hash.to_string();
    blobs.join(&name[..2]).join(name)
}

/// Reads the manifest in a model's folder.
///
/// # Errors
/// It cannot be read, or is [invalid](ModelManifest::check).
pub fn read_manifest(folder: &Path) -> Result<ModelManifest> {
    let path = folder.join(MANIFEST_FILE);
    let bytes = file::read_bounded(&path, MAX_MANIFEST_BYTES)?;
    let malformed = |detail| Error::Malformed { path: path.clone(), detail };
    let manifest: ModelManifest =
        serde_json::from_slice(&bytes).map_err(|error| malformed(error.to_string()))?;
    manifest.check().map_err(malformed)?;
    Ok(manifest)
}

/// Opens the model whose manifest and small files are in `folder`, and whose pieces are in `blobs`.
pub(crate) fn open(folder: &Path, blobs: &Path, name: &str, options: &OpenOptions) -> Result<Model> {
    let manifest = read_manifest(folder)?;
    let input = |file: &ManifestFile| {
        let source = PiecesSource::open(blobs, &file.pieces)?;
        Ok(Input { path: folder.join(&file.path), source: Box::new(source) })
    };
    if let Some(file) = manifest.files.iter().find(|file| file.is_gguf()) {
        let gguf = Gguf::parse(input(file)?)?;
        check_tensors(file, &gguf)?;
        return open::of_gguf(gguf, name.to_owned(), options);
    }
    let files = || manifest.files.iter().filter(|file| file.has_tensors());
    let inputs: Result<Vec<Input>> = files()
        .map(|file| if file.is_packed() { packed::unpacked(input(file)?) } else { input(file) })
        .collect();
    let tensors = SafetensorsDir::from_inputs(inputs?)?;
    files().try_for_each(|file| check_tensors(file, &tensors))?;
    let keys = JsonKeys::open(&folder.join("config.json"))?;
    open::of_safetensors(folder, keys, tensors, name.to_owned(), options)
}

/// Compares the manifest's tensors with those in the files.
fn check_tensors(file: &ManifestFile, tensors: &dyn TensorFile) -> Result<()> {
    for told in file.pieces.iter().filter_map(|piece| piece.tensor.as_ref()) {
        let found = tensors.tensor(&told.name);
        if !found.is_some_and(|info| info.shape == told.shape && info.stored.name() == told.dtype) {
            let detail = format!("the manifest's tensor {} is another one in the file", told.name);
            return Err(Error::Malformed { path: PathBuf::from(&file.path), detail });
        }
    }
    Ok(())
}
