//! A server of Djinn, asked over HTTP: answers, chats and logits of its models, and models that are sent to it.

mod chat;
mod generate;
mod push;
#[cfg(test)]
mod tests;

use crate::{Error, Result};
pub use chat::{RemoteChat, RemoteReply};
pub use generate::{RemoteAnswer, generate_body};
pub use push::Pushed;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::io::Read;
use std::time::Duration;
use ureq::http::{HeaderValue, Request, Response, StatusCode, Uri};
use ureq::{Agent, Body, SendBody};

/// The longest answer that is read as a whole, in bytes.
const LONGEST_ANSWER: u64 = 256 << 20;
/// Longest error that is read, in bytes.
const LONGEST_ERROR: u64 = 1 << 20;
/// Time for a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// Time without a byte of an answer, which the server may have to compute.
const READ_WITHIN: Duration = Duration::from_secs(600);
/// Time in which the server takes no byte of a request.
const WRITE_WITHIN: Duration = Duration::from_secs(120);

/// A server's address, key and connections.
#[derive(Clone, Debug)]
pub struct Remote {
    agent: Agent,
    url: String,
    /// The value of the header with the key.
    key: Option<HeaderValue>,
    quiet: bool,
}

impl Remote {
    /// The server at a URL, with or without `/v1`. `within`: the time limit of an answer. Connections are reused.
    ///
    /// # Errors
    /// [`Error::NoAddress`] for another scheme than `http` and `https`, and for a host or port that cannot be.
    /// [`Error::NoTls`] for `https` without the feature `tls`. [`Error::Asked`] for a key with control characters.
    pub fn new(url: &str, key: Option<&str>, within: Option<Duration>) -> Result<Self> {
        let bare = url.trim_end_matches('/');
        let bare = bare.strip_suffix("/v1").unwrap_or(bare);
        check(bare)?;
        let key = key.map(|key| HeaderValue::try_from(format!("Bearer {key}"))).transpose();
        let mut key = key.map_err(|_| {
            Error::Asked(
                "the server's key has control characters; give it as one line, without them".to_owned(),
            )
        })?;
        if let Some(key) = &mut key {
            key.set_sensitive(true);
        }
        Ok(Remote { agent: agent(within), url: bare.to_owned(), key, quiet: true })
    }

    /// The same server; what people wait for is shown on standard error.
    #[must_use]
    pub fn showing(self) -> Self {
        Remote { quiet: false, ..self }
    }

    /// The server's address, without a path.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The answer to a `GET`.
    ///
    /// # Errors
    /// [`Error::Refused`], or the server cannot be reached or understood.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.read(path, self.asked("GET", path)?)
    }

    /// The text that answers a `GET`.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_text(&self, path: &str) -> Result<String> {
        self.text(path, self.asked("GET", path)?)
    }

    /// The answer to a `POST` of JSON.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T> {
        self.read(path, self.posted(path, body.to_string().as_bytes())?)
    }

    /// The text that answers a `POST` of JSON.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn post_text(&self, path: &str, body: &Value) -> Result<String> {
        self.text(path, self.posted(path, body.to_string().as_bytes())?)
    }

    /// Removes an uploaded model. Returns whether it existed.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn remove_model(&self, name: &str) -> Result<bool> {
        match self.asked("DELETE", &format!("/v1/models/{}", encoded(name))) {
            Err(Error::Refused { status: 404, .. }) => Ok(false),
            removed => removed.map(|_| true),
        }
    }

    fn asked(&self, method: &str, path: &str) -> Result<Response<Body>> {
        accepted(self.send(method, path, &[], SendBody::none())?)
    }

    fn posted(&self, path: &str, mut body: &[u8]) -> Result<Response<Body>> {
        let length = body.len().to_string();
        let headers = [("content-type", "application/json"), ("content-length", length.as_str())];
        accepted(self.send("POST", path, &headers, SendBody::from_reader(&mut body))?)
    }

    /// Sends a request. Returns the answer with any status.
    fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: SendBody<'_>,
    ) -> Result<Response<Body>> {
        let url = format!("{}{path}", self.url);
        let mut request = Request::builder().method(method).uri(&url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(key) = &self.key {
            request = request.header("authorization", key);
        }
        let request = request.body(body).map_err(|_| Error::NoAddress { url: url.clone() })?;
        let sent = self.agent.run(request);
        sent.map_err(|source| Error::NoAnswer { url, source: Box::new(source) })
    }

    fn text(&self, path: &str, mut answer: Response<Body>) -> Result<String> {
        let text = answer.body_mut().with_config().limit(LONGEST_ANSWER).read_to_string();
        text.map_err(|source| self.broke_off(path, source))
    }

    fn read<T: DeserializeOwned>(&self, path: &str, mut answer: Response<Body>) -> Result<T> {
        let body = answer.body_mut().with_config().limit(LONGEST_ANSWER).read_to_vec();
        let body = body.map_err(|source| self.broke_off(path, source))?;
        let url = || format!("{}{path}", self.url);
        serde_json::from_slice(&body).map_err(|source| Error::NotUnderstood { url: url(), source })
    }

    fn broke_off(&self, path: &str, source: impl std::error::Error + Send + Sync + 'static) -> Error {
        Error::BrokeOff { url: format!("{}{path}", self.url), source: Some(Box::new(source)) }
    }
}

