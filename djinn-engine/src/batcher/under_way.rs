//! A step between its beginning and its end: which part of it is whose, and how long the device took.

use super::Batcher;
use crate::debug::Step;
use djinn_device::{Draw, Ops};
use djinn_scheduler::{ScheduledSession, SessionId, State};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

/// How the device spent its time, by its own clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceTimes {
    /// Steps that ended.
    pub steps: u64,
    /// Those that were enqueued while the one before was under way.
    pub ahead: u64,
    /// In steps, from the copy of their inputs to the choice of their tokens.
    pub busy: Duration,
    /// Between the end of a step and the begin of the next that goes on with one of its sessions, while nothing of this
    /// one was enqueued.
    pub idle: Duration,
}

impl DeviceTimes {
    /// A step that ended, ahead of the one before or not, which ran in a span; `before`, that of a step before whose
    /// sessions go on in it.
    pub(super) fn add(
        &mut self,
        before: Option<Range<Duration>>,
        span: Option<Range<Duration>>,
        ahead: bool,
    ) {
        let Some(span) = span else { return };
        self.steps += 1;
        self.ahead += u64::from(ahead);
        self.busy += span.end.saturating_sub(span.start);
        self.idle += before.map_or(Duration::ZERO, |before| span.start.saturating_sub(before.end));
    }

    /// The share of idle time, from 0 to 1; 0 without steps.
    pub fn idle_share(&self) -> f64 {
        let all = (self.busy + self.idle).as_secs_f64();
        if all > 0.0 { self.idle.as_secs_f64() / all } else { 0.0 }
    }

    /// What was added since `before`.
    #[must_use]
    pub fn since(&self, before: &DeviceTimes) -> DeviceTimes {
        DeviceTimes {
            steps: self.steps - before.steps,
            ahead: self.ahead - before.ahead,
            busy: self.busy - before.busy,
            idle: self.idle - before.idle,
        }
    }
}

/// A step between its beginning and its end.
#[derive(Debug)]
pub(super) struct UnderWay {
    pub(super) parts: Vec<Part>,
    /// It was enqueued while the step before was under way, from which it takes its tokens.
    pub(super) ahead: bool,
    /// A session of the step before goes on in it.
    pub(super) goes_on: bool,
    /// When it was begun.
    pub(super) began: Instant,
}

impl UnderWay {
    /// The place of each session in it.
    pub(super) fn places(&self) -> BTreeMap<SessionId, usize> {
        self.parts.iter().enumerate().map(|(at, part)| (part.session, at)).collect()
    }

    /// Whether it counts for a session.
    pub(super) fn has(&self, id: SessionId) -> bool {
        self.parts.iter().any(|part| part.session == id && !part.dropped)
    }
}

/// A session's part of a step.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) session: SessionId,
    /// Position of its first token, and how many there are.
    pub(super) from: u64,
    pub(super) tokens: u64,
    /// Whether a token is chosen after it.
    pub(super) yields: bool,
    /// How the device chooses it. Otherwise the host does, from the logits.
    pub(super) draw: Option<Draw>,
    /// What it does at hooks.
    pub(super) debugged: Option<Step>,
    /// The session's turn ended before: it does not count.
    pub(super) dropped: bool,
}

impl Part {
    /// Whether the host reads the logits after its last token.
    pub(super) fn reads_logits(&self) -> bool {
        self.yields && self.draw.is_none() || self.debugged.as_ref().is_some_and(|step| step.reads_logits)
    }
}

impl<D: Ops> Batcher<D> {
    /// Whether the tokens of all sessions under way are chosen on the device, and nothing happens at hooks.
    pub(super) fn all_stays_on_the_device(&self) -> bool {
        let stays = |part: &Part| {
            let hooks = part.debugged.is_some() || self.conversations[&part.session].record.is_some();
            !hooks && !part.reads_logits()
        };
        self.under_way.iter().all(|step| step.parts.iter().all(stays))
    }

    /// Whether a session of the latest step goes on in these parts, which are of the latest from now on.
    pub(super) fn goes_on_in(&mut self, parts: &[Part]) -> bool {
        let goes_on = parts.iter().any(|part| self.latest.contains(&part.session));
        self.latest = parts.iter().map(|part| part.session).collect();
        goes_on
    }

    /// A session's part of a plan's step.
    pub(super) fn part(&self, state: &State, entry: &ScheduledSession, ahead: bool) -> Part {
        let (session, tokens) = (entry.session(), entry.tokens());
        let yields = !matches!(entry, ScheduledSession::Prefill { last: false, .. });
        let from = begin_of(state, entry);
        Part {
            session,
            from,
            tokens,
            yields,
            draw: self.conversations[&session].sampler.on_device(from + tokens).filter(|_| yields),
            debugged: if ahead { None } else { self.step_at_hooks(session, from, tokens, yields) },
            dropped: false,
        }
    }

    /// Steps that were begun on the guess that turns go on do not count for sessions whose turn is over: for all, or one.
    pub(super) fn drop_guesses(&mut self, only: Option<SessionId>) {
        let Batcher { under_way, conversations, .. } = self;
        let guesses = under_way.iter_mut().filter(|step| step.ahead).flat_map(|step| &mut step.parts);
        for part in guesses.filter(|part| only.is_none_or(|id| part.session == id)) {
            let conversation = conversations.get_mut(&part.session);
            if let Some(conversation) = conversation.filter(|conversation| conversation.rests()) {
                part.dropped = true;
                conversation.computed_until(part.from);
            }
        }
    }
}

/// The context at which a session's part of a step begins.
pub(super) fn begin_of(state: &State, entry: &ScheduledSession) -> u64 {
    let session = state.session(entry.session()).expect("a session in a plan is in the state");
    session.step_begins_at(entry.tokens())
}
