//! Anthropic's Messages API: `/v1/messages` and `/v1/messages/count_tokens`.
//!
//! A request becomes a chat request ([`request`]) and is served as one; its answer becomes content blocks
//! ([`message`]). Errors on these paths have Anthropic's form, even those from before the route.

mod message;
mod request;

use crate::beginning::{self, EarlyEvents};
use crate::fields::{COUNT_TOKENS, MESSAGES};
use crate::openai::{answer_id, chat};
use crate::reply::{self, Answered, EventSource, Frames};
use crate::server::ApiRequest;
use crate::{Answers, ApiError, GenerateRequest};
use axum::body::Body;
use axum::http::{HeaderMap, Response, StatusCode, header};
use message::Message;
use serde_json::{Value, json};

/// The supported versions of the API. The later one has the same answers. It drops temperature, `top_p` and `top_k`;
/// these are supported all the same.
const VERSIONS: [&str; 2] = ["2023-06-01", "2026-10-21"];

pub(crate) fn is_own(path: &str) -> bool {
    path == "/v1/messages" || path.starts_with("/v1/messages/")
}

/// Answers `/v1/messages`.
pub(crate) async fn create(headers: HeaderMap, request: ApiRequest) -> Answered {
    check_version(&headers)?;
    let fields = request.fields(&MESSAGES)?;
    let model = request.model(&fields)?;
    let stream = fields.flag("stream")?;
    let max_tokens = fields.integer("max_tokens", 1..=u64::MAX)?;
    let max_tokens = max_tokens.ok_or_else(|| ApiError::field("max_tokens", "`max_tokens` is missing"))?;
    let (salt, hints) = (request.salt(), request.hints(&fields, &model, None)?);
    let prepared = model.work(move |model| {
        let stop = request::stop_sequences(&fields)?;
        let chat = request::chat_fields(&fields)?;
        request::check_last(&fields)?;
        let generate = chat::generate(&chat, model, &salt).map_err(request::in_own_names)?;
        Ok(GenerateRequest { max_tokens: Some(max_tokens), stop, ..generate })
    });
    let mut generate = prepared.await?;
    hints.apply(&mut generate);
    let name = request.model_name(&model);
    drop(request);
    let mut message = Message::new(answer_id("msg_"), name, max_tokens);
    if stream {
        let early =
            EarlyEvents { failure: |error, events| events.event(&error_body(error)), progress: |_| None };
        let make = move |answers| MessageStream { message, answers, begun: false };
        return beginning::events(model, generate, early, make).await;
    }
    let mut answers = Answers::begin(model, generate).await?;
    while let Some(piece) = answers.next().await {
        message.take(piece?, &mut |_| {});
    }
    message.end(answers.usage(), &mut |_| {});
    let mut body = message.body(answers.usage());
    answers.tell_applied(&mut body);
    reply::ok(&body)
}

/// Answers `/v1/messages/count_tokens`.
pub(crate) async fn count_tokens(headers: HeaderMap, request: ApiRequest) -> Answered {
    check_version(&headers)?;
    let fields = request.fields(&COUNT_TOKENS)?;
    let model = request.model(&fields)?;
    // What does not count must mean something all the same.
    fields.flag("stream")?;
    fields.integer("max_tokens", 1..=u64::MAX)?;
    request.hints(&fields, &model, None)?;
    let prompt = model.work(move |model| {
        request::stop_sequences(&fields)?;
        chat::prompt(&request::chat_fields(&fields)?, model).map_err(request::in_own_names)
    });
    let tokens = prompt.await?.len();
    reply::ok(&json!({ "input_tokens": tokens }))
}

/// A client that names a version was made for it.
fn check_version(headers: &HeaderMap) -> Result<(), ApiError> {
    match headers.get("anthropic-version") {
        Some(version) if VERSIONS.iter().all(|known| version != known) => Err(ApiError::invalid(format!(
            "the header anthropic-version names an unknown version; give {}",
            VERSIONS.join(" or ")
        ))),
        _ => Ok(()),
    }
}

/// A failure in Anthropic's form.
fn error_body(error: &ApiError) -> Value {
    let kind = match error.status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::REQUEST_TIMEOUT => "timeout_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    };
    json!({ "type": "error", "error": { "type": kind, "message": error.message } })
}

/// A response of one of the API's paths. A failure gets Anthropic's form and the request's id.
pub(crate) fn in_own_form(response: Response<Body>, request_id: &str) -> Response<Body> {
    let Some(error) = response.extensions().get::<ApiError>() else { return response };
    let mut body = error_body(error);
    body["request_id"] = json!(request_id);
    let body = Body::from(body.to_string());
    let (mut head, _) = response.into_parts();
    head.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(head, body)
}

/// A streamed answer.
struct MessageStream {
    message: Message,
    answers: Answers,
    begun: bool,
}

impl EventSource for MessageStream {
    async fn next(&mut self, events: &mut Frames) -> bool {
        let MessageStream { message, answers, begun } = self;
        if !std::mem::replace(begun, true) {
            events.event(&message.start(answers.usage()));
            events.event(&json!({ "type": "ping" }));
            return true;
        }
        match answers.next().await {
            Some(Ok(piece)) => {
                message.take(piece, &mut |event| events.event(&event));
                true
            }
            Some(Err(error)) => {
                events.event(&error_body(&error));
                false
            }
            None => {
                message.end(answers.usage(), &mut |mut event| {
                    if event["type"] == "message_delta" {
                        answers.tell_applied(&mut event);
                    }
                    events.event(&event);
                });
                false
            }
        }
    }

    fn still_here(&mut self, events: &mut Frames) {
        events.event(&json!({ "type": "ping" }));
    }
}
