//! Streams, as clients need them.

use super::{Files, Running, chat, completion, shared};
use djinn_server::{Server, Serving};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn stream(path: &str, mut body: Value) -> Vec<Value> {
    body["stream"] = json!(true);
    shared().post(path, &body).chunks()
}

#[test]
fn a_chat_streams_what_it_answers() {
    let body = chat("Hi", json!({}));
    let whole = shared().ok(CHAT, &body);
    let chunks = stream(CHAT, body);
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
    let (last, before) = chunks.split_last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    assert_eq!(last["choices"][0]["delta"], json!({}), "the end has a chunk of its own");
    for chunk in &chunks {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        for name in ["id", "created", "model", "system_fingerprint"] {
            assert_eq!(chunk[name], chunks[0][name]);
        }
        assert!(chunk.get("usage").is_none(), "the request did not ask for it");
        let [choice] = chunk["choices"].as_array().unwrap().as_slice() else { panic!("{chunk}") };
        assert_eq!(choice["index"], 0);
        assert!(choice.get("finish_reason").is_some() && choice["delta"].is_object());
        assert!(choice["delta"].get("tool_calls").is_none() && choice.get("logprobs").is_none());
    }
    assert!(before.iter().all(|chunk| chunk["choices"][0]["finish_reason"].is_null()));
    let roles = chunks.iter().filter(|chunk| chunk["choices"][0]["delta"].get("role").is_some());
    assert_eq!(roles.count(), 1);
    let text: String =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, whole["choices"][0]["message"]["content"]);
}

#[test]
fn a_stream_has_no_ids_and_no_event_names() {
    let reply = shared().post(CHAT, &chat("Hi", json!({ "stream": true })));
    assert_eq!(reply.header("cache-control"), Some("no-cache"));
    for line in reply.body.lines() {
        assert!(line.is_empty() || line.starts_with("data: ") || line == ":", "{line}");
    }
    assert_eq!(reply.body.matches("[DONE]").count(), 1);
}

#[test]
fn usage_comes_last_and_alone() {
    let options = json!({ "stream_options": { "include_usage": true } });
    for (path, body) in [(CHAT, chat("Hi", options.clone())), (TEXT, completion("Hi", options))] {
        let chunks = stream(path, body);
        let (last, before) = chunks.split_last().unwrap();
        assert_eq!(last["choices"], json!([]));
        assert_eq!(last["usage"]["completion_tokens"], 12);
        assert!(before.iter().all(|chunk| chunk["choices"].as_array().unwrap().len() == 1));
        assert!(before.iter().all(|chunk| chunk.get("usage").is_none_or(Value::is_null)));
    }
    let each = json!({ "stream_options": { "include_usage": true, "continuous_usage_stats": true } });
    let counts: Vec<u64> = stream(TEXT, completion("Hi", each))
        .iter()
        .map(|chunk| chunk["usage"]["completion_tokens"].as_u64().unwrap())
        .collect();
    assert!(counts.is_sorted() && counts.last() == Some(&12));
    shared().refused(
        CHAT,
        &chat("Hi", json!({ "stream_options": { "include_usage": true } })),
        "stream_options",
    );
    let wrong = json!({ "stream": true, "stream_options": { "include_usage": 1 } });
    shared().refused(CHAT, &chat("Hi", wrong), "stream_options.include_usage");
}

#[test]
fn each_answer_of_a_stream_has_its_index() {
    let more = json!({ "n": 3, "temperature": 1.5, "seed": 3 });
    let whole = shared().ok(CHAT, &chat("Hi", more.clone()));
    let chunks = stream(CHAT, chat("Hi", more));
    for at in 0..3 {
        let own = chunks.iter().map(|chunk| &chunk["choices"][0]).filter(|choice| choice["index"] == at);
        let own: Vec<&Value> = own.collect();
        assert_eq!(own[0]["delta"]["role"], "assistant");
        let text: String = own.iter().filter_map(|choice| choice["delta"]["content"].as_str()).collect();
        assert_eq!(text, whole["choices"][at]["message"]["content"]);
        assert_eq!(own.iter().filter(|choice| !choice["finish_reason"].is_null()).count(), 1);
        assert!(!own.last().unwrap()["finish_reason"].is_null(), "nothing follows an answer's end");
    }
}

