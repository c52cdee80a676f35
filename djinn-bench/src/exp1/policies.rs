//! The policies by name, with the constants of a settings file.

use crate::args::Exp1Args;
use anyhow::{Result, ensure};
use djinn_scheduler::policy::Ttl;
use djinn_scheduler::sim::{Belady, Oracle};
use djinn_scheduler::{Capacity, CostModel, NoConstants, Registry, Scheduler, Settings};
use std::time::Duration;

/// The policies that show the difference with the tiny model.
pub(super) const TINY: [&str; 4] = ["none", "lru", "always", "signal"];

/// Without a settings file no session is refused for having queued: one that waits long has a long latency instead.
const PATIENCE: Duration = Duration::from_secs(86_400);

/// The scheduler's policies and two of the experiment: `always` is `ttl` with 0 ms, everybody who waits is moved; `belady`
/// looks into `oracle`, which knows the ends of waits: the bound.
fn registry(oracle: &Oracle) -> Registry {
    let (mut registry, oracle) = (Registry::default(), oracle.clone());
    registry.policy("always", |_: NoConstants| Box::new(Ttl::new(Duration::ZERO)));
    registry.policy("belady", move |_: NoConstants| Box::new(Belady::knowing(&oracle)));
    registry
}

/// The names of all policies; the first is what others are compared with.
pub(super) fn known() -> Vec<String> {
    let mut names: Vec<String> = registry(&Oracle::default()).policies().map(str::to_owned).collect();
    names.sort_by_key(|name| name != "none");
    names
}

/// The policies that are measured where none is named: all that do not know the future.
pub(super) fn usual() -> Vec<String> {
    known().into_iter().filter(|name| name != "belady").collect()
}

/// What `--help` says of `--policies`.
pub(crate) fn help() -> String {
    let (known, tiny) = (known().join(", "), TINY.join(","));
    format!(
        "Policies to measure, in this order: {known} [default: all but belady; with the tiny model {tiny}]"
    )
}

/// What to measure, and with which constants.
#[derive(Debug)]
pub(super) struct Policies {
    pub(super) names: Vec<String>,
    settings: Settings,
}

impl Policies {
    pub(super) fn new(args: &Exp1Args) -> Result<Self> {
        let (names, known) = (args.policies.clone(), known());
        for (at, name) in names.iter().enumerate() {
            ensure!(
                known.contains(name),
                "--policies: there is no `{name}`; known names: {}",
                known.join(", ")
            );
            ensure!(!names[..at].contains(name), "--policies names {name} twice; name it once");
        }
        let mut settings = Settings::default();
        settings.rules.queue_timeout = PATIENCE;
        if let Some(path) = &args.config {
            let file = || path.display();
            settings = Registry::default().file(path)?;
            // The file's policy says which constants it may set; others would be ignored.
            ensure!(
                names.contains(&settings.policy),
                "{}: policy: its constants are for `{}`, which --policies does not name; add it there",
                file(),
                settings.policy
            );
            ensure!(
                settings.backend.is_none(),
                "{}: backend: exp1 runs the model, or with --simulate a table of times; leave it out",
                file()
            );
        }
        Ok(Policies { names, settings })
    }

    /// A scheduler with this policy, for an empty machine. `oracle` is what `belady` looks into.
    pub(super) fn scheduler(
        &self,
        name: &str,
        capacity: Capacity,
        cost: CostModel,
        oracle: &Oracle,
    ) -> Result<Scheduler> {
        let settings = Settings { policy: name.to_owned(), ..self.settings.clone() };
        Ok(registry(oracle).scheduler(&settings, capacity, cost)?)
    }

    /// What readers of a result should know of the constants.
    pub(super) fn note(&self, args: &Exp1Args) -> String {
        match &args.config {
            Some(path) => {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let seconds = self.settings.rules.queue_timeout.as_secs_f64();
                format!("Constants of the policies from {name}; who queues for {seconds} s is refused.")
            }
            None => "Constants of the policies are their defaults; no session is refused for queueing long."
                .to_owned(),
        }
    }
}
