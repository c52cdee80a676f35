//! What Djinn may depend on: licences, sources, and one version of each crate.

use cargo_metadata::{Metadata, MetadataCommand};
use std::collections::BTreeMap;
use std::iter::Peekable;
use std::path::Path;
use std::process::Command;

const LICENCES: &[&str] = &[
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    // Certificates of the web's authorities, as data.
    "CDLA-Permissive-2.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MPL-2.0",
    "Unicode-3.0",
    "Zlib",
];

/// Crates that come in several versions, because crates that we use ask for different ones.
const SEVERAL_VERSIONS: &[&str] = &[
    "base64",
    "getrandom",
    "hashbrown",
    "libloading",
    "r-efi",
    "rand",
    "rand_core",
    "syn",
    "thiserror",
    "thiserror-impl",
    "windows-sys",
];

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// All crates that are built for this machine, with every feature; where those of optional features are neither here
/// nor to be had, those of the default features.
fn metadata() -> Metadata {
    let rustc = Command::new("rustc").arg("-vV").output().expect("rustc runs");
    let version = String::from_utf8(rustc.stdout).expect("rustc writes UTF-8");
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).expect("rustc names its host");
    let get = |more: &str| {
        let options = ["--locked", "--filter-platform", host, more].map(str::to_owned);
        MetadataCommand::new().env("CARGO_NET_RETRY", "0").other_options(options).exec()
    };
    get("--all-features").or_else(|_| get("--offline")).expect("cargo metadata runs")
}

#[test]
fn licences_are_permitted() {
    let packages = metadata().packages;
    assert!(packages.len() > 100, "the list of crates is cut short");
    for package in packages {
        let licence = package.license.as_deref().unwrap_or_default();
        assert!(permitted(licence), "{} has the licence {licence:?}", package.id);
    }
}

#[test]
fn expressions_of_licences_are_understood() {
    for licence in [
        "MIT",
        "MIT/Apache-2.0",
        "GPL-3.0 OR MIT",
        "(MIT OR GPL-3.0) AND ISC",
        "Apache-2.0 WITH LLVM-exception OR X",
    ] {
        assert!(permitted(licence), "{licence}");
    }
    for licence in ["GPL-3.0", "MIT AND GPL-3.0", "(MIT OR ISC) AND GPL-3.0", "MIT WITH X", "GPL-3.0 OR X"] {
        assert!(!permitted(licence), "{licence}");
    }
}

/// Whether an SPDX expression leaves a choice that is permitted.
fn permitted(licence: &str) -> bool {
    let spaced = licence.replace('/', " OR ").replace('(', "( ").replace(')', " )");
    let mut words = spaced.split_whitespace().peekable();
    let permitted = any(&mut words);
    permitted && words.next().is_none()
}

fn any<'a>(words: &mut Peekable<impl Iterator<Item = &'a str>>) -> bool {
    let mut permitted = all(words);
    while words.next_if_eq(&"OR").is_some() {
        permitted |= all(words);
    }
    permitted
}

fn all<'a>(words: &mut Peekable<impl Iterator<Item = &'a str>>) -> bool {
    let mut permitted = one(words);
    while words.next_if_eq(&"AND").is_some() {
        permitted &= one(words);
    }
    permitted
}

fn one<'a>(words: &mut Peekable<impl Iterator<Item = &'a str>>) -> bool {
    let Some(word) = words.next() else { return false };
    if word == "(" {
        let permitted = any(words);
        return words.next() == Some(")") && permitted;
    }
    match words.next_if_eq(&"WITH").and_then(|_| words.next()) {
        Some(exception) => LICENCES.contains(&&*format!("{word} WITH {exception}")),
        None => LICENCES.contains(&word),
    }
}

#[test]
fn crates_come_from_one_registry_in_one_version() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.lock");
    let lock: toml::Table = std::fs::read_to_string(path).unwrap().parse().unwrap();
    let mut versions = BTreeMap::<&str, u32>::new();
    for package in lock["package"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        let source = package.get("source").map_or(CRATES_IO, |source| source.as_str().unwrap());
        assert_eq!(source, CRATES_IO, "{name}");
        *versions.entry(name).or_default() += 1;
    }
    let several: Vec<&str> =
        versions.iter().filter(|(_, count)| **count > 1).map(|(name, _)| *name).collect();
    assert_eq!(
        several, SEVERAL_VERSIONS,
        "crates in several versions; `cargo tree -d` says who asks for them"
    );
}

#[test]
fn versions_of_dependencies_are_named() {
    for package in MetadataCommand::new().no_deps().exec().unwrap().packages {
        for dependency in package.dependencies {
            let any = dependency.req.to_string() == "*";
            assert!(!any || dependency.path.is_some(), "{} takes any {}", package.name, dependency.name);
        }
    }
}
