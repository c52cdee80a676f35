//! Turns that a client ends where they are.

use super::breakpoints::{act, ask, path, paused, plain, refused, session, text};
use super::{completion, shared};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Waits until a session is in this state, and gives how many tokens it has.
fn tokens_when(id: &str, state: &str) -> Value {
    let began = Instant::now();
    loop {
        let session = shared().get(&format!("/v1/sessions/{id}")).json();
        if session["state"] == state {
            return session["tokens"].clone();
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{session}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_paused_turn_is_ended_and_the_session_goes_on() {
    let target = shared();
    let prompt = "This goes no further";
    session(target, "ended", Some(json!({ "hook": "blocks.0.hook_out", "tokens": "generated", "hits": 1 })));
    let answer = ask(target, "ended", completion(prompt, json!({})));
    let at = paused(target, "ended")["positions"]["to"].clone();
    act(target, "ended", "abort", &json!({}));
    refused(&answer.join().unwrap(), 409, None, Some("session_state"));
    assert_eq!(tokens_when("ended", "waiting"), at);
    refused(&target.post(&path("ended", "abort"), &json!({})), 409, None, Some("session_state"));
    refused(&target.post(&path("ended", "resume"), &json!({})), 409, None, Some("session_not_paused"));
    let next = ask(target, "ended", completion(prompt, json!({}))).join().unwrap();
    assert_eq!(text(&next), plain(prompt, &json!({})), "it is as it was");
    assert_eq!(next.json()["usage"]["prompt_tokens_details"]["cached_tokens"], prompt.len() - 1);
}

#[test]
fn a_turn_that_its_client_holds_is_ended() {
    let target = shared();
    let body = completion("Held and ended", json!({ "stream": true, "max_tokens": 200 }));
    let mut stream =
        target.with("x-session-id", "held").begin("POST", "/v1/completions", body.to_string().as_bytes());
    stream.part().unwrap();
    act(target, "held", "pause", &json!({}));
    act(target, "held", "abort", &json!({}));
    let rest = stream.finish().body;
    // The model may have been faster.
    assert!(rest.contains("session_state") || rest.ends_with("data: [DONE]\n\n"), "{rest}");
    tokens_when("held", "waiting");
    assert_eq!(target.post("/v1/sessions", &json!({ "model": "tiny", "id": "empty" })).status, 200);
    refused(&target.post(&path("empty", "abort"), &json!({})), 409, None, Some("session_without_state"));
    assert_eq!(target.post(&path("nobody", "abort"), &json!({})).status, 404);
}
