//! `/v1/completions`.

use super::chunks::{Choices, Chunks, Head};
use super::{Streaming, UsageBody, finish_name, finite};
use crate::beginning::{self, EarlyEvents};
use crate::body::Fields;
use crate::fields::COMPLETIONS;
use crate::model::ServedModel;
use crate::reply::{self, Answered};
use crate::server::ApiRequest;
use crate::{Answers, ApiError, FinishReason, GenerateRequest, Piece, SpelledToken, TokenInfo};
use serde_json::{Value, json};

/// The most prompts of a request, and the most answers to all of them together.
const MOST_PROMPTS: usize = 64;
const MOST_ANSWERS: usize = 128;
/// The default maximum of tokens.
const MAX_TOKENS: u64 = 16;

pub(crate) async fn complete(request: ApiRequest) -> Answered {
    let fields = request.fields(&COMPLETIONS)?;
    let model = request.model(&fields)?;
    let streaming = Streaming::read(&fields)?;
    let (salt, hints) = (request.salt(), request.hints(&fields, &model, None)?);
    let prepared = model.work(move |model| {
        let echo = fields.flag("echo")?;
        let logprobs = fields.integer("logprobs", 0..=20)?.map(|top| top as u8);
        if echo && logprobs.is_some() {
            return Err(ApiError::unsupported(
                "logprobs",
                "`logprobs` of a prompt are not supported; drop `echo`",
            ));
        }
        let mut prompts = prompts(&fields, model)?;
        let texts: Vec<String> = prompts.iter_mut().map(|(_, text)| std::mem::take(text)).collect();
        let mut prompts = prompts.into_iter().map(|(prompt, _)| prompt);
        let generate = GenerateRequest {
            prompt: prompts.next().unwrap_or_default(),
            more_prompts: prompts.collect(),
            prompt_field: "prompt",
            max_tokens: Some(fields.integer("max_tokens", 1..=u64::MAX)?.unwrap_or(MAX_TOKENS)),
            continues_text: true,
            logprobs,
            token_ids: fields.flag("return_token_ids")?,
            ..super::generate(&fields, model, &salt)?
        };
        let choices = generate.choices as usize;
        if texts.len() * choices > MOST_ANSWERS {
            let message =
                format!("{choices} answers to each of {} prompts are more than {MOST_ANSWERS}", texts.len());
            return Err(ApiError::field("n", message));
        }
        let echo = texts.into_iter().map(|text| if echo { text } else { String::new() });
        Ok((generate, echo.flat_map(|text| vec![text; choices]).collect::<Vec<_>>()))
    });
    let (mut generate, echo) = prepared.await?;
    hints.apply(&mut generate);
    let name = request.model_name(&model);
    drop(request);
    let head = Head::new("cmpl-", name);
    let logprobs = generate.logprobs.map(|_| vec![0; echo.len()]);
    let choices = TextChoices { logprobs, echo, ids: generate.token_ids };
    match streaming.stream {
        true => {
            let chunks = move |answers| Chunks::new(head, answers, streaming, choices);
            beginning::events(model, generate, EarlyEvents::OPENAI, chunks).await
        }
        false => whole(&head, Answers::begin(model, generate).await?, choices).await,
    }
}

/// The prompts' tokens and texts, at least one.
fn prompts(fields: &Fields, model: &ServedModel) -> Result<Vec<(Vec<u32>, String)>, ApiError> {
    let given = fields.get("prompt").ok_or_else(|| ApiError::field("prompt", "`prompt` is missing"))?;
    match given {
        Value::Array(prompts)
            if prompts.first().is_some_and(|first| first.is_string() || first.is_array()) =>
        {
            if prompts.len() > MOST_PROMPTS {
                let message = format!("`prompt` has {} prompts; give up to {MOST_PROMPTS}", prompts.len());
                return Err(ApiError::field("prompt", message));
            }
            prompts.iter().map(|given| prompt(given, fields, model)).collect()
        }
        given => Ok(vec![prompt(given, fields, model)?]),
    }
}

/// A prompt's tokens and text.
fn prompt(given: &Value, fields: &Fields, model: &ServedModel) -> Result<(Vec<u32>, String), ApiError> {
    let wrong =
        || ApiError::field("prompt", "`prompt` must be a text or a list of token ids, or a list of these");
    match given {
        Value::String(text) => {
            let special = fields.read("add_special_tokens")?.unwrap_or(true);
            Ok((model.encode(text, special, "prompt")?, text.clone()))
        }
        Value::Array(ids) => {
            let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
            let ids = ids.iter().map(id).collect::<Option<Vec<u32>>>().ok_or_else(wrong)?;
            model.check_tokens(&ids, "prompt")?;
            // Only an answer that repeats the prompt has its text.
            let text = match model.tokenizer().filter(|_| ids.len() as u64 <= model.context()) {
                Some(tokenizer) if fields.flag("echo")? => {
                    tokenizer.decode(&ids, true).map_err(|e| ApiError::of_text(&e, "prompt"))?
                }
                _ => String::new(),
            };
            Ok((ids, text))
        }
        _ => Err(wrong()),
    }
}

