//! An answer as the items of a response, as a whole or as events.

use crate::body::Fields;
use crate::openai::{answer_id, chat};
use crate::{ApiError, FinishReason, GenerateRequest, OutputEvent, Piece, TokenUsage, reply};
use serde_json::{Map, Value, json};

/// The fields of a response that are known before it begins.
pub(super) fn head(
    fields: &Fields,
    generate: &GenerateRequest,
    model: String,
    store: bool,
) -> Result<Map<String, Value>, ApiError> {
    let given = |name: &str| fields.get(name).cloned();
    let tools: Vec<Value> = fields.read("tools")?.unwrap_or_default();
    let text = given("text").unwrap_or_else(|| json!({ "format": { "type": "text" } }));
    let metadata: Map<String, Value> = fields.read("metadata")?.unwrap_or_default();
    let body = json!({
        "created_at": reply::unix_now(),
        "model": model,
        "instructions": given("instructions"),
        "previous_response_id": given("previous_response_id"),
        "max_output_tokens": given("max_output_tokens"),
        "max_tool_calls": given("max_tool_calls"),
        "metadata": metadata,
        "parallel_tool_calls": given("parallel_tool_calls").unwrap_or(json!(true)),
        "reasoning": given("reasoning"),
        "store": store,
        "temperature": decimal(generate.sampling.temperature),
        "top_p": decimal(generate.sampling.top_p),
        "top_logprobs": generate.logprobs.unwrap_or(0),
        "text": text,
        "tool_choice": given("tool_choice").unwrap_or(json!("auto")),
        "tools": tools.into_iter().map(whole_tool).collect::<Vec<_>>(),
        "truncation": "disabled",
        "background": false,
        "service_tier": "default",
    });
    match body {
        Value::Object(body) => Ok(body),
        _ => Ok(Map::new()),
    }
}

/// A number as the client wrote it. The nearest double of a float has other digits.
fn decimal(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

/// A tool with the keys that clients expect.
fn whole_tool(mut tool: Value) -> Value {
    if let Some(tool) = tool.as_object_mut() {
        for name in ["description", "parameters", "strict"] {
            tool.entry(name).or_insert(Value::Null);
        }
    }
    tool
}

/// An end of a response that its model did not decide.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    Cancelled,
    Failed(ApiError),
}

#[derive(Debug)]
struct Item {
    id: String,
    kind: Kind,
    text: String,
    logprobs: Vec<Value>,
}

#[derive(Debug)]
enum Kind {
    Message,
    Reasoning,
    Call { call_id: String, name: String },
}

impl Item {
    fn new(kind: Kind) -> Self {
        let prefix = match kind {
            Kind::Message => "msg_",
            Kind::Reasoning => "rs_",
            Kind::Call { .. } => "fc_",
        };
        Item { id: answer_id(prefix), kind, text: String::new(), logprobs: Vec::new() }
    }

