//! `/v1/completions`.

use super::{FINGERPRINT, Streaming, UsageBody, answer_id, finish_name, finite};
use crate::body::Fields;
use crate::fields::COMPLETIONS;
use crate::model::ServedModel;
use crate::reply::{self, EventSource, Frames};
use crate::server::ApiRequest;
use crate::{Answers, ApiError, GenerateRequest, TokenInfo};
use axum::body::Body;
use axum::http::{Response, StatusCode};
use serde_json::{Map, Value, json};

/// Tokens to generate where the request does not say.
const MAX_TOKENS: u64 = 16;

/// Answers a request.
pub(crate) async fn complete(request: ApiRequest) -> Result<Response<Body>, ApiError> {
    let fields = Fields::parse(&request.body, &COMPLETIONS)?;
    let model = request.model(&fields)?;
    let streaming = Streaming::read(&fields)?;
    let salt = request.salt();
    let prepared = model.work(move |model| {
        let echo = fields.flag("echo")?;
        let logprobs = fields.integer("logprobs", 0..=20)?.map(|top| top as u8);
        if echo && logprobs.is_some() {
            return Err(ApiError::unsupported(
                "logprobs",
                "`logprobs` of a prompt are not supported; drop `echo`",
            ));
        }
        let (prompt, text) = prompt(&fields, model)?;
        let generate = GenerateRequest {
            prompt,
            prompt_field: "prompt",
            max_tokens: Some(fields.integer("max_tokens", 1..=u64::MAX)?.unwrap_or(MAX_TOKENS)),
            continues_text: true,
            logprobs,
            ..super::generate(&fields, model, &salt)?
        };
        Ok((generate, if echo { text } else { String::new() }))
    });
    let (generate, echo) = prepared.await?;
    let name = request.model_name(&model);
    let head = Head { id: answer_id("cmpl-"), created: reply::unix_now(), model: name };
    let (choices, with_logprobs) = (generate.choices as usize, generate.logprobs.is_some());
    let answers = Answers::begin(model, generate).await?;
    match streaming.stream {
        true => Ok(reply::events(TextChunks {
            head,
            answers,
            streaming,
            logprobs: with_logprobs.then(|| vec![0; choices]),
            echo: vec![echo; choices],
            usage_is_due: streaming.usage,
        })),
        false => whole(head, answers, choices, with_logprobs, &echo).await,
    }
}

/// The prompt's tokens and text.
fn prompt(fields: &Fields, model: &ServedModel) -> Result<(Vec<u32>, String), ApiError> {
    let wrong = || ApiError::field("prompt", "`prompt` must be a text or a list of token ids");
    let prompt = fields.get("prompt").ok_or_else(|| ApiError::field("prompt", "`prompt` is missing"))?;
    let prompt = match prompt {
        Value::Array(prompts)
            if prompts.first().is_some_and(|first| first.is_string() || first.is_array()) =>
        {
            match prompts.as_slice() {
                [only] => only,
                _ => {
                    let message =
                        "several prompts in one request are not supported; send one request for each";
                    return Err(ApiError::unsupported("prompt", message));
                }
            }
        }
        prompt => prompt,
    };
    match prompt {
        Value::String(text) => {
            let special = fields.read("add_special_tokens")?.unwrap_or(true);
            Ok((model.encode(text, special, "prompt")?, text.clone()))
        }
        Value::Array(ids) => {
            let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
            let ids = ids.iter().map(id).collect::<Option<Vec<u32>>>().ok_or_else(wrong)?;
            model.check_tokens(&ids, "prompt")?;
            let text = match model.tokenizer() {
                Some(tokenizer) => {
                    tokenizer.decode(&ids, true).map_err(|e| ApiError::of_text(&e, "prompt"))?
                }
                None => String::new(),
            };
            Ok((ids, text))
        }
        _ => Err(wrong()),
    }
}

struct Head {
    id: String,
    created: u64,
    model: String,
}

