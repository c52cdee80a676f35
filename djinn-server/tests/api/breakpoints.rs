//! Sessions that pause at hook points: read, changed, stepped, forked, and resumed with the same tokens.

use super::client::{Reply, Target};
use super::{Files, Running, chat, completion, shared};
use djinn_models::TensorFile;
use djinn_models::safetensors::SafetensorsDir;
use djinn_server::{Limits, Server, Serving};
use djinn_srg::DType;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const TEXT: &str = "/v1/completions";
/// Of the model's activations.
const WIDTH: usize = 48;
const END: &str = "blocks.0.hook_out";
const LAST: &str = "blocks.1.hook_out";

/// A session that was made, with one breakpoint if one is given.
pub(crate) fn session(target: &Target, id: &str, breakpoint: Option<Value>) {
    assert_eq!(target.post("/v1/sessions", &json!({ "model": "tiny", "id": id })).status, 200);
    breakpoint.iter().for_each(|breakpoint| drop(set(target, id, breakpoint)));
}

pub(crate) fn path(id: &str, action: &str) -> String {
    format!("/v1/sessions/{id}/{action}")
}

pub(crate) fn act(target: &Target, id: &str, action: &str, body: &Value) -> Value {
    target.ok(&path(id, action), body)
}

fn set(target: &Target, id: &str, breakpoint: &Value) -> Value {
    let reply = target.post(&path(id, "breakpoints"), breakpoint);
    assert_eq!(reply.status, 201, "{reply:?}");
    reply.json()
}