    /// The content part. Calls have none.
    fn part(&self) -> Option<Value> {
        match self.kind {
            Kind::Message => Some(
                json!({ "type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs }),
            ),
            Kind::Reasoning => Some(json!({ "type": "reasoning_text", "text": self.text })),
            Kind::Call { .. } => None,
        }
    }

    fn body(&self, status: &str, parts: &[Value]) -> Value {
        match &self.kind {
            Kind::Message => {
                json!({ "id": self.id, "type": "message", "role": "assistant", "status": status, "content": parts })
            }
            Kind::Reasoning => {
                json!({ "id": self.id, "type": "reasoning", "status": status, "summary": [], "content": parts })
            }
            Kind::Call { call_id, name } => json!({
                "id": self.id, "type": "function_call", "status": status,
                "call_id": call_id, "name": name, "arguments": self.text,
            }),
        }
    }

    fn whole(&self, status: &str) -> Value {
        self.body(status, self.part().as_slice())
    }
}

/// An answer. Each change of it can be sent as an event; events are counted.
#[derive(Debug)]
pub(super) struct Output {
    id: String,
    head: Map<String, Value>,
    items: Vec<Item>,
    /// Whether the last item may grow.
    is_open: bool,
    sequence: u64,
    finish: Option<FinishReason>,
    outcome: Option<Outcome>,
    has_ended: bool,
    /// Tokens until the end of the reasoning.
    reasoning_tokens: u64,
    /// Log-probabilities of tokens whose text is not known yet.
    early: Vec<Value>,
}

type Send<'a> = &'a mut dyn FnMut(Value);

impl Output {
    /// Adds Djinn's own fields to the response, before the answer begins.
    pub(super) fn tell(&mut self, add: impl FnOnce(&mut Value)) {
        let mut head = Value::Object(std::mem::take(&mut self.head));
        add(&mut head);
        if let Value::Object(head) = head {
            self.head = head;
        }
    }

    pub(super) fn new(id: String, head: Map<String, Value>) -> Self {
        Output {
            id,
            head,
            items: Vec::new(),
            is_open: false,
            sequence: 0,
            finish: None,
            outcome: None,
            has_ended: false,
            reasoning_tokens: 0,
            early: Vec::new(),
        }
    }

    /// Sets how the answer will end.
    pub(super) fn set_outcome(&mut self, outcome: Outcome) {
        self.outcome = Some(outcome);
    }

    fn event(&mut self, send: Send<'_>, kind: &str, mut body: Value) {
        body["type"] = json!(kind);
        body["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        send(body);
    }

    fn item_event(&mut self, send: Send<'_>, kind: &str, mut body: Value) {
        let at = self.items.len() - 1;
        body["item_id"] = json!(self.items[at].id);
        body["output_index"] = json!(at);
        if !matches!(self.items[at].kind, Kind::Call { .. }) {
            body["content_index"] = json!(0);
        }
        self.event(send, kind, body);
    }

    pub(super) fn begin(&mut self, usage: TokenUsage, send: Send<'_>) {
        let body = json!({ "response": self.body(usage) });
        self.event(send, "response.created", body);
        self.still_here(usage, send);
    }

    /// The event for a response in progress.
    pub(super) fn still_here(&mut self, usage: TokenUsage, send: Send<'_>) {
        let body = json!({ "response": self.body(usage) });
        self.event(send, "response.in_progress", body);
    }

    pub(super) fn take(&mut self, piece: Piece, usage: TokenUsage, send: Send<'_>) {
        let mut logprobs = std::mem::take(&mut self.early);
        logprobs.extend(piece.token.iter().map(chat::logprob));
        for event in piece.events {
            // Log-probabilities of reasoning and calls are not reported.
            if !matches!(event, OutputEvent::Text(_)) {
                logprobs.clear();
            }
            self.output_event(event, &mut logprobs, usage, send);
        }
        self.early = logprobs;
        self.finish = self.finish.or(piece.finish);
    }

    fn output_event(
        &mut self,
        event: OutputEvent,
        logprobs: &mut Vec<Value>,
        usage: TokenUsage,
        send: Send<'_>,
    ) {
        match event {
            OutputEvent::Text(text) => self.grow(Kind::Message, &text, std::mem::take(logprobs), send),
            OutputEvent::Reasoning(text) => {
                self.grow(Kind::Reasoning, &text, Vec::new(), send);
                self.reasoning_tokens = usage.completion;
            }
            OutputEvent::CallStart { id, name, .. } => self.open(Kind::Call { call_id: id, name }, send),
            OutputEvent::CallArguments { piece, .. } => self.grow_last(&piece, Vec::new(), send),
            OutputEvent::CallEnd { .. } => self.close("completed", send),
        }
    }

    /// Extends the last item, or begins one of this kind.
    fn grow(&mut self, kind: Kind, text: &str, logprobs: Vec<Value>, send: Send<'_>) {
        let is_same = |item: &Item| std::mem::discriminant(&item.kind) == std::mem::discriminant(&kind);
        if !self.is_open || !self.items.last().is_some_and(is_same) {
            self.open(kind, send);
        }
        self.grow_last(text, logprobs, send);
    }

    fn grow_last(&mut self, text: &str, logprobs: Vec<Value>, send: Send<'_>) {
        let Some(item) = self.items.last_mut() else { return };
        item.text += text;
        item.logprobs.extend(logprobs.iter().cloned());
        let (kind, body) = match item.kind {
            Kind::Message => ("response.output_text.delta", json!({ "delta": text, "logprobs": logprobs })),
            Kind::Reasoning => ("response.reasoning_text.delta", json!({ "delta": text })),
            Kind::Call { .. } => ("response.function_call_arguments.delta", json!({ "delta": text })),
        };
        self.item_event(send, kind, body);
    }

    fn open(&mut self, kind: Kind, send: Send<'_>) {
        self.close("completed", send);
        let (item, at) = (Item::new(kind), self.items.len());
        let (body, part) = (item.body("in_progress", &[]), item.part());
        self.items.push(item);
        self.is_open = true;
        self.event(send, "response.output_item.added", json!({ "output_index": at, "item": body }));
        if let Some(part) = part {
            self.item_event(send, "response.content_part.added", json!({ "part": part }));
        }
    }

    fn close(&mut self, status: &str, send: Send<'_>) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        let at = self.items.len() - 1;
        let item = &self.items[at];
        let (whole, part) = (item.whole(status), item.part());
        let (kind, done) = match &item.kind {
            Kind::Message => {
                ("response.output_text.done", json!({ "text": item.text, "logprobs": item.logprobs }))
            }
            Kind::Reasoning => ("response.reasoning_text.done", json!({ "text": item.text })),
            Kind::Call { name, .. } => {
                ("response.function_call_arguments.done", json!({ "arguments": item.text, "name": name }))
            }
        };
        self.item_event(send, kind, done);
        if let Some(part) = part {
            self.item_event(send, "response.content_part.done", json!({ "part": part }));
        }
        self.event(send, "response.output_item.done", json!({ "output_index": at, "item": whole }));
    }

    pub(super) fn end(&mut self, usage: TokenUsage, send: Send<'_>) {
        let early = std::mem::take(&mut self.early);
        if self.is_open
            && !early.is_empty()
            && matches!(self.items.last(), Some(Item { kind: Kind::Message, .. }))
        {
            self.grow_last("", early, send);
        }
        let status = if self.is_whole() { "completed" } else { "incomplete" };
        self.close(status, send);
        self.has_ended = true;
        let kind = match self.status() {
            "completed" => "response.completed",
            "failed" => "response.failed",
            _ => "response.incomplete",
        };
        let body = json!({ "response": self.body(usage) });
        self.event(send, kind, body);
    }

    fn is_whole(&self) -> bool {
        self.outcome.is_none() && matches!(self.finish, Some(FinishReason::Stop | FinishReason::ToolCalls))
    }

    fn status(&self) -> &'static str {
        match (&self.outcome, self.has_ended) {
            (Some(Outcome::Cancelled), _) => "cancelled",
            (Some(Outcome::Failed(_)), _) => "failed",
            (None, false) => "in_progress",
            (None, true) if self.is_whole() => "completed",
            (None, true) => "incomplete",
        }
    }

    /// The response so far.
    pub(super) fn body(&self, usage: TokenUsage) -> Value {
        let status = self.status();
        let last = self.items.len().saturating_sub(1);
        let item = |(at, item): (usize, &Item)| {
            let status = match (self.is_open && at == last, at == last && self.has_ended && !self.is_whole())
            {
                (true, _) => "in_progress",
                (false, true) => "incomplete",
                (false, false) => "completed",
            };
            item.whole(status)
        };
        let output: Vec<Value> = self.items.iter().enumerate().map(item).collect();
        let error = match &self.outcome {
            Some(Outcome::Failed(error)) => {
                let code = if error.status.as_u16() == 429 { "rate_limit_exceeded" } else { "server_error" };
                json!({ "code": code, "message": error.message })
            }
            _ => Value::Null,
        };
        let why = (status == "incomplete").then(|| json!({ "reason": "max_output_tokens" }));
        let mut body = Map::new();
        body.insert("id".to_owned(), json!(self.id));
        body.insert("object".to_owned(), json!("response"));
        body.insert("status".to_owned(), json!(status));
        body.extend(self.head.clone());
        body.insert("output".to_owned(), json!(output));
        body.insert("error".to_owned(), error);
        body.insert("incomplete_details".to_owned(), json!(why));
        body.insert("usage".to_owned(), if self.has_ended { self.usage_body(usage) } else { Value::Null });
        Value::Object(body)
    }

    fn usage_body(&self, usage: TokenUsage) -> Value {
        json!({
            "input_tokens": usage.prompt,
            "input_tokens_details": { "cached_tokens": usage.cached, "cache_write_tokens": 0 },
            "output_tokens": usage.completion,
            "output_tokens_details": { "reasoning_tokens": self.reasoning_tokens },
            "total_tokens": usage.prompt + usage.completion,
        })
    }
}
