//! Responses: JSON objects, and streams of server-sent events.

use crate::{ApiError, write_times};
use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use bytes::Bytes;
use futures_util::stream;
use serde::Serialize;
use serde_json::Value;
use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// How often an idle stream has a comment.
const COMMENT_EVERY: Duration = Duration::from_secs(5);
/// How often a stream has an event: some clients do not count comments as progress.
const EVENT_EVERY: Duration = Duration::from_secs(30);

/// What a route's handler answers.
pub(crate) type Answered = Result<Response<Body>, ApiError>;

/// The answer of a request that succeeded.
pub(crate) fn ok(body: &impl Serialize) -> Answered {
    Ok(json(StatusCode::OK, body))
}

pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Response<Body> {
    // Numbers are finite and keys are text: nothing here fails.
    let bytes = serde_json::to_vec(body).unwrap_or_default();
    let mut response = of_type("application/json", bytes);
    *response.status_mut() = status;
    response
}

/// A body of this type.
pub(crate) fn of_type(content_type: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// A source of a stream's events.
pub(crate) trait EventSource: Send + 'static {
    /// Adds the next events to `events`. Returning false ends the stream after them. Dropping the future loses
    /// nothing.
    fn next(&mut self, events: &mut Frames) -> impl Future<Output = bool> + Send;

    /// Adds an event without content, which shows that the stream is alive.
    fn still_here(&mut self, events: &mut Frames);
}

/// Events as bytes, in order.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    bytes: Vec<u8>,
}

impl Frames {
    /// An event with one line of JSON. It has no `id:` and no `event:`, which make some clients lose events.
    pub(crate) fn data(&mut self, body: &impl Serialize) {
        self.bytes.extend_from_slice(b"data: ");
        // As in `json`.
        let _ = serde_json::to_writer(&mut self.bytes, body);
        self.bytes.extend_from_slice(b"\n\n");
    }

    /// An event named by its body's `type`, as in Anthropic's and the Responses API.
    pub(crate) fn event(&mut self, body: &Value) {
        self.bytes.extend_from_slice(b"event: ");
        self.bytes.extend_from_slice(body["type"].as_str().unwrap_or_default().as_bytes());
        self.bytes.push(b'\n');
        self.data(body);
    }

    /// The last event of OpenAI's streams.
    pub(crate) fn done(&mut self) {
        self.bytes.extend_from_slice(b"data: [DONE]\n\n");
    }

    /// A failure in mid-stream.
    pub(crate) fn error(&mut self, error: &ApiError) {
        self.data(&error.json());
    }

    /// What clients pass over.
    pub(crate) fn comment(&mut self) {
        self.bytes.extend_from_slice(b":\n\n");
    }

    /// All that was put in.
    pub(crate) fn take(&mut self) -> Option<Bytes> {
        (!self.bytes.is_empty()).then(|| Bytes::from(std::mem::take(&mut self.bytes)))
    }
}

struct Stream<S> {
    source: S,
    frames: Frames,
    ended: bool,
    comment_at: Instant,
    event_at: Instant,
}

/// The events of `source` as a response. Its headers are sent at once. A comment follows every 5 s without an event,
/// and an event every 30 s. Dropping the response drops the source.
pub(crate) fn events(source: impl EventSource) -> Response<Body> {
    write_times::stream_begins();
    let now = Instant::now();
    let state = Stream {
        source,
        frames: Frames::default(),
        ended: false,
        comment_at: now + COMMENT_EVERY,
        event_at: now + EVENT_EVERY,
    };
    let stream = stream::unfold(state, async |mut state| {
        let bytes = state.next().await?;
        Some((Ok::<_, Infallible>(bytes), state))
    });
    let mut response = Response::new(Body::from_stream(stream));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Otherwise proxies would collect the whole stream before they pass it on.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl<S: EventSource> Stream<S> {
    async fn next(&mut self) -> Option<Bytes> {
        while !self.ended {
            let Stream { source, frames, .. } = self;
            match timeout_at(self.comment_at.min(self.event_at), source.next(frames)).await {
                Ok(more) => self.ended = !more,
                Err(_) if self.event_at <= Instant::now() => source.still_here(frames),
                Err(_) => {
                    frames.comment();
                    self.comment_at = Instant::now() + COMMENT_EVERY;
                    return self.frames.take();
                }
            }
            if let Some(bytes) = self.frames.take() {
                write_times::framed();
                let now = Instant::now();
                (self.comment_at, self.event_at) = (now + COMMENT_EVERY, now + EVENT_EVERY);
                return Some(bytes);
            }
        }
        None
    }
}

/// Seconds since 1970.
pub(crate) fn unix_now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
