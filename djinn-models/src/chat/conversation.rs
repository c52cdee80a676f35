//! A template's input: messages, tools, documents and variables.

use crate::{Error, Result};
use djinn_template::Value;
use serde::{Deserialize, Serialize};
use std::time::SystemTime;

/// Names of a message's reasoning. Templates read the first.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, or another role of the template.
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

/// A conversation with everything that a template may use: messages, tools, their calls and results, documents, and
/// other variables.
#[derive(Clone, Debug)]
pub struct Conversation {
    messages: Value,
    tools: Value,
    documents: Value,
    variables: Vec<(String, Value)>,
    now: Option<SystemTime>,
}

impl Conversation {
    /// A conversation of messages only.
    pub fn from_messages(messages: &[Message]) -> Self {
        let value = |m: &Message| {
            [("role", Value::from(m.role.as_str())), ("content", Value::from(m.content.as_str()))]
        };
        let messages = messages.iter().map(|m| Value::from_pairs(value(m))).collect::<Result<_, _>>();
        Self {
            messages: messages.and_then(Value::from_items).expect("two levels are never too deep"),
            tools: Value::NONE,
            documents: Value::NONE,
            variables: Vec::new(),
            now: None,
        }
    }

    /// Reads a JSON object: `messages`, a list of objects in the form of chat completions (`role`, `content` as text
    /// or as a list of parts, `tool_calls`, …); optional `tools` and `documents`, lists of objects. Every other key is
    /// a variable for the template (`enable_thinking`). The order of keys is kept, since templates print objects as
    /// JSON.
    ///
    /// # Errors
    /// [`Error::Template`] for other input, or beyond 16 MiB, a million values or 100 levels.
    pub fn from_json(text: &str) -> Result<Self> {
        let wrong = |detail: String| Error::Template(format!("the conversation {detail}"));
        let value = Value::from_json(text).map_err(|error| wrong(error.to_string()))?;
        let entries = value.as_object().ok_or_else(|| wrong("is no JSON object".into()))?;
        let mut found = Self::from_messages(&[]);
        for (key, item) in entries {
            if key == "add_generation_prompt" {
                return Err(wrong("has add_generation_prompt, an argument of its own".into()));
            }
            let list = match key {
                "messages" => &mut found.messages,
                "tools" => &mut found.tools,
                "documents" => &mut found.documents,
                _ => {
                    found.variables.push((key.to_owned(), item.clone()));
                    continue;
                }
            };
            let objects =
                item.as_list().is_some_and(|items| items.iter().all(|item| item.as_object().is_some()));
            if !objects && !item.is_none() {
                return Err(wrong(format!("has `{key}` that is no list of objects")));
            }
            *list = item.clone();
        }
        let messages = found.messages.as_list().unwrap_or_default().iter().map(with_reasoning);
        let messages = messages.collect::<Result<_, _>>().and_then(Value::from_items);
        found.messages = messages.map_err(|error| wrong(error.to_string()))?;
        Ok(found)
    }

    /// Sets another time than now, for templates that print the date.
    #[must_use]
    pub fn at(mut self, now: SystemTime) -> Self {
        self.now = Some(now);
        self
    }

    pub(super) fn now(&self) -> SystemTime {
        self.now.unwrap_or_else(SystemTime::now)
    }

    pub(super) fn has_tools(&self) -> bool {
        !self.tools.is_none()
    }

    /// All variables, with their names in templates.
    pub(super) fn variables(&self) -> impl Iterator<Item = (&str, Value)> {
        let lists = [("messages", &self.messages), ("tools", &self.tools), ("documents", &self.documents)];
        let own = self.variables.iter().map(|(name, value)| (name.as_str(), value));
        lists.into_iter().chain(own).map(|(name, value)| (name, value.clone()))
    }
}

/// The message with its reasoning under the names that templates read.
fn with_reasoning(message: &Value) -> Result<Value, djinn_template::Error> {
    let given = REASONING.iter().filter_map(|name| message.get(name));
    let Some(reasoning) = given.into_iter().find(|value| !value.is_none()) else {
        return Ok(message.clone());
    };
    // Of equal keys the last value counts, at the place of the first.
    let thinking = [("thinking", reasoning)].into_iter();
    let own = message.as_object().into_iter().flatten();
    let last = [(REASONING[0], reasoning)];
    Value::from_pairs(thinking.chain(own).chain(last).map(|(key, value)| (key, value.clone())))
}
