//! A file that gets its name when it is complete. Until then one process writes it, under another name.

use super::suffixed;
use crate::file::regular;
use crate::{Error, Result};
use std::fs::{self, File, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The suffix of an incomplete file's name.
pub(super) const SUFFIX: &str = "partial";

/// An incomplete file, locked.
pub(super) struct Partial {
    file: File,
    path: PathBuf,
    to: PathBuf,
}

impl Partial {
    /// Opens the incomplete form of `to`, with what an earlier attempt left in it. `None` if `to` exists.
    ///
    /// # Errors
    /// A file that cannot be opened, or that another process writes.
    pub(super) fn open(to: &Path) -> Result<Option<Partial>> {
        if to.exists() {
            return Ok(None);
        }
        let path = suffixed(to, SUFFIX);
        let file = regular::open_to_write(&path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Malformed { path, detail: "another process is writing it".to_owned() });
            }
            Err(TryLockError::Error(source)) => return Err(Error::Io { path, source }),
        }
        // Before the lock, another process may have completed it, and this file may be the complete one.
        if to.exists() {
            remove(&path)?;
            return Ok(None);
        }
        Ok(Some(Partial { file, path, to: to.to_owned() }))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn set_len(&self, bytes: u64) -> Result<()> {
        self.file.set_len(bytes).map_err(|source| self.io(source))
    }

    pub(super) fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let written = self.file.seek(SeekFrom::Start(offset)).and_then(|_| self.file.write_all(bytes));
        written.map_err(|source| self.io(source))
    }

    /// Makes it a copy of a file, with its permissions.
    pub(super) fn copy(&self, from: &Path) -> Result<()> {
        let read = |source| Error::Io { path: from.to_owned(), source };
        let mut original = File::open(from).map_err(read)?;
        let permissions = original.metadata().map_err(read)?.permissions();
        self.set_len(0)?;
        let copied =
            io::copy(&mut original, &mut &self.file).and_then(|_| self.file.set_permissions(permissions));
        copied.map_err(|source| self.io(source))
    }

    /// Writes the file to the disk, and gives it its name.
    pub(super) fn finish(self) -> Result<()> {
        // The lock ends after the change of the name.
        let finished = self.file.sync_all().and_then(|()| fs::rename(&self.path, &self.to));
        finished.map_err(|source| self.io(source))
    }

    fn io(&self, source: io::Error) -> Error {
        Error::Io { path: self.path.clone(), source }
    }
}

/// Removes a file, if it exists.
pub(super) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(Error::Io { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}
