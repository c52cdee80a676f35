//! Opens regular files, and reads small ones as a whole.
//!
//! A stranger's folder may contain a FIFO, on which an ordinary open waits forever, or a link to a device, whose bytes
//! never end. So files are opened without waiting, checked through the open handle, and read up to a bound.

use crate::{Error, Result};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

/// Opens a regular file for reading.
///
/// # Errors
/// [`Error::Io`] if it cannot be opened, [`Error::Malformed`] for a directory, a pipe, a socket or a device.
pub(crate) fn open(path: &Path) -> Result<File> {
    open_with(path, File::options().read(true), 0)
}

/// Opens a regular file for reading and writing, with what is in it, or makes an empty one.
///
/// # Errors
/// As [`open`]'s, and [`Error::Io`] for a link, whose target may be anybody's.
pub(crate) fn open_to_write(path: &Path) -> Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    open_with(path, &mut options, NO_LINKS)
}

/// Refuses links.
#[cfg(unix)]
const NO_LINKS: i32 = libc::O_NOFOLLOW;
#[cfg(not(unix))]
const NO_LINKS: i32 = 0;

fn open_with(path: &Path, options: &mut OpenOptions, flags: i32) -> Result<File> {
    let io_error = |source| Error::Io { path: path.to_owned(), source };
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        // Neither wait for a FIFO's writer nor take a terminal over.
        options.custom_flags(flags | libc::O_NONBLOCK | libc::O_NOCTTY);
    }
    let file = options.open(path).map_err(io_error)?;
    if !file.metadata().map_err(io_error)?.is_file() {
        return Err(Error::Malformed { path: path.to_owned(), detail: "is not a regular file".into() });
    }
    Ok(file)
}

/// The bytes of a regular file of at most `max` bytes.
///
/// # Errors
/// [`Error::Io`] if the file cannot be opened or read. [`Error::Malformed`] for a directory, a pipe, a socket or a
/// device, or a file of more than `max` bytes, even if it grows during the read.
pub fn read_bounded(path: impl AsRef<Path>, max: u64) -> Result<Vec<u8>> {
    let path = path.as_ref();
    let mut bytes = Vec::new();
    let read = open(path)?.take(max.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|source| Error::Io { path: path.to_owned(), source })?;
    if bytes.len() as u64 > max {
        let detail = format!("has more than the {max} bytes that such a file may have");
        return Err(Error::Malformed { path: path.to_owned(), detail });
    }
    Ok(bytes)
}

/// The same; `None` if the file does not exist.
pub(crate) fn read_if_present(path: &Path, max: u64) -> Result<Option<Vec<u8>>> {
    match read_bounded(path, max) {
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}
