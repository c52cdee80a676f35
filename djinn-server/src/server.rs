//! The server: models by name, access, limits, state.

use crate::blocking;
use crate::body::{Fields, ParsingRoom, RoomTaken};
use crate::error::{Error, Result};
use crate::facts::RequestFacts;
use crate::fields::Endpoint;
use crate::guard::Tenant;
use crate::listen::BoundServer;
use crate::metrics::{self, ModelPage, ServerMetrics};
use crate::model::{ServedModel, SharedDevice};
use crate::openai::responses::ResponseStore;
use crate::remote::tables::OwnMachine;
use crate::request::Pairs;
use crate::sessions::hints::Hints;
use crate::store::serving::Sharing;
use crate::time_up::TimeUp;
use crate::{AccessRules, ApiError, Keys, LogFormat, reply};
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, Response, StatusCode};
use bytes::Bytes;
use djinn_engine::Residence;
use djinn_host::Target;
use djinn_models::{Location, Model};
use djinn_vmu::Machine;
use serde_json::{Map, json};
use std::net::{TcpListener, ToSocketAddrs};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

/// Limits of number and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Requests that are served or queued; more are answered with 429. Health checks, metrics, `/v1/live`, the list of
    /// models and such do not count.
    pub requests: usize,
    /// Connections; more are closed at once with 503.
    pub connections: usize,
    /// Time for a request's headers, and between two requests of a connection.
    pub header_time: Duration,
    /// Time for a request's body.
    pub body_time: Duration,
    /// Time for a client to read what was sent, per write.
    pub write_time: Duration,
    /// Time for requests to finish after the server was told to stop. The rest gets 503, or an event with the error.
    pub drain_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            body_bytes: 8 << 20,
            requests: 256,
            connections: 1024,
            header_time: Duration::from_secs(30),
            body_time: Duration::from_secs(30),
            write_time: Duration::from_secs(60),
            drain_time: Duration::from_secs(30),
        }
    }
}

/// Models over HTTP.
#[derive(Debug)]
pub struct Server {
    /// A model may have several names.
    models: RwLock<Vec<(String, Arc<ServedModel>)>>,
    /// The device of models that are added later.
    device: Option<SharedDevice>,
    pub(crate) sharing: Sharing,
    pub(crate) own_machine: OwnMachine,
    pub(crate) limits: Limits,
    keys: Keys,
    /// `None`: the rules for its address.
    access: Option<AccessRules>,
    pub(crate) permits: Arc<Semaphore>,
    pub(crate) parsing: ParsingRoom,
    draining: watch::Sender<bool>,
    /// Whether requests had their time since then.
    time_up: watch::Sender<bool>,
    pub(crate) responses: ResponseStore,
    pub(crate) metrics: ServerMetrics,
    pub(crate) log_format: LogFormat,
    #[cfg(feature = "otel")]
    pub(crate) telemetry: Option<crate::Telemetry>,
}

impl Default for Server {
    fn default() -> Self {
        Self::new()
    }
}

impl Server {
    /// A server without models, with default limits and without keys.
    pub fn new() -> Self {
        let limits = Limits::default();
        Server {
            models: RwLock::default(),
            device: None,
            sharing: Sharing::default(),
            own_machine: OwnMachine::default(),
            limits,
            keys: Keys::default(),
            access: None,
            permits: Arc::new(Semaphore::new(limits.requests)),
            parsing: ParsingRoom::default(),
            draining: watch::Sender::new(false),
            time_up: watch::Sender::new(false),
            responses: ResponseStore::default(),
            metrics: ServerMetrics::default(),
            log_format: LogFormat::default(),
            #[cfg(feature = "otel")]
            telemetry: None,
        }
    }

    /// Adds a model under a name, which requests give as `model`.
    #[must_use]
    pub fn model(self, name: impl Into<String>, model: ServedModel) -> Self {
        self.named([name], model)
    }

    /// Adds a model under several names.
    #[must_use]
    pub fn named<N: Into<String>>(self, names: impl IntoIterator<Item = N>, model: ServedModel) -> Self {
        let model = Arc::new(model);
        self.models_mut().extend(names.into_iter().map(|name| (name.into(), Arc::clone(&model))));
        self
    }

