//! Debugger requests of clients, and sessions that stop.

use super::{Happening, Service};
use crate::debug::{
    AtTtl, Attending, Breakpoint, BreakpointId, Captures, DebugSetup, Debugger, Demand, HookPoint, KvAnswer,
    KvEdit, KvRange, Look, LookAnswer, PauseAnswer, PausedAt, Record, ScoresAnswer, Steering, pattern_name,
};
use crate::hooks::{LayerCache, of_logits};
use crate::{Act, Edit, Error, Intervention, Result};
use djinn_device::Ops;
use djinn_scheduler::{Arrival, SessionEvent, SessionId};
use djinn_srg::Hook;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Waiting clients, and the times at which stops end.
#[derive(Default)]
pub(super) struct Stops {
    waiting: BTreeMap<SessionId, Vec<PauseAnswer>>,
    /// When stopped sessions go on or end without a client.
    ends: BTreeMap<SessionId, (Instant, AtTtl)>,
}

impl fmt::Debug for Stops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stops").field("waiting", &self.waiting.len()).field("ends", &self.ends).finish()
    }
}

impl<D: Ops> Service<D> {
    /// Handles sessions that stopped in a step, at breakpoints or after a look.
    pub(super) fn note_stops(&mut self, stopped: &[SessionId], happened: &mut Vec<(SessionId, Happening)>) {
        for &id in stopped.iter().filter(|&&id| self.is_open(id)).collect::<Vec<_>>() {
            self.tell_rewrites(id);
            let Ok(record) = self.batcher.record_mut(id) else { continue };
            // There is another look to do, or the session went on during a look.
            if record.is_looking() || record.paused_at().is_none() {
                self.resume_in_scheduler(id);
                continue;
            }
            if let Some(until) = record.take_then() {
                // It is stopped, so it can go on.
                let _ = self.resume_until(id, until);
                continue;
            }
            let Some(at) = record.paused_at().cloned().filter(|_| !self.stops.ends.contains_key(&id)) else {
                continue;
            };
            let end = at.ttl.and_then(|ttl| at.since.checked_add(ttl));
            self.stops.ends.extend(end.map(|end| (id, (end, at.at_ttl))));
            for answer in self.stops.waiting.remove(&id).unwrap_or_default() {
                answer(at.clone());
            }
            happened.push((id, Happening::Paused(Box::new(at))));
        }
    }

    /// Tells the scheduler about a session's new changes of keys and values.
    fn tell_rewrites(&mut self, id: SessionId) {
        let rewrites = self.batcher.record_mut(id).map_or_else(|_| Vec::new(), Record::take_rewrites);
        for rewrite in rewrites {
            self.core.scheduler_mut().rewrite(id, rewrite);
        }
    }

    /// Resumes or ends sessions whose stop has timed out, and forgets those that are gone. Returns what happened, or
    /// `None` if there was nothing to do.
    pub(super) fn end_stops(&mut self) -> Option<Vec<(SessionId, Happening)>> {
        if self.stops.ends.is_empty() && self.stops.waiting.is_empty() {
            return None;
        }
        let mut happened = Vec::new();
        let now = Instant::now();
        let due: Vec<_> = self.stops.ends.iter().filter(|(_, (end, _))| *end <= now).collect();
        let due: Vec<(SessionId, AtTtl)> = due.into_iter().map(|(&id, &(_, at_ttl))| (id, at_ttl)).collect();
        let any = !due.is_empty();
        for (id, at_ttl) in due {
            self.stops.ends.remove(&id);
            match at_ttl {
                // It may have gone on or ended meanwhile.
                AtTtl::Resume => drop(self.resume_until(id, None)),
                AtTtl::Abort if self.event(id, SessionEvent::Abort).is_ok() => {
                    happened.push((id, Happening::Expired));
                }
                AtTtl::Abort => {}
            }
        }
        let state = self.core.scheduler().state();
        let is_open = |id: &SessionId| state.session(*id).is_some_and(|session| !session.is_ending());
        self.stops.waiting.retain(|id, _| is_open(id));
        self.stops.ends.retain(|id, _| is_open(id));
        any.then_some(happened)
    }

    /// The time until the next stop times out.
    pub(super) fn next_end_of_a_stop(&self) -> Option<Duration> {
        let end = self.stops.ends.values().map(|(end, _)| *end).min()?;
        Some(end.saturating_duration_since(Instant::now()))
    }

