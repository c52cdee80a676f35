//! Spans of requests for an OpenTelemetry collector, by OTLP over HTTP.
//!
//! A span is made when its request is over, and passed to a thread of the SDK, which batches and sends spans. Spans
//! that the thread cannot send in time are dropped; no request waits for it.

mod client;

use crate::error::{Error, Result};
use crate::facts::{Facts, Generated};
use crate::openai::finish_name;
use crate::{FinishReason, Server};
use axum::extract::{MatchedPath, Request};
use axum::http::{Method, StatusCode, Uri};
use client::Client;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{Span, SpanBuilder, SpanKind, Status, TracerProvider};
use opentelemetry::{Array, Context, Key, KeyValue, StringValue, Value};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use std::fmt::Display;
use std::time::{Duration, SystemTime};

/// Paths of frequent health checks, which have no spans.
const WITHOUT_SPANS: [&str; 3] = ["/health", "/ready", "/metrics"];
/// The collector's time for a batch, unless the environment sets another one.
const EXPORT_TIME: Duration = Duration::from_secs(10);
/// The time for the last spans when the server ends.
const FLUSH_TIME: Duration = Duration::from_secs(2);
/// Longest path in a span, in bytes.
const LONGEST_PATH: usize = 256;

/// Sends a span of each request to an OpenTelemetry collector: [`Server::telemetry`].
#[derive(Debug)]
pub struct Telemetry {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

fn setting(what: impl Display) -> Error {
    Error::Setting(format!("spans cannot be sent: {what}"))
}

impl Telemetry {
    /// Spans as the environment asks for them, by OpenTelemetry's specification; `None` where `OTEL_EXPORTER_OTLP_ENDPOINT`
    /// and `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` are not set, or `OTEL_SDK_DISABLED` or `OTEL_TRACES_EXPORTER` forbid them.
    ///
    /// # Errors
    /// [`Error::Setting`] for an exporter or a protocol other than OTLP over HTTP in protobuf, and as [`to`](Self::to).
    pub fn from_env() -> Result<Option<Self>> {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let either = |name: &str| {
            set(&format!("OTEL_EXPORTER_OTLP_TRACES_{name}"))
                .or_else(|| set(&format!("OTEL_EXPORTER_OTLP_{name}")))
        };
        if set("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        match set("OTEL_TRACES_EXPORTER").as_deref() {
            None | Some("otlp") => {}
            Some("none") => return Ok(None),
            Some(other) => {
                return Err(setting(format!("OTEL_TRACES_EXPORTER is {other:?}; give otlp or none")));
            }
        }
        let endpoint = match (set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), set("OTEL_EXPORTER_OTLP_ENDPOINT")) {
            (Some(own), _) => own,
            (None, Some(base)) => format!("{}/v1/traces", base.trim_end_matches('/')),
            (None, None) => return Ok(None),
        };
        if let Some(protocol) = either("PROTOCOL").filter(|protocol| protocol != "http/protobuf") {
            let what =
                format!("OTEL_EXPORTER_OTLP_PROTOCOL is {protocol:?}; this server speaks http/protobuf");
            return Err(setting(what));
        }
        let within = match either("TIMEOUT") {
            None => EXPORT_TIME,
            Some(text) => Duration::from_millis(text.parse().map_err(|_| {
                setting(format!("OTEL_EXPORTER_OTLP_TIMEOUT is {text:?}; give milliseconds"))
            })?),
        };
        Self::within(&endpoint, within).map(Some)
    }

    /// Spans to the endpoint of a collector, such as `http://localhost:4318/v1/traces`. What else the specification leaves to
    /// the environment is read there: the service's name, headers, the sampler, sizes of batches.
    ///
    /// # Errors
    /// [`Error::Setting`] for an endpoint that is no address of `http`, and for settings of the environment that mean nothing.
    pub fn to(endpoint: &str) -> Result<Self> {
        Self::within(endpoint, EXPORT_TIME)
    }

    fn within(endpoint: &str, time: Duration) -> Result<Self> {
        let place: Uri =
            endpoint.parse().map_err(|error| setting(format!("the endpoint is no address: {error}")))?;
        let (Some("http"), Some(host)) = (place.scheme_str(), place.host()) else {
            return Err(setting("the endpoint must be an address like http://localhost:4318"));
        };
        let place = format!("{host}:{}", place.port_u16().unwrap_or(80));
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Client::new(place, time))
            .with_endpoint(endpoint)
            .with_protocol(Protocol::HttpBinary)
            .with_timeout(time);
        let exporter = exporter.build().map_err(setting)?;
        let provider =
            SdkTracerProvider::builder().with_resource(resource()).with_batch_exporter(exporter).build();
        let tracer = provider.tracer("djinn-server");
        Ok(Telemetry { provider, tracer })
    }

    /// The span of a new request, if it has one.
    pub(crate) fn begin(&self, request: &Request) -> Option<RequestSpan> {
        let path = request.uri().path();
        if WITHOUT_SPANS.contains(&path) {
            return None;
        }
        // A cut must not split a character.
        let cut = (0..=LONGEST_PATH.min(path.len())).rev().find(|&at| path.is_char_boundary(at)).unwrap_or(0);
        let headers = HeaderExtractor(request.headers());
        Some(RequestSpan {
            tracer: self.tracer.clone(),
            parent: TraceContextPropagator::new().extract_with_context(&Context::new(), &headers),
            began: SystemTime::now(),
            method: request.method().clone(),
            route: request.extensions().get::<MatchedPath>().map(|route| route.as_str().to_owned()),
            path: path[..cut].to_owned(),
        })
    }
}

