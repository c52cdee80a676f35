//! A content store: pieces of models by the hash of their bytes, and the models that consist of them.
//!
//! ```text
//! DIR/blobs/ab/abcd…       a piece, complete and with the right hash
//! DIR/partial/abcd…        the first bytes of a piece that is arriving
//! DIR/registered/ID.json   a manifest whose pieces are arriving
//! DIR/models/NAME/         a model: manifest.json, and links to its small files
//! ```
//!
//! Every file is first written under another name, synced, and renamed, so that no process sees half of it. A piece is
//! accepted only if a manifest names it, so its size is known in advance.

mod commit;
mod counts;
mod disk;
mod name;
pub(crate) mod routes;
pub(crate) mod serving;
mod upload;

use crate::error::{Error, Result};
use crate::{ApiError, reply};
use axum::http::StatusCode;
use counts::Counts;
use disk::Folders;
use djinn_models::stored::{ContentHash, ModelManifest, NAME_TAKEN, read_manifest};
use djinn_models::{Location, Model};
use djinn_vmu::size;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::Semaphore;

/// The most manifests whose pieces are arriving.
const MOST_REGISTERED: usize = 64;
/// The time for a manifest's pieces. After that it is forgotten, with the bytes that have come.
const REGISTERED_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
/// The most pieces that arrive at the same time.
const UPLOADS: usize = 32;

/// The models that a server answers for, by name.
pub(crate) trait Serves {
    /// The location of the model of this name, if there is one.
    fn place_of(&self, name: &str) -> Option<Location>;

    /// Opens the model at `place`, which will be moved to `later` before it is served.
    ///
    /// # Errors
    /// 400 for files that are not a model.
    fn open(&self, place: &Location, later: Location) -> Result<Model, ApiError>;

    /// Serves an open model.
    ///
    /// # Errors
    /// A used name, or a model that the server's settings exclude.
    fn add(&self, name: &str, model: Model) -> Result<(), ApiError>;

    /// Ends to serve the model of this name.
    fn remove(&self, name: &str);
}

/// Pieces of models on a disk, and the models that consist of them.
#[derive(Debug)]
pub struct ModelStore {
    folders: Folders,
    quota: u64,
    /// Locked for moments only, not while many files are searched or removed or one is synced.
    books: Mutex<Books>,
    /// Held while manifests and models change, one at a time.
    changing: Mutex<()>,
    uploads: Arc<Semaphore>,
    counts: Counts,
    /// Held as long as the store is open.
    _lock: File,
}

/// The store's contents.
#[derive(Debug, Default)]
struct Books {
    /// Manifests whose pieces are arriving, by id.
    registered: BTreeMap<ContentHash, Entry>,
    models: BTreeMap<String, Entry>,
    /// Pieces that are being written.
    writing: HashSet<ContentHash>,
}

/// A model, complete or not.
#[derive(Clone, Debug)]
struct Entry {
    id: ContentHash,
    registration: Arc<Registration>,
    /// Of its pieces.
    sizes: Arc<BTreeMap<ContentHash, u64>>,
    created: u64,
}

/// A client's registration.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Registration {
    name: String,
    #[serde(flatten)]
    manifest: ModelManifest,
}

/// The pieces of a manifest that the store lacks.
#[derive(Debug, Serialize)]
pub(crate) struct Lacking {
    id: ContentHash,
    object: &'static str,
    name: String,
    /// Bytes of all pieces, each counted once.
    bytes: u64,
    lacking_bytes: u64,
    /// Whether it is a model that is served already.
    committed: bool,
    lacking: Vec<LackedPiece>,
}

#[derive(Debug, Serialize)]
struct LackedPiece {
    hash: ContentHash,
    bytes: u64,
    /// Bytes that have come.
    have: u64,
}

