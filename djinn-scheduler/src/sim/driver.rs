//! The event loop: clients, the scheduler and a backend, in simulated time.

use super::belady::Oracle;
use super::report::{Parts, Report, Sample, TurnRecord};
use super::workload::{Agent, Script, Workload};
use crate::backend::{Backend, Completion};
use crate::plan::{CopyOutcome, Entry, Outcome, Plan, TurnEnd};
use crate::scheduler::{Event, Scheduler};
use crate::session::{Arrival, Residency, SessionId};
use crate::signal::Signal;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

/// What is simulated, and what of it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Nothing counts before: the machine fills.
    pub warm_up: Duration,
    /// The end. A workload that ends is over earlier.
    pub end: Duration,
}

/// A client that is refused tries its next session after this.
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
    /// When the copy to the device began; the request, if it was under way then.
    restore_from: Option<Duration>,
    first_step: Option<Duration>,
    prefilled: Duration,
}

/// Runs a workload through a scheduler and a backend until the span's end, or until nothing is left to happen.
/// `oracle` learns the ends of waits before they come, for [`Belady`](super::Belady).
pub fn simulate(
    scheduler: Scheduler,
    backend: Box<dyn Backend>,
    workload: &Workload,
    span: Span,
    oracle: Option<&Oracle>,
) -> Report {
    let mut run = Run::new(scheduler, backend, workload, span, oracle);
    while let Some(at) = run.next_time().filter(|&at| at <= span.end) {
        run.now = at.max(run.now);
        run.sample();
        run.happen();
        run.complete();
        run.plan();
    }
    run.finish()
}

struct Run<'a> {
    scheduler: Scheduler,
    backend: Box<dyn Backend>,
    agents: Vec<Agent>,
    oracle: Option<&'a Oracle>,
    span: Span,
    now: Duration,
    heap: BinaryHeap<Reverse<(Duration, u64, Happening)>>,
    events: u64,
    clients: BTreeMap<SessionId, Client>,
    under_way: Option<Plan>,
    wake: Option<Duration>,
    next_sample: Duration,
    report: Report,
}

impl<'a> Run<'a> {
    fn new(
        scheduler: Scheduler,
        backend: Box<dyn Backend>,
        workload: &Workload,
        span: Span,
        oracle: Option<&'a Oracle>,
    ) -> Self {
        let policy = scheduler.parts().policy.name().to_owned();
        let mut run = Run {
            scheduler,
            backend,
            agents: workload.agents.clone(),
            oracle,
            span,
            now: Duration::ZERO,
            heap: BinaryHeap::new(),
            events: 0,
            clients: BTreeMap::new(),
            under_way: None,
            wake: None,
            next_sample: Duration::ZERO,
            report: Report { policy, ..Report::default() },
        };
        for agent in 0..run.agents.len() {
            run.push(run.agents[agent].start, Happening::Start(agent));
        }
        run
    }

    fn push(&mut self, at: Duration, happening: Happening) {
        self.events += 1;
        self.heap.push(Reverse((at, self.events, happening)));
    }

    fn next_time(&self) -> Option<Duration> {
        let client = self.heap.peek().map(|Reverse((at, ..))| *at);
        let wake = self.wake.filter(|_| self.under_way.is_none());
        [client, self.backend.next_event(), wake].into_iter().flatten().min()
    }

    fn measured(&self) -> bool {
        self.now >= self.span.warm_up
    }

    /// Clients act.
    fn happen(&mut self) {
        while let Some(Reverse((at, _, happening))) = self.heap.peek().copied() {
            if at > self.now {
                break;
            }
            self.heap.pop();
            match happening {
                Happening::Start(agent) => self.start(agent),
                Happening::Back(id) => self.back(id),
            }
        }
    }

    fn start(&mut self, agent: usize) {
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
        match self.scheduler.arrive(&arrival, self.now) {
            Ok(()) => {
                let client = Client {
                    agent,
                    script,
                    turn: 0,
                    asked: self.now,
                    restore_from: None,
                    first_step: None,
                    prefilled: self.now,
                };
                self.clients.insert(id, client);
            }
            Err(_) => {
                self.report.refused += 1;
                self.push(self.now + BACK_OFF, Happening::Start(agent));
            }
        }
    }

    /// A session's wait is over: its next turn, or its end and its agent's next session.
    fn back(&mut self, id: SessionId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.turn += 1;
        let Some(turn) = client.script.turns.get(client.turn) else {
            let agent = client.agent;
            self.clients.remove(&id);
            self.scheduler.event(id, Event::End, self.now).expect("an open session can end");
            self.report.finished += 1;
            return self.start(agent);
        };
        // The last token of the turn before has no keys and values yet.
        let event = Event::NextTurn { prompt: turn.prompt + 1, max_tokens: turn.output };
        let arriving = self.scheduler.state().session(id).is_some_and(|s| s.residency == Residency::Arriving);
        client.asked = self.now;
        (client.restore_from, client.first_step) = (arriving.then_some(self.now), None);
        self.scheduler.event(id, event, self.now).expect("a script's turns fit its session");
    }

