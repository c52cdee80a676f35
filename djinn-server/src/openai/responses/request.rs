//! Translates requests of the Responses API to chat requests.

use crate::ApiError;
use crate::body::Fields;
use crate::fields::CHAT;
use crate::openai::answer_id;
use serde_json::{Map, Value, json};
use std::fmt::Display;

/// Fields with the same name in chat requests.
const SAME: [&str; 13] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "seed",
    "priority",
    "cache_salt",
    "ignore_eos",
    "parallel_tool_calls",
    "chat_template_kwargs",
];
/// Fields with another name in chat requests.
const OWN_NAMES: [(&str, &str); 4] = [
    ("messages", "input"),
    ("response_format", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
    ("max_completion_tokens", "max_output_tokens"),
];

fn wrong(place: &str, detail: impl Display) -> ApiError {
    ApiError::field(place.to_owned(), format!("`{place}` {detail}"))
}

/// Renames the field in a chat request's error to this API's name.
pub(super) fn in_own_names(error: ApiError) -> ApiError {
    let own = |param: &str| match OWN_NAMES.iter().find(|(theirs, _)| param.starts_with(theirs)) {
        Some((_, own)) => Some((*own).to_owned()),
        None => param.starts_with("tools[").then(|| param.replace(".function", "")),
    };
    match error.param.as_deref().and_then(own) {
        Some(own) => error.called(own),
        None => error,
    }
}

/// The input as items, each with an id.
pub(super) fn items(input: Option<&Value>, place: &str) -> Result<Vec<Value>, ApiError> {
    match input {
        None => Err(ApiError::field("input", "`input` is missing; give a text or a list of items")),
        Some(Value::String(text)) => Ok(vec![json!({
            "id": answer_id("msg_"), "type": "message", "role": "user", "status": "completed",
            "content": [{ "type": "input_text", "text": text }],
        })]),
        Some(Value::Array(items)) => {
            let item = |(at, item)| self::item(&format!("{place}[{at}]"), item);
            items.iter().enumerate().map(item).collect()
        }
        Some(_) => Err(wrong(place, "must be a text or a list of items")),
    }
}

/// An item with its implied fields.
fn item(place: &str, item: &Value) -> Result<Value, ApiError> {
    let Value::Object(item) = item else { return Err(wrong(place, "must be an object")) };
    let mut item = item.clone();
    item.retain(|_, value| !value.is_null());
    let kind = match item.get("type") {
        None if item.contains_key("role") => "message".to_owned(),
        Some(Value::String(kind)) => kind.clone(),
        _ => return Err(wrong(&format!("{place}.type"), "must be a text")),
    };
    let prefix = match kind.as_str() {
        "message" => "msg_",
        "function_call" => "fc_",
        "function_call_output" => "fco_",
        "reasoning" => "rs_",
        _ => {
            let kind: String = kind.chars().take(64).collect();
            return Err(wrong(place, format!("is of the type {kind:?}, which is not supported")));
        }
    };
    if kind == "message" {
        let is_assistant = item.get("role").is_some_and(|role| role == "assistant");
        if let Some(Value::String(text)) = item.get("content") {
            let part = match is_assistant {
                true => json!({ "type": "output_text", "text": text, "annotations": [] }),
                false => json!({ "type": "input_text", "text": text }),
            };
            item.insert("content".to_owned(), json!([part]));
        }
    }
    item.insert("type".to_owned(), Value::String(kind));
    item.entry("status").or_insert(json!("completed"));
    item.entry("id").or_insert_with(|| json!(answer_id(prefix)));
    // Checked here so that the error names the place.
    messages(std::slice::from_ref(&Value::Object(item.clone())), &mut |_| place.to_owned())?;
    Ok(Value::Object(item))
}

/// The equivalent chat request, after the items `earlier`.
pub(super) fn chat_fields(fields: &Fields, earlier: &[Value], input: &[Value]) -> Result<Fields, ApiError> {
    let mut chat = Map::new();
    let mut all = Vec::new();
    if let Some(instructions) = fields.read::<String>("instructions")?.filter(|text| !text.is_empty()) {
        all.push(json!({ "role": "system", "content": instructions }));
    }
    let items = [earlier, input].concat();
    all.extend(messages(&items, &mut |_| "input".to_owned())?);
    if all.is_empty() {
        return Err(ApiError::field("input", "`input` is empty; give at least one item"));
    }
    chat.insert("messages".to_owned(), Value::Array(all));
    for name in SAME {
        if let Some(value) = fields.get(name) {
            chat.insert(name.to_owned(), value.clone());
        }
    }
    if let Some(most) = fields.integer("max_output_tokens", 1..=u64::MAX)? {
        chat.insert("max_completion_tokens".to_owned(), most.into());
    }
    add_logprobs(fields, &mut chat)?;
    add_tools(fields, &mut chat)?;
    add_text(fields, &mut chat)?;
    let reasoning: Map<String, Value> = fields.read("reasoning")?.unwrap_or_default();
    if let Some(effort) = reasoning.get("effort").filter(|effort| !effort.is_null()) {
        chat.insert("reasoning_effort".to_owned(), effort.clone());
    }
    Fields::new(chat, &CHAT)
}

/// Items as chat messages. Neighbouring items of the assistant become one message with reasoning, text and calls.
/// `place` names an item's place.
fn messages(items: &[Value], place: &mut dyn FnMut(usize) -> String) -> Result<Vec<Value>, ApiError> {
    let mut messages: Vec<Value> = Vec::new();
    for (at, item) in items.iter().enumerate() {
        let place = place(at);
        match item["type"].as_str() {
            Some("function_call_output") => {
                let id = text(&place, item, "call_id")?;
                let output = content(&format!("{place}.output"), &item["output"])?;
                messages.push(json!({ "role": "tool", "tool_call_id": id, "content": output }));
            }
            Some("function_call") => {
                let (id, name) = (text(&place, item, "call_id")?, text(&place, item, "name")?);
                let function = json!({ "name": name, "arguments": text(&place, item, "arguments")? });
                let call = json!({ "id": id, "type": "function", "function": function });
                let message = assistant(&mut messages);
                match message.get_mut("tool_calls").and_then(Value::as_array_mut) {
                    Some(calls) => calls.push(call),
                    None => message["tool_calls"] = json!([call]),
                }
            }
            Some("reasoning") => {
                let parts = item.get("content").filter(|parts| !parts.is_null());
                // Reasoning of others may be encrypted, and summaries are not reasoning.
                let text =
                    parts.map_or(Ok(String::new()), |parts| content(&format!("{place}.content"), parts))?;
                append(assistant(&mut messages), "reasoning_content", &text);
            }
            _ => {
                let text = content(&format!("{place}.content"), &item["content"])?;
                match item["role"].as_str() {
                    Some("assistant") => append(assistant(&mut messages), "content", &text),
                    Some(role @ ("user" | "system" | "developer")) => {
                        messages.push(json!({ "role": role, "content": text }));
                    }
                    _ => {
                        let detail = "must be user, assistant, system or developer";
                        return Err(wrong(&format!("{place}.role"), detail));
                    }
                }
            }
        }
    }
    Ok(messages)
}

/// The last message if it is the assistant's, or else a new one.
fn assistant(messages: &mut Vec<Value>) -> &mut Value {
    if messages.last().is_none_or(|last| last["role"] != "assistant") {
        messages.push(json!({ "role": "assistant", "content": "" }));
    }
    let last = messages.len() - 1;
    &mut messages[last]
}

fn append(message: &mut Value, name: &str, more: &str) {
    if more.is_empty() {
        return;
    }
    match &mut message[name] {
        Value::String(text) => text.push_str(more),
        text => *text = Value::String(more.to_owned()),
    }
}

fn text<'a>(place: &str, item: &'a Value, name: &str) -> Result<&'a str, ApiError> {
    item[name].as_str().ok_or_else(|| wrong(&format!("{place}.{name}"), "must be a text"))
}

