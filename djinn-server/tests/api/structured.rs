//! Tools and response formats.

use super::anthropic::named_events;
use super::client::Target;
use super::{Files, Running, chat, shared};
use djinn_server::{Server, Serving};
use serde_json::{Value, json};
use std::sync::Arc;

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
}

/// The text that messages are rendered to: the model's tokens are bytes.
fn prompt(target: &Target, messages: &Value) -> String {
    let tokens = target.ok("/tokenize", &json!({ "model": "tiny", "messages": messages }))["tokens"].clone();
    tokens.as_array().unwrap().iter().map(|token| token.as_u64().unwrap() as u8 as char).collect()
}

fn call(name: &str, arguments: &str) -> Value {
    json!({ "id": "call_1", "type": "function", "function": { "name": name, "arguments": arguments } })
}

fn result(text: &str) -> Value {
    json!({ "role": "tool", "tool_call_id": "call_1", "content": text })
}

/// A template that does not know tools would drop calls, with and without `tools`.
#[test]
fn calls_and_results_stay_in_the_prompt_of_a_template_without_tools() {
    let user = json!({ "role": "user", "content": "Pick." });
    let mut messages = vec![
        user.clone(),
        json!({ "role": "assistant", "content": null, "tool_calls": [call("pick", "{\"color\": \"red\"}")] }),
        result("sunny"),
    ];
    let text = "[user:Pick.][assistant:<tool_call>{\"name\": \"pick\", \"arguments\": {\"color\":\"red\"}}</tool_call>]\
                [user:<tool_response>\nsunny\n</tool_response>]";
    assert_eq!(prompt(shared(), &json!(messages)), format!("{text}>"));
    // Text goes before calls; results of one turn are one message.
    messages.extend([
        json!({ "role": "assistant", "content": "So:", "tool_calls": [call("end", ""), call("a", "not {JSON")] }),
        result("1"),
        result("2"),
        user.clone(),
    ]);
    let rest = "[assistant:So:\n<tool_call>{\"name\": \"end\", \"arguments\": {}}</tool_call>\n\
                <tool_call>{\"name\": \"a\", \"arguments\": \"not {JSON\"}</tool_call>]\
                [user:<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>][user:Pick.]>";
    assert_eq!(prompt(shared(), &json!(messages)), format!("{text}{rest}"));
    // A chat has the same prompt, after what the system message teaches.
    let tokens = |messages: &Value| {
        let tool = json!({ "type": "function", "function": { "name": "pick" } });
        let body = chat("", json!({ "messages": messages, "tools": [tool], "max_tokens": 1 }));
        shared().ok(CHAT, &body)["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let taught = tokens(&json!([user])) - "[user:Pick.]>".len() as u64;
    assert_eq!(tokens(&json!(messages[..3])), taught + text.len() as u64 + 1);
    for (calls, param) in [
        (json!("x"), "messages[1].tool_calls"),
        (json!([{ "id": "1", "function": {} }]), "messages[1].tool_calls[0].function.name"),
    ] {
        let messages = json!([user, { "role": "assistant", "content": null, "tool_calls": calls }]);
        shared().refused(CHAT, &chat("", json!({ "messages": messages })), param);
    }
}

#[test]
fn a_template_that_writes_calls_gets_them_as_they_are() {
    let files = Arc::new(Files::new());
    let template = "{% for m in messages %}[{{ m.role }}:{{ m.content }}\
                    {% for call in m.tool_calls or [] %}!{{ call.function.name }}{% endfor %}]{% endfor %}";
    std::fs::write(files.path().join("chat_template.jinja"), template).unwrap();
    let running = Running::start(&files, Server::new().model("tiny", files.load(&Serving::default())));
    let messages =
        json!([{ "role": "assistant", "content": "So", "tool_calls": [call("pick", "{}")] }, result("ok")]);
    assert_eq!(prompt(&running.target, &messages), "[assistant:So!pick][tool:ok]");
}

#[test]
fn a_demanded_call_that_is_cut_off_is_no_text() {
    for most in [1, 3, 9] {
        let more = json!({ "tools": tools(), "tool_choice": "required", "max_tokens": most });
        let choice = shared().ok(CHAT, &chat("Hi", more.clone()))["choices"][0].clone();
        assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&json!(""), &json!("length")));
        assert!(choice["message"].get("tool_calls").is_none(), "{choice}");
        let mut streamed = chat("Hi", more);
        streamed["stream"] = json!(true);
        for chunk in shared().post(CHAT, &streamed).chunks() {
            let delta = &chunk["choices"][0]["delta"];
            assert!(delta["content"].as_str().is_none_or(str::is_empty), "{chunk}");
        }
        let pick = tools()[0]["function"].clone();
        let tool = json!({ "name": pick["name"], "input_schema": pick["parameters"] });
        let mut body = json!({ "model": "tiny", "max_tokens": most, "temperature": 0, "tools": [tool],
                               "tool_choice": { "type": "any" }, "messages": [{ "role": "user", "content": "Hi" }] });
        let whole = shared().ok("/v1/messages", &body);
        assert_eq!((&whole["content"], &whole["stop_reason"]), (&json!([]), &json!("max_tokens")));
        body["stream"] = json!(true);
        let events = named_events(&shared().post("/v1/messages", &body));
        assert!(events.iter().all(|event| event["type"] != "content_block_start"), "{events:?}");
        let mut function = pick;
        function["type"] = json!("function");
        let body = json!({ "model": "tiny", "max_output_tokens": most, "temperature": 0, "tools": [function],
                           "tool_choice": "required", "input": "Hi", "store": false });
        let response = shared().ok("/v1/responses", &body);
        assert_eq!((&response["output"], &response["status"]), (&json!([]), &json!("incomplete")));
    }
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
