//! Generation: prefill in pieces, then one token at a time.

use crate::trace::{HostSpan, lap};
use crate::{Engine, Entry, Error, Result, Sampler, Sampling, Wanted};
use djinn_device::Ops;
use djinn_vmu::{PassStats, Sequence};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// One conversation: its KV pages and the tokens that they stand for.
#[derive(Debug, Default)]
pub struct Session {
    pub(crate) sequence: Sequence,
    pub(crate) tokens: Vec<u32>,
}

/// What to generate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// The whole conversation so far. What the session already holds of it is not computed again.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens that end the text; the one that was met is the last of the result.
    pub stop_tokens: Vec<u32>,
}

/// Why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A stop token came up.
    Stop,
    /// `max_tokens`, or the end of the context.
    Length,
    /// The receiver of the progress asked for no more.
    Cancelled,
}

/// How far a generation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A piece of the prompt comes next: of the `total` tokens to compute, `done` are computed.
    Prefill {
        /// Computed tokens.
        done: usize,
        /// Tokens to compute.
        total: usize,
    },
    /// A token was chosen.
    Token(u32),
}

/// Times and bytes of a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Tokens that were prefilled.
    pub prompt_tokens: usize,
    /// Prompt tokens whose KV the session already held.
    pub reused_tokens: usize,
    /// From the request to the first token.
    pub ttft: Duration,
    /// Decode passes: one for each token after the first.
    pub decode_passes: usize,
    /// Time of all decode passes.
    pub decode: Duration,
    /// Streaming during prefill.
    pub prefill_streamed: PassStats,
    /// Streaming during decode.
    pub decode_streamed: PassStats,
}

impl Stats {
    /// Mean time per token after the first.
    pub fn time_per_token(&self) -> Option<Duration> {
        (self.decode_passes > 0).then(|| self.decode / self.decode_passes as u32)
    }
}

/// The result of a generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// New tokens, a stop token included.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
    /// Times and bytes.
    pub stats: Stats,
}

impl<D: Ops> Engine<D> {
    /// Generates after `request.prompt`; `on_progress` gets every token as it is chosen, is told of every piece of the
    /// prompt before it is computed, and may end the work. The tokens depend on nothing but the model and the request.
    ///
    /// # Errors
    /// As [`step`](Engine::step), [`Sampling::check`] and [`greedy`](crate::greedy); the session then holds what was
    /// computed before, as it does when the work was ended.
    pub fn generate(
        &mut self,
        session: &mut Session,
        request: &Request,
        on_progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Generated> {
        let start = Instant::now();
        let mut stats = Stats::default();
        let mut sampler = Sampler::new(request.sampling)?;
        let mut generated = Vec::new();
        if request.max_tokens == 0 {
            return Ok(Generated { tokens: generated, finish: Finish::Length, stats });
        }
        let prefilled = self.prefill(session, &request.prompt, &mut stats, on_progress)?;
        let Some(mut logits) = prefilled else {
            return Ok(Generated { tokens: generated, finish: Finish::Cancelled, stats });
        };
        loop {
            let began = Instant::now();
            let token = sampler.choose(&logits, &session.tokens)?;
            lap(&mut self.trace, HostSpan::Sample, began);
            if generated.is_empty() {
                stats.ttft = start.elapsed();
            }
            generated.push(token);
            let finish = if on_progress(Progress::Token(token)).is_break() {
                Some(Finish::Cancelled)
            } else if request.stop_tokens.contains(&token) {
                Some(Finish::Stop)
            } else if generated.len() == request.max_tokens || session.sequence.tokens() == self.context() {
                Some(Finish::Length)
            } else {
                None
            };
            if let Some(finish) = finish {
                return Ok(Generated { tokens: generated, finish, stats });
            }
            let began = Instant::now();
            let (next, pass) = self.advance(session, &[token], Wanted::Last)?;
            logits = next;
            stats.decode += began.elapsed();
            stats.decode_passes += 1;
            stats.decode_streamed.add(&pass);
        }
    }

    /// Chooses the token after `request.prompt` and gives the logits that it was chosen from, f32 `[vocab]`.
    ///
    /// # Errors
    /// As [`generate`](Engine::generate).
    pub fn next_token(&mut self, session: &mut Session, request: &Request) -> Result<(u32, Vec<f32>)> {
        let mut sampler = Sampler::new(request.sampling)?;
        let go_on = &mut |_| ControlFlow::Continue(());
        let logits = self.prefill(session, &request.prompt, &mut Stats::default(), go_on)?;
        let logits = logits.expect("the callback does not end the work");
        Ok((sampler.choose(&logits, &session.tokens)?, logits))
    }

    /// Runs the largest prompt step, and decode steps of one row until one is replayed, on a sequence of zeros
    /// that is dropped: what devices load, choose and capture at first use is then done.
    ///
    /// # Errors
    /// As [`step`](Engine::step).
    pub fn warm_up(&mut self) -> Result<()> {
        /// Passes until one is replayed: each of two kinds is enqueued, captured and replayed.
        const DECODES: u64 = 5;
        let mut session = Session::default();
        let rows = u64::from(self.chunk());
        let decodes = if self.device().info().captures { DECODES } else { 1 };
        let prompt = rows.min(self.context().saturating_sub(decodes)).max(1);
        let before = self.replayed_passes();
        let outcome = (|| {
            self.advance(&mut session, &vec![0; prompt as usize], Wanted::Last)?;
            for _ in 0..decodes {
                if session.sequence.tokens() == self.context() || self.replayed_passes() > before {
                    break;
                }
                self.advance(&mut session, &[0], Wanted::Last)?;
            }
            Ok(())
        })();
        self.close(session);
        outcome
    }

    /// Ends a session and gives its pages back.
    pub fn close(&mut self, session: Session) {
        self.release(session.sequence);
    }

    /// Brings the session to the end of `prompt` and gives the logits there; none if `on_progress` ended the work.
    fn prefill(
        &mut self,
        session: &mut Session,
        prompt: &[u32],
        stats: &mut Stats,
        on_progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Option<Vec<f32>>> {
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if prompt.len() as u64 > self.context() {
            return Err(Error::ContextFull { tokens: prompt.len() as u64, context: self.context() });
        }
        // The last token is always run: its logits are wanted.
        let same = session.tokens.iter().zip(&prompt[..prompt.len() - 1]).take_while(|(a, b)| a == b).count();
        let same = same.min(session.sequence.tokens() as usize);
        self.truncate(&mut session.sequence, same as u64);
        session.tokens.truncate(same);
        stats.reused_tokens = same;
        let total = prompt.len() - same;
        let pieces = prompt[same..].chunks(self.chunk() as usize);
        let last = pieces.len() - 1;
        let mut logits = Vec::new();
        for (i, piece) in pieces.enumerate() {
            if on_progress(Progress::Prefill { done: stats.prompt_tokens, total }).is_break() {
                return Ok(None);
            }
            let wanted = if i == last { Wanted::Last } else { Wanted::Nothing };
            let (found, pass) = self.advance(session, piece, wanted)?;
            logits = found;
            stats.prompt_tokens += piece.len();
            stats.prefill_streamed.add(&pass);
        }
        Ok(Some(logits))
    }

    fn advance(
        &mut self,
        session: &mut Session,
        tokens: &[u32],
        wanted: Wanted,
    ) -> Result<(Vec<f32>, PassStats)> {
        self.recompute(session)?;
        let result = self.step(&mut [Entry::new(&mut session.sequence, tokens, wanted)])?;
        session.tokens.extend_from_slice(tokens);
        self.park_if_due(session)?;
        Ok(result)
    }
}
