//! `/v1/sessions`: shows sessions and acts on them.

use super::hints::{LONGEST_TTL, signal};
use super::table::{EngineSession, Key, Record, exists};
use super::{identity, residency_name};
use crate::ApiError;
use crate::ask::ask;
use crate::body::Fields;
use crate::debug::breakpoint::paused_json;
use crate::debug::{self, debug};
use crate::fields::{FORK, RESUME, SESSIONS, SIGNAL};
use crate::guard::Tenant;
use crate::model::ServedModel;
use crate::openai::answer_id;
use crate::reply::{self, Answered};
use crate::request::{Asker, Pairs, tenant_salt};
use crate::server::{ApiRequest, Server};
use axum::Extension;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use djinn_engine::Error as EngineError;
use djinn_engine::SessionId;
use djinn_engine::debug::PausedAt;
use djinn_scheduler::{Error as SchedulerError, SessionEvent, SessionReport, SignalOutcome};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The session that a path names.
pub(crate) struct Named {
    pub(crate) model: Arc<ServedModel>,
    model_name: String,
    pub(crate) key: Key,
    pub(crate) record: Record,
}

/// The session that the part `id` of the path names, of the request's tenant.
impl FromRequestParts<Arc<Server>> for Named {
    type Rejection = Response<Body>;

    async fn from_request_parts(parts: &mut Parts, server: &Arc<Server>) -> Result<Self, Response<Body>> {
        let path = Path::<HashMap<String, String>>::from_request_parts(parts, server).await;
        let Path(path) = path.map_err(IntoResponse::into_response)?;
        let query = Pairs::from_request_parts(parts, server).await.map_err(IntoResponse::into_response)?;
        let asker = parts.extensions.get::<Tenant>().copied().map(Extension);
        let found = Named::find(server, tenant_salt(asker), &path["id"], &query);
        found.map_err(IntoResponse::into_response)
    }
}

impl Named {
    /// A tenant's session. If several models have one of this name, the query names the model.
    pub(crate) fn find(server: &Server, tenant: Vec<u8>, id: &str, query: &Pairs) -> Result<Self, ApiError> {
        let key = (tenant, id.to_owned());
        let mut found: Option<Self> = None;
        for (model_name, model) in server.asked_models(query) {
            let Some(record) = model.sessions.record(&key) else { continue };
            if found.is_some() {
                let message = "several models have a session of this name; give `model` in the query";
                return Err(ApiError::field("model", message));
            }
            found = Some(Named { model, model_name, key: key.clone(), record });
        }
        found.ok_or_else(|| missing(id))
    }

    /// Finds a session, and listens to its bell. The record is read after the listening begins: a ring in between would
    /// be lost otherwise, and with it what it told of.
    pub(crate) fn listen(
        server: &Server,
        tenant: &[u8],
        id: &str,
        query: &Pairs,
    ) -> Result<(Self, watch::Receiver<()>), ApiError> {
        let rings = Self::find(server, tenant.to_vec(), id, query)?.record.bell.subscribe();
        Ok((Self::find(server, tenant.to_vec(), id, query)?, rings))
    }

    pub(super) fn of(
        model: Arc<ServedModel>,
        model_name: String,
        key: (Vec<u8>, String),
    ) -> Result<Self, ApiError> {
        let record = model.sessions.record(&key).ok_or_else(|| missing(&key.1))?;
        Ok(Named { model, model_name, key, record })
    }

    /// The session of the engine.
    ///
    /// # Errors
    /// 409 if there is none.
    pub(crate) fn engine(&self) -> Result<&EngineSession, ApiError> {
        self.record.engine.as_ref().ok_or_else(|| self.no_state())
    }

    pub(super) fn no_state(&self) -> ApiError {
        let message = format!(
            "the session `{}` has no keys and values: no request of it has run, or they were lost",
            self.key.1
        );
        ApiError::conflict(message, "session_without_state")
    }

