//! Anthropic's Messages API.

use super::client::{Reply, Target};
use super::{Files, Running, chat, shared};
use djinn_server::{Keys, Server, Serving};
use serde_json::{Value, json};
use std::sync::Arc;

const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";

/// A request with one message and greedy decoding.
fn message(text: &str, more: Value) -> Value {
    let mut body = json!({
        "model": "tiny", "temperature": 0, "max_tokens": 12, "ignore_eos": true,
        "messages": [{ "role": "user", "content": text }],
    });
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// The events of a stream, each under the name of its type.
pub(crate) fn named_events(reply: &Reply) -> Vec<Value> {
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("text/event-stream; charset=utf-8")));
    let blocks = reply.body.split_terminator("\n\n").filter(|block| *block != ":");
    let event = |block: &str| {
        let (name, data) = block.split_once('\n').unwrap();
        let event: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), event["type"].as_str());
        event
    };
    blocks.map(event).collect()
}

/// A refusal in Anthropic's form, of this type.
fn failed(reply: &Reply, status: u16, kind: &str) -> String {
    assert_eq!(reply.status, status, "{reply:?}");
    let body = reply.json();
    assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!(kind)), "{body}");
    assert_eq!(body["request_id"].as_str(), reply.header("x-request-id"));
    body["error"]["message"].as_str().unwrap().to_owned()
}

/// The text that a request's conversation is rendered to: the model's tokens are bytes.
fn length(body: &Value) -> u64 {
    let count = shared().ok(COUNT, body);
    assert_eq!(count.as_object().unwrap().len(), 1);
    count["input_tokens"].as_u64().unwrap()
}

