//! The folders of a store.

use super::name;
use djinn_models::stored::{ContentHash, blob_path};
use serde::Serialize;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The prefix of names of unfinished or removed files.
const UNFINISHED: &str = ".unfinished-";

#[derive(Debug)]
pub(super) struct Folders {
    root: PathBuf,
}

impl Folders {
    /// Creates missing folders.
    pub(super) fn make(root: &Path) -> io::Result<Self> {
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        for part in ["blobs", "partial", "registered", "models"] {
            builder.create(root.join(part))?;
        }
        Ok(Folders { root: root.canonicalize()? })
    }

    /// Locks out other processes; `None` if one has the lock.
    pub(super) fn lock(&self) -> io::Result<Option<File>> {
        let file = File::options().write(true).create(true).truncate(false).open(self.root.join("lock"))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    pub(super) fn blobs(&self) -> PathBuf {
        self.root.join("blobs")
    }

    pub(super) fn blob(&self, hash: &ContentHash) -> PathBuf {
        blob_path(&self.blobs(), hash)
    }

    pub(super) fn partial(&self, hash: &ContentHash) -> PathBuf {
        self.root.join("partial").join(hash.to_string())
    }

    pub(super) fn model(&self, name: &str) -> PathBuf {
        self.root.join("models").join(name::folder(name))
    }

    pub(super) fn has(&self, hash: &ContentHash) -> bool {
        self.blob(hash).exists()
    }

    /// Bytes of an incomplete piece.
    pub(super) fn arrived(&self, hash: &ContentHash) -> u64 {
        fs::metadata(self.partial(hash)).map_or(0, |metadata| metadata.len())
    }

    /// Free bytes of the disk, if known.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        #[cfg(unix)]
        return rustix::fs::statvfs(&self.root).ok().map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize));
        #[cfg(not(unix))]
        None
    }

    /// Puts a complete piece in its place.
    pub(super) fn keep(&self, hash: &ContentHash, file: &File) -> io::Result<()> {
        file.sync_all()?;
        let to = self.blob(hash);
        let folder = to.parent().unwrap_or(&self.root);
        fs::create_dir_all(folder)?;
        fs::rename(self.partial(hash), &to)?;
        sync(folder)?;
        sync(&self.blobs())
    }

    /// The folders of models. Unfinished ones are removed.
    pub(super) fn models(&self) -> io::Result<Vec<PathBuf>> {
        let mut models = Vec::new();
        for path in entries(&self.root.join("models"))? {
            match is_unfinished(&path) {
                true => fs::remove_dir_all(&path)?,
                false => models.push(path),
            }
        }
        Ok(models)
    }

    /// A new folder for a model that is being assembled.
    pub(super) fn unfinished_model(&self, id: &ContentHash) -> io::Result<PathBuf> {
        let path = self.root.join("models").join(format!("{UNFINISHED}{id}"));
        remove_if_there(&path)?;
        fs::create_dir(&path)?;
        Ok(path)
    }

    /// Makes an assembled model visible.
    ///
    /// # Errors
    /// The disk's; the model is then not visible.
    pub(super) fn finish_model(&self, unfinished: &Path, name: &str) -> io::Result<()> {
        sync(unfinished)?;
        let place = self.model(name);
        fs::rename(unfinished, &place)?;
        sync(&self.root.join("models")).inspect_err(|_| {
            let _ = fs::remove_dir_all(&place);
        })
    }

    pub(super) fn remove_model(&self, name: &str) -> io::Result<()> {
        let aside = self.root.join("models").join(format!("{UNFINISHED}{}", name::folder(name)));
        remove_if_there(&aside)?;
        fs::rename(self.model(name), &aside)?;
        sync(&self.root.join("models"))?;
        fs::remove_dir_all(aside)
    }

    fn registered_file(&self, id: &ContentHash) -> PathBuf {
        self.root.join("registered").join(format!("{id}.json"))
    }

    /// The manifests whose pieces are arriving. Unfinished ones are removed.
    pub(super) fn registered(&self) -> io::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for path in entries(&self.root.join("registered"))? {
            match is_unfinished(&path) {
                true => fs::remove_file(&path)?,
                false => files.push(path),
            }
        }
        Ok(files)
    }

    pub(super) fn write_registered(&self, id: &ContentHash, registration: &impl Serialize) -> io::Result<()> {
        let unfinished = self.root.join("registered").join(format!("{UNFINISHED}{id}"));
        let written = write_json(&unfinished, registration);
        written.and_then(|()| fs::rename(&unfinished, self.registered_file(id))).inspect_err(|_| {
            // A remaining file is removed at the next start.
            let _ = fs::remove_file(&unfinished);
        })?;
        sync(&self.root.join("registered"))
    }

    pub(super) fn remove_registered(&self, id: &ContentHash) -> io::Result<()> {
        match fs::remove_file(self.registered_file(id)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Removes all pieces that `keeps` rejects, and reports their bytes to `removed`.
    pub(super) fn retain(
        &self,
        keeps: impl Fn(&ContentHash) -> bool,
        removed: impl Fn(u64),
    ) -> io::Result<()> {
        let mut folders = entries(&self.blobs())?;
        folders.push(self.root.join("partial"));
        for folder in folders {
            for path in entries(&folder)? {
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                if name.parse().is_ok_and(|hash| !keeps(&hash)) {
                    let bytes = fs::metadata(&path).map_or(0, |metadata| metadata.len());
                    fs::remove_file(&path)?;
                    removed(bytes);
                }
            }
        }
        Ok(())
    }
}

/// Writes a new file to the disk.
pub(super) fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    file.sync_all()
}

fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
}

fn is_unfinished(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(UNFINISHED))
}

fn remove_if_there(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Syncs a folder's entries to the disk.
fn sync(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}
