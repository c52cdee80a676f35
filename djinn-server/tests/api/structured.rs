//! Tools and response formats.

use super::{chat, shared};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

/// A function whose arguments are soon written, whatever the model likes.
fn tools() -> Value {
    let color = json!({ "enum": ["red", "green"] });
    let pick = json!({ "type": "object", "properties": { "color": color }, "required": ["color"], "additionalProperties": false });
    json!([{ "type": "function", "function": { "name": "pick", "description": "Picks.", "parameters": pick } }])
}

#[test]
fn the_model_is_told_of_its_tools() {
    let tokens =
        |more: Value| shared().ok(CHAT, &chat("Hi", more))["usage"]["prompt_tokens"].as_u64().unwrap();
    let plain = tokens(json!({}));
    assert!(
        tokens(json!({ "tools": tools() })) > plain + 300,
        "the template knows no tools: the system message does"
    );
    assert_eq!(tokens(json!({ "tools": tools(), "tool_choice": "none" })), plain);
    assert_eq!(tokens(json!({ "tools": [] })), plain);
    // A conversation after a call.
    let call = json!({ "id": "call_1", "type": "function", "function": { "name": "pick", "arguments": "{\"color\":\"red\"}" } });
    let messages = json!([
        { "role": "user", "content": "Pick." },
        { "role": "assistant", "content": null, "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "call_1", "content": "ok" },
    ]);
    shared().ok(CHAT, &chat("", json!({ "messages": messages, "tools": tools() })));
}

#[test]
fn tools_and_formats_that_cannot_be_are_named() {
    let function = |function: Value| json!([{ "type": "function", "function": function }]);
    for (tools, param) in [
        (json!("x"), "tools"),
        (json!([5]), "tools[0].type"),
        (json!([{ "type": "custom" }]), "tools[0].type"),
        (json!([{ "type": "function" }]), "tools[0].function"),
        (function(json!({})), "tools[0].function.name"),
        (function(json!({ "name": "with space" })), "tools[0].function.name"),
        (function(json!({ "name": "x".repeat(65) })), "tools[0].function.name"),
        (function(json!({ "name": "x", "parameters": [] })), "tools[0].function.parameters"),
    ] {
        shared().refused(CHAT, &chat("Hi", json!({ "tools": tools })), param);
    }
    let named = |name: Value| json!({ "type": "function", "function": { "name": name } });
    let allowed = |mode: &str, tools: Value| json!({ "type": "allowed_tools", "allowed_tools": { "mode": mode, "tools": tools } });
    for choice in [
        json!("maybe"),
        json!(1),
        json!({}),
        json!({ "type": "custom", "custom": { "name": "pick" } }),
        named(json!("drop")),
        named(json!(null)),
        allowed("none", json!([named(json!("pick"))])),
        allowed("auto", json!([])),
        allowed("auto", json!([named(json!("drop"))])),
        allowed("auto", json!("pick")),
    ] {
        shared().refused(
            CHAT,
            &chat("Hi", json!({ "tools": tools(), "tool_choice": choice })),
            "tool_choice",
        );
    }
    for choice in [json!("required"), named(json!("pick"))] {
        shared().refused(CHAT, &chat("Hi", json!({ "tool_choice": choice })), "tool_choice");
    }
    let far = function(json!({ "name": "x", "parameters": { "$ref": "https://example.com/schema" } }));
    shared().refused(CHAT, &chat("Hi", json!({ "tools": far, "tool_choice": "required" })), "tools");
    let count = json!({ "tools": tools(), "parallel_tool_calls": 1 });
    shared().refused(CHAT, &chat("Hi", count), "parallel_tool_calls");
    for format in [
        json!("json"),
        json!({}),
        json!({ "type": "grammar" }),
        json!({ "type": "json_schema" }),
        schema_format(json!("x")),
        schema_format(json!({ "type": "colour" })),
        schema_format(json!({ "$ref": "#" })),
        schema_format(json!({ "$ref": "https://example.com/schema" })),
        json!({ "type": "json_object", "schema": 123 }),
        json!({ "type": "json_object", "schema": { "type": "colour" } }),
    ] {
        shared().refused(CHAT, &chat("Hi", json!({ "response_format": format })), "response_format");
    }
}

fn schema_format(schema: Value) -> Value {
    json!({ "type": "json_schema", "json_schema": { "name": "output", "schema": schema } })
}

#[test]
fn answers_obey_their_schema() {
    let schema = json!({
        "type": "object",
        "properties": { "color": { "enum": ["red", "green"] }, "up": { "type": "boolean" } },
        "required": ["color", "up"],
        "additionalProperties": false,
    });
    let more = |seed: u64, stream: bool| {
        let format = schema_format(schema.clone());
        json!({ "response_format": format, "temperature": 1, "seed": seed, "max_tokens": 400, "ignore_eos": false, "stream": stream })
    };
    for seed in 0..4 {
        let answer = shared().ok(CHAT, &chat("Hi", more(seed, false)));
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "stop", "{answer}");
        let text = choice["message"]["content"].as_str().unwrap();
        let read: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert!(["red", "green"].contains(&read["color"].as_str().unwrap()), "{text}");
        assert!(read["up"].is_boolean() && read.as_object().unwrap().len() == 2, "{text}");
        let events = shared().post(CHAT, &chat("Hi", more(seed, true))).events();
        let pieces = events.iter().filter_map(|event| serde_json::from_str::<Value>(event).ok());
        let streamed: String = pieces
            .filter_map(|piece| piece["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
            .collect();
        assert_eq!(streamed, text);
    }
    let more = json!({ "response_format": { "type": "json_object", "schema": { "const": 42 } }, "ignore_eos": false });
    assert_eq!(shared().ok(CHAT, &chat("Hi", more))["choices"][0]["message"]["content"], "42");
    let object = json!({ "response_format": { "type": "json_object" }, "temperature": 1, "seed": 1, "ignore_eos": false });
    let answer = shared().ok(CHAT, &chat("Hi", object));
    assert!(answer["choices"][0]["message"]["content"].as_str().unwrap().starts_with('{'), "{answer}");
}

/// The model decides whether it calls: what it writes is one or the other, and streams.
#[test]
fn an_answer_beside_tools_has_its_format() {
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer", "minimum": 0, "maximum": 9 } }, "required": ["n"], "additionalProperties": false });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": schema } });
    for seed in 0..6 {
        let more = json!({
            "tools": tools(), "response_format": format, "temperature": 1, "seed": seed, "max_tokens": 300,
            "ignore_eos": false,
        });
        let choice = shared().ok(CHAT, &chat("Hi", more))["choices"][0].clone();
        match choice["finish_reason"].as_str() {
            Some("stop") => {
                let value: Value =
                    serde_json::from_str(choice["message"]["content"].as_str().unwrap()).unwrap();
                assert!(value["n"].is_u64(), "{choice}");
            }
            Some("tool_calls") => {
                let call = &choice["message"]["tool_calls"][0]["function"];
                let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
                assert!(["red", "green"].contains(&arguments["color"].as_str().unwrap()), "{choice}");
            }
            _ => panic!("{choice}"),
        }
    }
    // A function that is strict, and whose schema cannot be met, is named.
    let wrong = json!([{ "type": "function", "function": { "name": "f", "strict": true, "parameters": { "$ref": "#/nowhere" } } }]);
    shared().refused(CHAT, &chat("Hi", json!({ "tools": wrong })), "tools");
    // Text is free beside one that can.
    let mut strict = tools();
    strict[0]["function"]["strict"] = json!(true);
    let choice = shared().ok(CHAT, &chat("Hi", json!({ "tools": strict })))["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "length", "{choice}");
}
