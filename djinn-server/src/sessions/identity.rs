//! How a request names its session: a table of headers and fields. The first one present counts.

use crate::ApiError;
use crate::body::Fields;
use axum::http::HeaderMap;
use serde_json::Value;

/// Longest name, in bytes.
const LONGEST: usize = 256;

/// A place for a name.
enum Source {
    /// In a header.
    Header(HeaderNames),
    /// A field for this purpose. Invalid names are refused.
    Field(&'static str),
    /// The response that the request continues, or its own response if that is stored.
    Response,
    /// A field with other purposes, a text, which names a session unless it is empty. The field is part of the name, so
    /// that a user and a cache key with the same text are two sessions.
    Label(&'static str),
}

/// The headers of one kind of agent.
struct HeaderNames {
    id: &'static str,
    /// The header for an agent within the session, which gets a session of its own.
    agent: Option<&'static str>,
    parent: Option<&'static str>,
    /// The header whose value `true` marks the session's last request.
    is_last: Option<&'static str>,
}

const fn header(id: &'static str, parent: &'static str) -> Source {
    Source::Header(HeaderNames { id, agent: None, parent: Some(parent), is_last: None })
}

/// The places for names, in order of precedence.
const SOURCES: [Source; 13] = [
    Source::Header(HeaderNames {
        id: "x-dynamo-session-id",
        agent: None,
        parent: Some("x-dynamo-parent-session-id"),
        is_last: Some("x-dynamo-session-final"),
    }),
    Source::Header(HeaderNames {
        id: "x-claude-code-session-id",
        agent: Some("x-claude-code-agent-id"),
        parent: Some("x-claude-code-parent-agent-id"),
        is_last: None,
    }),
    header("thread-id", "x-codex-parent-thread-id"),
    header("session-id", "x-codex-parent-thread-id"),
    header("x-session-id", "x-parent-session-id"),
    Source::Field("nvext.session_control.session_id"),
    Source::Field("session_id"),
    Source::Label("prompt_cache_key"),
    Source::Response,
    Source::Label("conversation"),
    Source::Label("program_id"),
    Source::Label("user"),
    Source::Label("metadata.user_id"),
];

/// A session as a request names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) id: String,
    pub(super) parent: Option<String>,
    pub(super) is_last: bool,
    /// The header or field.
    pub(super) named_by: &'static str,
}

/// The session that a request names. `response` is what its response would name.
///
/// # Errors
/// 400 for an invalid name, also of a label that does not count.
pub(super) fn find(
    headers: &HeaderMap,
    fields: &Fields,
    response: Option<&str>,
) -> Result<Option<Identity>, ApiError> {
    for source in &SOURCES {
        if let Source::Label(place) = source {
            check_label(fields, place)?;
        }
    }
    for source in &SOURCES {
        let found = match source {
            Source::Header(names) => in_headers(headers, names)?,
            Source::Field(place) => match at(fields, place) {
                None => None,
                Some(value) => Some(plain(check(value.as_str().unwrap_or_default(), place)?, place)),
            },
            Source::Response => response.map(|id| plain(id.to_owned(), "previous_response_id")),
            Source::Label(place) => {
                let text = at(fields, place).and_then(Value::as_str).filter(|text| !text.is_empty());
                text.map(|text| plain(label(&format!("{place}:{text}")), place))
            }
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Refuses a label that is no text. OpenAI's `conversation` may also be an object, which names no session.
fn check_label(fields: &Fields, place: &'static str) -> Result<(), ApiError> {
    match at(fields, place) {
        None | Some(Value::String(_)) => Ok(()),
        Some(Value::Object(_)) if place == "conversation" => Ok(()),
        Some(_) => Err(ApiError::field(place, format!("`{place}` must be a text"))),
    }
}

fn plain(id: String, named_by: &'static str) -> Identity {
    Identity { id, parent: None, is_last: false, named_by }
}

fn in_headers(headers: &HeaderMap, names: &HeaderNames) -> Result<Option<Identity>, ApiError> {
    let text = |name: Option<&'static str>| {
        let Some((name, value)) = name.and_then(|name| Some((name, headers.get(name)?))) else {
            return Ok(None);
        };
        check(value.to_str().unwrap_or_default(), name).map(Some)
    };
    let Some(session) = text(Some(names.id))? else { return Ok(None) };
    let within = |agent: String| format!("{session}:{agent}");
    let (agent, parent) = (text(names.agent)?, text(names.parent)?);
    let is_last = names.is_last.and_then(|name| headers.get(name)).is_some_and(|value| value == "true");
    let (id, parent) = match (agent, names.agent) {
        (Some(agent), _) => (within(agent), Some(parent.map_or(session.clone(), within))),
        (None, Some(_)) => (session, None),
        (None, None) => (session, parent),
    };
    Ok(Some(Identity { id, parent, is_last, named_by: names.id }))
}

/// The field at a path of names.
fn at<'a>(fields: &'a Fields, path: &str) -> Option<&'a Value> {
    let mut names = path.split('.');
    let first = fields.get(names.next()?);
    names.try_fold(first?, |value, name| value.get(name)).filter(|value| !value.is_null())
}

/// Checks a client's name.
///
/// # Errors
/// 400 if it is not 1 to 256 visible characters of ASCII.
pub(crate) fn check(name: &str, place: &'static str) -> Result<String, ApiError> {
    match is_plain(name) {
        true => Ok(name.to_owned()),
        false => {
            let message = format!("`{place}` must be 1 to {LONGEST} visible ASCII characters");
            Err(ApiError::field(place, message))
        }
    }
}

fn is_plain(name: &str) -> bool {
    (1..=LONGEST).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
}

/// A name from any text: the text or its hash.
fn label(text: &str) -> String {
    if is_plain(text) {
        text.to_owned()
    } else {
        format!("label-{}", &blake3::hash(text.as_bytes()).to_hex()[..32])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::CHAT;
    use serde_json::json;

    fn identity(headers: &[(&'static str, &str)], body: Value) -> Result<Option<Identity>, ApiError> {
        let pairs = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let fields = Fields::parse(body.to_string().as_bytes(), &CHAT).unwrap();
        find(&pairs.collect(), &fields, None)
    }

    #[test]
    fn the_first_name_counts() {
        let body = json!({ "session_id": "s", "prompt_cache_key": "k", "user": "u" });
        let of = |headers: &[(&'static str, &str)], body: &Value| {
            let found = identity(headers, body.clone()).unwrap().unwrap();
            (found.id, found.named_by)
        };
        let named = |id: &str, by| (id.to_owned(), by);
        let headers = [("x-session-id", "x"), ("x-dynamo-session-id", "d")];
        assert_eq!(of(&headers, &body), named("d", "x-dynamo-session-id"));
        assert_eq!(of(&headers[..1], &body), named("x", "x-session-id"));
        assert_eq!(of(&[], &body), named("s", "session_id"));
        assert_eq!(
            of(&[], &json!({ "user": "u", "prompt_cache_key": "k" })),
            named("prompt_cache_key:k", "prompt_cache_key")
        );
        assert_eq!(of(&[], &json!({ "user": "k" })), named("user:k", "user"));
        let control = json!({ "nvext": { "session_control": { "session_id": "n" } }, "session_id": "s" });
        assert_eq!(of(&[], &control), named("n", "nvext.session_control.session_id"));
        assert_eq!(identity(&[("session", "x")], json!({})).unwrap(), None);
        for ignored in
            [json!({ "user": null }), json!({ "user": "" }), json!({ "conversation": { "id": "c" } })]
        {
            assert_eq!(identity(&[], ignored).unwrap(), None);
        }
        let long = of(&[], &json!({ "user": "ü".repeat(500) })).0;
        assert!(long.starts_with("label-") && is_plain(&long), "{long}");
    }

    #[test]
    fn agents_within_a_session_are_sessions() {
        let agent = [
            ("x-claude-code-session-id", "s"),
            ("x-claude-code-agent-id", "a"),
            ("x-claude-code-parent-agent-id", "p"),
        ];
        let parts = |headers: &[(&'static str, &str)]| {
            let found = identity(headers, json!({})).unwrap().unwrap();
            (found.id, found.parent)
        };
        assert_eq!(parts(&agent), ("s:a".to_owned(), Some("s:p".to_owned())));
        assert_eq!(parts(&agent[..2]), ("s:a".to_owned(), Some("s".to_owned())));
        assert_eq!(parts(&agent[..1]), ("s".to_owned(), None));
        let last = [("x-dynamo-session-id", "s"), ("x-dynamo-session-final", "true")];
        assert!(identity(&last, json!({})).unwrap().unwrap().is_last);
    }

    #[test]
    fn names_that_are_none_are_refused() {
        let long = "x".repeat(LONGEST + 1);
        for bad in ["", "with space", "ü", &long] {
            assert_eq!(identity(&[], json!({ "session_id": bad })).unwrap_err().param.unwrap(), "session_id");
        }
        assert!(identity(&[], json!({ "session_id": 5 })).is_err());
        for (body, param) in [
            (json!({ "user": 5 }), "user"),
            (json!({ "prompt_cache_key": ["k"], "session_id": "s" }), "prompt_cache_key"),
            (json!({ "metadata": { "user_id": {} } }), "metadata.user_id"),
            (json!({ "program_id": true }), "program_id"),
            (json!({ "conversation": 5 }), "conversation"),
        ] {
            assert_eq!(identity(&[], body).unwrap_err().param.unwrap(), param);
        }
        assert_eq!(
            identity(&[("x-session-id", &long)], json!({})).unwrap_err().param.unwrap(),
            "x-session-id"
        );
    }
}