impl Head {
    fn body(&self, choices: &[Value]) -> Value {
        let Head { id, created, model } = self;
        json!({
            "id": id,
            "object": "text_completion",
            "created": created,
            "model": model,
            "system_fingerprint": FINGERPRINT,
            "choices": choices,
        })
    }
}

fn choice(at: usize, text: &str, logprobs: &Value, finish: Option<&str>) -> Value {
    json!({ "index": at, "text": text, "logprobs": logprobs, "finish_reason": finish })
}

/// The object `logprobs` for tokens whose first begins at character `offset` of the answer; moves `offset` behind them.
fn logprobs(tokens: &[TokenInfo], offset: &mut usize) -> Value {
    let mut offsets = Vec::new();
    for token in tokens {
        offsets.push(*offset);
        *offset += token.text.chars().count();
    }
    let top = |token: &TokenInfo| {
        let entries = token.top.iter().map(|(text, logprob)| (text.clone(), json!(finite(*logprob))));
        Value::Object(entries.collect::<Map<_, _>>())
    };
    json!({
        "tokens": tokens.iter().map(|token| token.text.as_str()).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|token| finite(token.logprob)).collect::<Vec<_>>(),
        "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}

async fn whole(
    head: Head,
    mut answers: Answers,
    choices: usize,
    with_logprobs: bool,
    echo: &str,
) -> Result<Response<Body>, ApiError> {
    let mut texts = vec![(echo.to_owned(), Vec::new(), None); choices];
    while let Some(piece) = answers.next().await {
        let piece = piece?;
        let (text, tokens, finish) = &mut texts[piece.choice as usize];
        *text += &piece.text();
        tokens.extend(piece.token);
        *finish = finish.or(piece.finish);
    }
    let choices: Vec<Value> = texts
        .iter()
        .enumerate()
        .map(|(at, (text, tokens, finish))| {
            let logprobs = if with_logprobs { logprobs(tokens, &mut 0) } else { Value::Null };
            choice(at, text, &logprobs, finish.map(finish_name))
        })
        .collect();
    let mut body = head.body(&choices);
    body["usage"] = json!(UsageBody::from(answers.usage()));
    Ok(reply::json(StatusCode::OK, &body))
}

struct TextChunks {
    head: Head,
    answers: Answers,
    streaming: Streaming,
    /// Of each answer, where its next token begins; none if log-probabilities are not asked for.
    logprobs: Option<Vec<usize>>,
    /// What goes before each answer, until it has gone.
    echo: Vec<String>,
    usage_is_due: bool,
}

impl TextChunks {
    fn chunk(&self, events: &mut Frames, choices: &[Value], usage: bool) {
        let mut chunk = self.head.body(choices);
        if usage || self.streaming.continuous {
            chunk["usage"] = json!(UsageBody::from(self.answers.usage()));
        }
        events.data(&chunk);
    }
}

impl EventSource for TextChunks {
    async fn next(&mut self, events: &mut Frames) -> bool {
        match self.answers.next().await {
            Some(Ok(piece)) => {
                let at = piece.choice as usize;
                let text = std::mem::take(&mut self.echo[at]) + &piece.text();
                let logprobs = match (&mut self.logprobs, &piece.token) {
                    (Some(offsets), Some(token)) => logprobs(std::slice::from_ref(token), &mut offsets[at]),
                    _ => Value::Null,
                };
                self.chunk(events, &[choice(at, &text, &logprobs, piece.finish.map(finish_name))], false);
                true
            }
            Some(Err(error)) => {
                events.error(&error);
                false
            }
            None => {
                if std::mem::take(&mut self.usage_is_due) {
                    self.chunk(events, &[], true);
                }
                events.done();
                false
            }
        }
    }

    fn still_here(&mut self, events: &mut Frames) {
        self.chunk(events, &[choice(0, "", &Value::Null, None)], false);
    }
}
