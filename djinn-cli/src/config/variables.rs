//! Variables that look like Djinn's and are none: a misspelt one is named, not passed over in silence.

use super::{flags, key};
use clap::Command;
use djinn_host::nearest;
use std::collections::BTreeSet;

/// Variables of Djinn that belong to no flag: the cache's folder, and what builds, tests and benchmarks read.
const OTHERS: [&str; 5] =
    ["DJINN_CACHE", "DJINN_COMMIT", "DJINN_CUDA_ARCHS", "DJINN_REQUIRE_CUDA", "DJINN_SMOLLM2"];

const PREFIX: &str = "DJINN_";

/// The variable that stands for a flag.
pub(super) fn variable(long: &str) -> String {
    format!("{PREFIX}{}", long.to_uppercase().replace('-', "_"))
}

/// A remark for each of the variables `names` that begins with `DJINN_` and is unknown, in order.
pub(super) fn unknown(command: &Command, names: impl IntoIterator<Item = String>) -> Vec<String> {
    let flags = flags(command).filter_map(|(_, arg)| key(arg).map(variable));
    let known: BTreeSet<String> = flags.chain(OTHERS.map(str::to_owned)).collect();
    let names: BTreeSet<String> = names.into_iter().filter(|name| name.starts_with(PREFIX)).collect();
    // What all names begin with makes none of them nearer.
    let near = |name: &str| {
        nearest(name.strip_prefix(PREFIX)?, known.iter().filter_map(|known| known.strip_prefix(PREFIX)))
    };
    let remark = |name: &String| match near(name) {
        Some(near) => {
            format!("the variable {name} is unknown and has no effect; did you mean {PREFIX}{near}?")
        }
        None => format!("the variable {name} is unknown and has no effect"),
    };
    names.difference(&known).map(remark).collect()
}
