//! Before and after each route: checks, limits, the request's id, its line in the log.

use crate::ApiError;
use crate::anthropic;
use crate::blocking::{self, Place};
use crate::facts::RequestFacts;
use crate::guard::Tenant;
use crate::log_format::{LogFormat, RequestLine};
use crate::server::{ApiRequest, Server};
use axum::Extension;
use axum::body::{Body, HttpBody};
use axum::extract::{FromRequest, Query, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};
use axum::middleware::Next;
use axum::response::IntoResponse;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Instant;
use tokio::time::timeout;

/// Paths without a key: health checks, and the page, which asks for a key.
const OPEN: [&str; 3] = ["/", "/health", "/ready"];
/// What else costs next to nothing, and is answered whatever else is served.
const CHEAP: [&str; 7] =
    ["/metrics", "/version", "/openapi.json", "/v1/live", "/live", "/v1/models", "/models"];
/// Longest id that a client may give its request.
const LONGEST_ID: usize = 128;
/// The logged status of a request whose client left before there was an answer, as nginx logs it.
const CLIENT_LEFT: u16 = 499;
const REQUEST_ID: &str = "x-request-id";
/// Headers of responses that a page of an allowed origin may read.
const EXPOSED: &str = "x-request-id, retry-after, content-disposition";
/// Longest list of headers that a preflight request may name.
const LONGEST_NAMES: usize = 2048;

/// The tenant of the request's key; `None` if no key is needed.
pub(crate) type Asker = Option<Extension<Tenant>>;
pub(crate) type Pairs = Query<HashMap<String, String>>;

/// The asker as a tenant.
pub(crate) fn tenant_of(asker: Asker) -> Option<Tenant> {
    asker.map(|Extension(tenant)| tenant)
}

/// The salt that separates the asker's sessions and prefixes from those of others.
pub(crate) fn tenant_salt(asker: Asker) -> Vec<u8> {
    asker.map_or_else(Vec::new, |Extension(tenant)| tenant.salt().to_vec())
}

/// Checks a request, serves it, and logs it after its response was sent.
pub(crate) async fn guard(
    State(server): State<Arc<Server>>,
    mut request: Request,
    next: Next,
) -> Response<Body> {
    let began = Instant::now();
    server.metrics.request();
    let id = request_id(request.headers());
    let path = request.uri().path().to_owned();
    let mut record = Record {
        id: id.clone(),
        method: request.method().clone(),
        path: djinn_models::printable::one_line(request.uri().path()),
        status: StatusCode::from_u16(CLIENT_LEFT).expect("a status"),
        tenant: None,
        began,
        format: server.log_format,
        place: None,
        facts: RequestFacts::default(),
        #[cfg(feature = "otel")]
        span: server.telemetry.as_ref().and_then(|telemetry| telemetry.begin(&request)),
    };
    let (mut response, origin) = match admit(&server, &request, &mut record) {
        Err(error) => (error.into_response(), None),
        Ok(origin) if request.method() == Method::OPTIONS => (preflight(&request), origin),
        Ok(origin) => {
            if let Some(tenant) = record.tenant {
                request.extensions_mut().insert(tenant);
            }
            let served = blocking::at(record.place.clone(), next.run(request));
            let response = match server.time_up().serve(record.facts.serve(served)).await {
                Ok(response) => in_own_form(response),
                Err(error) => {
                    record.facts.failed(&error);
                    error.into_response()
                }
            };
            (response, origin)
        }
    };
    if anthropic::is_own(&path) {
        response = anthropic::in_own_form(response, &id);
    }
    record.status = response.status();
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert(REQUEST_ID, id);
    }
    if let Some(origin) = origin.and_then(|origin| HeaderValue::from_str(&origin).ok()) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::VARY, HeaderValue::from_static("Origin"));
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
    }
    // The record belongs to the body: it is logged when the body was sent, or its client has left.
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _ = &record;
            frame
        }))
    })
}

/// Checks whether the request may be served. Returns the origin for the response's header.
fn admit(server: &Server, request: &Request, record: &mut Record) -> Result<Option<String>, ApiError> {
    let origin = server.check_access(request.headers())?;
    let path = request.uri().path();
    if OPEN.contains(&path) || request.method() == Method::OPTIONS {
        return Ok(origin);
    }
    record.tenant = server.tenant(request.headers())?;
    if !request.body().is_end_stream() {
        check_encoding(request.headers())?;
    }
    if request.method() != Method::GET || !CHEAP.contains(&path) {
        let permit = Arc::clone(&server.permits).try_acquire_owned();
        record.place = Some(Arc::new(permit.map_err(|_| {
            server.metrics.refused();
            ApiError::busy(format!(
                "{} requests are served or queue already; try again later",
                server.limits.requests
            ))
        })?));
    }
    Ok(origin)
}