    /// The engine's report on it.
    async fn report(&self) -> Option<EngineReport> {
        let engine = self.record.engine.as_ref()?;
        reports(std::slice::from_ref(engine)).await.pop().flatten()
    }

    /// The session as JSON for its client.
    pub(super) async fn body(&self) -> Value {
        body(&self.key.1, &self.model_name, &self.record, self.report().await)
    }

    /// Its state, in a word.
    pub(crate) async fn state(&self) -> &'static str {
        state(&self.record, self.report().await.as_ref())
    }

    /// Marks it as used.
    pub(crate) fn touch(&self) {
        self.model.sessions.change(&self.key, |record| record.used = Instant::now());
    }

    pub(crate) fn missing(&self) -> ApiError {
        missing(&self.key.1)
    }

    /// Sends the engine an event, and records its effect.
    async fn event(&self, event: SessionEvent) -> Result<(), ApiError> {
        let engine = self.engine()?;
        let told = ask(|answer| engine.client.begin_event(engine.id, event, answer)).await;
        match told {
            Some(Ok(())) => Ok(()),
            Some(Err(EngineError::Scheduler(SchedulerError::NotNow { .. }))) => {
                let message = format!("the session `{}` is in no state for this", self.key.1);
                Err(ApiError::conflict(message, "session_state"))
            }
            Some(Err(_)) | None => Err(self.no_state()),
        }
    }
}

fn missing(id: &str) -> ApiError {
    let id: String = id.chars().take(64).collect();
    let error = ApiError::refused(StatusCode::NOT_FOUND, format!("there is no session `{id}`"));
    ApiError { code: Some("session_not_found"), ..error }
}

/// An engine's report on a session.
#[derive(Clone)]
pub(crate) struct EngineReport {
    pub(crate) report: SessionReport,
    /// Where it is paused at a breakpoint, if it is.
    pub(crate) paused_at: Option<PausedAt>,
}

/// Reports on sessions of one engine.
async fn reports(sessions: &[EngineSession]) -> Vec<Option<EngineReport>> {
    let Some(first) = sessions.first() else { return Vec::new() };
    let ids: Vec<SessionId> = sessions.iter().map(|session| session.id).collect();
    let own = ids.clone();
    let reports = ask(|answer| first.client.begin_report(own, answer)).await.and_then(Result::ok);
    let paused = ask(|answer: Box<dyn FnOnce(Vec<Option<PausedAt>>) + Send>| {
        first.client.begin_debug(|debugger| {
            answer(ids.into_iter().map(|id| debugger.paused_at(id)).collect());
        });
    });
    let (Some(reports), Some(paused)) = (reports, paused.await) else { return vec![None; sessions.len()] };
    let told = |(report, paused_at): (Option<_>, _)| report.map(|report| EngineReport { report, paused_at });
    reports.into_iter().zip(paused).map(told).collect()
}

fn state(record: &Record, told: Option<&EngineReport>) -> &'static str {
    let computes = told.is_some_and(|told| told.report.phase.is_ready());
    match told {
        _ if record.paused => "paused",
        Some(told) if told.paused_at.is_some() => "paused",
        _ if record.is_running() || computes => "running",
        Some(_) => "waiting",
        None => "empty",
    }
}

