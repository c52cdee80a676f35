//! The folder of an unfinished pull. Its name marks it, and it is removed when the pull ends: by the pull, by Ctrl-C
//! through [`abandon`], or, if the process was killed, by the next [`sweep`].

use crate::own;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::ChildStdin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The prefix of folders that are not models.
const PREFIX: &str = ".partial-";
/// A removal is repeated while a process that has just ended still writes.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// This process's folders, each with the pipe on which its child process depends.
static OPEN: Mutex<BTreeMap<PathBuf, Option<ChildStdin>>> = Mutex::new(BTreeMap::new());

fn open() -> MutexGuard<'static, BTreeMap<PathBuf, Option<ChildStdin>>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A private folder that is removed when this is dropped.
#[derive(Debug)]
pub(super) struct Partial {
    path: PathBuf,
}

impl Partial {
    /// A new folder in `models`. Its path is absolute.
    pub(super) fn new(models: &Path) -> Result<Self> {
        let models = models.canonicalize().with_context(|| models.display().to_string())?;
        let path = models.join(format!("{PREFIX}{}", std::process::id()));
        let mut open = open();
        let free = (0..).map(|n| path.with_extension(n.to_string())).find(|path| !path.exists());
        let path = free.context("no name is left for a folder")?;
        own::create(&path)?;
        open.insert(path.clone(), None);
        Ok(Partial { path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the child process that depends on this pipe end when the folder is abandoned.
    pub(super) fn ties(&self, child: Option<ChildStdin>) {
        open().insert(self.path.clone(), child);
    }

    /// Moves `from`, in this folder, to `to`. What was there is removed with this folder.
    pub(super) fn exchange(&self, from: &str, to: &Path) -> Result<()> {
        let _open = open();
        let of = || to.display().to_string();
        if fs::symlink_metadata(to).is_ok() {
            fs::rename(to, self.path.join("replaced")).with_context(of)?;
        }
        fs::rename(self.path.join(from), to).with_context(of)
    }

    /// Removes the folder, and reports a failure.
    pub(super) fn close(self) -> Result<()> {
        remove(&self.path).with_context(|| format!("removing {}", self.path.display()))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        open().remove(&self.path);
        // A folder that cannot be removed now is left to the next sweep.
        let _ = remove(&self.path);
    }
}

/// Removes this process's folders. Returns whether there were any; then no pull continues, and the process has to end.
pub(crate) fn abandon() -> bool {
    let mut open = open();
    if open.is_empty() {
        return false;
    }
    open.values_mut().for_each(|child| drop(child.take()));
    // Time for the children to end.
    std::thread::sleep(5 * PAUSE);
    for path in open.keys() {
        let _ = remove(path);
    }
    // Other pulls block here until the process has ended, so none finishes a model or prints an error.
    std::mem::forget(open);
    true
}

/// Removes what killed pulls left in `models`. The caller holds the cache's lock, so nothing there is in use.
pub(super) fn sweep(models: &Path) -> Result<()> {
    let of = || models.display().to_string();
    for entry in fs::read_dir(models).with_context(of)? {
        let entry = entry.with_context(of)?;
        if entry.file_name().to_string_lossy().starts_with(PREFIX) {
            let path = entry.path();
            match remove(&path) {
                // Something still writes there; a later sweep removes it.
                Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {}
                removed => removed.with_context(|| format!("removing {}", path.display()))?,
            }
        }
    }
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    let mut tries = 0..TRIES;
    loop {
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty && tries.next().is_some() => {
                std::thread::sleep(PAUSE);
            }
            removed => return removed,
        }
    }
}
