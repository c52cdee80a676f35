//! A session's record: its breakpoints, changes and captures.

use super::{
    AtTtl, Breakpoint, BreakpointId, Captures, DebugSetup, Demand, KvAnswer, KvEdit, KvRange, KvWritten,
    Look, LookAnswer, Looked, PausedAt, Sizes, Steering, TokenKind,
};
use crate::Edit;
use djinn_device::DType;
use djinn_scheduler::Rewrite;
use djinn_srg::{Hook, NodeId};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

#[derive(Clone, Debug)]
pub(super) struct Armed {
    pub(super) id: BreakpointId,
    pub(super) breakpoint: Breakpoint,
    pub(super) hits: u64,
}

impl Armed {
    /// Whether all of its hits are used up.
    pub(super) fn is_spent(&self) -> bool {
        self.breakpoint.hits.is_some_and(|most| self.hits >= most)
    }
}

/// A change that a client made to a stopped session.
#[derive(Clone, Debug)]
pub(super) struct Written {
    pub(super) hook: Hook,
    pub(super) positions: Range<u64>,
    pub(super) edit: Edit,
}

/// Where a session is stopped.
#[derive(Clone, Debug)]
pub(super) struct Stop {
    pub(super) at: PausedAt,
    /// Hooks up to this one were passed.
    pub(super) after: NodeId,
    /// The values at the hook for all of the positions, if they were read and nothing was changed since.
    pub(super) values: Option<Vec<f32>>,
}

/// A later hook at which a session stops again, for the same time to live.
#[derive(Clone, Debug)]
pub(super) struct Until {
    pub(super) hook: Hook,
    pub(super) ttl: Option<Duration>,
    pub(super) at_ttl: AtTtl,
}

/// What to do with the result of a look.
pub(super) enum After {
    Answer(LookAnswer),
    /// Change keys or values, in a cache of this element type.
    Write(KvEdit, DType, KvAnswer),
}

/// A session's breakpoints, changes and captures.
#[derive(Default)]
pub(crate) struct Record {
    /// The number of tokens that were computed and counted.
    pub(super) counted: u64,
    /// Steering, each with the position from which it applies, ascending.
    pub(super) steering: Vec<(u64, Vec<Steering>)>,
    pub(super) written: Vec<Written>,
    pub(super) breakpoints: Vec<Armed>,
    pub(super) armed: u64,
    pub(super) stop: Option<Stop>,
    /// For the tokens from `counted` on: hooks up to this one were passed.
    pub(super) passed: Option<NodeId>,
    /// A later hook at which these tokens stop again.
    pub(super) until: Option<Until>,
    pub(super) looks: VecDeque<(Look, After)>,
    /// Changed keys and values, by number.
    pub(super) caches: BTreeMap<u64, KvWritten>,
    /// Changes that the scheduler was not told of yet.
    pub(super) fresh: Vec<Rewrite>,
    /// What to do after the looks: go on, perhaps to a hook.
    pub(super) then: Option<Option<Hook>>,
    pub(super) captures: Captures,
    pub(super) held_bytes: usize,
    pub(super) applied: BTreeMap<String, u64>,
    /// Pages from this position on are shared with no other session.
    pub(super) private_from: Option<u64>,
}

impl std::fmt::Debug for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Record").field("breakpoints", &self.breakpoints).field("stop", &self.stop).finish()
    }
}

impl Record {
    /// The record of a new session. `salted` says that the salt of its prefixes contains its steering.
    pub(crate) fn new(setup: DebugSetup, salted: bool) -> Self {
        let mut record = Record::after(0);
        record.set_up(setup, salted);
        record
    }

    /// Adds breakpoints, and steering from the first token on that was not computed.
    pub(crate) fn set_up(&mut self, setup: DebugSetup, salted: bool) {
        let DebugSetup { breakpoints, steering } = setup;
        if !salted {
            self.be_private();
        }
        if !steering.is_empty() {
            self.steering.retain(|(start, _)| *start < self.counted);
            self.steering.push((self.counted, steering));
        }
        for breakpoint in breakpoints {
            self.arm(breakpoint);
        }
    }

    /// The record of a session whose first `computed` tokens were computed already.
    pub(crate) fn after(computed: u64) -> Self {
        Record { counted: computed, ..Record::default() }
    }

    /// A fork's record, with this one's changes.
    pub(crate) fn fork(&self) -> Self {
        Record {
            counted: self.counted,
            steering: self.steering.clone(),
            written: self.written.clone(),
            caches: self.caches.clone(),
            private_from: Some(0),
            ..Record::default()
        }
    }

    /// The record of a fork within the same turn, stopped at the same place.
    pub(crate) fn fork_within_turn(&self) -> Self {
        let stop = self.stop.clone().map(|mut stop| {
            (stop.at.breakpoint, stop.at.since) = (None, Instant::now());
            stop
        });
        Record { passed: self.passed, stop, ..self.fork() }
    }

