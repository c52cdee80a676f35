//! Calls that a client demands, from a synthetic model: it has a chat template with tools, and says nothing of its own.

use super::anthropic::named_events;
use super::client::Target;
use super::{Files, Running, chat};
use djinn_host::{DeviceName, Setup};
use djinn_server::{ServedModel, Server, Serving};
use serde_json::{Map, Value, json};
use std::sync::{Arc, LazyLock};

const CHAT: &str = "/v1/chat/completions";
const SEEDS: u64 = 3;

fn synthetic() -> &'static Target {
    static RUNNING: LazyLock<Running> = LazyLock::new(|| {
        let setup = Setup { device: DeviceName::Cpu, threads: Some(1), ..Setup::default() };
        let model = ServedModel::open("synthetic:tiny", &setup, &Serving::default()).unwrap();
        Running::start(&Arc::new(Files::new()), Server::new().model("tiny", model))
    });
    &RUNNING.target
}

/// Names and the schemas of their arguments.
fn functions() -> [(&'static str, Value); 3] {
    let pick = json!({ "type": "object", "properties": { "color": { "enum": ["red", "green"] } },
                       "required": ["color"], "additionalProperties": false });
    let count = json!({ "type": "object", "properties": { "to": { "$ref": "#/$defs/digit" } }, "required": ["to"],
                        "additionalProperties": false, "$defs": { "digit": { "type": "integer", "minimum": 0, "maximum": 9 } } });
    let end = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    [("pick", pick), ("count", count), ("end", end)]
}

/// Whether a call is one of those: the schemas above, read by hand.
fn is_call(name: &str, arguments: &Value) -> bool {
    let only = |key: &str| arguments.as_object().filter(|map| map.len() == 1).and_then(|map| map.get(key));
    match name {
        "pick" => only("color").is_some_and(|color| color == "red" || color == "green"),
        "count" => only("to")
            .and_then(Value::as_f64)
            .is_some_and(|to| to.fract() == 0.0 && (0.0..=9.0).contains(&to)),
        "end" => *arguments == json!({}),
        _ => false,
    }
}

fn chat_tools() -> Value {
    let tool = |(name, schema): &(&str, Value)| json!({ "type": "function", "function": { "name": name, "parameters": schema, "strict": true } });
    json!(functions().iter().map(tool).collect::<Vec<_>>())
}

/// A request with all tools. Commas are likelier than the model has them, so that there are several calls.
fn ask(seed: u64, more: Value) -> Value {
    let mut body = chat(
        "Go.",
        json!({ "tools": chat_tools(), "temperature": 1, "seed": seed, "max_tokens": 1200, "ignore_eos": false, "logit_bias": { "44": 2.5 } }),
    );
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Names and arguments of a list of calls. Each is whole and has an id of its own.
fn read(calls: &Value) -> Vec<(String, Value)> {
    let mut ids = Vec::new();
    let read = calls.as_array().into_iter().flatten().map(|call| {
        assert_eq!(call["type"], "function");
        let id = call["id"].as_str().unwrap().to_owned();
        assert!(id.starts_with("call_") && !ids.contains(&id), "{calls}");
        ids.push(id);
        let name = call["function"]["name"].as_str().unwrap().to_owned();
        let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
        assert!(is_call(&name, &arguments), "{call}");
        (name, arguments)
    });
    read.collect()
}

/// The calls that the deltas of a stream add up to, and how it ended: each call has its id, type and name once, first.
fn joined(chunks: &[Value]) -> (Value, Value) {
    let mut calls: Vec<Value> = Vec::new();
    let mut finish = Value::Null;
    for choice in chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap()) {
        assert!(finish.is_null(), "nothing comes after the end");
        finish = choice["finish_reason"].clone();
        for key in choice["delta"].as_object().unwrap().keys() {
            assert!(["role", "content", "tool_calls"].contains(&key.as_str()), "{choice}");
        }
        let Some(deltas) = choice["delta"].get("tool_calls") else { continue };
        for delta in deltas.as_array().filter(|deltas| !deltas.is_empty()).unwrap() {
            let at = delta["index"].as_u64().unwrap() as usize;
            let begins = delta.get("id").is_some();
            assert_eq!(
                (delta.get("type").is_some(), delta["function"].get("name").is_some()),
                (begins, begins)
            );
            if begins {
                assert_eq!(at, calls.len());
                let mut call = delta.clone();
                call.as_object_mut().unwrap().remove("index");
                calls.push(call);
            } else {
                let piece = delta["function"]["arguments"].as_str().unwrap();
                let arguments = &mut calls[at]["function"]["arguments"];
                *arguments = json!(format!("{}{piece}", arguments.as_str().unwrap()));
            }
        }
    }
    (Value::Array(calls), finish)
}

#[test]
fn demanded_calls_are_those_that_were_demanded() {
    let named = |name: &str| json!({ "type": "function", "function": { "name": name } });
    let allowed = json!({ "type": "allowed_tools", "allowed_tools": { "mode": "required", "tools": [named("pick"), named("end")] } });
    // OpenAI's own finish reasons: `stop` where a function is named.
    for (choice, offered, finish) in [
        (json!("required"), &["pick", "count", "end"][..], "tool_calls"),
        (named("count"), &["count"], "stop"),
        (allowed, &["pick", "end"], "tool_calls"),
    ] {
        let mut most = 0;
        for seed in 0..SEEDS {
            let whole = synthetic().ok(CHAT, &ask(seed, json!({ "tool_choice": choice })));
            let answer = &whole["choices"][0];
            assert_eq!(
                (&answer["finish_reason"], &answer["message"]["content"]),
                (&json!(finish), &Value::Null),
                "{whole}"
            );
            let calls = read(&answer["message"]["tool_calls"]);
            assert!(calls.iter().all(|(name, _)| offered.contains(&name.as_str())), "{calls:?}");
            most = most.max(calls.len());
            let one = json!({ "tool_choice": choice, "parallel_tool_calls": false, "response_format": { "type": "json_object" } });
            let single = synthetic().ok(CHAT, &ask(seed, one));
            assert_eq!(single["choices"][0]["finish_reason"], finish);
            assert_eq!(read(&single["choices"][0]["message"]["tool_calls"]).len(), 1);
            let stream = synthetic().post(CHAT, &ask(seed, json!({ "tool_choice": choice, "stream": true })));
            let (streamed, ended) = joined(&stream.chunks());
            assert_eq!((read(&streamed), ended), (calls, json!(finish)));
        }
        assert_eq!(most > 1, finish == "tool_calls", "{choice}: {most} calls");
    }
}

#[test]
fn a_demanded_function_without_parameters_gets_no_arguments() {
    let tools = json!([{ "type": "function", "function": { "name": "end" } }]);
    let whole = synthetic().ok(CHAT, &ask(0, json!({ "tools": tools, "tool_choice": "required" })));
    let calls = read(&whole["choices"][0]["message"]["tool_calls"]);
    assert!(!calls.is_empty() && calls.iter().all(|(_, arguments)| *arguments == json!({})), "{calls:?}");
}

#[test]
fn the_model_is_told_of_the_tools_that_it_may_choose_from() {
    let prompt = |choice: Value| {
        let body = ask(0, json!({ "tool_choice": choice, "max_tokens": 1 }));
        synthetic().ok(CHAT, &body)["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let all = prompt(json!("auto"));
    let pick = json!([{ "type": "function", "function": { "name": "pick" } }]);
    let allowed =
        |mode: &str| json!({ "type": "allowed_tools", "allowed_tools": { "mode": mode, "tools": pick } });
    let [_, count, end] = chat_tools().as_array().unwrap().clone().try_into().unwrap();
    // Each tool is a line of JSON with Python's spaces; a byte is a token.
    let line = |tool: &Value| {
        serde_json::to_string(tool).unwrap().replace(':', ": ").replace(',', ", ").len() as u64 + 1
    };
    assert_eq!(prompt(allowed("auto")), all - line(&count) - line(&end));
    assert_eq!(prompt(allowed("required")), all, "the prompt stays, and its keys and values");
    assert_eq!(prompt(json!("required")), all);
}

#[test]
fn messages_and_responses_have_demanded_calls() {
    let keyed = |key: &str| -> Value {
        let tool = |(name, schema): &(&str, Value)| {
            let mut tool =
                Map::from_iter([("name".to_owned(), json!(name)), (key.to_owned(), schema.clone())]);
            tool.insert("type".to_owned(), json!(if key == "parameters" { "function" } else { "custom" }));
            Value::Object(tool)
        };
        functions().iter().map(tool).collect()
    };
    for (choice, offered) in [
        (json!({ "type": "any" }), &["pick", "count", "end"][..]),
        (json!({ "type": "tool", "name": "pick" }), &["pick"]),
        (json!({ "type": "any", "disable_parallel_tool_use": true }), &["pick", "count", "end"]),
    ] {
        let mut body = json!({ "model": "tiny", "max_tokens": 1200, "temperature": 1, "seed": 2, "tools": keyed("input_schema"),
                               "tool_choice": choice, "messages": [{ "role": "user", "content": "Go." }] });
        let whole = synthetic().ok("/v1/messages", &body);
        assert_eq!(whole["stop_reason"], "tool_use", "{whole}");
        let blocks = whole["content"].as_array().unwrap();
        for block in blocks {
            let name = block["name"].as_str().unwrap();
            assert!(
                block["type"] == "tool_use" && offered.contains(&name) && is_call(name, &block["input"]),
                "{block}"
            );
        }
        let is_single = offered.len() == 1 || choice.get("disable_parallel_tool_use").is_some();
        assert!(!is_single || blocks.len() == 1, "{whole}");
        body["stream"] = json!(true);
        let events = named_events(&synthetic().post("/v1/messages", &body));
        let input: String =
            events.iter().filter_map(|event| event["delta"]["partial_json"].as_str()).collect();
        let inputs: Vec<Value> =
            serde_json::Deserializer::from_str(&input).into_iter().map(Result::unwrap).collect();
        assert_eq!(json!(inputs), json!(blocks.iter().map(|block| &block["input"]).collect::<Vec<_>>()));
    }
    let allowed = json!({ "type": "allowed_tools", "mode": "required", "tools": [{ "type": "function", "name": "end" }] });
    for (choice, offered) in [
        (json!("required"), &["pick", "count", "end"][..]),
        (json!({ "type": "function", "name": "count" }), &["count"]),
        (allowed, &["end"]),
    ] {
        let body = json!({ "model": "tiny", "max_output_tokens": 1200, "temperature": 1, "seed": 3, "tools": keyed("parameters"),
                           "tool_choice": choice, "input": "Go.", "store": false });
        let response = synthetic().ok("/v1/responses", &body);
        assert_eq!(
            (&response["status"], &response["tool_choice"]),
            (&json!("completed"), &choice),
            "{response}"
        );
        let items = response["output"].as_array().unwrap();
        assert!(!items.is_empty());
        for item in items {
            let name = item["name"].as_str().unwrap();
            let arguments: Value = serde_json::from_str(item["arguments"].as_str().unwrap()).unwrap();
            assert!(
                item["type"] == "function_call" && offered.contains(&name) && is_call(name, &arguments),
                "{item}"
            );
        }
    }
}
