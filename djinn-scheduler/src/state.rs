//! All sessions and all pages: who holds what. The only place that moves counts of pages.

use crate::error::{Error, Result};
use crate::phase::Phase;
use crate::plan::{CopyOutcome, Entry, Plan};
use crate::session::{Residency, Session, SessionId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// What the machine has.
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
    /// Tokens of a chunk of prefill. Prefill is computed in pieces that end at multiples of this size in the
    /// context, or with the prompt, so that results do not depend on neighbours.
    pub chunk: u32,
}

impl Capacity {
    /// Refuses a machine that cannot run anything.
    pub fn check(&self) -> Result<()> {
        let refuse = |what: &str, remedy| Err(Error::Machine { what: what.to_owned(), remedy });
        let Capacity { device_pages, host_pages: _, page_tokens, rows, sequences, chunk } = *self;
        match () {
            () if device_pages == 0 => refuse("the device holds no KV page", "raise the device budget"),
            () if page_tokens == 0 => refuse("a page holds no token", "set page_tokens to 1 or more"),
            () if sequences == 0 => refuse("a step holds no session", "set sequences to 1 or more"),
            () if chunk == 0 => refuse("a chunk holds no token", "set chunk to 1 or more"),
            () if rows < chunk.saturating_add(sequences) => refuse(
                &format!("a step of {rows} rows cannot hold {sequences} decodes and a chunk of {chunk}"),
                "raise rows to sequences + chunk",
            ),
            () => Ok(()),
        }
    }

    /// Pages that `tokens` tokens take.
    pub fn pages(&self, tokens: u64) -> u32 {
        u32::try_from(tokens.div_ceil(self.page_tokens as u64)).unwrap_or(u32::MAX)
    }
}

/// The sessions and the pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    capacity: Capacity,
    pub(crate) sessions: BTreeMap<SessionId, Session>,
    device_free: u32,
    host_free: u32,
    /// Free device pages that are the executor's.
    reserved: u32,
    /// The plan whose step is under way.
    pub(crate) step: Option<u64>,
    pub(crate) plans: u64,
    /// Device pages that were missing at the last plan.
    pub(crate) short: u32,
}

impl State {
    /// No sessions, all pages free.
    pub fn new(capacity: Capacity) -> Result<Self> {
        capacity.check()?;
        let Capacity { device_pages, host_pages, .. } = capacity;
        Ok(State {
            capacity,
            sessions: BTreeMap::new(),
            device_free: device_pages,
            host_free: host_pages,
            reserved: 0,
            step: None,
            plans: 0,
            short: 0,
        })
    }

    /// What the machine has.
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

    /// Device pages that nobody holds, neither sessions nor the executor.
    pub fn device_free(&self) -> u32 {
        self.device_free.saturating_sub(self.reserved)
    }

    /// Device pages that the executor holds beside those of sessions.
    pub fn reserved(&self) -> u32 {
        self.reserved
    }

    /// Pages that are to become free before [`device_free`](Self::device_free) grows.
    pub(crate) fn deficit(&self) -> u32 {
        self.reserved.saturating_sub(self.device_free)
    }

    pub(crate) fn reserve(&mut self, pages: u32) {
        self.reserved = pages;
    }

    /// Host pages that nobody holds.
    pub fn host_free(&self) -> u32 {
        self.host_free
    }

    /// Device pages that were missing when the last plan was made.
    pub fn short(&self) -> u32 {
        self.short
    }

    /// The number of the plan whose step is under way.
    pub fn step(&self) -> Option<u64> {
        self.step
    }

    /// Checks the accounts: free and held pages add up, and every session holds what its residency says.
    ///
    /// # Panics
    /// If they do not: a bug of the scheduler.
    pub fn audit(&self) {
        let sum = |pages: fn(&Session) -> u32| self.sessions.values().map(|s| pages(s) as u64).sum::<u64>();
        let (device, host) = (sum(|s| s.device_pages), sum(|s| s.host_pages));
        assert_eq!(device + self.device_free as u64, self.capacity.device_pages as u64, "device pages");
        assert_eq!(host + self.host_free as u64, self.capacity.host_pages as u64, "host pages");
        for s in self.sessions.values() {
            let held = (s.device_pages > 0, s.host_pages > 0);
            let expected = match s.residency {
                Residency::Device => (true, false),
                Residency::Host => (false, true),
                Residency::Gone => (false, false),
                Residency::Leaving | Residency::Arriving => (true, true),
            };
            assert_eq!(held, expected, "{} is {:?}", s.id, s.residency);
            assert!(s.residency != Residency::Gone || s.context == 0, "{} has lost its context", s.id);
            assert!(s.in_step == 0 || s.residency == Residency::Device, "{} computes elsewhere", s.id);
        }
    }

    fn must(&mut self, id: SessionId) -> &mut Session {
        self.sessions.get_mut(&id).unwrap_or_else(|| panic!("{id} is in a plan but not in the state"))
    }

