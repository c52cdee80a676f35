//! Reads a file from its pieces.

use super::{ContentPiece, blob_path};
use crate::file::{Input, Source};
use crate::{Error, Result};
use std::io;
use std::path::{Path, PathBuf};

/// Pieces in a row. A blob is opened for each read, since a model has more of them than a process may have open files.
pub(super) struct PiecesSource {
    /// The offset of each piece in the file, and its blob.
    pieces: Vec<(u64, PathBuf)>,
    len: u64,
}

impl PiecesSource {
    /// Checks that every piece exists with its length.
    pub(super) fn open(blobs: &Path, pieces: &[ContentPiece]) -> Result<Self> {
        let (mut starts, mut len) = (Vec::with_capacity(pieces.len()), 0u64);
        for piece in pieces {
            let path = blob_path(blobs, &piece.hash);
            let io_error = |source| Error::Io { path: path.clone(), source };
            let found = std::fs::metadata(&path).map_err(io_error)?.len();
            let sum = len.checked_add(piece.bytes).filter(|_| found == piece.bytes);
            let Some(end) = sum else {
                let detail = format!("has {found} bytes, the manifest says {}", piece.bytes);
                return Err(Error::Malformed { path, detail });
            };
            starts.push((len, path));
            len = end;
        }
        Ok(PiecesSource { pieces: starts, len })
    }
}

impl Source for PiecesSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, mut out: &mut [u8], mut offset: u64) -> io::Result<()> {
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut piece = self.pieces.partition_point(|(start, _)| *start <= offset).saturating_sub(1);
        while !out.is_empty() {
            let (start, path) = &self.pieces[piece];
            let end = self.pieces.get(piece + 1).map_or(self.len, |(next, _)| *next);
            let here = usize::try_from(end - offset).unwrap_or(usize::MAX).min(out.len());
            let (part, rest) = out.split_at_mut(here);
            let blob = Input::open(path).map_err(|error| match error {
                Error::Io { source, .. } => source,
                other => io::Error::new(io::ErrorKind::InvalidData, other.to_string()),
            })?;
            blob.source.read_exact_at(part, offset - start)?;
            (out, offset, piece) = (rest, end, piece + 1);
        }
        Ok(())
    }
}