/// The text of a content: a text, or a list of parts of text.
fn content(place: &str, content: &Value) -> Result<String, ApiError> {
    let part = |(at, part): (usize, &Value)| {
        let place = format!("{place}[{at}]");
        match part["type"].as_str() {
            Some("input_text" | "output_text" | "text" | "reasoning_text") => {
                text(&place, part, "text").map(str::to_owned)
            }
            Some("refusal") => text(&place, part, "refusal").map(str::to_owned),
            kind => {
                let kind: String = kind.unwrap_or("?").chars().take(64).collect();
                Err(wrong(&place, format!("is of the type {kind:?}; the model reads text only")))
            }
        }
    };
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => parts.iter().enumerate().map(part).collect(),
        _ => Err(wrong(place, "must be a text or a list of parts")),
    }
}

fn add_logprobs(fields: &Fields, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let include: Vec<String> = fields.read("include")?.unwrap_or_default();
    let top = fields.integer("top_logprobs", 0..=20)?;
    if include.iter().any(|name| name == "message.output_text.logprobs") {
        chat.insert("logprobs".to_owned(), Value::Bool(true));
        chat.insert("top_logprobs".to_owned(), top.unwrap_or(0).into());
    } else if top.is_some_and(|top| top > 0) {
        let message = "`top_logprobs` needs `include` to have `message.output_text.logprobs`";
        return Err(ApiError::field("top_logprobs", message));
    }
    Ok(())
}

