//! All sessions and pages. Pages change hands only here.

use crate::error::{Error, Result};
use crate::phase::{EventKind, Phase};
use crate::plan::{CopyOutcome, Plan, ScheduledSession};
use crate::session::{Session, SessionId};
use djinn_pages::{BlockTable, Pages, Residency};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The machine's capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capacity {
    /// KV pages of the device.
    pub device_pages: u32,
    /// KV pages of the host.
    pub host_pages: u32,
    /// Tokens of a page.
    pub page_tokens: u32,
    /// Rows (tokens) of a step.
    pub rows: u32,
    /// Sessions of a step.
    pub sequences: u32,
    /// Tokens of a prefill chunk. Prompts are computed in pieces that end at multiples of this size in the context, or
    /// with the prompt, so that results do not depend on other sessions. A step takes as many successive pieces of a
    /// prompt as fit its rows beside the decodes of all other sessions, or all that is left of the prompt if this fits
    /// beside the decodes of the step.
    pub chunk: u32,
    /// Rows of a step in which sessions decode, so that these do not wait for a long step. `None`: all.
    #[serde(default)]
    pub rows_beside_decodes: Option<u32>,
}

impl Capacity {
    /// Refuses a machine that cannot run anything.
    pub fn check(&self) -> Result<()> {
        let refuse = |what: &str, remedy| Err(Error::Machine { what: what.to_owned(), remedy });
        let Capacity { device_pages, page_tokens, sequences, chunk, .. } = *self;
        let rows = self.rows_beside_decodes();
        match () {
            () if device_pages == 0 => refuse("the device holds no KV page", "raise the device budget"),
            () if page_tokens == 0 => refuse("a page holds no token", "set page_tokens to 1 or more"),
            () if sequences == 0 => refuse("a step holds no session", "set sequences to 1 or more"),
            () if chunk == 0 => refuse("a chunk holds no token", "set chunk to 1 or more"),
            () if rows < chunk.saturating_add(sequences - 1) => refuse(
                &format!(
                    "a step of {rows} rows cannot hold {} decodes and a chunk of {chunk}",
                    sequences - 1
                ),
                "raise rows to sequences - 1 + chunk",
            ),
            () => Ok(()),
        }
    }

    /// Rows of a step in which sessions decode.
    pub(crate) fn rows_beside_decodes(&self) -> u32 {
        self.rows_beside_decodes.map_or(self.rows, |rows| rows.min(self.rows))
    }

    /// Rows that one prompt may take of a step, whatever the step's decodes.
    pub(crate) fn prompt_rows(&self) -> u32 {
        self.rows - (self.sequences - 1)
    }

    /// Pages that `tokens` tokens take.
    pub fn pages(&self, tokens: u64) -> u32 {
        u32::try_from(tokens.div_ceil(self.page_tokens as u64)).unwrap_or(u32::MAX)
    }
}

/// The fields of a session that the end of a step changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    id: SessionId,
    phase: Phase,
    paused_from: Option<Phase>,
    context: u64,
    prompt: u64,
    generated: u64,
}

impl Standing {
    fn of(session: &Session) -> Self {
        let Session { id, phase, paused_from, context, prompt, generated, .. } = *session;
        Standing { id, phase, paused_from, context, prompt, generated }
    }

    fn restore(self, session: &mut Session) {
        (session.phase, session.paused_from) = (self.phase, self.paused_from);
        (session.context, session.prompt, session.generated) = (self.context, self.prompt, self.generated);
    }
}

/// The sessions and the pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub(crate) capacity: Capacity,
    pub(crate) sessions: BTreeMap<SessionId, Session>,
    pub(crate) pages: Pages,
    /// The plans with steps under way, in order.
    pub(crate) steps: VecDeque<u64>,
    pub(crate) plans: u64,
    /// Device pages that were missing at the last plan.
    pub(crate) short: u32,
    /// Pages of imported sessions that are not complete yet.
    pub(crate) incoming: BTreeMap<SessionId, BlockTable>,
    /// Device pages that the next imported session waits for.
    pub(crate) demanded: u32,
}