/// A session as JSON for its client.
pub(crate) fn body(id: &str, model: &str, record: &Record, told: Option<EngineReport>) -> Value {
    let state = state(record, told.as_ref());
    let (report, paused_at) = told.map(|told| (told.report, told.paused_at)).unzip();
    let engine = record.engine.as_ref();
    let paused_at = paused_at.flatten().zip(engine);
    let paused_at = paused_at.map(|(at, engine)| paused_json(&at, engine.id, &record.breakpoints));
    let residency = report.as_ref().map_or("none", |report| residency_name(report.residency));
    let number = |of: fn(&SessionReport) -> u64| report.as_ref().map_or(0, of);
    json!({
        "id": id,
        "object": "session",
        "model": model,
        "created_at": record.created,
        "parent": record.parent,
        "named_by": record.named_by,
        "state": state,
        "phase": report.as_ref().map(|report| report.phase),
        "tool": report.as_ref().and_then(|report| report.tool.clone()),
        "tokens": number(|report| report.tokens),
        "computed_tokens": number(|report| report.computed),
        "kv_bytes": number(|report| report.kv_bytes),
        "residency": residency,
        "paused_at": paused_at,
        "eta_restore_ms": number(|report| report.eta_restore_ms),
        "idle_ms": u64::try_from(record.used.elapsed().as_millis()).unwrap_or(u64::MAX),
        "ttl_s": record.time_to_live.as_secs_f64(),
        "requests": record.requests,
        "usage": {
            "prompt_tokens": record.usage.prompt,
            "completion_tokens": record.usage.completion,
            "cached_tokens": record.usage.cached,
        },
    })
}

/// Answers `GET /v1/sessions`.
pub(crate) async fn list(State(server): State<Arc<Server>>, asker: Asker) -> Answered {
    let tenant = tenant_salt(asker);
    let mut data = Vec::new();
    for (name, model) in server.distinct_models() {
        let records = model.sessions.of_tenant(&tenant);
        let client = model.client().ok();
        // An engine that has ended reports no sessions.
        let is_live =
            |engine: &&EngineSession| client.as_ref().is_some_and(|client| client.is_same(&engine.client));
        let live = |record: &Record| record.engine.as_ref().filter(is_live).cloned();
        let engines: Vec<EngineSession> = records.iter().filter_map(|(_, record)| live(record)).collect();
        let mut told = reports(&engines).await.into_iter();
        for (id, record) in &records {
            let report = live(record).and_then(|_| told.next().flatten());
            data.push(body(id, &name, record, report));
        }
    }
    reply::ok(&json!({ "object": "list", "data": data }))
}

/// Answers `POST /v1/sessions`.
pub(crate) async fn create(request: ApiRequest) -> Answered {
    let fields = request.fields(&SESSIONS)?;
    let model = request.model(&fields)?;
    let id = new_id(&fields)?;
    let parent: Option<String> = fields.read("parent")?;
    let parent = parent.map(|parent| identity::check(&parent, "parent")).transpose()?;
    let time_to_live = fields.integer("ttl_s", 1..=LONGEST_TTL)?.map(Duration::from_secs);
    let key = (request.salt(), id);
    model.sessions.create(&key, parent, time_to_live)?;
    let record = model.sessions.record(&key).ok_or_else(|| missing(&key.1))?;
    reply::ok(&body(&key.1, &request.model_name(&model), &record, None))
}

/// The field `id`, or a new name.
fn new_id(fields: &Fields) -> Result<String, ApiError> {
    match fields.read::<String>("id")? {
        Some(id) => identity::check(&id, "id"),
        None => Ok(answer_id("sess_")),
    }
}

/// Answers `GET /v1/sessions/{id}`.
pub(crate) async fn show(named: Named) -> Answered {
    reply::ok(&named.body().await)
}

/// Answers `DELETE /v1/sessions/{id}`.
pub(crate) async fn delete(named: Named) -> Answered {
    match named.model.sessions.remove(&named.key) {
        true => reply::ok(&json!({ "id": named.key.1, "object": "session", "deleted": true })),
        false => Err(named.missing()),
    }
}

