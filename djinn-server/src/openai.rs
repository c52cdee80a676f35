//! Shared by OpenAI's APIs: sampling fields, stop strings, usage, ids of answers.

pub(crate) mod chat;
mod chunks;
pub(crate) mod completions;
mod messages;
pub(crate) mod models;
pub(crate) mod responses;
mod structure;
pub(crate) mod tokens;

use crate::body::{Fields, LONGEST_STOP, stops_fit};
use crate::model::ServedModel;
use crate::{ApiError, FinishReason, GenerateRequest, TokenUsage};
use djinn_engine::Sampling;
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};

/// The build: as long as it is the same, a seed gives the same answer. llama.cpp's begin with a `b`, too.
const FINGERPRINT: &str = concat!("b", env!("CARGO_PKG_VERSION"));
const MOST_CHOICES: u64 = 16;
const MOST_STOPS: usize = 4;
const MOST_STOP_TOKENS: usize = 64;

/// A different number at each call.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A unique id for an answer.
pub(crate) fn answer_id(prefix: &str) -> String {
    format!("{prefix}{:016x}{:016x}", random(), random())
}

/// How the response is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Streaming {
    stream: bool,
    /// Whether a last chunk has the usage.
    usage: bool,
    /// Whether every chunk has it.
    continuous: bool,
}

impl Streaming {
    fn read(fields: &Fields) -> Result<Self, ApiError> {
        let stream = fields.flag("stream")?;
        let options: Option<Map<String, Value>> = fields.read("stream_options")?;
        if options.is_some() && !stream {
            return Err(ApiError::field("stream_options", "`stream_options` needs `stream`"));
        }
        let options = options.unwrap_or_default();
        let flag = |name: &'static str| match options.get(name) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(ApiError::field(format!("stream_options.{name}"), "give true or false")),
        };
        Ok(Streaming { stream, usage: flag("include_usage")?, continuous: flag("continuous_usage_stats")? })
    }
}

/// A generation without its prompt, log-probabilities and maximum of tokens, for the tenant `salt`.
fn generate(fields: &Fields, model: &ServedModel, salt: &[u8]) -> Result<GenerateRequest, ApiError> {
    let cache_salt: Option<String> = fields.read("cache_salt")?;
    // The parts are distinguishable: the tenant's has a fixed length or is empty.
    let salt = [&[u8::from(cache_salt.is_some())], salt, cache_salt.unwrap_or_default().as_bytes()].concat();
    let stop_tokens: Vec<u32> = fields.read("stop_token_ids")?.unwrap_or_default();
    if stop_tokens.len() > MOST_STOP_TOKENS {
        let message = format!("`stop_token_ids` has more than {MOST_STOP_TOKENS} tokens");
        return Err(ApiError::field("stop_token_ids", message));
    }
    model.check_tokens(&stop_tokens, "stop_token_ids")?;
    Ok(GenerateRequest {
        choices: fields.integer("n", 1..=MOST_CHOICES)?.unwrap_or(1) as u32,
        sampling: sampling(fields, model)?,
        stop: stop(fields)?,
        stop_tokens,
        ignore_eos: fields.flag("ignore_eos")?,
        priority: fields.read("priority")?.unwrap_or(0),
        salt,
        ..GenerateRequest::default()
    })
}

/// The request's settings, else those of the model's makers, else OpenAI's defaults.
fn sampling(fields: &Fields, model: &ServedModel) -> Result<Sampling, ApiError> {
    let makers = model.defaults();
    let temperature = fields.number("temperature", 0.0..=2.0)?.or(makers.temperature).unwrap_or(1.0);
    let top_p = fields.number("top_p", 0.0..=1.0)?.or(makers.top_p).unwrap_or(1.0);
    let top_k = match fields.read::<i64>("top_k")? {
        None => makers.top_k.unwrap_or(0),
        Some(-1) => 0,
        Some(k) => u32::try_from(k)
            .map_err(|_| ApiError::field("top_k", format!("`top_k` is {k}; give -1 or more")))?,
    };
    let penalty = |name| fields.number(name, f32::MIN_POSITIVE..=10.0);
    let repetition = penalty("repetition_penalty")?.or(penalty("repeat_penalty")?);
    Ok(Sampling {
        temperature,
        top_p,
        top_k,
        min_p: fields.number("min_p", 0.0..=1.0)?.or(makers.min_p).unwrap_or(0.0),
        repetition_penalty: repetition.or(makers.repetition_penalty).unwrap_or(1.0),
        frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(0.0),
        presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?.unwrap_or(0.0),
        logit_bias: logit_bias(fields, model)?,
        // Clients also send negative ones, and those of 64 bits without a sign.
        seed: fields.read::<i128>("seed")?.map_or_else(|| random() >> 32, |seed| seed as u64),
    })
}

fn logit_bias(fields: &Fields, model: &ServedModel) -> Result<BTreeMap<u32, f32>, ApiError> {
    let name = "logit_bias";
    let Some(biases) = fields.read::<BTreeMap<String, f32>>(name)? else { return Ok(BTreeMap::new()) };
    let mut read = BTreeMap::new();
    for (token, bias) in biases {
        let id = token.parse::<u32>().ok().filter(|&id| u64::from(id) < model.vocab());
        let id =
            id.ok_or_else(|| ApiError::field(name, format!("`logit_bias`: there is no token {token:?}")))?;
        read.insert(id, bias);
    }
    Ok(read)
}

fn stop(fields: &Fields) -> Result<Vec<String>, ApiError> {
    let wrong = || {
        ApiError::field(
            "stop",
            format!("give one text or up to {MOST_STOPS}, of 1 to {LONGEST_STOP} bytes each"),
        )
    };
    let stops = match fields.get("stop") {
        None => Vec::new(),
        Some(Value::String(stop)) => vec![stop.clone()],
        Some(Value::Array(stops)) => {
            let stops = stops.iter().map(|stop| stop.as_str().map(str::to_owned));
            stops.collect::<Option<Vec<String>>>().ok_or_else(wrong)?
        }
        Some(_) => return Err(wrong()),
    };
    match stops_fit(&stops, MOST_STOPS) {
        true => Ok(stops),
        false => Err(wrong()),
    }
}

#[derive(Clone, Copy, Debug, Serialize)]
struct UsageBody {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: PromptDetails,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct PromptDetails {
    cached_tokens: u64,
}

impl From<TokenUsage> for UsageBody {
    fn from(usage: TokenUsage) -> Self {
        UsageBody {
            prompt_tokens: usage.prompt,
            completion_tokens: usage.completion,
            total_tokens: usage.prompt + usage.completion,
            prompt_tokens_details: PromptDetails { cached_tokens: usage.cached },
        }
    }
}

pub(crate) fn finish_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::ToolCalls => "tool_calls",
        FinishReason::Length => "length",
    }
}

/// JSON has no negative infinity. Tokens that the model ruled out get vLLM's number for it.
fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}