impl State {
    /// No sessions, all pages free.
    pub fn new(capacity: Capacity) -> Result<Self> {
        capacity.check()?;
        let Capacity { device_pages, host_pages, .. } = capacity;
        Ok(State {
            capacity,
            sessions: BTreeMap::new(),
            pages: Pages::new(device_pages, host_pages),
            steps: VecDeque::new(),
            plans: 0,
            short: 0,
            incoming: BTreeMap::new(),
            demanded: 0,
        })
    }

    /// The machine's capacity.
    pub fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    /// Sessions by id.
    pub fn sessions(&self) -> impl Iterator<Item = &Session> {
        self.sessions.values()
    }

    /// One session.
    pub fn session(&self, id: SessionId) -> Option<&Session> {
        self.sessions.get(&id)
    }

    /// The pages and their holders.
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Device pages that no session holds.
    pub fn device_free(&self) -> u32 {
        self.pages.device_free()
    }

    /// Host pages that no session holds.
    pub fn host_free(&self) -> u32 {
        self.pages.host_free()
    }

    /// Device pages that were missing when the last plan was made.
    pub fn short(&self) -> u32 {
        self.short
    }

    /// The number of the plan whose step is under way; of the first, if there are two.
    pub fn step(&self) -> Option<u64> {
        self.steps.front().copied()
    }

    /// Checks that every page is free or held by the counted sessions.
    ///
    /// # Panics
    /// If one is not: a bug of the scheduler.
    pub fn audit(&self) {
        self.pages.audit(self.sessions.values().map(Session::table).chain(self.incoming.values()));
        for s in self.sessions.values() {
            assert!(s.residency() != Residency::Gone || s.context == 0, "{} has lost its context", s.id);
            let here = s.residency() == Residency::Device || s.surplus;
            assert!(s.in_step == 0 || here, "{} computes elsewhere", s.id);
        }
    }

    fn must(&mut self, id: SessionId) -> &mut Session {
        self.sessions.get_mut(&id).unwrap_or_else(|| panic!("{id} is in a plan but not in the state"))
    }

    /// The pages and a session, both mutable.
    fn with(&mut self, id: SessionId) -> (&mut Pages, &mut Session) {
        let session = self.sessions.get_mut(&id);
        (&mut self.pages, session.unwrap_or_else(|| panic!("{id} is in a plan but not in the state")))
    }

    /// Device pages with the contents of a session that is off the device: those of its prefix that others computed or
    /// brought back.
    pub(crate) fn present(&self, session: &Session) -> Vec<u32> {
        if session.residency() != Residency::Gone {
            return self.pages.returned(&session.table);
        }
        let Capacity { page_tokens, chunk, .. } = self.capacity;
        if !chunk.is_multiple_of(page_tokens) {
            return Vec::new();
        }
        let chunks = session.findable() / u64::from(chunk);
        let most = (chunks * u64::from(chunk) / u64::from(page_tokens)) as usize;
        let mut found = self.pages.find(&session.names[..session.names.len().min(most)]);
        let tokens = found.len() as u64 * u64::from(page_tokens);
        found.truncate((tokens / u64::from(chunk) * u64::from(chunk) / u64::from(page_tokens)) as usize);
        found
    }

    /// How many pages that a session's next step writes to are shared.
    pub(crate) fn shared_writes(&self, session: &Session) -> u32 {
        let pages = session.written_pages(self.capacity.page_tokens.into()).into_iter();
        pages.filter(|&at| self.pages.is_shared(&session.table, at)).count() as u32
    }

    /// A new session that begins with the pages of `parent` on the device.
    pub(crate) fn fork(&mut self, parent: SessionId, session: &mut Session) {
        let Some(parent) = self.sessions.get(&parent) else { return };
        (session.rewrites, session.stop) = (parent.rewrites.clone(), parent.stop.clone());
        if session.prompt <= 1 || parent.residency() != Residency::Device {
            return session.rewrites.lose();
        }
        let tokens = parent.context.min(session.prompt - 1);
        session.table = self.pages.fork(&parent.table, self.capacity.pages(tokens));
        session.prompt -= tokens;
        (session.computed, session.in_whole_chunks) = (parent.computed, parent.in_whole_chunks);
        session.context = tokens;
    }

