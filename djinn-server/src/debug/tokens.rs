//! `/v1/sessions/{id}/tokens`: all tokens of a session, with or without a waiting request.

use super::engine::debug;
use crate::ApiError;
use crate::reply::{self, Answered};
use crate::request::{Asker, Pairs, tenant_salt};
use crate::server::Server;
use crate::sessions::Named;
use axum::extract::{Path, State};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// The longest wait, in milliseconds.
const LONGEST_WAIT: u64 = 600_000;
/// When a running session is looked at again: soon at first. It may end without a ring, as a fork's turn does.
pub(super) const LOOK_SOON: Duration = Duration::from_millis(20);
const LOOK_LATER: Duration = Duration::from_millis(200);

/// A number of milliseconds in a query.
///
/// # Errors
/// 400 that names it.
pub(super) fn wait_of(
    query: &Pairs,
    name: &'static str,
    default: u64,
    most: u64,
) -> Result<Instant, ApiError> {
    let time = query.get(name).map_or(Ok(default), |time| time.parse());
    match time {
        Ok(time) if time <= most => Ok(Instant::now() + Duration::from_millis(time)),
        _ => Err(ApiError::field(name, format!("`{name}` must be whole milliseconds, up to {most}"))),
    }
}

/// Answers `GET /v1/sessions/{id}/tokens`, when the session does not run any more, the wait is over or the server ends.
pub(crate) async fn show(
    State(server): State<Arc<Server>>,
    asker: Asker,
    Path(id): Path<String>,
    query: Pairs,
) -> Answered {
    let tenant = tenant_salt(asker);
    let until = wait_of(&query, "wait_ms", 0, LONGEST_WAIT)?;
    let mut look_in = LOOK_SOON;
    let (named, state) = loop {
        let (named, mut rings) = Named::listen(&server, &tenant, &id, &query)?;
        let state = named.state().await;
        if state != "running" || Instant::now() >= until || server.is_draining() {
            break (named, state);
        }
        named.record.engine.iter().for_each(|engine| named.record.bell.ring_at_pause(engine));
        tokio::select! {
            _ = rings.changed() => look_in = LOOK_SOON,
            () = sleep_until(until.min(Instant::now() + look_in)) => look_in = LOOK_LATER.min(look_in * 2),
            () = server.drains() => {}
        }
    };
    let graph = named.model.graph();
    let (tokens, generated) = debug(named.engine()?, graph, |debugger, id| debugger.tokens(id)).await?;
    let from = generated.last().map_or(tokens.len() as u64, |range| range.start);
    let text = named.model.answer_text(tokens.get(from as usize..).unwrap_or_default());
    named.touch();
    reply::ok(&json!({
        "object": "session.tokens",
        "token_ids": tokens,
        "generated_from": from,
        "text": text,
        "state": state,
    }))
}
