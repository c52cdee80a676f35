//! `/v1/sessions/{id}/breakpoints`, `…/pause` and `…/steering`.

use super::breakpoint::{self, Armed, MOST_BREAKPOINTS, paused_json};
use super::engine::debug;
use super::tokens::{LOOK_SOON, wait_of};
use crate::ApiError;
use crate::fields::{BREAKPOINTS, SESSION_STEERING};
use crate::reply::{self, Answered};
use crate::request::{Asker, Pairs, tenant_salt};
use crate::server::{ApiRequest, Server};
use crate::sessions::Named;
use crate::steering::{HookRoom, Steered, SteeringUse};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use djinn_engine::debug::{Breakpoint, PausedAt};
use djinn_models::printable::one_line;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::time::{Instant, sleep_until, timeout_at};

/// The longest wait for a pause, in milliseconds.
const LONGEST_WAIT: u64 = 60_000;

/// Answers `POST /v1/sessions/{id}/breakpoints`.
pub(crate) async fn set(Path(id): Path<String>, query: Pairs, request: ApiRequest) -> Answered {
    let named = Named::find(&request.server, request.salt(), &id, &query)?;
    let fields = request.fields(&BREAKPOINTS)?.only_of(&BREAKPOINTS)?;
    let breakpoint = breakpoint::read(&fields, &named.model)?;
    let armed = arm(&named, breakpoint).await?;
    Ok(reply::json(StatusCode::CREATED, &armed.json()))
}

/// Arms a breakpoint: now, or when the session gets keys and values.
///
/// # Errors
/// 429 for too many breakpoints, or too little hook memory.
pub(super) async fn arm(named: &Named, breakpoint: Breakpoint) -> Result<Armed, ApiError> {
    refresh(named).await;
    let table = &named.model.sessions;
    let known = table.breakpoints(&named.key);
    if known.len() >= MOST_BREAKPOINTS {
        // The oldest used-up one is dropped.
        let Some(spent) = known.iter().find(|armed| armed.is_spent()) else {
            return Err(ApiError::busy(format!("the session has {} breakpoints; delete some", known.len())));
        };
        disarm(named, spent.number).await;
    }
    let at = match &named.record.engine {
        None => None,
        Some(engine) => {
            let own = breakpoint.clone();
            let armed =
                debug(engine, named.model.graph(), |debugger, id| debugger.set_breakpoint(id, own)).await;
            match armed {
                Ok(armed) => Some((engine.id, armed)),
                // It will be armed when the session is opened again.
                Err(error) if error.code == Some("session_without_state") => None,
                Err(error) => return Err(error),
            }
        }
    };
    named.touch();
    table.add_breakpoint(&named.key, breakpoint, at).ok_or_else(|| named.missing())
}

/// Removes a breakpoint. Returns whether it existed.
async fn disarm(named: &Named, number: u64) -> bool {
    let Some((armed, engine)) = named.model.sessions.remove_breakpoint(&named.key, number) else {
        return false;
    };
    if let (Some(engine), Some((session, at))) = (engine, armed.at)
        && session == engine.id
    {
        // The session may be gone.
        let _ =
            debug(&engine, named.model.graph(), move |debugger, id| debugger.clear_breakpoint(id, at)).await;
    }
    true
}

/// Updates the known state of a session's breakpoints.
pub(super) async fn refresh(named: &Named) {
    let Some(engine) = &named.record.engine else { return };
    let told = debug(engine, named.model.graph(), |debugger, id| debugger.breakpoints(id)).await;
    if let Ok(told) = told {
        named.model.sessions.update_breakpoints(&named.key, engine.id, &told);
    }
}

/// Answers `GET /v1/sessions/{id}/breakpoints`.
pub(crate) async fn list(named: Named) -> Answered {
    refresh(&named).await;
    let data: Vec<Value> = named.model.sessions.breakpoints(&named.key).iter().map(Armed::json).collect();
    reply::ok(&json!({ "object": "list", "data": data }))
}

/// Answers `DELETE /v1/sessions/{id}/breakpoints/{breakpoint}`.
pub(crate) async fn clear(named: Named, Path((_, breakpoint)): Path<(String, String)>) -> Answered {
    let was_there = match Armed::number(&breakpoint) {
        Some(number) => disarm(&named, number).await,
        None => false,
    };
    if !was_there {
        let message = format!("the session has no breakpoint `{}`", one_line(&breakpoint));
        let error = ApiError::refused(StatusCode::NOT_FOUND, message);
        return Err(ApiError { code: Some("breakpoint_not_found"), ..error });
    }
    reply::ok(&json!({ "id": breakpoint, "object": "breakpoint", "deleted": true }))
}

/// Answers `GET /v1/sessions/{id}/pause`, when the session is paused, the wait is over or the server ends. The session may
/// get its keys and values meanwhile.
pub(crate) async fn wait(
    State(server): State<Arc<Server>>,
    asker: Asker,
    Path(id): Path<String>,
    query: Pairs,
) -> Answered {
    let tenant = tenant_salt(asker);
    let until = wait_of(&query, "timeout_ms", 30_000, LONGEST_WAIT)?;
    loop {
        let (named, mut rings) = Named::listen(&server, &tenant, &id, &query)?;
        if let Some(at) = paused(&named).await {
            return reply::ok(&json!({ "paused_at": json_of(&named, &at) }));
        }
        named.record.engine.iter().for_each(|engine| named.record.bell.ring_at_pause(engine));
        let rung = tokio::select! {
            rung = timeout_at(until, rings.changed()) => rung.is_ok(),
            () = server.drains() => false,
        };
        if !rung {
            return reply::ok(&json!({ "paused_at": null }));
        }
        if paused(&named).await.is_none() {
            // It was opened or has ended; the next state is not known yet.
            sleep_until(until.min(Instant::now() + LOOK_SOON)).await;
        }
    }
}

/// Where a session is paused at a breakpoint, if it is.
async fn paused(named: &Named) -> Option<PausedAt> {
    let engine = named.record.engine.as_ref()?;
    debug(engine, named.model.graph(), |debugger, id| Ok(debugger.paused_at(id))).await.ok()?
}

fn json_of(named: &Named, at: &PausedAt) -> Option<Value> {
    let engine = named.record.engine.as_ref()?;
    Some(paused_json(at, engine.id, &named.model.sessions.breakpoints(&named.key)))
}

/// Answers `POST /v1/sessions/{id}/steering`.
pub(crate) async fn steer(Path(id): Path<String>, query: Pairs, request: ApiRequest) -> Answered {
    let named = Named::find(&request.server, request.salt(), &id, &query)?;
    let fields = request.fields(&SESSION_STEERING)?;
    let uses = SteeringUse::of(fields.whole(), named.model.graph())?;
    let room = HookRoom { bytes: named.model.hook_bytes, sessions: 1 };
    let steered = Steered::new(&named.model.steering, &named.key.0, Some(&uses), "vectors", room)?;
    named.model.sessions.check_steering(&named.key, &uses, room.bytes)?;
    if let Some(engine) = &named.record.engine {
        let edits = steered.edits;
        let told = debug(engine, named.model.graph(), |debugger, id| debugger.steer(id, edits)).await;
        match told {
            Err(error) if error.code != Some("session_without_state") => return Err(error),
            // A lost session will begin with it.
            _ => {}
        }
    }
    let mut body = uses.json();
    body["object"] = json!("session.steering");
    named.model.sessions.steer(&named.key, uses, steered.digest);
    named.touch();
    reply::ok(&body)
}