    /// Books what a plan moves, grants and computes, and writes the page numbers into it. A page that leaves is free
    /// when its copy has ended.
    pub(crate) fn begin(&mut self, plan: &mut Plan, lease: Duration, now: Duration) {
        (self.plans, self.short) = (plan.id, plan.short);
        // Pages that the plan counts on are held before any is given away.
        let counted: Vec<u32> =
            plan.grants.iter().flat_map(|grant| self.present(&self.sessions[&grant.session])).collect();
        let mut counted = self.pages.attach(&counted);
        for &id in &plan.discard {
            self.discard(id);
        }
        for &(id, _) in &plan.refused {
            self.remove(id);
        }
        let (discarded, wake) = (plan.discard.len(), &mut plan.wake);
        plan.swap_out.retain_mut(|copy| {
            let (pages, session) = self.with(copy.session);
            // Copies that it counted on may be gone with a discarded session.
            if pages.host_need(&session.table, copy.pages) > pages.host_free() {
                plan.discard.push(copy.session);
                return false;
            }
            copy.way = pages.swap_out(&mut session.table, copy.pages);
            copy.pages = copy.way.copies.len() as u32;
            true
        });
        for &id in &plan.discard[discarded..] {
            self.discard(id);
            *wake = Some(now);
        }
        for copy in &mut plan.swap_in {
            let grant = plan.grants.iter().find(|grant| grant.session == copy.session);
            let length = grant.expect("a session that comes back has a grant").pages;
            let (pages, session) = self.with(copy.session);
            copy.way = pages.swap_in(&mut session.table, length);
            copy.pages = copy.way.copies.len() as u32;
            session.returned = true;
        }
        for grant in &mut plan.grants {
            let page_tokens = u64::from(self.capacity.page_tokens);
            let found = self.present(&self.sessions[&grant.session]);
            let (pages, session) = self.with(grant.session);
            session.lease_until = session.lease_until.max(now + lease);
            if session.residency() == Residency::Arriving {
                // Without those that the copies fill.
                grant.fresh = session.table.device()[session.table.host().len()..].to_vec();
                continue;
            }
            if session.residency() == Residency::Gone {
                session.table = pages.attach(&found);
                assert_eq!(
                    grant.found,
                    found.len() as u64 * page_tokens,
                    "{} finds other pages",
                    grant.session
                );
                session.prompt -= grant.found;
                session.extend(grant.found, true);
            }
            grant.fresh = pages.grow(&mut session.table, grant.pages);
        }
        self.pages.release(&mut counted);
        for entry in &plan.batch {
            let page_tokens = u64::from(self.capacity.page_tokens);
            let (pages, session) = self.with(entry.session());
            session.ahead = session.in_step > 0;
            session.in_step += entry.tokens();
            for at in session.written_pages(page_tokens) {
                plan.duplicates.extend(pages.write(&mut session.table, at));
            }
            plan.rewrites.extend(
                session.rewrites.take(session.context).into_iter().map(|number| (session.id, number)),
            );
        }
        if !plan.batch.is_empty() {
            self.steps.push_back(plan.id);
        }
    }

    /// Books a finished step: contexts grow, and whole prefill chunks become shareable. Phases are left to the
    /// scheduler.
    pub(crate) fn advance(&mut self, entry: &ScheduledSession, now: Duration) {
        let Capacity { chunk, page_tokens, .. } = self.capacity;
        let (pages, session) = self.with(entry.session());
        session.in_step -= entry.tokens();
        session.last_use = now;
        match *entry {
            ScheduledSession::Prefill { tokens, last, .. } => {
                session.reused.get_or_insert(session.context);
                let chunk = u64::from(chunk);
                let whole = if session.context.is_multiple_of(chunk) { tokens / chunk * chunk } else { 0 };
                for (tokens, whole) in [(whole, true), (tokens - whole, false)] {
                    if tokens > 0 {
                        session.extend(tokens, whole);
                    }
                }
                session.prompt -= tokens;
                session.generated += u64::from(last);
                let shared = (session.in_whole_chunks.min(session.context) / u64::from(page_tokens)) as usize;
                pages.publish(&session.table, &session.names[..session.names.len().min(shared)]);
            }
            ScheduledSession::Decode { .. } => {
                session.extend(1, false);
                session.generated += 1;
            }
        }
        session.stop = session.stop.take().filter(|stop| stop.end > session.context);
    }