    /// Whether the session's keys and values depend on more than its tokens, now or when they are computed again, or
    /// it is stopped. Reads and armed breakpoints alone do not count.
    pub(crate) fn changes_something(&self) -> bool {
        let is_steered = self.steering.iter().any(|(_, steering)| !steering.is_empty());
        let is_changed = is_steered || !self.written.is_empty() || !self.caches.is_empty();
        is_changed || self.stop.is_some() || self.until.is_some()
    }

    /// Whether keys or values of the first `tokens` tokens were changed after they were computed.
    pub(crate) fn changes_cache(&self, tokens: u64) -> bool {
        self.caches.values().any(|written| written.range.positions.start < tokens)
    }

    /// The position from which on pages hold data of this session alone.
    pub(crate) fn private_from(&self) -> Option<u64> {
        self.private_from
    }

    pub(crate) fn arm(&mut self, breakpoint: Breakpoint) -> BreakpointId {
        self.armed += 1;
        let id = BreakpointId(self.armed);
        self.breakpoints.push(Armed { id, breakpoint, hits: 0 });
        self.be_private();
        id
    }

    fn be_private(&mut self) {
        self.be_private_from(self.counted);
    }

    fn be_private_from(&mut self, position: u64) {
        self.private_from = Some(self.private_from.map_or(position, |from| from.min(position)));
    }

    pub(crate) fn disarm(&mut self, id: BreakpointId) -> bool {
        let before = self.breakpoints.len();
        self.breakpoints.retain(|armed| armed.id != id);
        self.breakpoints.len() < before
    }

    pub(crate) fn breakpoints(&self) -> impl Iterator<Item = (BreakpointId, &Breakpoint, u64)> {
        self.breakpoints.iter().map(|armed| (armed.id, &armed.breakpoint, armed.hits))
    }

    /// Replaces the steering from a position on.
    pub(crate) fn steer(&mut self, steering: Vec<Steering>, from: u64) {
        self.steering.retain(|(start, _)| *start < from);
        self.steering.push((from, steering));
        self.be_private();
    }

    pub(crate) fn paused_at(&self) -> Option<&PausedAt> {
        self.stop.as_ref().map(|stop| &stop.at)
    }

    /// Changes values at a hook from now on, for positions at which the session is stopped.
    pub(crate) fn write(&mut self, hook: Hook, positions: Range<u64>, edit: Edit) {
        self.written.push(Written { hook, positions, edit });
        if let Some(stop) = &mut self.stop {
            stop.values = None;
        }
        self.be_private();
    }

    /// Requests a look. It is answered at once if the values are known.
    pub(crate) fn look(&mut self, look: Look, answer: LookAnswer) {
        let known = self.stop.as_ref().and_then(|stop| {
            let plain = look.edits.is_empty() && look.caches.is_empty() && !look.logits;
            let plain = plain && self.looks.is_empty();
            let values = stop.values.as_ref().filter(|_| plain)?;
            let [hook] = look.hooks.as_slice() else { return None };
            let values = (hook.name == stop.at.hook).then(|| vec![(hook.name.clone(), values.clone())])?;
            let positions = stop.at.positions.clone();
            Some(Looked { positions, values, caches: Vec::new(), logits: Vec::new() })
        });
        match known {
            Some(looked) => answer(Ok(looked)),
            None => self.looks.push_back((look, After::Answer(answer))),
        }
    }

    /// Changes keys or values, once their present values were read.
    pub(crate) fn edit_cache(&mut self, edit: KvEdit, dtype: DType, answer: KvAnswer) {
        self.be_private_from(edit.range.positions.start);
        let look = Look { caches: vec![edit.range.clone()], ..Look::default() };
        self.looks.push_back((look, After::Write(edit, dtype, answer)));
    }

    /// Records new contents for keys or values of tokens before those at which the session is stopped.
    pub(super) fn write_cache(&mut self, written: KvWritten) {
        let number = self.caches.last_key_value().map_or(1, |(last, _)| last + 1);
        let context = self.stop.as_ref().map_or(self.counted, |stop| stop.at.positions.start);
        let positions = written.range.positions.clone();
        self.be_private_from(positions.start);
        self.fresh.push(Rewrite { number, context, positions });
        self.caches.insert(number, written);
        if let Some(stop) = &mut self.stop {
            stop.values = None;
        }
    }

    /// The changes of keys and values that the scheduler does not know yet.
    pub(crate) fn take_rewrites(&mut self) -> Vec<Rewrite> {
        std::mem::take(&mut self.fresh)
    }

