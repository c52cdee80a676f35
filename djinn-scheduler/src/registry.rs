//! Constructors by name, so that a settings file can choose parts and other crates can add some.

use crate::backend::Backend;
use crate::cost::CostModel;
use crate::error::{Error, Result};
use crate::handler::{ChunkedPrefill, DecodeOne, PhaseHandler};
use crate::keeper::{SpillToHost, StateKeeper};
use crate::policy::{
    EvictionPolicy, LearnedWaits, Lru, NeverEvict, SignalledWaits, Ttl, TtlSettings, WeighedSettings,
};
use crate::schedule::Parts;
use crate::scheduler::Scheduler;
use crate::settings::{self, Constants, Settings};
use crate::state::Capacity;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Bytes of a settings file, at most.
const MAX_FILE: u64 = 1 << 20;

type Make<T> = Box<dyn Fn() -> Box<T> + Send + Sync>;
type MakePolicy = Box<dyn Fn(&mut Constants) -> Result<Box<dyn EvictionPolicy>> + Send + Sync>;
type MakeBackend = Box<dyn Fn(&Capacity, &CostModel) -> Box<dyn Backend> + Send + Sync>;

/// The settings of a policy without any.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct NoConstants {}

/// Constructors by name. The default has this crate's parts. Registering a name again replaces its constructor.
pub struct Registry {
    policies: BTreeMap<String, MakePolicy>,
    keepers: BTreeMap<String, Make<dyn StateKeeper>>,
    handlers: BTreeMap<String, Make<dyn PhaseHandler>>,
    backends: BTreeMap<String, MakeBackend>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("policies", &names(&self.policies))
            .field("keepers", &names(&self.keepers))
            .field("handlers", &names(&self.handlers))
            .field("backends", &names(&self.backends))
            .finish()
    }
}

impl Default for Registry {
    fn default() -> Self {
        let mut registry = Registry {
            policies: BTreeMap::new(),
            keepers: BTreeMap::new(),
            handlers: BTreeMap::new(),
            backends: BTreeMap::new(),
        };
        registry.policy("none", |_: NoConstants| Box::new(NeverEvict));
        registry.policy("lru", |_: NoConstants| Box::new(Lru));
        registry.policy("ttl", |settings: TtlSettings| Box::new(Ttl::from(settings)));
        registry.policy("signal", |s: WeighedSettings| Box::new(s.policy(SignalledWaits::new)));
        registry.policy("predicted", |s: WeighedSettings| Box::new(s.policy(LearnedWaits::new)));
        registry.keeper("tiered", || Box::new(SpillToHost));
        registry.handler("chunked", || Box::new(ChunkedPrefill));
        registry.handler("single", || Box::new(DecodeOne));
        registry.backend("sim", crate::sim::SimBackend::from_costs);
        registry
    }
}

impl Registry {
    /// Registers an eviction policy. `C` is a struct of the settings that it reads, or [`NoConstants`].
    pub fn policy<C, F>(&mut self, name: &str, make: F) -> &mut Self
    where
        C: DeserializeOwned,
        F: Fn(C) -> Box<dyn EvictionPolicy> + Send + Sync + 'static,
    {
        self.policies.insert(name.to_owned(), Box::new(move |constants| constants.take().map(&make)));
        self
    }

    /// The names of the policies, in alphabetical order.
    pub fn policies(&self) -> impl Iterator<Item = &str> {
        self.policies.keys().map(String::as_str)
    }

    /// Registers a state keeper.
    pub fn keeper<F>(&mut self, name: &str, make: F) -> &mut Self
    where
        F: Fn() -> Box<dyn StateKeeper> + Send + Sync + 'static,
    {
        self.keepers.insert(name.to_owned(), Box::new(make));
        self
    }

    /// Registers a phase handler.
    pub fn handler<F>(&mut self, name: &str, make: F) -> &mut Self
    where
        F: Fn() -> Box<dyn PhaseHandler> + Send + Sync + 'static,
    {
        self.handlers.insert(name.to_owned(), Box::new(make));
        self
    }