#[test]
fn a_stream_has_the_log_probabilities() {
    let more = json!({ "logprobs": true, "top_logprobs": 2 });
    let whole = shared().ok(CHAT, &chat("Hi", more.clone()));
    let chunks = stream(CHAT, chat("Hi", more));
    let tokens = chunks.iter().flat_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array());
    let tokens: Vec<Value> = tokens.flatten().cloned().collect();
    assert_eq!(json!(tokens), whole["choices"][0]["logprobs"]["content"]);
    let whole = shared().ok(TEXT, &completion("Hi", json!({ "logprobs": 2 })));
    let chunks = stream(TEXT, completion("Hi", json!({ "logprobs": 2 })));
    let offsets = chunks.iter().flat_map(|chunk| chunk["choices"][0]["logprobs"]["text_offset"].as_array());
    let offsets: Vec<Value> = offsets.flatten().cloned().collect();
    assert_eq!(json!(offsets), whole["choices"][0]["logprobs"]["text_offset"]);
}

#[test]
fn stop_strings_hold_back_the_stream() {
    let whole = shared().ok(TEXT, &completion("Hi", json!({ "max_tokens": 30 })));
    let whole = whole["choices"][0]["text"].as_str().unwrap().to_owned();
    let stop = &whole[10..13];
    let chunks = stream(TEXT, completion("Hi", json!({ "max_tokens": 30, "stop": stop })));
    let text: String = chunks.iter().map(|chunk| chunk["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(text, whole[..whole.find(stop).unwrap()]);
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
}

/// A server whose device holds one context alone.
fn small() -> Running {
    let files = Arc::new(Files::new());
    // Two layers, one head of 16 elements, keys and values of f32: 256 bytes a token.
    let model = files.load(&Serving { sequences: 2, kv_bytes: Some(512 * 256), ..Serving::default() });
    Running::start(&files, Server::new().model("tiny", model))
}

#[test]
fn headers_come_before_the_prompt_is_computed_and_comments_while_it_waits() {
    let server = small();
    let most = json!({ "stream": true, "max_tokens": 500 });
    let mut first = server.target.begin("POST", TEXT, completion("Hi", most.clone()).to_string().as_bytes());
    assert!(first.part().is_some_and(|part| part.starts_with("data: ")));
    let began = Instant::now();
    let second = server.target.begin("POST", TEXT, completion("Ho", most).to_string().as_bytes());
    assert_eq!(second.status, 200);
    assert!(began.elapsed() < Duration::from_secs(4), "its headers do not wait for the first");
    let (first, second) = (first.finish(), second.finish());
    assert!(!first.body.is_empty() && second.chunks().len() > 100);
}

#[test]
fn a_client_that_leaves_ends_its_session() {
    let server = small();
    let running = || server.target.metric("djinn_num_requests_running{model_name=\"tiny\"}");
    let used = || server.target.metric("djinn_kv_cache_usage_perc{model_name=\"tiny\"}");
    let waits = || server.target.metric("djinn_num_requests_waiting{model_name=\"tiny\"}");
    for round in 0..20 {
        let body = completion("Hi", json!({ "stream": round % 2 == 0, "max_tokens": 500 }));
        let body = body.to_string();
        let head = format!(
            "POST {TEXT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = server.target.connect();
        std::io::Write::write_all(&mut stream, head.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(round));
        drop(stream);
    }
    let before = Instant::now();
    while running() + waits() + used() > 0.0 {
        assert!(before.elapsed() < Duration::from_secs(10), "{} {} {}", running(), waits(), used());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_server_that_ends_lets_its_requests_end() {
    let server = small();
    let body = completion("Hi", json!({ "stream": true, "max_tokens": 300 })).to_string();
    let mut pending = server.target.begin("POST", TEXT, body.as_bytes());
    assert!(pending.part().is_some());
    server.stop.stop();
    let reply = pending.finish();
    assert!(reply.body.contains("[DONE]"));
    let address = server.target.address;
    server.join();
    assert!(std::net::TcpStream::connect(address).is_err(), "it listens no more");
}