    /// The contents of a numbered change.
    pub(crate) fn cache(&self, number: u64) -> Option<&KvWritten> {
        self.caches.get(&number)
    }

    /// The keys and values that a step reads for a look.
    pub(crate) fn looked_caches(&self) -> &[KvRange] {
        self.looks.front().map_or(&[], |(look, _)| &look.caches)
    }

    /// Whether a look waits for a step.
    pub(crate) fn is_looking(&self) -> bool {
        !self.looks.is_empty()
    }

    /// Drops waiting looks and the step after them, unanswered.
    pub(crate) fn drop_looks(&mut self) {
        self.looks.clear();
        self.then = None;
    }

    /// Goes on when the looks are over.
    pub(crate) fn go_on_later(&mut self, until: Option<Hook>) {
        self.then = Some(until);
    }

    /// What to do now that a look is over, if anything.
    pub(crate) fn take_then(&mut self) -> Option<Option<Hook>> {
        self.then.take()
    }

    /// Goes on, perhaps to a hook.
    pub(crate) fn go_on(&mut self, until: Option<Hook>) {
        if let Some(stop) = self.stop.take() {
            let PausedAt { ttl, at_ttl, .. } = stop.at;
            (self.passed, self.until) = (Some(stop.after), until.map(|hook| Until { hook, ttl, at_ttl }));
        }
    }

    pub(crate) fn take_captures(&mut self) -> Captures {
        self.held_bytes = 0;
        std::mem::take(&mut self.captures)
    }

    pub(crate) fn begin_turn(&mut self) {
        self.applied.clear();
    }

    pub(crate) fn applied(&self) -> Vec<(String, u64)> {
        self.applied.iter().map(|(name, &tokens)| (name.clone(), tokens)).collect()
    }

    /// Tokens from `from` on are not computed after all: a step did not count. What was set while it was under way
    /// concerns them as well.
    pub(crate) fn computed_until(&mut self, from: u64) {
        self.counted = self.counted.min(from);
        self.private_from = self.private_from.map(|private_from| private_from.min(from));
        if let Some((start, _)) = self.steering.last_mut() {
            *start = from.min(*start);
        }
    }

    /// Drops all but the first `tokens` tokens.
    pub(crate) fn truncate(&mut self, tokens: u64) {
        self.written.retain(|written| written.positions.start < tokens);
        for Written { hook, positions, edit } in &mut self.written {
            if positions.end > tokens {
                positions.end = tokens;
                *edit = edit.part(0..(tokens - positions.start) as usize, hook.columns.1 as usize);
            }
        }
        self.caches.retain(|_, written| written.range.positions.start < tokens);
        self.caches.values_mut().for_each(|written| written.truncate(tokens));
        let latest = self.steering.pop();
        self.steering.retain(|(from, _)| *from < tokens);
        self.steering.extend(latest.map(|(from, steering)| (from.min(tokens), steering)));
        if tokens < self.counted {
            (self.counted, self.passed, self.until) = (tokens, None, None);
        }
    }

    /// The hook memory that a step may take.
    pub(crate) fn demand(&self, sizes: &Sizes<'_>) -> Demand {
        let steering = self.steering.iter().flat_map(|(_, steering)| steering);
        let steering = steering.map(|steering| Demand::of_edit(&steering.hook, &steering.edit));
        let written = self.written.iter().map(|written| Demand::of_edit(&written.hook, &written.edit));
        let armed = self.breakpoints.iter().filter(|armed| !armed.is_spent());
        let armed =
            armed.filter(|armed| armed.breakpoint.needs_values()).map(|Armed { breakpoint, .. }| {
                let bytes = (sizes.row)(&breakpoint.hook);
                // A step has one generated token among those that it computes for the first time.
                match breakpoint.filter.tokens {
                    TokenKind::Generated => Demand::capture_rows(1, bytes),
                    TokenKind::Any | TokenKind::Prompt => Demand::capture(bytes),
                }
            });
        let rows = self.stop.as_ref().map_or(0, |stop| stop.at.tokens.len() as u64);
        let looks = self.looks.iter().map(|(look, _)| look.demand(rows, sizes));
        let most_look = looks
            .reduce(|a, b| Demand { row: a.row.max(b.row), fixed: a.fixed.max(b.fixed) })
            .unwrap_or_default();
        let caches = self.caches.values().map(|written| Demand::of_written(written.bytes.len() as u64));
        // What a waiting look is to change stays after it.
        let to_come = self.looks.iter().filter_map(|(_, after)| match after {
            After::Write(edit, ..) => Some(Demand::of_written((sizes.written)(&edit.range))),
            After::Answer(_) => None,
        });
        let all = steering.chain(written).chain(armed).chain(caches).chain(to_come).chain([most_look]);
        all.fold(Demand::default(), |sum, more| sum + more)
    }
}