    /// Adds a device for models that are [added](Self::add) later.
    #[must_use]
    pub fn device(self, device: SharedDevice) -> Self {
        Server { device: Some(device), ..self }
    }

    /// Adds a model while others are served. It is loaded at its first request.
    ///
    /// # Errors
    /// [`Error::Setting`] for an empty or used name, or without a [device](Self::device); a model that cannot be
    /// opened.
    pub fn add(&self, name: &str, location: &Location) -> Result<Arc<ServedModel>> {
        // A model under a refused name is not opened.
        check_new(name, &self.models())?;
        self.add_opened(name, self.open(location)?)
    }

    /// As [`add`](Self::add), for an [open](Self::open) model.
    pub(crate) fn add_opened(&self, name: &str, model: Model) -> Result<Arc<ServedModel>> {
        let model = Arc::new(self.shared_device()?.add(model)?);
        let mut models = self.models_mut();
        check_new(name, &models)?;
        models.push((name.to_owned(), Arc::clone(&model)));
        Ok(model)
    }

    /// Opens a model for the device to which models may be added.
    pub(crate) fn open(&self, location: &Location) -> Result<Model> {
        self.shared_device()?.open(location)
    }

    fn shared_device(&self) -> Result<&SharedDevice> {
        let none = || Error::Setting("the server takes no more models".to_owned());
        self.device.as_ref().ok_or_else(none)
    }

    /// Removes a name. Running requests finish first; then the model is freed if it has no other name. Returns false
    /// for an unknown name.
    pub fn remove(&self, name: &str) -> bool {
        let mut models = self.models_mut();
        let before = models.len();
        models.retain(|(known, _)| known != name);
        models.len() < before
    }

    fn models(&self) -> RwLockReadGuard<'_, Vec<(String, Arc<ServedModel>)>> {
        self.models.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn models_mut(&self) -> RwLockWriteGuard<'_, Vec<(String, Arc<ServedModel>)>> {
        self.models.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets other limits.
    #[must_use]
    pub fn limits(self, limits: Limits) -> Self {
        Server { limits, permits: Arc::new(Semaphore::new(limits.requests)), ..self }
    }

    /// Sets another format of the log.
    #[must_use]
    pub fn log_format(self, log_format: LogFormat) -> Self {
        Server { log_format, ..self }
    }

    /// Requires a key.
    #[must_use]
    pub fn keys(self, keys: Keys) -> Self {
        Server { keys, ..self }
    }

    /// Sets the measured rates of this machine, for predictions. Otherwise they are measured on request.
    #[must_use]
    pub fn machine(self, machine: Machine) -> Self {
        self.own_machine.set(Target::measured(machine));
        self
    }

    /// Sets the allowed hosts and origins. Otherwise [`AccessRules::at`] decides by the address.
    #[must_use]
    pub fn access(self, access: AccessRules) -> Self {
        Server { access: Some(access), ..self }
    }

    /// Listens at an address. Clients may connect from now on; they are served once the result
    /// [runs](BoundServer::run).
    ///
    /// # Errors
    /// [`Error::Io`] if the address is not this machine's or in use. [`Error::Setting`] for a server
    /// with neither a model nor a device, or two models of one name.
    pub fn bind(self, address: impl ToSocketAddrs) -> Result<BoundServer> {
        self.at(crate::listen::listen(address)?)
    }

    /// As [`bind`](Self::bind), with a listener.
    ///
    /// # Errors
    /// [`Error::Setting`] as there, [`Error::Io`] for an unusable listener.
    pub fn at(mut self, listener: TcpListener) -> Result<BoundServer> {
        let names = self.names();
        if names.is_empty() && self.device.is_none() {
            return Err(Error::Setting("the server has no model".to_owned()));
        }
        for (at, name) in names.iter().enumerate() {
            if name.is_empty() || names[..at].contains(name) {
                return Err(Error::Setting(format!("two models are called {name:?}, or one has no name")));
            }
        }
        let unknown = |source| Error::Io { what: "cannot tell the server's address".to_owned(), source };
        let address = listener.local_addr().map_err(unknown)?;
        self.access.get_or_insert_with(|| AccessRules::at(address.ip()));
        if self.sharing.is_there() {
            self.shared_device()?;
        }
        self.sharing.is_local = address.ip().is_loopback();
        self.serve_stored();
        Ok(BoundServer::new(Arc::new(self), listener, address))
    }