/// Refuses bodies that are compressed, or encoded in another way.
fn check_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    let encodings = headers.get_all(header::CONTENT_ENCODING).iter();
    let encodings = encodings.map(|encodings| String::from_utf8_lossy(encodings.as_bytes()));
    match encodings.into_iter().find(|encoding| !encoding.trim().eq_ignore_ascii_case("identity")) {
        None => Ok(()),
        Some(encoding) => {
            let encoding = djinn_models::printable::one_line(&encoding);
            let message = format!("the request's body has the encoding {encoding}; send it without one");
            Err(ApiError::refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
        }
    }
}

/// Gives the router's own refusals the form of all refusals.
fn in_own_form(response: Response<Body>) -> Response<Body> {
    if !response.status().is_client_error() || response.extensions().get::<ApiError>().is_some() {
        return response;
    }
    let message = "the path or the query cannot be read; write it as percent-encoded UTF-8";
    ApiError::refused(response.status(), message).into_response()
}

/// The response to a browser's preflight request. A page of an allowed origin may send any header, since clients
/// have many of their own.
fn preflight(request: &Request) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, PUT, DELETE"));
    let asked =
        request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS).filter(|names| are_names(names));
    let usual = || HeaderValue::from_static("authorization, content-type, x-api-key, x-request-id");
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked.cloned().unwrap_or_else(usual));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    response
}

/// Whether a header's value is a list of headers' names, of bounded length.
fn are_names(value: &HeaderValue) -> bool {
    let is_name = |name: &str| HeaderName::from_bytes(name.trim().as_bytes()).is_ok();
    value.to_str().is_ok_and(|names| names.len() <= LONGEST_NAMES && names.split(',').all(is_name))
}

/// The client's id for the request, or a new one.
fn request_id(headers: &HeaderMap) -> String {
    let given = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
    let is_plain = |id: &&str| {
        (1..=LONGEST_ID).contains(&id.len())
            && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    };
    match given.filter(is_plain) {
        Some(id) => id.to_owned(),
        None => format!("req-{:016x}", RandomState::new().build_hasher().finish()),
    }
}

/// A request's line in the log, written when this is dropped. It counts as one of the served requests until then.
struct Record {
    id: String,
    method: Method,
    path: String,
    status: StatusCode,
    tenant: Option<Tenant>,
    began: Instant,
    format: LogFormat,
    place: Option<Place>,
    facts: RequestFacts,
    #[cfg(feature = "otel")]
    span: Option<crate::telemetry::RequestSpan>,
}

impl Drop for Record {
    fn drop(&mut self) {
        self.place = None;
        let told = self.facts.told();
        #[cfg(feature = "otel")]
        if let Some(span) = self.span.take() {
            span.end(&self.id, self.status, &told);
        }
        let Record { id, method, path, status, tenant, began, format, .. } = self;
        let key = tenant.map_or_else(|| "-".to_owned(), |tenant| tenant.short());
        let (status, ms) = (status.as_u16(), began.elapsed().as_secs_f64() * 1e3);
        let line = RequestLine { id, method: method.as_str(), path, status, ms, key: &key, told: &told };
        log::info!(target: "djinn::server::request", "{}", line.write(*format));
    }
}

impl FromRequest<Arc<Server>> for ApiRequest {
    type Rejection = ApiError;

    /// Reads the body, within limits of bytes and time.
    async fn from_request(request: Request, server: &Arc<Server>) -> Result<Self, ApiError> {
        let limits = server.limits;
        let (tenant, headers) = (request.extensions().get::<Tenant>().copied(), request.headers().clone());
        let too_large = || {
            let message = format!("the request's body is longer than {} bytes", limits.body_bytes);
            ApiError::refused(StatusCode::PAYLOAD_TOO_LARGE, message)
        };
        let length = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
        if length
            .and_then(|length| length.parse::<u64>().ok())
            .is_some_and(|length| length > limits.body_bytes as u64)
        {
            return Err(too_large());
        }
        let body = Limited::new(request.into_body(), limits.body_bytes).collect();
        match timeout(limits.body_time, body).await {
            Ok(Ok(body)) => {
                let body = body.to_bytes();
                let room = server.parsing.take(&body, limits.body_time).await?;
                Ok(ApiRequest { server: Arc::clone(server), tenant, headers, body, room })
            }
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
            Ok(Err(_)) => Err(ApiError::invalid("the request's body broke off")),
            Err(_) => {
                Err(ApiError::refused(StatusCode::REQUEST_TIMEOUT, "the request's body came too slowly"))
            }
        }
    }
}
