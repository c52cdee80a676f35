//! The policies by name, with the constants of a settings file.

use crate::args::Exp1Args;
use anyhow::{Context, Result, bail, ensure};
use djinn_scheduler::policy::Ttl;
use djinn_scheduler::sim::{Belady, Oracle};
use djinn_scheduler::{Capacity, CostModel, Registry, Scheduler, Settings};
use std::time::Duration;

/// The policies that exist. `always` is `ttl` with 0 ms: everybody who waits is moved. `belady` knows the ends of
/// waits: the bound.
const NAMES: [&str; 7] = ["none", "lru", "ttl", "always", "signal", "predicted", "belady"];

/// Without a settings file nobody is refused for having queued: whoever waits long has a long latency instead.
const PATIENCE: Duration = Duration::from_secs(86_400);

/// What to measure, and with which constants.
#[derive(Debug)]
pub(super) struct Policies {
    pub(super) names: Vec<&'static str>,
    settings: Settings,
}

impl Policies {
    /// Reads `--policies` and `--config`.
    ///
    /// # Errors
    /// In one line: a name that does not exist or comes twice; of the file, line and field.
    pub(super) fn new(args: &Exp1Args) -> Result<Self> {
        let mut names = Vec::new();
        for name in &args.policies {
            let Some(&known) = NAMES.iter().find(|known| *known == name) else {
                bail!("--policies: there is no `{name}`; known names: {}", NAMES.join(", "));
            };
            ensure!(!names.contains(&known), "--policies names {known} twice; name it once");
            names.push(known);
        }
        ensure!(!names.is_empty(), "--policies names none; known names: {}", NAMES.join(", "));
        let mut settings = Settings::default();
        settings.rules.queue_timeout = PATIENCE;
        if let Some(path) = &args.config {
            let file = || path.display().to_string();
            let text = std::fs::read_to_string(path).with_context(file)?;
            let registry = Registry::default();
            settings = match path.extension().and_then(|extension| extension.to_str()) {
                Some("yaml" | "yml") => registry.yaml(&text),
                Some("toml") => registry.toml(&text),
                _ => bail!("--config {}: the name must end with .yaml, .yml or .toml", file()),
            }
            .with_context(file)?;
            // The file's policy says which constants it may set; others would be ignored.
            ensure!(
                names.contains(&settings.policy.as_str()),
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
        let policy = if matches!(name, "always" | "belady") { "lru" } else { name };
        let settings = Settings { policy: policy.to_owned(), ..self.settings.clone() };
        let mut parts = Registry::default().parts(&settings, cost)?;
        match name {
            "always" => parts.policy = Box::new(Ttl::new(Duration::ZERO)),
            "belady" => parts.policy = Box::new(Belady::knowing(oracle)),
            _ => {}
        }
        Ok(Scheduler::new(capacity, parts)?)
    }

    /// What readers of a result should know of the constants.
    pub(super) fn note(&self, args: &Exp1Args) -> String {
        match &args.config {
            Some(path) => {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let seconds = self.settings.rules.queue_timeout.as_secs_f64();
                format!("Constants of the policies from {name}; who queues for {seconds} s is refused.")
            }
            None => "Constants of the policies are their defaults; nobody is refused for queueing long."
                .to_owned(),
        }
    }
}
