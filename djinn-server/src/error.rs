//! Errors: of a server that cannot start, and of requests.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use djinn_engine::Error as EngineError;
use djinn_scheduler::Refusal;
use serde_json::{Value, json};
use std::borrow::Cow;

/// A server that cannot start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model cannot be opened or loaded.
    #[error(transparent)]
    Host(#[from] djinn_host::Error),
    /// The scheduler's settings cannot be used.
    #[error(transparent)]
    Scheduler(#[from] djinn_scheduler::Error),
    /// The server cannot listen at the address, or start a thread.
    #[error("{what}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A bug: the engine's thread panicked.
    #[error("the engine panicked: {what}")]
    Panicked {
        /// What the panic said.
        what: String,
    },
    /// Settings of the server that contradict each other or the machine.
    #[error("{0}")]
    Setting(String),
}

impl Error {
    /// The error that this one passes on unchanged, or itself. [`djinn_host::one_line`] knows errors by their types:
    /// give it this one, so that it names flags.
    pub fn unwrapped(&self) -> &(dyn std::error::Error + 'static) {
        match self {
            Error::Host(error) => error,
            Error::Scheduler(error) => error,
            error => error,
        }
    }
}

impl From<djinn_engine::Error> for Error {
    fn from(error: djinn_engine::Error) -> Self {
        Error::Host(error.into())
    }
}

/// This crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A request's failure: a status, and the object `error` of OpenAI's APIs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// The HTTP status.
    pub status: StatusCode,
    /// `invalid_request_error`, `authentication_error`, `rate_limit_error` or `server_error`.
    pub kind: &'static str,
    /// A machine-readable code, if there is one.
    pub code: Option<&'static str>,
    /// The request's field at fault.
    pub param: Option<Cow<'static, str>>,
    /// A message for people.
    pub message: String,
    /// Seconds after which to try again.
    pub retry_after: Option<u32>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        ApiError { status, kind, code: None, param: None, message, retry_after: None }
    }

    /// 400: the request is invalid.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400: a field of the request is invalid.
    pub fn field(param: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        ApiError { param: Some(param.into()), ..Self::invalid(message) }
    }

    /// 400: a known field that is not supported.
    pub fn unsupported(param: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        ApiError { code: Some("unsupported_parameter"), ..Self::field(param, message) }
    }

    /// 400: the prompt exceeds the context.
    pub(crate) fn too_long(param: &'static str, message: String) -> Self {
        ApiError { code: Some("context_length_exceeded"), ..Self::field(param, message) }
    }

    /// Another status for an invalid request.
    pub fn refused(status: StatusCode, message: impl Into<String>) -> Self {
        Self::new(status, "invalid_request_error", message)
    }

    /// 409, with the code that names why.
    pub(crate) fn conflict(message: impl Into<String>, code: &'static str) -> Self {
        ApiError { code: Some(code), ..Self::refused(StatusCode::CONFLICT, message) }
    }

    pub(crate) fn unauthorized(message: &str) -> Self {
        let error = Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message);
        ApiError { code: Some("invalid_api_key"), ..error }
    }

    /// 404: the model does not exist.
    pub(crate) fn no_model(name: &str) -> Self {
        let name: String = name.chars().take(64).collect();
        let error = Self::refused(
            StatusCode::NOT_FOUND,
            format!("the model `{name}` does not exist; see /v1/models"),
        );
        ApiError { code: Some("model_not_found"), param: Some("model".into()), ..error }
    }

    /// 429: too much at once.
    pub fn busy(message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        ApiError { retry_after: Some(1), ..error }
    }

    /// 503: the model cannot answer now.
    pub fn unavailable(message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message);
        ApiError { retry_after: Some(5), ..error }
    }

    /// 500: the model failed on this request.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// The error for an engine's refusal of a session whose prompt is in the field `param`.
    pub(crate) fn of_engine(error: &EngineError, param: &'static str) -> Self {
        match error {
            EngineError::Scheduler(djinn_scheduler::Error::Refused { why, .. }) => Self::of_refusal(*why),
            EngineError::Scheduler(djinn_scheduler::Error::TooLong { tokens, limit, .. }) => Self::too_long(
                param,
                format!("the request needs {tokens} tokens of a context of {limit}; shorten it"),
            ),
            EngineError::ContextFull { .. } => Self::too_long(param, error.to_string()),
            EngineError::UnknownToken { .. } | EngineError::EmptyPrompt => {
                Self::field(param, error.to_string())
            }
            EngineError::Sampling { field, .. } => {
                // Such as `a value of logit_bias`.
                Self::field(field.rsplit(' ').next().unwrap_or(field), error.to_string())
            }
            EngineError::Option(_) => Self::invalid(error.to_string()),
            EngineError::HookMemory { need, have } => {
                let message = format!(
                    "with this, a step may need {need} bytes of memory for hooks, and the server has {have} \
                     (--hook-memory); arm fewer hooks, give fewer vectors, or have fewer sessions at a time"
                );
                ApiError { code: Some("hook_memory"), ..Self::busy(message) }
            }
            EngineError::Stopped(_)
            | EngineError::Retired { .. }
            | EngineError::Device(_)
            | EngineError::ImportLost { .. } => Self::unavailable(error.to_string()),
            _ => Self::failed(error.to_string()),
        }
    }

    /// The error for a scheduler's refusal of a session.
    pub(crate) fn of_refusal(why: Refusal) -> Self {
        match why {
            Refusal::TooLarge { .. } => {
                let error =
                    Self::refused(StatusCode::PAYLOAD_TOO_LARGE, format!("the request is refused: {why}"));
                ApiError { code: Some("context_length_exceeded"), ..error }
            }
            Refusal::QueueFull { .. } | Refusal::QueueTimeout { .. } => {
                Self::busy(format!("the request is refused: {why}"))
            }
        }
    }

    /// The error for a text from the client on which the tokenizer, template or grammar fails.
    pub(crate) fn of_text(error: &dyn std::fmt::Display, param: &'static str) -> Self {
        Self::field(param, djinn_models::printable::one_line(&error.to_string()))
    }

    /// The same where the field at fault is called `own` in the API that the client speaks.
    pub(crate) fn called(mut self, own: String) -> Self {
        if let Some(param) = self.param.replace(own.clone().into()) {
            self.message = self.message.replacen(&format!("`{param}`"), &format!("`{own}`"), 1);
        }
        self
    }

    /// The object for the client.
    pub fn json(&self) -> Value {
        let ApiError { kind, code, param, message, .. } = self;
        json!({ "error": { "message": message, "type": kind, "param": param, "code": code } })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        let mut response = crate::reply::json(self.status, &self.json());
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // Other APIs translate it to their own form.
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_device_is_told_alike_wherever_it_was_noticed() {
        let lost = || djinn_device::Error::DeviceLost { reason: "it fell off the bus".to_owned() };
        let own = EngineError::from(lost());
        let of_memory = EngineError::from(djinn_vmu::Error::from(lost()));
        for error in [&own, &of_memory] {
            assert_eq!(ApiError::of_engine(error, "id").status, StatusCode::SERVICE_UNAVAILABLE, "{error:?}");
        }
        for error in [own, of_memory] {
            assert!(djinn_host::Error::from(error).is_device_lost());
        }
    }
}
