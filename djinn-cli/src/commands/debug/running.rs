//! Runs sessions until they stop or end, and prints what they generate.

use super::Debug;
use crate::output;
use anyhow::{Context, Result, bail, ensure};
use djinn_engine::debug::{AtTtl, Breakpoint, BreakpointId, DebugSetup, Filter, PausedAt};
use djinn_engine::{Finish, Happening, Opening, SessionId, Turn};
use djinn_host::Speaker;
use djinn_srg::Hook;

/// The session that `run` begins.
pub(super) const MAIN: &str = "main";

/// A session under its name.
pub(super) struct Session {
    pub(super) name: String,
    pub(super) id: SessionId,
    /// Numbers of breakpoints, and the engine's ids.
    pub(super) armed: Vec<(u64, BreakpointId)>,
    /// Why it ended, if it has.
    pub(super) ended: Option<Finish>,
    /// The position of the shown one of the stopped tokens.
    pub(super) shown: u64,
}

/// A breakpoint that stops once, at any of the hook's tokens from a position on.
fn once(hook: Hook, from: u64) -> Breakpoint {
    let filter = Filter { positions: from..u64::MAX, ..Filter::default() };
    Breakpoint {
        hook,
        filter,
        condition: None,
        pause: true,
        capture: false,
        hits: Some(1),
        ttl: None,
        at_ttl: AtTtl::Resume,
    }
}

