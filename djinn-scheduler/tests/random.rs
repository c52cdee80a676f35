//! Random events: no page is lost or made, no session hangs, and the same events give the same plans.

use djinn_scheduler::{
    Arrival, Capacity, CopyOutcome, Outcome, PageName, Plan, Registry, Scheduler, Session, SessionEvent,
    SessionId, Settings, Signal, TurnEnd, conformance, schedule,
};
use proptest::prelude::*;
use std::time::Duration;

const POLICIES: [&str; 5] = ["none", "lru", "ttl", "signal", "predicted"];

/// What happens, by session number modulo those that exist.
#[derive(Clone, Debug)]
enum Happening {
    Arrive { prompt: u64, more: u64, priority: i32 },
    Client(u8, u64),
    Signal(u8, u64),
    Step { end: u8, fail: bool },
    Copied { which: u8, ok: bool },
    Wait(u64),
    Fork(u64),
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        2 => (1u64..500, 1u64..400, -1i32..2)
            .prop_map(|(prompt, more, priority)| Happening::Arrive { prompt, more, priority }),
        4 => (any::<u8>(), 1u64..60).prop_map(|(kind, size)| Happening::Client(kind, size)),
        3 => (any::<u8>(), 1u64..20_000).prop_map(|(kind, ms)| Happening::Signal(kind, ms)),
        8 => (any::<u8>(), prop::bool::weighted(0.02)).prop_map(|(end, fail)| Happening::Step { end, fail }),
        5 => (any::<u8>(), prop::bool::weighted(0.85)).prop_map(|(which, ok)| Happening::Copied { which, ok }),
        2 => (1u64..3_000).prop_map(Happening::Wait),
        1 => (0u64..400).prop_map(Happening::Fork),
    ]
}

/// A scheduler, the copies and the step under way, and all plans so far.
struct Machine {
    scheduler: Scheduler,
    copying: Vec<SessionId>,
    step: Option<Plan>,
    plans: Vec<Plan>,
    now: Duration,
    next_id: u64,
    found: u64,
    duplicates: usize,
}

impl Machine {
    fn new(policy: &str) -> Self {
        Self::with_host(policy, 64)
    }

    fn with_host(policy: &str, host_pages: u32) -> Self {
        let (small, cost) = conformance::small_machine();
        let capacity = Capacity { host_pages, ..small };
        let mut settings = Settings { policy: policy.to_owned(), ..Settings::default() };
        settings.rules.queue_timeout = Duration::from_secs(20);
        let scheduler = Registry::default().scheduler(&settings, capacity, cost).expect("known parts");
        let (copying, step, plans) = (Vec::new(), None, Vec::new());
        Machine { scheduler, copying, step, plans, now: Duration::ZERO, next_id: 0, found: 0, duplicates: 0 }
    }

    fn pick(&self, which: u64) -> Option<SessionId> {
        let ids: Vec<_> = self.scheduler.state().sessions().map(|session| session.id).collect();
        (!ids.is_empty()).then(|| ids[which as usize % ids.len()])
    }

