//! A server of Djinn, asked over HTTP.

use crate::output;
use anyhow::{Context, Result, anyhow, ensure};
use djinn_host::query;
use djinn_models::printable;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt;
use std::io::Read;
use std::time::Duration;
use ureq::http::{Response, StatusCode};
use ureq::{Agent, Body, SendBody};

/// Longest answer that is read whole, in bytes.
const LONGEST_ANSWER: u64 = 1 << 30;
/// Longest error that is read, in bytes.
const LONGEST_ERROR: u64 = 1 << 20;
/// For a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Where a server is, and how it is asked.
#[derive(Clone)]
pub(crate) struct Remote {
    agent: Agent,
    url: String,
    key: Option<String>,
}

/// The server's refusal of a request.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    /// A name for programs, where there is one.
    pub(crate) code: Option<String>,
    message: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable::one_line(&self.message))
    }
}

impl std::error::Error for Refusal {}

impl Remote {
    /// The server at a URL that the flag `flag` gave; with or without `/v1`. An answer has to come `within` a time, if one
    /// is given.
    pub(crate) fn new(flag: &str, url: &str, keys: &[String], within: Option<Duration>) -> Result<Self> {
        let url = url.trim_end_matches('/');
        let url = url.strip_suffix("/v1").unwrap_or(url);
        let is_spoken = url.starts_with("http://") || cfg!(feature = "hub") && url.starts_with("https://");
        ensure!(is_spoken, "{flag} {url} is no address of this program's: give http://HOST:PORT");
        let config = Agent::config_builder()
            .timeout_global(within)
            .timeout_connect(Some(CONNECT_WITHIN))
            .http_status_as_error(false)
            .max_redirects(0)
            // A server is named by its own address.
            .proxy(None);
        Ok(Remote { agent: config.build().into(), url: url.to_owned(), key: keys.first().cloned() })
    }

    /// The server's address, without a path.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Sends a request, and gives the answer whatever its status is.
    pub(crate) fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: SendBody<'_>,
    ) -> Result<Response<Body>> {
        let url = format!("{}{path}", self.url);
        let mut request = ureq::http::Request::builder().method(method).uri(&url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let request = request.body(body).with_context(|| format!("the request to {url}"))?;
        self.agent.run(request).with_context(|| format!("no answer from {url}"))
    }

    /// The answer to a `GET`.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.read(path, accepted(self.send("GET", path, &[], SendBody::none())?)?)
    }

    /// The answer to a `POST` of JSON.
    pub(crate) fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T> {
        self.read(path, self.post_for(path, body)?)
    }

    /// The same, before its body is read.
    pub(crate) fn post_for(&self, path: &str, body: &Value) -> Result<Response<Body>> {
        let bytes = serde_json::to_vec(body)?;
        let mut bytes = bytes.as_slice();
        let length = bytes.len().to_string();
        let headers = [("content-type", "application/json"), ("content-length", length.as_str())];
        accepted(self.send("POST", path, &headers, SendBody::from_reader(&mut bytes))?)
    }

    /// The text that answers a `POST` of JSON.
    pub(crate) fn post_text(&self, path: &str, body: &Value) -> Result<String> {
        self.text(path, self.post_for(path, body)?)
    }

    fn text(&self, path: &str, mut answer: Response<Body>) -> Result<String> {
        let text = answer.body_mut().with_config().limit(LONGEST_ANSWER).read_to_string();
        text.with_context(|| format!("the answer of {}{path} broke off", self.url))
    }

    pub(crate) fn delete(&self, path: &str) -> Result<()> {
        accepted(self.send("DELETE", path, &[], SendBody::none())?).map(drop)
    }

    fn read<T: DeserializeOwned>(&self, path: &str, mut answer: Response<Body>) -> Result<T> {
        let body = answer.body_mut().with_config().limit(LONGEST_ANSWER).read_to_vec();
        let body = body.with_context(|| format!("the answer of {}{path} broke off", self.url))?;
        serde_json::from_slice(&body)
            .with_context(|| format!("{}{path} tells nothing that this version understands", self.url))
    }
}

/// The answer, unless it is a refusal.
pub(crate) fn accepted(answer: Response<Body>) -> Result<Response<Body>> {
    if answer.status().is_success() {
        return Ok(answer);
    }
    let status = answer.status();
    let mut text = Vec::new();
    // What cannot be read says nothing.
    let _ = answer.into_body().into_reader().take(LONGEST_ERROR).read_to_end(&mut text);
    let told: Value = serde_json::from_slice(&text).unwrap_or_default();
    let message = match (told["error"]["message"].as_str(), status.as_u16()) {
        (_, 401) => "the server wants another key; give one of its keys as DJINN_API_KEY".to_owned(),
        (Some(message), _) => format!("the server refuses: {message}"),
        (None, 404) => "the server has no such path: is it one of this version of Djinn?".to_owned(),
        (None, status) => format!("the server answers with status {status}"),
    };
    let code = told["error"]["code"].as_str().map(str::to_owned);
    Err(anyhow!(Refusal { status, code, message }))
}

/// The refusal in an error, if it is one.
pub(crate) fn refusal(error: &anyhow::Error) -> Option<&Refusal> {
    error.downcast_ref()
}

/// Prints what the server tells of a model: `part` of it, as it was asked for.
pub(crate) fn show(
    url: &str,
    keys: &[String],
    model: &str,
    part: &str,
    asked: &impl Serialize,
) -> Result<()> {
    let server = Remote::new("--server", url, keys, None)?;
    let pairs = query(asked).into_iter().map(|(name, value)| format!("{name}={}", encoded(&value)));
    let path = format!("/v1/models/{}/{part}?{}", encoded(model), pairs.collect::<Vec<_>>().join("&"));
    let answer = accepted(server.send("GET", &path, &[], SendBody::none())?)?;
    output::line(&server.text(&path, answer)?)
}

/// Percent-encoded, but for slashes and what needs no encoding.
pub(crate) fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}
