//! Requests that mean nothing, or harm.

use super::{Files, Running, chat, completion, shared};
use djinn_server::{Limits, Server, Serving};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

#[test]
fn values_that_mean_nothing_are_named() {
    for (name, values) in [
        ("temperature", vec![json!(-0.1), json!(2.1), json!("warm"), json!([1])]),
        ("top_p", vec![json!(-0.1), json!(1.1), json!(true)]),
        ("top_k", vec![json!(-2), json!(1.5), json!("all")]),
        ("min_p", vec![json!(-1), json!(2)]),
        ("repetition_penalty", vec![json!(0), json!(-1), json!(11)]),
        ("repeat_penalty", vec![json!(0), json!(-1), json!(11)]),
        ("frequency_penalty", vec![json!(-2.5), json!(3)]),
        ("presence_penalty", vec![json!(-2.5), json!({})]),
        ("seed", vec![json!(1.5), json!("x")]),
        ("n", vec![json!(0), json!(17), json!(-1)]),
        ("max_tokens", vec![json!(0), json!(-1), json!(1.5), json!("many")]),
        ("stream", vec![json!(1), json!("true")]),
        ("priority", vec![json!(1.5), json!(1e30), json!("first")]),
        ("cache_salt", vec![json!(1), json!([])]),
        ("stop_token_ids", vec![json!("a"), json!([-1]), json!([4_294_967_296_u64]), json!(vec![1; 65])]),
        ("ignore_eos", vec![json!("no")]),
        ("model", vec![json!(1), json!(["tiny"])]),
    ] {
        for value in values {
            shared().refused(CHAT, &chat("Hi", json!({ name: value })), name);
            shared().refused(TEXT, &completion("Hi", json!({ name: value })), name);
        }
    }
    for prompt in
        [json!(5), json!({}), json!([1.5]), json!([[]]), json!([-1]), json!(""), json!([]), json!(null)]
    {
        shared().refused(TEXT, &completion(prompt, json!({})), "prompt");
    }
    shared().refused(TEXT, &completion(json!([1000]), json!({})), "prompt");
}

#[test]
fn fields_that_are_not_supported_are_refused_unless_neutral() {
    for (name, value) in [("audio", json!({})), ("modalities", json!(["audio"])), ("store", json!(true))] {
        let error = shared().refused(CHAT, &chat("Hi", json!({ name: value })), name);
        assert_eq!(error["code"], "unsupported_parameter");
    }
    for (name, value, neutral) in [
        ("mirostat", json!(2), json!(0)),
        ("dry_multiplier", json!(0.8), json!(0)),
        ("xtc_probability", json!(0.5), json!(0.0)),
        ("top_n_sigma", json!(1), json!(-1)),
        ("n_predict", json!(4), json!(null)),
    ] {
        let error = shared().refused(CHAT, &chat("Hi", json!({ name: value })), name);
        assert_eq!(error["code"], "unsupported_parameter");
        shared().refused(TEXT, &completion("Hi", json!({ name: value })), name);
        shared().ok(CHAT, &chat("Hi", json!({ name: neutral })));
        shared().ok(TEXT, &completion("Hi", json!({ name: neutral })));
    }
    shared().refused(CHAT, &chat("Hi", json!({ "chat_template": "{{ messages }}" })), "chat_template");
    shared().refused(TEXT, &completion("Hi", json!({ "suffix": "end" })), "suffix");
    shared().refused(TEXT, &completion("Hi", json!({ "best_of": 3 })), "best_of");
    shared().ok(
        CHAT,
        &chat("Hi", json!({ "audio": null, "store": false, "modalities": ["text"], "unknown": 1 })),
    );
    shared().ok(TEXT, &completion("Hi", json!({ "suffix": null, "best_of": 1, "x": {} })));
}

#[test]
fn bodies_that_are_no_objects_are_refused() {
    let deep = "[".repeat(100_000);
    let object = format!("{{\"messages\":{}", "{\"a\":".repeat(100_000));
    for body in ["", "null", "5", "\"text\"", "[]", "{", "{\"prompt\":}", "{'prompt': 1}", &deep, &object] {
        for path in [CHAT, TEXT, "/tokenize", "/detokenize"] {
            let reply = shared().send("POST", path, body.as_bytes());
            assert_eq!(reply.status, 400, "{path} {:.40} {reply:?}", body);
            reply.error();
        }
    }
    for body in [&b"\xff\xfe{}"[..], b"{\"prompt\":\"\xc3\x28\"}", b"{\"prompt\":\"\xed\xa0\x80\"}", b"\0"] {
        assert_eq!(shared().send("POST", TEXT, body).status, 400);
    }
}

