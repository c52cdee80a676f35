//! Translates requests of the Messages API to chat requests.

use crate::ApiError;
use crate::body::{Fields, LONGEST_STOP, stops_fit};
use crate::fields::CHAT;
use serde_json::{Map, Value, json};
use std::fmt::Display;

const MOST_STOPS: usize = 16;
/// Fields with the same name in chat requests.
const SAME: [&str; 7] = ["temperature", "top_p", "top_k", "priority", "cache_salt", "seed", "ignore_eos"];

fn wrong(place: &str, detail: impl Display) -> ApiError {
    ApiError::field(place.to_owned(), format!("`{place}` {detail}"))
}

/// A chat request's error in this API's names.
pub(super) fn in_own_names(error: ApiError) -> ApiError {
    let own = error
        .param
        .as_deref()
        .filter(|param| param.starts_with("tools["))
        .map(|param| param.replace(".function.parameters", ".input_schema").replace(".function", ""));
    match own {
        Some(own) => error.called(own),
        None => error,
    }
}

/// The equivalent chat request, but for its stop strings and its maximum of tokens.
pub(super) fn chat_fields(fields: &Fields) -> Result<Fields, ApiError> {
    let mut chat = Map::new();
    let mut messages = Vec::new();
    if let Some(system) = fields.get("system") {
        let text = text_of("system", system)?;
        if !text.is_empty() {
            messages.push(json!({ "role": "system", "content": text }));
        }
    }
    for (at, message) in turns(fields)?.iter().enumerate() {
        add_turn(&format!("messages[{at}]"), message, &mut messages)?;
    }
    chat.insert("messages".to_owned(), Value::Array(messages));
    for name in SAME {
        if let Some(value) = fields.get(name) {
            chat.insert(name.to_owned(), value.clone());
        }
    }
    add_tools(fields, &mut chat)?;
    if let Some(thinks) = thinking(fields)? {
        chat.insert("chat_template_kwargs".to_owned(), json!({ "enable_thinking": thinks }));
    }
    add_output_config(fields, &mut chat)?;
    Fields::new(chat, &CHAT)
}

fn turns(fields: &Fields) -> Result<&Vec<Value>, ApiError> {
    match fields.get("messages") {
        Some(Value::Array(messages)) if !messages.is_empty() => Ok(messages),
        Some(Value::Array(_)) => Err(wrong("messages", "is empty; give at least one message")),
        _ => Err(wrong("messages", "must be a list of messages")),
    }
}

/// Refuses a conversation that ends with an assistant's message, since the answer would have to continue that.
pub(super) fn check_last(fields: &Fields) -> Result<(), ApiError> {
    match turns(fields)?.last().and_then(|last| last.get("role")).and_then(Value::as_str) {
        Some("assistant") => {
            let message = "the last message is the assistant's; beginning an answer for it is not supported";
            Err(ApiError::field("messages", message))
        }
        _ => Ok(()),
    }
}

pub(super) fn stop_sequences(fields: &Fields) -> Result<Vec<String>, ApiError> {
    let name = "stop_sequences";
    let stops: Vec<String> = fields.read(name)?.unwrap_or_default();
    match stops_fit(&stops, MOST_STOPS) {
        true => Ok(stops),
        false => Err(wrong(name, format!("may have {MOST_STOPS} texts, of 1 to {LONGEST_STOP} bytes each"))),
    }
}

/// The text of a content: a text, or a list of blocks of text.
fn text_of(place: &str, content: &Value) -> Result<String, ApiError> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(blocks) => {
            let text = |(at, block)| text_block(&format!("{place}[{at}]"), block);
            blocks.iter().enumerate().map(text).collect()
        }
        _ => Err(wrong(place, "must be a text or a list of blocks")),
    }
}

fn text_block<'a>(place: &str, block: &'a Value) -> Result<&'a str, ApiError> {
    match kind_of(place, block)? {
        "text" => part(place, block, "text"),
        kind => Err(unsupported(place, kind)),
    }
}