    /// Serves at an address until the process ends. Call it outside of an asynchronous runtime: it has its own.
    ///
    /// # Errors
    /// As [`bind`](Self::bind) and [`BoundServer::run`].
    pub fn run(self, address: impl ToSocketAddrs) -> Result<()> {
        self.bind(address)?.run()
    }

    /// The names of all models, in the given order.
    pub fn names(&self) -> Vec<String> {
        self.models().iter().map(|(name, _)| name.clone()).collect()
    }

    /// The models, each with its first name.
    pub(crate) fn distinct_models(&self) -> Vec<(String, Arc<ServedModel>)> {
        let mut distinct: Vec<(String, Arc<ServedModel>)> = Vec::new();
        for (name, model) in &*self.models() {
            if distinct.iter().all(|(_, other)| !Arc::ptr_eq(other, model)) {
                distinct.push((name.clone(), Arc::clone(model)));
            }
        }
        distinct
    }

    /// The models that a query selects: the one in `model`, or all.
    pub(crate) fn asked_models(&self, Query(query): &Pairs) -> Vec<(String, Arc<ServedModel>)> {
        let mut models = self.distinct_models();
        if let Some(name) = query.get("model") {
            let asked = self.served(name);
            models.retain(|(_, model)| asked.as_ref().is_some_and(|asked| Arc::ptr_eq(asked, model)));
        }
        models
    }

    /// Whether a model's device is lost such that only another process can recover.
    pub(crate) fn has_lost_device(&self) -> bool {
        self.models().iter().any(|(_, model)| model.has_lost_device())
    }

    /// Forgets sessions that were not used for their time to live.
    pub(crate) fn sweep_sessions(&self) {
        self.models().iter().for_each(|(_, model)| model.sessions.sweep());
    }

    pub(crate) fn served(&self, name: &str) -> Option<Arc<ServedModel>> {
        self.models().iter().find(|(known, _)| known == name).map(|(_, model)| Arc::clone(model))
    }

    /// The model with this name, or the only one without a name.
    ///
    /// # Errors
    /// 404 for an unknown name, 400 for no name if there are several models.
    pub(crate) fn model_of(&self, name: Option<&str>) -> Result<Arc<ServedModel>, ApiError> {
        match (name, self.models().as_slice()) {
            (Some(name), models) => {
                let known = models.iter().find(|(known, _)| known == name);
                known.map(|(_, model)| Arc::clone(model)).ok_or_else(|| ApiError::no_model(name))
            }
            (None, [(_, only), more @ ..]) if more.iter().all(|(_, other)| Arc::ptr_eq(only, other)) => {
                Ok(Arc::clone(only))
            }
            _ => Err(ApiError::field("model", "`model` is missing; see /v1/models")),
        }
    }

    pub(crate) fn first_name(&self, model: &Arc<ServedModel>) -> String {
        let models = self.models();
        let found = models.iter().find(|(_, other)| Arc::ptr_eq(model, other));
        found.map_or_else(String::new, |(name, _)| name.clone())
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Waits until the server is ending.
    pub(crate) async fn drains(&self) {
        // It has the sender.
        let _ = self.draining.subscribe().wait_for(|ends| *ends).await;
    }

    pub(crate) fn check_access(&self, headers: &HeaderMap) -> Result<Option<String>, ApiError> {
        self.access.as_ref().map_or(Ok(None), |access| access.check(headers))
    }

    pub(crate) fn may_push(&self, tenant: Option<Tenant>) -> bool {
        self.keys.may_push(tenant) && (self.sharing.is_local || !self.keys.is_empty())
    }

    pub(crate) fn tenant(&self, headers: &HeaderMap) -> Result<Option<Tenant>, ApiError> {
        self.keys.tenant(headers)
    }

    /// Notes that the server is ending and accepts no more.
    pub(crate) fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Fails the requests that are not finished.
    pub(crate) fn end_requests(&self) {
        self.time_up.send_replace(true);
    }

    pub(crate) fn time_up(&self) -> TimeUp {
        TimeUp::new(self.time_up.subscribe())
    }
}

/// Refuses a name that is empty, or that one of the `models` has.
fn check_new(name: &str, models: &[(String, Arc<ServedModel>)]) -> Result<()> {
    if name.is_empty() || models.iter().any(|(known, _)| known == name) {
        return Err(Error::Setting(format!("there is a model {name:?} already, or it is no name")));
    }
    Ok(())
}

/// A request that passed the checks.
#[derive(Clone, Debug)]
pub(crate) struct ApiRequest {
    pub(crate) server: Arc<Server>,
    pub(crate) tenant: Option<Tenant>,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// For the body's values, until the request and its fields are dropped.
    pub(crate) room: Option<RoomTaken>,
}

impl ApiRequest {
    /// The body's fields. They keep the body's room as long as they live.
    ///
    /// # Errors
    /// As [`Fields::parse`].
    pub(crate) fn fields(&self, endpoint: &Endpoint) -> Result<Fields, ApiError> {
        Ok(Fields::parse(&self.body, endpoint)?.in_room(self.room.clone()))
    }

