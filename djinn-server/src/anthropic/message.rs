//! An answer as Anthropic's content blocks, as a whole or as events.

use crate::{FinishReason, OutputEvent, Piece, TokenUsage};
use serde_json::{Value, json};

/// A part of an answer.
#[derive(Debug)]
enum Block {
    Text(String),
    Thinking(String),
    /// Its arguments are the text of a JSON object.
    ToolUse {
        id: String,
        name: String,
        arguments: String,
    },
}

impl Block {
    /// The block. Its input is empty if the answer ended within the call; `stop_reason` says so.
    fn body(&self) -> Value {
        match self {
            Block::Text(text) => json!({ "type": "text", "text": text, "citations": null }),
            Block::Thinking(text) => json!({ "type": "thinking", "thinking": text, "signature": "" }),
            Block::ToolUse { id, name, arguments } => {
                let input = serde_json::from_str::<Value>(arguments).ok().filter(Value::is_object);
                json!({ "type": "tool_use", "id": id, "name": name, "input": input.unwrap_or_else(|| json!({})) })
            }
        }
    }
}

/// An answer. Each change of it can be sent as an event, in the order that Anthropic's clients expect: a block starts,
/// grows and stops before the next one starts.
#[derive(Debug)]
pub(super) struct Message {
    id: String,
    model: String,
    max_tokens: u64,
    blocks: Vec<Block>,
    /// Whether the last block may grow.
    is_open: bool,
    finish: Option<FinishReason>,
    stop_sequence: Option<String>,
}

impl Message {
    /// An empty answer of at most `max_tokens`.
    pub(super) fn new(id: String, model: String, max_tokens: u64) -> Self {
        let blocks = Vec::new();
        Message { id, model, max_tokens, blocks, is_open: false, finish: None, stop_sequence: None }
    }

    /// The event that begins the stream.
    pub(super) fn start(&self, usage: TokenUsage) -> Value {
        json!({ "type": "message_start", "message": self.body(usage) })
    }

    pub(super) fn take(&mut self, piece: Piece, send: &mut dyn FnMut(Value)) {
        for event in piece.events {
            self.event(event, send);
        }
        self.finish = self.finish.or(piece.finish);
        self.stop_sequence = self.stop_sequence.take().or(piece.stop_string);
    }

    fn event(&mut self, event: OutputEvent, send: &mut dyn FnMut(Value)) {
        match event {
            OutputEvent::Text(text) => {
                if !matches!(self.blocks.last(), Some(Block::Text(_)) if self.is_open) {
                    self.open(Block::Text(String::new()), send);
                }
                self.grow(&text, &json!({ "type": "text_delta", "text": text }), send);
            }
            OutputEvent::Reasoning(text) => {
                if !matches!(self.blocks.last(), Some(Block::Thinking(_)) if self.is_open) {
                    self.open(Block::Thinking(String::new()), send);
                }
                self.grow(&text, &json!({ "type": "thinking_delta", "thinking": text }), send);
            }
            OutputEvent::CallStart { id, name, .. } => {
                self.open(Block::ToolUse { id, name, arguments: String::new() }, send);
            }
            OutputEvent::CallArguments { piece, .. } => {
                self.grow(&piece, &json!({ "type": "input_json_delta", "partial_json": piece }), send);
            }
            OutputEvent::CallEnd { .. } => self.close(send),
        }
    }

    pub(super) fn end(&mut self, usage: TokenUsage, send: &mut dyn FnMut(Value)) {
        self.close(send);
        let delta = json!({ "stop_reason": self.stop_reason(usage), "stop_sequence": self.stop_sequence });
        send(json!({ "type": "message_delta", "delta": delta, "usage": usage_body(usage) }));
        send(json!({ "type": "message_stop" }));
    }

    /// The answer so far.
    pub(super) fn body(&self, usage: TokenUsage) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": self.blocks.iter().map(Block::body).collect::<Vec<_>>(),
            "stop_reason": self.stop_reason(usage),
            "stop_sequence": self.stop_sequence,
            "usage": usage_body(usage),
        })
    }

    fn stop_reason(&self, usage: TokenUsage) -> Option<&'static str> {
        self.finish.map(|finish| match finish {
            FinishReason::Length if usage.completion < self.max_tokens => "model_context_window_exceeded",
            FinishReason::Length => "max_tokens",
            _ if self.stop_sequence.is_some() => "stop_sequence",
            FinishReason::ToolCalls => "tool_use",
            FinishReason::Stop => "end_turn",
        })
    }

    fn open(&mut self, block: Block, send: &mut dyn FnMut(Value)) {
        self.close(send);
        let (index, body) = (self.blocks.len(), block.body());
        send(json!({ "type": "content_block_start", "index": index, "content_block": body }));
        self.is_open = true;
        self.blocks.push(block);
    }

    fn grow(&mut self, more: &str, delta: &Value, send: &mut dyn FnMut(Value)) {
        let Some(block) = self.blocks.last_mut() else { return };
        let (Block::Text(text) | Block::Thinking(text) | Block::ToolUse { arguments: text, .. }) = block;
        text.push_str(more);
        send(json!({ "type": "content_block_delta", "index": self.blocks.len() - 1, "delta": delta }));
    }

    fn close(&mut self, send: &mut dyn FnMut(Value)) {
        if std::mem::take(&mut self.is_open) {
            let index = self.blocks.len() - 1;
            if matches!(self.blocks.last(), Some(Block::Thinking(_))) {
                // Clients wait for a signature. There is none to give.
                let delta = json!({ "type": "signature_delta", "signature": "" });
                send(json!({ "type": "content_block_delta", "index": index, "delta": delta }));
            }
            send(json!({ "type": "content_block_stop", "index": index }));
        }
    }
}

