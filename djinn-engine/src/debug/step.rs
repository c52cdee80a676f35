//! From a session's tokens in a step to interventions, and from their results to whether the session stops.

use super::record::{After, Armed, Record, Stop, Until};
use super::{
    AtTtl, BreakCondition, Breakpoint, BreakpointId, Captures, KvValues, Looked, PausedAt, Steering,
    TokenCapture, TokenKind,
};
use crate::{Act, Captured, Intervention};
use djinn_srg::Hook;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

/// Tokens by their indices in an entry, ascending and disjoint.
type Runs = Vec<Range<usize>>;

/// The tokens among these that have rows at a hook.
type RowsOf<'a> = dyn Fn(&Hook, Runs) -> Runs + 'a;

/// The name under which a client's changes are counted.
const BY_HAND: &str = "edit";

/// A session's part of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryTokens<'a> {
    /// Position of the first token.
    pub(crate) from: u64,
    pub(crate) tokens: &'a [u32],
    /// Whether a token is chosen after the last one.
    pub(crate) yields: bool,
    /// Positions of generated tokens, by turn, ascending.
    pub(crate) generated: &'a [Range<u64>],
}

/// What a step does for a session at hooks.
#[derive(Debug, Default)]
pub(crate) struct Step {
    pub(crate) interventions: Vec<Intervention>,
    /// The breakpoints that may be met, in order, with the purpose of each capture.
    meetings: Vec<Meeting>,
    /// By name: how many newly computed tokens steering changes.
    changed: BTreeMap<String, u64>,
    /// Whether the step is a look.
    pub(crate) looks: bool,
    /// Whether the last token's logits are wanted even if no token is chosen.
    pub(crate) wants_logits: bool,
    /// Whether a look or a breakpoint's condition reads them.
    pub(crate) reads_logits: bool,
}

#[derive(Debug)]
enum Meeting {
    Breakpoint {
        id: BreakpointId,
        positions: Vec<u64>,
        /// Whether the values at the hook are read. Without that, the step is the same as one without breakpoints.
        is_read: bool,
    },
    Until(Hook, Vec<u64>),
    Look,
}

impl Meeting {
    fn is_read(&self) -> bool {
        match self {
            Meeting::Breakpoint { is_read, .. } => *is_read,
            Meeting::Until(..) => false,
            Meeting::Look => true,
        }
    }
}

/// The outcome of a session's part of a step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Judged {
    Counts,
    /// It does not count: it met a breakpoint.
    Stopped,
    /// It does not: it was a look.
    Looked,
}

impl Record {
    /// The work of a step. `of_logits` says whether a hook's values have rows only for tokens with wanted logits.
    pub(crate) fn step(&self, entry: &EntryTokens<'_>, of_logits: &dyn Fn(&Hook) -> bool) -> Step {
        let positions = entry.from..entry.from + entry.tokens.len() as u64;
        let covers = |stop: &&Stop| {
            positions.start <= stop.at.positions.start && positions.end >= stop.at.positions.end
        };
        let look = self.looks.front().filter(|_| self.stop.as_ref().is_some_and(|stop| covers(&stop)));
        let mut step = Step { looks: look.is_some(), ..Step::default() };
        step.wants_logits = look.is_some_and(|(look, _)| {
            look.logits || look.hooks.iter().chain(look.edits.iter().map(|(hook, ..)| hook)).any(of_logits)
        });
        step.reads_logits = step.wants_logits;
        let has_logits = entry.yields || step.wants_logits;
        let rows = |hook: &Hook, tokens: Runs| match of_logits(hook) {
            false => tokens,
            true => {
                let last = entry.tokens.len() - 1;
                let kept = has_logits && tokens.last().is_some_and(|run| run.end > last);
                if kept { one(last..last + 1) } else { Vec::new() }
            }
        };
        let within = |range: &Range<u64>| range.start.max(positions.start)..range.end.min(positions.end);
        let places = |range: Range<u64>| match range.is_empty() {
            true => Vec::new(),
            false => {
                let at = |position: u64| (position - positions.start) as usize;
                one(at(range.start)..at(range.end))
            }
        };
        let ends = self.steering.iter().skip(1).map(|(from, _)| *from).chain([u64::MAX]);
        for ((from, steering), end) in self.steering.iter().zip(ends) {
            for Steering { name, hook, edit, tokens } in steering {
                let tokens = rows(hook, entry.of_kind(*tokens, within(&(*from..end))));
                let new = tokens.iter().cloned().flatten();
                let new = new.filter(|&at| positions.start + at as u64 >= self.counted).count();
                step.changes(name, new as u64);
                step.push(hook, tokens, Act::Edit(edit.clone()));
            }
        }
        let written = self.written.iter().map(|written| (&written.hook, &written.positions, &written.edit));
        let by_look = look.iter().flat_map(|(look, _)| &look.edits);
        let written = written.chain(by_look.map(|(hook, positions, edit)| (hook, positions, edit)));
        for (hook, range, edit) in written {
            let part = within(range);
            let tokens = rows(hook, places(part.clone()));
            if part.is_empty() || tokens.is_empty() {
                continue;
            }
            let of = |position: u64| (position - range.start) as usize;
            let edit = edit.part(of(part.start)..of(part.end), hook.columns.1 as usize);
            if part.start >= self.counted {
                step.changes(BY_HAND, part.end - part.start);
            }
            step.push(hook, tokens, Act::Edit(edit));
        }
        match (look, &self.stop) {
            (Some((look, _)), Some(stop)) => {
                for hook in &look.hooks {
                    let tokens = rows(hook, places(stop.at.positions.clone()));
                    step.meet(hook, tokens, Meeting::Look);
                }
            }
            _ => self.meet_breakpoints(entry, &mut step, &rows),
        }
        step
    }