#[test]
fn bodies_that_are_encoded_are_refused() {
    let body = completion("Hi", json!({}));
    for encoding in ["gzip", "br", "identity, gzip"] {
        for path in [TEXT, "/v1/messages", "/v1/sessions/import"] {
            let reply = shared().with("content-encoding", encoding).post(path, &body);
            assert_eq!(reply.status, 415, "{reply:?}");
            let message = reply.json()["error"]["message"].clone();
            assert!(message.as_str().unwrap().contains(encoding), "{reply:?}");
        }
        assert_eq!(shared().with("content-encoding", encoding).get("/v1/sessions").status, 200);
    }
    shared().with("content-encoding", "Identity").ok(TEXT, &body);
}

#[test]
fn models_that_are_not_there_are_not_found() {
    for name in ["", "gpt-4", "/etc/passwd", "../tiny", "tiny ", &"x".repeat(100_000)] {
        let reply = shared().post(CHAT, &chat("Hi", json!({ "model": name })));
        assert_eq!((reply.status, &reply.error()["code"]), (404, &json!("model_not_found")), "{name:.20}");
        assert!(reply.body.len() < 1000);
    }
    let mut body = chat("Hi", json!({}));
    body.as_object_mut().unwrap().remove("model");
    shared().ok(CHAT, &body);
    shared().ok(CHAT, &chat("Hi", json!({ "model": "alias/of-it" })));
}

#[test]
fn paths_and_methods_that_are_not_there_are_told() {
    assert_eq!(shared().get("/v2/none").status, 404);
    assert_eq!(shared().get("/none").status, 404);
    let reply = shared().get(CHAT);
    assert_eq!(reply.status, 405);
    reply.error();
    assert_eq!(shared().send("DELETE", "/v1/models", b"").status, 405);
    for path in ["/v1/models/%ff", "/v1/responses/%c3%28", "/v1/responses/%ff/input_items"] {
        let reply = shared().get(path);
        assert_eq!(reply.status, 400, "{path}");
        reply.error();
    }
    assert!(!shared().get("/v2/%1b%5b31mred").error()["message"].to_string().contains('\u{1b}'));
}

#[test]
fn prompts_beyond_the_context_are_refused() {
    let error = shared().refused(TEXT, &completion("x".repeat(513), json!({})), "prompt");
    assert_eq!(error["code"], "context_length_exceeded");
    // A prompt that just fits has room for one token, whatever is asked for.
    let answer = shared().ok(TEXT, &completion("x".repeat(512), json!({ "max_tokens": 100 })));
    assert_eq!(answer["usage"]["completion_tokens"], 1);
    let error = shared().refused(CHAT, &chat(&"x".repeat(600_000), json!({})), "messages");
    assert_eq!(error["code"], "context_length_exceeded");
    let error = shared().refused(TEXT, &completion(json!(vec![1; 100_000]), json!({})), "prompt");
    assert_eq!(error["code"], "context_length_exceeded");
    let many = json!({ "messages": vec![json!({ "role": "tool", "content": "" }); 10_000] });
    let error = shared().refused(CHAT, &chat("Hi", many), "messages");
    assert!(error["message"].as_str().unwrap().starts_with("10000 messages are more than"), "{error}");
}

#[test]
fn control_tokens_in_messages_are_text_and_templates_have_their_own_variables() {
    let error = json!({ "chat_template_kwargs": { "messages": [] } });
    shared().refused(CHAT, &chat("Hi", error), "chat_template_kwargs");
    shared().refused(CHAT, &chat("Hi", json!({ "chat_template_kwargs": 5 })), "chat_template_kwargs");
    shared().refused(CHAT, &chat("Hi", json!({ "documents": "x" })), "messages");
}

#[test]
fn heads_that_are_no_http_are_refused() {
    for head in [
        "GET / HTTP/1.1\r\n\r\n".to_owned(),
        "nonsense\r\n\r\n".to_owned(),
        "GET /health HTTP/9.9\r\nhost: localhost\r\n\r\n".to_owned(),
        format!("GET /health HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "y".repeat(1 << 20)),
        format!("GET /health HTTP/1.1\r\nhost: localhost\r\n{}\r\n", "a: b\r\n".repeat(5000)),
        format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "z".repeat(1 << 20)),
        "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: -5\r\n\r\n".to_owned(),
        "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello"
            .to_owned(),
        "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n".to_owned(),
    ] {
        // Some are answered before they have been read to their end, and some clients see only that.
        if let Some(reply) = shared().raw(head.as_bytes()) {
            assert!((400..500).contains(&reply.status), "{:.60} {}", head, reply.status);
        }
    }
    assert_eq!(shared().get("/health").status, 200);
}

fn with(limits: Limits) -> Running {
    let files = Arc::new(Files::new());
    let model = files.load(&Serving { sequences: 2, ..Serving::default() });
    Running::start(&files, Server::new().model("tiny", model).limits(limits))
}

