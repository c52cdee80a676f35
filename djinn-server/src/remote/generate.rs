//! `/v1/generate`: one answer as `djinn run` gives it, alone or in a chat: same prompt, same defaults, with token ids.

use crate::beginning::{self, EarlyEvents};
use crate::body::{Fields, LONGEST_STOP, stops_fit};
use crate::fields::GENERATE;
use crate::openai::finish_name;
use crate::reply::{Answered, EventSource, Frames};
use crate::server::ApiRequest;
use crate::{Answers, ApiError, FinishReason, GenerateRequest, ServedModel};
use djinn_engine::Residence;
use djinn_host::{Dialogue, Generation, Speech, seed};
use djinn_models::Message;
use serde_json::{Value, json};
use std::time::Instant;

const MOST_STOPS: usize = 16;

/// Answers a request with events: the prompt's tokens, text as it comes, and at the end all tokens.
pub(crate) async fn generate(request: ApiRequest) -> Answered {
    let fields = request.fields(&GENERATE)?;
    let model = request.model(&fields)?;
    let (salt, hints) = (request.salt(), request.hints(&fields, &model, None)?);
    let (mut prepared, forgotten) = model.work(move |model| prepare(&fields, model, salt)).await?;
    hints.apply(&mut prepared);
    drop(request);
    let begun = json!({
        "prompt_tokens": prepared.prompt,
        "seed": seed(&prepared.sampling),
        "forgotten": forgotten,
    });
    let (has_text, asked) = (model.tokenizer().is_some(), Instant::now());
    let make = move |answers: Answers| Generating {
        answers: answers.telling_all(),
        begun: Some(begun),
        has_text,
        asked,
        first: None,
        finish: None,
        ended: false,
    };
    beginning::events(model, prepared, EarlyEvents { progress: loading, ..EarlyEvents::OPENAI }, make).await
}

/// How much of the model is loaded.
fn loading(model: &ServedModel) -> Option<Value> {
    matches!(model.residence(), Residence::Loading).then(|| {
        let [done, total] = model.progress();
        json!({ "loading": { "bytes": done, "total_bytes": total } })
    })
}

/// What is to be generated, and how many turns of a conversation are left out of it.
fn prepare(
    fields: &Fields,
    model: &ServedModel,
    salt: Vec<u8>,
) -> Result<(GenerateRequest, usize), ApiError> {
    let most = u64::from(u32::MAX);
    let max_tokens = fields.integer("max_tokens", 1..=most)?.unwrap_or(Generation::MAX_TOKENS.into());
    let generation = Generation {
        greedy: fields.flag("greedy")?,
        temperature: fields.number("temperature", 0.0..=f32::MAX)?,
        top_k: fields.integer("top_k", 0..=most)?.map(|k| k as u32),
        top_p: fields.number("top_p", 0.0..=1.0)?,
        min_p: fields.number("min_p", 0.0..=1.0)?,
        repetition_penalty: fields.number("repetition_penalty", f32::MIN_POSITIVE..=f32::MAX)?,
        seed: fields.read("seed")?,
        stop: fields.read("stop")?.unwrap_or_default(),
        ignore_eos: fields.flag("ignore_eos")?,
        raw: fields.flag("raw")?,
        system: fields.read("system")?,
        ..Generation::default()
    };
    if !stops_fit(&generation.stop, MOST_STOPS) {
        return Err(ApiError::field(
            "stop",
            format!("give up to {MOST_STOPS} texts, of 1 to {LONGEST_STOP} bytes each"),
        ));
    }
    let own = model.model();
    let asked = (
        fields.read::<Vec<u32>>("prompt_tokens")?,
        fields.read::<String>("prompt")?,
        fields.read::<Vec<Message>>("messages")?,
    );
    let speech = |field| {
        let speech = Speech::new(own, &generation);
        speech.map_err(|error| ApiError::of_text(&error, field))
    };
    let (prompt, prompt_field, forgotten) = match asked {
        (Some(tokens), None, None) => {
            model.check_tokens(&tokens, "prompt_tokens")?;
            (tokens, "prompt_tokens", 0)
        }
        (None, Some(text), None) => {
            let tokens = speech("prompt")?.tokens(&text);
            (tokens.map_err(|error| ApiError::of_text(&error, "prompt"))?, "prompt", 0)
        }
        (None, None, Some(messages)) => {
            let (tokens, forgotten) =
                turn(&speech("messages")?, messages, model.context(), max_tokens as u32)?;
            (tokens, "messages", forgotten)
        }
        _ => return Err(ApiError::field("prompt", "give `prompt`, `prompt_tokens` or `messages`")),
    };
    let request = GenerateRequest {
        prompt,
        prompt_field,
        choices: 1,
        max_tokens: Some(max_tokens),
        sampling: generation.sampling(&own.defaults),
        continues_text: generation.raw || own.chat.is_none(),
        stop: generation.stop,
        ignore_eos: generation.ignore_eos,
        // The same as in the other APIs, so that they share prefixes.
        salt: [&[0], salt.as_slice()].concat(),
        ..GenerateRequest::default()
    };
    Ok((request, forgotten))
}