#[test]
fn a_message_is_answered_as_a_chat_is() {
    let answer = shared().ok(MESSAGES, &message("Hi", json!({})));
    let same = shared().ok("/v1/chat/completions", &chat("Hi", json!({})));
    let text = &same["choices"][0]["message"]["content"];
    assert!(answer["id"].as_str().unwrap().starts_with("msg_"));
    assert_eq!((&answer["type"], &answer["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!((&answer["model"], &answer["stop_reason"]), (&json!("tiny"), &json!("max_tokens")));
    assert_eq!(answer["stop_sequence"], Value::Null);
    assert_eq!(answer["content"].as_array().unwrap().len(), 1);
    assert_eq!((&answer["content"][0]["type"], &answer["content"][0]["text"]), (&json!("text"), text));
    assert_eq!(answer["usage"]["input_tokens"], "[user:Hi]>".len());
    assert_eq!(answer["usage"]["output_tokens"], 12);
}

#[test]
fn a_message_streams_in_blocks() {
    let whole = shared().ok(MESSAGES, &message("Hi", json!({})));
    let events = named_events(&shared().post(MESSAGES, &message("Hi", json!({ "stream": true }))));
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds[..3], ["message_start", "ping", "content_block_start"]);
    let end = kinds.len() - 3;
    assert_eq!(kinds[end..], ["content_block_stop", "message_delta", "message_stop"]);
    assert!(kinds[3..end].iter().all(|kind| *kind == "content_block_delta") && end > 3);
    let start = &events[0]["message"];
    assert_eq!((&start["content"], &start["stop_reason"]), (&json!([]), &Value::Null));
    assert_eq!((&start["usage"]["input_tokens"], &start["usage"]["output_tokens"]), (&json!(10), &json!(0)));
    assert_eq!(events[2]["content_block"]["text"], "");
    let text: String = events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(text, whole["content"][0]["text"]);
    let delta = &events[end + 1];
    assert_eq!(delta["delta"], json!({ "stop_reason": "max_tokens", "stop_sequence": null }));
    assert_eq!(delta["usage"], whole["usage"]);
}

#[test]
fn an_answer_tells_why_it_ended() {
    let whole = shared().ok(MESSAGES, &message("Hi", json!({})));
    let text = whole["content"][0]["text"].as_str().unwrap();
    let stop = &text[4..6];
    let more = json!({ "stop_sequences": ["not in there", stop] });
    let answer = shared().ok(MESSAGES, &message("Hi", more.clone()));
    let at = text.find(stop).unwrap();
    // A message without text has no block.
    let blocks = answer["content"].as_array().unwrap();
    assert_eq!(blocks.first().map_or("", |block| block["text"].as_str().unwrap()), &text[..at]);
    assert_eq!((&answer["stop_reason"], &answer["stop_sequence"]), (&json!("stop_sequence"), &json!(stop)));
    let mut streamed = message("Hi", more);
    streamed["stream"] = json!(true);
    let events = named_events(&shared().post(MESSAGES, &streamed));
    let delta = events.iter().find(|event| event["type"] == "message_delta").unwrap();
    assert_eq!(delta["delta"], json!({ "stop_reason": "stop_sequence", "stop_sequence": stop }));
    let answer = shared().ok(MESSAGES, &message("Hi", json!({ "max_tokens": 100_000 })));
    assert_eq!(answer["stop_reason"], "model_context_window_exceeded");
}

#[test]
fn conversations_become_what_the_template_reads() {
    let conversation = json!([
        { "role": "user", "content": [{ "type": "text", "text": "How is " }, { "type": "text", "text": "it?" }] },
        { "role": "assistant", "content": [
            { "type": "thinking", "thinking": "I look.", "signature": "" },
            { "type": "text", "text": "Let me see." },
            { "type": "tool_use", "id": "t1", "name": "look", "input": { "at": 1 } },
        ] },
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "t1", "content": [{ "type": "text", "text": "rain" }] },
            { "type": "tool_result", "tool_use_id": "t2", "content": "lost", "is_error": true },
            { "type": "text", "text": "So?" },
        ] },
    ]);
    let system = json!([{ "type": "text", "text": "Be.", "cache_control": { "type": "ephemeral" } }]);
    // The template knows no tools.
    let text = "[system:Be.][user:How is it?][assistant:Let me see.\n\
                <tool_call>{\"name\": \"look\", \"arguments\": {\"at\":1}}</tool_call>][user:<tool_response>\nrain\n\
                </tool_response>\n<tool_response>\nError: lost\n</tool_response>][user:So?]>";
    let body = json!({ "model": "tiny", "messages": conversation, "system": system });
    assert_eq!(length(&body), text.len() as u64);
    let body = json!({ "model": "tiny", "messages": [{ "role": "user", "content": "x" }], "system": "Be." });
    assert_eq!(length(&body), "[system:Be.][user:x]>".len() as u64);
    let thinking =
        json!({ "thinking": { "type": "enabled", "budget_tokens": 1024 }, "metadata": { "user_id": "u" } });
    shared().ok(MESSAGES, &message("Hi", thinking));
}

#[test]
fn what_means_nothing_is_refused_with_its_place() {
    let image =
        json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "" } });
    for (more, place) in [
        (json!({ "max_tokens": null }), "max_tokens"),
        (json!({ "max_tokens": 0 }), "max_tokens"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": "x" }), "messages"),
        (json!({ "messages": [1] }), "messages[0].role"),
        (json!({ "messages": [{ "role": "tool", "content": "x" }] }), "messages[0].role"),
        (json!({ "messages": [{ "role": "user" }] }), "messages[0].content"),
        (json!({ "messages": [{ "role": "user", "content": [] }] }), "messages[0].content"),
        (json!({ "messages": [{ "role": "user", "content": [image.clone()] }] }), "messages[0].content[0]"),
        (
            json!({ "messages": [{ "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "t", "content": [image] }] }] }),
            "messages[0].content[0].content[0]",
        ),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "tool_result" }] }] }),
            "messages[0].content[0].tool_use_id",
        ),
        (
            json!({ "messages": [{ "role": "user", "content": "x" }, { "role": "assistant", "content": "So" }] }),
            "last message",
        ),
        (json!({ "system": 1 }), "system"),
        (json!({ "system": [{ "type": "image" }] }), "system[0]"),
        (json!({ "stop_sequences": [""] }), "stop_sequences"),
        (json!({ "stop_sequences": "x" }), "stop_sequences"),
        (json!({ "temperature": 9 }), "temperature"),
        (json!({ "thinking": { "type": "loud" } }), "thinking.type"),
        (json!({ "tools": [{ "type": "web_search_20250305", "name": "web_search" }] }), "tools[0]"),
        (json!({ "tools": [{ "name": "look" }] }), "tools[0].input_schema"),
        (json!({ "tools": [{ "name": "with space", "input_schema": {} }] }), "`tools[0].name` must"),
        (json!({ "temperature": "warm" }), "expected a number"),
        (json!({ "tool_choice": { "type": "some" } }), "tool_choice.type"),
        (json!({ "output_config": { "format": { "type": "xml" } } }), "output_config.format.type"),
        (json!({ "mcp_servers": [{ "url": "https://example.org" }] }), "mcp_servers"),
    ] {
        let text =
            failed(&shared().post(MESSAGES, &message("Hi", more.clone())), 400, "invalid_request_error");
        assert!(text.contains(place), "{more}: {text}");
    }
}

