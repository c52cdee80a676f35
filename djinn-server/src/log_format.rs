//! The form of the line that each request leaves in the log.

use serde_json::{Value, json};

/// How requests are logged, under the target `djinn::server::request`. All else under `djinn::server` is text for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Words of the form `name=value`.
    #[default]
    Text,
    /// The members of a JSON object, without its braces, so that the log can add its own: time and level.
    Json,
}

/// What is told of a request. There is no text of its body in it, and no key, but a few digits of its hash.
pub(crate) struct RequestLine<'a> {
    pub(crate) id: &'a str,
    pub(crate) method: &'a str,
    /// On one line.
    pub(crate) path: &'a str,
    pub(crate) status: u16,
    pub(crate) ms: f64,
    pub(crate) key: &'a str,
}

impl RequestLine<'_> {
    pub(crate) fn write(&self, format: LogFormat) -> String {
        let RequestLine { id, method, path, status, ms, key } = self;
        match format {
            LogFormat::Text => {
                format!("request id={id} method={method} path={path:?} status={status} ms={ms:.1} key={key}")
            }
            LogFormat::Json => {
                let ms = (ms * 10.0).round() / 10.0;
                members(&json!({
                    "message": "request", "id": id, "method": method, "path": path, "status": status, "ms": ms, "key": key,
                }))
            }
        }
    }
}

/// An object without its braces.
fn members(object: &Value) -> String {
    let text = object.to_string();
    text[1..text.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_send_stays_within_its_member() {
        let path = "/v1/\"},{\"level\":\"x\\";
        let line = RequestLine { id: "my-id", method: "GET", path, status: 404, ms: 1.26, key: "-" };
        let object = format!("{{{}}}", line.write(LogFormat::Json));
        let read: Value = serde_json::from_str(&object).unwrap();
        assert_eq!((read["path"].as_str(), &read["ms"]), (Some(path), &json!(1.3)));
        assert_eq!((read["id"].as_str(), &read["status"]), (Some("my-id"), &json!(404)));
        assert_eq!(read.as_object().unwrap().len(), 7);
        let text = line.write(LogFormat::Text);
        assert!(text.starts_with("request id=my-id method=GET path=\"/v1/\\\"}"), "{text}");
    }
}