/// The spans' resource: the name from the environment, or `djinn`.
fn resource() -> Resource {
    let known =
        Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    let name = Resource::builder().build().get(&Key::new("service.name"));
    match name.is_none_or(|name| name.as_str().starts_with("unknown_service")) {
        true => known.with_service_name("djinn").build(),
        false => known.build(),
    }
}

impl Server {
    /// Adds a span for each request. The last ones are sent when the server ends.
    #[must_use]
    pub fn telemetry(mut self, telemetry: Telemetry) -> Self {
        self.telemetry = Some(telemetry);
        self
    }

    /// Sends the remaining spans, within a few seconds.
    pub(crate) async fn flush_spans(&self) {
        let Some(telemetry) = &self.telemetry else { return };
        let provider = telemetry.provider.clone();
        let flushed = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(FLUSH_TIME)).await;
        if !matches!(flushed, Ok(Ok(()))) {
            log::warn!(target: "djinn::server", "the collector of spans did not take the last ones in time");
        }
    }
}

/// A running request. Its span ends with it.
#[derive(Debug)]
pub(crate) struct RequestSpan {
    tracer: SdkTracer,
    parent: Context,
    began: SystemTime,
    method: Method,
    /// The path in the server's table.
    route: Option<String>,
    path: String,
}

impl RequestSpan {
    /// The request is over.
    pub(crate) fn end(self, id: &str, status: StatusCode, told: &Facts) {
        let RequestSpan { tracer, parent, began, method, route, path } = self;
        let known =
            matches!(method.as_str(), "GET" | "POST" | "PUT" | "DELETE" | "OPTIONS" | "HEAD" | "PATCH");
        let method = if known { method.as_str().to_owned() } else { "_OTHER".to_owned() };
        let verb = if known { method.as_str() } else { "HTTP" };
        let name = route.as_ref().map_or_else(|| verb.to_owned(), |route| format!("{verb} {route}"));
        let failure = told.failure.map(str::to_owned);
        let failure = failure.or_else(|| status.is_server_error().then(|| status.as_str().to_owned()));
        let mut attributes = vec![
            KeyValue::new("http.request.method", method),
            KeyValue::new("url.path", path),
            KeyValue::new("url.scheme", "http"),
            KeyValue::new("http.response.status_code", i64::from(status.as_u16())),
            KeyValue::new("http.response.header.x-request-id", texts([id.to_owned()])),
        ];
        attributes.extend(failure.clone().map(|failure| KeyValue::new("error.type", failure)));
        if let Some([asked, name]) = &told.model {
            attributes.push(KeyValue::new("gen_ai.request.model", asked.clone()));
            attributes.push(KeyValue::new("gen_ai.response.model", name.clone()));
        }
        if let Some(generated) = &told.generated {
            attributes.extend(generation(generated, route.as_deref()));
        }
        attributes.extend(route.map(|route| KeyValue::new("http.route", route)));
        let span = SpanBuilder::from_name(name).with_kind(SpanKind::Server).with_start_time(began);
        let mut span = span.with_attributes(attributes).start_with_context(&tracer, &parent);
        if let Some(failure) = failure {
            span.set_status(Status::error(failure));
        }
        span.end();
    }
}

/// A span's attributes of generated tokens, named by OpenTelemetry's conventions for generative AI.
fn generation(generated: &Generated, route: Option<&str>) -> Vec<KeyValue> {
    let Generated { session, max_tokens, temperature, choices, usage, first_token, finishes } = generated;
    let completes = route.is_some_and(|route| route.ends_with("/completions") && !route.contains("chat"));
    let count = |name, tokens: u64| KeyValue::new(name, i64::try_from(tokens).unwrap_or(i64::MAX));
    let mut attributes = vec![
        KeyValue::new("gen_ai.operation.name", if completes { "text_completion" } else { "chat" }),
        KeyValue::new("gen_ai.provider.name", "djinn"),
        KeyValue::new("gen_ai.request.temperature", f64::from(*temperature)),
        count("gen_ai.usage.input_tokens", usage.prompt),
        count("gen_ai.usage.cache_read.input_tokens", usage.cached),
        count("gen_ai.usage.output_tokens", usage.completion),
    ];
    let finishes = finishes.iter().map(|reason: &FinishReason| finish_name(*reason).to_owned());
    attributes.push(KeyValue::new("gen_ai.response.finish_reasons", texts(finishes)));
    if *choices != 1 {
        attributes.push(count("gen_ai.request.choice.count", u64::from(*choices)));
    }
    attributes.extend(max_tokens.map(|tokens| count("gen_ai.request.max_tokens", tokens)));
    attributes.extend(session.clone().map(|session| KeyValue::new("gen_ai.conversation.id", session)));
    let first = first_token.map(|time| time.as_secs_f64());
    attributes.extend(first.map(|seconds| KeyValue::new("gen_ai.response.time_to_first_chunk", seconds)));
    attributes
}

fn texts(texts: impl IntoIterator<Item = String>) -> Value {
    Value::Array(Array::String(texts.into_iter().map(StringValue::from).collect()))
}