    /// Notes which new tokens breakpoints apply to, and reads the values that they need.
    fn meet_breakpoints(&self, entry: &EntryTokens<'_>, step: &mut Step, rows: &RowsOf<'_>) {
        let end = entry.from + entry.tokens.len() as u64;
        let new = entry.from.max(self.counted)..end;
        let comes = |hook: &Hook| self.passed.is_none_or(|passed| hook.after > passed);
        let at = |tokens: &[Range<usize>]| -> Vec<u64> {
            tokens.iter().cloned().flatten().map(|at| entry.from + at as u64).collect()
        };
        for Armed { id, breakpoint, .. } in self.breakpoints.iter().filter(|armed| !armed.is_spent()) {
            let Breakpoint { hook, filter, condition, pause, .. } = breakpoint;
            // Read as long as it is armed, so that its steps can be replayed.
            let reads = matches!(condition, Some(BreakCondition::Entropy { .. }));
            step.reads_logits |= reads && entry.yields;
            // A capture reads only the run that counts.
            if *pause && !comes(hook) {
                continue;
            }
            let tokens = entry
                .of_kind(filter.tokens, new.start.max(filter.positions.start)..end.min(filter.positions.end));
            let mut tokens = runs(tokens.into_iter().flatten().filter(|&at| {
                let step = entry.place_in_turn(entry.from + at as u64);
                let listed =
                    !matches!(condition, Some(BreakCondition::Tokens(all)) if !all.contains(&entry.tokens[at]));
                listed && step.is_none_or(|step| filter.steps.contains(&step))
            }));
            if reads {
                let last = entry.tokens.len() - 1;
                let kept = entry.yields && tokens.last().is_some_and(|run| run.end > last);
                tokens = if kept { one(last..last + 1) } else { Vec::new() };
            }
            let tokens = rows(hook, tokens);
            let met =
                Meeting::Breakpoint { id: *id, positions: at(&tokens), is_read: breakpoint.needs_values() };
            step.meet(hook, tokens, met);
        }
        if let Some(Until { hook, .. }) = self.until.as_ref().filter(|until| comes(&until.hook)) {
            let first = (new.start - entry.from) as usize;
            let tokens = rows(hook, runs(first..entry.tokens.len()));
            let met = Meeting::Until(hook.clone(), at(&tokens));
            step.meet(hook, tokens, met);
        }
    }

