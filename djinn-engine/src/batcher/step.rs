//! A plan carried out: its copies and its step, from entries to the engine's batch, and from logits to tokens.

use super::conversation::Conversation;
use super::{Batcher, NewToken};
use crate::debug::{Judged, Step};
use crate::hooks::{KvAccess, ReadBack};
use crate::{BatchEntry, Choice, Result, Wanted};
use djinn_device::{Draw, Ops};
use djinn_scheduler::{Backend, Completion, Plan, ScheduledSession, SessionId, State, TurnEnd};
use djinn_vmu::Direction;
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
    parts: Vec<Part>,
    /// It was enqueued while the step before was under way, from which it takes its tokens.
    ahead: bool,
    /// A session of the step before goes on in it.
    goes_on: bool,
    /// When it was begun.
    pub(super) began: Instant,
}

impl UnderWay {
    /// Whether it counts for a session.
    pub(super) fn has(&self, id: SessionId) -> bool {
        self.parts.iter().any(|part| part.session == id && !part.dropped)
    }
}

/// A session's part of a step.
#[derive(Debug)]
struct Part {
    session: SessionId,
    /// Position of its first token, and how many there are.
    from: u64,
    tokens: u64,
    /// Whether a token is chosen after it.
    yields: bool,
    /// How the device chooses it. Otherwise the host does, from the logits.
    draw: Option<Draw>,
    /// What it does at hooks.
    debugged: Option<Step>,
    /// The session's turn ended before: it does not count.
    dropped: bool,
}

impl Part {
    /// Whether the host reads the logits after its last token.
    fn reads_logits(&self) -> bool {
        self.yields && self.draw.is_none() || self.debugged.as_ref().is_some_and(|step| step.reads_logits)
    }
}

impl<D: Ops> Backend for Batcher<D> {
    fn name(&self) -> &str {
        "engine"
    }

    fn submit(&mut self, plan: &Plan, state: &State, _: Duration) {
        self.attempt(|batcher| {
            batcher.leave_to(state);
            let foreign = batcher.pass_on(plan);
            batcher.engine.clear(&foreign)?;
            let fresh: Vec<u32> = plan.grants.iter().flat_map(|grant| grant.fresh.iter().copied()).collect();
            batcher.engine.prepare(&fresh, &plan.duplicates)?;
            batcher.swap(Direction::Out, &plan.swap_out)?;
            batcher.swap(Direction::In, &plan.swap_in)?;
            batcher.begin(plan, state)
        });
    }

    /// Where the tokens of all sessions are chosen on the device, and nothing happens at hooks.
    fn takes_next(&self, _: &Plan) -> bool {
        let stays = |part: &Part| {
            let hooks = part.debugged.is_some() || self.conversations[&part.session].record.is_some();
            !hooks && !part.reads_logits()
        };
        !self.holds_back
            && self.engine.takes_next()
            && self.under_way.iter().all(|step| step.parts.iter().all(stays))
    }

    fn next_event(&self) -> Option<Duration> {
        let busy = !self.under_way.is_empty() || self.moving > 0 || !self.copied.is_empty();
        // The caller polls until something has ended.
        (busy || self.failure.is_some()).then_some(Duration::ZERO)
    }

    fn poll(&mut self, _: Duration) -> Completion {
        let mut completion = Completion::default();
        self.attempt(|batcher| {
            batcher.see_copies()?;
            batcher.finish(&mut completion)
        });
        completion.copies = std::mem::take(&mut self.copied);
        completion.failure = self.failure.clone();
        completion
    }
}