#[test]
fn failures_have_their_own_form() {
    failed(&shared().send("POST", MESSAGES, b"{"), 400, "invalid_request_error");
    failed(&shared().post(MESSAGES, &message("Hi", json!({ "model": "none" }))), 404, "not_found_error");
    failed(&shared().post(COUNT, &json!({ "model": "none", "messages": [] })), 404, "not_found_error");
    for (name, value) in [
        ("stop_sequences", json!(5)),
        ("stop_sequences", json!([""])),
        ("max_tokens", json!("many")),
        ("stream", json!("yes")),
        ("temperature", json!(3)),
        ("priority", json!("first")),
        ("nvext", json!({ "session_control": { "action": "x" } })),
    ] {
        let why = failed(
            &shared().post(COUNT, &message("Hi", json!({ name: value }))),
            400,
            "invalid_request_error",
        );
        assert!(why.contains(name) || name == "nvext", "{why}");
    }
    // The tokens of a conversation that no answer follows.
    let ends = json!({ "messages": [{ "role": "user", "content": "Hi" }, { "role": "assistant", "content": "Yes" }] });
    assert_eq!(shared().post(COUNT, &message("", ends)).status, 200);
    failed(&shared().get("/v1/messages/nothing"), 404, "not_found_error");
    failed(&shared().get(MESSAGES), 405, "invalid_request_error");
    let long = "x".repeat(9 << 20);
    failed(&shared().post(MESSAGES, &message(&long, json!({}))), 413, "request_too_large");
    let text =
        failed(&shared().post(MESSAGES, &message(&"x".repeat(600), json!({}))), 400, "invalid_request_error");
    assert!(text.contains("512"), "{text}");
    let other = shared().with("anthropic-version", "1999-01-01");
    failed(&other.post(MESSAGES, &message("Hi", json!({}))), 400, "invalid_request_error");
    for version in ["2023-06-01", "2026-10-21"] {
        let known = shared().with("anthropic-version", version).with("anthropic-beta", "some-2025-01-01");
        known.ok(MESSAGES, &message("Hi", json!({ "thinking": { "type": "between_tools" } })));
    }
    // Other paths keep theirs.
    shared().get("/v1/messagesx").error();
}

#[test]
fn keys_come_in_their_own_header() {
    let files = Arc::new(Files::new());
    let server =
        Server::new().model("tiny", files.load(&Serving::default())).keys(Keys::new(["alpha"]).unwrap());
    let running = Running::start(&files, server);
    let target: &Target = &running.target;
    failed(&target.post(MESSAGES, &message("Hi", json!({}))), 401, "authentication_error");
    let wrong = target.with("x-api-key", "beta").post(MESSAGES, &message("Hi", json!({})));
    failed(&wrong, 401, "authentication_error");
    target.with("x-api-key", "alpha").ok(MESSAGES, &message("Hi", json!({})));
}
