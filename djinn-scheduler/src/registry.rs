//! Names of parts: constructors by name, so that a settings file can choose and other crates can add.

use crate::backend::Backend;
use crate::cost::CostModel;
use crate::error::{Error, Result};
use crate::handler::{Chunked, PhaseHandler, Single};
use crate::keeper::{StateKeeper, Tiered};
use crate::policy::{EvictionPolicy, Learned, Lru, Never, Told, Ttl, Weighed};
use crate::schedule::Parts;
use crate::scheduler::Scheduler;
use crate::settings::{self, Settings};
use crate::state::Capacity;
use std::collections::BTreeMap;
use std::fmt;

type Make<T> = Box<dyn Fn(&Settings) -> Box<T> + Send + Sync>;
type MakeBackend = Box<dyn Fn(&Capacity, &CostModel) -> Box<dyn Backend> + Send + Sync>;

/// Constructors by name. The default has this crate's own parts; a name registered again replaces them.
pub struct Registry {
    policies: BTreeMap<String, Make<dyn EvictionPolicy>>,
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
        registry.policy("none", |_| Box::new(Never));
        registry.policy("lru", |_| Box::new(Lru));
        registry.policy("ttl", |settings| Box::new(Ttl::new(settings.ttl)));
        registry.policy("signal", |s| Box::new(Weighed::new(Told::new(s.default_wait), s.weights)));
        registry.policy("predicted", |s| Box::new(Weighed::new(Learned::new(s.default_wait), s.weights)));
        registry.keeper("tiered", |_| Box::new(Tiered));
        registry.handler("chunked", |_| Box::new(Chunked));
        registry.handler("single", |_| Box::new(Single));
        registry.backend("sim", crate::sim::SimBackend::from_costs);
        registry
    }
}

impl Registry {
    /// Registers an eviction policy.
    pub fn policy<F>(&mut self, name: &str, make: F) -> &mut Self
    where
        F: Fn(&Settings) -> Box<dyn EvictionPolicy> + Send + Sync + 'static,
    {
        self.policies.insert(name.to_owned(), Box::new(make));
        self
    }

    /// Registers a state keeper.
    pub fn keeper<F>(&mut self, name: &str, make: F) -> &mut Self
    where
        F: Fn(&Settings) -> Box<dyn StateKeeper> + Send + Sync + 'static,
    {
        self.keepers.insert(name.to_owned(), Box::new(make));
        self
    }

    /// Registers a phase handler.
    pub fn handler<F>(&mut self, name: &str, make: F) -> &mut Self
    where
        F: Fn(&Settings) -> Box<dyn PhaseHandler> + Send + Sync + 'static,
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

    /// The parts that settings choose.
    pub fn parts(&self, settings: &Settings, cost: CostModel) -> Result<Parts> {
        Ok(Parts {
            policy: find(&self.policies, "policy", &settings.policy)?(settings),
            keeper: find(&self.keepers, "state", &settings.state)?(settings),
            prefill: find(&self.handlers, "prefill", &settings.prefill)?(settings),
            decode: find(&self.handlers, "decode", &settings.decode)?(settings),
            cost,
            rules: settings.rules,
        })
    }

    /// Reads settings from YAML, and checks that the names in them exist.
    pub fn yaml(&self, text: &str) -> Result<Settings> {
        self.checked(text, Settings::from_yaml(text)?)
    }

    /// Reads settings from TOML, and checks that the names in them exist.
    pub fn toml(&self, text: &str) -> Result<Settings> {
        self.checked(text, Settings::from_toml(text)?)
    }

    fn checked(&self, text: &str, settings: Settings) -> Result<Settings> {
        let exist = || {
            find(&self.policies, "policy", &settings.policy)?;
            find(&self.keepers, "state", &settings.state)?;
            find(&self.handlers, "prefill", &settings.prefill)?;
            find(&self.handlers, "decode", &settings.decode)?;
            let backend = settings.backend.as_ref();
            backend.map_or(Ok(()), |name| find(&self.backends, "backend", name).map(|_| ()))
        };
        exist().map_err(|error| settings::at_its_line(text, error))?;
        Ok(settings)
    }

    /// A scheduler as settings choose it.
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
        Error::UnknownName { field, name: name.to_owned(), known }
    })
}
