//! OpenAI's Responses API.

use super::anthropic::named_events;
use super::client::Target;
use super::{Files, Running, chat, shared};
use djinn_server::{Keys, Server, Serving};
use serde_json::{Value, json};
use std::sync::Arc;

const RESPONSES: &str = "/v1/responses";

/// A request with greedy decoding.
fn request(input: impl Into<Value>, more: Value) -> Value {
    let mut body = json!({
        "model": "tiny", "temperature": 0, "max_output_tokens": 12, "ignore_eos": true, "input": input.into(),
    });
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn text(response: &Value) -> &str {
    response["output"][0]["content"][0]["text"].as_str().unwrap()
}

fn path(response: &Value) -> String {
    format!("{RESPONSES}/{}", response["id"].as_str().unwrap())
}

/// Bytes of the prompt, which are the model's tokens.
fn input_tokens(response: &Value) -> u64 {
    response["usage"]["input_tokens"].as_u64().unwrap()
}

#[test]
fn a_response_is_what_a_chat_is() {
    let response = shared().ok(RESPONSES, &request("Hi", json!({ "metadata": { "a": "b" } })));
    let same = shared().ok("/v1/chat/completions", &chat("Hi", json!({})));
    assert_eq!(text(&response), same["choices"][0]["message"]["content"]);
    assert!(response["id"].as_str().unwrap().starts_with("resp_"));
    assert!(response["output"][0]["id"].as_str().unwrap().starts_with("msg_"));
    assert_eq!((&response["object"], &response["model"]), (&json!("response"), &json!("tiny")));
    // The model was cut short.
    assert_eq!(
        (&response["status"], &response["output"][0]["status"]),
        (&json!("incomplete"), &json!("incomplete"))
    );
    assert_eq!(response["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!((&response["temperature"], &response["metadata"]), (&json!(0.0), &json!({ "a": "b" })));
    let usage = &response["usage"];
    assert_eq!((&usage["input_tokens"], &usage["output_tokens"]), (&json!("[user:Hi]>".len()), &json!(12)));
    assert_eq!(usage["total_tokens"], "[user:Hi]>".len() + 12);
    let stop = shared().ok(RESPONSES, &request("Hi", json!({ "temperature": 0.7, "instructions": "Be." })));
    assert_eq!(stop["temperature"], json!(0.7));
    assert_eq!(input_tokens(&stop), "[system:Be.][user:Hi]>".len() as u64);
}

#[test]
fn a_response_streams_in_order() {
    let whole = shared().ok(RESPONSES, &request("Hi", json!({})));
    let events = named_events(&shared().post(RESPONSES, &request("Hi", json!({ "stream": true }))));
    let kinds: Vec<&str> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap().strip_prefix("response.").unwrap())
        .collect();
    assert_eq!(kinds[..4], ["created", "in_progress", "output_item.added", "content_part.added"]);
    let end = kinds.len() - 4;
    assert_eq!(kinds[end..], ["output_text.done", "content_part.done", "output_item.done", "incomplete"]);
    assert!(end > 4 && kinds[4..end].iter().all(|kind| *kind == "output_text.delta"));
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], at);
    }
    let id = &events[2]["item"]["id"];
    for event in events.iter().filter(|event| event.get("item_id").is_some()) {
        assert_eq!(
            (&event["item_id"], &event["output_index"], &event["content_index"]),
            (id, &json!(0), &json!(0))
        );
    }
    let deltas: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(deltas, text(&whole));
    assert_eq!(events[end]["text"], deltas);
    assert_eq!(
        (&events[0]["response"]["status"], &events[0]["response"]["output"]),
        (&json!("in_progress"), &json!([]))
    );
    let last = &events.last().unwrap()["response"];
    assert_eq!((text(last), &last["usage"]), (deltas.as_str(), &whole["usage"]));
    assert_eq!(last["id"], events[0]["response"]["id"]);
}

