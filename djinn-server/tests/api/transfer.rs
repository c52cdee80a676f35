//! Sessions as files: from one server to another, and files that are none.

use super::client::{Reply, Target};
use super::sessions::{cached, named, pages_in_use, serving, start, text, until, words};
use super::{Files, Running, completion};
use djinn_server::{Server, Serving};
use serde_json::{Value, json};
use std::io::Write;
use std::sync::Arc;

const TEXT: &str = "/v1/completions";
const SESSIONS: &str = "/v1/sessions";

fn export(target: &Target, id: &str) -> Vec<u8> {
    let mut response = target.begin("GET", &format!("{SESSIONS}/{id}/export"), b"");
    assert_eq!(response.status, 200);
    response.whole()
}

fn import(target: &Target, id: &str, file: &[u8]) -> Reply {
    target.send("POST", &format!("{SESSIONS}/import?id={id}"), file)
}

/// A session of one turn, and its conversation so far.
fn talk(target: &Target, id: &str, prompt: &str) -> String {
    let answer = named(target, id).ok(TEXT, &completion(prompt, json!({})));
    format!("{prompt}{}", text(&answer))
}

/// A refusal of a file, by its status and its code.
fn refused(reply: &Reply) -> (u16, Value) {
    (reply.status, reply.error()["code"].clone())
}

fn header_of(file: &[u8]) -> (Value, &[u8]) {
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&file[8..8 + length]).unwrap(), &file[8 + length..])
}

/// A file with another header.
fn with_header(header: &[u8], data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header, data].concat()
}

#[test]
fn a_session_goes_on_at_another_server() {
    let (here, there) = (start(&serving("lru")), start(&serving("lru")));
    let so_far = talk(&here.target, "agent", &words(1, 200));
    let file = export(&here.target, "agent");
    let (header, data) = header_of(&file);
    assert_eq!(header["tokens"]["shape"], json!([so_far.len()]));
    assert_eq!(header["__metadata__"]["context"], (so_far.len() - 1).to_string());
    assert_eq!(header["checksum"]["data_offsets"][1], data.len());
    let (before, sum) = file.split_at(file.len() - 32);
    assert_eq!(blake3::hash(before).as_bytes(), sum);
    let reply = import(&there.target, "agent", &file);
    assert_eq!(reply.status, 200, "{reply:?}");
    let session = reply.json();
    assert_eq!((&session["state"], &session["named_by"]), (&json!("waiting"), &json!("import")));
    assert_eq!((&session["tokens"], &session["residency"]), (&json!(so_far.len()), &json!("device")));
    // The salt of the first request is taken over, and the bits are those of the server that it left.
    let next = completion(format!("{so_far} and"), json!({ "cache_salt": "any", "logprobs": 3 }));
    let (expected, found) =
        (named(&here.target, "other").ok(TEXT, &next), named(&there.target, "agent").ok(TEXT, &next));
    assert_eq!(found["choices"], expected["choices"]);
    assert_eq!((cached(&expected), cached(&found)), (0, so_far.len() as u64 - 1));
    // A session that has gone on may leave again, and one of the same name may not come.
    assert!(export(&there.target, "agent").len() > file.len());
    assert_eq!(refused(&import(&there.target, "agent", &file)), (409, json!("session_exists")));
    // A name is made for one that has none.
    let nameless = there.target.send("POST", "/v1/sessions/import", &file);
    assert!(nameless.json()["id"].as_str().unwrap().starts_with("sess_"), "{nameless:?}");
}

