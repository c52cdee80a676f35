//! Records the commit that the program is built from, for `env!("DJINN_COMMIT")`. `djinn-cli/build.rs` is a link to
//! this file.
//!
//! It is the short hash of HEAD, with `-dirty` where a source of the workspace differs from it. Cargo runs this again
//! when HEAD moves or a source changes, so the record is never an earlier build's. Outside Djinn's own repository
//! (an archive, a published package) it is what the variable `DJINN_COMMIT` says, or `unknown`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a crate is built from, as far as it exists.
const PARTS: [&str; 4] = ["Cargo.toml", "build.rs", "src", "peers"];
/// What all crates are built from.
const SHARED: [&str; 3] = ["Cargo.toml", "Cargo.lock", "kernels"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=DJINN_COMMIT");
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let given = || env::var("DJINN_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = described(&package).or_else(given).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo:rustc-env=DJINN_COMMIT={commit}");
}

/// The commit, if the package lies in Djinn's repository. Tells cargo what the answer depends on.
fn described(package: &Path) -> Option<String> {
    let name = package.file_name()?.to_str()?;
    // A copy within another repository is not tracked there, or lies deeper.
    git(package, &["ls-files", "--error-unmatch", "Cargo.toml"])?;
    if git(package, &["rev-parse", "--show-prefix"])? != format!("{name}/") {
        return None;
    }
    // The log of HEAD grows with every commit and checkout. If there is none, cargo runs this every time.
    for file in ["HEAD", "logs/HEAD"] {
        let path = git(package, &["rev-parse", "--git-path", file])?;
        println!("cargo:rerun-if-changed={}", package.join(path).display());
    }
    let root = package.parent()?;
    let sources = sources(root);
    for source in &sources {
        println!("cargo:rerun-if-changed={source}");
    }
    let head = git(package, &["rev-parse", "--short", "HEAD"])?;
    let status = ["--no-optional-locks", "status", "--porcelain", "--"];
    let changes =
        git(root, &[&status[..], &sources.iter().map(String::as_str).collect::<Vec<_>>()].concat())?;
    Some(if changes.is_empty() { head } else { head + "-dirty" })
}

/// What the workspace's programs are built from.
fn sources(root: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(root).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let is_crate =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("djinn-"));
    let parts = entries.filter(is_crate).flat_map(|path| PARTS.map(|part| path.join(part)));
    let all = parts.chain(SHARED.map(|shared| root.join(shared)));
    let mut found: Vec<String> =
        all.filter(|path| path.exists()).map(|path| path.display().to_string()).collect();
    found.sort();
    found
}

/// What git prints, or nothing if it fails or is missing.
fn git(folder: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(folder).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim_end().to_owned())
}