#[test]
fn items_become_what_the_template_reads() {
    let items = json!([
        { "role": "developer", "content": "Be." },
        { "role": "user", "content": [{ "type": "input_text", "text": "How " }, { "type": "input_text", "text": "is it?" }] },
        { "type": "reasoning", "id": "rs_1", "summary": [], "content": [{ "type": "reasoning_text", "text": "Hm." }] },
        { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "I look." }] },
        { "type": "function_call", "call_id": "c1", "name": "look", "arguments": "{\"at\": 1}" },
        { "type": "function_call_output", "call_id": "c1", "output": "rain" },
    ]);
    // The template knows no tools.
    let prompt = "[system:Be.][user:How is it?][assistant:I look.\n\
                  <tool_call>{\"name\": \"look\", \"arguments\": {\"at\":1}}</tool_call>]\
                  [user:<tool_response>\nrain\n</tool_response>]>";
    let response = shared().ok(RESPONSES, &request(items.clone(), json!({})));
    assert_eq!(input_tokens(&response), prompt.len() as u64);
    let list = shared().get(&format!("{}/input_items?order=asc", path(&response))).json();
    let data = list["data"].as_array().unwrap();
    assert_eq!((data.len(), &list["has_more"]), (6, &json!(false)));
    for (item, given) in data.iter().zip(items.as_array().unwrap()) {
        assert!(item["id"].is_string() && item["type"].is_string(), "{item}");
        assert!(
            item["content"] == given["content"] || item["content"][0]["text"] == given["content"],
            "{item}"
        );
    }
    let page = shared().get(&format!("{}/input_items?limit=2", path(&response))).json();
    assert_eq!((&page["data"][0], &page["data"][1]), (&data[5], &data[4]));
    assert_eq!((&page["has_more"], &page["last_id"]), (&json!(true), &data[4]["id"]));
    let after = data[4]["id"].as_str().unwrap();
    let page = shared().get(&format!("{}/input_items?after={after}", path(&response))).json();
    assert_eq!((&page["data"][0], page["data"].as_array().unwrap().len()), (&data[3], 4));
    for query in ["limit=0", "limit=x", "order=up", "after=none"] {
        assert_eq!(shared().get(&format!("{}/input_items?{query}", path(&response))).status, 400, "{query}");
    }
}

#[test]
fn a_response_goes_on_from_an_earlier_one() {
    let first = shared().ok(RESPONSES, &request("Hi", json!({ "instructions": "Be." })));
    let more = json!({ "previous_response_id": first["id"], "instructions": "Do." });
    let second = shared().ok(RESPONSES, &request("And?", more));
    let turns =
        |system: &str, answer: &str| format!("[system:{system}][user:Hi][assistant:{answer}][user:And?]>");
    assert_eq!(input_tokens(&second), turns("Do.", text(&first)).len() as u64);
    assert_eq!(second["previous_response_id"], first["id"]);
    // It is the same conversation as one that is sent whole.
    let items = json!([
        { "role": "user", "content": "Hi" }, first["output"][0], { "role": "user", "content": "And?" },
    ]);
    let same = shared().ok(RESPONSES, &request(items, json!({ "instructions": "Do." })));
    assert_eq!(text(&same), text(&second));
    let third = shared().ok(RESPONSES, &request("Ok", json!({ "previous_response_id": second["id"] })));
    let prompt = turns("Do.", text(&first)).len() - "[system:Do.]".len() - 1
        + format!("[assistant:{}][user:Ok]>", text(&second)).len();
    assert_eq!(input_tokens(&third), prompt as u64);
    // Only its own input is listed.
    assert_eq!(
        shared().get(&format!("{}/input_items", path(&third))).json()["data"].as_array().unwrap().len(),
        1
    );
    let error = shared().refused(
        RESPONSES,
        &request("x", json!({ "previous_response_id": "resp_none" })),
        "previous_response_id",
    );
    assert_eq!(error["code"], "previous_response_not_found");
}

#[test]
fn responses_are_kept_until_they_are_deleted() {
    let response = shared().ok(RESPONSES, &request("keep", json!({})));
    assert_eq!(shared().get(&path(&response)).json(), response);
    let streamed = named_events(&shared().post(RESPONSES, &request("keep", json!({ "stream": true }))));
    let last = &streamed.last().unwrap()["response"];
    assert_eq!(&shared().get(&path(last)).json(), last);
    assert_eq!(shared().get(&format!("{}?stream=true", path(&response))).status, 400);
    let reply = shared().send("POST", &format!("{}/cancel", path(&response)), b"");
    assert_eq!(reply.status, 400, "it has ended");
    let deleted = shared().send("DELETE", &path(&response), b"").json();
    assert_eq!(deleted, json!({ "id": response["id"], "object": "response", "deleted": true }));
    for (method, more) in [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")] {
        let reply = shared().send(method, &format!("{}{more}", path(&response)), b"");
        assert_eq!(
            (reply.status, &reply.error()["type"]),
            (404, &json!("invalid_request_error")),
            "{method} {more}"
        );
    }
    let other = shared().ok(RESPONSES, &request("keep not", json!({ "store": false })));
    assert_eq!(other["store"], false);
    assert_eq!(shared().get(&path(&other)).status, 404);
}

#[test]
fn a_response_that_runs_can_be_cancelled() {
    let body = request("cancel", json!({ "stream": true, "max_output_tokens": 400 }));
    let mut pending = shared().begin("POST", RESPONSES, body.to_string().as_bytes());
    let first = pending.part().unwrap();
    let id = first.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let reply = shared().send("POST", &format!("{RESPONSES}/{id}/cancel"), b"");
    // The model may have been faster.
    if reply.status == 200 {
        assert_eq!(reply.json()["status"], "cancelled");
        let rest = pending.finish().body;
        let last = rest.split_terminator("\n\n").last().unwrap();
        assert!(
            last.starts_with("event: response.incomplete\n") && last.contains("\"status\":\"cancelled\""),
            "{last}"
        );
        assert_eq!(shared().get(&format!("{RESPONSES}/{id}")).json()["status"], "cancelled");
        let again = shared().send("POST", &format!("{RESPONSES}/{id}/cancel"), b"");
        assert_eq!((again.status, &again.json()["status"]), (200, &json!("cancelled")));
    } else {
        assert_eq!(reply.status, 400);
    }
}