impl Debug<'_> {
    pub(super) fn session(&self) -> Result<&Session> {
        self.sessions.get(self.current).context("nothing runs yet; `run` begins")
    }

    /// Where the session is stopped.
    pub(super) fn stopped(&self) -> Result<PausedAt> {
        let Session { id, name, ended, .. } = self.session()?;
        match (self.engine.paused_at(*id), ended) {
            (Some(at), _) => Ok(at),
            (None, Some(_)) => bail!("{name} has ended; `run` begins anew"),
            (None, None) => bail!("{name} is not stopped"),
        }
    }

    /// Begins the main session, replacing an earlier one.
    pub(super) fn start(&mut self) -> Result<()> {
        let prompt = self.request.prompt.clone();
        let room = self.engine.context() - prompt.len() as u64 + 1;
        let turn = Turn {
            max_tokens: (self.request.max_tokens as u64).min(room),
            tokens: prompt,
            sampling: self.request.sampling.clone(),
            stop_tokens: self.request.stop_tokens.clone(),
            ..Turn::default()
        };
        let breakpoints = self.breakpoints.iter().map(|armed| armed.breakpoint.clone()).collect();
        let debug = DebugSetup { breakpoints, steering: self.steerings() };
        let id = self.engine.open(Opening { turn, debug, ..Opening::default() })?;
        let armed = self.breakpoints.iter().zip(1..).map(|(armed, id)| (armed.number, BreakpointId(id)));
        let armed = armed.collect();
        let main = Session { name: MAIN.to_owned(), id, armed, ended: None, shown: 0 };
        self.current = match self.sessions.iter().position(|session| session.name == MAIN) {
            None => {
                self.sessions.push(main);
                self.sessions.len() - 1
            }
            Some(place) => {
                let before = std::mem::replace(&mut self.sessions[place], main);
                self.engine.close(Some(before.id))?;
                place
            }
        };
        self.wait_for_stop(None)
    }

    /// Continues, up to a later hook of the same tokens if one is given.
    pub(super) fn go_on(&mut self, until: Option<Hook>) -> Result<()> {
        self.stopped()?;
        let Session { id, shown, .. } = *self.session()?;
        let shown = until.is_some().then_some(shown);
        self.engine.resume_until(id, until)?;
        self.wait_for_stop(shown)
    }

    /// Continues to the output of the next block; after the last one, to that of the first for the next token.
    pub(super) fn step(&mut self) -> Result<()> {
        let at = self.stopped()?;
        let here = self.hook(&at.hook)?;
        match self.blocks.iter().find(|block| block.after > here.after).cloned() {
            Some(block) => self.go_on(Some(block)),
            None => {
                let first = self.blocks.first().context("the model has no blocks")?.clone();
                self.go_on_once(first, at.positions.end)
            }
        }
    }

    /// Continues to the same hook of the next token.
    pub(super) fn next(&mut self) -> Result<()> {
        let at = self.stopped()?;
        let here = self.hook(&at.hook)?;
        let shown = self.session()?.shown;
        if shown + 1 < at.positions.end && !self.is_of_logits(&here) {
            // A chunk of a prompt is stopped as a whole.
            self.sessions[self.current].shown = shown + 1;
            return self.show_stop(&at);
        }
        self.go_on_once(here, at.positions.end)
    }

    fn go_on_once(&mut self, hook: Hook, from: u64) -> Result<()> {
        let id = self.session()?.id;
        let there = self.engine.set_breakpoint(id, once(hook, from))?;
        let gone = self.go_on(None);
        // The session may have failed, and its breakpoints with it.
        let _ = self.engine.clear_breakpoint(id, there);
        gone
    }

    /// Continues to the end, ignoring all breakpoints.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.stopped()?;
        let id = self.session()?.id;
        for (_, armed) in std::mem::take(&mut self.sessions[self.current].armed) {
            self.engine.clear_breakpoint(id, armed)?;
        }
        self.go_on(None)
    }

    /// Prints what the session generates until it stops, then where. Shows the position `shown`, if that is among the
    /// tokens.
    fn wait_for_stop(&mut self, shown: Option<u64>) -> Result<()> {
        let id = self.session()?.id;
        let mut speaker = Speaker::new(&self.speech, self.stops)?;
        for token in self.generated(id)? {
            speaker.push(token);
        }
        let before = self.engine.tokens(id)?.0.len();
        let waited = self.wait(id, &mut speaker);
        if !matches!(waited, Ok(None)) {
            output::piece(&speaker.finish())?;
        }
        if self.engine.tokens(id).is_ok_and(|(tokens, _)| tokens.len() > before) {
            output::piece("\n")?;
        }
        match waited? {
            Some(finish) => {
                let session = &mut self.sessions[self.current];
                session.ended = Some(finish);
                let name = session.name.clone();
                self.say_end(&name, id, finish)
            }
            None => {
                let at = self.stopped()?;
                let met = at.hit.last().copied().unwrap_or(at.positions.end - 1);
                self.sessions[self.current].shown =
                    shown.filter(|at_position| at.positions.contains(at_position)).unwrap_or(met);
                self.show_stop(&at)
            }
        }
    }

    /// Waits until a session stops or ends. Returns why it ended, if it did. Ctrl-C stops it at its next token.
    fn wait(&mut self, id: SessionId, speaker: &mut Speaker) -> Result<Option<Finish>> {
        let _work = self.interrupt.work();
        let mut interrupted = None;
        let ended = loop {
            if self.interrupt.asked() && interrupted.is_none() {
                let first = self.points.first().context("the model has no hooks")?.hook.clone();
                interrupted = Some(self.engine.set_breakpoint(id, once(first, 0))?);
            }
            let happened = self.engine.go_on()?;
            let own = happened.into_iter().filter(|(session, _)| *session == id);
            match self.hear_of(id, own.map(|(_, happening)| happening).collect(), speaker)? {
                Some(finish) => break Some(finish),
                None if self.engine.paused_at(id).is_some() => break None,
                None => {}
            }
        };
        if let Some(interrupted) = interrupted {
            self.engine.clear_breakpoint(id, interrupted)?;
        }
        Ok(ended)
    }

    /// Handles a session's event. Returns why it ended, if it did.
    fn hear_of(
        &mut self,
        id: SessionId,
        happened: Vec<Happening>,
        speaker: &mut Speaker,
    ) -> Result<Option<Finish>> {
        for happening in happened {
            let (token, finish) = match happening {
                Happening::Token { token, finish, .. } => (token, finish),
                Happening::Paused(_) | Happening::TurnEnded => continue,
                gone => {
                    self.forget(id);
                    bail!("the session is gone: {}", super::show::reason(&gone));
                }
            };
            if !self.request.stop_tokens.contains(&token) {
                output::piece(&speaker.push(token))?;
            }
            if speaker.is_stopped() && finish.is_none() {
                self.engine.end_turn(id)?;
            }
            let stopped = speaker.is_stopped().then_some(Finish::Stop);
            if let Some(finish) = stopped.or(finish) {
                return Ok(Some(finish));
            }
        }
        Ok(None)
    }

    /// Forgets a session that the engine has lost.
    fn forget(&mut self, id: SessionId) {
        self.sessions.retain(|session| session.id != id);
        self.current = 0;
    }

    /// The tokens that a session has generated, without one that ends the text.
    pub(super) fn generated(&self, id: SessionId) -> Result<Vec<u32>> {
        let (tokens, by_model) = self.engine.tokens(id)?;
        let generated =
            by_model.into_iter().flat_map(|part| tokens[part.start as usize..part.end as usize].to_vec());
        Ok(generated.filter(|token| !self.request.stop_tokens.contains(token)).collect())
    }

    /// Shows what the session has generated.
    pub(super) fn text(&self) -> Result<()> {
        let text = self.text_of(self.session()?.id)?;
        Ok(output::piece(&(text + "\n"))?)
    }

    /// What a session has generated, up to a string that ends the text.
    pub(super) fn text_of(&self, id: SessionId) -> Result<String> {
        let mut speaker = Speaker::new(&self.speech, self.stops)?;
        let mut text = String::new();
        for token in self.generated(id)? {
            text += &speaker.push(token);
        }
        Ok(text + &speaker.finish())
    }

    /// A session by its name.
    pub(super) fn named(&self, name: &str) -> Result<usize> {
        let place = self.sessions.iter().position(|session| session.name == name);
        let names: Vec<&str> = self.sessions.iter().map(|session| &*session.name).collect();
        place.with_context(|| match names.is_empty() {
            true => "nothing runs yet; `run` begins".to_owned(),
            false => format!("there is no session {name:?}; there is {}", names.join(", ")),
        })
    }

    /// Opens a second session, stopped at the same place.
    pub(super) fn fork(&mut self, name: String) -> Result<()> {
        ensure!(
            self.sessions.iter().all(|session| session.name != name) && name != MAIN,
            "there is a session {name:?} already"
        );
        self.stopped()?;
        let Session { id: parent, shown, .. } = *self.session()?;
        let spent: Vec<_> = self
            .engine
            .breakpoints(parent)?
            .into_iter()
            .filter(|(_, breakpoint, hits)| breakpoint.hits.is_some_and(|most| *hits >= most))
            .map(|(id, ..)| id)
            .collect();
        let fresh =
            self.session()?.armed.iter().filter(|(_, id)| !spent.contains(id)).map(|(number, _)| *number);
        let fresh: Vec<u64> = fresh.collect();
        let id = self.engine.fork_paused(parent)?;
        let mut fork = Session { name, id, armed: Vec::new(), ended: None, shown };
        for number in fresh {
            let Some(armed) = self.breakpoints.iter().find(|armed| armed.number == number) else { continue };
            match self.engine.set_breakpoint(id, armed.breakpoint.clone()) {
                Ok(armed) => fork.armed.push((number, armed)),
                Err(refused) => {
                    self.engine.close(Some(id))?;
                    return Err(refused.into());
                }
            }
        }
        output::line(&format!(
            "{} is stopped where {} is; `switch {}` works with it",
            fork.name,
            self.session()?.name,
            fork.name
        ))?;
        self.sessions.push(fork);
        Ok(())
    }

    /// Works with another session.
    pub(super) fn switch(&mut self, name: &str) -> Result<()> {
        self.current = self.named(name)?;
        let Session { id, ended, .. } = *self.session()?;
        match (self.engine.paused_at(id), ended) {
            (Some(at), _) => self.show_stop(&at),
            (None, Some(finish)) => self.say_end(name, id, finish),
            (None, None) => Ok(()),
        }
    }
}
