//! From one answer's tokens to its text.

use super::{FinishReason, GenerateRequest, OutputForm};
use crate::model::ServedModel;
use crate::{ApiError, OutputEvent, OutputParser, ToolFormat};
use djinn_engine::{Finish, TokenLogprobs};
use djinn_models::Tokenizer;
use djinn_models::tokenizer::{StopStrings, TextStream};
use std::borrow::Cow;
use std::hash::{BuildHasher, Hasher, RandomState};

/// The parts of an answer that a token makes certain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    /// Index of the answer, from 0.
    pub choice: u32,
    /// The next text, reasoning and calls, in order; neighbours differ in kind.
    pub events: Vec<OutputEvent>,
    /// The token, if log-probabilities are requested. Its text may come later.
    pub token: Option<TokenInfo>,
    /// The ids of the tokens since the last piece, if they are requested.
    pub ids: Vec<u32>,
    /// Why the answer ended; set with the last piece.
    pub finish: Option<FinishReason>,
    /// The stop string that ended the answer, if one did; set with the last piece.
    pub stop_string: Option<String>,
}

impl Piece {
    /// Its text only.
    pub fn text(&self) -> String {
        let text = |event: &OutputEvent| match event {
            OutputEvent::Text(text) => Some(text.clone()),
            _ => None,
        };
        self.events.iter().filter_map(text).collect()
    }

    /// Drops everything after the first call that ends in this piece, if one does.
    fn cut_after_call(&mut self) -> bool {
        let end = self.events.iter().position(|event| matches!(event, OutputEvent::CallEnd { .. }));
        if let Some(end) = end {
            self.events.truncate(end + 1);
        }
        end.is_some()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty() && self.token.is_none() && self.ids.is_empty() && self.finish.is_none()
    }
}

/// A token with its log-probability and those of the best alternatives.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenInfo {
    /// What it stands for.
    pub token: SpelledToken,
    /// The natural logarithm of its probability.
    pub logprob: f32,
    /// Characters of the answer that are complete with it.
    pub characters: usize,
    /// The most probable tokens and their log-probabilities, best first.
    pub top: Vec<(SpelledToken, f32)>,
}

/// What a token stands for.
#[derive(Clone, Debug, PartialEq)]
pub struct SpelledToken {
    /// Its text. Bytes that are not valid UTF-8 are U+FFFD.
    pub text: String,
    /// Its bytes, which may be a part of a character.
    pub bytes: Vec<u8>,
}

/// Turns one answer's tokens into text.
pub(super) struct Speaking {
    choice: u32,
    tokenizer: Option<Tokenizer>,
    stream: Option<TextStream>,
    stops: StopStrings,
    parser: OutputParser,
    /// Special tokens that the parser reads, with their text.
    markers: Vec<(u32, &'static str)>,
    called: bool,
    /// Whether the answer consists of calls, so that nothing of it is text.
    is_demanded: bool,
    /// Whether the answer ends with its first call.
    one_call: bool,
    /// Tokens that end the text and do not belong to it.
    ends: Vec<u32>,
    over: bool,
    tokens: Vec<u32>,
    /// How many of the tokens pieces had, if pieces have tokens' ids.
    given: Option<usize>,
}

impl Speaking {
    pub(super) fn new(
        model: &ServedModel,
        generate: &GenerateRequest,
        choice: u32,
    ) -> Result<Self, ApiError> {
        let tokenizer = model.tokenizer().cloned();
        let stream = tokenizer.as_ref().map(|tokenizer| {
            let stream = tokenizer.stream(true);
            if generate.continues_text { stream.continuing() } else { stream }
        });
        let stops = StopStrings::new(generate.stop.iter().cloned());
        let stops = stops.map_err(|error| ApiError::of_text(&error, "stop"))?;
        if !generate.stop.is_empty() && stream.is_none() {
            return Err(ApiError::unsupported(
                "stop",
                "the model has no tokenizer, and so no text to stop at",
            ));
        }
        let mut ends = generate.stop_tokens.clone();
        if !generate.ignore_eos {
            ends.extend_from_slice(model.end_tokens());
        }
        let OutputForm { calls, reasoning, functions, one_call, short_ids } = generate.form.clone();
        let nonce = RandomState::new().build_hasher().finish();
        let mut parser = OutputParser::new(calls, reasoning, functions, nonce);
        if short_ids {
            parser = parser.short_ids();
        }
        let markers = model.markers(calls);
        let (called, over) = (false, false);
        let is_demanded = calls == Some(ToolFormat::JsonList);
        let tokens = Vec::new();
        let given = generate.token_ids.then_some(0);
        Ok(Speaking {
            choice,
            tokenizer,
            stream,
            stops,
            parser,
            markers,
            called,
            is_demanded,
            one_call,
            ends,
            over,
            tokens,
            given,
        })
    }

    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// Adds the answer's next token.
    pub(super) fn take(
        &mut self,
        token: u32,
        finish: Option<Finish>,
        logprobs: Option<&TokenLogprobs>,
    ) -> Piece {
        self.tokens.push(token);
        let mut piece = self.read(token, finish, logprobs);
        if let Some(given) = &mut self.given
            && (!piece.is_empty() || self.stream.is_none())
        {
            piece.ids = self.tokens[*given..].to_vec();
            *given = self.tokens.len();
        }
        piece
    }