#[test]
fn a_response_whose_client_left_is_cancelled() {
    let body = request("leave", json!({ "stream": true, "max_output_tokens": 400 }));
    let mut pending = shared().begin("POST", RESPONSES, body.to_string().as_bytes());
    let first = pending.part().unwrap();
    let id = first.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    drop(pending);
    let mut status = Value::Null;
    for _ in 0..200 {
        status = shared().get(&format!("{RESPONSES}/{id}")).json()["status"].clone();
        if status != "in_progress" {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(status == "cancelled" || status == "incomplete", "{status}");
}

#[test]
fn responses_are_their_keys_own() {
    let files = Arc::new(Files::new());
    let keys = Keys::new(["alpha", "beta"]).unwrap();
    let server = Server::new().model("tiny", files.load(&Serving::default())).keys(keys);
    let running = Running::start(&files, server);
    let with = |key: &str| -> Target { running.target.with("authorization", &format!("Bearer {key}")) };
    let response = with("alpha").ok(RESPONSES, &request("mine", json!({})));
    assert_eq!(with("alpha").get(&path(&response)).status, 200);
    assert_eq!(with("beta").get(&path(&response)).status, 404);
    assert_eq!(with("beta").send("DELETE", &path(&response), b"").status, 404);
    assert_eq!(with("beta").send("POST", &format!("{}/cancel", path(&response)), b"").status, 404);
    let more = json!({ "previous_response_id": response["id"] });
    with("beta").refused(RESPONSES, &request("x", more.clone()), "previous_response_id");
    with("alpha").ok(RESPONSES, &request("x", more));
}

#[test]
fn what_means_nothing_is_refused_with_its_place() {
    for (more, param) in [
        (json!({ "input": null }), "input"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": 1 }), "input"),
        (json!({ "input": [1] }), "input[0]"),
        (json!({ "input": [{}] }), "input[0].type"),
        (json!({ "input": [{ "type": "item_reference", "id": "x" }] }), "input[0]"),
        (json!({ "input": [{ "role": "user" }] }), "input[0].content"),
        (json!({ "input": [{ "role": "judge", "content": "x" }] }), "input[0].role"),
        (
            json!({ "input": [{ "role": "user", "content": [{ "type": "input_image" }] }] }),
            "input[0].content[0]",
        ),
        (json!({ "input": [{ "type": "function_call", "call_id": "c" }] }), "input[0].name"),
        (json!({ "input": [{ "type": "function_call_output", "output": "x" }] }), "input[0].call_id"),
        (json!({ "input": "x".repeat(600) }), "input"),
        (json!({ "instructions": 1 }), "instructions"),
        (json!({ "max_output_tokens": 0 }), "max_output_tokens"),
        (json!({ "temperature": 3 }), "temperature"),
        (json!({ "top_logprobs": 2 }), "top_logprobs"),
        (json!({ "background": true }), "background"),
        (json!({ "conversation": "c" }), "conversation"),
        (json!({ "truncation": "auto" }), "truncation"),
        (json!({ "tools": [{ "type": "web_search" }] }), "tools[0]"),
        (json!({ "tools": [{ "type": "function", "name": "with space" }] }), "tools[0].name"),
        (json!({ "tool_choice": { "type": "web_search" } }), "tool_choice"),
        (json!({ "text": { "format": { "type": "xml" } } }), "text.format.type"),
        (json!({ "text": { "verbosity": "low" } }), "text.verbosity"),
        (json!({ "metadata": 1 }), "metadata"),
    ] {
        shared().refused(RESPONSES, &request("Hi", more), param);
    }
    assert_eq!(shared().post(RESPONSES, &request("Hi", json!({ "model": "none" }))).status, 404);
}

#[test]
fn log_probabilities_come_with_the_text() {
    let more =
        json!({ "include": ["message.output_text.logprobs"], "top_logprobs": 2, "max_output_tokens": 4 });
    let response = shared().ok(RESPONSES, &request("Hi", more.clone()));
    let tokens = response["output"][0]["content"][0]["logprobs"].as_array().unwrap().clone();
    assert_eq!(tokens.len(), 4);
    assert!(tokens.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() == 2));
    let mut streamed = request("Hi", more);
    streamed["stream"] = json!(true);
    let events = named_events(&shared().post(RESPONSES, &streamed));
    let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
    let sent: Vec<Value> = deltas.flat_map(|event| event["logprobs"].as_array().unwrap().clone()).collect();
    assert_eq!(sent, tokens);
}
