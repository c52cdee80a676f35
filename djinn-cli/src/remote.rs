//! A server of Djinn that a flag names.

use crate::output;
use anyhow::{Context, Result};
use djinn_host::query;
use djinn_host::remote::{Remote, encoded};
use serde::Serialize;
use std::time::Duration;

/// The time in which a server has to tell of a model. It computes nothing for that.
const TOLD_WITHIN: Duration = Duration::from_secs(60);

/// The server at the URL that `flag` gave. An answer has to come `within` a time, if one is given.
pub(crate) fn at(flag: &str, url: &str, keys: &[String], within: Option<Duration>) -> Result<Remote> {
    let key = keys.first().map(String::as_str);
    Remote::new(url, key, within).with_context(|| flag.to_owned())
}

/// Prints what the server tells of a model: `part` of it, as it was asked for.
pub(crate) fn show(
    url: &str,
    keys: &[String],
    model: &str,
    part: &str,
    asked: &impl Serialize,
) -> Result<()> {
    let pairs = query(asked).into_iter().map(|(name, value)| format!("{name}={}", encoded(&value)));
    let path = format!("/v1/models/{}/{part}?{}", encoded(model), pairs.collect::<Vec<_>>().join("&"));
    output::line(&at("--server", url, keys, Some(TOLD_WITHIN))?.get_text(&path)?)
}