fn kind_of<'a>(place: &str, block: &'a Value) -> Result<&'a str, ApiError> {
    part(place, block, "type")
}

/// A text field of an object.
fn part<'a>(place: &str, block: &'a Value, name: &str) -> Result<&'a str, ApiError> {
    let text = block.get(name).and_then(Value::as_str);
    text.ok_or_else(|| wrong(&format!("{place}.{name}"), "must be a text"))
}

fn unsupported(place: &str, kind: &str) -> ApiError {
    let kind: String = kind.chars().take(64).collect();
    wrong(place, format!("is of the type {kind:?}, which is not supported here; the model reads text only"))
}

/// Adds a message of the request to the chat's messages. Tool results become messages of their own.
fn add_turn(place: &str, message: &Value, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    let content = message.get("content").unwrap_or(&Value::Null);
    let place_of_content = format!("{place}.content");
    match message.get("role").and_then(Value::as_str) {
        Some(role @ ("user" | "system")) => add_user(role, &place_of_content, content, messages),
        Some("assistant") => {
            messages.push(assistant(&place_of_content, content)?);
            Ok(())
        }
        _ => Err(wrong(&format!("{place}.role"), "must be user or assistant")),
    }
}

fn add_user(role: &str, place: &str, content: &Value, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    let Value::Array(blocks) = content else {
        messages.push(json!({ "role": role, "content": text_of(place, content)? }));
        return Ok(());
    };
    if blocks.is_empty() {
        return Err(wrong(place, "is empty; give at least one block"));
    }
    let mut text: Option<String> = None;
    let say = |text: Option<String>, messages: &mut Vec<Value>| {
        messages.extend(text.map(|text| json!({ "role": role, "content": text })));
    };
    for (at, block) in blocks.iter().enumerate() {
        let place = format!("{place}[{at}]");
        if kind_of(&place, block)? == "tool_result" && role == "user" {
            say(text.take(), messages);
            messages.push(tool_result(&place, block)?);
        } else {
            text.get_or_insert_default().push_str(text_block(&place, block)?);
        }
    }
    say(text, messages);
    Ok(())
}

/// A tool's result. Chat templates have no failed results, so the text says that the tool failed.
fn tool_result(place: &str, block: &Value) -> Result<Value, ApiError> {
    let id = part(place, block, "tool_use_id")?;
    let text = match block.get("content") {
        None | Some(Value::Null) => String::new(),
        Some(content) => text_of(&format!("{place}.content"), content)?,
    };
    let failed = match block.get("is_error") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(failed)) => *failed,
        Some(_) => return Err(wrong(&format!("{place}.is_error"), "must be true or false")),
    };
    let text = if failed { format!("Error: {text}") } else { text };
    Ok(json!({ "role": "tool", "tool_call_id": id, "content": text }))
}

