//! A step between its begin and its end: its sessions' parts, and the device's time.

use super::Batcher;
use super::conversation::Conversation;
use crate::debug::Step;
use crate::{NoToken, Result};
use djinn_device::Ops;
use djinn_scheduler::{ScheduledSession, SessionId, State};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

/// How the device spent its time, by its own clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceTimes {
    /// Steps that ended.
    pub steps: u64,
    /// Those that were enqueued while the previous step was under way.
    pub ahead: u64,
    /// Time in steps, from the copy of their inputs to the choice of their tokens.
    pub busy: Duration,
    /// Time between the end of a step and the begin of the next one that continues one of its turns, while nothing of
    /// the latter was enqueued.
    pub idle: Duration,
}

impl DeviceTimes {
    /// Adds a step that ran in `span`. `before` is the span of the previous step, if this one continues one of its
    /// turns.
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

    /// The idle share of the time, from 0 to 1; 0 without steps.
    pub fn idle_share(&self) -> f64 {
        let all = (self.busy + self.idle).as_secs_f64();
        if all > 0.0 { self.idle.as_secs_f64() / all } else { 0.0 }
    }

    /// The difference from an earlier value.
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
    /// Whether it was enqueued while the previous step was under way, and takes its tokens from that one.
    pub(super) ahead: bool,
    /// Whether it continues a turn of the previous step.
    pub(super) goes_on: bool,
    /// Whether its sampling settings are still to come, when the previous step has ended.
    pub(super) waits: bool,
    pub(super) began: Instant,
}

impl UnderWay {
    /// The index of each session's entry.
    pub(super) fn places(&self) -> BTreeMap<SessionId, usize> {
        self.parts.iter().enumerate().map(|(at, part)| (part.session, at)).collect()
    }

    /// Whether it counts for a session.
    pub(super) fn has(&self, id: SessionId) -> bool {
        self.parts.iter().any(|part| part.session == id && !part.dropped)
    }
}

#[derive(Debug)]
pub(super) struct Part {
    pub(super) session: SessionId,
    /// Position of its first token, and the number of tokens.
    pub(super) from: u64,
    pub(super) tokens: u64,
    /// Whether a token follows its last one.
    pub(super) yields: bool,
    /// Whether the device chooses that token. If not, no token is possible and the turn fails.
    pub(super) chooses: bool,
    /// Its work at hooks.
    pub(super) debugged: Option<Step>,
    /// Whether it does not count, because the session's turn ended before.
    pub(super) dropped: bool,
    /// Why it fails, and does not count.
    pub(super) fails: Option<NoToken>,
}

impl Part {
    /// Whether the host reads the logits after its last token.
    pub(super) fn reads_logits(&self) -> bool {
        self.debugged.as_ref().is_some_and(|step| step.reads_logits)
    }
}

impl<D: Ops> Batcher<D> {
    /// Whether no step under way does work at hooks.
    pub(super) fn all_stays_on_the_device(&self) -> bool {
        let hooks =
            |part: &Part| part.debugged.is_some() || self.conversations[&part.session].record.is_some();
        !self.under_way.iter().flat_map(|step| &step.parts).any(hooks)
    }

    /// Whether these parts continue a turn of the latest step. They become the latest step.
    pub(super) fn goes_on_in(&mut self, parts: &[Part]) -> bool {
        let goes_on = parts.iter().any(|part| self.latest.contains(&part.session));
        self.latest = parts.iter().map(|part| part.session).collect();
        goes_on
    }

    /// A session's part of a plan's step.
    pub(super) fn part(&mut self, state: &State, entry: &ScheduledSession, ahead: bool) -> Part {
        let (session, tokens) = (entry.session(), entry.tokens());
        let yields = !matches!(entry, ScheduledSession::Prefill { last: false, .. });
        let (from, vocab) = (begin_of(state, entry), self.engine.graph().vocab as usize);
        let Conversation { sampler, tokens: known, .. } =
            self.conversations.get_mut(&session).expect("it was opened");
        let waits = ahead && sampler.is_constrained();
        let chooses = yields && (waits || sampler.prepare(known, vocab));
        Part {
            session,
            from,
            tokens,
            yields,
            chooses,
            debugged: if ahead { None } else { self.step_at_hooks(session, from, tokens, chooses) },
            dropped: false,
            fails: None,
        }
    }

    /// Marks parts of steps ahead as not counting if the session's turn is over: for all sessions, or one.
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

    /// Whether the sampling settings of a step ahead depend on tokens that are not known yet.
    pub(super) fn wait_for_tokens(&self, parts: &[Part]) -> bool {
        parts.iter().any(|part| self.conversations[&part.session].sampler.is_constrained())
    }

    /// Gives the step under way its sampling settings, if it waits for them. All tokens before it are known now.
    pub(super) fn choose_later(&mut self) -> Result<()> {
        let Batcher { engine, conversations, under_way, .. } = self;
        let Some(step) = under_way.front_mut().filter(|step| step.waits) else { return Ok(()) };
        step.waits = false;
        let vocab = engine.graph().vocab as usize;
        for part in &mut step.parts {
            let conversation = conversations.get_mut(&part.session).filter(|_| !part.dropped);
            part.chooses = conversation.is_some_and(|one| one.sampler.prepare(&one.tokens, vocab));
        }
        let choice = |part: &Part| {
            let sampler = part.chooses.then(|| &conversations[&part.session].sampler)?;
            Some((sampler.draw(part.from + part.tokens), sampler.changes()))
        };
        let choices: Vec<_> = step.parts.iter().map(choice).collect();
        engine.choose_later(&choices)
    }
}

/// The position at which a session's part of a step begins.
pub(super) fn begin_of(state: &State, entry: &ScheduledSession) -> u64 {
    let session = state.session(entry.session()).expect("a session in a plan is in the state");
    session.step_begins_at(entry.tokens())
}
