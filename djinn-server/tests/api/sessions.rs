//! Sessions that clients name.

use super::client::{Pending, Reply, Target};
use super::{Files, Running, chat, completion, shared};
use djinn_scheduler::Settings;
use djinn_server::{Keys, Server, Serving};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

const TEXT: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
const SESSIONS: &str = "/v1/sessions";
/// Bytes of keys and values of a context of 512 tokens.
const CONTEXT_BYTES: u64 = 512 * 256;

pub(super) fn start(serving: &Serving) -> Running {
    let files = Arc::new(Files::new());
    Running::start(&files, Server::new().model("tiny", files.load(serving)))
}

pub(super) fn serving(policy: &str) -> Serving {
    let mut scheduler = Settings::from_yaml("scheduler: {ttl_ms: 0}").unwrap();
    scheduler.policy = policy.to_owned();
    // Pages may be taken as soon as a session waits.
    (scheduler.rules.lease, scheduler.rules.max_lease) = (Duration::ZERO, Duration::ZERO);
    Serving { sequences: 4, host_kv_bytes: 8 * CONTEXT_BYTES, scheduler, ..Serving::default() }
}

pub(super) fn named(target: &Target, id: &str) -> Target {
    target.with("x-session-id", id)
}

pub(super) fn text(answer: &Value) -> String {
    answer["choices"][0]["text"].as_str().unwrap().to_owned()
}

pub(super) fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

/// What a prompt gives without a session: each asks with a salt of its own, so that nothing is shared.
fn fresh(target: &Target, prompt: &str, most: u64) -> String {
    let more = json!({ "max_tokens": most, "cache_salt": format!("fresh {prompt}") });
    let answer = target.ok(TEXT, &completion(prompt, more));
    assert_eq!(cached(&answer), 0);
    text(&answer)
}

/// A turn of a session, which gives what it would give without one; how many tokens were not computed.
fn turn(target: &Target, id: &str, prompt: &str) -> (String, u64) {
    let answer = named(target, id).ok(TEXT, &completion(prompt, json!({})));
    assert_eq!(text(&answer), fresh(target, prompt, 12), "{prompt:?}");
    (text(&answer), cached(&answer))
}

