//! Converts clients' messages to what chat templates read.

use crate::ApiError;
use crate::body::Fields;
use djinn_models::Conversation;
use serde_json::{Map, Value, json};

/// The conversation of a request, with its template's variables, and with `tools` if the model should know any.
/// `in_texts`: calls of tools and their results become texts, since the template knows neither. More messages than a
/// context of `context` tokens has are refused before any work on them.
pub(super) fn conversation(
    fields: &Fields,
    tools: Option<&ToolPrompt>,
    in_texts: bool,
    context: u64,
) -> Result<Conversation, ApiError> {
    let Some(Value::Array(messages)) = fields.get("messages") else {
        return Err(ApiError::field("messages", "`messages` must be a list of messages"));
    };
    if messages.is_empty() {
        return Err(ApiError::field("messages", "`messages` is empty; give at least one message"));
    }
    if messages.len() as u64 > context {
        let message =
            format!("{} messages are more than a context of {context} tokens holds", messages.len());
        return Err(ApiError::too_long("messages", message));
    }
    let messages = messages.iter().enumerate().map(|(at, message)| self::message(at, message));
    let mut body = Map::new();
    let mut messages = messages.collect::<Result<Vec<Value>, _>>()?;
    if in_texts {
        messages = calls_in_texts(messages)?;
    }
    match tools {
        Some(ToolPrompt::ByTemplate(tools)) => drop(body.insert("tools".to_owned(), tools.clone())),
        Some(ToolPrompt::BySystem(text)) => tell(&mut messages, text),
        None => {}
    }
    body.insert("messages".to_owned(), Value::Array(messages));
    if let Some(documents) = fields.get("documents") {
        body.insert("documents".to_owned(), documents.clone());
    }
    if let Some(effort) = fields.get("reasoning_effort") {
        body.insert("reasoning_effort".to_owned(), effort.clone());
    }
    let variables: Option<Map<String, Value>> = fields.read("chat_template_kwargs")?;
    for (name, value) in variables.into_iter().flatten() {
        if ["messages", "tools", "documents", "add_generation_prompt"].contains(&name.as_str()) {
            let message = format!("`chat_template_kwargs` has `{name}`, which is a field of its own");
            return Err(ApiError::field("chat_template_kwargs", message));
        }
        body.insert(name, value);
    }
    let text = Value::Object(body).to_string();
    Conversation::from_json(&text).map_err(|error| ApiError::of_text(&error, "messages"))
}

/// How the model learns about its tools.
pub(super) enum ToolPrompt {
    /// The chat template has a place for the list.
    ByTemplate(Value),
    /// The template does not know tools: this text precedes the conversation.
    BySystem(String),
}

/// A call as a text, in the form that the system message teaches: Hermes'.
pub(super) fn call_text(name: &str, arguments: &Value) -> String {
    format!("<tool_call>{{\"name\": {}, \"arguments\": {arguments}}}</tool_call>", Value::from(name))
}

/// Messages whose calls are at the ends of their texts. Results of tools are texts of the user, those of neighbours in
/// one message, as in the templates of Hermes and Qwen.
fn calls_in_texts(messages: Vec<Value>) -> Result<Vec<Value>, ApiError> {
    let mut all: Vec<Value> = Vec::new();
    let mut after_result = false;
    for (at, mut message) in messages.into_iter().enumerate() {
        let is_result = message["role"] == "tool";
        if is_result {
            let text = message["content"].as_str().unwrap_or_default();
            let text = format!("<tool_response>\n{text}\n</tool_response>");
            match all.last_mut().filter(|_| after_result) {
                Some(last) => append(last, &text),
                None => all.push(json!({ "role": "user", "content": text })),
            }
        } else {
            let calls = message.as_object_mut().and_then(|fields| fields.remove("tool_calls"));
            for call in calls.map_or(Ok(Vec::new()), |calls| call_texts(at, &calls))? {
                append(&mut message, &call);
            }
            all.push(message);
        }
        after_result = is_result;
    }
    Ok(all)
}

/// Appends a line to a message's text.
fn append(message: &mut Value, line: &str) {
    match &mut message["content"] {
        Value::String(text) if !text.is_empty() => {
            text.push('\n');
            text.push_str(line);
        }
        content => *content = Value::String(line.to_owned()),
    }
}

