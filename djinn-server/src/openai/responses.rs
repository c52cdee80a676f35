//! OpenAI's Responses API: `/v1/responses`.
//!
//! A request's items become a chat request ([`request`]) and are served as one; the answer becomes items ([`output`]).
//! Responses are stored ([`store`]) unless the request forbids it. A response that continues an earlier one begins
//! with that one's items. So its prompt begins with the earlier one's, and it is the next turn of its session.

mod output;
mod request;
mod store;

use super::{answer_id, chat};
use crate::beginning::{self, EarlyEvents};
use crate::body::RoomTaken;
use crate::fields::RESPONSES;
use crate::reply::{self, Answered, EventSource, Frames};
use crate::request::{Asker, Pairs, tenant_of, tenant_salt};
use crate::server::{ApiRequest, Server};
use crate::{Answers, ApiError, Piece};
use axum::extract::{Path, State};
use output::{Outcome, Output};
use serde_json::{Value, json};
use std::sync::Arc;
use store::{Keeping, Kept};

pub(crate) use store::ResponseStore;

/// Items of a page of `input_items`.
const PAGE: usize = 20;
const LONGEST_PAGE: usize = 100;

/// Answers `POST /v1/responses`.
pub(crate) async fn create(request: ApiRequest) -> Answered {
    let fields = request.fields(&RESPONSES)?;
    let model = request.model(&fields)?;
    let stream = fields.flag("stream")?;
    let store = fields.read("store")?.unwrap_or(true);
    let previous: Option<String> = fields.read("previous_response_id")?;
    let (earlier, session) = match &previous {
        None => (None, None),
        Some(id) => {
            let server = &request.server;
            let (items, session) = server.responses.items(id, request.tenant, &server.parsing)?;
            (Some(items), session)
        }
    };
    let id = answer_id("resp_");
    // A stored response names the session of those that continue it.
    let own = session.or_else(|| store.then(|| id.clone()));
    let hints = request.hints(&fields, &model, own.as_deref())?;
    let session = hints.session_id().map(str::to_owned);
    let (salt, name) = (request.salt(), request.model_name(&model));
    let prepared = model.work(move |model| {
        let input = request::items(fields.get("input"), "input")?;
        let earlier = earlier.as_ref().map_or(&[][..], |earlier| &earlier.value);
        let chat = request::chat_fields(&fields, earlier, &input)?;
        let mut generate = chat::generate(&chat, model, &salt).map_err(request::in_own_names)?;
        generate.prompt_field = "input";
        let head = output::head(&fields, &generate, name, store)?;
        Ok((generate, input, head))
    });
    let (mut generate, input, head) = prepared.await?;
    let ApiRequest { server, tenant, room, .. } = request;
    hints.apply(&mut generate);
    let run = move |answers: Answers| {
        let output = Output::new(id, head);
        let keeping = store.then(|| {
            let kept = Kept::new(tenant, previous, input, output.body(answers.usage()));
            Keeping::begin(&server, kept.in_session(session))
        });
        Running { output, answers, keeping, _room: room }
    };
    if stream {
        let early =
            EarlyEvents { failure: |error, events| events.event(&early_error(error)), progress: |_| None };
        let make = move |answers| ResponseStream { running: run(answers), begun: false };
        return beginning::events(model, generate, early, make).await;
    }
    let mut running = run(Answers::begin(model, generate).await?);
    while let Some(piece) = running.next().await {
        match piece {
            Ok(piece) => running.output.take(piece, running.answers.usage(), &mut |_| {}),
            Err(error) => {
                running.end(&mut |_| {});
                return Err(error);
            }
        }
    }
    let body = running.end(&mut |_| {});
    reply::ok(&body)
}

/// A failure before there is a response.
fn early_error(error: &ApiError) -> Value {
    let ApiError { message, code, param, .. } = error;
    json!({ "type": "error", "code": code, "message": message, "param": param, "sequence_number": 0 })
}

struct Running {
    output: Output,
    answers: Answers,
    keeping: Option<Keeping>,
    /// For what the output repeats of the request.
    _room: Option<RoomTaken>,
}

