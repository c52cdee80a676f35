//! The driver with both clocks, and with backends that fail.

use super::{Clock, RunSpan, Virtual, WallClock, drive, simulate};
use crate::backend::{Backend, Completion};
use crate::conformance::{parts, small_machine};
use crate::plan::Plan;
use crate::policy::{EvictionPolicy, Lru, Ttl};
use crate::scheduler::Scheduler;
use crate::sim::{Distribution, Hint, Profile, Shape, SimBackend, Tool, Workload, percentile};
use crate::state::State;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

fn ms(value: u64) -> Duration {
    Duration::from_millis(value)
}

/// Sessions of three turns of 8 tokens that wait for 20 to 60 ms; 5 fit the small machine at a time.
fn quick() -> Shape {
    let seconds = Distribution::Uniform(0.02, 0.06);
    Shape {
        first_prompt: Distribution::Fixed(150.0),
        next_prompt: Distribution::Fixed(10.0),
        output: Distribution::Fixed(8.0),
        turns: Distribution::Fixed(3.0),
        tools: vec![Tool { name: "bash".to_owned(), weight: 1.0, seconds }],
        hint: Hint::Exact,
        max_context: 256,
    }
}

fn scheduler(policy: Box<dyn EvictionPolicy>) -> Scheduler {
    let (capacity, cost) = small_machine();
    Scheduler::new(capacity, parts(policy, cost)).expect("a small machine")
}

/// Steps of 1 ms and more; copies at 50 GB/s.
fn machine() -> SimBackend {
    let (capacity, cost) = small_machine();
    let profile = Profile::roofline(cost, capacity.page_tokens, 0.0, 4e12, ms(1));
    SimBackend::new(profile).expect("a valid profile")
}

/// A backend around the simulated one: it breaks at a step; it does not know when what is under way ends; and it
/// counts what was submitted and what ended.
#[derive(Debug)]
struct Odd {
    inner: SimBackend,
    breaks_at: u64,
    blind: bool,
    known: BTreeSet<u64>,
    copies: i64,
}

impl Odd {
    fn new() -> Self {
        Odd { inner: machine(), breaks_at: u64::MAX, blind: false, known: BTreeSet::new(), copies: 0 }
    }
}

impl Backend for Odd {
    fn name(&self) -> &str {
        "odd"
    }

    fn submit(&mut self, plan: &Plan, state: &State, now: Duration) {
        self.copies += (plan.swap_out.len() + plan.swap_in.len()) as i64;
        self.known = state.sessions().map(|session| session.id.0).collect();
        self.breaks_at = self.breaks_at.saturating_sub(!plan.batch.is_empty() as u64);
        self.inner.submit(plan, state, now);
    }

    fn next_event(&self) -> Option<Duration> {
        let next = self.inner.next_event();
        if self.blind { next.map(|_| Duration::ZERO) } else { next }
    }

    fn poll(&mut self, now: Duration) -> Completion {
        let mut completion = self.inner.poll(now);
        self.copies -= completion.copies.len() as i64;
        if completion.step.is_some() {
            completion.failure = (self.breaks_at == 0).then(|| "out of order".to_owned());
        }
        completion
    }
}

const WHOLE: RunSpan = RunSpan { warm_up: Duration::ZERO, end: Duration::from_secs(60) };

#[test]
fn real_time_completes_what_simulated_time_does() {
    let workload = Workload::finite(&quick(), 8, 2, ms(50), 1);
    let virtual_run = simulate(scheduler(Box::new(Lru)), Box::new(machine()), &workload, WHOLE, None);
    for blind in [false, true] {
        let mut backend = Odd { blind, ..Odd::new() };
        let began = Instant::now();
        let run =
            drive(scheduler(Box::new(Lru)), &mut backend, &mut WallClock::default(), &workload, WHOLE, None);
        assert!(run.ended <= began.elapsed(), "{:?} is later than it is", run.ended);
        assert_eq!((run.finished, run.refused, run.open, run.failure.as_deref()), (16, 0, 0, None));
        assert_eq!((run.turns.len(), run.tokens), (virtual_run.turns.len(), virtual_run.tokens));
        assert_eq!((run.finished_in_span, run.signals.len()), (16, run.turns.len()));
        assert!(run.ended >= virtual_run.ended.mul_f64(0.9), "{:?}: steps take their time", run.ended);
        assert!(run.turns.iter().all(|turn| turn.latency() >= ms(8)), "eight steps of 1 ms and more");
    }
    assert_eq!((virtual_run.finished, virtual_run.turns.len(), virtual_run.tokens), (16, 48, 48 * 8));
    assert_eq!(virtual_run.signals.len(), 0);
}

