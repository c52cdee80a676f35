//! A plan under construction.

use super::Parts;
use crate::handler::{PhaseHandler, StepRoom, chunk_left};
use crate::phase::Phase;
use crate::plan::{Grant, Move, Plan, Refusal, ScheduledSession};
use crate::policy::{Decision, View};
use crate::session::{Session, SessionId};
use crate::state::State;
use djinn_pages::{PageCopies, Residency};
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How many queued sessions get room made for them at once.
const LOOKAHEAD: usize = 8;

/// Missing device pages.
#[derive(Clone, Copy, Debug, Default)]
struct Deficit {
    /// For sessions that could compute.
    hard: u32,
    /// For sessions that are about to come.
    soft: u32,
    /// For the most urgent session: a running one that cannot grow, or else the head of the queue.
    urgent: u32,
}

pub(super) struct Draft<'a> {
    state: &'a State,
    /// Those of the state, whose map is walked only once.
    sessions: &'a [&'a Session],
    parts: &'a Parts,
    now: Duration,
    /// Free pages, without those whose copy to the host is under way.
    free: u32,
    host_free: u32,
    /// Pages that become free: their copy to the host is under way, or this plan frees them.
    coming: u32,
    /// By page that several tables hold: how many of them release it.
    released: BTreeMap<u32, u32>,
    /// Host pages that become free with sessions that this plan discards.
    cleared: BTreeSet<u32>,
    /// Free pages whose contents this plan gives to sessions.
    claimed: BTreeSet<u32>,
    /// Pages that computing sessions hold alone and write to next. To share one costs a page, since its writer then
    /// needs a copy. In order.
    written: Vec<u32>,
    missing: Deficit,
    /// Sessions that compute on the device, by rank.
    resident: Vec<&'a Session>,
    /// Those that lack pages to grow.
    starved: Vec<&'a Session>,
    /// The head of the queue, if it is not admitted.
    blocked: Option<&'a Session>,
    /// Sessions that this plan moves or discards.
    moved: BTreeSet<SessionId>,
    plan: Plan,
}

