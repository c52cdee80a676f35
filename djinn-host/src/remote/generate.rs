//! An answer computed by a server.

use super::{LONGEST_ANSWER, Remote};
use crate::{Error, Generation, Meter, Result};
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::ops::ControlFlow;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

const PATH: &str = "/v1/generate";
/// Bytes of an event, at most: the longest has all tokens of an answer.
const LONGEST_EVENT: u64 = 16 << 20;
/// Between two looks at whether the answer is still wanted, where nothing comes.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Events that have come and were not looked at, at most.
const EVENTS_AHEAD: usize = 64;

/// An answer of a server, with times as this machine saw them and as the server did: their difference is the network's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RemoteAnswer {
    /// The prompt's tokens.
    pub prompt_tokens: Vec<u32>,
    /// Turns of a conversation, the oldest ones, that were left out of the prompt to make room.
    pub forgotten: usize,
    /// Tokens of the prompt that were not computed, since their keys and values were there.
    pub cached_tokens: u64,
    /// What tokens were drawn with, if they were.
    pub seed: Option<u64>,
    /// The answer's tokens; none of an answer that was broken off.
    pub tokens: Vec<u32>,
    /// How many tokens came.
    pub came: u64,
    /// Their text; `None` of a model without a tokenizer.
    pub text: Option<String>,
    /// Why it ended: `stop`, `length`, or `cancelled` where it was broken off.
    pub finish: String,
    /// From the request to the first token, in ms.
    pub ttft_ms: Option<f64>,
    /// Per token after the first one, in ms.
    pub tpot_ms: Option<f64>,
    /// The same, measured by the server.
    pub server_ttft_ms: Option<f64>,
    /// The same, measured by the server.
    pub server_tpot_ms: Option<f64>,
    /// Bytes of the request's body.
    pub sent_bytes: u64,
    /// Bytes of the answer's body.
    pub received_bytes: u64,
}

impl RemoteAnswer {
    /// Whether it was broken off.
    pub fn is_cancelled(&self) -> bool {
        self.finish == CANCELLED
    }
}

const CANCELLED: &str = "cancelled";

/// What the server tells first.
#[derive(Deserialize)]
struct Began {
    prompt_tokens: Vec<u32>,
    seed: Option<u64>,
    #[serde(default)]
    forgotten: usize,
}

/// The server's last event.
#[derive(Deserialize)]
struct Ended {
    tokens: Vec<u32>,
    has_text: bool,
    finish: String,
    ttft_ms: Option<f64>,
    tpot_ms: Option<f64>,
}

/// How much of a model is loaded.
#[derive(Deserialize)]
struct Loading {
    bytes: u64,
    total_bytes: u64,
}

/// What comes of an answer.
enum Event {
    /// It waits for its model.
    Loading(Loading),
    Began(Began),
    /// A token's text, which may be empty. The first one tells how many tokens of the prompt were not computed.
    Text {
        piece: String,
        cached_tokens: Option<u64>,
        at: Instant,
    },
    Ended(Ended),
    /// Nothing, which shows that the server is still there.
    StillHere,
}

/// The body of a request of `/v1/generate` for a model, without a prompt.
pub fn generate_body(model: &str, generation: &Generation) -> Value {
    let Generation {
        max_tokens,
        greedy,
        temperature,
        top_k,
        top_p,
        min_p,
        repetition_penalty,
        seed,
        stop,
        ignore_eos,
        raw,
        system,
    } = generation;
    json!({
        "model": model,
        "raw": raw,
        "system": system,
        "max_tokens": max_tokens,
        "greedy": greedy,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
        "stop": stop,
        "ignore_eos": ignore_eos,
    })
}