/// The calls of message `at` as texts.
fn call_texts(at: usize, calls: &Value) -> Result<Vec<String>, ApiError> {
    let place = format!("messages[{at}].tool_calls");
    let wrong = |place: String, detail: &str| {
        let message = format!("`{place}` {detail}");
        ApiError::field(place, message)
    };
    let calls = calls.as_array().ok_or_else(|| wrong(place.clone(), "must be a list of calls"))?;
    let text = |(at, call): (usize, &Value)| {
        let function = &call["function"];
        let name = function["name"].as_str();
        let name = name.ok_or_else(|| wrong(format!("{place}[{at}].function.name"), "must be a text"))?;
        let none = json!({});
        let arguments = match &function["arguments"] {
            Value::Null => &none,
            Value::String(text) if text.trim().is_empty() => &none,
            arguments => arguments,
        };
        Ok(call_text(name, arguments))
    };
    calls.iter().enumerate().map(text).collect()
}

/// Appends a text to the system message, or makes one of it.
fn tell(messages: &mut Vec<Value>, text: &str) {
    match messages.first_mut().filter(|first| first["role"] == "system") {
        Some(first) => {
            let own = first["content"].as_str().unwrap_or_default();
            first["content"] = Value::String(format!("{own}\n\n{text}"));
        }
        None => messages.insert(0, json!({ "role": "system", "content": text })),
    }
}

/// Checks and converts a message: a role that templates know, and one text as content.
fn message(at: usize, message: &Value) -> Result<Value, ApiError> {
    let wrong = |field: &str, detail: &str| {
        let param =
            if field.is_empty() { format!("messages[{at}]") } else { format!("messages[{at}].{field}") };
        let message = format!("`{param}` {detail}");
        ApiError::field(param, message)
    };
    let Value::Object(fields) = message else { return Err(wrong("", "must be an object")) };
    let mut fields = fields.clone();
    let role = match fields.get("role").and_then(Value::as_str) {
        // Templates know the older name.
        Some("developer") => "system",
        Some("function") => "tool",
        Some(role @ ("system" | "user" | "assistant" | "tool")) => role,
        _ => return Err(wrong("role", "must be developer, system, user, assistant or tool")),
    };
    let content = match fields.get("content") {
        Some(Value::String(text)) => Value::String(text.clone()),
        Some(Value::Array(parts)) => {
            Value::String(text_of(parts).map_err(|detail| wrong("content", &detail))?)
        }
        None | Some(Value::Null) if role == "assistant" => Value::String(String::new()),
        None | Some(Value::Null) => return Err(wrong("content", "is missing")),
        Some(_) => return Err(wrong("content", "must be a text or a list of parts")),
    };
    fields.insert("role".to_owned(), Value::String(role.to_owned()));
    fields.insert("content".to_owned(), content);
    if let Some(calls) = fields.get_mut("tool_calls") {
        read_arguments(calls);
    }
    fields.retain(|_, value| !value.is_null());
    Ok(Value::Object(fields))
}

/// The text of a message in parts.
fn text_of(parts: &[Value]) -> Result<String, String> {
    let mut whole = String::new();
    for part in parts {
        let kind = part.get("type").and_then(Value::as_str).unwrap_or("?");
        let text = match kind {
            "text" => part.get("text"),
            "refusal" => part.get("refusal"),
            _ => return Err(format!("has a part of the type {kind:?}; only text is supported")),
        };
        let text = text.and_then(Value::as_str).ok_or_else(|| "has a part without text".to_owned())?;
        whole += text;
    }
    Ok(whole)
}

/// Parses the arguments of calls: clients send text, templates read an object.
fn read_arguments(calls: &mut Value) {
    for call in calls.as_array_mut().into_iter().flatten() {
        let Some(arguments) = call.get_mut("function").and_then(|function| function.get_mut("arguments"))
        else {
            continue;
        };
        let read = arguments.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
        if let Some(object) = read.filter(Value::is_object) {
            *arguments = object;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy of the text for each line would take minutes.
    #[test]
    fn very_many_results_of_tools_become_one_text() {
        let results = vec![json!({ "role": "tool", "content": "x".repeat(200) }); 100_000];
        let texts = calls_in_texts(results).unwrap();
        let [text] = texts.as_slice() else { panic!("{} messages", texts.len()) };
        assert_eq!(text["role"], "user");
        let text = text["content"].as_str().unwrap();
        assert_eq!(text.lines().count(), 300_000);
        assert!(text.starts_with("<tool_response>\nxx") && text.ends_with("xx\n</tool_response>"));
    }
}
