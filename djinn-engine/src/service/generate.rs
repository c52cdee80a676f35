//! One conversation at a time: a session of the service, driven until its turn ends.

use super::{Generated, Happening, Opening, Progress, Request, Service, Stats};
use crate::{Error, Finish, Result, Turn};
use djinn_device::Ops;
use djinn_scheduler::{SessionEvent, SessionId};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Generates one turn at a time, on any device.
pub trait Generate {
    /// Generates after `request.prompt`, as the next turn of `session`, or of a new session that is stored there. A
    /// session with other tokens than the prompt's is [rolled back](Service::rollback) to their common beginning.
    /// `on_progress` gets every token and, in advance, every prefill chunk, and may cancel. Events of other sessions
    /// are dropped.
    ///
    /// # Errors
    /// As [`Service::open`] and [`Service::turn`], [`Error::ContextFull`], [`Error::Logits`], or a failure of the
    /// device. If the session is gone, `session` becomes `None`.
    fn generate(
        &mut self,
        session: &mut Option<SessionId>,
        request: &Request,
        on_progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Generated>;
}

impl<D: Ops> Generate for Service<D> {
    fn generate(
        &mut self,
        session: &mut Option<SessionId>,
        request: &Request,
        on_progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Generated> {
        let generated = self.generate_turn(session, request, on_progress);
        let ended = self.end_steps(*session);
        let generated = generated?;
        ended.map(|()| generated)
    }
}

impl<D: Ops> Service<D> {
    fn generate_turn(
        &mut self,
        session: &mut Option<SessionId>,
        request: &Request,
        on_progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Generated> {
        let start = Instant::now();
        let mut generated = Generated { tokens: Vec::new(), finish: Finish::Length, stats: Stats::default() };
        if request.max_tokens == 0 {
            request.sampling.check()?;
            return Ok(generated);
        }
        let Generated { tokens, finish, stats } = &mut generated;
        let id;
        (id, stats.reused_tokens) = self.begin(session, request)?;
        let total = request.prompt.len() - stats.reused_tokens;
        self.batcher.take_streamed();
        // The latest announced prefill chunk.
        let mut announced = None;
        loop {
            let done = self.held(id).saturating_sub(stats.reused_tokens);
            if done < total && announced != Some(done) {
                announced = Some(done);
                stats.prompt_tokens = done;
                stats.prefill_streamed.add(&self.batcher.take_streamed());
                if on_progress(Progress::Prefill { done, total }).is_break() {
                    *finish = Finish::Cancelled;
                    self.end_turn(id)?;
                    return Ok(generated);
                }
            }
            let began = Instant::now();
            let (token, ended) = match self.await_happening(id)? {
                None => continue,
                Some(Happening::Token { token, finish, .. }) => (token, finish),
                Some(Happening::Paused(_)) => {
                    self.end_turn(id)?;
                    return Err(Error::Option(
                        "no debugger lets this turn go on; clear the session's breakpoints",
                    ));
                }
                Some(gone) => {
                    *session = None;
                    return Err(gone.into_error(id));
                }
            };
            let streamed = self.batcher.take_streamed();
            if tokens.is_empty() {
                (stats.ttft, stats.prompt_tokens) = (start.elapsed(), total);
                stats.prefill_streamed.add(&streamed);
            } else {
                stats.decode += began.elapsed();
                stats.decode_passes += 1;
                stats.decode_streamed.add(&streamed);
            }
            tokens.push(token);
            let more = on_progress(Progress::Token(token));
            if more.is_break() && ended.is_none() {
                self.end_turn(id)?;
            }
            let cancelled = more.is_break().then_some(Finish::Cancelled);
            if let Some(why) = cancelled.or(ended) {
                *finish = why;
                return Ok(generated);
            }
        }
    }

    /// Gives the session its next turn, or opens it. Returns how many tokens need not be computed.
    fn begin(&mut self, session: &mut Option<SessionId>, request: &Request) -> Result<(SessionId, usize)> {
        let Request { prompt, max_tokens, sampling, stop_tokens } = request;
        let (tokens, context) = (prompt.len() as u64, self.batcher.engine().context());
        if tokens > context {
            return Err(Error::ContextFull { tokens, context });
        }
        let turn = Turn {
            tokens: prompt.clone(),
            // Nothing is computed after the last token, so it needs no room.
            max_tokens: (*max_tokens as u64).min(context - tokens + 1),
            sampling: sampling.clone(),
            stop_tokens: stop_tokens.clone(),
            ..Turn::default()
        };
        match session.filter(|&id| self.batcher.tokens(id).is_some()) {
            Some(id) => Ok((id, self.prompt(id, turn)? as usize)),
            None => {
                let id = self.open(Opening { turn, ..Opening::default() })?;
                *session = Some(id);
                Ok((id, 0))
            }
        }
    }

    /// Ends the turn of a session that is in no step, or in one that will not count.
    ///
    /// # Errors
    /// An unknown session.
    pub fn end_turn(&mut self, id: SessionId) -> Result<()> {
        self.event(id, SessionEvent::EndTurn)?;
        // The caller knows already.
        self.ended.remove(&id);
        Ok(())
    }

    /// Number of a session's tokens with keys and values.
    fn held(&self, id: SessionId) -> usize {
        self.state().session(id).map_or(0, |session| session.context as usize)
    }

    /// Continues until a step has ended. Returns what happened to the session in it.
    fn await_happening(&mut self, id: SessionId) -> Result<Option<Happening>> {
        let before = self.held(id);
        loop {
            let own = self.go_on()?.into_iter().find(|(session, _)| *session == id);
            if own.is_some() || self.held(id) != before {
                return Ok(own.map(|(_, happening)| happening));
            }
        }
    }

    /// Does one part of the possible work, or waits for work under way. Returns what happened to which session.
    ///
    /// # Errors
    /// As [`advance`](Self::advance), or [`Error::Stopped`] if nothing can happen without a client's request.
    pub fn go_on(&mut self) -> Result<Vec<(SessionId, Happening)>> {
        match self.pump()? {
            Some(happened) => Ok(happened),
            None => self.wait().map(|()| Vec::new()),
        }
    }

    /// Waits for work under way: for a step on the device, for all else by the clock.
    fn wait(&mut self) -> Result<()> {
        /// The time between two polls of copies.
        const MOMENT: Duration = Duration::from_micros(50);
        match self.idle_for() {
            Some(Duration::ZERO) if self.state().step().is_some() => self.batcher.wait(),
            Some(time) => {
                std::thread::sleep(time.max(MOMENT));
                Ok(())
            }
            None => Err(Error::Stopped("nothing is under way that could end".to_owned())),
        }
    }
}