impl<'a> Draft<'a> {
    pub(super) fn new(
        state: &'a State,
        sessions: &'a [&'a Session],
        parts: &'a Parts,
        now: Duration,
    ) -> Self {
        let computes = |s: &&Session| s.is_ready() && s.residency() == Residency::Device;
        let mut resident: Vec<_> = sessions.iter().copied().filter(computes).collect();
        resident.sort_by_key(|s| s.rank());
        let page_tokens = u64::from(state.capacity().page_tokens);
        let writes = |s: &&'a Session| {
            let pages = s.written_pages(page_tokens).into_iter();
            let pages = pages.filter_map(|at| s.table().device().get(at as usize).copied());
            pages.filter(|&page| state.pages().references(page) == 1)
        };
        let mut written: Vec<u32> = resident.iter().flat_map(writes).collect();
        written.sort_unstable();
        let mut draft = Draft {
            state,
            sessions,
            parts,
            now,
            free: state.device_free(),
            host_free: state.host_free(),
            coming: 0,
            released: BTreeMap::new(),
            cleared: BTreeSet::new(),
            claimed: BTreeSet::new(),
            written,
            missing: Deficit::default(),
            resident,
            starved: Vec::new(),
            blocked: None,
            moved: BTreeSet::new(),
            plan: Plan { id: state.plans + 1, ..Plan::default() },
        };
        let leaving = |s: &&Session| s.residency() == Residency::Leaving;
        sessions.iter().copied().filter(leaving).for_each(|session| draft.count_as_freed(session));
        draft
    }

    fn sessions(&self) -> impl Iterator<Item = &'a Session> + use<'a> {
        self.sessions.iter().copied()
    }

    /// Counts a session's pages as free, but for those that others hold.
    fn count_as_freed(&mut self, session: &Session) {
        for &page in session.table().device() {
            let references = self.state.pages().references(page);
            let released = if references == 1 { 1 } else { self.release(page) };
            self.coming += u32::from(released == references);
        }
    }

    /// How many tables release a page that several hold, with this one.
    fn release(&mut self, page: u32) -> u32 {
        let released = self.released.entry(page).or_default();
        *released += 1;
        *released
    }

    fn pages(&self, tokens: u64) -> u32 {
        self.parts.keeper.pages(self.state.capacity(), tokens)
    }

    /// Device pages that a session must hold to compute.
    fn target(&self, session: &Session) -> u32 {
        let tokens = if self.parts.policy.reserves() { session.limit } else { session.wanted_tokens() };
        self.pages(tokens).max(1)
    }

    fn view(&self) -> View<'a> {
        let Draft { state, now, host_free, .. } = *self;
        View { state, cost: &self.parts.cost, now, short: self.short(), host_free }
    }

    fn short(&self) -> u32 {
        self.missing.hard.saturating_add(self.missing.soft).saturating_sub(self.coming)
    }

    fn wake_at(&mut self, at: Duration) {
        let at = at.max(self.now);
        self.plan.wake = Some(self.plan.wake.map_or(at, |wake| wake.min(at)));
    }

    /// Gives a session `need` free pages, so that it has `pages`.
    fn grant(&mut self, session: &Session, pages: u32, need: u32) {
        self.free -= need;
        let present = self.state.present(session);
        let found = match session.residency() {
            Residency::Gone => present.len() as u64 * u64::from(self.state.capacity().page_tokens),
            _ => 0,
        };
        let idle = |page: &u32| self.state.pages().references(*page) == 0;
        self.written.retain(|page| !present.contains(page));
        self.claimed.extend(present.into_iter().filter(idle));
        self.plan.grants.push(Grant { session: session.id, pages, found, fresh: Vec::new() });
    }

    /// Free pages that a session needs to have `pages` pages. Pages with its contents that others hold cost nothing,
    /// unless their holder writes to them next.
    fn need(&self, session: &Session, pages: u32) -> u32 {
        let present = self.state.present(session);
        let counts_as_free =
            |page: &&u32| self.state.pages().references(**page) == 0 && !self.claimed.contains(page);
        let idle = present.iter().filter(counts_as_free).count();
        let copied = present.iter().filter(|page| self.written.binary_search(page).is_ok()).count();
        pages.saturating_sub(present.len() as u32) + (idle + copied) as u32
    }

    /// Gives computing sessions the pages for their next tokens.
    pub(super) fn grow(&mut self) {
        for session in self.resident.clone() {
            let pages = self.target(session).max(session.device_pages());
            let own = self.state.shared_writes(session);
            let need = pages - session.device_pages() + own;
            if need == 0 {
                continue;
            }
            if need <= self.free && self.starved.is_empty() {
                self.grant(session, pages, need);
            } else if !self.times_out(session) {
                self.missing.hard = self.missing.hard.saturating_add(need);
                self.starved.push(session);
            }
        }
        self.missing.urgent = self.missing.hard.saturating_sub(self.free);
    }

    /// Refuses a session that has queued for too long. Otherwise sets the wake time for that.
    fn times_out(&mut self, session: &Session) -> bool {
        let since = session.starving_since();
        let deadline = since + self.parts.rules.queue_timeout;
        let over = self.now >= deadline;
        if over {
            let waited = self.now - since;
            self.plan.refused.push((session.id, Refusal::QueueTimeout { waited }));
            self.moved.insert(session.id);
        } else {
            self.wake_at(deadline);
        }
        over
    }

    /// Admits queued sessions in order. A smaller one does not overtake.
    pub(super) fn admit(&mut self) {
        let off = |s: &&Session| matches!(s.residency(), Residency::Host | Residency::Gone);
        let mut queue: Vec<_> = self.sessions().filter(|s| s.is_ready()).filter(off).collect();
        queue.sort_by_key(|s| s.rank());
        let arriving = |s: &&Session| s.is_ready() && s.residency() == Residency::Arriving;
        let mut active = self.resident.len() + self.sessions().filter(arriving).count();
        let mut looked_at = 0;
        for session in queue {
            let room = active < self.state.capacity().sequences as usize;
            let first = self.starved.is_empty() && self.blocked.is_none();
            // Only the first of the queue are looked up; the rest waits.
            let need = (room && looked_at < LOOKAHEAD).then(|| self.need(session, self.target(session)));
            if let Some(need) = need.filter(|&need| first && need <= self.free) {
                active += 1;
                self.grant(session, self.target(session), need);
                match session.residency() {
                    Residency::Host => self.swap_in(session),
                    _ => self.resident.push(session),
                }
                continue;
            }
            if self.times_out(session) {
                continue;
            }
            if let Some(need) = need {
                looked_at += 1;
                if first {
                    self.missing.urgent = need.saturating_sub(self.free);
                }
                self.missing.hard = self.missing.hard.saturating_add(need);
            }
            self.blocked = self.blocked.or(Some(session));
        }
        // An imported session comes after the queue.
        let demanded = self.state.demanded;
        self.missing.hard = self.missing.hard.saturating_add(demanded);
        // Free pages are not missing.
        if demanded > 0 || self.blocked.is_some() || !self.starved.is_empty() {
            self.missing.hard = self.missing.hard.saturating_sub(self.free);
        }
    }

    fn swap_in(&mut self, session: &Session) {
        self.moved.insert(session.id);
        let (id, pages) = (session.id, session.host_pages());
        self.plan.swap_in.push(Move { session: id, pages, way: PageCopies::default() });
    }

    /// Brings back sessions whose wait ends soon.
    pub(super) fn restore(&mut self) {
        let mut due = Vec::new();
        let away = |s: &&Session| s.is_parked() && s.residency() == Residency::Host && !s.returned;
        for session in self.sessions().filter(away) {
            match self.parts.policy.restore_at(&self.view(), session) {
                Some(at) if at <= self.now => due.push((session.priority, at, session)),
                Some(at) => self.wake_at(at),
                None => {}
            }
        }
        due.sort_by_key(|&(priority, at, session)| (priority, at, session.id));
        for (.., session) in due {
            let pages = session.host_pages();
            let need = self.need(session, pages);
            if self.missing.hard == 0 && self.blocked.is_none() && need <= self.free {
                self.grant(session, pages, need);
                self.swap_in(session);
            } else {
                self.missing.soft = self.missing.soft.saturating_add(need);
            }
        }
    }

    /// Keeps some pages free for the next session that comes back.
    pub(super) fn headroom(&mut self) {
        let off = |s: &Session| !matches!(s.residency(), Residency::Device | Residency::Arriving);
        if !self.parts.policy.reserves() && self.sessions().any(off) {
            let pages = self.state.capacity().device_pages as f64 * self.parts.rules.headroom;
            self.missing.soft = self.missing.soft.saturating_add((pages as u32).saturating_sub(self.free));
        }
    }

    /// Takes pages of waiting sessions: first those that the policy gives up, then those on demand.
    pub(super) fn evict(&mut self) {
        let parked = self.sessions().filter(|s| s.is_parked() && s.residency() == Residency::Device);
        let (leased, mut lapsed): (Vec<_>, Vec<_>) = parked.partition(|s| s.lease_until > self.now);
        let view = self.view();
        lapsed.sort_by_cached_key(|s| (Reverse(self.parts.policy.rank(&view, s)), Reverse(s.priority), s.id));
        for session in &lapsed {
            let verdict = self.parts.policy.verdict(&self.view(), session);
            if let Some(at) = verdict.review.filter(|&at| at > self.now) {
                self.wake_at(at);
            }
            self.send_away(session, verdict.decision, false);
        }
        for session in &lapsed {
            let wanted = self.missing.hard > self.coming;
            if wanted && self.parts.policy.rank(&view, session).is_some() {
                self.send_away(session, Decision::Swap, true);
            }
        }
        if self.short() > 0
            && let Some(end) = leased.iter().map(|s| s.lease_until).min()
        {
            self.wake_at(end);
        }
    }

    /// Moves or discards a session's pages, as the keeper places them.
    fn send_away(&mut self, session: &Session, wish: Decision, pressing: bool) {
        if wish == Decision::Keep || self.moved.contains(&session.id) {
            return;
        }
        let placed = match session.context {
            0 => Decision::Discard,
            _ => self.parts.keeper.place(&self.view(), session, wish, pressing),
        };
        if placed == Decision::Keep {
            return;
        }
        let (pages, book) = (self.pages(session.context), self.state.pages());
        let cleared = book.copied(session.table()).filter(|page| self.cleared.contains(page)).count();
        let need = book.host_need(session.table(), pages) + cleared as u32;
        let host_full = wish == Decision::Swap && placed == Decision::Discard && need > self.host_free;
        let placed = if host_full && self.clear_host(session, need) { Decision::Swap } else { placed };
        match placed {
            Decision::Swap if need <= self.host_free => {
                self.host_free -= need;
                self.plan.swap_out.push(Move { session: session.id, pages, way: PageCopies::default() });
            }
            Decision::Discard => self.plan.discard.push(session.id),
            _ => return,
        }
        self.count_as_freed(session);
        self.moved.insert(session.id);
    }

    /// Makes room on the host for `need` pages of `session`: discards sessions that will be away for longer,
    /// the longest first. Returns whether there is enough.
    fn clear_host(&mut self, session: &Session, need: u32) -> bool {
        let (view, policy) = (self.view(), &self.parts.policy);
        let own = if session.is_parked() { policy.rank(&view, session) } else { Some(0) };
        let away =
            |s: &&Session| s.is_parked() && s.residency() == Residency::Host && !self.moved.contains(&s.id);
        let ranked = self.sessions().filter(away).map(|s| (policy.rank(&view, s), s));
        let mut longer: Vec<_> = ranked.filter(|(rank, _)| *rank > own).collect();
        longer.sort_by_key(|&(rank, s)| (Reverse(rank), s.id));
        // A page of theirs stays if another session holds it, or one that leaves has the same on the device.
        let (book, mut released, mut cleared) = (self.state.pages(), BTreeMap::new(), BTreeSet::new());
        let leaving = self.plan.swap_out.iter().filter_map(|copy| self.state.session(copy.session));
        let kept: BTreeSet<u32> = leaving.chain([session]).flat_map(|s| book.copied(s.table())).collect();
        let enough = longer.iter().position(|(_, s)| {
            for &page in s.table().host() {
                let count = released.entry(page).or_insert(0);
                *count += 1;
                if *count == book.host_references(page) && !kept.contains(&page) {
                    cleared.insert(page);
                }
            }
            self.host_free + cleared.len() as u32 >= need
        });
        let Some(last) = enough else { return false };
        for (_, victim) in &longer[..=last] {
            self.plan.discard.push(victim.id);
            self.moved.insert(victim.id);
        }
        self.host_free += cleared.len() as u32;
        self.cleared.extend(cleared);
        true
    }

    /// If waiting sessions cannot give enough: takes pages of computing sessions, last in rank first, for one that
    /// cannot grow or has a better priority, and only as many as needed.
    pub(super) fn preempt(&mut self) {
        if self.parts.policy.reserves() {
            return;
        }
        let Some(needy) = self.starved.first().copied().or(self.blocked) else { return };
        let grows = !self.starved.is_empty();
        for victim in self.resident.clone().into_iter().rev() {
            let was_here = victim.residency() == Residency::Device;
            let outranked = victim.priority > needy.priority && victim.lease_until <= self.now;
            let yields = victim.rank() > needy.rank() && (grows || outranked);
            if was_here && yields && self.missing.urgent > self.coming {
                self.plan.grants.retain(|grant| grant.session != victim.id);
                self.send_away(victim, Decision::Swap, true);
            }
        }
    }

    /// Fills the step: phases in their handlers' order, sessions by rank.
    pub(super) fn fill(&mut self) {
        let mut runnable = std::mem::take(&mut self.resident);
        let starved: BTreeSet<_> = self.starved.iter().map(|s| s.id).collect();
        runnable.retain(|s| !self.moved.contains(&s.id) && !starved.contains(&s.id));
        let capacity = self.state.capacity();
        // The tokens of a stop that do not fit beside all decodes go first, unless a decode has waited for longer.
        let decodes = runnable.iter().filter(|s| s.phase == Phase::Decode);
        let longest = decodes.map(|s| s.starving_since()).min().unwrap_or(Duration::MAX);
        let goes_first = |s: &Session| {
            let most = u64::from(capacity.prompt_rows());
            s.stopped_tokens().is_some_and(|tokens| tokens > most) && s.starving_since() <= longest
        };
        runnable
            .sort_by_key(|s| (!goes_first(s), self.handler(s).order(), s.phase == Phase::Prefill, s.rank()));
        let mut room = StepRoom {
            rows: capacity.rows,
            rows_left: capacity.rows,
            chunk: capacity.chunk,
            prompt_rows: capacity.prompt_rows(),
            empty_beside_decodes: capacity.rows - capacity.rows_beside_decodes(),
            decoding: 0,
            prefilling: 0,
        };
        for session in &runnable {
            if self.plan.batch.len() >= capacity.sequences as usize || room.rows_left == 0 {
                break;
            }
            let session = self.with_found(session);
            let tokens = self.handler(&session).tokens(&room, &session);
            self.enter(&session, tokens, &mut room);
        }
        // If the handlers choose no session, a step without any would never end.
        if let (true, Some(session)) = (self.plan.batch.is_empty(), runnable.first()) {
            let session = self.with_found(session);
            self.enter(&session, chunk_left(session.context, capacity.chunk), &mut room);
        }
        let goes_first =
            |entry: &ScheduledSession| self.state.session(entry.session()).is_some_and(goes_first);
        let first = self.plan.batch.iter().take_while(|entry| goes_first(entry)).count();
        self.plan.batch.rotate_left(first);
    }

    /// A session with the prefix that this plan finds for it.
    fn with_found(&self, session: &'a Session) -> Cow<'a, Session> {
        let mut session = Cow::Borrowed(session);
        if session.residency() == Residency::Gone {
            let grant = self.plan.grants.iter().find(|grant| grant.session == session.id);
            let found = grant.map_or(0, |grant| grant.found);
            let session = session.to_mut();
            (session.context, session.prompt) = (session.context + found, session.prompt - found);
        }
        session
    }

    fn handler(&self, session: &Session) -> &'a dyn PhaseHandler {
        match session.phase {
            Phase::Prefill => &*self.parts.prefill,
            _ => &*self.parts.decode,
        }
    }

    fn enter(&mut self, session: &Session, tokens: u64, room: &mut StepRoom) {
        let prompt = session.prompt.min(session.tokens_before_a_cut());
        let most = if session.phase == Phase::Prefill { prompt } else { 1 };
        let rows_left = u64::from(room.rows_left);
        let tokens = match session.stopped_tokens().filter(|&stopped| stopped <= most && tokens > 0) {
            Some(stopped) => stopped,
            None => tokens.min(most).min(rows_left),
        };
        if tokens == 0 || tokens > rows_left {
            return;
        }
        room.rows_left -= tokens as u32;
        self.plan.batch.push(if session.phase == Phase::Prefill {
            room.prefilling += tokens as u32;
            ScheduledSession::Prefill { session: session.id, tokens, last: tokens == session.prompt }
        } else {
            room.decoding += 1;
            ScheduledSession::Decode { session: session.id }
        });
    }

    /// Whether a session lacks pages, or the policy would move pages of a waiting one.
    pub(super) fn wants_moves(&self) -> bool {
        let parked = |s: &Session| s.is_parked() && s.residency() == Residency::Device;
        let is_short = self.missing.soft > 0 && self.sessions().any(parked);
        is_short || !self.starved.is_empty() || !self.plan.refused.is_empty()
    }

    /// The plan of a step that is submitted while the step of `before` is under way. `None` if a session outside of
    /// that step would compute, or more than one token.
    pub(super) fn finish_after(self, before: &Plan) -> Option<Plan> {
        let follows = |entry: &ScheduledSession| {
            let session = self.state.session(entry.session());
            matches!(entry, ScheduledSession::Decode { .. }) && session.is_some_and(|s| s.in_step > 0)
        };
        let batch = &self.plan.batch;
        let all_follow = !batch.is_empty() && batch.iter().all(follows);
        all_follow.then_some(Plan { wake: before.wake, short: before.short, ..self.plan })
    }

    pub(super) fn finish(mut self) -> Plan {
        let freed_at_once = !self.plan.discard.is_empty() || !self.plan.refused.is_empty();
        if freed_at_once && (self.missing.hard > 0 || self.blocked.is_some()) {
            self.wake_at(self.now);
        }
        // Leases of computing sessions end as well.
        if let (Some(needy), true) = (self.blocked, self.missing.hard > self.coming) {
            let lapse = |s: &&Session| s.priority > needy.priority && s.lease_until > self.now;
            let ends = self.sessions().filter(|s| s.is_ready()).filter(lapse).map(|s| s.lease_until);
            if let Some(end) = ends.min() {
                self.wake_at(end);
            }
        }
        self.plan.short = self.short();
        self.plan
    }
}