/// The tokens of a conversation whose last message is the user's, and how many of its oldest turns are left out of them.
fn turn(
    speech: &Speech<'_>,
    mut messages: Vec<Message>,
    context: u64,
    max_tokens: u32,
) -> Result<(Vec<u32>, usize), ApiError> {
    let wrong = |error: djinn_host::Error| ApiError::of_text(&error, "messages");
    if messages.len() as u64 > context {
        let message =
            format!("{} messages are more than a context of {context} tokens holds", messages.len());
        return Err(ApiError::too_long("messages", message));
    }
    let Some(last) = messages.pop().filter(|message| message.role == "user") else {
        return Err(ApiError::field("messages", "the last message must be the user's"));
    };
    let mut conversation = Dialogue::of(speech);
    conversation.resume(messages).map_err(wrong)?;
    conversation.prompt(speech, &last.content, context, max_tokens).map_err(wrong)
}

/// A streamed answer.
struct Generating {
    answers: Answers,
    /// The first event.
    begun: Option<Value>,
    has_text: bool,
    asked: Instant,
    first: Option<Instant>,
    finish: Option<FinishReason>,
    ended: bool,
}

impl Generating {
    fn tell_end(&self, events: &mut Frames) {
        let tokens = self.answers.tokens();
        let ms = |from: Instant, to: Instant| (to - from).as_secs_f64() * 1e3;
        let later = (tokens.len() as f64 - 1.0).max(1.0);
        let per_token =
            self.first.filter(|_| tokens.len() > 1).map(|first| ms(first, Instant::now()) / later);
        events.data(&json!({
            "tokens": tokens,
            "has_text": self.has_text,
            "finish": self.finish.map(finish_name),
            "ttft_ms": self.first.map(|first| ms(self.asked, first)),
            "tpot_ms": per_token,
        }));
        events.done();
    }
}

impl EventSource for Generating {
    async fn next(&mut self, events: &mut Frames) -> bool {
        if let Some(begun) = self.begun.take() {
            events.data(&begun);
            return true;
        }
        match self.answers.next().await {
            Some(Ok(piece)) => {
                self.finish = self.finish.or(piece.finish);
                let mut event = json!({ "text": piece.text() });
                if self.first.is_none() {
                    self.first = Some(Instant::now());
                    event["cached_tokens"] = json!(self.answers.usage().cached);
                }
                events.data(&event);
                true
            }
            Some(Err(error)) => {
                events.error(&error);
                false
            }
            None => {
                if !std::mem::replace(&mut self.ended, true) {
                    self.tell_end(events);
                }
                false
            }
        }
    }

    fn still_here(&mut self, events: &mut Frames) {
        events.data(&json!({}));
    }
}
