//! The format of a request's line in the log.

use crate::facts::Facts;
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Duration;

/// How requests are logged, under the target `djinn::server::request`. Everything else under `djinn::server` is free
/// text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Words of the form `name=value`.
    #[default]
    Text,
    /// The members of a JSON object, without its braces, so that the log can add time and level.
    Json,
}

/// The logged facts of a request. They contain no text of its body, and of its key a few digits of the hash only.
pub(crate) struct RequestLine<'a> {
    pub(crate) id: &'a str,
    pub(crate) method: &'a str,
    /// On one line.
    pub(crate) path: &'a str,
    pub(crate) status: u16,
    pub(crate) ms: f64,
    pub(crate) key: &'a str,
    pub(crate) told: &'a Facts,
}

impl RequestLine<'_> {
    pub(crate) fn write(&self, format: LogFormat) -> String {
        let RequestLine { id, method, path, status, ms, key, told } = self;
        match format {
            LogFormat::Text => {
                let mut line = format!(
                    "request id={id} method={method} path={path:?} status={status} ms={ms:.1} key={key}"
                );
                for (name, value) in answer(told) {
                    // Writing to text does not fail.
                    let _ = write!(line, " {name}={value}");
                }
                line
            }
            LogFormat::Json => {
                let mut object = json!({
                    "message": "request", "id": id, "method": method, "path": path, "status": status,
                    "ms": tenths(*ms), "key": key,
                });
                for (name, value) in answer(told) {
                    object[name] = value;
                }
                members(&object)
            }
        }
    }
}

/// The facts about answers, if some were begun.
fn answer(told: &Facts) -> Vec<(&'static str, Value)> {
    let Some(generated) = &told.generated else { return Vec::new() };
    let model = told.model.as_ref().map(|[asked, _]| ("model", asked.as_str().into()));
    let ms = |time: Duration| ("first_token_ms", tenths(time.as_secs_f64() * 1e3).into());
    let usage = generated.usage;
    let tokens = [("prompt_tokens", usage.prompt.into()), ("completion_tokens", usage.completion.into())];
    let failure = told.failure.map(|failure| ("error", failure.into()));
    model.into_iter().chain(tokens).chain(generated.first_token.map(ms)).chain(failure).collect()
}

fn tenths(ms: f64) -> f64 {
    (ms * 10.0).round() / 10.0
}

/// An object without its braces.
fn members(object: &Value) -> String {
    let text = object.to_string();
    text[1..text.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TokenUsage;
    use crate::facts::Generated;

    #[test]
    fn what_clients_send_stays_within_its_member() {
        let path = "/v1/\"},{\"level\":\"x\\";
        let told = &Facts::default();
        let line = RequestLine { id: "my-id", method: "GET", path, status: 404, ms: 1.26, key: "-", told };
        let object = format!("{{{}}}", line.write(LogFormat::Json));
        let read: Value = serde_json::from_str(&object).unwrap();
        assert_eq!((read["path"].as_str(), &read["ms"]), (Some(path), &json!(1.3)));
        assert_eq!((read["id"].as_str(), &read["status"]), (Some("my-id"), &json!(404)));
        assert_eq!(read.as_object().unwrap().len(), 7);
        let text = line.write(LogFormat::Text);
        assert!(text.starts_with("request id=my-id method=GET path=\"/v1/\\\"}"), "{text}");
    }

    #[test]
    fn tokens_are_told_of_what_was_generated() {
        let usage = TokenUsage { prompt: 3, cached: 1, completion: 2 };
        let first_token = Some(Duration::from_micros(1260));
        let session = Some("secret".to_owned());
        let generated = Some(Generated { usage, first_token, session, ..Generated::default() });
        let model = Some(["my \"model".to_owned(), "first".to_owned()]);
        let told = &Facts { model, generated, failure: Some("server_error") };
        let line =
            RequestLine { id: "-", method: "POST", path: "/v1/x", status: 200, ms: 2.0, key: "-", told };
        let text = line.write(LogFormat::Text);
        let end = r#" key=- model="my \"model" prompt_tokens=3 completion_tokens=2 first_token_ms=1.3 error="server_error""#;
        assert!(text.ends_with(end), "{text}");
        let read: Value = serde_json::from_str(&format!("{{{}}}", line.write(LogFormat::Json))).unwrap();
        assert_eq!((&read["model"], &read["completion_tokens"]), (&json!("my \"model"), &json!(2)));
        assert!(!text.contains("secret") && !read.to_string().contains("secret"));
    }
}
