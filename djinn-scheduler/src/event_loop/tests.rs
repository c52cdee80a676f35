//! The loop over a backend that takes the next step while one is under way.

use super::{EventLoop, Pumped};
use crate::backend::{Backend, Completion};
use crate::conformance::{parts, small_machine};
use crate::plan::{CopyOutcome, Plan, ScheduledSession, TurnEnd};
use crate::policy::Lru;
use crate::scheduler::{Scheduler, SessionEvent};
use crate::session::{Arrival, SessionId};
use crate::sim::Rng;
use crate::state::State;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A session's part of a step.
#[derive(Clone, Copy, Debug)]
struct Part {
    session: SessionId,
    begin: u64,
    tokens: u64,
    yields: bool,
    /// Its turn ended before the step that takes its token from another.
    surplus: bool,
}

/// Ends a step at every third look. Turns end where only it knows.
#[derive(Debug, Default)]
struct Machine {
    takes_next: bool,
    looks: u64,
    steps: VecDeque<(bool, Vec<Part>)>,
    copies: Vec<CopyOutcome>,
    /// Tokens that a turn still generates.
    left: BTreeMap<SessionId, u64>,
    ahead: u64,
    surplus: u64,
    ended: Vec<Part>,
}

impl Machine {
    /// Steps that were begun on the guess that turns go on do not count for those whose turn is over.
    fn drop_guesses(&mut self, only: Option<SessionId>) {
        let guesses = self.steps.iter_mut().filter(|step| step.0).flat_map(|step| &mut step.1);
        for part in guesses.filter(|part| only.is_none_or(|id| part.session == id)) {
            part.surplus |= self.left.get(&part.session).is_none_or(|&left| left == 0);
        }
    }
}

impl Backend for Machine {
    fn name(&self) -> &str {
        "ahead"
    }

    fn submit(&mut self, plan: &Plan, state: &State, _: Duration) {
        let ahead = !self.steps.is_empty();
        assert!(self.steps.len() < 2, "two steps are under way");
        if ahead {
            let moves = plan.swap_out.len() + plan.swap_in.len() + plan.discard.len() + plan.refused.len();
            assert!(moves == 0 && !plan.batch.is_empty(), "pages move under a step: {plan:?}");
        }
        let part = |entry: &ScheduledSession| {
            let session = state.session(entry.session()).expect("it is in the plan");
            let (begin, tokens) = (session.step_begins_at(entry.tokens()), entry.tokens());
            let page_tokens = u64::from(state.capacity().page_tokens);
            let written = session.table().device().get((begin / page_tokens) as usize);
            let references = written.map(|&page| state.pages().references(page));
            assert_eq!(references, Some(1), "{} writes at {begin} to a page of its own", session.id);
            let last = session.table().device().len() as u64 * page_tokens;
            assert!(begin + tokens <= last, "{} has pages for {last}", session.id);
            assert!(!ahead || matches!(entry, ScheduledSession::Decode { .. }), "{entry:?}");
            let yields = !matches!(entry, ScheduledSession::Prefill { last: false, .. });
            Part { session: session.id, begin, tokens, yields, surplus: false }
        };
        let parts: Vec<Part> = plan.batch.iter().map(part).collect();
        if !parts.is_empty() {
            self.ahead += u64::from(ahead);
            self.steps.push_back((ahead, parts));
        }
        let moved = plan.swap_out.iter().chain(&plan.swap_in);
        self.copies.extend(moved.map(|copy| CopyOutcome { session: copy.session, ok: true }));
    }

    fn takes_next(&self) -> bool {
        self.takes_next
    }

    fn next_event(&self) -> Option<Duration> {
        (!self.steps.is_empty() || !self.copies.is_empty()).then_some(Duration::ZERO)
    }

    fn poll(&mut self, _: Duration) -> Completion {
        self.looks += 1;
        let copies = std::mem::take(&mut self.copies);
        let done = if self.looks.is_multiple_of(3) { self.steps.pop_front() } else { None };
        let Some((_, parts)) = done else { return Completion { copies, ..Completion::default() } };
        let mut ended = Vec::new();
        for part in &parts {
            self.surplus += u64::from(part.surplus);
            let left = self.left.entry(part.session).or_default();
            if part.surplus || !part.yields || *left == 0 {
                continue;
            }
            *left -= 1;
            if *left == 0 {
                ended.push((part.session, TurnEnd::Finish));
            }
        }
        self.ended = parts;
        self.drop_guesses(None);
        Completion { step: Some(ended), copies, ..Completion::default() }
    }
}

