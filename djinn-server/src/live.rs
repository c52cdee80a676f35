//! `/v1/live`: the models' state, for monitoring. Nothing is collected without a request.
//!
//! Numbers that are also on `/metrics` come from the same counters. A key sees its own sessions, and the number of
//! pages of others.

pub(crate) mod trace;
mod view;

use crate::ApiError;
use crate::reply::{self, Answered, EventSource, Frames};
use crate::request::{Asker, Pairs, tenant_salt};
use crate::server::Server;
use axum::extract::State;
use serde_json::json;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Milliseconds between two events.
const EVERY: RangeInclusive<u64> = 100..=60_000;
/// How long a server that is ending waits for monitoring clients.
const ENDS_WITHIN: Duration = Duration::from_millis(250);

/// Answers `GET /v1/live`: one object, or an event with one every `every_ms`.
///
/// # Errors
/// 400 for another time than 100 ms to a minute, 404 for a model that is not there.
pub(crate) async fn show(State(server): State<Arc<Server>>, asker: Asker, query: Pairs) -> Answered {
    if let Some(name) = query.get("model").filter(|name| server.served(name).is_none()) {
        return Err(ApiError::no_model(name));
    }
    let (tenant, has_keys) = (tenant_salt(asker), asker.is_some());
    let Some(every) = query.get("every_ms") else {
        let view = view::of(&server, &tenant, has_keys, &query).await;
        return reply::ok(&view);
    };
    let every = every.parse().ok().filter(|every| EVERY.contains(every)).ok_or_else(|| {
        ApiError::field("every_ms", format!("give milliseconds, {} to {}", EVERY.start(), EVERY.end()))
    })?;
    let every = Duration::from_millis(every);
    Ok(reply::events(Watch { server, tenant, has_keys, query, every, next: Instant::now() }))
}

/// A monitoring client.
struct Watch {
    server: Arc<Server>,
    tenant: Vec<u8>,
    has_keys: bool,
    query: Pairs,
    every: Duration,
    next: Instant,
}

impl EventSource for Watch {
    async fn next(&mut self, events: &mut Frames) -> bool {
        loop {
            if self.server.is_draining() {
                return false;
            }
            let now = Instant::now();
            if self.next <= now {
                break;
            }
            sleep_until(self.next.min(now + ENDS_WITHIN)).await;
        }
        events.data(&view::of(&self.server, &self.tenant, self.has_keys, &self.query).await);
        self.next = Instant::now() + self.every;
        true
    }

    fn still_here(&mut self, events: &mut Frames) {
        events.data(&json!({ "object": "ping" }));
    }
}