    /// Records what a step has read at hooks and from the cache, and returns whether it counts. `logits` are those of
    /// the last token, if any. `rests` says that the turn was ended meanwhile, so nothing stops.
    pub(crate) fn judge(
        &mut self,
        entry: &EntryTokens<'_>,
        step: Step,
        captured: Vec<Captured>,
        caches: Vec<KvValues>,
        logits: Option<&[f32]>,
        rests: bool,
    ) -> Judged {
        if step.looks {
            // The session may have gone on meanwhile, which drops the look.
            let Some((look, after)) = self.looks.pop_front() else { return Judged::Looked };
            let values = captured.into_iter().map(|read| (read.hook, read.values)).collect();
            let logits = logits.filter(|_| look.logits).map_or_else(Vec::new, <[f32]>::to_vec);
            let positions = self.stop.as_ref().map_or(0..0, |stop| stop.at.positions.clone());
            match after {
                After::Answer(answer) => answer(Ok(Looked { positions, values, caches, logits })),
                After::Write(edit, dtype, answer) => {
                    let written = caches.first().map(|old| edit.apply(old, dtype)).transpose();
                    answer(written.map(|written| written.into_iter().for_each(|one| self.write_cache(one))));
                }
            }
            return Judged::Looked;
        }
        let end = entry.from + entry.tokens.len() as u64;
        let hits = self.hits(step.meetings, captured, logits);
        let stops = hits.iter().filter(|hit| hit.pauses && !rests).min_by_key(|hit| hit.hook.after);
        if let Some(stop) = stops.cloned() {
            let positions = entry.from.max(self.counted)..end;
            self.stop_at(entry, &stop, positions);
            let together = |hit: &Hit| hit.pauses && hit.hook.after == stop.hook.after;
            hits.into_iter().filter(together).for_each(|hit| self.count_hit(entry, hit));
            return Judged::Stopped;
        }
        for hit in hits {
            self.count_hit(entry, hit);
        }
        for (name, tokens) in step.changed.into_iter().filter(|(_, tokens)| *tokens > 0) {
            *self.applied.entry(name).or_default() += tokens;
        }
        if end > self.counted {
            (self.counted, self.passed, self.until) = (end, None, None);
        }
        Judged::Counts
    }

    /// The breakpoints that were met, with their tokens.
    fn hits(&self, meetings: Vec<Meeting>, captured: Vec<Captured>, logits: Option<&[f32]>) -> Vec<Hit> {
        let (mut hits, mut captured) = (Vec::new(), captured.into_iter());
        for meeting in meetings {
            let read = if meeting.is_read() { captured.next() } else { None };
            let values = read.map_or_else(Vec::new, |read| read.values);
            let (id, hook, positions, condition, pauses) = match meeting {
                Meeting::Until(hook, positions) => (None, hook, positions, None, true),
                Meeting::Breakpoint { id, positions, .. } => {
                    // It may have been removed while the step ran.
                    let Some(armed) = self.breakpoints.iter().find(|armed| armed.id == id) else { continue };
                    let Breakpoint { hook, condition, pause, .. } = &armed.breakpoint;
                    (Some(id), hook.clone(), positions, condition.as_ref(), *pause)
                }
                Meeting::Look => continue,
            };
            let width = values.len() / positions.len();
            // Without values, rows are empty.
            let row = |at: usize| &values[at * width..][..width];
            let holds = |values: &[f32]| match condition {
                None | Some(BreakCondition::Tokens(_)) => true,
                Some(BreakCondition::Entropy { above }) => {
                    logits.is_some_and(|logits| entropy(logits) > *above)
                }
                Some(BreakCondition::Probe { direction, above }) => {
                    let products = values.iter().zip(direction).map(|(&y, &d)| f64::from(y) * f64::from(d));
                    products.sum::<f64>() > f64::from(*above)
                }
            };
            let rows = positions.iter().enumerate().map(|(at, position)| (position, row(at)));
            let (met, kept): (Vec<u64>, Vec<&[f32]>) = rows.filter(|(_, values)| holds(values)).unzip();
            if !met.is_empty() {
                hits.push(Hit { id, hook, met, values: kept.concat(), pauses });
            }
        }
        hits
    }

    fn stop_at(&mut self, entry: &EntryTokens<'_>, hit: &Hit, positions: Range<u64>) {
        let armed = self.breakpoints.iter().find(|armed| Some(armed.id) == hit.id);
        let (ttl, at_ttl) = match (armed, self.until.take()) {
            (Some(armed), _) => (armed.breakpoint.ttl, armed.breakpoint.at_ttl),
            (None, until) => until.map_or((None, AtTtl::Resume), |until| (until.ttl, until.at_ttl)),
        };
        let first = (positions.start - entry.from) as usize;
        let at = PausedAt {
            breakpoint: hit.id,
            hook: hit.hook.name.clone(),
            hit: hit.met.clone(),
            tokens: entry.tokens[first..].to_vec(),
            since: Instant::now(),
            ttl,
            at_ttl,
            positions,
        };
        let all = hit.met.len() == at.tokens.len();
        let values = (all && !hit.values.is_empty()).then(|| hit.values.clone());
        self.stop = Some(Stop { at, after: hit.hook.after, values });
    }