    /// Registers a backend.
    pub fn backend<F>(&mut self, name: &str, make: F) -> &mut Self
    where
        F: Fn(&Capacity, &CostModel) -> Box<dyn Backend> + Send + Sync + 'static,
    {
        self.backends.insert(name.to_owned(), Box::new(make));
        self
    }

    /// The parts that settings choose. Fields that the policy does not read are ignored here.
    ///
    /// # Errors
    /// An unknown name, or an invalid constant of the policy.
    pub fn parts(&self, settings: &Settings, cost: CostModel) -> Result<Parts> {
        Ok(Parts {
            policy: find(&self.policies, "policy", &settings.policy)?(&mut settings.constants.clone())?,
            keeper: find(&self.keepers, "state", &settings.state)?(),
            prefill: find(&self.handlers, "prefill", &settings.prefill)?(),
            decode: find(&self.handlers, "decode", &settings.decode)?(),
            cost,
            rules: settings.rules,
        })
    }

    /// Reads settings from YAML, and checks that the names exist and that each field is used.
    ///
    /// # Errors
    /// [`Error::Settings`] has the line, the field and what to do.
    pub fn yaml(&self, text: &str) -> Result<Settings> {
        let settings = Settings::from_yaml(text)?;
        self.check(&settings).map_err(|error| settings::at_its_line(text, error))?;
        Ok(settings)
    }

    /// Reads settings from TOML, as [`yaml`](Self::yaml) does.
    ///
    /// # Errors
    /// As [`yaml`](Self::yaml).
    pub fn toml(&self, text: &str) -> Result<Settings> {
        let settings = Settings::from_toml(text)?;
        self.check(&settings).map_err(|error| settings::at_its_line(text, error))?;
        Ok(settings)
    }

    /// Reads settings from a file, as [`yaml`](Self::yaml) or [`toml`](Self::toml) does; its extension decides.
    ///
    /// # Errors
    /// [`Error::SettingsFile`].
    pub fn file(&self, path: &Path) -> Result<Settings> {
        let fail = |problem: String| Error::SettingsFile { file: path.to_owned(), problem };
        let read = match path.extension().and_then(OsStr::to_str) {
            Some("yaml" | "yml") => Self::yaml,
            Some("toml") => Self::toml,
            _ => return Err(fail("the name must end with .yaml, .yml or .toml".to_owned())),
        };
        let mut text = String::new();
        let file = File::open(path).map_err(|error| fail(error.to_string()))?;
        file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(|error| fail(error.to_string()))?;
        if text.len() as u64 > MAX_FILE {
            return Err(fail(format!("it has more than {MAX_FILE} bytes")));
        }
        read(self, &text).map_err(|error| fail(error.to_string()))
    }

    fn check(&self, settings: &Settings) -> Result<()> {
        find(&self.keepers, "state", &settings.state)?;
        find(&self.handlers, "prefill", &settings.prefill)?;
        find(&self.handlers, "decode", &settings.decode)?;
        if let Some(name) = &settings.backend {
            find(&self.backends, "backend", name)?;
        }
        let mut constants = settings.constants.clone();
        find(&self.policies, "policy", &settings.policy)?(&mut constants)?;
        constants.expect_none(&settings.policy)
    }

    /// A scheduler with the parts that settings choose.
    pub fn scheduler(&self, settings: &Settings, capacity: Capacity, cost: CostModel) -> Result<Scheduler> {
        Scheduler::new(capacity, self.parts(settings, cost)?)
    }

    /// The backend that settings choose; `sim` if they name none.
    pub fn make_backend(
        &self,
        settings: &Settings,
        capacity: &Capacity,
        cost: &CostModel,
    ) -> Result<Box<dyn Backend>> {
        let name = settings.backend.as_deref().unwrap_or("sim");
        Ok(find(&self.backends, "backend", name)?(capacity, cost))
    }
}

fn names<T>(map: &BTreeMap<String, T>) -> Vec<&str> {
    map.keys().map(String::as_str).collect()
}

fn find<'a, T>(map: &'a BTreeMap<String, T>, field: &'static str, name: &str) -> Result<&'a T> {
    map.get(name).ok_or_else(|| {
        let known = names(map).join(", ");
        Error::Setting {
            field: field.to_owned(),
            problem: format!("there is no `{name}`; known names: {known}"),
        }
    })
}