    /// Resumes a stopped session, to where its record says.
    pub(super) fn resume_in_scheduler(&mut self, id: SessionId) {
        let now = self.now();
        // If its client holds it as well, it goes on when that ends, too.
        let _ = self.core.scheduler_mut().event(id, SessionEvent::Resume, now);
    }

    /// Ends a session's stop without a debugger's request: it goes on, or its turn ends.
    pub(super) fn leave_stop(&mut self, id: SessionId) -> bool {
        let record = self.batcher.record(id).ok().flatten();
        if record.is_none_or(|record| record.paused_at().is_none()) {
            return false;
        }
        if let Ok(record) = self.batcher.record_mut(id) {
            record.go_on(None);
            record.drop_looks();
        }
        self.stops.ends.remove(&id);
        true
    }

    fn stopped(&self, id: SessionId) -> Result<&PausedAt> {
        let record = self.batcher.record(id)?;
        record.and_then(Record::paused_at).ok_or(Error::NotPaused { session: id.0 })
    }

    /// Checks the hook memory for a session with `more` work at hooks.
    fn check_room(&self, id: SessionId, more: Demand) -> Result<()> {
        self.batcher.record(id)?;
        self.batcher.check_hook_memory(Some(id), more)
    }

    fn demand_of(&self, setup: DebugSetup) -> Demand {
        self.batcher.demand(&Record::new(setup, true))
    }

    /// Names the shareable pages of a session again, after some became private.
    fn name_pages_anew(&mut self, id: SessionId) {
        let names = self.batcher.page_names(id);
        self.core.scheduler_mut().name_pages(id, names);
    }

    /// Checks the breakpoints and steering of a new session, which has the changes of `parent` as well.
    pub(super) fn check_setup(&self, setup: &DebugSetup, parent: Option<SessionId>) -> Result<()> {
        let DebugSetup { breakpoints, steering } = setup;
        breakpoints.iter().try_for_each(|breakpoint| self.check_breakpoint(breakpoint))?;
        steering.iter().try_for_each(|steering| self.check_steering(steering))?;
        let inherited = parent.and_then(|parent| self.batcher.record(parent).ok()?);
        let inherited = inherited.map_or_else(Demand::default, |record| self.batcher.demand(&record.fork()));
        self.batcher.check_hook_memory(None, self.demand_of(setup.clone()) + inherited)
    }

    fn check_breakpoint(&self, breakpoint: &Breakpoint) -> Result<()> {
        breakpoint.check()?;
        self.check_hook(&breakpoint.hook)
    }

    /// Checks that a layer's cache has these positions, all before `end`.
    fn check_cache(&self, range: &KvRange, end: u64) -> Result<LayerCache> {
        let hook = format!("blocks.{}", range.layer);
        let cache = self.batcher.layer_cache(range.layer).ok_or_else(|| Error::UnknownHook(hook.clone()))?;
        match range.positions.is_empty() || range.positions.end > end {
            true => {
                let detail =
                    format!("there are keys and values of positions 0 to {end}, not {:?}", range.positions);
                Err(Error::Intervention { hook, detail })
            }
            false => Ok(cache),
        }
    }

    /// Checks a change at `positions` of a session that is stopped at `at`. Logits have a row for the last one only.
    fn check_edit_at(&self, at: &Range<u64>, hook: &Hook, positions: &Range<u64>, edit: &Edit) -> Result<()> {
        self.check_part(hook)?;
        let Range { start, end } = *at;
        let start = if of_logits(self.engine().graph(), hook) { end - 1 } else { start };
        if positions.is_empty() || positions.start < start || positions.end > end {
            let detail = format!("the session is stopped at positions {start} to {end}, not {positions:?}");
            return Err(Error::Intervention { hook: hook.name.clone(), detail });
        }
        check_edit(hook, (positions.end - positions.start) as usize, edit)
    }

    fn check_steering(&self, steering: &Steering) -> Result<()> {
        self.check_part(&steering.hook)?;
        check_edit(&steering.hook, 1, &steering.edit)
    }

    /// Checks that a hook, or the one that it is part of, belongs to this model.
    fn check_part(&self, hook: &Hook) -> Result<()> {
        match self.engine().graph().hook(&hook.name) {
            Some(own) if hook.is_part_of(own) => Ok(()),
            _ => Err(Error::UnknownHook(hook.name.clone())),
        }
    }

    /// Checks that a hook belongs to this model.
    fn check_hook(&self, hook: &Hook) -> Result<()> {
        match self.engine().graph().hook(&hook.name) {
            Some(own) if own == hook => Ok(()),
            _ => Err(Error::UnknownHook(hook.name.clone())),
        }
    }
}

