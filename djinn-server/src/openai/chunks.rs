//! Streams of OpenAI's completions: chunks with a common head, usage, and an end.

use super::{FINGERPRINT, Streaming, UsageBody, answer_id};
use crate::reply::{self, EventSource, Frames};
use crate::{Answers, Piece};
use serde_json::{Value, json};

/// The common fields of an answer and of its chunks.
pub(super) struct Head {
    id: String,
    created: u64,
    model: String,
}

impl Head {
    /// For an answer that begins now, with an id that begins with `prefix`.
    pub(super) fn new(prefix: &str, model: String) -> Self {
        Head { id: answer_id(prefix), created: reply::unix_now(), model }
    }

    /// An answer or a chunk of it.
    pub(super) fn body(&self, object: &str, choices: &[Value]) -> Value {
        let Head { id, created, model } = self;
        json!({
            "id": id,
            "object": object,
            "created": created,
            "model": model,
            "system_fingerprint": FINGERPRINT,
            "choices": choices,
        })
    }
}

/// Makes the entries of `choices`.
pub(super) trait Choices: Send + 'static {
    /// The chunks' type.
    const OBJECT: &'static str;

    /// The entries for a piece, each in a chunk of its own.
    fn tell(&mut self, piece: &Piece) -> Vec<Value>;

    /// Entries without content, which show that the stream is alive.
    fn still_here(&mut self) -> Vec<Value>;
}

/// A streamed answer.
pub(super) struct Chunks<C> {
    head: Head,
    answers: Answers,
    streaming: Streaming,
    choices: C,
    usage_is_due: bool,
}

impl<C: Choices> Chunks<C> {
    pub(super) fn new(head: Head, answers: Answers, streaming: Streaming, choices: C) -> Self {
        Chunks { head, answers, streaming, choices, usage_is_due: streaming.usage }
    }

    fn chunk(&self, events: &mut Frames, choices: &[Value], usage: bool, ends: bool) {
        let mut chunk = self.head.body(C::OBJECT, choices);
        if usage || self.streaming.continuous {
            chunk["usage"] = json!(UsageBody::from(self.answers.usage()));
        }
        if ends {
            self.answers.tell_applied(&mut chunk);
        }
        events.data(&chunk);
    }
}

impl<C: Choices> EventSource for Chunks<C> {
    async fn next(&mut self, events: &mut Frames) -> bool {
        match self.answers.next().await {
            Some(Ok(piece)) => {
                let entries = self.choices.tell(&piece);
                let last = entries.len().saturating_sub(1);
                for (at, choice) in entries.into_iter().enumerate() {
                    self.chunk(events, &[choice], false, at == last && piece.finish.is_some());
                }
                true
            }
            Some(Err(error)) => {
                events.error(&error);
                false
            }
            None => {
                if std::mem::take(&mut self.usage_is_due) {
                    self.chunk(events, &[], true, false);
                }
                events.done();
                false
            }
        }
    }

    fn still_here(&mut self, events: &mut Frames) {
        for choice in self.choices.still_here() {
            self.chunk(events, &[choice], false, false);
        }
    }
}