fn choice(at: usize, text: &str, logprobs: &Value, ids: Option<&[u32]>, finish: Option<&str>) -> Value {
    let mut choice = json!({ "index": at, "text": text, "logprobs": logprobs, "finish_reason": finish });
    if let Some(ids) = ids {
        choice["token_ids"] = json!(ids);
    }
    choice
}

/// The object `logprobs` for tokens; the first begins at character `offset` of the answer, which moves behind them.
fn logprobs(tokens: &[TokenInfo], offset: &mut usize) -> Value {
    let mut offsets = Vec::new();
    for token in tokens {
        offsets.push(*offset);
        *offset += token.characters;
    }
    // With the token itself, as OpenAI's API has it: one entry more where it is not among the best.
    let top = |token: &TokenInfo| {
        let best = token.top.iter().map(|(token, logprob)| (token, *logprob));
        let entries = best.chain([(&token.token, token.logprob)]);
        Value::Object(entries.map(|(token, logprob)| (spelling(token), json!(finite(logprob)))).collect())
    };
    json!({
        "tokens": tokens.iter().map(|token| spelling(&token.token)).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|token| finite(token.logprob)).collect::<Vec<_>>(),
        "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}

/// A token's text; of one that ends within a character its bytes, so that different tokens are spelled differently.
fn spelling(token: &SpelledToken) -> String {
    if std::str::from_utf8(&token.bytes).is_ok() {
        return token.text.clone();
    }
    let byte = |&byte: &u8| match byte {
        b' '..=b'~' => char::from(byte).to_string(),
        _ => format!("\\x{byte:02x}"),
    };
    format!("bytes:{}", token.bytes.iter().map(byte).collect::<String>())
}

/// An answer under construction.
#[derive(Default)]
struct WholeText {
    text: String,
    tokens: Vec<TokenInfo>,
    ids: Vec<u32>,
    finish: Option<FinishReason>,
}

async fn whole(head: &Head, mut answers: Answers, choices: TextChoices) -> Answered {
    let with_logprobs = choices.logprobs.is_some();
    let text = |text| WholeText { text, ..WholeText::default() };
    let mut texts: Vec<WholeText> = choices.echo.into_iter().map(text).collect();
    while let Some(piece) = answers.next().await {
        let piece = piece?;
        let whole = &mut texts[piece.choice as usize];
        whole.text += &piece.text();
        whole.tokens.extend(piece.token);
        whole.ids.extend(piece.ids);
        whole.finish = whole.finish.or(piece.finish);
    }
    let entry = |(at, WholeText { text, tokens, ids, finish }): (usize, &WholeText)| {
        let logprobs = if with_logprobs { logprobs(tokens, &mut 0) } else { Value::Null };
        choice(at, text, &logprobs, choices.ids.then_some(ids), finish.map(finish_name))
    };
    let mut body = head.body(TextChoices::OBJECT, &texts.iter().enumerate().map(entry).collect::<Vec<_>>());
    body["usage"] = json!(UsageBody::from(answers.usage()));
    answers.tell_applied(&mut body);
    reply::ok(&body)
}

/// The format of a request's answers.
struct TextChoices {
    /// By answer: where its next token begins. `None` if log-probabilities are not requested.
    logprobs: Option<Vec<usize>>,
    /// By answer: the text before it, until it was sent.
    echo: Vec<String>,
    /// Whether answers have the ids of their tokens.
    ids: bool,
}

impl Choices for TextChoices {
    const OBJECT: &'static str = "text_completion";

    fn tell(&mut self, piece: &Piece) -> Vec<Value> {
        let at = piece.choice as usize;
        let text = std::mem::take(&mut self.echo[at]) + &piece.text();
        let logprobs = match (&mut self.logprobs, &piece.token) {
            (Some(offsets), Some(token)) => logprobs(std::slice::from_ref(token), &mut offsets[at]),
            _ => Value::Null,
        };
        let ids = self.ids.then_some(piece.ids.as_slice());
        vec![choice(at, &text, &logprobs, ids, piece.finish.map(finish_name))]
    }

    fn still_here(&mut self) -> Vec<Value> {
        vec![choice(0, "", &Value::Null, None, None)]
    }
}
