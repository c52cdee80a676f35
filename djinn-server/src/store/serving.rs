//! Serves the store's models.

use super::{ModelStore, Serves};
use crate::ApiError;
use crate::guard::Tenant;
use crate::server::Server;
use axum::http::StatusCode;
use djinn_models::{Location, Model};
use std::sync::Arc;

/// A server's store, and who may use it.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    store: Option<Arc<ModelStore>>,
    /// Whether only this machine reaches the server.
    pub(crate) is_local: bool,
}

impl Sharing {
    pub(crate) fn is_there(&self) -> bool {
        self.store.is_some()
    }

    /// Adds the store's part to the page of metrics, if there is one.
    pub(crate) fn write_metrics(&self, page: &mut String) {
        self.store.iter().for_each(|store| store.write_metrics(page));
    }
}

impl Server {
    /// Adds a store to which clients may send models. Its models are served on the server's [device](Self::device).
    /// Without keys, clients of this machine may send if the address is a loopback one; with keys, those [that
    /// may](crate::Keys::with_push).
    #[must_use]
    pub fn store(mut self, store: ModelStore) -> Self {
        self.sharing.store = Some(Arc::new(store));
        self
    }

    /// The store, for a tenant that may send models.
    ///
    /// # Errors
    /// 404 if the server has none, 403 for another tenant.
    pub(crate) fn store_for(&self, tenant: Option<Tenant>) -> Result<Arc<ModelStore>, ApiError> {
        let none =
            || ApiError::refused(StatusCode::NOT_FOUND, "the server has no store; start it with --store DIR");
        let store = self.sharing.store.as_ref().ok_or_else(none)?;
        if !self.may_push(tenant) {
            let message = "this key may not send models; start the server with --push-key";
            return Err(ApiError::refused(StatusCode::FORBIDDEN, message));
        }
        Ok(Arc::clone(store))
    }

    /// Serves the store's models. One that cannot be opened is logged and left out.
    pub(crate) fn serve_stored(&self) {
        let Some(store) = &self.sharing.store else { return };
        for (name, place) in store.models() {
            if let Err(error) = self.add(&name, &place) {
                let why = djinn_host::one_line(&error);
                log::error!(target: "djinn::server", "the model {name} of the store is not served: {why}");
            }
        }
    }
}

impl Serves for Server {
    fn place_of(&self, name: &str) -> Option<Location> {
        Some(self.served(name)?.model().location.clone())
    }

    fn open(&self, place: &Location, later: Location) -> Result<Model, ApiError> {
        let opened = self.open(place).map_err(|error| ApiError::field("files", djinn_host::one_line(&error)));
        Ok(Model { location: later, ..opened? })
    }

    fn add(&self, name: &str, model: Model) -> Result<(), ApiError> {
        let added = self.add_opened(name, model);
        added.map(drop).map_err(|error| ApiError::failed(djinn_host::one_line(&error)))
    }

    fn remove(&self, name: &str) {
        self.remove(name);
    }
}