impl Books {
    fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.registered.values().chain(self.models.values())
    }

    /// The size of a piece that something names.
    fn wanted(&self, hash: &ContentHash) -> Option<u64> {
        self.entries().find_map(|entry| entry.sizes.get(hash).copied())
    }

    /// Bytes of all pieces, including those of `more`.
    fn bytes_with(&self, more: &BTreeMap<ContentHash, u64>) -> u64 {
        let mut seen = HashSet::new();
        let sizes = self.entries().flat_map(|entry| entry.sizes.iter()).chain(more);
        sizes.filter(|(hash, _)| seen.insert(**hash)).fold(0, |sum, (_, &bytes)| sum.saturating_add(bytes))
    }
}

impl ModelStore {
    /// Opens the store in a folder, which is created if needed, for models of `quota` bytes in all. Unfinished files
    /// are removed, except for pieces that can continue to arrive.
    ///
    /// # Errors
    /// [`Error::Io`] if the folder cannot be used, [`Error::Setting`] if another process uses it.
    pub fn open(folder: &Path, quota: u64) -> Result<Self> {
        let io = |source| Error::Io { what: format!("the store {}", folder.display()), source };
        let folders = Folders::make(folder).map_err(io)?;
        let lock = folders.lock().map_err(io)?;
        let lock = lock.ok_or_else(|| {
            Error::Setting(format!(
                "another process has the store {}; end it, or give another",
                folder.display()
            ))
        })?;
        let store = ModelStore {
            folders,
            quota,
            books: Mutex::default(),
            changing: Mutex::default(),
            uploads: Arc::new(Semaphore::new(UPLOADS)),
            counts: Counts::default(),
            _lock: lock,
        };
        let whole = store.read().map_err(io)?;
        match whole {
            // The pieces of an unreadable manifest are unknown.
            false => {
                log::warn!(target: "djinn::server", "the store is not tidied: a manifest in it cannot be read")
            }
            true => store.collect().map_err(io)?,
        }
        Ok(store)
    }

