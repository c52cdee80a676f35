//! The user's own folders.

use anyhow::{Context, Result};
use std::env;
use std::fs::DirBuilder;
use std::path::{Path, PathBuf};

/// The folder `djinn` in the one that `variable` names, else in `below_home` in the user's home. A relative one would
/// be the working directory's, so that it is passed over.
pub(crate) fn folder(variable: &str, below_home: &str) -> Option<PathBuf> {
    let set = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let above = set(variable).or_else(|| Some(set("HOME")?.join(below_home)))?;
    Some(above.join("djinn"))
}

/// Makes a folder that is the user's alone, with those above it that are missing.
pub(crate) fn create(folder: &Path) -> Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder).with_context(|| folder.display().to_string())
}