impl Remote {
    /// The answer to a request of `/v1/generate`; `on_text` gets each token's text as it comes, and nothing from time to time
    /// while nothing comes, and may break off. The server then ends the answer.
    ///
    /// # Errors
    /// [`Error::Refused`], also for an answer that fails in the middle. The server cannot be reached or understood.
    pub fn generate(
        &self,
        request: &Value,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<RemoteAnswer> {
        let body = request.to_string();
        let (asked, mut first, mut last) = (Instant::now(), None, None);
        let mut answer = RemoteAnswer { sent_bytes: body.len() as u64, ..RemoteAnswer::default() };
        let (mut text, mut meter) = (String::new(), None);
        // A blocked read cannot be cancelled. At the next line (at least one every 5 s) the reader thread notices that
        // the receiver is gone, and closes the connection.
        let (told, heard) = sync_channel(EVENTS_AHEAD);
        let server = self.clone();
        let reader = std::thread::Builder::new().spawn(move || server.read_events(&body, &told));
        let reader =
            reader.map_err(|source| Error::NoAnswer { url: self.generate_url(), source: source.into() })?;
        loop {
            let more = match heard.recv_timeout(LOOK_EVERY) {
                Err(RecvTimeoutError::Timeout) | Ok(Event::StillHere) => on_text(""),
                Err(RecvTimeoutError::Disconnected) => break,
                Ok(Event::Loading(Loading { bytes, total_bytes })) => {
                    let made = || Meter::new(format!("{} loads the model", self.url), self.quiet);
                    meter.get_or_insert_with(made).set(bytes, Some(total_bytes));
                    on_text("")
                }
                Ok(Event::Began(began)) => {
                    meter = None;
                    (answer.prompt_tokens, answer.seed) = (began.prompt_tokens, began.seed);
                    answer.forgotten = began.forgotten;
                    ControlFlow::Continue(())
                }
                Ok(Event::Text { piece, cached_tokens, at }) => {
                    (first, last) = (first.or(Some(at)), Some(at));
                    answer.cached_tokens = cached_tokens.unwrap_or(answer.cached_tokens);
                    answer.came += 1;
                    text += &piece;
                    on_text(&piece)
                }
                Ok(Event::Ended(ended)) => {
                    (answer.came, answer.finish) = (ended.tokens.len() as u64, ended.finish);
                    answer.tokens = ended.tokens;
                    (answer.server_ttft_ms, answer.server_tpot_ms) = (ended.ttft_ms, ended.tpot_ms);
                    answer.text = ended.has_text.then(|| std::mem::take(&mut text));
                    ControlFlow::Continue(())
                }
            };
            if more.is_break() {
                (answer.finish, answer.text) = (CANCELLED.to_owned(), Some(text));
                break;
            }
        }
        let ms = |from: Instant, to: Instant| (to - from).as_secs_f64() * 1e3;
        let later = answer.came.saturating_sub(1);
        answer.ttft_ms = first.map(|first| ms(asked, first));
        answer.tpot_ms =
            first.zip(last).filter(|_| later > 0).map(|(first, last)| ms(first, last) / later as f64);
        if answer.is_cancelled() {
            return Ok(answer);
        }
        answer.received_bytes = match reader.join() {
            Ok(read) => read?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        match answer.finish.is_empty() {
            true => Err(Error::BrokeOff { url: self.generate_url(), source: None }),
            false => Ok(answer),
        }
    }

    fn generate_url(&self) -> String {
        format!("{}{PATH}", self.url)
    }

    /// Tells what comes of an answer, until nobody listens; the bytes that came.
    fn read_events(&self, body: &str, told: &SyncSender<Event>) -> Result<u64> {
        let answer = self.posted(PATH, body.as_bytes())?;
        let not_understood = |source| Error::NotUnderstood { url: self.generate_url(), source };
        let mut received = 0;
        let mut lines = BufReader::new(answer.into_body().into_reader().take(LONGEST_ANSWER));
        while let Some(line) = next_line(&mut lines).map_err(|source| self.broke_off(PATH, source))? {
            received += line.len() as u64 + 1;
            if line.starts_with(':') && told.send(Event::StillHere).is_err() {
                break;
            }
            let Some(data) = line.strip_prefix("data: ") else { continue };
            if data == "[DONE]" {
                break;
            }
            let mut event: Value = serde_json::from_str(data).map_err(not_understood)?;
            let event = if let Some(message) = event["error"]["message"].as_str() {
                let code = event["error"]["code"].as_str().map(str::to_owned);
                return Err(Error::Refused { status: 200, code, why: format!("the server says: {message}") });
            } else if let Some(Value::String(piece)) = event.get_mut("text").map(Value::take) {
                Event::Text { piece, cached_tokens: event["cached_tokens"].as_u64(), at: Instant::now() }
            } else if let Some(loading) = event.get_mut("loading") {
                Event::Loading(serde_json::from_value(loading.take()).map_err(not_understood)?)
            } else if event.get("prompt_tokens").is_some() {
                Event::Began(serde_json::from_value(event).map_err(not_understood)?)
            } else if event.get("tokens").is_some() {
                Event::Ended(serde_json::from_value(event).map_err(not_understood)?)
            } else {
                Event::StillHere
            };
            if told.send(event).is_err() {
                break;
            }
        }
        Ok(received)
    }
}

/// The next line without its end, within bounds: what a server sends without an end is not kept; `None` after the last.
fn next_line(lines: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    let read = lines.take(LONGEST_EVENT).read_until(b'\n', &mut line)?;
    if read as u64 == LONGEST_EVENT && !line.ends_with(b"\n") {
        let message = format!("an event has more than {LONGEST_EVENT} bytes");
        return Err(io::Error::new(ErrorKind::InvalidData, message));
    }
    while line.ends_with(b"\n") || line.ends_with(b"\r") {
        line.pop();
    }
    let line = (read > 0).then(|| String::from_utf8(line)).transpose();
    line.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_within_bounds() {
        let mut lines = &b"data: 1\r\n\nlast"[..];
        let mut next = || next_line(&mut lines).unwrap();
        assert_eq!(
            [next(), next(), next(), next()].map(|line| line.unwrap_or("-".into())),
            ["data: 1", "", "last", "-"]
        );
        assert!(next_line(&mut &b"\xff\n"[..]).is_err());
        let mut endless = BufReader::new(io::repeat(b'x'));
        assert!(next_line(&mut endless).unwrap_err().to_string().contains("16777216 bytes"));
    }
}
