//! An answer that a server computes.

use super::Remote;
use crate::{Error, Result};
use serde::Deserialize;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::time::Instant;

const PATH: &str = "/v1/generate";

/// An answer of a server, with times as this machine saw them and as the server did: their difference is the network's.
#[derive(Clone, Debug, PartialEq)]
pub struct RemoteAnswer {
    /// The prompt's tokens.
    pub prompt_tokens: Vec<u32>,
    /// What tokens were drawn with, if they were.
    pub seed: Option<u64>,
    /// The answer's tokens.
    pub tokens: Vec<u32>,
    /// Its text; `None` of a model without a tokenizer.
    pub text: Option<String>,
    /// Why it ended: `stop` or `length`.
    pub finish: String,
    /// From the request to the first token, in ms.
    pub ttft_ms: Option<f64>,
    /// Per token after the first one, in ms.
    pub tpot_ms: Option<f64>,
    /// The same at the server.
    pub server_ttft_ms: Option<f64>,
    /// The same at the server.
    pub server_tpot_ms: Option<f64>,
    /// Bytes of the request's body.
    pub sent_bytes: u64,
    /// Bytes of the answer's body.
    pub received_bytes: u64,
}

/// What the server tells first.
#[derive(Deserialize)]
struct Began {
    prompt_tokens: Vec<u32>,
    seed: Option<u64>,
}

/// What it tells at the end.
#[derive(Deserialize)]
struct Ended {
    tokens: Vec<u32>,
    has_text: bool,
    finish: String,
    ttft_ms: Option<f64>,
    tpot_ms: Option<f64>,
}

impl Remote {
    /// The answer to a request of `/v1/generate`; `on_text` gets each piece of text as it comes, and may break off: `None`
    /// then.
    ///
    /// # Errors
    /// [`Error::Refused`], also of an answer that fails in the middle; the server cannot be reached or understood.
    pub fn generate(
        &self,
        request: &Value,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Option<RemoteAnswer>> {
        let body = request.to_string();
        let asked = Instant::now();
        let answer = self.posted(PATH, body.as_bytes())?;
        let not_understood = |source| Error::NotUnderstood { url: format!("{}{PATH}", self.url), source };
        let (mut began, mut ended) = (None::<Began>, None::<Ended>);
        let (mut text, mut first, mut last, mut received) = (String::new(), None, asked, 0);
        for line in BufReader::new(answer.into_body().into_reader()).lines() {
            let line = line.map_err(|source| self.broke_off(PATH, source))?;
            received += line.len() as u64 + 1;
            let Some(data) = line.strip_prefix("data: ") else { continue };
            if data == "[DONE]" {
                break;
            }
            let event: Value = serde_json::from_str(data).map_err(not_understood)?;
            if let Some(message) = event["error"]["message"].as_str() {
                let code = event["error"]["code"].as_str().map(str::to_owned);
                return Err(Error::Refused { status: 200, code, why: format!("the server says: {message}") });
            } else if let Some(piece) = event["text"].as_str() {
                last = Instant::now();
                first.get_or_insert(last);
                text += piece;
                if on_text(piece).is_break() {
                    return Ok(None);
                }
            } else if event.get("prompt_tokens").is_some() {
                began = Some(serde_json::from_value(event).map_err(not_understood)?);
            } else if event.get("tokens").is_some() {
                ended = Some(serde_json::from_value(event).map_err(not_understood)?);
            }
        }
        let (Some(began), Some(ended)) = (began, ended) else {
            return Err(Error::BrokeOff { url: format!("{}{PATH}", self.url), source: None });
        };
        let later = ended.tokens.len().saturating_sub(1);
        let ms = |from: Instant, to: Instant| (to - from).as_secs_f64() * 1e3;
        Ok(Some(RemoteAnswer {
            prompt_tokens: began.prompt_tokens,
            seed: began.seed,
            tokens: ended.tokens,
            text: ended.has_text.then_some(text),
            finish: ended.finish,
            ttft_ms: first.map(|first| ms(asked, first)),
            tpot_ms: first.filter(|_| later > 0).map(|first| ms(first, last) / later as f64),
            server_ttft_ms: ended.ttft_ms,
            server_tpot_ms: ended.tpot_ms,
            sent_bytes: body.len() as u64,
            received_bytes: received,
        }))
    }
}
