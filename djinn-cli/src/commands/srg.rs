//! `djinn srg`: the graph with its annotations.

use crate::args::SrgArgs;
use crate::{loaded, output, profile, remote};
use anyhow::Result;
use djinn_host::{Setup, srg_text};

pub(super) fn run(args: &SrgArgs, quiet: bool) -> Result<()> {
    let SrgArgs { model, asked, server } = args;
    asked.check()?;
    if let Some(url) = &server.server {
        return remote::show(url, &server.api_key, model, "srg", asked);
    }
    let mut target = profile::choose(&asked.work)?;
    let setup = Setup { dtype: asked.dtype, ..Setup::default() };
    let model = loaded::open(model, &target.open_options(&setup), quiet)?;
    target.measure_encoded(&model)?;
    output::line(&srg_text(&model, asked, &target)?)
}
