//! Generation requests of all APIs, and their answers.

mod applied;
mod lease;
mod text;

pub use text::{Piece, SpelledToken, TokenInfo};

use crate::facts::{Generated, RequestFacts};
use crate::model::{AnswerEvent, ServedModel};
use crate::sessions::TurnResult;
use crate::steering::{HookRoom, Steered};
use crate::time_up::TimeUp;
use crate::{ApiError, OutputEvent, ReasoningMode, SessionUse, SteeringUse, ToolFormat, write_times};
use applied::Applied;
use djinn_engine::debug::DebugSetup;
use djinn_engine::{Constraint, Finish, Happening, Listener, NoToken, Opening, Origin, Sampling, Turn};
use lease::Lease;
use serde_json::Value;
use std::sync::Arc;
use std::time::Instant;
use text::Speaking;
use tokio::sync::mpsc;

/// A generation request of any API: one or more answers to each of its prompts, usually one.
#[derive(Clone, Debug, Default)]
pub struct GenerateRequest {
    /// The prompt.
    pub prompt: Vec<u32>,
    /// Further prompts. Their answers are numbered after those of earlier prompts.
    pub more_prompts: Vec<Vec<u32>>,
    /// The field of the request that has the prompt, for error messages.
    pub prompt_field: &'static str,
    /// Number of answers to each prompt, at least 1. The first has the seed of `sampling`, each further one the next
    /// seed.
    pub choices: u32,
    /// The most tokens of each answer. `None`: as many as the context has room for.
    pub max_tokens: Option<u64>,
    /// Sampling settings.
    pub sampling: Sampling,
    /// The text ends before any of these.
    pub stop: Vec<String>,
    /// Tokens that end the text, in addition to the model's own.
    pub stop_tokens: Vec<u32>,
    /// Continue after the model's own end tokens.
    pub ignore_eos: bool,
    /// Whether the prompt is a text to continue, not a rendered conversation.
    pub continues_text: bool,
    /// Return, with each token, its log-probability and those of the best 0 to 20 tokens.
    pub logprobs: Option<u8>,
    /// Return the ids of tokens ([`Piece::ids`]).
    pub token_ids: bool,
    /// What the tokens must obey.
    pub constraint: Option<Box<dyn Constraint>>,
    /// How to parse the text.
    pub form: OutputForm,
    /// Lower values go first.
    pub priority: i32,
    /// Requests with the same salt share prefixes.
    pub salt: Vec<u8>,
    /// The tenant, whose default steering applies.
    pub tenant: Vec<u8>,
    /// Steering. `None`: that of the session or the key.
    pub steering: Option<SteeringUse>,
    /// The session that the first answer continues. Other answers have sessions of their own, which end with them.
    pub session: Option<SessionUse>,
}

/// What an answer may contain besides text.
#[derive(Clone, Debug, Default)]
pub struct OutputForm {
    /// The format of calls. `None`: calls are not parsed.
    pub calls: Option<ToolFormat>,
    /// Whether reasoning precedes the answer.
    pub reasoning: ReasoningMode,
    /// The functions that may be called.
    pub functions: Vec<String>,
    /// Whether the answer ends with its first call.
    pub one_call: bool,
    /// Whether ids of calls are nine letters and digits, as Mistral's templates demand.
    pub short_ids: bool,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended it, or a stop string or token occurred.
    Stop,
    /// The same, after calls of tools.
    ToolCalls,
    /// `max_tokens`, or the end of the context.
    Length,
}

/// Tokens of a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenUsage {
    /// Tokens of the prompts, each counted once.
    pub prompt: u64,
    /// Prompt tokens with keys and values from before, for the first answer to each prompt.
    pub cached: u64,
    /// Generated tokens of all answers.
    pub completion: u64,
}

/// A running generation. Dropping it ends its turns within a step, and all its sessions but one that a client named.
pub struct Answers {
    model: Arc<ServedModel>,
    leases: Vec<Lease>,
    speaking: Vec<Speaking>,
    happenings: mpsc::UnboundedReceiver<AnswerEvent>,
    usage: TokenUsage,
    asked: Instant,
    latest: Option<Instant>,
    open: usize,
    /// Number of answers to each prompt.
    choices: usize,
    /// Whether tokens without text are reported, too.
    tells_all: bool,
    /// How often the engine had failed before.
    failures: u64,
    /// The first function that the first answer calls.
    tool: Option<String>,
    /// Reports steering and edits, if there are any.
    applied: Option<Applied>,
    facts: RequestFacts,
    time_up: TimeUp,
}