fn agent(within: Option<Duration>) -> Agent {
    let config = Agent::config_builder()
        .timeout_global(within)
        .timeout_connect(Some(CONNECT_WITHIN))
        .timeout_per_read(Some(READ_WITHIN))
        .timeout_per_write(Some(WRITE_WITHIN))
        .http_status_as_error(false)
        .max_redirects(0)
        // A server is addressed directly, without a proxy.
        .proxy(None);
    config.build().into()
}

/// Refuses a URL that is no server's address: another would be asked in its place, with the key.
fn check(url: &str) -> Result<()> {
    let wrong = || Error::NoAddress { url: url.to_owned() };
    let parsed: Uri = url.parse().map_err(|_| wrong())?;
    match parsed.scheme_str() {
        Some("http") => {}
        Some("https") if cfg!(feature = "tls") => {}
        Some("https") => return Err(Error::NoTls { url: url.to_owned() }),
        _ => return Err(wrong()),
    }
    let authority = parsed.authority().ok_or_else(wrong)?;
    let host = authority.host();
    let place = authority.as_str().rsplit('@').next().unwrap_or_default();
    // A number that is no port is parsed as none, which means port 80.
    let port_is_fine = match place.strip_prefix(host).map(|rest| rest.strip_prefix(':').ok_or(rest)) {
        Some(Ok(port)) => {
            port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|n| n > 0)
        }
        Some(Err(rest)) => rest.is_empty(),
        None => false,
    };
    let has_more = parsed.query().is_some() || url.contains('#');
    if host.is_empty() || !port_is_fine || has_more { Err(wrong()) } else { Ok(()) }
}

/// The answer, unless it is a refusal.
fn accepted(answer: Response<Body>) -> Result<Response<Body>> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let mut text = Vec::new();
    // An unreadable body has no message.
    let _ = answer.into_body().into_reader().take(LONGEST_ERROR).read_to_end(&mut text);
    let told: Value = serde_json::from_slice(&text).unwrap_or_default();
    let why = match (told["error"]["message"].as_str(), status) {
        (_, StatusCode::UNAUTHORIZED) => {
            "the server wants another key; give one of its keys as DJINN_API_KEY".to_owned()
        }
        (Some(message), _) => format!("the server refuses: {message}"),
        (None, StatusCode::NOT_FOUND) => {
            "the server has no such path: is it one of this version of Djinn?".to_owned()
        }
        (None, status) => format!("the server answers with status {}", status.as_u16()),
    };
    let code = told["error"]["code"].as_str().map(str::to_owned);
    Err(Error::Refused { status: status.as_u16(), code, why })
}

/// Percent-encoded for a path or a query. Slashes are kept.
pub fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}