    fn read(&mut self, token: u32, finish: Option<Finish>, logprobs: Option<&TokenLogprobs>) -> Piece {
        let ends = finish == Some(Finish::Stop) && self.ends.contains(&token);
        let mut piece =
            Piece { choice: self.choice, finish: finish.map(FinishReason::from), ..Piece::default() };
        if let (Some(logprobs), false) = (logprobs, ends) {
            piece.token = Some(self.info(token, logprobs));
        }
        let Some(stream) = &mut self.stream else {
            self.over = finish.is_some();
            return piece;
        };
        let mut text = String::new();
        if let Some((_, marker)) = self.markers.iter().find(|&&(id, _)| id == token) {
            text += &stream.finish();
            text += marker;
        } else if !ends {
            text += &stream.push(token).unwrap_or_default();
        }
        if finish.is_some() {
            text += &stream.finish();
        }
        if let Some(info) = &mut piece.token {
            info.characters = text.chars().count();
        }
        let scan = self.stops.push(&text);
        piece.events = self.parser.push(&scan.text);
        if scan.stopped {
            piece.finish = Some(FinishReason::Stop);
            piece.stop_string = self.stops.met().map(str::to_owned);
        } else if finish.is_some() {
            let withheld = self.stops.finish();
            piece.events.extend(self.parser.push(&withheld));
        }
        self.over = piece.finish.is_some();
        if self.over {
            piece.events.extend(self.parser.finish());
        }
        if self.is_demanded {
            // The beginning of a call that was cut off.
            piece.events.retain(|event| !matches!(event, OutputEvent::Text(_)));
        }
        if self.one_call && piece.cut_after_call() {
            (piece.finish, self.over) = (Some(FinishReason::Stop), true);
        }
        self.called |= piece.events.iter().any(|event| matches!(event, OutputEvent::CallStart { .. }));
        if self.called && piece.finish == Some(FinishReason::Stop) {
            piece.finish = Some(FinishReason::ToolCalls);
        }
        piece
    }

    fn info(&self, token: u32, logprobs: &TokenLogprobs) -> TokenInfo {
        let spelled = |token| spelled(self.tokenizer.as_ref(), token);
        let top = logprobs.top.iter().map(|&(token, logprob)| (spelled(token), logprob)).collect();
        TokenInfo { token: spelled(token), logprob: logprobs.chosen, characters: 0, top }
    }
}

/// A token's text and bytes. A special token has those of its name.
fn spelled(tokenizer: Option<&Tokenizer>, token: u32) -> SpelledToken {
    let Some(tokenizer) = tokenizer else {
        let text = format!("token_id:{token}");
        return SpelledToken { bytes: text.clone().into_bytes(), text };
    };
    let mut stream = tokenizer.stream(false).continuing();
    let mut text = stream.push(token).unwrap_or_default();
    text += &stream.finish();
    let bytes = tokenizer.token_bytes(token).map_or_else(|| text.clone().into_bytes(), Cow::into_owned);
    SpelledToken { text, bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_is_all_that_is_left() {
        let start = |index| OutputEvent::CallStart { index, id: String::new(), name: "f".to_owned() };
        let arguments = |index| OutputEvent::CallArguments { index, piece: "{}".to_owned() };
        let end = |index| OutputEvent::CallEnd { index };
        let first = vec![OutputEvent::Text("So: ".to_owned()), start(0), arguments(0)];
        let mut piece = Piece { events: first.clone(), ..Piece::default() };
        assert!(!piece.cut_after_call());
        assert_eq!(piece.events, first);
        piece.events.extend([end(0), OutputEvent::Text(" and".to_owned()), start(1), arguments(1), end(1)]);
        assert!(piece.cut_after_call());
        assert_eq!(piece.events, [first, vec![end(0)]].concat());
    }
}