    /// As [`fields`](Self::fields); an empty body has no fields.
    ///
    /// # Errors
    /// As [`Fields::parse`].
    pub(crate) fn fields_or_none(&self, endpoint: &Endpoint) -> Result<Fields, ApiError> {
        if self.body.is_empty() { Fields::new(Map::new(), endpoint) } else { self.fields(endpoint) }
    }

    /// The model that the field `model` names, or the only one without it.
    pub(crate) fn model(&self, fields: &Fields) -> Result<Arc<ServedModel>, ApiError> {
        let asked = fields.read::<String>("model")?;
        let model = self.server.model_of(asked.as_deref())?;
        RequestFacts::current().of_model(asked, self.model_name(&model));
        Ok(model)
    }

    /// The model's name in responses: its first one.
    pub(crate) fn model_name(&self, model: &Arc<ServedModel>) -> String {
        self.server.first_name(model)
    }

    /// The session hints of a request for `model`. `response` is the session that its response would name.
    pub(crate) fn hints(
        &self,
        fields: &Fields,
        model: &ServedModel,
        response: Option<&str>,
    ) -> Result<Hints, ApiError> {
        Hints::read(&self.headers, fields, self.salt(), model.graph(), response)
    }

    /// The salt that separates the tenant's prefixes from those of others.
    pub(crate) fn salt(&self) -> Vec<u8> {
        self.tenant.as_ref().map_or_else(Vec::new, |tenant| tenant.salt().to_vec())
    }
}

/// Answers `/ready`: whether all models answer requests, and the server is not ending. Only those who may ask for the
/// models learn the names of those that do not.
pub(crate) async fn ready(State(server): State<Arc<Server>>, headers: HeaderMap) -> Response<Body> {
    let ends = server.is_draining();
    let missing: Vec<String> =
        server.models().iter().filter(|(_, model)| !model.is_ready()).map(|(name, _)| name.clone()).collect();
    let ready = !ends && missing.is_empty();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut body = json!({ "ready": ready, "draining": ends, "not_ready": missing.len() });
    if server.tenant(&headers).is_ok() {
        body["models_not_ready"] = json!(missing);
    }
    reply::json(status, &body)
}

/// Answers `/metrics` in Prometheus' format.
pub(crate) async fn metrics_page(State(server): State<Arc<Server>>) -> Response<Body> {
    let (models, mut pages) = (server.distinct_models(), Vec::new());
    for (name, model) in &models {
        let (occupancy, sessions) = (model.occupancy().await, model.sessions.len());
        let (is_loaded, loads) = (model.residence() == Residence::Device, model.loads());
        // A model on the device that does not answer is not up.
        let is_up = model.is_ready() && (occupancy.is_some() || !is_loaded);
        pages.push(ModelPage { name, metrics: &model.metrics, occupancy, sessions, is_up, is_loaded, loads });
    }
    let mut page = metrics::page(&pages, &server.metrics);
    if server.sharing.is_there() {
        let server = Arc::clone(&server);
        let of_store = blocking::run(move || {
            let mut page = String::new();
            server.sharing.write_metrics(&mut page);
            page
        });
        page += &of_store.await.unwrap_or_default();
    }
    reply::of_type("text/plain; version=0.0.4; charset=utf-8", page)
}