    /// Books a finished step that does not count for a session, since it `stopped` or its turn ended before.
    pub(crate) fn take_back(&mut self, entry: &ScheduledSession, stopped: bool, now: Duration) {
        let session = self.must(entry.session());
        if stopped {
            session.stop = Some(session.context.max(session.computed)..session.context + entry.tokens());
        }
        session.in_step -= entry.tokens();
        session.last_use = now;
    }

    /// Changes the sessions of the step under way to their state after it, if no turn ends before its limit. Returns
    /// their present state.
    pub(crate) fn foresee(&mut self, plan: &Plan) -> Vec<Standing> {
        let foresee = |entry: &ScheduledSession| {
            let session = self.must(entry.session());
            let before = Standing::of(session);
            session.context += entry.tokens();
            let yields = match *entry {
                ScheduledSession::Prefill { tokens, last, .. } => {
                    session.prompt -= tokens;
                    last
                }
                ScheduledSession::Decode { .. } => true,
            };
            session.generated += u64::from(yields);
            if session.prompt == 0 {
                session.apply(EventKind::PromptDone);
            }
            let full = session.generated >= session.max_tokens || session.context >= session.limit;
            if session.turn_ends || full {
                session.apply(EventKind::EndTurn);
            }
            before
        };
        plan.batch.iter().map(foresee).collect()
    }

    /// Restores the sessions' present state.
    pub(crate) fn restore(&mut self, before: Vec<Standing>) {
        before.into_iter().for_each(|standing| standing.restore(self.must(standing.id)));
    }

    /// Books an ended copy. Returns whether the session's state is lost.
    pub(crate) fn settle(&mut self, copy: CopyOutcome) -> bool {
        let CopyOutcome { session: id, ok } = copy;
        let Some(session) = self.sessions.get_mut(&id) else { return false };
        session.failed_copies = if ok { 0 } else { session.failed_copies + 1 };
        self.pages.end_copy(&mut session.table, ok);
        // Without a context, it was rolled back during the copy.
        let lost = session.residency() == Residency::Gone || session.context == 0;
        if lost {
            self.discard(id);
        }
        if self.sessions[&id].ending {
            self.remove(id);
        }
        lost
    }

    /// Frees a session's pages. Its tokens will be computed again.
    pub(crate) fn discard(&mut self, id: SessionId) {
        let (pages, session) = self.with(id);
        // A decoding session has a chosen token that is not computed. It comes after the rest.
        let pending = session.phase == Phase::Decode || session.paused_from == Some(Phase::Decode);
        session.prompt += std::mem::take(&mut session.context) + u64::from(pending);
        session.rewrites.lose();
        pages.release(&mut session.table);
    }

    /// Drops all but a session's first tokens. Pages that are being copied are freed when the copy ends; those on the
    /// device stay with the session if it `keeps` them.
    pub(crate) fn roll_back(&mut self, id: SessionId, tokens: u64, keeps: bool) {
        let Capacity { page_tokens, .. } = self.capacity;
        let (pages, session) = self.with(id);
        let known = tokens.min(session.context + session.prompt);
        let residency = session.residency();
        let moves = matches!(residency, Residency::Leaving | Residency::Arriving);
        session.context = if moves { 0 } else { session.context.min(known) };
        session.prompt = known - session.context;
        session.computed = session.computed.min(known);
        session.in_whole_chunks = session.in_whole_chunks.min(known);
        session.rewrites.truncate(known);
        session.stop = session.stop.take().filter(|stop| stop.end <= known);
        if session.context == 0 {
            session.rewrites.lose();
        }
        session.names.truncate((known / u64::from(page_tokens)) as usize);
        let most = session.context.div_ceil(u64::from(page_tokens)) as u32;
        match residency {
            Residency::Device if keeps => pages.empty_after(&mut session.table, most),
            Residency::Device | Residency::Host if session.context == 0 => self.discard(id),
            Residency::Device | Residency::Host => pages.truncate(&mut session.table, most),
            Residency::Gone | Residency::Leaving | Residency::Arriving => {}
        }
    }

    /// Ends a session, at once or when its present step and copy have ended.
    pub(crate) fn remove(&mut self, id: SessionId) {
        let session = self.must(id);
        session.ending = true;
        let copying = matches!(session.residency(), Residency::Leaving | Residency::Arriving);
        if session.in_step == 0 && !copying {
            self.discard(id);
            self.sessions.remove(&id);
        }
    }
}
