//! Files that are written whole or not at all.

use std::fs;
use std::io::{Error, ErrorKind, Result, Write};
use std::path::Path;

/// Writes a file and syncs it to the disk. Until it is whole, what was there stays; links keep leading to the file.
///
/// # Errors
/// The disk's. [`ErrorKind::AlreadyExists`] for a file that is there, unless it is to be replaced;
/// [`ErrorKind::InvalidInput`] for what is no regular file.
pub(crate) fn write(path: &Path, bytes: &[u8], replace: bool) -> Result<()> {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let there = fs::metadata(&path).ok();
    if replace && there.as_ref().is_some_and(|there| !there.is_file()) {
        return Err(Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    builder.prefix(".unfinished-");
    #[cfg(unix)]
    {
        let usual = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        builder.permissions(there.map_or(usual, |there| there.permissions()));
    }
    let mut file = builder.tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    let written = if replace { file.persist(&path) } else { file.persist_noclobber(&path) };
    written.map(drop).map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn what_was_there_stays_until_the_new_file_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chat.json");
        write(&path, b"first", false).unwrap();
        let mut before = fs::File::open(&path).unwrap();
        assert_eq!(write(&path, b"second", false).unwrap_err().kind(), ErrorKind::AlreadyExists);
        write(&path, b"second", true).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        let mut text = String::new();
        before.read_to_string(&mut text).unwrap();
        assert_eq!(text, "first", "the old file was not written to");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[cfg(unix)]
    #[test]
    fn links_permissions_and_what_is_no_file_are_kept() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        write(&at("file"), b"first", true).unwrap();
        fs::set_permissions(at("file"), PermissionsExt::from_mode(0o600)).unwrap();
        symlink("file", at("link")).unwrap();
        write(&at("link"), b"second", true).unwrap();
        assert!(at("link").is_symlink());
        assert_eq!(fs::read(at("file")).unwrap(), b"second");
        assert_eq!(fs::metadata(at("file")).unwrap().permissions().mode() & 0o777, 0o600);
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        let refused = write(&at("socket"), b"third", true).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        assert!(!fs::metadata(at("socket")).unwrap().is_file());
    }
}
