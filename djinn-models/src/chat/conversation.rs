//! What a template is given: messages, tools, documents and variables.

use crate::{Error, Result};
use minijinja::value::{Value, ValueKind};
use serde::{Deserialize, Serialize};
use std::time::SystemTime;

/// Names under which a message's reasoning is given; templates read the first.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// What was said.
    pub content: String,
}

impl Message {
    /// A message of `role`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// A conversation with all that a template may be given beside the words: tools, their calls and results,
/// documents, and variables of its own.
#[derive(Clone, Debug)]
pub struct Conversation {
    messages: Vec<Value>,
    tools: Value,
    documents: Value,
    variables: Vec<(String, Value)>,
    now: Option<SystemTime>,
    bytes: usize,
}

impl Conversation {
    /// A conversation of words alone.
    pub fn from_messages(messages: &[Message]) -> Self {
        let value = |m: &Message| {
            Value::from_pairs([("role", Value::from(&m.role)), ("content", Value::from(&m.content))])
        };
        Self {
            messages: messages.iter().map(value).collect(),
            tools: Value::from(()),
            documents: Value::from(()),
            variables: Vec::new(),
            now: None,
            bytes: messages.iter().map(|m| m.content.len() + m.role.len()).sum(),
        }
    }

    /// Reads a JSON object: `messages`, a list of objects in the form of chat completions (`role`, `content`
    /// as text or as a list of parts, `tool_calls`, …); `tools` and `documents`, lists of objects, where there
    /// are any; every other key is a variable for the template (`enable_thinking`). The order of keys is kept:
    /// templates print objects as JSON.
    ///
    /// # Errors
    /// [`Error::Template`] if it is no such object.
    pub fn from_json(text: &str) -> Result<Self> {
        let wrong = |detail: String| Error::Template(format!("the conversation {detail}"));
        let value: Value = serde_json::from_str(text).map_err(|e| wrong(format!("is no JSON: {e}")))?;
        if value.kind() != ValueKind::Map {
            return Err(wrong("is no JSON object".into()));
        }
        let mut found = Self { bytes: text.len(), ..Self::from_messages(&[]) };
        for key in value.try_iter().map_err(|e| super::error(&e))? {
            let item = value.get_item(&key).map_err(|e| super::error(&e))?;
            let key = key.to_string();
            match key.as_str() {
                "messages" | "tools" | "documents" => {
                    let list = objects(&item)
                        .ok_or_else(|| wrong(format!("has `{key}` that is no list of objects")))?;
                    match key.as_str() {
                        "messages" => found.messages = list.into_iter().map(with_reasoning).collect(),
                        "tools" => found.tools = item,
                        _ => found.documents = item,
                    }
                }
                "add_generation_prompt" => {
                    return Err(wrong("has add_generation_prompt, an argument of its own".into()));
                }
                _ => found.variables.push((key, item)),
            }
        }
        Ok(found)
    }

    /// The same at another time than now, for templates that print the date.
    #[must_use]
    pub fn at(mut self, now: SystemTime) -> Self {
        self.now = Some(now);
        self
    }

    pub(super) fn now(&self) -> SystemTime {
        self.now.unwrap_or_else(SystemTime::now)
    }

    /// Messages, tools and documents in it.
    pub(super) fn entries(&self) -> u64 {
        let listed = self.tools.len().unwrap_or(0) + self.documents.len().unwrap_or(0);
        (self.messages.len() + listed) as u64
    }

    pub(super) fn has_tools(&self) -> bool {
        !self.tools.is_none()
    }

    /// Length of what it says.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Everything by the name under which a template sees it.
    pub(super) fn variables(&self) -> impl Iterator<Item = (&str, Value)> {
        let lists = [
            ("messages", Value::from(self.messages.clone())),
            ("tools", self.tools.clone()),
            ("documents", self.documents.clone()),
        ];
        lists.into_iter().chain(self.variables.iter().map(|(name, value)| (name.as_str(), value.clone())))
    }
}

/// The items of a list of objects; none for null, and `None` for anything else.
fn objects(value: &Value) -> Option<Vec<Value>> {
    match value.kind() {
        ValueKind::None => Some(Vec::new()),
        ValueKind::Seq => {
            let items: Vec<Value> = value.try_iter().ok()?.collect();
            items.iter().all(|item| item.kind() == ValueKind::Map).then_some(items)
        }
        _ => None,
    }
}

/// The message with its reasoning, under whichever name it was given, under those that templates read.
fn with_reasoning(message: Value) -> Value {
    let given = REASONING.iter().filter_map(|name| message.get_attr(name).ok());
    let Some(reasoning) = given.into_iter().find(|value| !value.is_none() && !value.is_undefined()) else {
        return message;
    };
    let keys = message.try_iter().into_iter().flatten();
    let own: Vec<(Value, Value)> =
        keys.filter_map(|key| message.get_item(&key).ok().map(|value| (key, value))).collect();
    let mut pairs: Vec<(Value, Value)> = Vec::new();
    if message.get_attr("thinking").is_ok_and(|value| value.is_undefined()) {
        pairs.push(("thinking".into(), reasoning.clone()));
    }
    pairs.extend(own.into_iter().filter(|(key, _)| key.as_str() != Some(REASONING[0])));
    pairs.push((REASONING[0].into(), reasoning));
    Value::from_pairs(pairs)
}