/// A request with all that chooses tokens.
fn sampled(prompt: &str, more: Value) -> Value {
    let mut body = json!({
        "temperature": 1.0, "seed": 7, "frequency_penalty": 0.5, "presence_penalty": 0.3,
        "repetition_penalty": 1.1, "logit_bias": { "65": 2.5 }, "max_tokens": 400,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    completion(prompt, body)
}

/// A session that is held within its turn, which has begun to stream, and its file.
fn held(target: &Target, prompt: &str) -> (String, Vec<u8>) {
    for at in 0..50 {
        let id = format!("held-{at}");
        let body = sampled(prompt, json!({ "stream": true })).to_string();
        let mut stream = named(target, &id).begin("POST", TEXT, body.as_bytes());
        stream.part().unwrap();
        assert_eq!(target.post(&format!("{SESSIONS}/{id}/pause"), &json!({})).status, 200);
        let file = export(target, &id);
        // The turn may have been over before.
        let is_within = header_of(&file).0["__metadata__"]["turn"].is_string();
        assert_eq!(target.send("DELETE", &format!("{SESSIONS}/{id}"), b"").status, 200);
        if is_within {
            return (id, file);
        }
    }
    panic!("each turn was over before it was held");
}

#[test]
fn a_turn_goes_on_at_another_server() {
    let (here, there) = (start(&serving("lru")), start(&serving("lru")));
    let first = words(5, 60);
    let whole = text(&here.target.ok(TEXT, &sampled(&first, json!({}))));
    let (_, file) = held(&here.target, &first);
    let target = &there.target;
    let session = import(target, "moved", &file).json();
    assert_eq!((&session["state"], &session["phase"]), (&json!("paused"), &json!("paused")));
    let refused_turn = named(target, "moved").post(TEXT, &completion("Hi", json!({})));
    assert_eq!(refused(&refused_turn), (409, json!("session_paused")));
    assert_eq!(target.post(&format!("{SESSIONS}/moved/resume"), &json!({})).status, 200);
    let told = target.get(&format!("{SESSIONS}/moved/tokens?wait_ms=60000")).json();
    assert_eq!((&told["text"], &told["state"]), (&json!(whole), &json!("waiting")));
    assert_eq!(told["generated_from"], first.len());
    // Or the turn is over, and a request goes on.
    let ended = target.send("POST", &format!("{SESSIONS}/import?id=ended&turn=end"), &file).json();
    assert_eq!(ended["state"], "waiting");
    let tokens = ended["tokens"].as_u64().unwrap() as usize;
    let so_far = format!("{first}{whole}")[..tokens].to_owned();
    let answer = named(target, "ended").ok(TEXT, &completion(format!("{so_far} and"), json!({})));
    assert_eq!(cached(&answer) as usize, tokens - 1);
    let other = target.send("POST", &format!("{SESSIONS}/import?turn=maybe"), &file);
    assert_eq!((other.status, &other.error()["param"]), (400, &json!("turn")));
    // Turns of strangers.
    let (header, data) = header_of(&file);
    let turn: Value = serde_json::from_str(header["__metadata__"]["turn"].as_str().unwrap()).unwrap();
    let mut turns = vec!["{}".to_owned(), "1".to_owned(), "[".repeat(1000)];
    for (path, value) in [
        ("/tokens_left", json!(0)),
        ("/tokens_left", json!(-1)),
        ("/generated", json!(u64::MAX)),
        ("/sampling/temperature", json!(-1)),
        ("/sampling/logit_bias", json!({ "x": 1 })),
        ("/sampling/logit_bias", json!({ "5": 1e9 })),
        ("/sampling/logit_bias", json!({ "128": 1 })),
    ] {
        let mut turn = turn.clone();
        *turn.pointer_mut(path).unwrap() = value;
        turns.push(turn.to_string());
    }
    for turn in turns {
        let mut header = header.clone();
        header["__metadata__"]["turn"] = turn.as_str().into();
        let reply = import(target, "copy", &with_header(header.to_string().as_bytes(), data));
        assert_eq!(refused(&reply), (400, json!("session_file")), "{turn}");
    }
}

/// Breakpoints and captures are no part of what a session is; changes are, and are not exported.
#[test]
fn a_session_that_was_debugged_leaves_unless_it_was_changed() {
    let (here, there) = (start(&serving("lru")), start(&serving("lru")));
    let target = &here.target;
    let path = |id: &str, action: &str| format!("{SESSIONS}/{id}/{action}");
    let act = |id: &str, action: &str, body: Value| target.ok(&path(id, action), &body);
    let hook = "blocks.0.hook_out";
    let first = words(6, 60);
    let stop = |id: &str| {
        target.ok(SESSIONS, &json!({ "id": id }));
        let capture = json!({ "hook": hook, "action": "capture" });
        let pause = json!({ "hook": "blocks.1.hook_out", "tokens": "generated", "hits": 1 });
        for breakpoint in [capture, pause] {
            assert_eq!(target.post(&path(id, "breakpoints"), &breakpoint).status, 201);
        }
        let (asker, prompt) = (named(target, id), first.clone());
        let answer = std::thread::spawn(move || asker.ok(TEXT, &completion(prompt.as_str(), json!({}))));
        let paused = target.get(&path(id, "pause?timeout_ms=60000")).json();
        assert!(paused["paused_at"].is_object(), "{paused}");
        let reply = target.get(&path(id, "export"));
        assert_eq!(refused(&reply), (409, json!("session_state")), "it is stopped: {reply:?}");
        answer
    };
    let expected = text(&target.ok(TEXT, &completion(first.as_str(), json!({}))));
    // One that was looked at and went on.
    let answer = stop("looked-at");
    assert_eq!(target.get(&path("looked-at", "activations/blocks.0.hook_out")).status, 200);
    act("looked-at", "resume", json!({}));
    assert_eq!(text(&answer.join().unwrap()), expected);
    let file = export(target, "looked-at");
    assert_eq!(import(&there.target, "looked-at", &file).status, 200);
    let next = completion(format!("{first}{expected} and"), json!({ "logprobs": 3 }));
    let (own, moved) =
        (named(target, "other").ok(TEXT, &next), named(&there.target, "looked-at").ok(TEXT, &next));
    assert_eq!(own["choices"], moved["choices"]);
    assert_eq!(cached(&moved) as usize, first.len() + expected.len() - 1);
    // One that was changed: when it is computed again, its tokens do not say by what.
    let answer = stop("changed");
    act("changed", "activations/blocks.0.hook_out", json!({ "op": "scale", "factor": 0.5 }));
    act("changed", "resume", json!({}));
    answer.join().unwrap();
    assert_eq!(refused(&target.get(&path("changed", "export"))), (409, json!("session_state")));
    // One that is steered, and one whose steering changes nothing.
    let vector = json!({ "name": "calm", "layers": { "0": vec![0.5; 48] } });
    assert_eq!(target.post("/v1/steering", &vector).status, 201);
    for (id, uses, status) in
        [("steered", json!([{ "source": "calm" }]), 409), ("not-steered", json!([]), 200)]
    {
        talk(target, id, &first);
        act(id, "steering", json!({ "vectors": uses }));
        assert_eq!(target.get(&path(id, "export")).status, status, "{id}");
    }
}

#[test]
fn a_file_that_was_damaged_makes_no_session() {
    let server = start(&serving("lru"));
    let target = &server.target;
    talk(target, "agent", &words(2, 100));
    let file = export(target, "agent");
    let used = pages_in_use(target);
    let (_, data) = header_of(&file);
    let at = |place: usize| file.len() - data.len() + place;
    let refuses = |file: &[u8], what: &str| {
        let reply = import(target, "copy", file);
        assert_eq!(refused(&reply), (400, json!("session_file")), "{what}: {reply:?}");
        assert_eq!(target.get(&format!("{SESSIONS}/copy")).status, 404);
    };
    // A chunk, a token, keys, and the sum itself.
    for place in [at(0), at(20), at(1000), file.len() - 33, file.len() - 1] {
        let mut damaged = file.clone();
        damaged[place] ^= 1;
        refuses(&damaged, &format!("byte {place}"));
    }
    for length in [0, 7, 8, 100, at(0), at(10), at(1000), file.len() - 1] {
        refuses(&file[..length], &format!("{length} bytes"));
    }
    refuses(&[&file[..], b"!"].concat(), "a byte more");
    until(|| pages_in_use(target), |now| *now == used);
    // A client that leaves in the middle leaves nothing behind.
    let mut stream = target.connect();
    let head = format!(
        "POST {SESSIONS}/import?id=half HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\n\r\n",
        target.address,
        file.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&file[..at(1000)]).unwrap();
    until(|| pages_in_use(target), |now| *now > used);
    drop(stream);
    until(|| pages_in_use(target), |now| *now == used);
    assert_eq!(import(target, "copy", &file).status, 200);
}

#[test]
fn headers_of_strangers_are_bounded_and_compared() {
    let server = start(&serving("lru"));
    let target = &server.target;
    talk(target, "agent", &words(3, 60));
    let file = export(target, "agent");
    let (header, data) = header_of(&file);
    let refuses = |header: &[u8], status: u16, code: Value| {
        let reply = import(target, "copy", &with_header(header, data));
        assert_eq!(refused(&reply), (status, code), "{:?}: {reply:?}", String::from_utf8_lossy(header));
    };
    let malformed = || json!("session_file");
    for text in
        ["", "{", "[]", "{}", "null", "{\"__metadata__\": 1}", "{\"__metadata__\": {\"format\": \"pt\"}}"]
    {
        refuses(text.as_bytes(), 400, malformed());
    }
    refuses("[".repeat(60_000).as_bytes(), 400, malformed());
    refuses(&[0xFF; 100], 400, malformed());
    for length in [u64::MAX, 1 << 40, 65 << 10] {
        let reply = import(target, "copy", &[&length.to_le_bytes()[..], &[b' '; 200]].concat());
        assert_eq!(refused(&reply), (400, malformed()), "{length}");
    }
    let changed = |path: &str, value: Value| {
        let mut header = header.clone();
        *header.pointer_mut(path).unwrap() = value;
        header.to_string().into_bytes()
    };
    for (name, value) in [("version", "1"), ("model", "0123"), ("kv_dtype", "u32"), ("page_tokens", "7")] {
        refuses(&changed(&format!("/__metadata__/{name}"), value.into()), 409, json!("session_mismatch"));
    }
    for (path, value) in [
        ("/__metadata__/context", json!("72")),
        ("/__metadata__/context", json!("-1")),
        ("/__metadata__/computed", json!("99999999999999999999")),
        ("/__metadata__/computed", json!(71)),
        ("/chunks/shape/0", json!(u64::MAX)),
        ("/kv/shape/0", json!(1_u64 << 60)),
        ("/kv/data_offsets/0", json!(0)),
        ("/tokens/dtype", json!("I32")),
        ("/checksum/shape", json!([])),
    ] {
        refuses(&changed(path, value), 400, malformed());
    }
    refuses(&changed("/tokens/shape/0", json!(u64::MAX)), 413, json!(null));
    // One that is laid out as it says, but not of this model.
    let files = Files::new();
    let config = files.path().join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let mut other: Value = serde_json::from_str(&text).unwrap();
    other["rms_norm_eps"] = json!(0.5);
    std::fs::write(&config, other.to_string()).unwrap();
    let model = files.load(&Serving::default());
    let other = Running::start(&Arc::new(files), Server::new().model("tiny", model));
    assert_eq!(refused(&import(&other.target, "copy", &file)), (409, json!("session_mismatch")));
}

#[test]
fn sessions_without_state_and_names_of_none_are_refused() {
    let server = start(&serving("lru"));
    let target = &server.target;
    let asked = |id: &str| refused(&target.get(&format!("{SESSIONS}/{id}/export")));
    assert_eq!(asked("nobody"), (404, json!("session_not_found")));
    target.ok(SESSIONS, &json!({ "id": "empty" }));
    assert_eq!(asked("empty"), (409, json!("session_without_state")));
    talk(target, "agent", &words(4, 60));
    let file = export(target, "agent");
    assert_eq!(import(target, &"x".repeat(300), &file).status, 400);
    let nowhere = target.send("POST", "/v1/sessions/import?model=nothing", &file);
    assert_eq!(refused(&nowhere), (404, json!("model_not_found")));
    // Where nothing is kept between turns, there is nothing to export, and nothing comes.
    let forgets = start(&serving("none"));
    assert_eq!(refused(&import(&forgets.target, "agent", &file)), (409, json!("session_state")));
}