/// Checks a change of `tokens` tokens on its own.
fn check_edit(hook: &Hook, tokens: usize, edit: &Edit) -> Result<()> {
    let all = std::iter::once(0..tokens).collect();
    Intervention { hook: hook.clone(), tokens: all, act: Act::Edit(edit.clone()) }.check(tokens)
}

impl<D: Ops> Debugger for Service<D> {
    fn hooks(&self) -> Vec<HookPoint> {
        let graph = self.engine().graph();
        let point = |names: Vec<&Hook>| HookPoint {
            hook: names[0].clone(),
            aliases: names[1..].iter().map(|hook| hook.name.clone()).collect(),
            width: names[0].columns.1,
            of_logits: of_logits(graph, names[0]),
        };
        graph.hook_points().into_iter().map(point).collect()
    }

    fn hook(&self, name: &str) -> Result<Hook> {
        self.engine().graph().hook(name).cloned().ok_or_else(|| Error::UnknownHook(name.to_owned()))
    }

    fn set_breakpoint(&mut self, id: SessionId, breakpoint: Breakpoint) -> Result<BreakpointId> {
        self.check_breakpoint(&breakpoint)?;
        let setup = DebugSetup { breakpoints: vec![breakpoint.clone()], steering: Vec::new() };
        self.check_room(id, self.demand_of(setup))?;
        let armed = self.batcher.record_mut(id)?.arm(breakpoint);
        self.name_pages_anew(id);
        Ok(armed)
    }

    fn breakpoints(&self, id: SessionId) -> Result<Vec<(BreakpointId, Breakpoint, u64)>> {
        let record = self.batcher.record(id)?;
        let all = record.into_iter().flat_map(Record::breakpoints);
        Ok(all.map(|(id, breakpoint, hits)| (id, breakpoint.clone(), hits)).collect())
    }

    fn clear_breakpoint(&mut self, id: SessionId, breakpoint: BreakpointId) -> Result<bool> {
        match self.batcher.record(id)? {
            Some(_) => Ok(self.batcher.record_mut(id)?.disarm(breakpoint)),
            None => Ok(false),
        }
    }

    fn steer(&mut self, id: SessionId, steering: Vec<Steering>) -> Result<()> {
        steering.iter().try_for_each(|one| self.check_steering(one))?;
        let setup = DebugSetup { breakpoints: Vec::new(), steering: steering.clone() };
        self.check_room(id, self.demand_of(setup))?;
        self.batcher.steer(id, steering)?;
        self.name_pages_anew(id);
        Ok(())
    }

    fn paused_at(&self, id: SessionId) -> Option<PausedAt> {
        self.stopped(id).ok().cloned()
    }

    fn on_pause(&mut self, id: SessionId, answer: PauseAnswer) {
        match self.paused_at(id) {
            Some(at) => answer(at),
            None if self.is_open(id) => self.stops.waiting.entry(id).or_default().push(answer),
            None => {}
        }
    }

    fn edit(&mut self, id: SessionId, edits: Vec<(Hook, Range<u64>, Edit)>) -> Result<()> {
        let at = &self.stopped(id)?.positions;
        for (hook, positions, edit) in &edits {
            self.check_edit_at(at, hook, positions, edit)?;
        }
        let demands = edits.iter().map(|(hook, _, edit)| Demand::of_edit(hook, edit));
        self.check_room(id, demands.fold(Demand::default(), |all, one| all + one))?;
        let record = self.batcher.record_mut(id)?;
        for (hook, positions, edit) in edits {
            record.write(hook, positions, edit);
        }
        self.name_pages_anew(id);
        Ok(())
    }

    fn attention(&mut self, id: SessionId, layer: u32, answer: ScoresAnswer) {
        let known = self.stopped(id).map(|at| at.positions.clone()).and_then(|at| {
            let block = || Error::UnknownHook(pattern_name(layer));
            let (attends, hook) = Attending::of(self.engine().graph(), layer).ok_or_else(block)?;
            let (need, have) = (attends.bytes(&at), self.batcher.hook_bytes());
            if need > have {
                return Err(Error::HookMemory { need, have });
            }
            let caches = vec![KvRange { layer, positions: 0..at.end }];
            Ok((attends, Look { hooks: vec![hook.clone()], caches, ..Look::default() }))
        });
        match known {
            Err(error) => answer(Err(error)),
            Ok((attends, look)) => {
                let scores = move |looked| attends.scores(looked).ok_or(Error::NotPaused { session: id.0 });
                self.look(id, look, Box::new(move |looked| answer(looked.and_then(scores))));
            }
        }
    }

