//! `/v1/trace`: a timeline of a model that serves.

use crate::ApiError;
use crate::ask::ask;
use crate::blocking;
use crate::reply::{self, Answered};
use crate::request::Pairs;
use crate::server::Server;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use serde_json::json;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

/// Seconds that a trace may run.
const SECONDS: RangeInclusive<u64> = 1..=300;
const DEFAULT_SECONDS: u64 = 10;

fn gone() -> ApiError {
    ApiError::unavailable("the model's engine has ended")
}

/// Answers `POST /v1/trace/start`. The trace ends after `seconds`, or when it has grown large. It is kept until it is
/// taken or another one begins. It has names of operations, and no text.
///
/// # Errors
/// 400 for a time outside of 1 s to 5 min, 404 for an unknown model, 503 while its engine does not run.
pub(crate) async fn start(State(server): State<Arc<Server>>, query: Pairs) -> Answered {
    let model = server.model_of(query.get("model").map(String::as_str))?;
    let seconds = match query.get("seconds") {
        None => DEFAULT_SECONDS,
        Some(seconds) => {
            seconds.parse().ok().filter(|seconds| SECONDS.contains(seconds)).ok_or_else(|| {
                ApiError::field("seconds", format!("give seconds, {} to {}", SECONDS.start(), SECONDS.end()))
            })?
        }
    };
    let client = model.client()?;
    let begun = ask(|answer| client.begin_trace(Duration::from_secs(seconds), answer)).await;
    begun.ok_or_else(gone)?.map_err(|error| ApiError::of_engine(&error, "model"))?;
    reply::ok(&json!({ "object": "trace", "running": true, "seconds": seconds }))
}

/// Answers `POST /v1/trace/stop` with the trace, in Chrome's trace event format.
///
/// # Errors
/// 404 for an unknown model, 409 if no trace was begun, 503 while its engine does not run.
pub(crate) async fn stop(State(server): State<Arc<Server>>, query: Pairs) -> Answered {
    let model = server.model_of(query.get("model").map(String::as_str))?;
    let client = model.client()?;
    let trace = ask(|answer| client.end_trace(answer)).await.ok_or_else(gone)?;
    let trace = trace.ok_or_else(|| {
        ApiError::refused(StatusCode::CONFLICT, "no trace was begun; POST /v1/trace/start begins one")
    })?;
    let write = move || {
        let mut file = Vec::new();
        trace.write(&mut file).map(|()| file)
    };
    let file = blocking::run(write).await.and_then(Result::ok);
    let file = file.ok_or_else(|| ApiError::failed("the trace could not be written"))?;
    let mut response = reply::of_type("application/json", file);
    let name = HeaderValue::from_static("attachment; filename=\"djinn-trace.json\"");
    response.headers_mut().insert(header::CONTENT_DISPOSITION, name);
    Ok(response)
}
