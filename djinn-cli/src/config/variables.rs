//! Variables that look like Djinn's and are none: a misspelt one is named, not passed over in silence.

use super::{flags, key};
use clap::Command;
use djinn_host::nearest;
use std::collections::BTreeSet;

/// Variables of Djinn that belong to no flag: the cache's folder, and what builds, tests and benchmarks read.
const OTHERS: [&str; 5] =
    ["DJINN_CACHE", "DJINN_COMMIT", "DJINN_CUDA_ARCHS", "DJINN_REQUIRE_CUDA", "DJINN_SMOLLM2"];

/// The variable that stands for a flag.
pub(super) fn variable(long: &str) -> String {
    format!("DJINN_{}", long.to_uppercase().replace('-', "_"))
}

/// A remark for each of the variables `names` that begins with `DJINN_` and is unknown, in order.
pub(super) fn unknown(command: &Command, names: impl IntoIterator<Item = String>) -> Vec<String> {
    let flags = flags(command).filter_map(|(_, arg)| key(arg).map(variable));
    let known: BTreeSet<String> = flags.chain(OTHERS.map(str::to_owned)).collect();
    let names: BTreeSet<String> = names.into_iter().filter(|name| name.starts_with("DJINN_")).collect();
    let remark = |name: &String| match nearest(name, known.iter().map(String::as_str)) {
        Some(near) => format!("the variable {name} is unknown and has no effect; did you mean {near}?"),
        None => format!("the variable {name} is unknown and has no effect"),
    };
    names.difference(&known).map(remark).collect()
}