    fn happen(&mut self, happening: &Happening) {
        match *happening {
            Happening::Arrive { prompt, more, priority } => {
                let id = SessionId(self.next_id);
                self.next_id += 1;
                let limit = prompt + more + 64;
                let arrival = Arrival { id, priority, prompt, max_tokens: more, limit };
                let _refused = self.scheduler.arrive(&arrival, self.now);
                // Half of the sessions have one of two long prefixes in common.
                let own = |at: u64| if at < 384 { prompt % 2 } else { prompt };
                let tokens: Vec<u32> = (0..prompt).map(|at| own(at) as u32).collect();
                let (mut names, salt) = (Vec::new(), id.0 * (more % 2));
                PageName::extend(&mut names, &salt.to_le_bytes(), &tokens, 16);
                self.scheduler.name_pages(id, names);
            }
            Happening::Fork(more) => {
                let Some(parent) = self.pick(more) else { return };
                let id = SessionId(self.next_id);
                self.next_id += 1;
                let known = self.scheduler.state().session(parent).expect("just picked");
                let prompt = known.context + known.prompt + 1 + more % 40;
                let arrival = Arrival { id, priority: 0, prompt, max_tokens: 8, limit: prompt + 64 };
                let _refused = self.scheduler.fork(parent, &arrival, self.now);
            }
            Happening::Client(kind, size) => {
                let Some(id) = self.pick(size) else { return };
                let event = match kind % 16 {
                    0 => SessionEvent::Abort,
                    1 => SessionEvent::End,
                    2 | 3 => SessionEvent::Pause,
                    4..=7 => SessionEvent::Resume,
                    _ => SessionEvent::NextTurn { prompt: size, max_tokens: 4 },
                };
                let _not_now = self.scheduler.event(id, event, self.now);
            }
            Happening::Signal(kind, estimate) => {
                let Some(id) = self.pick(estimate) else { return };
                let tool = Some(format!("tool {}", kind % 3));
                let signal = match kind % 4 {
                    0 => Signal::Idle,
                    1 => Signal::Compute,
                    2 => Signal::IoWait { tool, estimated_resume_ms: None },
                    _ => Signal::IoWait { tool, estimated_resume_ms: Some(estimate) },
                };
                self.scheduler.signal(id, signal, self.now);
            }
            Happening::Step { end, fail } => self.step(end, fail),
            Happening::Copied { which, ok } => {
                if !self.copying.is_empty() {
                    let session = self.copying.remove(which as usize % self.copying.len());
                    self.scheduler.on_copied(&[CopyOutcome { session, ok }]);
                }
            }
            Happening::Wait(ms) => self.now += Duration::from_millis(ms),
        }
        self.scheduler.state().audit();
    }

    /// Checks that a plan copies only what the host has room for, and discards only what it has no room for.
    fn check_moves(&self, plan: &Plan) {
        let (state, cost) = (self.scheduler.state(), self.scheduler.parts().cost);
        let session = |id| state.session(id).expect("a session that moves exists");
        let need = |session: &Session| {
            state.pages().host_need(session.table(), state.capacity().pages(session.context))
        };
        let taken: u32 = plan.swap_out.iter().map(|copy| need(session(copy.session))).sum();
        for session in plan.discard.iter().map(|&id| session(id)) {
            // Few tokens take longer to copy than to compute.
            let cheap = cost.recompute(session.context) < cost.round_trip(session.device_pages()) / 4;
            let full = taken + need(session) > state.host_free();
            assert!(cheap || full || session.failed_copies >= 3, "{} fits the host: {plan:?}", session.id);
        }
    }

    /// Ends the step under way, or begins one.
    fn step(&mut self, end: u8, fail: bool) {
        self.now += Duration::from_millis(10);
        let Some(plan) = self.step.take() else {
            let planned = schedule(self.scheduler.state(), self.scheduler.parts(), self.now);
            self.check_moves(&planned);
            let plan = self.scheduler.schedule(self.now);
            assert_eq!(plan.discard, planned.discard, "a copy that was planned finds no room");
            self.copying.extend(plan.swap_out.iter().chain(&plan.swap_in).map(|copy| copy.session));
            self.found += plan.grants.iter().map(|grant| grant.found).sum::<u64>();
            self.duplicates += plan.duplicates.len();
            self.plans.push(plan.clone());
            self.step = (!plan.batch.is_empty()).then_some(plan);
            return;
        };
        let state = self.scheduler.state();
        let over = |id: SessionId| {
            let session = state.session(id).expect("a session of the step");
            let yields = session.in_step >= session.prompt;
            yields && (session.generated + 1 >= session.max_tokens || end.is_multiple_of(4))
        };
        let how = || match end % 3 {
            _ if fail => TurnEnd::Failed,
            0 => TurnEnd::Finish,
            _ => TurnEnd::ToolCall { tool: Some("tool 1".to_owned()) },
        };
        let ids = plan.batch.iter().map(|entry| entry.session()).filter(|&id| over(id));
        let ended = ids.map(|id| (id, how())).collect();
        let outcome = Outcome { ended, ..Outcome::default() };
        self.scheduler.on_completed(&plan, &outcome, self.now);
    }