pub(crate) fn see(target: &Target, id: &str, what: &str) -> Value {
    let reply = target.get(&path(id, what));
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

/// Where a session is paused, once it is.
pub(crate) fn paused(target: &Target, id: &str) -> Value {
    let at = see(target, id, "pause?timeout_ms=60000")["paused_at"].clone();
    assert!(at.is_object(), "{id} is not paused");
    at
}

pub(crate) fn ask(target: &Target, id: &str, body: Value) -> JoinHandle<Reply> {
    let target = target.with("x-session-id", id);
    std::thread::spawn(move || target.post(TEXT, &body))
}

pub(crate) fn text(reply: &Reply) -> String {
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()["choices"][0]["text"].as_str().unwrap().to_owned()
}

/// What a prompt gives by itself.
pub(crate) fn plain(prompt: &str, more: &Value) -> String {
    let mut more = more.clone();
    more["cache_salt"] = json!(format!("plain {prompt}"));
    text(&shared().post(TEXT, &completion(prompt, more)))
}

pub(crate) fn rows(activation: &Value) -> Vec<Vec<f32>> {
    serde_json::from_value(activation["values"].clone()).unwrap()
}

pub(crate) fn refused(reply: &Reply, status: u16, param: Option<&str>, code: Option<&str>) {
    assert_eq!(reply.status, status, "{reply:?}");
    let error = reply.error();
    assert_eq!((error["param"].as_str(), error["code"].as_str()), (param, code), "{reply:?}");
}

/// Two clients at once, each with a session: pauses in the prompt and at a generated token, what is read written back.
#[test]
fn two_sessions_are_debugged_at_once_and_what_is_written_back_changes_nothing() {
    let debug = |name: &'static str, tokens: &'static str| {
        std::thread::spawn(move || {
            let target = shared();
            let prompt = format!("Two clients, {name}, ask at the same time.");
            session(target, name, Some(json!({ "hook": END, "tokens": tokens, "hits": 3 })));
            let answer = ask(target, name, completion(prompt.as_str(), json!({})));
            let hits = if tokens == "prompt" { 1 } else { 3 };
            for hit in 0..hits {
                let at = paused(target, name);
                assert_eq!((&at["breakpoint"], &at["hook"]), (&json!("bp_1"), &json!(END)));
                let (from, to) =
                    (at["positions"]["from"].as_u64().unwrap(), at["positions"]["to"].as_u64().unwrap());
                let expected = if tokens == "prompt" {
                    (0, prompt.len())
                } else {
                    (prompt.len() + hit, prompt.len() + hit + 1)
                };
                assert_eq!((from as usize, to as usize), expected);
                assert_eq!(at["token_ids"].as_array().unwrap().len() as u64, to - from);
                assert!(at["expires_in_ms"].as_u64().unwrap() <= 300_000);
                let shown = target.get(&format!("/v1/sessions/{name}")).json();
                assert_eq!((&shown["state"], &shown["paused_at"]["hook"]), (&json!("paused"), &json!(END)));
                for hook in [END, "blocks.1.attn.hook_q", LAST] {
                    let read = see(target, name, &format!("activations/{hook}"));
                    assert_eq!(read["shape"][0], to - from);
                    let back = json!({ "op": "set", "values": read["values"] });
                    let wrote = act(target, name, &format!("activations/{hook}"), &back);
                    assert_eq!((&wrote["op"], &wrote["tokens"]), (&json!("set"), &json!(to - from)));
                }
                act(target, name, "resume", &json!({}));
            }
            let answer = answer.join().unwrap();
            assert_eq!(text(&answer), plain(&prompt, &json!({})));
            let edited = answer.json()["djinn"]["steering"][0].clone();
            assert_eq!(edited["name"], "edit");
            assert!(edited["tokens"].as_u64().unwrap() > 0);
            let known = see(target, name, "breakpoints")["data"][0].clone();
            assert_eq!(known["hit_count"], hits);
        })
    };
    for client in [debug("first", "prompt"), debug("second", "generated")] {
        client.join().unwrap();
    }
}

#[test]
fn captures_are_what_is_read_at_pauses() {
    let target = shared();
    let prompt = "What is captured equals what is read.";
    session(target, "capture", None);
    for hook in [END, LAST] {
        let made = set(target, "capture", &json!({ "hook": hook, "action": "capture" }));
        assert_eq!(
            (&made["hits"], &made["action"], &made["armed"]),
            (&Value::Null, &json!("capture"), &json!(false))
        );
    }
    // Pages of the same prompt that exist are no reason to skip a row.
    plain(prompt, &json!({}));
    set(target, "capture", &json!({ "hook": END, "tokens": "generated", "hits": 2 }));
    let answer = ask(target, "capture", completion(prompt, json!({ "max_tokens": 6 })));
    let mut read = Vec::new();
    for _ in 0..2 {
        let at = paused(target, "capture");
        let position = at["positions"]["from"].as_u64().unwrap() as usize;
        for (layer, hook) in [END, LAST].into_iter().enumerate() {
            let values = rows(&see(target, "capture", &format!("activations/{hook}")));
            assert_eq!(values.len(), 1);
            read.push((position, layer, values[0].clone()));
        }
        act(target, "capture", "resume", &json!({}));
    }
    assert_eq!(text(&answer.join().unwrap()), plain(prompt, &json!({ "max_tokens": 6 })));
    let reply = target.get(&path("capture", "captures?format=safetensors"));
    assert_eq!(reply.header("content-type"), Some("application/octet-stream"));
    let file = SafetensorsDir::from_bytes(reply.bytes).unwrap();
    let tensor = |name: &str| {
        let shape = file.tensor(name).unwrap_or_else(|| panic!("no {name}")).shape.clone();
        let count = shape.iter().product::<u64>();
        let mut bytes = vec![0; count as usize * 4];
        file.read(name, 0..count, DType::F32, &mut bytes).unwrap();
        let floats: Vec<f32> = bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect();
        (shape, floats)
    };
    let tokens = prompt.len() + 5;
    let (shape, states) = tensor("hidden_states");
    assert_eq!(shape, [tokens as u64, 2, WIDTH as u64]);
    for (position, layer, values) in &read {
        let from = (position * 2 + layer) * WIDTH;
        assert_eq!(&states[from..from + WIDTH], values, "layer {layer} at {position}");
    }
    assert_eq!(tensor(END).1[..WIDTH], states[..WIDTH]);
    assert_eq!(file.tensor("token_ids").unwrap().shape, [tokens as u64]);
    assert_eq!(file.tensor("positions").unwrap().shape, [tokens as u64]);
    // JSON gives what is left: nothing.
    assert_eq!(see(target, "capture", "captures")["data"], json!([]));
    // The same again, as JSON: the session computes only what is new.
    session(target, "again", None);
    for hook in [END, LAST] {
        set(target, "again", &json!({ "hook": hook, "action": "capture" }));
    }
    ask(target, "again", completion(prompt, json!({ "max_tokens": 6 }))).join().unwrap();
    let data = see(target, "again", "captures")["data"].clone();
    for (layer, hook) in [END, LAST].into_iter().enumerate() {
        assert_eq!((&data[layer]["hook"], &data[layer]["shape"]), (&json!(hook), &json!([tokens, WIDTH])));
        assert_eq!(data[layer]["positions"], json!((0..tokens).collect::<Vec<_>>()));
        let captured = rows(&data[layer]);
        for (position, _, values) in read.iter().filter(|(_, of, _)| *of == layer) {
            assert_eq!(&captured[*position], values, "{hook} at {position}");
        }
    }
}

/// A fork goes on as its parent would; only what is changed in one of them differs.
#[test]
fn forks_differ_by_their_edits_alone() {
    let target = shared();
    let prompt = "A fork in the road";
    let more = json!({ "max_tokens": 10 });
    let expected = plain(prompt, &more);
    session(target, "parent", Some(json!({ "hook": END, "tokens": "generated" })));
    let answer = ask(target, "parent", completion(prompt, more));
    let at = paused(target, "parent");
    for child in ["same", "other"] {
        let made = act(target, "parent", "fork", &json!({ "id": child }));
        assert_eq!((&made["state"], &made["parent"]), (&json!("paused"), &json!("parent")));
        assert_eq!(made["paused_at"]["positions"], at["positions"]);
    }
    let vector: Vec<f32> = (0..WIDTH).map(|at| if at % 2 == 0 { 40.0 } else { -40.0 }).collect();
    act(target, "other", &format!("activations/{END}"), &json!({ "op": "add", "values": vector }));
    assert_eq!(
        see(target, "same", &format!("activations/{LAST}"))["values"],
        see(target, "parent", &format!("activations/{LAST}"))["values"]
    );
    assert_ne!(
        see(target, "other", &format!("activations/{LAST}"))["values"],
        see(target, "parent", &format!("activations/{LAST}"))["values"]
    );
    for id in ["same", "other", "parent"] {
        act(target, id, "resume", &json!({}));
    }
    assert_eq!(text(&answer.join().unwrap()), expected);
    let tokens = |id: &str| {
        let tokens = see(target, id, "tokens?wait_ms=60000");
        assert_eq!((&tokens["state"], &tokens["generated_from"]), (&json!("waiting"), &json!(prompt.len())));
        tokens
    };
    let (parent, same, other) = (tokens("parent"), tokens("same"), tokens("other"));
    assert_eq!(parent["text"], expected);
    assert_eq!((&same["token_ids"], &same["text"]), (&parent["token_ids"], &parent["text"]));
    assert_ne!(other["token_ids"], parent["token_ids"]);
    let first = prompt.len();
    assert_eq!(
        other["token_ids"].as_array().unwrap()[..=first],
        parent["token_ids"].as_array().unwrap()[..=first]
    );
    // They are sessions as others are.
    let next = format!("{prompt}{expected} and");
    assert_eq!(
        text(&ask(target, "same", completion(next.as_str(), json!({}))).join().unwrap()),
        plain(&next, &json!({}))
    );
}

#[test]
fn a_session_steps_by_layer_by_token_and_to_a_hook() {
    let target = shared();
    session(target, "steps", Some(json!({ "hook": END, "tokens": "generated" })));
    let prompt = "Step by step";
    let answer = ask(target, "steps", completion(prompt, json!({})));
    let mut position = prompt.len();
    assert_eq!(paused(target, "steps")["positions"]["from"], position);
    for (until, hook, moves) in [
        (json!("next_layer"), LAST, false),
        (json!({ "hook": "ln_final.hook_out" }), "ln_final.hook_out", false),
        (json!("next_token"), "ln_final.hook_out", true),
        (json!("next_layer"), END, true),
        (json!("next_layer"), LAST, false),
        (json!("next_layer"), END, true),
    ] {
        act(target, "steps", "resume", &json!({ "until": until }));
        let at = paused(target, "steps");
        position += usize::from(moves);
        assert_eq!((&at["hook"], &at["positions"]["from"]), (&json!(hook), &json!(position)), "{until}");
        assert!(at["expires_in_ms"].is_u64(), "a step ends by itself as well");
    }
    let lens = act(target, "steps", "lens", &json!({ "top": 3 }));
    assert_eq!(lens["data"].as_array().unwrap().len(), 2);
    let best = lens["data"][1]["top"].clone();
    assert_eq!((&lens["data"][1]["hook"], best.as_array().unwrap().len()), (&json!(LAST), 3));
    assert!(
        best[0]["probability"].as_f64() >= best[1]["probability"].as_f64() && best[0]["text"].is_string()
    );
    let logits = see(target, "steps", "activations/logits");
    let values = rows(&logits);
    assert_eq!(logits["shape"], json!([1, 128]));
    // The lens at the last block is the model's own choice, which greedy decoding takes.
    let most = (0..128).max_by(|&a: &usize, &b| values[0][a].total_cmp(&values[0][b])).unwrap();
    assert_eq!(best[0]["token_id"], most);
    refused(
        &target.post(&path("steps", "resume"), &json!({ "until": { "hook": "embed.hook_out" } })),
        400,
        Some("until.hook"),
        None,
    );
    act(target, "steps", "resume", &json!({}));
    assert_eq!(text(&answer.join().unwrap()), plain(prompt, &json!({})));
    let tokens = see(target, "steps", "tokens");
    assert_eq!(tokens["token_ids"][position + 1], most);
}

/// A client that leaves ends the turn; a debugger that leaves is waited for as long as its breakpoint says.
#[test]
fn what_is_paused_goes_on_without_its_client() {
    let target = shared();
    let prompt = "Nobody resumes this";
    session(target, "resumes", Some(json!({ "hook": END, "ttl_ms": 50 })));
    assert_eq!(
        text(&ask(target, "resumes", completion(prompt, json!({}))).join().unwrap()),
        plain(prompt, &json!({}))
    );
    session(target, "aborts", Some(json!({ "hook": END, "ttl_ms": 50, "on_ttl": "abort" })));
    let reply = ask(target, "aborts", completion(prompt, json!({}))).join().unwrap();
    refused(&reply, 409, None, Some("session_expired"));
    session(target, "left", Some(json!({ "hook": END })));
    let body = completion(prompt, json!({ "stream": true }));
    let stream = target.with("x-session-id", "left").begin("POST", TEXT, body.to_string().as_bytes());
    paused(target, "left");
    refused(
        &ask(target, "left", completion(prompt, json!({}))).join().unwrap(),
        409,
        None,
        Some("session_paused"),
    );
    drop(stream);
    let began = Instant::now();
    while target.get("/v1/sessions/left").json()["paused_at"].is_object() {
        assert!(began.elapsed() < Duration::from_secs(60), "it stays paused");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(
        text(&ask(target, "left", completion(prompt, json!({}))).join().unwrap()),
        plain(prompt, &json!({}))
    );
}

#[test]
fn conditions_choose_the_tokens() {
    let target = shared();
    let prompt = "Find the letter q in this";
    let at_q = prompt.find('q').unwrap();
    let token = json!({ "type": "token", "tokens": [u32::from(b'q')] });
    session(target, "token", Some(json!({ "hook": END, "condition": token })));
    let answer = ask(target, "token", completion(prompt, json!({})));
    let at = paused(target, "token");
    assert_eq!((&at["hit_positions"], &at["positions"]["from"]), (&json!([at_q]), &json!(0)));
    let row = rows(&see(target, "token", &format!("activations/{END}")))[at_q].clone();
    act(target, "token", "resume", &json!({}));
    answer.join().unwrap();
    // A probe along that row finds it; an entropy that no distribution over 128 tokens has finds nothing.
    let squares: f32 = row.iter().map(|value| value * value).sum();
    let probe = json!({ "type": "probe", "direction": row, "above": squares * 0.999 });
    session(
        target,
        "probe",
        Some(json!({ "hook": END, "condition": probe, "positions": { "from": at_q, "to": at_q + 1 } })),
    );
    let answer = ask(target, "probe", completion(prompt, json!({})));
    assert_eq!(paused(target, "probe")["hit_positions"], json!([at_q]));
    act(target, "probe", "resume", &json!({}));
    answer.join().unwrap();
    session(
        target,
        "entropy",
        Some(json!({ "hook": LAST, "condition": { "type": "entropy", "above": 5.0 } })),
    );
    let reply = ask(target, "entropy", completion(prompt, json!({}))).join().unwrap();
    assert_eq!(text(&reply), plain(prompt, &json!({})));
    assert_eq!(see(target, "entropy", "breakpoints")["data"][0]["hit_count"], 0);
    set(target, "entropy", &json!({ "hook": LAST, "condition": { "type": "entropy", "above": 0.0 } }));
    let answer = ask(target, "entropy", completion(format!("{prompt}!"), json!({})));
    assert_eq!(paused(target, "entropy")["breakpoint"], "bp_2");
    act(target, "entropy", "resume", &json!({}));
    answer.join().unwrap();
    // Steps are of generated tokens, also where no kind of tokens is named.
    let at_second = json!({ "hook": END, "steps": { "from": 2, "to": 3 }, "action": "pause_and_capture" });
    session(target, "at-step", Some(at_second));
    let answer = ask(target, "at-step", completion(prompt, json!({})));
    let second = prompt.len() as u64 + 1;
    assert_eq!(paused(target, "at-step")["positions"], json!({ "from": second, "to": second + 1 }));
    act(target, "at-step", "resume", &json!({}));
    assert_eq!(text(&answer.join().unwrap()), plain(prompt, &json!({})));
    assert_eq!(see(target, "at-step", "captures")["data"][0]["positions"], json!([second]));
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let target = shared();
    session(target, "refuses", None);
    let breakpoints = path("refuses", "breakpoints");
    for (body, param) in [
        (json!({}), "hook"),
        (json!({ "hook": "blocks.9.hook_out" }), "hook"),
        (json!({ "hook": END, "tokens": "some" }), "tokens"),
        (json!({ "hook": END, "positions": { "from": 4, "to": 4 } }), "positions"),
        (json!({ "hook": END, "positions": { "form": 4 } }), "positions.form"),
        (json!({ "hook": END, "steps": { "to": 1 } }), "steps"),
        (json!({ "hook": END, "postions": { "from": 4 } }), "postions"),
        (json!({ "hook": END, "steps": { "from": 1 }, "tokens": "prompt" }), "steps"),
        (json!({ "hook": END, "action": "stop" }), "action"),
        (json!({ "hook": END, "hits": 0 }), "hits"),
        (json!({ "hook": END, "ttl_ms": 0 }), "ttl_ms"),
        (json!({ "hook": END, "on_ttl": "stay" }), "on_ttl"),
        (json!({ "hook": END, "condition": { "type": "feeling" } }), "condition.type"),
        (json!({ "hook": END, "condition": { "type": "token", "tokens": [] } }), "condition.tokens"),
        (json!({ "hook": END, "condition": { "type": "token", "tokens": [128] } }), "condition.tokens"),
        (json!({ "hook": END, "condition": { "type": "entropy" } }), "condition.above"),
        (json!({ "hook": END, "condition": { "type": "entropy", "above": 1e39 } }), "condition.above"),
        (
            json!({ "hook": END, "condition": { "type": "probe", "above": 1, "direction": [1] } }),
            "condition.direction",
        ),
    ] {
        target.refused(&breakpoints, &body, param);
    }
    for (hook, why) in [
        ("blocks.2.hook_out", "the model has no hook `blocks.2.hook_out`; its layers are 0 to 1"),
        ("model.layers.30", "the model has no hook `model.layers.30`; its layers are 0 to 1"),
        (
            "blocks.2.attn.hook_pattern",
            "the model has no hook `blocks.2.attn.hook_pattern`; its layers are 0 to 1",
        ),
        (
            "blocks.1.attn.hook_pattern",
            "`blocks.1.attn.hook_pattern` is computed when a paused session is read",
        ),
        ("block.1.hook_out", "the model has no hook `block.1.hook_out` (near: `blocks.1.hook_out`)"),
    ] {
        let reply = target.post(&breakpoints, &json!({ "hook": hook }));
        refused(&reply, 400, Some("hook"), None);
        assert!(reply.error()["message"].as_str().unwrap().starts_with(why), "{reply:?}");
    }
    refused(
        &target.send("DELETE", &format!("{breakpoints}/bp_7"), b""),
        404,
        None,
        Some("breakpoint_not_found"),
    );
    refused(
        &target.post(&path("nobody", "breakpoints"), &json!({ "hook": END })),
        404,
        None,
        Some("session_not_found"),
    );
    refused(&target.get(&path("refuses", "pause?timeout_ms=60001")), 400, Some("timeout_ms"), None);
    assert_eq!(see(target, "refuses", "pause?timeout_ms=0")["paused_at"], Value::Null);
    let set_zero = json!({ "op": "set", "values": vec![0.0; WIDTH] });
    let activation = path("refuses", &format!("activations/{END}"));
    let not_paused = |code: &str| {
        refused(&target.get(&activation), 409, None, Some(code));
        refused(&target.post(&activation, &set_zero), 409, None, Some(code));
        refused(&target.post(&path("refuses", "lens"), &json!({})), 409, None, Some(code));
        refused(&target.post(&path("refuses", "resume"), &json!({})), 409, None, Some(code));
    };
    not_paused("session_without_state");
    ask(target, "refuses", completion("One turn.", json!({}))).join().unwrap();
    not_paused("session_not_paused");
    set(target, "refuses", &json!({ "hook": END }));
    let answer = ask(target, "refuses", completion("Other words for the pause", json!({})));
    paused(target, "refuses");
    for (body, param) in [
        (json!({}), "op"),
        (json!({ "op": "paint" }), "op"),
        (json!({ "op": "set" }), "values"),
        (json!({ "op": "set", "values": [1, 2, 3] }), "values"),
        (json!({ "op": "set", "values": [[1, 2, 3]] }), "values"),
        (json!({ "op": "set", "values": vec![1e39; WIDTH] }), "values"),
        (json!({ "op": "set", "values": vec!["a"; WIDTH] }), "values"),
        (json!({ "op": "add", "values": vec![1e30; WIDTH], "strength": 1e30 }), "strength"),
        (json!({ "op": "scale" }), "factor"),
        (json!({ "op": "scale", "factor": 1e39 }), "factor"),
        (json!({ "op": "scale", "factor": 2, "values": [] }), "values"),
        (json!({ "op": "clamp" }), "low"),
        (json!({ "op": "clamp", "low": 2, "high": 1 }), "low"),
        (json!({ "op": "project_out", "values": vec![0.0; WIDTH] }), "values"),
        (json!({ "op": "scale", "factor": 2, "postions": [1] }), "postions"),
        (json!({ "op": "scale", "factor": 2, "columns": [WIDTH] }), "columns"),
        (json!({ "op": "scale", "factor": 2, "columns": { "from": 2, "to": 2 } }), "columns"),
        (json!({ "op": "scale", "factor": 2, "columns": [3, 3] }), "columns"),
        (json!({ "op": "set", "columns": [3, 5], "values": [1.0, 1.0, 1.0] }), "values"),
        (json!({ "op": "project_out", "columns": [3, 5], "values": [1.0, 1.0] }), "columns"),
        (json!({ "op": "scale", "factor": 2, "positions": [9999] }), "positions"),
        (json!({ "op": "scale", "factor": 2, "positions": [u64::MAX] }), "positions"),
        (json!({ "op": "scale", "factor": 2, "positions": [2, 1] }), "positions"),
        (json!({ "op": "scale", "factor": 2, "positions": [] }), "positions"),
        (json!({ "op": "scale", "factor": 2, "positions": { "from": 3, "to": 3 } }), "positions"),
    ] {
        target.refused(&activation, &body, param);
    }
    for (hook, body, why) in [
        (END, json!({ "op": "clamp" }), "`low` and `high` are missing"),
        (
            END,
            json!({ "op": "scale", "factor": 2, "positions": [25] }),
            "position 25 is not among those that are paused, 1 to 24",
        ),
        (
            "logits",
            json!({ "op": "scale", "factor": 2, "positions": [3] }),
            "only position 24 has values at this hook",
        ),
    ] {
        let reply = target.post(&path("refuses", &format!("activations/{hook}")), &body);
        assert_eq!(reply.status, 400, "{reply:?}");
        assert!(reply.error()["message"].as_str().unwrap().starts_with(why), "{reply:?}");
    }
    refused(&target.get(&path("refuses", "activations/blocks.0.hook_outt")), 400, Some("hook"), None);
    refused(&target.get(&format!("{activation}?format=npz")), 400, Some("format"), None);
    refused(
        &target.send("POST", &activation, b"\x20\0\0\0\0\0\0\0{ not a header of safetensors  }"),
        400,
        Some("body"),
        None,
    );
    target.refused(&path("refuses", "lens"), &json!({ "top": 0 }), "top");
    target.refused(&path("refuses", "lens"), &json!({ "topp": 3 }), "topp");
    target.refused(&path("refuses", "resume"), &json!({ "til": "next_layer" }), "til");
    // The residual stream alone, although others have as many values.
    let residual = ["blocks.0.hook_in", "blocks.0.hook_resid_mid", "embed.hook_out", "model.layers.1"];
    let lens = act(target, "refuses", "lens", &json!({ "hooks": residual }));
    assert_eq!(lens["data"].as_array().unwrap().len(), residual.len());
    for other in [
        "logits",
        "blocks.0.ln1.hook_out",
        "blocks.0.attn.hook_out",
        "blocks.1.mlp.hook_out",
        "ln_final.hook_out",
    ] {
        target.refused(&path("refuses", "lens"), &json!({ "hooks": [END, other] }), "hooks");
    }
    target.refused(&path("refuses", "lens"), &json!({ "position": 9999 }), "position");
    target.refused(&path("refuses", "resume"), &json!({ "until": "later" }), "until");
    target.refused(&path("refuses", "resume"), &json!({ "until": { "hook": "none" } }), "until.hook");
    act(target, "refuses", "resume", &json!({}));
    assert_eq!(text(&answer.join().unwrap()), plain("Other words for the pause", &json!({})));
}

/// What becomes of a value, by its token and column.
type Change = Box<dyn Fn(&mut f32, usize, usize)>;

/// A head, some neurons, some logits: columns are changed as if the whole rows were read, changed and set.
#[test]
fn columns_are_changed_and_no_others() {
    let target = shared();
    let prompt = "Some columns change";
    session(target, "columns", Some(json!({ "hook": END })));
    let answer = ask(target, "columns", completion(prompt, json!({})));
    let tokens = paused(target, "columns")["positions"]["to"].as_u64().unwrap() as usize;
    for hook in
        ["blocks.1.attn.hook_q", "blocks.1.attn.hook_v", "blocks.1.attn.hook_z", "blocks.1.mlp.hook_post"]
    {
        let name = format!("activations/{hook}");
        let mut expected = rows(&see(target, "columns", &name));
        let width = expected[0].len();
        let some = [1, 2, 3, width - 1];
        let changes: [(Value, Change); 5] = [
            (
                json!({ "op": "scale", "factor": 0, "columns": { "to": 4 } }),
                Box::new(|x, _, column| {
                    if column < 4 {
                        *x = 0.0;
                    }
                }),
            ),
            (json!({ "op": "set", "columns": some, "values": [1.0, 2.0, 3.0, 4.0], "positions": [0, 2] }), {
                Box::new(move |x, token, column| {
                    if let (true, Some(at)) =
                        ([0, 2].contains(&token), some.iter().position(|&one| one == column))
                    {
                        *x = at as f32 + 1.0;
                    }
                })
            }),
            (
                json!({ "op": "add", "columns": [2, 4], "positions": [0, 2], "strength": 2, "values": [[1, 2], [3, 4]] }),
                {
                    Box::new(|x, token, column| match (token, column) {
                        (0, 2) => *x += 2.0,
                        (0, 4) => *x += 4.0,
                        (2, 2) => *x += 6.0,
                        (2, 4) => *x += 8.0,
                        _ => {}
                    })
                },
            ),
            (
                json!({ "op": "set", "columns": [5], "values": (0..tokens).map(|token| [token]).collect::<Vec<_>>() }),
                {
                    Box::new(|x, token, column| {
                        if column == 5 {
                            *x = token as f32;
                        }
                    })
                },
            ),
            (
                json!({ "op": "clamp", "low": 0.25, "columns": { "from": width - 2 } }),
                Box::new(move |x, _, column| {
                    if column >= width - 2 {
                        *x = x.max(0.25);
                    }
                }),
            ),
        ];
        for (body, change) in changes {
            act(target, "columns", &name, &body);
            for (token, row) in expected.iter_mut().enumerate() {
                row.iter_mut().enumerate().for_each(|(column, x)| change(x, token, column));
            }
            assert_eq!(rows(&see(target, "columns", &name)), expected, "{hook}: {body}");
        }
        let direction = json!({ "op": "project_out", "values": [0, 2], "columns": { "from": 1, "to": 3 } });
        act(target, "columns", &name, &direction);
        expected.iter_mut().for_each(|row| row[2] = 0.0);
        assert_eq!(rows(&see(target, "columns", &name)), expected, "{hook}");
    }
    // Of the logits, one token's.
    act(target, "columns", "activations/logits", &json!({ "op": "set", "values": [99], "columns": [65] }));
    act(target, "columns", "resume", &json!({}));
    assert!(text(&answer.join().unwrap()).starts_with('A'));
}

/// Values that a change makes infinite are told as such, and end the turn alone.
#[test]
fn changes_that_leave_no_finite_logits_are_told() {
    let target = shared();
    session(target, "infinite", Some(json!({ "hook": END })));
    let answer = ask(target, "infinite", completion("Too much of it", json!({})));
    paused(target, "infinite");
    // No token is before the prompt.
    target.refused(
        &path("infinite", "kv/0"),
        &json!({ "op": "scale", "part": "keys", "factor": 2 }),
        "positions",
    );
    let much = json!({ "op": "set", "values": vec![3e38; WIDTH] });
    act(target, "infinite", "activations/blocks.1.attn.hook_z", &much);
    let lens = target.post(&path("infinite", "lens"), &json!({ "hooks": [LAST] }));
    refused(&lens, 400, Some("hooks"), None);
    assert_eq!(lens.error()["message"], format!("the values at `{LAST}` are not all finite"));
    act(target, "infinite", "resume", &json!({}));
    let reply = answer.join().unwrap();
    assert_eq!(reply.status, 400, "{reply:?}");
    let message = reply.error()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("change activations by less if some were changed"), "{message}");
    let again = ask(target, "infinite", completion("Less of it", json!({}))).join().unwrap();
    assert_eq!(text(&again), plain("Less of it", &json!({})));
}

/// Without memory for hooks, or with too little, nothing is armed, and other requests are as before.
#[test]
fn memory_for_hooks_is_bounded() {
    for (bytes, code) in [(0, "hook_memory"), (4096, "hook_memory")] {
        let files = Arc::new(Files::new());
        let serving = Serving { hook_bytes: bytes, ..Serving::default() };
        let server = Running::start(&files, Server::new().model("tiny", files.load(&serving)));
        let target = &server.target;
        session(target, "poor", None);
        ask(target, "poor", completion("First a turn", json!({}))).join().unwrap();
        let reply = target.post(&path("poor", "breakpoints"), &json!({ "hook": END, "action": "capture" }));
        refused(&reply, 429, None, Some(code));
        assert!(reply.error()["message"].as_str().unwrap().contains(&bytes.to_string()), "{reply:?}");
        assert_eq!(
            ask(target, "poor", completion("First a turn, then", json!({}))).join().unwrap().status,
            200
        );
    }
}

/// A stream whose session is paused goes on with the rest once it is resumed; a chat as well.
#[test]
fn a_stream_lives_through_a_pause() {
    let target = shared();
    let expected = target.ok("/v1/chat/completions", &chat("Pause me", json!({})));
    session(target, "stream", Some(json!({ "hook": LAST, "tokens": "generated", "steps": { "from": 2 } })));
    let body = chat("Pause me", json!({ "stream": true })).to_string();
    let streaming =
        target.with("x-session-id", "stream").begin("POST", "/v1/chat/completions", body.as_bytes());
    paused(target, "stream");
    act(target, "stream", "resume", &json!({}));
    let chunks = streaming.finish().chunks();
    let said: String =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(json!(said), expected["choices"][0]["message"]["content"]);
}

/// A server that ends does not wait for clients that wait for pauses.
#[test]
fn a_wait_ends_with_the_server() {
    let files = Arc::new(Files::new());
    let server = Running::start(&files, Server::new().model("tiny", files.load(&Serving::default())));
    session(&server.target, "alone", None);
    let requests = || server.target.metric("djinn_http_requests_total") as u64;
    let before = requests();
    let mut stream = server.target.connect();
    let wait = path("alone", "pause?timeout_ms=60000");
    stream.write_all(format!("GET {wait} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).unwrap();
    // Until there is one more request than these.
    (1..).find(|asked| requests() > before + asked);
    server.stop.stop();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("{\"paused_at\":null}"), "{answer}");
    server.join();
}

/// Clients whose requests are not done in time are told so: by a status, or by an event of a stream that has begun.
#[test]
fn requests_that_outlast_the_end_of_the_server_are_told() {
    let files = Arc::new(Files::new());
    let limits = Limits { drain_time: Duration::from_millis(50), ..Limits::default() };
    let model = files.load(&Serving::default());
    let server = Running::start(&files, Server::new().model("tiny", model).limits(limits));
    let target = &server.target;
    for id in ["whole", "stream"] {
        session(target, id, Some(json!({ "hook": LAST, "tokens": "generated", "steps": { "from": 2 } })));
    }
    let whole = ask(target, "whole", completion("Paused at the end", json!({})));
    let body = completion("Paused at the end", json!({ "stream": true })).to_string();
    let stream = target.with("x-session-id", "stream").begin("POST", TEXT, body.as_bytes());
    let _paused = ["whole", "stream"].map(|id| paused(target, id));
    server.stop.stop();
    let whole = whole.join().unwrap();
    assert_eq!((whole.status, whole.header("retry-after")), (503, Some("5")), "{whole:?}");
    let mut events = stream.finish().events();
    let last: Value = serde_json::from_str(&events.pop().unwrap()).unwrap();
    assert!(!events.is_empty());
    for error in [whole.error(), last["error"].clone()] {
        assert_eq!(error["type"], "server_error");
        assert_eq!(error["message"], "the server has ended before this request");
    }
    server.join();
}