#[test]
fn bodies_are_bounded_in_bytes_and_time() {
    let time = Duration::from_millis(300);
    let server = with(Limits { body_bytes: 1000, header_time: time, body_time: time, ..Limits::default() });
    let reply = server.target.post("/tokenize", &json!({ "prompt": "x".repeat(1000) }));
    assert_eq!(reply.status, 413);
    let chunked = format!(
        "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n{}",
        format!("64\r\n{}\r\n", "x".repeat(100)).repeat(11)
    );
    assert_eq!(server.target.raw(chunked.as_bytes()).unwrap().status, 413);
    // Senders that are too slow: of a head, and of a body.
    let began = Instant::now();
    for start in
        ["GET /hea", "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{\"pro"]
    {
        let mut stream = server.target.connect();
        stream.write_all(start.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408 "), "{answer}");
    }
    assert!(began.elapsed() < Duration::from_secs(20));
    assert_eq!(server.target.get("/health").status, 200);
}

#[test]
fn what_is_too_much_at_once_is_told_to_come_again() {
    let server = with(Limits { requests: 1, connections: 3, ..Limits::default() });
    let body = completion("Hi", json!({ "stream": true, "max_tokens": 500, "n": 16 })).to_string();
    let mut first = server.target.begin("POST", TEXT, body.as_bytes());
    assert!(first.part().is_some());
    let reply = server.target.post(TEXT, &completion("Hi", json!({})));
    assert_eq!((reply.status, reply.header("retry-after")), (429, Some("1")));
    assert_eq!(reply.error()["type"], "rate_limit_error");
    for (method, path) in [
        ("GET", "/v1/sessions"),
        ("GET", "/v1/models/tiny/plan"),
        ("GET", "/v1/steering/none"),
        ("PUT", "/v1/steering/none/default"),
        ("DELETE", "/v1/responses/none"),
        ("HEAD", "/v1/models"),
    ] {
        assert_eq!(server.target.begin(method, path, b"").status, 429, "{method} {path}");
    }
    for path in ["/", "/health", "/ready", "/metrics", "/version", "/v1/live", "/models"] {
        assert_eq!(server.target.get(path).status, 200, "{path} costs nothing and is answered");
    }
    drop(first);
    let began = Instant::now();
    while server.target.post(TEXT, &completion("Hi", json!({}))).status == 429 {
        assert!(began.elapsed() < Duration::from_secs(10), "the place of a client that left is free again");
    }
    // A connection of before may still be counted when these come, and one of them be turned away for it.
    let began = Instant::now();
    loop {
        let idle: Vec<_> = (0..3).map(|_| server.target.connect()).collect();
        std::thread::sleep(Duration::from_millis(100));
        let status = server.target.raw(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap().status;
        drop(idle);
        if status == 503 {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(10), "a fourth connection is turned away");
    }
}

/// Requests made of pieces of good ones, from a seed.
#[test]
fn requests_at_random_are_answered_or_refused() {
    let mut state = 0x5eed_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let values = [
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(1.5),
        json!(1e308),
        json!(""),
        json!("x"),
        json!("tiny"),
        json!([]),
        json!([null]),
        json!(["x"]),
        json!([1, 2]),
        json!({}),
        json!({ "type": "text" }),
        json!(u64::MAX),
        json!([{ "role": "user", "content": "x" }]),
        json!([[1], [2]]),
        json!("\u{0}\u{ffff}𐍈"),
        json!({ "a": { "b": [] } }),
    ];
    for _ in 0..400 {
        let endpoint = &djinn_server::fields::ENDPOINTS[random(djinn_server::fields::ENDPOINTS.len())];
        let mut body: Value =
            if random(2) == 0 { chat("Hi", json!({})) } else { completion("Hi", json!({})) };
        for _ in 0..random(4) {
            let name = endpoint.fields[random(endpoint.fields.len())].name;
            body[name] = values[random(values.len())].clone();
        }
        let mut bytes = body.to_string().into_bytes();
        if random(4) == 0 {
            let at = random(bytes.len());
            bytes[at] = random(256) as u8;
        }
        let reply = shared().send(endpoint.method, endpoint.path, &bytes);
        match reply.status {
            200 | 201 => {}
            // Anthropic's errors have a form of their own.
            400 | 404 if endpoint.path.starts_with("/v1/messages") => {
                let error = reply.json();
                assert!(error["type"] == "error" && error["error"]["message"].is_string(), "{reply:?}");
            }
            400 | 404 | 409 => drop(reply.error()),
            status => panic!("{status} for {}: {reply:?}", String::from_utf8_lossy(&bytes)),
        }
    }
    assert_eq!(shared().get("/ready").status, 200);
}