impl<D: Ops> Batcher<D> {
    /// Works on the engine, unless it has failed; after a failure nothing is executed any more.
    fn attempt(&mut self, work: impl FnOnce(&mut Self) -> Result<()>) {
        if self.failure.is_none()
            && let Err(error) = work(self)
        {
            self.failure = Some(error.to_string());
            self.error = Some(error);
            self.under_way.clear();
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

    /// Begins the plan's step. `state` has the pages of its sessions.
    fn begin(&mut self, plan: &Plan, state: &State) -> Result<()> {
        if plan.batch.is_empty() {
            return Ok(());
        }
        let (began, chunk) = (Instant::now(), self.engine.chunk());
        let ahead = !self.under_way.is_empty();
        let before: BTreeMap<SessionId, usize> = match self.under_way.front() {
            Some(step) => step.parts.iter().enumerate().map(|(at, part)| (part.session, at)).collect(),
            None => BTreeMap::new(),
        };
        let mut chunks: Vec<Vec<Range<usize>>> = Vec::new();
        for entry in &plan.batch {
            let from = begin_of(state, entry);
            let conversation = self.conversations.get_mut(&entry.session());
            let conversation = conversation.expect("a session in a plan was opened");
            // What it did not compute was found, in whole chunks.
            conversation.computed_as_chunks(from, chunk);
            chunks.push(conversation.cut(from, entry.tokens(), chunk));
        }
        let part = |entry: &ScheduledSession| {
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
        };
        let parts: Vec<Part> = plan.batch.iter().map(part).collect();
        let mut batch: Vec<BatchEntry<'_>> = Vec::new();
        for (part, chunks) in parts.iter().zip(&chunks) {
            let tokens = &self.conversations[&part.session].tokens;
            batch.push(BatchEntry {
                pages: state.session(part.session).expect("it is in the plan").table().device(),
                from: part.from,
                // A token that is not known yet has any in its place.
                tokens: if ahead {
                    &[0]
                } else {
                    &tokens[part.from as usize..(part.from + part.tokens) as usize]
                },
                after: if ahead { before.get(&part.session).copied() } else { None },
                chunks,
                wanted: if part.reads_logits() { Wanted::Last } else { Wanted::Nothing },
                choose: part.draw,
                interventions: part.debugged.as_ref().map_or(&[], |step| &step.interventions),
            });
        }
        let caches = parts.iter().enumerate().flat_map(|(entry, part)| {
            let looks = part.debugged.as_ref().is_some_and(|step| step.looks);
            self.conversations[&part.session].cache_accesses(entry, plan.rewrites_of(part.session), looks)
        });
        let caches: Vec<KvAccess<'_>> = caches.collect();
        self.engine.begin_with(&batch, &caches)?;
        let goes_on = parts.iter().any(|part| self.latest.contains(&part.session));
        self.latest = parts.iter().map(|part| part.session).collect();
        self.under_way.push_back(UnderWay { parts, ahead, goes_on, began });
        Ok(())
    }

    /// Ends the step if the device is done with it.
    fn finish(&mut self, completion: &mut Completion) -> Result<()> {
        if self.under_way.is_empty() || !self.engine.is_done()? {
            return Ok(());
        }
        let step = self.under_way.pop_front().expect("just seen");
        let (ahead, goes_on, before) = (step.ahead, step.goes_on, self.engine.latest_span());
        let rows = step.parts.iter().map(|part| part.tokens).sum::<u64>();
        let mut ended = Vec::new();
        let (most, vocab) = (self.engine.context(), self.engine.graph().vocab as usize);
        let Batcher { engine, conversations, generated, failed, streamed, times, counts, .. } = self;
        let (began, pass) = engine.finish_with(|logits, drawn, ReadBack { captured, caches }| {
            let began = Instant::now();
            let (mut rows, mut drawn) = (logits.chunks_exact(vocab), drawn.into_iter());
            let mut captured = captured.into_iter().peekable();
            let mut caches = caches.into_iter().peekable();
            for (entry, mut part) in step.parts.into_iter().enumerate() {
                let logits = if part.reads_logits() { rows.next() } else { None };
                let drawn = part.draw.and_then(|_| drawn.next());
                if part.dropped {
                    continue;
                }
                let session = part.session;
                let conversation = conversations.get_mut(&session).expect("it is in the step");
                if let Some(debugged) = part.debugged.take() {
                    let own = std::iter::from_fn(|| captured.next_if(|read| read.entry == entry)).collect();
                    let own_caches = std::iter::from_fn(|| caches.next_if(|(of, _)| *of == entry));
                    let own_caches = own_caches.map(|(_, values)| values).collect();
                    let at = (part.from, part.tokens, part.yields);
                    let judged = conversation.judge(at, debugged, own, own_caches, logits);
                    if judged != Judged::Counts {
                        completion.stopped.push(session);
                        continue;
                    }
                }
                if !part.yields || conversation.rests() {
                    continue;
                }
                let Conversation { sampler, tokens, .. } = &mut *conversation;
                let choice = match (drawn, logits) {
                    (Some(drawn), _) => sampler.take(drawn, tokens.len() as u64),
                    (None, logits) => sampler.choose(logits.expect("the step reads them"), tokens),
                };
                match choice {
                    Ok(Choice { token, logprobs }) => {
                        let finish = conversation.push(token, most);
                        generated.push(NewToken { session, token, finish, logprobs });
                        ended.extend(finish.map(|_| (session, TurnEnd::Finish)));
                    }
                    Err(why) => {
                        conversation.end_turn();
                        failed.push((session, why));
                        ended.push((session, TurnEnd::Failed));
                    }
                }
            }
            began
        })?;
        engine.sampled(began);
        streamed.add(&pass);
        counts.tokens += rows;
        counts.streamed.add(&pass);
        if let Some(span) = engine.latest_span() {
            times.steps += 1;
            times.ahead += u64::from(ahead);
            times.busy += span.end.saturating_sub(span.start);
            times.idle +=
                before.filter(|_| goes_on).map_or(Duration::ZERO, |b| span.start.saturating_sub(b.end));
        }
        self.drop_guesses(None);
        completion.step = Some(ended);
        Ok(())
    }
}

/// The context at which a session's part of a step begins.
fn begin_of(state: &State, entry: &ScheduledSession) -> u64 {
    let session = state.session(entry.session()).expect("a session in a plan is in the state");
    session.step_begins_at(entry.tokens())
}