    /// Lets everything that is ready run to its end with working copies. Returns whether all got there.
    fn drain(&mut self) -> bool {
        for _ in 0..20_000 {
            for session in std::mem::take(&mut self.copying) {
                self.scheduler.on_copied(&[CopyOutcome { session, ok: true }]);
            }
            self.step(1, false);
            self.scheduler.state().audit();
            let ready = self.scheduler.state().sessions().any(|session| session.is_ready());
            if !ready && self.step.is_none() && self.copying.is_empty() {
                return true;
            }
        }
        false
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn pages_are_conserved_and_nobody_hangs(
        policy in prop::sample::select(&POLICIES[..]),
        happenings in prop::collection::vec(happening(), 1..400),
    ) {
        let mut machine = Machine::new(policy);
        for happening in &happenings {
            machine.happen(happening);
        }
        prop_assert!(machine.drain(), "{policy}: sessions hang: {:#?}", machine.scheduler.state());
        let ids: Vec<_> = machine.scheduler.state().sessions().map(|session| session.id).collect();
        for id in ids {
            machine.scheduler.event(id, SessionEvent::End, machine.now).expect("an open session can end");
        }
        let state = machine.scheduler.state();
        prop_assert_eq!((state.device_free(), state.host_free()), (64, 64));
        prop_assert_eq!(state.sessions().count(), 0);
    }

    /// Half of the sessions share a prefix that is longer than what the host has left.
    #[test]
    fn a_small_host_gives_up_only_what_does_not_fit(
        policy in prop::sample::select(&POLICIES[..]),
        host_pages in 16u32..48,
        happenings in prop::collection::vec(happening(), 1..400),
    ) {
        let mut machine = Machine::with_host(policy, host_pages);
        happenings.iter().for_each(|happening| machine.happen(happening));
        prop_assert!(machine.drain(), "{policy}: sessions hang: {:#?}", machine.scheduler.state());
    }

    #[test]
    fn the_same_events_give_the_same_plans(
        policy in prop::sample::select(&POLICIES[..]),
        happenings in prop::collection::vec(happening(), 1..200),
    ) {
        let plans = || {
            let mut machine = Machine::new(policy);
            happenings.iter().for_each(|happening| machine.happen(happening));
            machine.plans
        };
        prop_assert_eq!(plans(), plans());
    }
}

/// One long run with 10,000 events, for each policy.
#[test]
fn ten_thousand_events_leak_nothing() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    for policy in POLICIES {
        let mut machine = Machine::new(policy);
        let mut swaps = 0;
        for _ in 0..10_000 {
            let happening = happening().new_tree(&mut runner).expect("a happening").current();
            machine.happen(&happening);
        }
        swaps += machine.plans.iter().map(|plan| plan.swap_out.len()).sum::<usize>();
        assert!(swaps > 50 || policy == "none", "{policy}: {swaps} swaps exercise nothing");
        assert!(machine.found >= 128, "{policy}: {} tokens found exercise nothing", machine.found);
        assert!(machine.duplicates > 2, "{policy}: {} copies for forks exercise nothing", machine.duplicates);
        assert!(machine.drain(), "{policy}: {:#?}", machine.scheduler.state());
        let ids: Vec<_> = machine.scheduler.state().sessions().map(|session| session.id).collect();
        for id in ids {
            machine.scheduler.event(id, SessionEvent::End, machine.now).expect("an open session can end");
        }
        let state = machine.scheduler.state();
        assert_eq!((state.device_free(), state.host_free()), (64, 64), "{policy}");
    }
}
