//! `/v1/chat/completions`.

use super::chunks::{Choices, Chunks, Head};
use super::structure::{self, Tools};
use super::{Streaming, UsageBody, finish_name, finite, messages};
use crate::beginning::{self, EarlyEvents};
use crate::body::Fields;
use crate::fields::CHAT;
use crate::model::ServedModel;
use crate::reply::{self, Answered};
use crate::server::ApiRequest;
use crate::{Answers, ApiError, FinishReason, GenerateRequest, OutputEvent, Piece, SpelledToken, TokenInfo};
use serde::Serialize;
use serde_json::{Value, json};

pub(crate) async fn complete(request: ApiRequest) -> Answered {
    let fields = request.fields(&CHAT)?;
    let model = request.model(&fields)?;
    let streaming = Streaming::read(&fields)?;
    let (salt, hints) = (request.salt(), request.hints(&fields, &model, None)?);
    let names_a_function = structure::names_a_function(&fields);
    let mut generate = model.work(move |model| generate(&fields, model, &salt)).await?;
    hints.apply(&mut generate);
    let name = request.model_name(&model);
    drop(request);
    let head = Head::new("chatcmpl-", name);
    let choices = ChatChoices {
        with_logprobs: generate.logprobs.is_some(),
        names_a_function,
        begun: vec![false; generate.choices as usize],
    };
    match streaming.stream {
        true => {
            let chunks = move |answers| Chunks::new(head, answers, streaming, choices);
            beginning::events(model, generate, EarlyEvents::OPENAI, chunks).await
        }
        false => whole(&head, Answers::begin(model, generate).await?, &choices).await,
    }
}

/// The prompt's tokens. Other fields are checked, too.
pub(crate) fn prompt(fields: &Fields, model: &ServedModel) -> Result<Vec<u32>, ApiError> {
    super::generate(fields, model, &[])?;
    let tools = Tools::read(fields)?;
    Ok(rendered(fields, model, tools.as_ref())?.0)
}

/// The prompt's tokens and text.
fn rendered(
    fields: &Fields,
    model: &ServedModel,
    tools: Option<&Tools>,
) -> Result<(Vec<u32>, String), ApiError> {
    let prompt = tools.map(|tools| tools.prompt(model));
    let conversation =
        messages::conversation(fields, prompt.as_ref(), structure::loses_calls(model), model.context())?;
    let prompts = fields.read("add_generation_prompt")?.unwrap_or(true);
    model.encode_conversation(&conversation, prompts)
}

/// A complete generation, for the tenant `salt`.
pub(crate) fn generate(
    fields: &Fields,
    model: &ServedModel,
    salt: &[u8],
) -> Result<GenerateRequest, ApiError> {
    let most = match fields.integer("max_completion_tokens", 1..=u64::MAX)? {
        None => fields.integer("max_tokens", 1..=u64::MAX)?,
        given => given,
    };
    let logprobs = match (fields.flag("logprobs")?, fields.integer("top_logprobs", 0..=20)?) {
        (false, None | Some(0)) => None,
        (false, Some(_)) => {
            return Err(ApiError::field("top_logprobs", "`top_logprobs` needs `logprobs`"));
        }
        (true, top) => Some(top.unwrap_or(0) as u8),
    };
    let tools = Tools::read(fields)?;
    let (prompt, text) = rendered(fields, model, tools.as_ref())?;
    let form = structure::output(fields, model, tools.as_ref(), &text)?;
    let constraint = structure::constraint(fields, model, tools.as_ref(), form.reasoning)?;
    Ok(GenerateRequest {
        prompt,
        form,
        constraint,
        prompt_field: "messages",
        max_tokens: most,
        logprobs,
        ..super::generate(fields, model, salt)?
    })
}

#[derive(Clone, Debug, Serialize)]
struct Logprob<'a> {
    token: &'a str,
    logprob: f32,
    bytes: &'a [u8],
}

impl<'a> Logprob<'a> {
    fn new(token: &'a SpelledToken, logprob: f32) -> Self {
        Logprob { token: &token.text, logprob: finite(logprob), bytes: &token.bytes }
    }
}

pub(super) fn logprob(token: &TokenInfo) -> Value {
    let top: Vec<_> = token.top.iter().map(|(token, logprob)| Logprob::new(token, *logprob)).collect();
    let own = Logprob::new(&token.token, token.logprob);
    json!({ "token": own.token, "logprob": own.logprob, "bytes": own.bytes, "top_logprobs": top })
}

/// An answer under construction.
#[derive(Default)]
struct Message {
    text: String,
    reasoning: String,
    calls: Vec<Value>,
    tokens: Vec<Value>,
    finish: Option<FinishReason>,
}

impl Message {
    fn take(&mut self, event: OutputEvent) {
        match event {
            OutputEvent::Text(text) => self.text += &text,
            OutputEvent::Reasoning(text) => self.reasoning += &text,
            OutputEvent::CallStart { id, name, .. } => self.calls.push(call(&id, &name, "")),
            OutputEvent::CallArguments { index, piece } => {
                if let Some(Value::String(arguments)) =
                    self.calls.get_mut(index as usize).map(|call| &mut call["function"]["arguments"])
                {
                    *arguments += &piece;
                }
            }
            OutputEvent::CallEnd { .. } => {}
        }
    }