/// Runs sessions of three turns whose ends are not known before. Turns follow at once, some after a rollback, and some are
/// ended by their client or held for a while. Gives the steps that were ahead and the parts that did not count.
fn run(seed: u64, takes_next: bool) -> (u64, u64) {
    const SESSIONS: u64 = 9;
    let (capacity, cost) = small_machine();
    let scheduler = Scheduler::new(capacity, parts(Box::new(Lru), cost)).expect("a small machine");
    let (mut core, mut machine) = (EventLoop::new(scheduler), Machine { takes_next, ..Machine::default() });
    let mut rng = Rng::new(seed);
    let mut below = |count: u64| rng.next_u64() % count;
    let mut turns: BTreeMap<SessionId, u64> = BTreeMap::new();
    for id in (1..=SESSIONS).map(SessionId) {
        let arrival = Arrival { id, priority: 0, prompt: 20 + below(60), max_tokens: 12, limit: 200 };
        core.scheduler_mut().arrive(&arrival, Duration::ZERO).expect("room");
        machine.left.insert(id, 1 + below(12));
        turns.insert(id, 2);
    }
    for round in 0.. {
        assert!(round < 20_000, "seed {seed}: {:#?}", core.scheduler().state());
        let now = Duration::from_millis(round);
        let context = |core: &EventLoop, id| core.scheduler().state().session(id).map(|s| s.context);
        let before: BTreeMap<SessionId, u64> =
            core.scheduler().state().sessions().map(|s| (s.id, s.context)).collect();
        let pumped = core.pump(&mut machine, now).expect("it works");
        core.scheduler().state().audit();
        if let Some(Pumped::Step(..)) = pumped {
            for part in std::mem::take(&mut machine.ended) {
                let Some(found) = context(&core, part.session) else { continue };
                let expected = if part.surplus { before[&part.session] } else { part.begin + part.tokens };
                assert_eq!(found, expected, "seed {seed}: {part:?}");
                assert!(part.surplus || part.begin == before[&part.session], "seed {seed}: {part:?}");
            }
        }
        let ids: Vec<SessionId> = turns.keys().copied().collect();
        for id in ids {
            let session = core.scheduler().state().session(id).expect("it lives");
            let (waits, in_step, tokens) =
                (!session.is_ready(), session.in_step, session.context + session.prompt);
            let is_paused = session.paused_from.is_some();
            let mut event = |event| core.scheduler_mut().event(id, event, now).expect("it makes sense");
            match below(60) {
                0 if !waits => event(SessionEvent::Pause),
                1..10 if is_paused => event(SessionEvent::Resume),
                2 if !waits && turns[&id] != 1 => {
                    event(SessionEvent::EndTurn);
                    machine.left.insert(id, 0);
                    // In two steps, or in one that is no guess, it counts.
                    if in_step == 1 {
                        machine.drop_guesses(Some(id));
                    }
                }
                3..30 if waits && !is_paused && turns[&id] > 0 => {
                    let mut known = tokens;
                    if below(3) == 0 {
                        known = below(tokens + 1);
                        event(SessionEvent::Rollback { tokens: known });
                    }
                    let prompt = 1 + below(5).min(199 - known);
                    let max_tokens = (200 - known - prompt + 1).min(12);
                    event(SessionEvent::NextTurn { prompt, max_tokens });
                    machine.left.insert(id, max_tokens.min(1 + below(14)));
                    *turns.get_mut(&id).expect("it is there") -= 1;
                }
                30..32 if waits && !is_paused && turns[&id] == 0 => {
                    event(SessionEvent::End);
                    turns.remove(&id);
                }
                _ => {}
            }
        }
        if turns.is_empty() && core.next_event(&machine).is_none() {
            break;
        }
    }
    let state = core.scheduler().state();
    assert_eq!((state.sessions().count(), state.device_free()), (0, capacity.device_pages), "seed {seed}");
    (machine.ahead, machine.surplus)
}

/// Whatever clients do meanwhile, each step begins where the session is, writes to pages of its own, and counts exactly where
/// its turn had not ended; and all sessions come to their end.
#[test]
fn steps_that_follow_begin_where_those_before_end() {
    let (mut ahead, mut surplus) = (0, 0);
    for seed in 0..40 {
        assert_eq!(run(seed, false), (0, 0));
        let (more, dropped) = run(seed, true);
        (ahead, surplus) = (ahead + more, surplus + dropped);
    }
    assert!(ahead > 500 && surplus > 100, "{ahead} steps ahead and {surplus} parts dropped exercise little");
}
