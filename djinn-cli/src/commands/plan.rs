//! `djinn plan`: the memory plan and the predicted speed.

use crate::args::PlanArgs;
use crate::{loaded, output, profile, remote};
use anyhow::Result;
use djinn_host::plan_text;

pub(super) fn run(args: &PlanArgs, quiet: bool) -> Result<()> {
    let PlanArgs { model, asked, server } = args;
    if let Some(url) = &server.server {
        return remote::show(url, &server.api_key, model, "plan", asked);
    }
    let mut target = profile::choose(&asked.work)?;
    let model = loaded::open(model, &target.open_options(&asked.memory), quiet)?;
    target.measure_encoded(&model)?;
    output::line(&plan_text(&model, asked, target)?)
}