fn show(target: &Target, id: &str) -> Value {
    let reply = target.get(&format!("{SESSIONS}/{id}"));
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

fn act(target: &Target, id: &str, action: &str, body: &Value) -> Reply {
    target.post(&format!("{SESSIONS}/{id}/{action}"), body)
}

/// The text of a stream whose first part was read.
fn rest(begun: &str, stream: Pending) -> String {
    let mut reply = stream.finish();
    reply.body.insert_str(0, begun);
    reply.chunks().iter().map(text).collect()
}

/// Asks until `is_so`.
pub(super) fn until<T: std::fmt::Debug>(ask: impl Fn() -> T, is_so: impl Fn(&T) -> bool) -> T {
    let began = Instant::now();
    loop {
        let found = ask();
        if is_so(&found) {
            return found;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "it stays {found:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(super) fn pages_in_use(target: &Target) -> f64 {
    target.metric("djinn_kv_cache_usage_perc{model_name=\"tiny\"}")
}

pub(super) fn words(seed: usize, count: usize) -> String {
    (0..count).map(|at| char::from(b'a' + ((at * at + seed * 7 + at) % 26) as u8)).collect()
}

#[test]
fn a_turn_computes_what_is_new() {
    let first = words(1, 200);
    let (answer, reused) = turn(shared(), "two-turns", &first);
    assert_eq!(reused, 0);
    let second = format!("{first}{answer} more");
    // Nothing was computed after the last token of an answer.
    let (answer, reused) = turn(shared(), "two-turns", &second);
    assert_eq!(reused as usize, first.len() + 12 - 1);
    assert!(shared().metric("djinn_prefix_cache_hits_total{model_name=\"tiny\"}") >= reused as f64);
    let session = show(shared(), "two-turns");
    assert_eq!((&session["state"], &session["phase"]), (&json!("waiting"), &json!("idle")));
    assert_eq!((&session["named_by"], &session["requests"]), (&json!("x-session-id"), &json!(2)));
    assert_eq!(session["tokens"], second.len() + 12);
    assert_eq!(session["usage"]["cached_tokens"], reused);
    assert_eq!((&session["residency"], &session["eta_restore_ms"]), (&json!("device"), &json!(0)));
    assert!(session["kv_bytes"].as_u64().unwrap() > 0);
    // A history that was changed is the same up to the change, and one of another salt is not the same.
    let (_, reused) = turn(shared(), "two-turns", &format!("{}!{answer}", &second[..150]));
    assert_eq!(reused, 150);
    let salted = json!({ "cache_salt": "other" });
    assert_eq!(cached(&named(shared(), "two-turns").ok(TEXT, &completion(second.as_str(), salted))), 0);
    // Of several answers, the first goes on.
    let several = completion(words(9, 60), json!({ "n": 3, "max_tokens": 8 }));
    let answers = named(shared(), "several").ok(TEXT, &several);
    let next = format!("{}{}", words(9, 60), text(&answers));
    assert_eq!(turn(shared(), "several", &next).1, 60 + 8 - 1);
}

#[test]
fn other_apis_tell_what_was_cached() {
    let said = words(2, 120);
    let ask = |id: &str, path: &str, body: &Value| named(shared(), id).ok(path, body)["usage"].clone();
    let prompt = "[user:]>".len() + said.len();
    ask("chat", CHAT, &chat(&said, json!({})));
    // Only the last token is computed again, since its logits are wanted.
    let usage = ask("chat", CHAT, &chat(&said, json!({})));
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], prompt - 1);
    let streamed = json!({ "stream": true, "stream_options": { "include_usage": true } });
    let chunks = named(shared(), "chat").post(CHAT, &chat(&said, streamed)).chunks();
    let usage = &chunks.last().unwrap()["usage"];
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], prompt - 1);
    let message = json!({
        "model": "tiny", "max_tokens": 4, "temperature": 0, "messages": [{ "role": "user", "content": said }],
    });
    let usage = ask("message", "/v1/messages", &message);
    assert_eq!((&usage["input_tokens"], &usage["cache_read_input_tokens"]), (&json!(prompt), &json!(0)));
    let usage = ask("message", "/v1/messages", &message);
    assert_eq!((&usage["input_tokens"], &usage["cache_read_input_tokens"]), (&json!(1), &json!(prompt - 1)));
}

