//! One run: clients act, the scheduler plans, the backend reports.

use super::{Clock, RunSpan};
use crate::backend::Backend;
use crate::event_loop::{EventLoop, Pumped};
use crate::plan::{CopyOutcome, Move, Outcome, Plan, ScheduledSession, TurnEnd};
use crate::scheduler::{Scheduler, SessionEvent};
use crate::session::{Arrival, SessionId};
use crate::signal::Signal;
use crate::sim::report::{LatencyParts, Report, Sample, TurnRecord};
use crate::sim::workload::{Agent, Script};
use crate::sim::{Oracle, Workload};
use djinn_pages::{PageName, Residency};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

/// The time after which a refused client tries its next session.
const BACK_OFF: Duration = Duration::from_secs(1);
const SAMPLES: u32 = 240;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    /// An agent begins a session.
    Start(usize),
    /// A session's wait is over.
    Back(SessionId),
}

/// A session as its client sees it.
#[derive(Debug)]
struct Client {
    agent: usize,
    script: Script,
    turn: usize,
    asked: Duration,
    /// When the copy to the device began, or when the request came if that was later.
    restore_from: Option<Duration>,
    first_step: Option<Duration>,
    prefilled: Duration,
    /// When the client signalled a wait, or when its turn ended without a signal.
    waits_since: Option<Duration>,
}