    fn json(self, at: usize, choices: &ChatChoices) -> Value {
        let Message { text, reasoning, calls, tokens, finish } = self;
        let content = if text.is_empty() && !calls.is_empty() { Value::Null } else { Value::String(text) };
        let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
        if !reasoning.is_empty() {
            message["reasoning_content"] = Value::String(reasoning);
        }
        if !calls.is_empty() {
            message["tool_calls"] = Value::Array(calls);
        }
        json!({
            "index": at,
            "message": message,
            "logprobs": choices.with_logprobs.then(|| json!({ "content": tokens, "refusal": null })),
            "finish_reason": choices.finish(finish),
        })
    }
}

fn call(id: &str, name: &str, arguments: &str) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
}

async fn whole(head: &Head, mut answers: Answers, choices: &ChatChoices) -> Answered {
    let mut messages: Vec<Message> = choices.begun.iter().map(|_| Message::default()).collect();
    while let Some(piece) = answers.next().await {
        let piece = piece?;
        let message = &mut messages[piece.choice as usize];
        message.tokens.extend(piece.token.as_ref().map(logprob));
        message.finish = message.finish.or(piece.finish);
        piece.events.into_iter().for_each(|event| message.take(event));
    }
    let messages = messages.into_iter().enumerate().map(|(at, message)| message.json(at, choices));
    let mut body = head.body("chat.completion", &messages.collect::<Vec<_>>());
    body["usage"] = json!(UsageBody::from(answers.usage()));
    answers.tell_applied(&mut body);
    reply::ok(&body)
}

/// The delta for an event. The end of a call has none.
fn delta(event: &OutputEvent) -> Option<Value> {
    match event {
        OutputEvent::Text(text) => Some(json!({ "content": text })),
        OutputEvent::Reasoning(text) => Some(json!({ "reasoning_content": text })),
        OutputEvent::CallStart { index, id, name } => {
            let mut call = call(id, name, "");
            call["index"] = json!(index);
            Some(json!({ "tool_calls": [call] }))
        }
        OutputEvent::CallArguments { index, piece } => {
            Some(json!({ "tool_calls": [{ "index": index, "function": { "arguments": piece } }] }))
        }
        OutputEvent::CallEnd { .. } => None,
    }
}

/// The format of a request's answers.
struct ChatChoices {
    with_logprobs: bool,
    /// Whether the client demanded a function by its name.
    names_a_function: bool,
    /// By answer: whether it has had its first chunk, which names the role.
    begun: Vec<bool>,
}

impl ChatChoices {
    /// Why an answer ended. In OpenAI's API, calls that are demanded by name end with `stop`, others with `tool_calls`
    /// (vLLM's pull request 25054 found that out).
    fn finish(&self, reason: Option<FinishReason>) -> Option<&'static str> {
        match reason {
            Some(FinishReason::ToolCalls) if self.names_a_function => Some("stop"),
            reason => reason.map(finish_name),
        }
    }

    /// Adds an entry for an answer, after its first one.
    fn add(
        &mut self,
        entries: &mut Vec<Value>,
        choice: u32,
        delta: &Value,
        token: Option<&TokenInfo>,
        finish: Option<FinishReason>,
    ) {
        if !std::mem::replace(&mut self.begun[choice as usize], true) {
            let role = json!({ "role": "assistant", "content": "" });
            self.add(entries, choice, &role, None, None);
        }
        let mut entry = json!({ "index": choice, "delta": delta, "finish_reason": self.finish(finish) });
        if self.with_logprobs {
            let logprobs = token.map(|token| json!({ "content": [logprob(token)], "refusal": null }));
            entry["logprobs"] = logprobs.unwrap_or(Value::Null);
        }
        entries.push(entry);
    }
}

impl Choices for ChatChoices {
    const OBJECT: &'static str = "chat.completion.chunk";

    fn tell(&mut self, piece: &Piece) -> Vec<Value> {
        let mut deltas: Vec<Value> = piece.events.iter().filter_map(delta).collect();
        if deltas.is_empty() && piece.token.is_some() {
            deltas.push(json!({ "content": "" }));
        }
        let mut entries = Vec::new();
        // The first entry has the token.
        let mut token = piece.token.as_ref();
        for delta in &deltas {
            self.add(&mut entries, piece.choice, delta, token.take(), None);
        }
        if piece.finish.is_some() {
            self.add(&mut entries, piece.choice, &json!({}), None, piece.finish);
        }
        entries
    }

    fn still_here(&mut self) -> Vec<Value> {
        let choice = self.begun.iter().position(|begun| !begun).unwrap_or(0);
        let mut entries = Vec::new();
        self.add(&mut entries, choice as u32, &json!({}), None, None);
        entries
    }
}
