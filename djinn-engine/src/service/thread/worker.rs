//! A service with clients: their commands and events.

use super::{Command, Listener, Prompt, Retirement};
use crate::Result;
use crate::service::{Happening, Service};
use djinn_device::Ops;
use djinn_scheduler::{SessionEvent, SessionId};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How often the thread polls a working device.
pub(super) const LOOK_EVERY: Duration = Duration::from_micros(50);

pub(super) struct Worker<D: Ops> {
    pub(super) service: Service<D>,
    listeners: BTreeMap<SessionId, Ear>,
    /// Prompts for sessions whose turn is about to end.
    postponed: Vec<Command>,
    retiring: Option<Retirement>,
}

struct Ear {
    listener: Listener,
    /// What happens to the session when its listener is gone.
    afterwards: SessionEvent,
}

impl<D: Ops> Worker<D> {
    pub(super) fn new(service: Service<D>) -> Self {
        Worker { service, listeners: BTreeMap::new(), postponed: Vec::new(), retiring: None }
    }

    /// Whether it was told to end, and either no turn is under way, not even a paused one, or its time limit is over.
    pub(super) fn is_over(&self) -> bool {
        let Some(end) = &self.retiring else { return false };
        end.until <= Instant::now() || self.service.state().sessions().all(|s| !s.has_turn())
    }

    /// Drops all sessions and frees the model. Returns why it was told to end, if it was.
    pub(super) fn end(self) -> Result<String> {
        let engine = self.service.into_engine()?;
        engine.leave();
        Ok(self.retiring.map_or_else(String::new, |end| end.why))
    }

    /// How long nothing is to be done without a command.
    pub(super) fn idle_for(&self) -> Option<Duration> {
        let wait = self.service.idle_for().map(|wait| wait.max(LOOK_EVERY));
        let left = self.retiring.as_ref().map(|end| end.until.saturating_duration_since(Instant::now()));
        [wait, left].into_iter().flatten().min()
    }

    /// Does everything that can be done now, passes the events to listeners, then calls `told_all`.
    pub(super) fn advance(&mut self, told_all: &mut dyn FnMut()) -> Result<()> {
        let happened = self.service.advance()?;
        self.tell(happened, told_all);
        for command in std::mem::take(&mut self.postponed) {
            self.obey(command);
        }
        Ok(())
    }

    /// Does the same for a model that is away: only turns end there.
    pub(super) fn advance_away(&mut self, told_all: &mut dyn FnMut()) {
        let ended = self.service.ended_turns();
        self.tell(ended, told_all);
    }

    fn tell(&mut self, happened: Vec<(SessionId, Happening)>, told_all: &mut dyn FnMut()) {
        let told = !happened.is_empty();
        for (id, happening) in happened {
            let ended =
                matches!(happening, Happening::Refused(_) | Happening::Failed(_) | Happening::Expired);
            let Some(ear) = self.listeners.get_mut(&id) else { continue };
            let gone = !(ear.listener)(happening);
            if gone {
                // It may have ended already.
                let _ = self.service.event(id, ear.afterwards);
            }
            if gone || ended {
                self.listeners.remove(&id);
            }
        }
        if told {
            told_all();
        }
    }

    pub(super) fn obey(&mut self, command: Command) {
        let command = match &self.retiring {
            Some(end) => match command.refuse(&end.why) {
                Some(other) => other,
                None => return,
            },
            None => command,
        };
        match command {
            Command::Open(opening, listener, answer) => {
                let afterwards = match opening.outlives_listener {
                    true => SessionEvent::EndTurn,
                    false => SessionEvent::Abort,
                };
                let opened = self.service.open(*opening);
                if let Ok(id) = opened {
                    self.listeners.insert(id, Ear { listener, afterwards });
                }
                answer(opened);
            }
            Command::Prompt(id, prompt, answer) if self.service.is_ending_turn(id) => {
                self.postponed.push(Command::Prompt(id, prompt, answer));
            }
            Command::Prompt(id, prompt, answer) => {
                let Prompt { turn, priority, listener } = *prompt;
                let begun = self.service.prompt(id, turn);
                if begun.is_ok() {
                    self.service.set_priority(id, priority);
                    self.listeners.insert(id, Ear { listener, afterwards: SessionEvent::EndTurn });
                }
                answer(begun);
            }
            Command::Fork(id, answer) => answer(self.service.fork(id)),
            Command::Turn(id, turn, answer) => answer(self.service.turn(id, turn)),
            Command::Rollback(id, tokens, answer) => answer(self.service.rollback(id, tokens)),
            Command::Signal(id, signal, answer) => answer(Ok(self.service.signal(id, signal))),
            Command::Event(id, event, answer) => {
                if event == SessionEvent::EndTurn {
                    // The event is for the session's latest turn.
                    self.postponed.retain(|later| !later.is_turn_of(id));
                }
                let done = self.service.event(id, event);
                if done.is_ok() && self.service.state().session(id).is_none_or(|s| s.is_ending()) {
                    self.listeners.remove(&id);
                }
                answer(done);
            }
            Command::Debug(work) => work(&mut self.service),
            Command::Transfer(command) => self.service.transfer(command),
            Command::Count(answer) => answer(Ok(self.service.occupancy())),
            Command::Snapshot(answer) => answer(Ok(self.service.snapshot())),
            Command::Trace(wish) => self.service.wish(wish),
            Command::Logits(asked) => self.service.asked.push(asked),
            Command::Retire(retirement) => self.retiring = Some(retirement),
            Command::Report(ids, answer) => {
                answer(Ok(ids.into_iter().map(|id| self.service.report(id)).collect()));
            }
        }
    }
}