pub(super) struct Run<'a> {
    core: EventLoop,
    backend: &'a mut dyn Backend,
    clock: &'a mut dyn Clock,
    agents: Vec<Agent>,
    /// Tokens at the beginning of all first prompts.
    shared: u64,
    oracle: Option<&'a Oracle>,
    span: RunSpan,
    now: Duration,
    heap: BinaryHeap<Reverse<(Duration, u64, Happening)>>,
    events: u64,
    clients: BTreeMap<SessionId, Client>,
    /// For sessions whose pages leave: the beginning of their wait.
    leaving: BTreeMap<SessionId, Duration>,
    next_sample: Duration,
    pub(super) report: Report,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        scheduler: Scheduler,
        backend: &'a mut dyn Backend,
        clock: &'a mut dyn Clock,
        workload: &Workload,
        span: RunSpan,
        oracle: Option<&'a Oracle>,
    ) -> Self {
        let policy = scheduler.parts().policy.name().to_owned();
        let mut run = Run {
            core: EventLoop::new(scheduler),
            backend,
            clock,
            agents: workload.agents.clone(),
            shared: workload.shared,
            oracle,
            span,
            now: Duration::ZERO,
            heap: BinaryHeap::new(),
            events: 0,
            clients: BTreeMap::new(),
            leaving: BTreeMap::new(),
            next_sample: Duration::ZERO,
            report: Report { policy, ..Report::default() },
        };
        for agent in 0..run.agents.len() {
            run.push(run.agents[agent].start, Happening::Start(agent));
        }
        run
    }

    pub(super) fn until_the_end(&mut self) {
        let end = self.span.end;
        while let Some(at) = self.next_time() {
            self.clock.wait(Some(at.min(end)), self.backend.next_event().is_some());
            self.tick();
            if self.now > end || (self.now == end && at > end) {
                break;
            }
            self.sample();
            self.happen();
            self.pump();
            if self.report.failure.is_some() {
                break;
            }
        }
        self.report.open = self.clients.len() as u64;
        self.report.ended = self.now;
        self.report.measured = self.now.saturating_sub(self.span.warm_up);
    }

    /// Aborts open sessions and waits for work under way. The report is complete before.
    pub(super) fn close(&mut self) {
        let ids: Vec<_> = self.core.scheduler().state().sessions().map(|session| session.id).collect();
        for id in ids {
            // A session that is ending already is unknown to clients.
            let _missing = self.core.scheduler_mut().event(id, SessionEvent::Abort, self.now);
        }
        while self.report.failure.is_none() {
            match self.core.pump(self.backend, self.now) {
                Ok(Some(_)) => {}
                Ok(None) => match self.backend.next_event() {
                    Some(at) => self.clock.wait(Some(at), true),
                    None => break,
                },
                Err(error) => self.report.failure = Some(error.to_string()),
            }
            self.tick();
        }
        if self.report.failure.is_none() {
            self.core.scheduler().state().audit();
        }
    }

    fn tick(&mut self) {
        self.now = self.now.max(self.clock.now());
    }

    fn push(&mut self, at: Duration, happening: Happening) {
        self.events += 1;
        self.heap.push(Reverse((at, self.events, happening)));
    }

    fn next_time(&self) -> Option<Duration> {
        let client = self.heap.peek().map(|Reverse((at, ..))| *at);
        client.into_iter().chain(self.core.next_event(self.backend)).min()
    }

    fn measured(&self) -> bool {
        self.now >= self.span.warm_up
    }

    /// Lets clients act whose time has come.
    fn happen(&mut self) {
        while let Some(Reverse((at, _, happening))) = self.heap.peek().copied() {
            if at > self.now {
                break;
            }
            self.heap.pop();
            match happening {
                Happening::Start(agent) => self.start(agent, at),
                Happening::Back(id) => self.back(id, at),
            }
        }
    }

    fn start(&mut self, agent: usize, asked: Duration) {
        let Some(script) = self.agents[agent].next() else { return };
        self.report.arrived += 1;
        let id = SessionId(self.report.arrived);
        let turn = &script.turns[0];
        let arrival = Arrival {
            id,
            priority: script.priority,
            prompt: turn.prompt,
            max_tokens: turn.output,
            limit: script.tokens(),
        };
        match self.core.scheduler_mut().arrive(&arrival, self.now) {
            Ok(()) => {
                let names = self.names(id, arrival.prompt);
                self.core.scheduler_mut().name_pages(id, names);
                let client = Client {
                    agent,
                    script,
                    turn: 0,
                    asked,
                    restore_from: None,
                    first_step: None,
                    prefilled: asked,
                    waits_since: None,
                };
                self.clients.insert(id, client);
            }
            Err(_) => {
                self.report.refused += 1;
                self.push(self.now + BACK_OFF, Happening::Start(agent));
            }
        }
    }

    /// Names of the pages of a first prompt. Sessions differ after their shared tokens.
    fn names(&self, id: SessionId, prompt: u64) -> Vec<PageName> {
        let mut names = Vec::new();
        let own = |at: u64| if at < self.shared { 0 } else { id.0 as u32 };
        let tokens: Vec<u32> = (0..prompt).filter(|_| self.shared > 0).map(own).collect();
        PageName::extend(&mut names, &[], &tokens, self.core.scheduler().state().capacity().page_tokens);
        names
    }

    /// Ends a session's wait: its next turn begins, or it ends and its agent begins the next session.
    fn back(&mut self, id: SessionId, asked: Duration) {
        let measured = self.measured();
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.turn += 1;
        let Some(turn) = client.script.turns.get(client.turn) else {
            let agent = client.agent;
            self.clients.remove(&id);
            self.core
                .scheduler_mut()
                .event(id, SessionEvent::End, self.now)
                .expect("an open session can end");
            self.report.finished += 1;
            self.report.finished_in_span += measured as u64;
            return self.start(agent, asked);
        };
        // The last token of the previous turn has no keys and values yet.
        let event = SessionEvent::NextTurn { prompt: turn.prompt + 1, max_tokens: turn.output };
        let session = self.core.scheduler().state().session(id);
        let arriving = session.is_some_and(|session| session.residency() == Residency::Arriving);
        client.asked = asked;
        (client.restore_from, client.first_step) = (arriving.then_some(asked), None);
        client.waits_since = None;
        self.core.scheduler_mut().event(id, event, self.now).expect("a script's turns fit its session");
    }

    /// Does what is to be done now. Clients that come back at once act before the next plan.
    fn pump(&mut self) {
        loop {
            let pumped = self.core.pump(self.backend, self.now);
            self.tick();
            match pumped {
                Ok(None) => return,
                Ok(Some(Pumped::Step(plan, outcome))) => self.completed(&plan, &outcome),
                Ok(Some(Pumped::Copies(copies))) => self.copied(&copies),
                Ok(Some(Pumped::Plan)) => self.planned(),
                Err(error) => {
                    self.report.failure = Some(error.to_string());
                    return;
                }
            }
            self.happen();
        }
    }

    fn completed(&mut self, plan: &Plan, outcome: &Outcome) {
        self.copied(&outcome.copies);
        let measured = self.measured();
        for entry in &plan.batch {
            let yields = !matches!(entry, ScheduledSession::Prefill { last: false, .. });
            self.report.tokens += (yields && measured) as u64;
            if let ScheduledSession::Prefill { session, last: true, .. } = entry
                && let Some(client) = self.clients.get_mut(session)
            {
                client.prefilled = self.now;
            }
        }
        for (id, end) in &outcome.ended {
            self.end_turn(*id, end);
        }
    }

    fn copied(&mut self, copies: &[CopyOutcome]) {
        for &CopyOutcome { session, ok } in copies {
            self.report.failed_copies += !ok as u64;
            if let Some(since) = self.leaving.remove(&session)
                && ok
                && self.measured()
            {
                self.report.signal_to_free.push(self.now.saturating_sub(since));
            }
        }
    }

    fn end_turn(&mut self, id: SessionId, end: &TurnEnd) {
        let (measured, now) = (self.measured(), self.now);
        let Some(client) = self.clients.get_mut(&id) else { return };
        if *end == TurnEnd::Failed {
            return self.refuse(id);
        }
        let turn = &client.script.turns[client.turn];
        let began = client.first_step.unwrap_or(now);
        let room = client.restore_from.unwrap_or(began).min(began).max(client.asked);
        let prefilled = client.prefilled.max(began);
        let parts = LatencyParts {
            queue: room - client.asked,
            restore: began - room,
            prefill: prefilled - began,
            decode: now - prefilled,
        };
        let record = TurnRecord { session: id, asked: client.asked, ended: now, tokens: turn.output, parts };
        if measured {
            self.report.turns.push(record);
        }
        client.waits_since = Some(now);
        let (back, waits) = (now + turn.wait, !turn.wait.is_zero());
        let estimated_resume_ms = turn.hint.map(|hint| (hint.as_millis() as u64).max(1));
        let signal = Signal::IoWait { tool: turn.tool.clone(), estimated_resume_ms };
        if let Some(oracle) = self.oracle {
            oracle.tell(id, back);
        }
        if waits {
            self.signal(id, signal);
        }
        self.push(back, Happening::Back(id));
    }

    fn signal(&mut self, id: SessionId, signal: Signal) {
        let before = self.clock.now();
        self.core.scheduler_mut().signal(id, signal, self.now);
        let took = self.clock.now().saturating_sub(before);
        if self.measured() && self.clock.is_real() {
            self.report.signals.push(took);
        }
        if let Some(client) = self.clients.get_mut(&id) {
            client.waits_since = Some(before.max(self.now));
        }
    }

    fn refuse(&mut self, id: SessionId) {
        if let Some(client) = self.clients.remove(&id) {
            self.report.refused += 1;
            self.push(self.now + BACK_OFF, Happening::Start(client.agent));
        }
    }

    fn planned(&mut self) {
        let measured = self.measured();
        let plan = self.core.plan();
        let cost = &self.core.scheduler().parts().cost;
        let bytes = |moves: &[Move]| moves.iter().map(|copy| cost.bytes(copy.pages)).sum::<u64>();
        let decodes =
            plan.batch.iter().filter(|entry| matches!(entry, ScheduledSession::Decode { .. })).count();
        self.report.steps += !plan.batch.is_empty() as u64;
        self.report.decodes += decodes as u64;
        self.report.found += plan.grants.iter().map(|grant| grant.found).sum::<u64>();
        self.report.discards += plan.discard.len() as u64;
        self.report.swaps_out += plan.swap_out.len() as u64;
        self.report.swaps_in += plan.swap_in.len() as u64;
        self.report.bytes_out += bytes(&plan.swap_out);
        self.report.bytes_in += bytes(&plan.swap_in);
        for id in plan.swap_out.iter().map(|copy| copy.session).chain(plan.discard.iter().copied()) {
            let computes = self.clients.get(&id).is_some_and(|client| client.waits_since.is_none());
            self.report.preemptions += computes as u64;
        }
        for copy in &plan.swap_out {
            let waits_since = self.clients.get(&copy.session).and_then(|client| client.waits_since);
            let Some(since) = waits_since else { continue };
            self.leaving.insert(copy.session, since);
            if measured {
                self.report.signal_to_submit.push(self.now.saturating_sub(since));
            }
        }
        for copy in &plan.swap_in {
            if let Some(client) = self.clients.get_mut(&copy.session) {
                client.restore_from = Some(self.now);
            }
        }
        for entry in &plan.batch {
            if let Some(client) = self.clients.get_mut(&entry.session()) {
                client.first_step.get_or_insert(self.now);
            }
        }
        for (id, _) in plan.refused.clone() {
            self.refuse(id);
        }
    }

    fn sample(&mut self) {
        if self.now < self.next_sample {
            return;
        }
        self.next_sample = self.now + self.span.end / SAMPLES;
        let state = self.core.scheduler().state();
        let capacity = state.capacity();
        let mut sample = Sample {
            at: self.now,
            device_pages: capacity.device_pages - state.device_free(),
            host_pages: capacity.host_pages - state.host_free(),
            ..Sample::default()
        };
        for session in state.sessions() {
            sample.sessions += 1;
            sample.ready += session.is_ready() as u32;
            *match session.residency() {
                Residency::Device => &mut sample.on_device,
                Residency::Host => &mut sample.on_host,
                Residency::Gone => &mut sample.gone,
                Residency::Leaving | Residency::Arriving => &mut sample.moving,
            } += 1;
        }
        self.report.samples.push(sample);
    }
}
