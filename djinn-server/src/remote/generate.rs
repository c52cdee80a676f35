//! `/v1/generate`: one answer as `djinn run` gives it: same prompt, same defaults, with token ids.

use crate::body::Fields;
use crate::fields::GENERATE;
use crate::openai::finish_name;
use crate::reply::{self, EventSource, Frames};
use crate::server::ApiRequest;
use crate::{Answers, ApiError, FinishReason, GenerateRequest, ServedModel};
use axum::body::Body;
use axum::http::Response;
use djinn_host::{Generation, Speech, seed};
use serde_json::json;
use std::time::Instant;

/// The default maximum of tokens.
const MAX_TOKENS: u64 = 256;
/// Stop strings, and bytes of one.
const MOST_STOPS: usize = 16;
const LONGEST_STOP: usize = 1024;

/// Answers a request with events: the prompt's tokens, text as it comes, and at the end all tokens.
pub(crate) async fn generate(request: ApiRequest) -> Result<Response<Body>, ApiError> {
    let fields = Fields::parse(&request.body, &GENERATE)?;
    let model = request.model(&fields)?;
    let salt = request.salt();
    let prepared = model.work(move |model| prepare(&fields, model, salt)).await?;
    let (prompt, seed, asked) = (prepared.prompt.clone(), seed(&prepared.sampling), Instant::now());
    let has_text = model.tokenizer().is_some();
    let answers = Answers::begin(model, prepared).await?.telling_all();
    let prompt = Some((prompt, seed));
    Ok(reply::events(Generating {
        answers,
        prompt,
        has_text,
        asked,
        first: None,
        finish: None,
        ended: false,
    }))
}

fn prepare(fields: &Fields, model: &ServedModel, salt: Vec<u8>) -> Result<GenerateRequest, ApiError> {
    let most = u64::from(u32::MAX);
    let max_tokens = fields.integer("max_tokens", 1..=most)?.unwrap_or(MAX_TOKENS);
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
    if generation.stop.len() > MOST_STOPS || generation.stop.iter().any(|stop| stop.len() > LONGEST_STOP) {
        return Err(ApiError::field(
            "stop",
            format!("give up to {MOST_STOPS} texts of up to {LONGEST_STOP} bytes"),
        ));
    }
    let own = model.model();
    let wrong = |error: djinn_host::Error| ApiError::of_text(&error, "prompt");
    let (prompt, prompt_field) =
        match (fields.read::<Vec<u32>>("prompt_tokens")?, fields.read::<String>("prompt")?) {
            (Some(tokens), None) => {
                model.check_tokens(&tokens, "prompt_tokens")?;
                (tokens, "prompt_tokens")
            }
            (None, Some(text)) => {
                let speech = Speech::new(own, &generation).map_err(wrong)?;
                (speech.tokens(&text).map_err(wrong)?, "prompt")
            }
            _ => return Err(ApiError::field("prompt", "give `prompt` or `prompt_tokens`")),
        };
    Ok(GenerateRequest {
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
    })
}

/// A streamed answer.
struct Generating {
    answers: Answers,
    /// For the first event.
    prompt: Option<(Vec<u32>, Option<u64>)>,
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
        if let Some((prompt, seed)) = self.prompt.take() {
            events.data(&json!({ "prompt_tokens": prompt, "seed": seed }));
            return true;
        }
        match self.answers.next().await {
            Some(Ok(piece)) => {
                self.first.get_or_insert_with(Instant::now);
                self.finish = self.finish.or(piece.finish);
                events.data(&json!({ "text": piece.text() }));
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
