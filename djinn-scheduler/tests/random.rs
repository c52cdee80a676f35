//! Random events: no page is lost or made, nobody hangs, and the same events give the same plans.

use djinn_scheduler::{
    Arrival, CopyOutcome, Entry, Event, Outcome, Plan, Registry, Scheduler, SessionId, Settings, Signal,
    TurnEnd, conformance,
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
    Step { end: u8, fail: bool, finds: u64 },
    Copied { which: u8, ok: bool },
    Wait(u64),
    Reserve(u32),
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        2 => (1u64..500, 1u64..400, -1i32..2)
            .prop_map(|(prompt, more, priority)| Happening::Arrive { prompt, more, priority }),
        4 => (any::<u8>(), 1u64..60).prop_map(|(kind, size)| Happening::Client(kind, size)),
        3 => (any::<u8>(), 1u64..20_000).prop_map(|(kind, ms)| Happening::Signal(kind, ms)),
        8 => (any::<u8>(), prop::bool::weighted(0.02), 0u64..400)
            .prop_map(|(end, fail, finds)| Happening::Step { end, fail, finds }),
        5 => (any::<u8>(), prop::bool::weighted(0.85)).prop_map(|(which, ok)| Happening::Copied { which, ok }),
        2 => (1u64..3_000).prop_map(Happening::Wait),
        1 => prop_oneof![Just(0), 0u32..70].prop_map(Happening::Reserve),
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
    found: usize,
}

impl Machine {
    fn new(policy: &str) -> Self {
        let (capacity, cost) = conformance::small_machine();
        let mut settings = Settings { policy: policy.to_owned(), ..Settings::default() };
        settings.rules.queue_timeout = Duration::from_secs(20);
        let scheduler = Registry::default().scheduler(&settings, capacity, cost).expect("known parts");
        let (copying, step, plans) = (Vec::new(), None, Vec::new());
        Machine { scheduler, copying, step, plans, now: Duration::ZERO, next_id: 0, found: 0 }
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
            }
            Happening::Client(kind, size) => {
                let Some(id) = self.pick(size) else { return };
                let event = match kind % 16 {
                    0 => Event::Abort,
                    1 => Event::End,
                    2 | 3 => Event::Pause,
                    4..=7 => Event::Resume,
                    _ => Event::NextTurn { prompt: size, max_tokens: 4 },
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
            Happening::Step { end, fail, finds } => self.step(end, fail, finds),
            Happening::Copied { which, ok } => {
                if !self.copying.is_empty() {
                    let session = self.copying.remove(which as usize % self.copying.len());
                    self.scheduler.on_copied(&[CopyOutcome { session, ok }]);
                }
            }
            Happening::Wait(ms) => self.now += Duration::from_millis(ms),
            Happening::Reserve(pages) => self.scheduler.reserve(pages),
        }
        self.scheduler.state().audit();
    }

    /// Ends the step under way, in which up to `finds` tokens of each prompt were found, or begins one.
    fn step(&mut self, end: u8, fail: bool, finds: u64) {
        self.now += Duration::from_millis(10);
        let Some(plan) = self.step.take() else {
            let plan = self.scheduler.schedule(self.now);
            self.copying.extend(plan.swap_out.iter().chain(&plan.swap_in).map(|copy| copy.session));
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
        // What is left of a prompt after the step, but for its last token.
        let rest = |entry: &Entry| {
            let prompt = state.session(entry.session()).expect("a session of the step").prompt;
            let Entry::Prefill { tokens, .. } = *entry else { return None };
            let found = prompt.saturating_sub(tokens + 1).min(finds);
            (found > 0).then_some((entry.session(), found))
        };
        let found: Vec<_> = plan.batch.iter().filter_map(rest).collect();
        self.found += found.len();
        let ids = plan.batch.iter().map(|entry| entry.session()).filter(|&id| over(id));
        let ended = ids.map(|id| (id, how())).collect();
        let outcome = Outcome { found, ended, ..Outcome::default() };
        self.scheduler.on_completed(&plan, &outcome, self.now);
    }

    /// Lets everything that is ready run to its end with working copies. Returns whether all got there.
    fn drain(&mut self) -> bool {
        for _ in 0..20_000 {
            for session in std::mem::take(&mut self.copying) {
                self.scheduler.on_copied(&[CopyOutcome { session, ok: true }]);
            }
            self.step(1, false, 0);
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
            machine.scheduler.event(id, Event::End, machine.now).expect("an open session can end");
        }
        machine.scheduler.reserve(0);
        let state = machine.scheduler.state();
        prop_assert_eq!((state.device_free(), state.host_free()), (64, 64));
        prop_assert_eq!(state.sessions().count(), 0);
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
        assert!(machine.found > 20, "{policy}: {} finds exercise nothing", machine.found);
        assert!(machine.drain(), "{policy}: {:#?}", machine.scheduler.state());
        let ids: Vec<_> = machine.scheduler.state().sessions().map(|session| session.id).collect();
        for id in ids {
            machine.scheduler.event(id, Event::End, machine.now).expect("an open session can end");
        }
        machine.scheduler.reserve(0);
        let state = machine.scheduler.state();
        assert_eq!((state.device_free(), state.host_free()), (64, 64), "{policy}");
    }
}
