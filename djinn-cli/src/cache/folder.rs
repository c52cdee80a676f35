//! The cache's folders and its lock. Models are trusted as they lie there, so only the user may write to them.

use anyhow::{Context, Result, bail};
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::ErrorKind;
use std::path::Path;

/// Makes a folder that is the user's alone, with those above it that are missing.
pub(super) fn create(folder: &Path) -> Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder).with_context(|| folder.display().to_string())
}

/// Refuses a folder that another user owns or may write to; one that does not exist is fine. `shared` allows a
/// folder like `/tmp`, in which all may create files and each may change only their own.
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

/// The folder's owner, this process's user, and the folder's mode, where there are such.
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

/// Opens the cache's lock file, which need not exist. A link is not followed, and what the file holds is left.
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

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn folders_that_others_may_write_to_are_refused() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("a/b");
        check(&folder, false).unwrap();
        create(&folder).unwrap();
        for made in [&folder, &place.path().join("a")] {
            assert_eq!(fs::metadata(made).unwrap().permissions().mode() & 0o7777, 0o700);
        }
        for (mode, shared, fine) in [
            (0o755, false, true),
            (0o775, false, false),
            (0o775, true, false),
            (0o757, false, false),
            (0o1777, false, false),
            (0o1777, true, true),
        ] {
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
            let checked = check(&folder, shared);
            assert_eq!(checked.is_ok(), fine, "{mode:o} {shared}: {checked:?}");
            let remedy = format!("chmod -R go-w {}", folder.display());
            assert!(fine || checked.unwrap_err().to_string().contains(&remedy));
        }
    }

    #[test]
    fn folders_of_other_users_are_refused() {
        assert_eq!(objection(1000, 1000, 0o700, false), None);
        assert_eq!(objection(0, 1000, 0o755, false), None);
        for (owner, user) in [(1001, 1000), (1000, 0)] {
            assert_eq!(objection(owner, user, 0o700, true), Some(Objection::Owner(owner)));
        }
    }

    #[test]
    fn the_lock_follows_no_link_and_keeps_what_it_finds() {
        let place = tempfile::tempdir().unwrap();
        let (lock, precious) = (place.path().join(".lock"), place.path().join("precious"));
        fs::write(&precious, "precious").unwrap();
        std::os::unix::fs::symlink(&precious, &lock).unwrap();
        assert!(open_lock(&lock).unwrap_err().to_string().contains("remove it"));
        fs::remove_file(&lock).unwrap();
        fs::create_dir(&lock).unwrap();
        open_lock(&lock).unwrap_err();
        open_lock(&precious).unwrap();
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
    }
}