impl Answers {
    /// Opens a session for each answer. All are queued when this returns.
    ///
    /// # Errors
    /// A prompt or an option that the model refuses, a full machine, or an engine that is gone.
    pub async fn begin(model: Arc<ServedModel>, generate: GenerateRequest) -> Result<Self, ApiError> {
        let (facts, time_up) = (RequestFacts::current(), TimeUp::current());
        let field = generate.prompt_field;
        let context = model.context();
        let mut prompts = vec![&generate.prompt];
        prompts.extend(&generate.more_prompts);
        for tokens in prompts.iter().map(|prompt| prompt.len() as u64) {
            if tokens == 0 {
                return Err(ApiError::field(field, "the prompt has no tokens; give a longer one"));
            }
            if tokens > context {
                return Err(ApiError::too_long(
                    field,
                    format!(
                        "the prompt has {tokens} tokens, and the model's context is {context} tokens; shorten it"
                    ),
                ));
            }
        }
        let tokens = prompts.iter().map(|prompt| prompt.len() as u64).sum();
        let choices = generate.choices as usize;
        let open = prompts.len() * choices;
        let failures = model.failures();
        let client = model.client()?;
        model.outbox.deliver();
        let (sender, happenings) = mpsc::unbounded_channel();
        let speaking: Result<Vec<_>, _> =
            (0..open as u32).map(|choice| Speaking::new(&model, &generate, choice)).collect();
        let speaking = speaking?;
        let sessions = &model.sessions;
        let own = generate.session.as_ref().and_then(|session| sessions.steering(session));
        let named = generate.steering.as_ref().or(own.as_deref());
        let room = HookRoom { bytes: model.hook_bytes, sessions: open as u64 };
        let steered = Steered::new(&model.steering, &generate.tenant, named, "steering.vectors", room)?;
        let debugged = generate.session.as_ref().and_then(|session| sessions.debugged(session));
        if let (Some(session), Some(engine)) = (&generate.session, &debugged) {
            applied::check_free(&model, session, engine).await?;
        }
        let mut session = match generate.session.clone() {
            Some(session) if generate.choices > 0 => {
                sessions.begin(session, &generate.salt, steered.digest)?
            }
            Some(_) | None => None,
        };
        let breakpoints = session.as_ref().map(|(ticket, _)| ticket.breakpoints()).unwrap_or_default();
        let tells = steered.digest.is_some() || debugged.is_some() || !breakpoints.is_empty();
        let mut opened = Vec::new();
        let mut leases = Vec::new();
        let mut stop_tokens = generate.stop_tokens.clone();
        if !generate.ignore_eos {
            stop_tokens.extend_from_slice(model.end_tokens());
        }
        for at in 0..open {
            let prompt = prompts[at / choices];
            // Nothing is computed after the last token, so it needs no room.
            let room = context - prompt.len() as u64 + 1;
            let max_tokens = generate.max_tokens.map_or(room, |most| most.min(room));
            let mut sampling = generate.sampling.clone();
            sampling.seed = sampling.seed.wrapping_add((at % choices) as u64);
            let turn = Turn {
                tokens: prompt.clone(),
                max_tokens,
                sampling,
                stop_tokens: stop_tokens.clone(),
                constraint: generate.constraint.clone(),
                logprobs: generate.logprobs,
            };
            let (ticket, waiting) = session.take().filter(|_| at == 0).unzip();
            // A session that lives on has room for further turns.
            let limit = ticket.is_none().then_some((prompt.len() as u64 + max_tokens - 1).min(context));
            let origin = Origin::Salt(generate.salt.clone());
            let opening = Opening {
                turn,
                priority: generate.priority,
                limit,
                origin,
                outlives_listener: ticket.is_some(),
                debug: DebugSetup {
                    breakpoints: if ticket.is_some() { breakpoints.clone() } else { Vec::new() },
                    steering: steered.edits.clone(),
                },
            };
            let listener = || -> Listener {
                let (sender, outbox) = (sender.clone(), Arc::clone(&model.outbox));
                Box::new(move |happening| outbox.put(&sender, at, happening))
            };
            let (lease, asked) = Lease::ask(client.clone(), opening, listener, ticket, waiting.flatten());
            leases.push(lease);
            opened.push(asked);
        }
        drop(sender);
        let answers = Answers {
            leases,
            speaking,
            happenings,
            usage: TokenUsage { prompt: tokens, ..TokenUsage::default() },
            asked: Instant::now(),
            latest: None,
            open,
            choices,
            tells_all: false,
            failures,
            tool: None,
            applied: tells.then(Applied::default),
            facts,
            time_up,
            model,
        };
        for (lease, asked) in answers.leases.iter().zip(opened) {
            match lease.confirm(asked).await {
                Some(Ok(())) => {}
                Some(Err(error)) => return Err(ApiError::of_engine(&error, field)),
                None => return Err(answers.model.gone(answers.failures).await),
            }
        }
        answers.model.metrics.began(tokens);
        answers.facts.began(Generated { usage: answers.usage, ..Generated::of(&generate) });
        Ok(answers)
    }