    /// Takes device pages for a session that is on the device, or comes to it.
    fn grant(&mut self, id: SessionId, pages: u32) {
        assert!(pages <= self.device_free, "{id} wants {pages} pages, {} are free", self.device_free);
        self.device_free -= pages;
        self.must(id).device_pages += pages;
    }

    /// Books what a plan moves, grants and computes. A page that leaves is free once its copy has ended.
    pub(crate) fn begin(&mut self, plan: &Plan, lease: Duration, now: Duration) {
        (self.plans, self.short) = (plan.id, plan.short);
        for &id in &plan.discard {
            self.discard(id);
        }
        for &(id, _) in &plan.refused {
            self.remove(id);
        }
        for copy in &plan.swap_out {
            assert!(copy.pages <= self.host_free, "{} does not fit the host", copy.session);
            self.host_free -= copy.pages;
            let session = self.must(copy.session);
            let unused = session.device_pages - copy.pages;
            (session.device_pages, session.host_pages) = (copy.pages, copy.pages);
            session.residency = Residency::Leaving;
            self.device_free += unused;
        }
        for copy in &plan.swap_in {
            let session = self.must(copy.session);
            session.residency = Residency::Arriving;
            session.prefetched = true;
        }
        for grant in &plan.grants {
            self.grant(grant.session, grant.pages);
            let session = self.must(grant.session);
            if session.residency == Residency::Gone {
                session.residency = Residency::Device;
            }
            session.lease_until = session.lease_until.max(now + lease);
        }
        for entry in &plan.batch {
            self.must(entry.session()).in_step = entry.tokens();
        }
        self.step = (!plan.batch.is_empty()).then_some(plan.id);
    }

    /// Books a step that has run: contexts grow. Phases are the scheduler's.
    pub(crate) fn advance(&mut self, entry: &Entry, now: Duration) {
        let session = self.must(entry.session());
        session.in_step = 0;
        session.last_use = now;
        session.context += entry.tokens();
        match entry {
            Entry::Prefill { tokens, last, .. } => {
                session.prompt -= tokens;
                session.generated += *last as u64;
            }
            Entry::Decode { .. } => session.generated += 1,
        }
    }

    /// Books prompt tokens of a session that were found in a cache. Nothing happens if it ended meanwhile.
    ///
    /// # Panics
    /// If it is not on the device, or has not so many prompt tokens and one more.
    pub(crate) fn found(&mut self, id: SessionId, tokens: u64) {
        let Some(session) = self.sessions.get_mut(&id).filter(|_| tokens > 0) else { return };
        let (residency, prompt) = (session.residency, session.prompt);
        assert_eq!(residency, Residency::Device, "{tokens} tokens of {id} were found, but it is elsewhere");
        assert!(tokens < prompt, "{tokens} tokens of {id} were found, and its prompt has {prompt} left");
        session.context += tokens;
        session.prompt -= tokens;
    }

    /// Books a copy that has ended. Returns whether the session's state is lost by it.
    pub(crate) fn settle(&mut self, copy: CopyOutcome) -> bool {
        let CopyOutcome { session: id, ok } = copy;
        let Some(session) = self.sessions.get_mut(&id) else { return false };
        session.failed_copies = if ok { 0 } else { session.failed_copies + 1 };
        let lost = match (session.residency, ok) {
            (Residency::Leaving, true) => {
                self.device_free += std::mem::take(&mut session.device_pages);
                session.residency = Residency::Host;
                false
            }
            // Nothing was lost: the pages on the device are as they were.
            (Residency::Leaving, false) | (Residency::Arriving, true) => {
                self.host_free += std::mem::take(&mut session.host_pages);
                session.residency = Residency::Device;
                false
            }
            (Residency::Arriving, false) => {
                self.discard(id);
                true
            }
            (other, _) => panic!("a copy of {id} ended, but it is {other:?}"),
        };
        if self.sessions[&id].ending {
            self.remove(id);
        }
        lost
    }

    /// Gives a session's pages back; its tokens are to be computed again.
    pub(crate) fn discard(&mut self, id: SessionId) {
        let session = self.must(id);
        // A session that decodes has chosen a token that it has not computed: it comes after the rest.
        let pending = session.phase == Phase::Decode || session.paused_from == Some(Phase::Decode);
        session.prompt += std::mem::take(&mut session.context) + u64::from(pending);
        session.residency = Residency::Gone;
        let device = std::mem::take(&mut session.device_pages);
        let host = std::mem::take(&mut session.host_pages);
        self.device_free += device;
        self.host_free += host;
    }

    /// Ends a session: at once, or once the step and the copy that it is in have ended.
    pub(crate) fn remove(&mut self, id: SessionId) {
        let session = self.must(id);
        session.ending = true;
        let copying = matches!(session.residency, Residency::Leaving | Residency::Arriving);
        if session.in_step == 0 && !copying {
            self.discard(id);
            self.sessions.remove(&id);
        }
    }
}