    /// The backend reports.
    fn complete(&mut self) {
        let Completion { step, copies } = self.backend.poll(self.now);
        self.report.failed_copies += copies.iter().filter(|copy: &&CopyOutcome| !copy.ok).count() as u64;
        let Some(ended) = step else { return self.scheduler.on_copied(&copies) };
        let plan = self.under_way.take().expect("a step that ended had begun");
        for entry in &plan.batch {
            let yields = !matches!(entry, Entry::Prefill { last: false, .. });
            self.report.tokens += (yields && self.measured()) as u64;
            if let (Entry::Prefill { session, last: true, .. }, true) = (entry, yields)
                && let Some(client) = self.clients.get_mut(session)
            {
                client.prefilled = self.now;
            }
        }
        let outcome = Outcome { ended, copies };
        self.scheduler.on_completed(&plan, &outcome, self.now);
        for (id, end) in outcome.ended {
            self.end_turn(id, &end);
        }
    }

    fn end_turn(&mut self, id: SessionId, end: &TurnEnd) {
        let (measured, now) = (self.measured(), self.now);
        let Some(client) = self.clients.get(&id) else { return };
        if *end == TurnEnd::Failed {
            return self.refuse(id);
        }
        let turn = &client.script.turns[client.turn];
        let began = client.first_step.unwrap_or(now);
        let room = client.restore_from.unwrap_or(began).min(began);
        let prefilled = client.prefilled.max(began);
        let parts = Parts {
            queue: room - client.asked,
            restore: began - room,
            prefill: prefilled - began,
            decode: now - prefilled,
        };
        let record = TurnRecord { session: id, asked: client.asked, ended: now, tokens: turn.output, parts };
        if measured {
            self.report.turns.push(record);
        }
        let back = now + turn.wait;
        if let Some(oracle) = self.oracle {
            oracle.tell(id, back);
        }
        if !turn.wait.is_zero() {
            let estimated_resume_ms = turn.hint.map(|hint| (hint.as_millis() as u64).max(1));
            let signal = Signal::IoWait { tool: turn.tool.clone(), estimated_resume_ms };
            self.scheduler.signal(id, &signal, now);
        }
        self.push(back, Happening::Back(id));
    }

    fn refuse(&mut self, id: SessionId) {
        if let Some(client) = self.clients.remove(&id) {
            self.report.refused += 1;
            self.push(self.now + BACK_OFF, Happening::Start(client.agent));
        }
    }

    /// Plans, and plans again while a plan only frees pages for the next.
    fn plan(&mut self) {
        while self.under_way.is_none() {
            // Turns that end at once may bring clients back at once.
            self.happen();
            let plan = self.scheduler.schedule(self.now);
            self.backend.submit(&plan, self.scheduler.state(), self.now);
            self.count(&plan);
            for &(id, _) in &plan.refused {
                self.refuse(id);
            }
            self.wake = plan.wake;
            let again = plan.wake.is_some_and(|wake| wake <= self.now);
            if !plan.batch.is_empty() {
                self.under_way = Some(plan);
            } else if !again {
                break;
            }
        }
    }

    fn count(&mut self, plan: &Plan) {
        let bytes = |pages| self.scheduler.parts().cost.bytes(pages);
        self.report.steps += !plan.batch.is_empty() as u64;
        self.report.discards += plan.discard.len() as u64;
        self.report.swaps_out += plan.swap_out.len() as u64;
        self.report.swaps_in += plan.swap_in.len() as u64;
        self.report.bytes_out += plan.swap_out.iter().map(|copy| bytes(copy.pages)).sum::<u64>();
        self.report.bytes_in += plan.swap_in.iter().map(|copy| bytes(copy.pages)).sum::<u64>();
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
    }

    fn sample(&mut self) {
        if self.now < self.next_sample {
            return;
        }
        self.next_sample = self.now + self.span.end / SAMPLES;
        let state = self.scheduler.state();
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
            *match session.residency {
                Residency::Device => &mut sample.on_device,
                Residency::Host => &mut sample.on_host,
                Residency::Gone => &mut sample.gone,
                Residency::Leaving | Residency::Arriving => &mut sample.moving,
            } += 1;
        }
        self.report.samples.push(sample);
    }

    fn finish(mut self) -> Report {
        self.scheduler.state().audit();
        self.report.open = self.clients.len() as u64;
        self.report.ended = self.now;
        self.report.measured = self.now.saturating_sub(self.span.warm_up);
        self.report
    }
}