    /// Reads the manifests. Returns whether all were readable.
    fn read(&self) -> std::io::Result<bool> {
        let (mut books, mut whole) = (self.books(), true);
        for folder in self.folders.models()? {
            let name = name::of_folder(&folder);
            match name.and_then(|name| Some((name, read_manifest(&folder).ok()?))) {
                Some((name, manifest)) => {
                    let created = changed(&folder);
                    let entry = Entry::new(Registration { name: name.clone(), manifest }, created);
                    let entry = entry.map_err(std::io::Error::other)?;
                    books.models.insert(name, entry);
                }
                None => {
                    whole = false;
                    log::warn!(target: "djinn::server", "{} is no model of a store", folder.display());
                }
            }
        }
        for file in self.folders.registered()? {
            let read = fs::read(&file)?;
            let registration = serde_json::from_slice::<Registration>(&read).ok();
            let entry = registration.and_then(|registration| Entry::new(registration, changed(&file)).ok());
            let fresh = reply::unix_now().saturating_sub(changed(&file)) < REGISTERED_FOR.as_secs();
            match entry {
                Some(entry) if fresh => drop(books.registered.insert(entry.id, entry)),
                _ => fs::remove_file(&file)?,
            }
        }
        Ok(whole)
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every model with its location, by name.
    pub(crate) fn models(&self) -> Vec<(String, Location)> {
        let names: Vec<String> = self.books().models.keys().cloned().collect();
        names.into_iter().map(|name| (name.clone(), self.place(&name))).collect()
    }

    /// The location of a model of this name.
    pub(crate) fn place(&self, name: &str) -> Location {
        self.location(self.folders.model(name), name)
    }

    fn location(&self, folder: PathBuf, name: &str) -> Location {
        Location::Stored { folder, blobs: self.folders.blobs(), name: name.to_owned() }
    }

    /// A permit for a piece to arrive.
    pub(crate) fn upload_permit(&self) -> Result<tokio::sync::OwnedSemaphorePermit, ApiError> {
        let permit = Arc::clone(&self.uploads).try_acquire_owned();
        permit.map_err(|_| ApiError::busy(format!("{UPLOADS} pieces are arriving already")))
    }

    /// Registers a manifest, and returns what the store lacks. The same one may be registered again.
    ///
    /// # Errors
    /// 400 for an invalid name or manifest, 409 for a name of another model of the store or of the `models` that are
    /// served, 507 if the quota or the disk is too small, 429 if too many are registered.
    pub(crate) fn register(
        &self,
        name: String,
        manifest: ModelManifest,
        models: &dyn Serves,
    ) -> Result<Lacking, ApiError> {
        self.registered(name, manifest, models).inspect_err(|_| self.counts.refused.add(1))
    }

    fn registered(
        &self,
        name: String,
        manifest: ModelManifest,
        models: &dyn Serves,
    ) -> Result<Lacking, ApiError> {
        name::check(&name).map_err(|error| ApiError::field("name", error))?;
        manifest.check().map_err(|error| ApiError::field("files", error))?;
        let registration = Registration { name: name.clone(), manifest };
        let entry =
            Entry::new(registration, reply::unix_now()).map_err(|error| ApiError::field("files", error))?;
        let id = entry.id;
        let _turn = self.changing();
        self.forget_old()?;
        let served = models.place_of(&name);
        let is_served = served.as_ref() == Some(&self.place(&name));
        let is_stored = match self.books().models.get(&name) {
            Some(model) if model.id == id && (is_served || served.is_none()) => true,
            None if served.is_none() => false,
            _ => return Err(taken(&name)),
        };
        let is_new = !is_stored && self.book(&entry)?;
        let lacking = self.lacking(&entry);
        let lacking_bytes = lacking.iter().map(|piece| piece.bytes - piece.have).sum();
        let written = match self.folders.free_bytes().filter(|&free| free < lacking_bytes) {
            Some(free) => {
                let (lacking, free) = (size::human(lacking_bytes), size::human(free));
                Err(full(format!("its disk has room for {free} of the {lacking} that are to come")))
            }
            None if is_new => {
                self.folders.write_registered(&id, entry.registration.as_ref()).map_err(of_disk)
            }
            None => Ok(()),
        };
        written.inspect_err(|_| {
            if is_new {
                self.books().registered.remove(&id);
            }
        })?;
        let (bytes, committed) = (entry.bytes(), is_stored && is_served);
        Ok(Lacking { id, object: "store.manifest", name, bytes, lacking_bytes, committed, lacking })
    }

    /// Registers a manifest, if it is not; its pieces are kept from now on. Returns whether it was not.
    ///
    /// # Errors
    /// 429 if too many are registered, 507 if the quota is too small.
    fn book(&self, entry: &Entry) -> Result<bool, ApiError> {
        let mut books = self.books();
        if books.registered.contains_key(&entry.id) {
            return Ok(false);
        }
        if books.registered.len() >= MOST_REGISTERED {
            return Err(ApiError::busy(format!(
                "{MOST_REGISTERED} manifests wait for their pieces; commit or delete some"
            )));
        }
        let needed = books.bytes_with(&entry.sizes);
        if needed > self.quota {
            let (needed, quota) = (size::human(needed), size::human(self.quota));
            return Err(full(format!("with this model the store would have {needed} of {quota}")));
        }
        books.registered.insert(entry.id, entry.clone());
        Ok(true)
    }

    /// The pieces that are not complete.
    fn lacking(&self, entry: &Entry) -> Vec<LackedPiece> {
        let lacks = |(hash, &bytes): (&ContentHash, &u64)| {
            let have = || self.folders.arrived(hash).min(bytes);
            (!self.folders.has(hash)).then(|| LackedPiece { hash: *hash, bytes, have: have() })
        };
        entry.sizes.iter().filter_map(lacks).collect()
    }

    /// Forgets a manifest, with the bytes that only it needs.
    ///
    /// # Errors
    /// 404 for an unknown one.
    pub(crate) fn unregister(&self, id: &ContentHash) -> Result<(), ApiError> {
        let _turn = self.changing();
        self.books().registered.remove(id).ok_or_else(|| no_manifest(id))?;
        self.forget(&[*id])
    }

    /// Forgets manifests whose pieces did not come in time.
    fn forget_old(&self) -> Result<(), ApiError> {
        let now = reply::unix_now();
        let mut old = Vec::new();
        self.books().registered.retain(|id, entry| {
            let is_old = now.saturating_sub(entry.created) >= REGISTERED_FOR.as_secs();
            old.extend(is_old.then_some(*id));
            !is_old
        });
        if old.is_empty() { Ok(()) } else { self.forget(&old) }
    }

    /// Removes from the disk what manifests need that are not registered any more.
    fn forget(&self, ids: &[ContentHash]) -> Result<(), ApiError> {
        for id in ids {
            self.counts.forgotten.add(1);
            self.folders.remove_registered(id).map_err(of_disk)?;
        }
        self.collect().map_err(of_disk)
    }

    /// Whether a model of this name is the store's.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.books().models.contains_key(name)
    }