impl Running {
    /// The next piece; `None` at the end, also if the response is cancelled. Dropping the future loses nothing.
    async fn next(&mut self) -> Option<Result<Piece, ApiError>> {
        let Running { output, answers, keeping, .. } = self;
        let next = match keeping {
            None => answers.next().await,
            Some(keeping) => tokio::select! {
                biased;
                () = keeping.cancelled() => {
                    output.set_outcome(Outcome::Cancelled);
                    return None;
                }
                next = answers.next() => next,
            },
        };
        if let Some(Err(error)) = &next {
            output.set_outcome(Outcome::Failed(error.clone()));
        }
        next
    }

    /// Ends and stores the response.
    fn end(&mut self, send: &mut dyn FnMut(Value)) -> Value {
        let usage = self.answers.usage();
        self.output.tell(|head| self.answers.tell_applied(head));
        self.output.end(usage, send);
        let body = self.output.body(usage);
        if let Some(keeping) = self.keeping.take() {
            keeping.finish(body.clone());
        }
        body
    }
}

struct ResponseStream {
    running: Running,
    begun: bool,
}

impl EventSource for ResponseStream {
    async fn next(&mut self, events: &mut Frames) -> bool {
        let mut send = |event: Value| events.event(&event);
        let running = &mut self.running;
        if !std::mem::replace(&mut self.begun, true) {
            running.output.begin(running.answers.usage(), &mut send);
            return true;
        }
        match running.next().await {
            Some(Ok(piece)) => {
                running.output.take(piece, running.answers.usage(), &mut send);
                true
            }
            Some(Err(_)) | None => {
                running.end(&mut send);
                false
            }
        }
    }

    fn still_here(&mut self, events: &mut Frames) {
        let usage = self.running.answers.usage();
        self.running.output.still_here(usage, &mut |event| events.event(&event));
    }
}

/// Answers `GET /v1/responses/{id}`.
pub(crate) async fn retrieve(
    State(server): State<Arc<Server>>,
    asker: Asker,
    Path(id): Path<String>,
    query: Pairs,
) -> Answered {
    if query.get("stream").is_some_and(|stream| stream != "false") {
        let message = "responses are streamed where they are created; leave `stream` out";
        return Err(ApiError::unsupported("stream", message));
    }
    reply::ok(&server.responses.body(&id, tenant_of(asker), &server.parsing)?.value)
}

/// Answers `DELETE /v1/responses/{id}`.
pub(crate) async fn delete(
    State(server): State<Arc<Server>>,
    asker: Asker,
    Path(id): Path<String>,
) -> Answered {
    let session = server.responses.delete(&id, tenant_of(asker))?;
    if session.as_ref() == Some(&id) {
        let key = (tenant_salt(asker), id.clone());
        for (_, model) in server.distinct_models() {
            model.sessions.remove(&key);
        }
    }
    reply::ok(&json!({ "id": id, "object": "response", "deleted": true }))
}

/// Answers `POST /v1/responses/{id}/cancel`.
pub(crate) async fn cancel(
    State(server): State<Arc<Server>>,
    asker: Asker,
    Path(id): Path<String>,
) -> Answered {
    reply::ok(&server.responses.cancel(&id, tenant_of(asker), &server.parsing)?.value)
}

/// Answers `GET /v1/responses/{id}/input_items`.
pub(crate) async fn input_items(
    State(server): State<Arc<Server>>,
    asker: Asker,
    Path(id): Path<String>,
    query: Pairs,
) -> Answered {
    let mut input = server.responses.input(&id, tenant_of(asker), &server.parsing)?;
    let mut items = input.value.as_array_mut().map(std::mem::take).unwrap_or_default();
    let limit = match query.get("limit") {
        None => PAGE,
        Some(limit) => match limit.parse() {
            Ok(limit @ 1..=LONGEST_PAGE) => limit,
            _ => return Err(ApiError::field("limit", format!("`limit` must be 1 to {LONGEST_PAGE}"))),
        },
    };
    match query.get("order").map(String::as_str) {
        None | Some("desc") => items.reverse(),
        Some("asc") => {}
        Some(_) => return Err(ApiError::field("order", "`order` must be asc or desc")),
    }
    if let Some(after) = query.get("after") {
        let at = items.iter().position(|item| item["id"] == after.as_str());
        let at = at.ok_or_else(|| ApiError::field("after", "`after` names no item of this response"))?;
        items.drain(..=at);
    }
    let has_more = items.len() > limit;
    items.truncate(limit);
    let id = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
    let (first, last) = (id(items.first()), id(items.last()));
    let body =
        json!({ "object": "list", "data": items, "first_id": first, "last_id": last, "has_more": has_more });
    reply::ok(&body)
}
