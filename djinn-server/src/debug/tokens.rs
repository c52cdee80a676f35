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
use tokio::time::{Instant, sleep, sleep_until};

/// The longest wait, in milliseconds.
const LONGEST_WAIT: u64 = 600_000;
/// How often a running session is polled.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(20);

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

/// Answers `GET /v1/sessions/{id}/tokens`, when the session does not run any more or the wait is over.
pub(crate) async fn show(
    State(server): State<Arc<Server>>,
    asker: Asker,
    Path(id): Path<String>,
    query: Pairs,
) -> Answered {
    let tenant = tenant_salt(asker);
    let until = wait_of(&query, "wait_ms", 0, LONGEST_WAIT)?;
    let (named, state) = loop {
        let named = Named::find(&server, tenant.clone(), &id, &query)?;
        let state = named.state().await;
        if state != "running" || Instant::now() >= until {
            break (named, state);
        }
        tokio::select! {
            () = sleep(LOOK_EVERY) => {}
            () = sleep_until(until) => {}
        }
    };
    let graph = named.model.graph();
    let (tokens, generated) = debug(named.engine()?, graph, |debugger, id| debugger.tokens(id)).await?;
    let from = generated.last().map_or(tokens.len() as u64, |range| range.start);
    let text = named.model.text_of(tokens.get(from as usize..).unwrap_or_default());
    named.touch();
    reply::ok(&json!({
        "object": "session.tokens",
        "token_ids": tokens,
        "generated_from": from,
        "text": text,
        "state": state,
    }))
}