fn usage_body(usage: TokenUsage) -> Value {
    json!({
        "input_tokens": usage.prompt - usage.cached,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(index: u32, arguments: &[&str], ends: bool) -> Vec<OutputEvent> {
        let mut events =
            vec![OutputEvent::CallStart { index, id: format!("call_{index}"), name: "look".to_owned() }];
        let piece = |piece: &&str| OutputEvent::CallArguments { index, piece: (*piece).to_owned() };
        events.extend(arguments.iter().map(piece));
        events.extend(ends.then_some(OutputEvent::CallEnd { index }));
        events
    }

    fn message(events: Vec<OutputEvent>, finish: FinishReason) -> (Vec<Value>, Value) {
        let mut message = Message::new("msg_1".to_owned(), "tiny".to_owned(), 8);
        let usage = TokenUsage { prompt: 3, cached: 1, completion: 8 };
        let mut sent = vec![message.start(usage)];
        for event in events {
            message.event(event, &mut |event| sent.push(event));
        }
        message.finish = Some(finish);
        message.end(usage, &mut |event| sent.push(event));
        (sent, message.body(usage))
    }

    fn names(events: &[Value]) -> Vec<&str> {
        events.iter().map(|event| event["type"].as_str().unwrap().trim_start_matches("content_")).collect()
    }

    #[test]
    fn blocks_start_and_stop_one_after_another() {
        let mut events = vec![
            OutputEvent::Reasoning("Hm".to_owned()),
            OutputEvent::Reasoning("m.".to_owned()),
            OutputEvent::Text("I look.".to_owned()),
        ];
        events.extend(call(0, &["{\"at\":", "1}"], true));
        events.extend(call(1, &["{}"], true));
        let (sent, body) = message(events, FinishReason::ToolCalls);
        let order = [
            "message_start",
            "block_start",
            "block_delta",
            "block_delta",
            "block_delta",
            "block_stop",
            "block_start",
            "block_delta",
            "block_stop",
            "block_start",
            "block_delta",
            "block_delta",
            "block_stop",
            "block_start",
            "block_delta",
            "block_stop",
            "message_delta",
            "message_stop",
        ];
        assert_eq!(names(&sent), order);
        let indices: Vec<u64> = sent.iter().filter_map(|event| event["index"].as_u64()).collect();
        assert_eq!(indices, [0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3]);
        assert_eq!(sent[0]["message"]["content"], json!([]));
        assert_eq!(sent[0]["message"]["stop_reason"], Value::Null);
        let start = json!({ "type": "tool_use", "id": "call_0", "name": "look", "input": {} });
        assert_eq!(sent[4]["delta"], json!({ "type": "signature_delta", "signature": "" }));
        assert_eq!(sent[9]["content_block"], start);
        assert_eq!(sent[10]["delta"], json!({ "type": "input_json_delta", "partial_json": "{\"at\":" }));
        assert_eq!(sent[16]["delta"]["stop_reason"], "tool_use");
        assert_eq!(body["content"][0]["thinking"], "Hmm.");
        assert_eq!(body["content"][2]["input"], json!({ "at": 1 }));
        assert_eq!(body["stop_reason"], "tool_use");
    }

    #[test]
    fn a_call_that_is_cut_short_has_no_input() {
        let (sent, body) = message(call(0, &["{\"at"], false), FinishReason::Length);
        assert_eq!(names(&sent)[1..4], ["block_start", "block_delta", "block_stop"]);
        assert_eq!(body["content"][0]["input"], json!({}));
        assert_eq!(body["stop_reason"], "max_tokens");
        let (sent, body) = message(Vec::new(), FinishReason::Stop);
        assert_eq!(names(&sent), ["message_start", "message_delta", "message_stop"]);
        assert_eq!((&body["content"], &body["stop_reason"]), (&json!([]), &json!("end_turn")));
    }
}