#[test]
fn a_response_goes_on_in_its_session() {
    let said = words(3, 90);
    let request = json!({ "model": "tiny", "temperature": 0, "max_output_tokens": 6, "input": said });
    let first = shared().ok("/v1/responses", &request);
    let mut request = json!({ "model": "tiny", "temperature": 0, "max_output_tokens": 6, "input": "And?" });
    request["previous_response_id"] = first["id"].clone();
    let second = shared().ok("/v1/responses", &request);
    let cached = second["usage"]["input_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert_eq!(cached as usize, "[user:]".len() + said.len());
    let session = show(shared(), first["id"].as_str().unwrap());
    assert_eq!((&session["requests"], &session["named_by"]), (&json!(2), &json!("previous_response_id")));
    let path = format!("/v1/responses/{}", first["id"].as_str().unwrap());
    assert_eq!(shared().send("DELETE", &path, b"").status, 200);
    let path = format!("{SESSIONS}/{}", first["id"].as_str().unwrap());
    assert_eq!(shared().get(&path).status, 404, "the session goes with the response that named it");
    request["store"] = json!(false);
    request["previous_response_id"] = Value::Null;
    let other = shared().ok("/v1/responses", &request);
    let path = format!("{SESSIONS}/{}", other["id"].as_str().unwrap());
    assert_eq!(shared().get(&path).status, 404, "what is not stored is not gone on from");
}

/// Pages that went to the host come back, whole or up to where a history was changed.
#[test]
fn a_session_on_the_host_goes_on() {
    // Under this policy pages leave as soon as a session waits.
    let server = start(&serving("ttl"));
    let target = &server.target;
    let on_host = || until(|| show(target, "parked"), |session| session["residency"] == "host");
    let first = words(4, 230);
    let (answer, _) = turn(target, "parked", &first);
    let session = on_host();
    assert!(session["kv_bytes"].as_u64().unwrap() >= 230 * 256);
    let second = format!("{first}{answer} and so on");
    let (_, reused) = turn(target, "parked", &second);
    assert_eq!(reused as usize, first.len() + 12 - 1);
    on_host();
    let (_, reused) = turn(target, "parked", &format!("{}?", &second[..101]));
    assert_eq!(reused, 101);
}

/// A wait that is told of moves the session's pages, once others need them.
#[test]
fn a_wait_that_is_signalled_gives_pages_to_others() {
    let server = start(&Serving { kv_bytes: Some(2 * CONTEXT_BYTES), ..serving("signal") });
    let target = &server.target;
    let first = words(5, 400);
    let (answer, _) = turn(target, "agent", &first);
    let wait = json!({ "phase": "io_wait", "tool": "bash", "estimated_resume_ms": 3_000_000 });
    let told = act(target, "agent", "signal", &wait).json();
    assert_eq!((&told["outcome"], &told["residency"]), (&json!("accepted"), &json!("device")));
    assert!(told["kv_bytes"].as_u64().unwrap() >= 400 * 256 && told["why"].is_string(), "{told}");
    let session = show(target, "agent");
    assert_eq!((&session["phase"], &session["tool"]), (&json!("io_wait"), &json!("bash")));
    target.ok(TEXT, &completion(words(6, 100), json!({ "n": 3, "max_tokens": 400 })));
    until(|| show(target, "agent"), |session| session["residency"] == "host");
    let (_, reused) = turn(target, "agent", &format!("{first}{answer} done"));
    assert_eq!(reused as usize, first.len() + 12 - 1);
}

#[test]
fn signals_are_answered() {
    let server = start(&serving("signal"));
    let target = &server.target;
    let wait = |ms: u64| json!({ "phase": "io_wait", "tool": "bash", "estimated_resume_ms": ms });
    assert_eq!(act(target, "agent", "signal", &wait(9000)).status, 404, "there is no session yet");
    target.ok(SESSIONS, &json!({ "id": "agent" }));
    assert_eq!(act(target, "agent", "signal", &wait(9000)).status, 404, "it has no state yet");
    turn(target, "agent", &words(1, 50));
    let outcome = |body: &Value| act(target, "agent", "signal", body).json()["outcome"].clone();
    assert_eq!(outcome(&wait(9000)), "accepted");
    assert_eq!(outcome(&wait(u64::MAX)), "clipped");
    assert_eq!(outcome(&wait(0)), "rejected");
    assert_eq!(outcome(&json!({ "phase": "compute" })), "accepted");
    assert_eq!(outcome(&json!({ "phase": "idle" })), "accepted");
    assert_eq!(show(target, "agent")["phase"], "idle");
    for (body, param) in [
        (json!({}), "phase"),
        (json!({ "phase": "asleep" }), "phase"),
        (json!({ "phase": 1 }), "phase"),
        (json!({ "phase": "io_wait", "tool": 5 }), "tool"),
        (json!({ "phase": "io_wait", "tool": "x".repeat(129) }), "tool"),
        (json!({ "phase": "io_wait", "estimated_resume_ms": -1 }), "estimated_resume_ms"),
    ] {
        target.refused(&format!("{SESSIONS}/agent/signal"), &body, param);
    }
    // While it computes, a signal waits for the end of the turn, and nothing is inferred then.
    let body = completion(words(2, 50), json!({ "stream": true, "max_tokens": 400 }));
    let mut stream = named(target, "agent").begin("POST", TEXT, body.to_string().as_bytes());
    stream.part().unwrap();
    let told = act(target, "agent", "signal", &wait(5000)).json();
    // The model may have been faster.
    assert!(told["outcome"] == "deferred" || told["outcome"] == "accepted", "{told}");
    stream.finish();
    until(|| show(target, "agent"), |session| session["phase"] == "io_wait" && session["tool"] == "bash");
}

/// What a request says of the wait after it.
#[test]
fn hints_tell_of_the_wait_after_the_turn() {
    let server = start(&serving("signal"));
    let target = &server.target;
    let ask = |more: Value| target.ok(TEXT, &completion(words(3, 40), more));
    let action = |version: Value| {
        let payload = json!({ "phase": "io_wait", "tool": "cargo" });
        json!({ "action_id": "1", "action_type": "djinn.signal", "action_version": version, "payload": payload })
    };
    let hints = |actions: Value| json!({ "protocol_version": "0.1", "message_id": "m", "actions": actions });
    for (more, phase, tool) in [
        (json!({}), "idle", Value::Null),
        (
            json!({ "agent_hints": { "expected_tool_duration_ms": 5000, "agent_id": "x" } }),
            "io_wait",
            Value::Null,
        ),
        (json!({ "kv_hints": hints(json!([action(json!(1))])) }), "io_wait", json!("cargo")),
        (json!({ "kv_hints": hints(json!([action(json!("1"))])) }), "io_wait", json!("cargo")),
        (json!({ "kv_hints": hints(json!([action(json!(2))])) }), "idle", Value::Null),
        (
            json!({ "kv_hints": hints(json!([{ "action_type": "evict", "action_version": 1 }])) }),
            "idle",
            Value::Null,
        ),
    ] {
        let mut more = more;
        more["session_id"] = json!("hinted");
        ask(more.clone());
        let session = show(target, "hinted");
        assert_eq!((&session["phase"], &session["tool"]), (&json!(phase), &tool), "{more}");
    }
    let control = json!({ "session_control": { "session_id": "n", "action": "bind", "timeout": 77 } });
    ask(json!({ "nvext": control }));
    let session = show(target, "n");
    assert_eq!(
        (&session["ttl_s"], &session["named_by"]),
        (&json!(77.0), &json!("nvext.session_control.session_id"))
    );
    ask(json!({ "nvext": { "session_control": { "session_id": "n", "action": "close" } } }));
    assert_eq!(target.get(&format!("{SESSIONS}/n")).status, 404, "it was closed");
    named(target, "x")
        .with("x-dynamo-session-id", "d")
        .with("x-dynamo-session-final", "true")
        .ok(TEXT, &completion("Hi", json!({})));
    assert_eq!(target.get(&format!("{SESSIONS}/d")).status, 404, "it was its last request");
    for (more, param) in [
        (json!({ "agent_hints": 5 }), "agent_hints"),
        (
            json!({ "agent_hints": { "expected_tool_duration_ms": 0 } }),
            "agent_hints.expected_tool_duration_ms",
        ),
        (json!({ "agent_hints": { "cache_ttl_ms": "x" } }), "agent_hints.cache_ttl_ms"),
        (json!({ "nvext": [] }), "nvext"),
        (json!({ "nvext": { "agent_hints": { "priority": 1.5 } } }), "nvext.agent_hints.priority"),
        (json!({ "nvext": { "session_control": { "action": "kill" } } }), "nvext.session_control.action"),
        (json!({ "kv_hints": { "actions": [] } }), "kv_hints.protocol_version"),
        (json!({ "kv_hints": { "protocol_version": "9" } }), "kv_hints.protocol_version"),
        (json!({ "kv_hints": hints(json!(5)) }), "kv_hints.actions"),
        (json!({ "kv_hints": hints(json!([5])) }), "kv_hints.actions[0]"),
        (json!({ "kv_hints": hints(json!([{ "action_version": 1 }])) }), "kv_hints.actions[0].action_type"),
        (
            json!({ "kv_hints": hints(json!([{ "action_type": "djinn.signal", "action_version": 1, "payload": {} }])) }),
            "kv_hints.actions[0].payload.phase",
        ),
    ] {
        for path in [TEXT, CHAT] {
            let mut body = if path == TEXT { completion("Hi", json!({})) } else { chat("Hi", json!({})) };
            let (name, value) = more.as_object().unwrap().iter().next().unwrap();
            body[name] = value.clone();
            target.refused(path, &body, param);
        }
    }
}

#[test]
fn a_fork_shares_and_goes_its_own_way() {
    let server = start(&serving("signal"));
    let target = &server.target;
    let first = words(7, 300);
    assert_eq!(act(target, "parent", "fork", &json!({})).status, 404);
    target.ok(SESSIONS, &json!({ "id": "parent" }));
    assert_eq!(act(target, "parent", "fork", &json!({})).status, 409, "there is nothing to share");
    let (answer, _) = turn(target, "parent", &first);
    let before = pages_in_use(target);
    let fork = act(target, "parent", "fork", &json!({ "id": "child" })).json();
    assert_eq!(
        (&fork["id"], &fork["parent"], &fork["state"]),
        (&json!("child"), &json!("parent"), &json!("waiting"))
    );
    assert_eq!(fork["tokens"], first.len() + 12);
    assert_eq!(pages_in_use(target), before, "pages are shared");
    for (id, more) in [("child", " to the left"), ("parent", " to the right"), ("child", " and back")] {
        let (_, reused) = turn(target, id, &format!("{first}{answer}{more}"));
        assert!(reused as usize >= first.len() + 12 - 1, "{id} {reused}");
    }
    let again = act(target, "parent", "fork", &json!({ "id": "child" }));
    assert_eq!((again.status, &again.error()["param"]), (409, &json!("id")));
    let other = target.send("POST", &format!("{SESSIONS}/child/fork"), b"").json();
    assert!(other["id"].as_str().unwrap().starts_with("sess_"));
    let list = target.get(SESSIONS).json();
    assert_eq!(list["data"].as_array().unwrap().len(), 3);
}

#[test]
fn a_client_that_leaves_ends_the_turn_and_not_the_session() {
    let server = start(&serving("signal"));
    let target = &server.target;
    let first = words(8, 100);
    for _ in 0..3 {
        let body = completion(first.as_str(), json!({ "stream": true, "max_tokens": 400 }));
        let mut stream = named(target, "agent").begin("POST", TEXT, body.to_string().as_bytes());
        stream.part().unwrap();
        drop(stream);
        // The next request may come before the server sees that the client has left.
        turn(target, "agent", &format!("{first} again"));
    }
    let (_, reused) = turn(target, "agent", &format!("{first} again and again"));
    assert!(reused as usize >= first.len(), "{reused}");
    let session = until(|| show(target, "agent"), |session| session["state"] == "waiting");
    assert_eq!(session["requests"], 7);
    assert_eq!(target.send("DELETE", &format!("{SESSIONS}/agent"), b"").json()["deleted"], true);
    until(|| pages_in_use(target), |used| *used == 0.0);
}

#[test]
fn a_newer_request_takes_the_session_over() {
    let server = start(&serving("signal"));
    let target = &server.target;
    let (first, other) = (words(1, 80), words(2, 90));
    let expected = fresh(target, &first, 300);
    let body = completion(first.as_str(), json!({ "stream": true, "max_tokens": 300 }));
    let mut stream = named(target, "agent").begin("POST", TEXT, body.to_string().as_bytes());
    let begun = stream.part().unwrap();
    let (answer, _) = turn(target, "agent", &other);
    assert_eq!(rest(&begun, stream), expected, "the former one is not disturbed");
    let (_, reused) = turn(target, "agent", &format!("{other}{answer}!"));
    assert_eq!(reused as usize, other.len() + 12 - 1, "the session is the newer one's");
    assert_eq!(target.send("DELETE", &format!("{SESSIONS}/agent"), b"").status, 200);
    until(|| pages_in_use(target), |used| *used == 0.0);
}

#[test]
fn a_paused_session_goes_on_where_it_was() {
    let server = start(&serving("signal"));
    let target = &server.target;
    let first = words(3, 60);
    let expected = fresh(target, &first, 400);
    let body = completion(first.as_str(), json!({ "stream": true, "max_tokens": 400 }));
    let mut stream = named(target, "agent").begin("POST", TEXT, body.to_string().as_bytes());
    let begun = stream.part().unwrap();
    let paused = act(target, "agent", "pause", &json!({})).json();
    assert_eq!((&paused["state"], &paused["phase"]), (&json!("paused"), &json!("paused")));
    // A step that it was in still counts.
    let tokens = || show(target, "agent")["tokens"].clone();
    turn(target, "other", &first);
    let held = tokens();
    turn(target, "other", &words(4, 60));
    assert_eq!(tokens(), held);
    let refused = named(target, "agent").post(TEXT, &completion("Hi", json!({})));
    assert_eq!((refused.status, &refused.error()["code"]), (409, &json!("session_paused")));
    assert_eq!(act(target, "agent", "pause", &json!({})).status, 200, "it stays paused");
    assert_eq!(act(target, "agent", "resume", &json!({})).status, 200);
    assert_eq!(rest(&begun, stream), expected);
    assert_eq!(act(target, "agent", "resume", &json!({})).status, 409, "it is not paused");
    assert_eq!(act(target, "agent", "heartbeat", &json!({})).status, 200);
    let (_, reused) = turn(target, "agent", &format!("{first}{expected}"));
    assert_eq!(reused as usize, first.len() + expected.len() - 1);
}

#[test]
fn a_session_that_is_deleted_frees_its_pages_and_ends_its_request() {
    let server = start(&serving("signal"));
    let target = &server.target;
    turn(target, "at-rest", &words(5, 100));
    let body = completion(words(6, 60), json!({ "stream": true, "max_tokens": 440 }));
    let mut stream = named(target, "at-work").begin("POST", TEXT, body.to_string().as_bytes());
    stream.part().unwrap();
    for id in ["at-rest", "at-work"] {
        let path = format!("{SESSIONS}/{id}");
        assert_eq!(
            target.send("DELETE", &path, b"").json(),
            json!({ "id": id, "object": "session", "deleted": true })
        );
        assert_eq!(target.get(&path).status, 404);
        assert_eq!(target.send("DELETE", &path, b"").status, 404);
    }
    let rest = stream.finish().body;
    // The model may have been faster.
    assert!(rest.contains("session_deleted") || rest.ends_with("data: [DONE]\n\n"), "{rest}");
    until(|| pages_in_use(target), |used| *used == 0.0);
    assert_eq!(target.metric("djinn_num_sessions{model_name=\"tiny\"}"), 0.0);
}

#[test]
fn sessions_are_their_keys_own() {
    let files = Arc::new(Files::new());
    let keys = Keys::new(["alpha", "beta"]).unwrap();
    let server = Server::new().model("tiny", files.load(&serving("signal"))).keys(keys);
    let running = Running::start(&files, server);
    let with = |key: &str| running.target.with("authorization", &format!("Bearer {key}"));
    let (alpha, beta) = (with("alpha"), with("beta"));
    let prompt = words(1, 150);
    turn(&alpha, "same", &prompt);
    let path = format!("{SESSIONS}/same");
    assert_eq!(alpha.get(&path).status, 200);
    for (method, more) in
        [("GET", ""), ("DELETE", ""), ("POST", "/signal"), ("POST", "/pause"), ("POST", "/fork")]
    {
        let reply = beta.send(method, &format!("{path}{more}"), b"{\"phase\":\"idle\"}");
        assert_eq!((reply.status, &reply.error()["code"]), (404, &json!("session_not_found")), "{method}");
    }
    assert_eq!(beta.get(SESSIONS).json()["data"], json!([]));
    // The same name is another session, which has nothing of the first.
    assert_eq!(turn(&beta, "same", &prompt).1, 0);
    assert_eq!(beta.get(&path).json()["requests"], 1);
    assert!(turn(&alpha, "same", &prompt).1 > 0);
}

/// Pages that no policy takes away are not kept between turns: they would keep others out for ever.
#[test]
fn where_no_pages_are_moved_none_are_kept() {
    let server = start(&serving("none"));
    let target = &server.target;
    let prompt = words(1, 100);
    for _ in 0..2 {
        assert_eq!(turn(target, "agent", &prompt).1, 0);
        until(|| pages_in_use(target), |used| *used == 0.0);
    }
    let session = show(target, "agent");
    assert_eq!((&session["state"], &session["requests"]), (&json!("empty"), &json!(2)));
    assert_eq!(act(target, "agent", "fork", &json!({})).status, 409);
}

#[test]
fn sessions_are_forgotten_in_time_and_in_number() {
    let server = start(&Serving { sessions_per_key: 3, ..serving("signal") });
    let target = &server.target;
    let ids = || -> Vec<String> {
        let list = target.get(SESSIONS).json();
        let data = list["data"].as_array().unwrap();
        data.iter().map(|session| session["id"].as_str().unwrap().to_owned()).collect()
    };
    for id in ["a", "b", "c"] {
        turn(target, id, &words(1, 40));
    }
    assert_eq!(act(target, "a", "heartbeat", &json!({})).status, 200);
    turn(target, "d", &words(2, 40));
    assert_eq!(ids(), ["a", "c", "d"], "what was not used for longest went");
    for id in ["a", "c", "d"] {
        let short = json!({ "session_id": id, "agent_hints": { "cache_ttl_ms": 1 } });
        target.ok(TEXT, &completion("Hi", short));
    }
    until(ids, Vec::is_empty);
    until(|| pages_in_use(target), |used| *used == 0.0);
}

#[test]
fn names_and_bodies_that_mean_nothing_are_refused() {
    let long = "x".repeat(257);
    for bad in [json!(""), json!("with space"), json!("ü"), json!(long), json!(5), json!([])] {
        shared().refused(TEXT, &completion("Hi", json!({ "session_id": bad })), "session_id");
        shared().refused(SESSIONS, &json!({ "id": bad }), "id");
    }
    let reply = named(shared(), &long).post(TEXT, &completion("Hi", json!({})));
    assert_eq!((reply.status, &reply.error()["param"]), (400, &json!("x-session-id")));
    // A label may be any text.
    for label in [json!("ü".repeat(1000)), json!(null), json!("a/b?c#d%00")] {
        shared().ok(TEXT, &completion("Hi", json!({ "user": label, "prompt_cache_key": label })));
    }
    for label in [json!(5), json!({})] {
        shared().refused(TEXT, &completion("Hi", json!({ "user": label })), "user");
    }
    let session = shared().get(&format!("{SESSIONS}/prompt_cache_key:a%2Fb%3Fc%23d%2500"));
    assert_eq!(session.status, 200, "{session:?}");
    for (body, param) in [
        (json!({ "ttl_s": 0 }), "ttl_s"),
        (json!({ "ttl_s": 1e9 }), "ttl_s"),
        (json!({ "parent": "" }), "parent"),
        (json!({ "id": "good", "model": 5 }), "model"),
    ] {
        shared().refused(SESSIONS, &body, param);
    }
    let made = shared().ok(SESSIONS, &json!({ "parent": "p", "ttl_s": 60 }));
    assert_eq!(
        (&made["state"], &made["residency"], &made["parent"]),
        (&json!("empty"), &json!("none"), &json!("p"))
    );
    let id = made["id"].as_str().unwrap();
    assert_eq!(shared().post(SESSIONS, &json!({ "id": id })).status, 409, "there is one");
    assert_eq!(act(shared(), id, "pause", &json!({})).status, 409, "nothing is there to be held");
    assert_eq!(act(shared(), id, "dance", &json!({})).status, 404);
    for path in ["%00", "..%2f..%2fetc%2fpasswd", "%ff", &long] {
        let reply = shared().get(&format!("{SESSIONS}/{path}"));
        assert!(reply.status == 404 || reply.status == 400, "{reply:?}");
    }
    assert_eq!(shared().get(&format!("{SESSIONS}/{id}?model=none")).status, 404);
}

/// A model whose token 90 is a whole call, and which writes it when it is biased to: then 66, which ends the answer.
fn with_a_call() -> Running {
    let files = Arc::new(Files::new());
    let mut tokenizer = super::tokenizer();
    let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    vocab.remove("Z");
    vocab.insert("<tool_call>{\"name\":\"look\",\"arguments\":{}}</tool_call>".to_owned(), json!(90));
    std::fs::write(files.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let model = files.load(&serving("signal"));
    Running::start(&files, Server::new().model("tiny", model))
}

/// A client that sends no more than a header: the call of a tool begins a wait, and its result ends it.
#[test]
fn a_call_of_a_tool_begins_a_wait() {
    let server = with_a_call();
    let target = named(&server.target, "agent");
    let tools = json!([{ "type": "function", "function": { "name": "look" } }]);
    let calls = json!({
        "tools": tools, "logit_bias": { "90": 100, "66": 99 }, "presence_penalty": 2, "stop_token_ids": [66],
    });
    let answer = target.ok(CHAT, &chat("Look.", calls.clone()));
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    let session = show(&target, "agent");
    assert_eq!((&session["phase"], &session["tool"]), (&json!("io_wait"), &json!("look")));
    let mut next = chat("Look.", json!({ "tools": tools }));
    let messages = next["messages"].as_array_mut().unwrap();
    messages.push(choice["message"].clone());
    messages.push(json!({ "role": "tool", "tool_call_id": "x", "content": "rain" }));
    let answer = target.ok(CHAT, &next);
    assert!(cached(&answer) > 100, "{answer}");
    let session = show(&target, "agent");
    assert_eq!((&session["phase"], &session["tool"]), (&json!("idle"), &Value::Null));
    // The client's own estimate goes with the tool's name.
    let mut told = calls;
    told["agent_hints"] = json!({ "expected_tool_duration_ms": 60_000 });
    target.ok(CHAT, &chat("Look.", told));
    assert_eq!(show(&target, "agent")["tool"], "look");
}
