//! The cache's folders and its lock. Cached models are trusted, so only the user may write there.

#[cfg(all(test, unix))]
mod tests;

use anyhow::{Context, Result, bail};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::ErrorKind;
use std::path::Path;

/// Refuses a folder that another user owns or may write to. A missing folder is fine. `shared` allows a folder like
/// `/tmp`, in which all may create files and each may change only their own.
pub(super) fn check(folder: &Path, shared: bool) -> Result<()> {
    let meta = match fs::metadata(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        meta => meta.with_context(|| folder.display().to_string())?,
    };
    let place = folder.display();
    let Some((owner, user, mode)) = owner_and_mode(&meta) else { return Ok(()) };
    match objection(owner, user, mode, shared) {
        None => Ok(()),
        Some(Objection::Owner(uid)) => bail!(
            "{place} belongs to another user (uid {uid}), who could change the models in it; set DJINN_CACHE to a \
             folder of your own"
        ),
        Some(Objection::Mode(mode)) => bail!(
            "others may write to {place} (mode {mode:o}) and change the models in it; run `chmod -R go-w {place}`, \
             or set DJINN_CACHE to a folder of your own"
        ),
    }
}

/// Why a folder is not private.
#[derive(Debug, PartialEq, Eq)]
enum Objection {
    Owner(u32),
    Mode(u32),
}

/// The folder's owner, this process's user, and the folder's mode, if the system has them.
#[cfg(unix)]
fn owner_and_mode(meta: &Metadata) -> Option<(u32, u32, u32)> {
    use std::os::unix::fs::MetadataExt;
    Some((meta.uid(), rustix::process::geteuid().as_raw(), meta.mode() & 0o7777))
}

#[cfg(not(unix))]
fn owner_and_mode(_: &Metadata) -> Option<(u32, u32, u32)> {
    None
}

fn objection(owner: u32, user: u32, mode: u32, shared: bool) -> Option<Objection> {
    const STICKY: u32 = 0o1000;
    // The administrator could change anything anyway.
    if owner != 0 && owner != user {
        return Some(Objection::Owner(owner));
    }
    (mode & 0o022 != 0 && !(shared && mode & STICKY != 0)).then_some(Objection::Mode(mode))
}

/// Opens or creates the cache's lock file. A link is not followed, and the contents do not change.
pub(super) fn open_lock(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600).custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    }
    let regular = |file: &File| file.metadata().is_ok_and(|meta| meta.is_file());
    let what = || format!("{} cannot be the cache's lock; remove it", path.display());
    let file = options.open(path).with_context(what)?;
    if !regular(&file) {
        bail!("{}: it is no regular file", what());
    }
    Ok(file)
}