    /// The next piece of an answer; `None` when all have ended. Dropping the future loses nothing.
    ///
    /// # Errors
    /// An answer that cannot continue. All are over then.
    pub async fn next(&mut self) -> Option<Result<Piece, ApiError>> {
        while self.open > 0 {
            if let Some((at, piece)) = match &mut self.applied {
                Some(applied) => applied.ended().await,
                None => None,
            } {
                self.end(at, &piece);
                return Some(Ok(piece));
            }
            let happened = match self.time_up.within(self.happenings.recv()).await {
                Ok(happened) => happened,
                Err(error) => return Some(Err(self.fail(error))),
            };
            let Some((at, happening, told)) = happened else {
                let gone = match self.leases.iter().any(Lease::is_deleted) {
                    true => ApiError::conflict("the session was deleted", "session_deleted"),
                    false => self.model.gone(self.failures).await,
                };
                return Some(Err(self.fail(gone)));
            };
            if self.speaking[at].is_over() {
                continue;
            }
            match happening {
                Happening::Token { token, finish, logprobs, reused } => {
                    self.count();
                    let piece = self.speaking[at].take(token, finish, logprobs.as_deref());
                    if at.is_multiple_of(self.choices)
                        && let Some(reused) = reused
                    {
                        self.usage.cached += reused;
                        self.model.metrics.reused(reused);
                    }
                    self.facts.generated(|generated| generated.usage = self.usage);
                    if at == 0 {
                        self.tool = self.tool.take().or_else(|| called(&piece));
                    }
                    if piece.finish.is_some() {
                        match &mut self.applied {
                            Some(applied) => {
                                applied.ask(at, piece, self.leases[at].session());
                                continue;
                            }
                            None => self.end(at, &piece),
                        }
                    }
                    if self.tells_all || !piece.is_empty() {
                        write_times::told(told);
                        return Some(Ok(piece));
                    }
                }
                Happening::TurnEnded => {
                    let message = "the session's turn was ended".to_owned();
                    return Some(Err(self.fail(ApiError::conflict(message, "session_state"))));
                }
                // The stream waits until the session is resumed.
                Happening::Paused(_) => {}
                Happening::Expired => {
                    let message = "the session was paused at a breakpoint for too long".to_owned();
                    return Some(Err(self.fail(ApiError::conflict(message, "session_expired"))));
                }
                Happening::Refused(why) => return Some(Err(self.fail(ApiError::of_refusal(why)))),
                Happening::Failed(NoToken::Constraint(why)) => {
                    return Some(Err(self.fail(ApiError::invalid(why.to_string()))));
                }
                // Not the model's fault: to try again would give the same.
                Happening::Failed(why @ NoToken::Logits(_)) if self.applied.is_some() => {
                    return Some(Err(self.fail(ApiError::invalid(why.to_string()))));
                }
                Happening::Failed(why) => return Some(Err(self.fail(ApiError::failed(why.to_string())))),
            }
        }
        None
    }

    /// The same with a piece for each token, even if its text is not known yet.
    pub(crate) fn telling_all(self) -> Self {
        Answers { tells_all: true, ..self }
    }

    /// Ends an answer with this piece.
    fn end(&mut self, at: usize, last: &Piece) {
        let Some(reason) = last.finish else { return };
        self.open -= 1;
        let (tool, usage) = (self.tool.clone(), self.usage);
        self.facts.generated(|generated| generated.finishes.push(reason));
        self.leases[at].end(Some(TurnResult { finish: reason, tool, usage }));
        self.model.metrics.finished(reason, self.asked.elapsed());
    }

    /// Adds `djinn` to the body of a finished answer: what steering and edits changed.
    pub(crate) fn tell_applied(&self, body: &mut Value) {
        if let Some(applied) = self.applied.as_ref().and_then(Applied::json) {
            body["djinn"] = applied;
        }
    }

    fn fail(&mut self, error: ApiError) -> ApiError {
        self.open = 0;
        self.facts.failed(&error);
        self.leases.clear();
        error
    }

    fn count(&mut self) {
        let now = Instant::now();
        self.usage.completion += 1;
        self.model.metrics.token(self.asked, self.latest, now);
        if self.latest.is_none() {
            self.facts.generated(|generated| generated.first_token = Some(now - self.asked));
        }
        self.latest = Some(now);
    }

    /// The tokens of the first answer so far, including one that ends the text.
    pub fn tokens(&self) -> &[u32] {
        self.speaking.first().map_or(&[], Speaking::tokens)
    }

    /// Tokens so far.
    pub fn usage(&self) -> TokenUsage {
        self.usage
    }

    /// The model that answers.
    pub fn model(&self) -> &Arc<ServedModel> {
        &self.model
    }
}

/// The first function that a piece of an answer begins to call.
fn called(piece: &Piece) -> Option<String> {
    piece.events.iter().find_map(|event| match event {
        OutputEvent::CallStart { name, .. } => Some(name.clone()),
        _ => None,
    })
}

impl From<Finish> for FinishReason {
    fn from(finish: Finish) -> Self {
        match finish {
            Finish::Stop | Finish::Complete => FinishReason::Stop,
            Finish::Length | Finish::Cancelled => FinishReason::Length,
        }
    }
}
