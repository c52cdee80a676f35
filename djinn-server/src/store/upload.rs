//! A piece that arrives.

use super::{ModelStore, of_disk};
use crate::ApiError;
use axum::http::StatusCode;
use djinn_models::stored::ContentHash;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::sync::Arc;

/// Bytes that are read and hashed at a time.
const RUN: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    pub(crate) bytes: u64,
    pub(crate) have: u64,
}

impl Arrived {
    pub(crate) fn is_whole(self) -> bool {
        self.have == self.bytes
    }
}

/// The single writer of a piece.
pub(crate) struct Upload {
    store: Arc<ModelStore>,
    hash: ContentHash,
    file: File,
    hasher: blake3::Hasher,
    arrived: Arrived,
}

impl ModelStore {
    /// The progress of a piece that a manifest names.
    ///
    /// # Errors
    /// 404 for any other.
    pub(crate) fn arrived(&self, hash: &ContentHash) -> Result<Arrived, ApiError> {
        let bytes = self.books().wanted(hash).ok_or_else(|| not_wanted(hash))?;
        let have = if self.folders.has(hash) { bytes } else { self.folders.arrived(hash).min(bytes) };
        Ok(Arrived { bytes, have })
    }

    /// Begins to write a piece from `offset` on, which must be the number of bytes so far.
    ///
    /// # Errors
    /// 404 for a piece that no manifest names, 409 if another request writes it or the offset differs.
    pub(crate) fn begin(self: &Arc<Self>, hash: ContentHash, offset: u64) -> Result<Upload, ApiError> {
        let bytes = {
            let mut books = self.books();
            let bytes = books.wanted(&hash).ok_or_else(|| not_wanted(&hash))?;
            if self.folders.has(&hash) {
                return Err(ApiError::conflict("the piece is there", "piece_exists"));
            }
            if !books.writing.insert(hash) {
                return Err(ApiError::conflict("another request sends this piece", "piece_busy"));
            }
            bytes
        };
        let open = || {
            let mut options = File::options();
            options.read(true).append(true).create(true).open(self.folders.partial(&hash))
        };
        let opened = open();
        let file = opened.map_err(|error| {
            self.books().writing.remove(&hash);
            of_disk(error)
        })?;
        let arrived = Arrived { bytes, have: 0 };
        let mut upload =
            Upload { store: Arc::clone(self), hash, file, hasher: blake3::Hasher::new(), arrived };
        upload.go_on_at(offset)?;
        Ok(upload)
    }
}

impl Upload {
    fn go_on_at(&mut self, offset: u64) -> Result<(), ApiError> {
        let have = self.file.metadata().map_err(of_disk)?.len();
        if have != offset {
            let message = format!("{have} bytes of this piece have come; go on there, not at {offset}");
            return Err(ApiError::conflict(message, "offset_mismatch"));
        }
        let mut buffer = vec![0; usize::try_from(have).unwrap_or(RUN).min(RUN)];
        while self.arrived.have < have {
            let read = self.file.read(&mut buffer).map_err(of_disk)?;
            if read == 0 {
                return Err(ApiError::conflict(
                    "the piece was changed on the disk".to_owned(),
                    "offset_mismatch",
                ));
            }
            self.hasher.update(&buffer[..read]);
            self.arrived.have += read as u64;
        }
        Ok(())
    }

    /// Writes bytes that have come.
    ///
    /// # Errors
    /// 400 for more than the piece has, 507 where the disk is full; what was written stays.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), ApiError> {
        if bytes.len() as u64 > self.arrived.bytes - self.arrived.have {
            return Err(ApiError::invalid(format!(
                "the piece has {} bytes, and more came",
                self.arrived.bytes
            )));
        }
        self.file.write_all(bytes).map_err(of_disk)?;
        self.hasher.update(bytes);
        self.arrived.have += bytes.len() as u64;
        self.store.counts.received.add(bytes.len() as u64);
        Ok(())
    }

    /// Puts a complete piece in its place. Returns the progress.
    ///
    /// # Errors
    /// 422 for a wrong hash; its bytes are then dropped.
    pub(crate) fn finish(self) -> Result<Arrived, ApiError> {
        if !self.arrived.is_whole() {
            return Ok(self.arrived);
        }
        let found = ContentHash::from(self.hasher.finalize());
        if found != self.hash {
            self.store.counts.changed.add(1);
            fs::remove_file(self.store.folders.partial(&self.hash)).map_err(of_disk)?;
            let message = format!("the bytes have the hash {found}; they were changed, send them again");
            let error = ApiError::refused(StatusCode::UNPROCESSABLE_ENTITY, message);
            return Err(ApiError { code: Some("hash_mismatch"), ..error });
        }
        self.store.folders.keep(&self.hash, &self.file).map_err(of_disk)?;
        self.store.counts.kept.add(1);
        Ok(self.arrived)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let mut books = self.store.books();
        books.writing.remove(&self.hash);
        // Its manifest may be gone meanwhile.
        if books.wanted(&self.hash).is_none() {
            let folders = &self.store.folders;
            let _ = fs::remove_file(folders.partial(&self.hash));
            let _ = fs::remove_file(folders.blob(&self.hash));
        }
    }
}

fn not_wanted(hash: &ContentHash) -> ApiError {
    let message = format!("no manifest names the piece {hash}; register one first");
    ApiError::refused(StatusCode::NOT_FOUND, message)
}