    /// Counts a hit, and keeps the values to capture.
    fn count_hit(&mut self, entry: &EntryTokens<'_>, hit: Hit) {
        let Some(at) = self.breakpoints.iter().position(|armed| Some(armed.id) == hit.id) else { return };
        let armed = &mut self.breakpoints[at];
        armed.hits += 1;
        let (id, capture) = (armed.id, armed.breakpoint.capture);
        if !capture {
            return;
        }
        let bytes = hit.values.len() * 4;
        if self.held_bytes + bytes > Captures::MOST_BYTES {
            self.captures.dropped += hit.met.len() as u64;
            return;
        }
        self.held_bytes += bytes;
        let tokens = hit.met.iter().map(|position| entry.tokens[(position - entry.from) as usize]).collect();
        let (hook, positions, values) = (hit.hook.name, hit.met, hit.values);
        self.captures.captures.push(TokenCapture { breakpoint: id, hook, positions, tokens, values });
    }
}

/// A breakpoint that was met.
#[derive(Clone, Debug)]
struct Hit {
    id: Option<BreakpointId>,
    hook: Hook,
    /// At which positions.
    met: Vec<u64>,
    /// f32 `[met, width]`; empty if nothing was read.
    values: Vec<f32>,
    pauses: bool,
}

impl Step {
    /// Counts changed tokens. If a name changes several hooks, each token counts once.
    fn changes(&mut self, name: &str, tokens: u64) {
        let changed = self.changed.entry(name.to_owned()).or_default();
        *changed = tokens.max(*changed);
    }

    fn push(&mut self, hook: &Hook, tokens: Runs, act: Act) {
        if !tokens.is_empty() {
            self.interventions.push(Intervention { hook: hook.clone(), tokens, act });
        }
    }

    fn meet(&mut self, hook: &Hook, tokens: Runs, meeting: Meeting) {
        if tokens.is_empty() {
            return;
        }
        if meeting.is_read() {
            self.push(hook, tokens, Act::Capture);
        }
        self.meetings.push(meeting);
    }
}

impl EntryTokens<'_> {
    /// The tokens of a kind within a range of positions, by their indices in the entry.
    fn of_kind(&self, kind: TokenKind, within: Range<u64>) -> Runs {
        let at = |position: u64| (position - self.from) as usize;
        if within.is_empty() {
            return Vec::new();
        }
        match kind {
            TokenKind::Any => one(at(within.start)..at(within.end)),
            kind => runs(
                within
                    .filter(|&position| {
                        self.place_in_turn(position).is_some() == (kind == TokenKind::Generated)
                    })
                    .map(at),
            ),
        }
    }

    /// The place of a generated token in its turn, from 1.
    fn place_in_turn(&self, position: u64) -> Option<u64> {
        let turn = self.generated.iter().rev().find(|turn| turn.contains(&position))?;
        Some(position - turn.start + 1)
    }
}

/// One run.
fn one(run: Range<usize>) -> Runs {
    std::iter::once(run).collect()
}

/// Ascending places as runs.
fn runs(places: impl IntoIterator<Item = usize>) -> Runs {
    let mut runs: Runs = Vec::new();
    for place in places {
        match runs.last_mut().filter(|run| run.end == place) {
            Some(run) => run.end += 1,
            None => runs.push(place..place + 1),
        }
    }
    runs
}

/// The entropy of the softmax of logits, in nats.
fn entropy(logits: &[f32]) -> f32 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights = logits.iter().map(|&logit| f64::from(logit - most));
    let (total, mean) = weights.fold((0.0, 0.0), |(total, mean), x| {
        let weight = x.exp();
        // A weight of 0 adds nothing, though its logarithm is infinite.
        (total + weight, mean + if weight > 0.0 { weight * x } else { 0.0 })
    });
    (f64::ln(total) - mean / total) as f32
}