/// A message of the assistant: text, reasoning and calls.
fn assistant(place: &str, content: &Value) -> Result<Value, ApiError> {
    let Value::Array(blocks) = content else {
        return Ok(json!({ "role": "assistant", "content": text_of(place, content)? }));
    };
    let (mut text, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
    for (at, block) in blocks.iter().enumerate() {
        let place = format!("{place}[{at}]");
        match kind_of(&place, block)? {
            "thinking" => reasoning += part(&place, block, "thinking")?,
            // Its text is encrypted by another provider.
            "redacted_thinking" => {}
            "tool_use" => {
                let (id, name) = (part(&place, block, "id")?, part(&place, block, "name")?);
                let input = block.get("input").filter(|input| input.is_object());
                let input = input.ok_or_else(|| wrong(&format!("{place}.input"), "must be an object"))?;
                let function = json!({ "name": name, "arguments": input.to_string() });
                calls.push(json!({ "id": id, "type": "function", "function": function }));
            }
            _ => text += text_block(&place, block)?,
        }
    }
    let mut message = json!({ "role": "assistant", "content": text });
    if !reasoning.is_empty() {
        message["reasoning_content"] = Value::String(reasoning);
    }
    if !calls.is_empty() {
        message["tool_calls"] = Value::Array(calls);
    }
    Ok(message)
}

fn add_tools(fields: &Fields, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let tools: Vec<Value> = fields.read("tools")?.unwrap_or_default();
    let tools = tools.iter().enumerate().map(|(at, tool)| self::tool(&format!("tools[{at}]"), tool));
    let tools: Vec<Value> = tools.collect::<Result<_, _>>()?;
    if !tools.is_empty() {
        chat.insert("tools".to_owned(), Value::Array(tools));
    }
    let Some(choice) = fields.get("tool_choice") else { return Ok(()) };
    let place = "tool_choice";
    let chosen = match kind_of(place, choice)? {
        "auto" => json!("auto"),
        "any" => json!("required"),
        "none" => json!("none"),
        "tool" => json!({ "type": "function", "function": { "name": part(place, choice, "name")? } }),
        _ => return Err(wrong("tool_choice.type", "must be auto, any, tool or none")),
    };
    chat.insert(place.to_owned(), chosen);
    match choice.get("disable_parallel_tool_use") {
        None | Some(Value::Null) => {}
        Some(Value::Bool(one)) => drop(chat.insert("parallel_tool_calls".to_owned(), Value::Bool(!one))),
        Some(_) => return Err(wrong("tool_choice.disable_parallel_tool_use", "must be true or false")),
    }
    Ok(())
}

/// A tool of the client. Tools that run on Anthropic's servers do not exist here.
fn tool(place: &str, tool: &Value) -> Result<Value, ApiError> {
    if let Some(kind) = tool.get("type").filter(|kind| !kind.is_null() && *kind != "custom") {
        let kind: String = kind.as_str().unwrap_or("?").chars().take(64).collect();
        return Err(wrong(
            place,
            format!("is a tool of the type {kind:?}; only tools of the client's own are supported"),
        ));
    }
    let mut function = Map::new();
    function.insert("name".to_owned(), part(place, tool, "name")?.into());
    if let Some(description) = tool.get("description").filter(|description| !description.is_null()) {
        function.insert("description".to_owned(), description.clone());
    }
    let schema = tool.get("input_schema").filter(|schema| schema.is_object());
    let schema = schema.ok_or_else(|| wrong(&format!("{place}.input_schema"), "must be a JSON schema"))?;
    function.insert("parameters".to_owned(), schema.clone());
    if let Some(strict) = tool.get("strict").filter(|strict| !strict.is_null()) {
        function.insert("strict".to_owned(), strict.clone());
    }
    Ok(json!({ "type": "function", "function": function }))
}

/// Whether the model is to reason before it answers; `None` leaves that to its template.
fn thinking(fields: &Fields) -> Result<Option<bool>, ApiError> {
    let Some(thinking) = fields.get("thinking") else { return Ok(None) };
    match kind_of("thinking", thinking)? {
        "enabled" | "adaptive" | "between_tools" => Ok(Some(true)),
        "disabled" => Ok(Some(false)),
        _ => Err(wrong("thinking.type", "must be enabled, adaptive, between_tools or disabled")),
    }
}

fn add_output_config(fields: &Fields, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let config: Map<String, Value> = fields.read("output_config")?.unwrap_or_default();
    for (name, value) in config.into_iter().filter(|(_, value)| !value.is_null()) {
        let place = format!("output_config.{name}");
        match name.as_str() {
            "effort" => drop(chat.insert("reasoning_effort".to_owned(), value)),
            "format" => {
                if kind_of(&place, &value)? != "json_schema" {
                    return Err(wrong(&format!("{place}.type"), "must be json_schema"));
                }
                let schema = value.get("schema").filter(|schema| schema.is_object());
                let schema =
                    schema.ok_or_else(|| wrong(&format!("{place}.schema"), "must be a JSON schema"))?;
                let format =
                    json!({ "type": "json_schema", "json_schema": { "name": "output", "schema": schema } });
                chat.insert("response_format".to_owned(), format);
            }
            _ => return Err(ApiError::unsupported(place.clone(), format!("`{place}` is not supported"))),
        }
    }
    Ok(())
}
