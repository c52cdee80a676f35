//! One model's vectors by name, within bounds.

use super::Vectors;
use super::apply::SteeredTokens;
use crate::error::{Error, Result};
use crate::{ApiError, reply};
use djinn_srg::Graph;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most vectors of one key, whatever their size.
const MOST_OF_TENANT: usize = 1024;
/// One key's vectors take at most this fraction of all bytes (1 divided by this).
const TENANT_SHARE: u64 = 4;

/// Tenant and name. Vectors that were read at start belong to everyone.
type Key = (Option<Vec<u8>>, String);

/// A default vector of a key's sessions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DefaultUse {
    pub(super) scale: f32,
    pub(super) tokens: SteeredTokens,
}

/// What is kept under a name.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) vectors: Arc<Vectors>,
    /// Seconds since 1970.
    pub(super) created: u64,
    /// Whether it was read at start and cannot be changed.
    pub(super) is_fixed: bool,
}

#[derive(Debug)]
pub(crate) struct SteeringStore {
    most_bytes: u64,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    vectors: BTreeMap<Key, Stored>,
    /// By tenant and name.
    defaults: BTreeMap<(Vec<u8>, String), DefaultUse>,
}

impl SteeringStore {
    /// An empty store for vectors of `most_bytes` in all.
    pub(crate) fn new(most_bytes: u64) -> Self {
        SteeringStore { most_bytes, kept: Mutex::default() }
    }

    /// The same with the vectors of a folder, which all keys have: each `.json`, `.safetensors` and `.gguf` file under its
    /// name without the ending.
    ///
    /// # Errors
    /// [`Error::Setting`] with the file that cannot be read, is no vector for the model, or is too large.
    pub(crate) fn with_folder(self, folder: &Path, graph: &Graph) -> Result<Self> {
        let io = |source| Error::Io { what: format!("cannot read the folder {}", folder.display()), source };
        let mut files: Vec<_> = std::fs::read_dir(folder)
            .map_err(io)?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<std::io::Result<_>>()
            .map_err(io)?;
        files.sort();
        let is_vector = |file: &&std::path::PathBuf| {
            let ending = file.extension().and_then(|ending| ending.to_str());
            ending.is_some_and(|ending| ["json", "safetensors", "gguf"].contains(&ending))
        };
        for file in files.iter().filter(is_vector) {
            let wrong = |why: String| Error::Setting(format!("{}: {why}", file.display()));
            let bytes = djinn_models::file::read_bounded(file, self.most_bytes);
            let bytes = bytes.map_err(|error| wrong(error.to_string()))?;
            let vectors = super::parse::file(bytes, graph).map_err(|error| wrong(error.message))?;
            let name = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            let name = super::parse::name(name).map_err(|error| wrong(error.message))?;
            if self.kept().vectors.contains_key(&(None, name.clone())) {
                return Err(wrong(format!("there are two files of the name `{name}`")));
            }
            self.insert(None, name, vectors).map_err(|error| wrong(error.message))?;
        }
        Ok(self)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores vectors under a tenant's name, replacing earlier ones. Returns whether the name is new.
    ///
    /// # Errors
    /// 409 for a name that was read at start, 429 beyond the bounds of bytes or vectors.
    pub(super) fn insert(
        &self,
        tenant: Option<Vec<u8>>,
        name: String,
        vectors: Vectors,
    ) -> Result<bool, ApiError> {
        let mut kept = self.kept();
        if tenant.is_some() && kept.vectors.contains_key(&(None, name.clone())) {
            return Err(fixed(&name));
        }
        let key = (tenant, name);
        let others = || kept.vectors.iter().filter(|(other, _)| **other != key);
        let bytes = |stored: &Stored| stored.vectors.bytes();
        let all: u64 = others().map(|(_, stored)| bytes(stored)).sum();
        let own = || others().filter(|((tenant, _), _)| tenant.is_some() && *tenant == key.0);
        let (of_tenant, count) = (own().map(|(_, stored)| bytes(stored)).sum::<u64>(), own().count());
        let (new, most) = (vectors.bytes(), self.most_bytes);
        if all + new > most || (key.0.is_some() && of_tenant + new > most / TENANT_SHARE) {
            let message = format!(
                "the vectors of `{}` take {new} bytes, and those that are kept {of_tenant} of your {} and {all} of {most} \
                 in all; delete some",
                key.1,
                most / TENANT_SHARE
            );
            return Err(ApiError::busy(message));
        }
        if count >= MOST_OF_TENANT {
            return Err(ApiError::busy(format!("there are {count} vectors already; delete some")));
        }
        let is_fixed = key.0.is_none();
        let stored = Stored { vectors: Arc::new(vectors), created: reply::unix_now(), is_fixed };
        Ok(kept.vectors.insert(key, stored).is_none())
    }

    /// A tenant's vectors under a name, and their default use.
    pub(super) fn get(&self, tenant: &[u8], name: &str) -> Option<(Stored, Option<DefaultUse>)> {
        let kept = self.kept();
        let by = |tenant: Option<Vec<u8>>| kept.vectors.get(&(tenant, name.to_owned())).cloned();
        let stored = by(None).or_else(|| by(Some(tenant.to_vec())))?;
        Some((stored, kept.defaults.get(&(tenant.to_vec(), name.to_owned())).copied()))
    }

    /// All names that a tenant can use.
    pub(super) fn names(&self, tenant: &[u8]) -> Vec<String> {
        let kept = self.kept();
        let own = |key: &&Key| key.0.as_deref().is_none_or(|owner| owner == tenant);
        let mut names: Vec<String> = kept.vectors.keys().filter(own).map(|(_, name)| name.clone()).collect();
        names.sort();
        names
    }

    /// Removes a tenant's vectors. Returns whether they existed.
    ///
    /// # Errors
    /// 409 for those that were read at start.
    pub(super) fn remove(&self, tenant: &[u8], name: &str) -> Result<bool, ApiError> {
        let mut kept = self.kept();
        if kept.vectors.contains_key(&(None, name.to_owned())) {
            return Err(fixed(name));
        }
        kept.defaults.remove(&(tenant.to_vec(), name.to_owned()));
        Ok(kept.vectors.remove(&(Some(tenant.to_vec()), name.to_owned())).is_some())
    }

    /// Sets or removes a default for the tenant's new sessions.
    pub(super) fn set_default(&self, tenant: &[u8], name: &str, default: Option<DefaultUse>) {
        let mut kept = self.kept();
        let key = (tenant.to_vec(), name.to_owned());
        match default {
            Some(default) => drop(kept.defaults.insert(key, default)),
            None => drop(kept.defaults.remove(&key)),
        }
    }

    pub(super) fn defaults(&self, tenant: &[u8]) -> Vec<(String, DefaultUse)> {
        let kept = self.kept();
        let own = kept.defaults.iter().filter(|((owner, _), _)| owner == tenant);
        own.map(|((_, name), default)| (name.clone(), *default)).collect()
    }
}

/// 409: it belongs to everyone.
fn fixed(name: &str) -> ApiError {
    let message = format!("the vectors `{name}` were read at start; they cannot be changed");
    ApiError { param: Some("name".into()), ..ApiError::conflict(message, "steering_fixed") }
}