/// Answers `POST /v1/sessions/{id}/{action}`: signal, pause, resume, abort, fork or heartbeat.
pub(crate) async fn act(
    Path(id): Path<String>,
    action: &'static str,
    query: Pairs,
    request: ApiRequest,
) -> Answered {
    let named = Named::find(&request.server, request.salt(), &id, &query)?;
    let table = &named.model.sessions;
    match action {
        "signal" => return signalled(&named, &request).await,
        "fork" => return forked(&named, &request).await,
        "pause" => {
            named.event(SessionEvent::Pause).await?;
            table.change(&named.key, |record| record.paused = true);
        }
        "abort" => {
            if named.state().await == "waiting" {
                return Err(ApiError::conflict(
                    format!("the session `{}` has no turn", named.key.1),
                    "session_state",
                ));
            }
            named.event(SessionEvent::EndTurn).await?;
            if named.record.paused {
                named.event(SessionEvent::Resume).await?;
                table.change(&named.key, |record| record.paused = false);
            }
        }
        "resume" if !named.record.paused => {
            let fields = request.fields_or_none(&RESUME)?.only_of(&RESUME)?;
            debug::resume(&named, &fields).await?;
        }
        "resume" => {
            let fields = request.fields_or_none(&RESUME)?.only_of(&RESUME)?;
            if fields.get("until").is_some() {
                let message =
                    "`until` is for a session that is paused at a breakpoint; its client holds this one";
                return Err(ApiError::field("until", message));
            }
            // A session that was lost meanwhile is not held any more.
            let resumed = named.event(SessionEvent::Resume).await;
            table.change(&named.key, |record| record.paused = false);
            resumed?;
        }
        _ => {}
    }
    table.change(&named.key, |record| record.used = Instant::now());
    reply::ok(&Named::find(&request.server, request.salt(), &id, &query)?.body().await)
}

async fn signalled(named: &Named, request: &ApiRequest) -> Answered {
    let fields = request.fields(&SIGNAL)?;
    let signal = signal(fields.whole())?;
    let gone = || ApiError { status: StatusCode::NOT_FOUND, ..named.no_state() };
    let engine = named.record.engine.as_ref().ok_or_else(gone)?;
    let told = ask(|answer| engine.client.begin_signal(engine.id, signal, answer)).await;
    let told = told.and_then(Result::ok).filter(|told| told.outcome != SignalOutcome::Missing);
    let told = told.ok_or_else(gone)?;
    named.model.sessions.change(&named.key, |record| {
        record.used = Instant::now();
        if told.outcome == SignalOutcome::Deferred {
            record.is_told();
        }
    });
    let mut body = json!(told);
    body["residency"] = json!(residency_name(told.residency));
    reply::ok(&body)
}

async fn forked(named: &Named, request: &ApiRequest) -> Answered {
    let fields = request.fields_or_none(&FORK)?;
    let id = new_id(&fields)?;
    let table = &named.model.sessions;
    let key = (named.key.0.clone(), id);
    if table.record(&key).is_some() {
        return Err(exists(&key.1));
    }
    let engine = named.engine()?;
    let client = engine.client.clone();
    // The fork of a session paused at a breakpoint is paused there, too.
    let paused = debug(engine, named.model.graph(), |debugger, id| Ok(debugger.paused_at(id))).await?;
    let told = match paused {
        Some(_) => {
            let made = debug(engine, named.model.graph(), |debugger, id| debugger.fork_paused(id)).await?;
            Some(Ok(made))
        }
        None => ask(|answer| client.begin_fork(engine.id, answer)).await,
    };
    match told {
        Some(Ok(id)) => table.adopt(&key, &named.key.1, EngineSession { client, id })?,
        Some(Err(EngineError::Scheduler(SchedulerError::Refused { why, .. }))) => {
            return Err(ApiError::of_refusal(why));
        }
        Some(Err(EngineError::Scheduler(SchedulerError::TooLong { .. }))) => {
            let message = format!("the session `{}` has no room left in its context", named.key.1);
            return Err(ApiError::conflict(message, "session_state"));
        }
        Some(Err(_)) | None => return Err(named.no_state()),
    }
    reply::ok(&Named::of(Arc::clone(&named.model), named.model_name.clone(), key)?.body().await)
}