fn add_tools(fields: &Fields, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let tools: Vec<Value> = fields.read("tools")?.unwrap_or_default();
    let mut functions = Vec::new();
    for (at, tool) in tools.iter().enumerate() {
        let place = format!("tools[{at}]");
        let Value::Object(tool) = tool else { return Err(wrong(&place, "must be an object")) };
        match tool.get("type").and_then(Value::as_str) {
            Some("function") => {}
            kind => {
                let kind: String = kind.unwrap_or("?").chars().take(64).collect();
                return Err(wrong(&place, format!("is of the type {kind:?}; only functions are supported")));
            }
        }
        let known = ["name", "description", "parameters", "strict"];
        let function = known.iter().filter_map(|&name| {
            let value = tool.get(name).filter(|value| !value.is_null())?;
            Some((name.to_owned(), value.clone()))
        });
        functions.push(json!({ "type": "function", "function": function.collect::<Map<_, _>>() }));
    }
    if !functions.is_empty() {
        chat.insert("tools".to_owned(), Value::Array(functions));
    }
    if let Some(choice) = fields.get("tool_choice") {
        chat.insert("tool_choice".to_owned(), tool_choice(choice)?);
    }
    Ok(())
}

/// A choice of tools. Here a function's name and the allowed tools are not nested in an object.
fn tool_choice(choice: &Value) -> Result<Value, ApiError> {
    let place = "tool_choice";
    let function = |place: &str, function: &Value| {
        let name = text(place, function, "name")?;
        Ok::<_, ApiError>(json!({ "type": "function", "function": { "name": name } }))
    };
    match choice["type"].as_str() {
        _ if choice.is_string() => Ok(choice.clone()),
        Some("function") => function(place, choice),
        Some("allowed_tools") => {
            let tools = choice["tools"].as_array().map_or(&[][..], Vec::as_slice);
            let tool = |(at, tool)| function(&format!("{place}.tools[{at}]"), tool);
            let tools: Vec<Value> = tools.iter().enumerate().map(tool).collect::<Result<_, _>>()?;
            Ok(
                json!({ "type": "allowed_tools", "allowed_tools": { "mode": choice["mode"], "tools": tools } }),
            )
        }
        _ => Err(wrong(place, "must be none, auto, required, a function or allowed_tools")),
    }
}

fn add_text(fields: &Fields, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let text: Map<String, Value> = fields.read("text")?.unwrap_or_default();
    for (name, value) in text.iter().filter(|(_, value)| !value.is_null()) {
        match name.as_str() {
            "format" => {
                let format = match value["type"].as_str() {
                    Some("text") => continue,
                    Some("json_object") => json!({ "type": "json_object" }),
                    Some("json_schema") => {
                        let mut schema = value.as_object().cloned().unwrap_or_default();
                        schema.remove("type");
                        json!({ "type": "json_schema", "json_schema": schema })
                    }
                    _ => return Err(wrong("text.format.type", "must be text, json_object or json_schema")),
                };
                chat.insert("response_format".to_owned(), format);
            }
            "verbosity" if value == "medium" => {}
            _ => {
                let param = format!("text.{name}");
                let message = format!("`{param}` is not supported; leave it out");
                return Err(ApiError::unsupported(param, message));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy of the text for each item would take minutes.
    #[test]
    fn very_many_items_of_the_assistant_become_one_message() {
        let text = json!({ "type": "message", "role": "assistant", "content": "two".repeat(70) });
        let mut items = vec![text; 100_000];
        items.push(json!({ "type": "reasoning", "content": [{ "type": "reasoning_text", "text": "why" }] }));
        items.push(json!({ "type": "reasoning" }));
        let messages = messages(&items, &mut |_| "input".to_owned()).unwrap();
        let text = "two".repeat(7_000_000);
        assert_eq!(messages, [json!({ "role": "assistant", "content": text, "reasoning_content": "why" })]);
    }
}