    fn edit_cache(&mut self, id: SessionId, edit: KvEdit, answer: KvAnswer) {
        let checked = self.stopped(id).map(|at| at.positions.start).and_then(|end| {
            let [heads, values] = self.check_cache(&edit.range, end)?.heads();
            edit.check((heads * values) as usize)?;
            self.check_room(id, self.batcher.demand_of_edit(&edit.range))
        });
        if let Err(error) = checked {
            return answer(Err(error));
        }
        let dtype = self.kv_shape().dtype;
        let Ok(record) = self.batcher.record_mut(id) else { return };
        let was_looking = record.is_looking();
        record.edit_cache(edit, dtype, answer);
        self.name_pages_anew(id);
        if !was_looking {
            self.resume_in_scheduler(id);
        }
    }

    fn look(&mut self, id: SessionId, look: Look, answer: LookAnswer) {
        let checked = self.stopped(id).map(|at| at.positions.clone()).and_then(|at| {
            look.hooks.iter().try_for_each(|hook| self.check_hook(hook))?;
            look.caches.iter().try_for_each(|range| self.check_cache(range, at.end).map(drop))?;
            for (hook, positions, edit) in &look.edits {
                self.check_edit_at(&at, hook, positions, edit)?;
            }
            self.check_room(id, self.batcher.demand_of_look(&look, at.end - at.start))
        });
        if let Err(error) = checked {
            return answer(Err(error));
        }
        let Ok(record) = self.batcher.record_mut(id) else { return };
        let was_looking = record.is_looking();
        record.look(look, answer);
        if !was_looking && record.is_looking() {
            self.resume_in_scheduler(id);
        }
    }

    fn resume_until(&mut self, id: SessionId, until: Option<Hook>) -> Result<()> {
        self.stopped(id)?;
        until.iter().try_for_each(|hook| self.check_hook(hook))?;
        let record = self.batcher.record_mut(id)?;
        if record.is_looking() {
            record.go_on_later(until);
            return Ok(());
        }
        record.go_on(until);
        self.stops.ends.remove(&id);
        let now = self.now();
        Ok(self.core.scheduler_mut().event(id, SessionEvent::Resume, now)?)
    }

    fn fork_paused(&mut self, id: SessionId) -> Result<SessionId> {
        let at = self.stopped(id)?.clone();
        if let Some(record) = self.batcher.record(id)? {
            self.batcher.check_hook_memory(None, self.batcher.demand(&record.fork_within_turn()))?;
        }
        let (max_tokens, _) = self.batcher.progress(id)?;
        let parent = self.state().session(id).ok_or(Error::NoSession { session: id.0 })?;
        let (priority, limit) = (parent.priority, parent.limit);
        let prompt = self.batcher.tokens(id).map_or(0, <[u32]>::len) as u64;
        let fork = SessionId(self.sessions + 1);
        let now = self.now();
        let scheduler = self.core.scheduler_mut();
        scheduler.fork(id, &Arrival { id: fork, priority, prompt, max_tokens, limit }, now)?;
        scheduler.event(fork, SessionEvent::Pause, now)?;
        self.batcher.fork_within_turn(id, fork)?;
        self.sessions = fork.0;
        let end = at.ttl.and_then(|ttl| Instant::now().checked_add(ttl));
        self.stops.ends.extend(end.map(|end| (fork, (end, at.at_ttl))));
        self.name_pages_anew(fork);
        Ok(fork)
    }

    fn take_captures(&mut self, id: SessionId) -> Result<Captures> {
        match self.batcher.record(id)? {
            Some(_) => Ok(self.batcher.record_mut(id)?.take_captures()),
            None => Ok(Captures::default()),
        }
    }

    fn applied(&self, id: SessionId) -> Result<Vec<(String, u64)>> {
        Ok(self.batcher.record(id)?.map(Record::applied).unwrap_or_default())
    }

    fn tokens(&self, id: SessionId) -> Result<(Vec<u32>, Vec<Range<u64>>)> {
        let (_, by_model) = self.batcher.progress(id)?;
        let tokens = self.batcher.tokens(id).unwrap_or_default();
        Ok((tokens.to_vec(), by_model.to_vec()))
    }
}
