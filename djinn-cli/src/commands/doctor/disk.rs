//! Read rate of the cache's file system, without the page cache.

use super::Finding;
use crate::cache::Cache;
use anyhow::{Context, Result};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

const BYTES: usize = 64 << 20;
const PIECE: usize = 4 << 20;
/// Direct reads need addresses and sizes that are multiples of a block.
const ALIGN: usize = 4096;
/// Below this, loading a model takes minutes.
const SLOW: f64 = 0.3e9;

/// Writes a small file into the cache's folder, or its nearest existing parent, and reads it back.
pub(super) fn check() -> Finding {
    let name = "disk";
    let measured = Cache::from_env().and_then(|cache| {
        let folder = existing(cache.root()).context("the cache's folder cannot be made")?;
        Ok((measure(&folder)?, folder))
    });
    match measured {
        Err(error) => {
            let detail = djinn_host::one_line(error.as_ref());
            Finding::poor(name, detail, "set DJINN_CACHE to a folder that can be written")
        }
        Ok((None, folder)) => {
            Finding::fine(name, format!("{}: not measured, it has no direct reads", folder.display()))
        }
        Ok((Some(rate), folder)) => {
            let value = format!("{} reads {:.2} GB/s", folder.display(), rate / 1e9);
            match rate < SLOW {
                true => Finding::poor(name, value, "set DJINN_CACHE to a faster disk"),
                false => Finding::fine(name, value),
            }
        }
    }
}

fn existing(folder: &Path) -> Option<PathBuf> {
    folder.ancestors().find(|f| f.is_dir()).map(Path::to_owned)
}

/// Bytes per second; `None` if the file system refuses direct reads.
fn measure(folder: &Path) -> Result<Option<f64>> {
    let context = || folder.display().to_string();
    let mut file = tempfile::NamedTempFile::new_in(folder).with_context(context)?;
    // Not all zero: some file systems store such blocks as holes.
    let piece: Vec<u8> = (0..PIECE).map(|i| ((i * 31) >> 3) as u8).collect();
    for _ in 0..BYTES / PIECE {
        file.write_all(&piece).with_context(context)?;
    }
    file.as_file().sync_all().with_context(context)?;
    let Some(mut direct) = open_direct(file.path()) else { return Ok(None) };
    let mut buffer = vec![0u8; PIECE + ALIGN];
    let start = buffer.as_ptr().align_offset(ALIGN).min(ALIGN);
    let buffer = &mut buffer[start..start + PIECE];
    let began = Instant::now();
    let mut total = 0;
    loop {
        match direct.read(buffer) {
            Ok(0) => break,
            Ok(read) => total += read,
            Err(_) if total == 0 => return Ok(None),
            Err(error) => return Err(error).with_context(context),
        }
    }
    Ok(Some(total as f64 / began.elapsed().as_secs_f64()))
}

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
fn open_direct(path: &Path) -> Option<File> {
    use std::os::unix::fs::OpenOptionsExt;
    /// `O_DIRECT` of the kernel's interface, which differs between architectures.
    const O_DIRECT: i32 = if cfg!(target_arch = "x86_64") { 0o40000 } else { 0o200000 };
    OpenOptions::new().read(true).custom_flags(O_DIRECT).open(path).ok()
}

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn open_direct(_: &Path) -> Option<File> {
    None
}