    /// Removes a model, which is not served from now on, and the pieces that no other one has.
    ///
    /// # Errors
    /// 404 for an unknown one.
    pub(crate) fn remove(&self, name: &str, models: &dyn Serves) -> Result<(), ApiError> {
        let _turn = self.changing();
        if !self.has(name) {
            return Err(ApiError::no_model(name));
        }
        let place = self.place(name);
        if models.place_of(name) == Some(place) {
            models.remove(name);
        }
        self.folders.remove_model(name).map_err(of_disk)?;
        self.books().models.remove(name);
        self.collect().map_err(of_disk)
    }

    /// Removes pieces that nothing names. No piece gets a name meanwhile, since manifests change one at a time.
    fn collect(&self) -> std::io::Result<()> {
        let kept: HashSet<ContentHash> = {
            let books = self.books();
            books.entries().flat_map(|entry| entry.sizes.keys()).chain(&books.writing).copied().collect()
        };
        self.folders.retain(|hash| kept.contains(hash), |bytes| self.counts.collected(bytes))
    }

    /// What the store holds.
    pub(crate) fn show(&self) -> serde_json::Value {
        let books = self.books();
        let models = books.models.iter().map(|(name, entry)| {
            serde_json::json!({ "name": name, "bytes": entry.bytes(), "created": entry.created })
        });
        let registered = books.registered.iter().map(|(id, entry)| {
            let name = &entry.registration.name;
            serde_json::json!({ "id": id, "name": name, "bytes": entry.bytes(), "created": entry.created })
        });
        serde_json::json!({
            "object": "store",
            "quota_bytes": self.quota,
            "bytes": books.bytes_with(&BTreeMap::new()),
            "models": models.collect::<Vec<_>>(),
            "registered": registered.collect::<Vec<_>>(),
        })
    }
}

impl Entry {
    fn new(registration: Registration, created: u64) -> Result<Self, String> {
        let sizes = Arc::new(registration.manifest.sizes()?);
        let text = serde_json::to_vec(&registration).map_err(|error| error.to_string())?;
        Ok(Entry { id: ContentHash::of(&text), registration: Arc::new(registration), sizes, created })
    }

    fn bytes(&self) -> u64 {
        self.sizes.values().sum()
    }
}

/// When a file or folder was last changed, in seconds since 1970; now, if that is unknown.
fn changed(path: &Path) -> u64 {
    let at = fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    let since = at.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
    since.map_or_else(reply::unix_now, |since| since.as_secs())
}

fn taken(name: &str) -> ApiError {
    let message =
        format!("a model called {name} is there; DELETE /v1/models/{name} first, or take another name");
    ApiError::conflict(message, NAME_TAKEN)
}

fn no_manifest(id: &ContentHash) -> ApiError {
    ApiError::refused(StatusCode::NOT_FOUND, format!("no manifest {id} waits for pieces"))
}

/// 507: there is no room.
fn full(why: String) -> ApiError {
    let message = format!("the store is full: {why}; remove models");
    ApiError { code: Some("store_full"), ..ApiError::refused(StatusCode::INSUFFICIENT_STORAGE, message) }
}

/// The error for the disk's refusal.
fn of_disk(error: std::io::Error) -> ApiError {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            full("its disk has no room".to_owned())
        }
        _ => ApiError::failed(format!("the store's disk: {error}")),
    }
}