#[test]
fn the_span_ends_in_time_and_everything_comes_back() {
    let mut shape = quick();
    shape.tools[0].seconds = Distribution::Fixed(0.005);
    let workload = Workload::closed_loop(&shape, 12, Duration::ZERO, 2);
    let span = RunSpan { warm_up: ms(50), end: ms(250) };
    let clocks: [&mut dyn Clock; 2] = [&mut WallClock::default(), &mut Virtual::default()];
    for clock in clocks {
        let (mut backend, real) = (Odd::new(), clock.is_real());
        let began = Instant::now();
        let run = drive(scheduler(Box::new(Ttl::new(ms(0)))), &mut backend, clock, &workload, span, None);
        assert!(!real || (ms(250)..ms(5_000)).contains(&began.elapsed()), "{:?}", began.elapsed());
        assert!(run.ended >= span.end, "{:?}", run.ended);
        assert!(run.open > 0 && run.finished > 0, "{} open, {} finished", run.open, run.finished);
        assert_eq!(run.arrived, run.finished + run.refused + run.open);
        assert_eq!((backend.copies, backend.next_event(), backend.known.len()), (0, None, 0));
        assert!(run.turns.iter().all(|turn| turn.ended >= span.warm_up && turn.ended <= run.ended));
        assert!(run.mean_decodes() > 1.0, "{}", run.mean_decodes());
    }
}

#[test]
fn a_broken_backend_ends_the_run() {
    let workload = Workload::closed_loop(&quick(), 4, Duration::ZERO, 3);
    let mut backend = Odd { breaks_at: 7, ..Odd::new() };
    let clock = &mut Virtual::default();
    let run = drive(scheduler(Box::new(Lru)), &mut backend, clock, &workload, WHOLE, None);
    assert_eq!((run.failure.as_deref(), run.steps), (Some("out of order"), 7));
    assert!(run.ended < ms(500), "{:?}", run.ended);
    // Pages that never come back must not keep the driver.
    assert!(backend.next_event().is_none() && run.open == 4, "{} open", run.open);
}

#[test]
fn what_is_found_is_not_computed() {
    let run = |shared| {
        let mut workload = Workload::finite(&quick(), 3, 1, ms(100), 4);
        workload.share(shared);
        simulate(scheduler(Box::new(Lru)), Box::new(machine()), &workload, WHOLE, None)
    };
    let (cold, warm) = (run(0), run(128));
    // The first computes the chunk of 128 tokens that the two after it find.
    assert_eq!((cold.found, warm.found), (0, 2 * 128));
    assert_eq!((warm.finished, warm.tokens), (cold.finished, cold.tokens));
    let prefill =
        |run: &crate::sim::Report| run.turns.iter().map(|turn| turn.parts.prefill).sum::<Duration>();
    assert!(prefill(&warm) < prefill(&cold), "{:?} and {:?}", prefill(&warm), prefill(&cold));
}

#[test]
fn the_way_from_signal_to_free_pages_is_measured() {
    let workload = Workload::finite(&quick(), 2, 2, Duration::ZERO, 5);
    let swap = || scheduler(Box::new(Ttl::new(ms(0))));
    let run = simulate(swap(), Box::new(machine()), &workload, WHOLE, None);
    assert_eq!(
        (run.signal_to_submit.len() as u64, run.signal_to_free.len() as u64),
        (run.swaps_out, run.swaps_out)
    );
    assert!(run.swaps_out >= 8, "{} swaps", run.swaps_out);
    let (submit, free) = (&run.signal_to_submit, &run.signal_to_free);
    // At once, but for a step of the other that runs; then 10 or 11 pages of 8 MiB at 50 GB/s: 1.7 ms and more. In
    // later turns, the two or three pages that were written since, in 167 us each.
    assert!(percentile(submit.iter().copied(), 1.0) < ms(12), "{submit:?}");
    assert!(percentile(free.iter().copied(), 1.0) > Duration::from_micros(1_600), "{free:?}");
    assert!(percentile(free.iter().copied(), 0.0) > Duration::from_micros(300), "{free:?}");
}

#[test]
fn an_endless_session_lasts_as_long_as_its_context() {
    let mut workload = Workload::endless(&quick(), 3, ms(10), 6);
    let agent = &mut workload.agents[2];
    let script = agent.next().expect("one session");
    // 158 tokens, then 18 a turn, up to 256.
    assert_eq!((script.turns.len(), script.tokens(), agent.next()), (6, 248, None));
}

#[test]
fn a_late_driver_counts_as_latency() {
    /// Every look at it costs 7 ms.
    #[derive(Default)]
    struct Slow(Virtual);
    impl Clock for Slow {
        fn now(&mut self) -> Duration {
            let later = self.0.now() + ms(7);
            self.0.wait(Some(later), false);
            later
        }
        fn wait(&mut self, until: Option<Duration>, under_way: bool) {
            self.0.wait(until, under_way);
        }
    }
    let workload = Workload::finite(&quick(), 1, 1, Duration::ZERO, 7);
    let run = |clock: &mut dyn Clock| {
        drive(scheduler(Box::new(Lru)), &mut machine(), clock, &workload, WHOLE, None)
    };
    let (slow, fast) = (run(&mut Slow::default()), run(&mut Virtual::default()));
    assert_eq!(slow.turns[0].asked, Duration::ZERO);
    assert!(slow.turns[0].parts.queue >= ms(14), "{:?}", slow.turns[0]);
    assert_eq!(fast.turns[0].parts.queue, Duration::ZERO);
    assert!(slow.signals.iter().all(|&took| took == ms(7)), "{:?}", slow.signals);
}
