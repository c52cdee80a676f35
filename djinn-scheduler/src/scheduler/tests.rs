//! The scheduler step by step on a small machine.

use super::{Scheduler, SessionEvent};
use crate::answer::SignalOutcome;
use crate::conformance::{parts, small_machine};
use crate::error::Error;
use crate::handler::{PhaseHandler, StepRoom};
use crate::phase::Phase;
use crate::plan::{CopyOutcome, Outcome, Plan, Refusal, ScheduledSession, TurnEnd};
use crate::policy::{
    CostPolicy, Decision, EvictionPolicy, Lru, NeverEvict, SignalledWaits, Ttl, Weights, Why,
};
use crate::schedule::Parts;
use crate::session::{Arrival, Session, SessionId};
use crate::signal::Signal;
use crate::state::Capacity;
use djinn_pages::{PageName, Residency};
use std::time::Duration;

fn signal_policy() -> Box<dyn EvictionPolicy> {
    Box::new(CostPolicy::new(SignalledWaits::new(ms(300)), Weights::default()))
}

fn small(policy: Box<dyn EvictionPolicy>) -> Scheduler {
    let (capacity, cost) = small_machine();
    Scheduler::new(capacity, parts(policy, cost)).expect("a small machine")
}

fn ms(value: u64) -> Duration {
    Duration::from_millis(value)
}

fn id(value: u64) -> SessionId {
    SessionId(value)
}

/// A session of `prompt` tokens that may grow to `limit`.
fn arrival(session: u64, prompt: u64, limit: u64) -> Arrival {
    Arrival { id: id(session), priority: 0, prompt, max_tokens: 8, limit }
}

fn of(scheduler: &Scheduler, session: u64) -> Session {
    scheduler.state().session(id(session)).expect("the session exists").clone()
}

fn io_wait(estimate: Option<u64>) -> Signal {
    Signal::IoWait { tool: Some("bash".to_owned()), estimated_resume_ms: estimate }
}

/// Plans and completes a step in which `ended` end their turns; copies are left under way.
fn step(scheduler: &mut Scheduler, ended: &[u64], now: Duration) -> Plan {
    let plan = scheduler.schedule(now);
    let ended = ended.iter().map(|&session| (id(session), TurnEnd::ToolCall { tool: None })).collect();
    if !plan.batch.is_empty() {
        scheduler.on_completed(&plan, &Outcome { ended, ..Outcome::default() }, now);
    }
    scheduler.state().audit();
    plan
}

/// A session that has computed its prompt and waits on the device.
fn waiting(scheduler: &mut Scheduler, session: u64, prompt: u64, now: Duration) {
    scheduler.arrive(&arrival(session, prompt, 1_024), now).expect("it fits");
    loop {
        let last = of(scheduler, session).prompt <= 192;
        let ended = if last { vec![session] } else { Vec::new() };
        step(scheduler, &ended, now);
        if last {
            break;
        }
    }
    assert_eq!(of(scheduler, session).phase, Phase::IoWait);
}

#[test]
fn decodes_come_first_and_prefill_fills_the_step_with_whole_chunks() {
    let mut scheduler = small(Box::new(Lru));
    for session in 0..3 {
        scheduler.arrive(&arrival(session, 100, 128), ms(session)).expect("it fits");
    }
    let first = step(&mut scheduler, &[], ms(10));
    assert_eq!(first.batch, [ScheduledSession::Prefill { session: id(0), tokens: 100, last: true }]);
    let second = step(&mut scheduler, &[], ms(20));
    let expected = [
        ScheduledSession::Decode { session: id(0) },
        ScheduledSession::Prefill { session: id(1), tokens: 100, last: true },
    ];
    assert_eq!(second.batch, expected);
    assert_eq!(of(&scheduler, 0).context, 101);
    assert_eq!((of(&scheduler, 0).generated, of(&scheduler, 1).generated), (2, 1));
}

#[test]
fn a_long_prompt_takes_several_chunks() {
    let mut scheduler = small(Box::new(Lru));
    scheduler.arrive(&arrival(0, 500, 600), ms(0)).expect("it fits");
    let tokens: Vec<_> = (0..5).map(|at| step(&mut scheduler, &[], ms(at)).rows()).collect();
    assert_eq!(tokens, [128, 128, 128, 116, 1]);
}

#[test]
fn the_end_of_a_prompt_takes_rows_that_no_decode_takes() {
    let mut scheduler = small(Box::new(Lru));
    // A step has 192 rows; those of a chunk and 64 decodes. 191 tokens fit beside one decode, 192 do not.
    for (session, prompt, steps) in [(0, 192, [192, 1]), (1, 191, [192, 2]), (2, 191, [130, 65])] {
        scheduler.arrive(&arrival(session, prompt, 256), ms(0)).expect("it fits");
        let rows = steps.map(|_| step(&mut scheduler, &[], ms(1)).rows());
        assert_eq!(rows, steps, "session {session}");
    }
}

#[test]
fn priority_goes_before_arrival() {
    let mut scheduler = small(Box::new(Lru));
    scheduler.arrive(&arrival(0, 100, 128), ms(0)).expect("it fits");
    scheduler.arrive(&Arrival { priority: -1, ..arrival(1, 100, 128) }, ms(5)).expect("it fits");
    assert_eq!(step(&mut scheduler, &[], ms(10)).batch[0].session(), id(1));
}

#[test]
fn a_better_priority_takes_pages_from_one_that_computes_once_its_lease_is_over() {
    let mut scheduler = small(Box::new(Lru));
    scheduler.arrive(&arrival(0, 900, 1_024), ms(0)).expect("it fits");
    step(&mut scheduler, &[], ms(0));
    scheduler.arrive(&Arrival { priority: -1, ..arrival(1, 900, 1_024) }, ms(10)).expect("it queues");
    let plan = step(&mut scheduler, &[], ms(20));
    assert!(plan.swap_out.is_empty() && plan.wake.is_some(), "{plan:?}");
    let plan = step(&mut scheduler, &[], ms(600));
    assert_eq!(plan.swap_out.iter().map(|copy| copy.session).collect::<Vec<_>>(), [id(0)]);
    assert_eq!(of(&scheduler, 0).residency(), Residency::Leaving);
}

#[test]
fn swaps_go_out_and_back() {
    let (mut capacity, cost) = small_machine();
    capacity.host_pages = 128;
    let mut scheduler = Scheduler::new(capacity, parts(Box::new(Lru), cost)).expect("a small machine");
    waiting(&mut scheduler, 0, 600, ms(0));
    assert_eq!(of(&scheduler, 0).device_pages(), 38);
    scheduler.arrive(&arrival(1, 600, 1_024), ms(10)).expect("it queues");
    let plan = step(&mut scheduler, &[], ms(10));
    assert_eq!((plan.swap_out[0].session, plan.swap_out[0].pages), (id(0), 38));
    assert_eq!(scheduler.state().device_free(), 26);
    scheduler.on_copied(&[CopyOutcome { session: id(0), ok: true }]);
    assert_eq!((scheduler.state().device_free(), of(&scheduler, 0).residency()), (64, Residency::Host));
    while of(&scheduler, 1).prompt > 128 {
        step(&mut scheduler, &[], ms(20));
    }
    step(&mut scheduler, &[1], ms(20));

    let event = SessionEvent::NextTurn { prompt: 5, max_tokens: 8 };
    scheduler.event(id(0), event, ms(30)).expect("it waits");
    assert_eq!(step(&mut scheduler, &[], ms(30)).swap_out[0].session, id(1));
    scheduler.on_copied(&[CopyOutcome { session: id(1), ok: true }]);
    assert_eq!(step(&mut scheduler, &[], ms(40)).swap_in[0].pages, 38);
    scheduler.on_copied(&[CopyOutcome { session: id(0), ok: true }]);
    assert_eq!(step(&mut scheduler, &[], ms(50)).batch[0].tokens(), 5);
    assert_eq!((of(&scheduler, 0).context, scheduler.state().host_free()), (605, 128 - 38));
}

#[test]
fn a_failed_copy_out_keeps_the_pages_and_a_failed_copy_in_recomputes() {
    let mut scheduler = small(Box::new(Ttl::new(ms(0))));
    waiting(&mut scheduler, 0, 600, ms(0));
    assert_eq!(step(&mut scheduler, &[], ms(1)).swap_out.len(), 1);
    scheduler.on_copied(&[CopyOutcome { session: id(0), ok: false }]);
    let session = of(&scheduler, 0);
    assert_eq!((session.residency(), session.context, session.failed_copies), (Residency::Device, 600, 1));
    step(&mut scheduler, &[], ms(2));
    scheduler.on_copied(&[CopyOutcome { session: id(0), ok: true }]);
    scheduler.event(id(0), SessionEvent::NextTurn { prompt: 5, max_tokens: 8 }, ms(3)).expect("it waits");
    step(&mut scheduler, &[], ms(4));
    assert_eq!(of(&scheduler, 0).residency(), Residency::Arriving);
    scheduler.on_copied(&[CopyOutcome { session: id(0), ok: false }]);
    scheduler.state().audit();
    let session = of(&scheduler, 0);
    assert_eq!((session.residency(), session.context, session.prompt), (Residency::Gone, 0, 605));
    assert_eq!(step(&mut scheduler, &[], ms(5)).batch[0].tokens(), 128);
}

#[test]
fn without_host_pages_demand_discards_and_the_policy_keeps() {
    let (mut capacity, cost) = small_machine();
    capacity.host_pages = 0;
    let mut scheduler = Scheduler::new(capacity, parts(Box::new(Ttl::new(ms(0))), cost)).expect("valid");
    waiting(&mut scheduler, 0, 600, ms(0));
    assert!(step(&mut scheduler, &[], ms(10)).is_empty());
    let answer = scheduler.signal(id(0), io_wait(None), ms(10));
    assert_eq!((answer.decision, answer.why), (Decision::Keep, Why::HostFull));
    scheduler.arrive(&arrival(1, 600, 1_024), ms(20)).expect("it queues");
    let plan = step(&mut scheduler, &[], ms(20));
    assert_eq!((plan.discard.as_slice(), plan.wake), ([id(0)].as_slice(), Some(ms(20))));
    assert_eq!(step(&mut scheduler, &[], ms(20)).batch[0].session(), id(1));
}

#[test]
fn an_abort_waits_for_step_and_copy() {
    let mut scheduler = small(Box::new(Ttl::new(ms(0))));
    waiting(&mut scheduler, 0, 600, ms(0));
    scheduler.schedule(ms(1));
    assert_eq!(of(&scheduler, 0).residency(), Residency::Leaving);
    scheduler.event(id(0), SessionEvent::Abort, ms(1)).expect("it exists");
    assert_eq!(scheduler.state().device_free(), 64 - 38);
    let again = scheduler.event(id(0), SessionEvent::Abort, ms(1));
    assert_eq!(again, Err(Error::Missing { session: id(0) }));
    scheduler.on_copied(&[CopyOutcome { session: id(0), ok: true }]);
    assert_eq!((scheduler.state().device_free(), scheduler.state().host_free()), (64, 64));

    scheduler.arrive(&arrival(1, 100, 128), ms(2)).expect("it fits");
    let plan = scheduler.schedule(ms(2));
    scheduler.event(id(1), SessionEvent::Abort, ms(3)).expect("it exists");
    assert!(scheduler.state().device_free() < 64);
    scheduler.on_completed(&plan, &Outcome::default(), ms(4));
    assert_eq!((scheduler.state().device_free(), scheduler.state().sessions().count()), (64, 0));
}

#[test]
fn signals_are_answered() {
    let mut scheduler = small(signal_policy());
    assert_eq!(scheduler.signal(id(9), Signal::Idle, ms(0)).outcome, SignalOutcome::Missing);
    scheduler.arrive(&arrival(0, 600, 1_024), ms(0)).expect("it fits");
    let answer = scheduler.signal(id(0), io_wait(Some(500)), ms(0));
    assert_eq!((answer.outcome, answer.why), (SignalOutcome::Deferred, Why::Computing));
    while of(&scheduler, 0).prompt > 128 {
        step(&mut scheduler, &[], ms(1));
    }
    step(&mut scheduler, &[0], ms(2));
    let wait = of(&scheduler, 0).wait.expect("it waits");
    assert_eq!((wait.tool.as_deref(), wait.expected), (Some("bash"), Some(ms(500))));

    let answer = scheduler.signal(id(0), io_wait(Some(u64::MAX)), ms(3));
    assert_eq!((answer.outcome, answer.decision), (SignalOutcome::Clipped, Decision::Keep));
    assert_eq!(
        (answer.kv_bytes, answer.eta_restore_ms, answer.residency),
        (38 * (8 << 20), 0, Residency::Device)
    );
    assert_eq!(answer.why, Why::NoPressure);
    assert_eq!(scheduler.signal(id(0), io_wait(Some(0)), ms(3)).outcome, SignalOutcome::Rejected);
    assert_eq!(scheduler.signal(id(0), Signal::Compute, ms(4)).outcome, SignalOutcome::Accepted);
    assert_eq!(of(&scheduler, 0).wait.expect("it waits").expected, Some(ms(2)));
}

#[test]
fn under_pressure_long_waits_go_short_ones_stay_and_come_back_in_time() {
    let mut scheduler = small(signal_policy());
    waiting(&mut scheduler, 0, 300, ms(0));
    waiting(&mut scheduler, 1, 300, ms(0));
    waiting(&mut scheduler, 2, 300, ms(0));
    for (session, estimate) in [(0, 20_000), (1, 5), (2, 30_000)] {
        assert_eq!(scheduler.signal(id(session), io_wait(Some(estimate)), ms(0)).decision, Decision::Keep);
    }
    scheduler.arrive(&arrival(3, 300, 1_024), ms(1)).expect("it queues");
    let plan = step(&mut scheduler, &[], ms(1));
    assert_eq!(plan.swap_out.iter().map(|copy| copy.session).collect::<Vec<_>>(), [id(2)]);
    scheduler.on_copied(&[CopyOutcome { session: id(2), ok: true }]);
    let at = scheduler.schedule(ms(40)).wake;
    assert!(at.is_none() || at > Some(ms(40)));
}

#[test]
fn a_swapped_session_is_restored_before_it_is_due() {
    let mut scheduler = small(signal_policy());
    waiting(&mut scheduler, 0, 600, ms(0));
    scheduler.signal(id(0), io_wait(Some(10_000)), ms(0));
    scheduler.arrive(&arrival(1, 600, 1_024), ms(1)).expect("it queues");
    step(&mut scheduler, &[], ms(1));
    scheduler.on_copied(&[CopyOutcome { session: id(0), ok: true }]);
    assert_eq!(of(&scheduler, 0).residency(), Residency::Host);
    scheduler.event(id(1), SessionEvent::End, ms(2)).expect("it exists");
    let plan = scheduler.schedule(ms(3));
    let wake = plan.wake.expect("a restore is planned");
    // 38 pages of 8 MiB at 50 GB/s take 6.4 ms, and begin twice that ahead.
    assert!((ms(9_986)..ms(9_988)).contains(&wake), "{wake:?}");
    assert_eq!(scheduler.schedule(wake).swap_in[0].session, id(0));
}

#[test]
fn leases_end() {
    let mut scheduler = small(signal_policy());
    waiting(&mut scheduler, 0, 600, ms(0));
    // Always about to come back, never there.
    for at in 0..60 {
        scheduler.signal(id(0), io_wait(Some(5)), ms(at * 100));
        assert!(of(&scheduler, 0).lease_until <= ms(5_000));
    }
    scheduler.arrive(&arrival(1, 600, 1_024), ms(6_000)).expect("it queues");
    assert_eq!(step(&mut scheduler, &[], ms(6_000)).swap_out.len(), 1);
}

#[test]
fn refusals_say_why() {
    let mut scheduler = small(Box::new(NeverEvict));
    let too_large = scheduler.arrive(&arrival(0, 100, 4_096), ms(0)).expect_err("too large");
    let why = Refusal::TooLarge { pages: 256, device_pages: 64 };
    assert_eq!((too_large, why.status()), (Error::Refused { session: id(0), why }, 413));
    scheduler.arrive(&arrival(1, 100, 1_024), ms(0)).expect("it fits");
    step(&mut scheduler, &[1], ms(0));
    scheduler.arrive(&arrival(2, 100, 1_024), ms(0)).expect("it queues");
    let plan = step(&mut scheduler, &[], ms(100));
    assert!(plan.batch.is_empty() && plan.wake == Some(ms(5_000)), "{plan:?}");
    let plan = step(&mut scheduler, &[], ms(5_000));
    assert_eq!(plan.refused, [(id(2), Refusal::QueueTimeout { waited: ms(5_000) })]);
    assert_eq!(plan.refused[0].1.status(), 429);
    assert!(scheduler.state().session(id(2)).is_none());
}

#[test]
fn misuse_is_an_error_of_one_line() {
    let mut scheduler = small(Box::new(Lru));
    scheduler.arrive(&arrival(0, 100, 128), ms(0)).expect("it fits");
    let again = scheduler.arrive(&arrival(0, 100, 128), ms(0));
    assert_eq!(again, Err(Error::Exists { session: id(0) }));
    for (prompt, limit) in [(0, 128), (128, 128), (u64::MAX, u64::MAX)] {
        let error = scheduler.arrive(&arrival(1, prompt, limit), ms(0)).expect_err("no turn").to_string();
        assert!(error.starts_with("session 1") && !error.contains('\n'), "{error}");
    }
    let next = SessionEvent::NextTurn { prompt: 1, max_tokens: 1 };
    let early = scheduler.event(id(0), next, ms(0)).expect_err("it computes").to_string();
    assert_eq!(early, "session 0 is in the phase prefill, where NextTurn has no meaning");
    let missing = scheduler.event(id(7), SessionEvent::End, ms(0));
    assert_eq!(missing, Err(Error::Missing { session: id(7) }));
}

/// Plans a step in which a session stops. Its own tokens of the step, and the rows of all.
fn stop(scheduler: &mut Scheduler, session: u64, now: Duration) -> (u64, u64) {
    let plan = scheduler.schedule(now);
    let own = plan.batch.iter().find(|entry| entry.session() == id(session)).map(|entry| entry.tokens());
    let stopped = own.map(|_| id(session)).into_iter().collect();
    scheduler.on_completed(&plan, &Outcome { stopped, ..Outcome::default() }, now);
    scheduler.state().audit();
    (own.unwrap_or(0), plan.rows())
}

#[test]
fn the_tokens_of_a_stop_are_computed_in_one_step() {
    let mut scheduler = small(Box::new(Lru));
    // More than fit beside 63 decodes.
    scheduler.arrive(&arrival(0, 160, 256), ms(0)).expect("it fits");
    assert_eq!(stop(&mut scheduler, 0, ms(0)), (160, 160));
    for session in 1..41 {
        scheduler.arrive(&arrival(session, 1, 64), ms(1)).expect("it fits");
    }
    assert_eq!(step(&mut scheduler, &[], ms(2)).rows(), 40);
    scheduler.event(id(0), SessionEvent::Resume, ms(3)).expect("it is stopped");
    // The decodes have waited for longer, and leave too few rows.
    assert_eq!(stop(&mut scheduler, 0, ms(4)), (0, 40));
    assert_eq!(stop(&mut scheduler, 0, ms(5)), (160, 192));
    scheduler.event(id(0), SessionEvent::Resume, ms(5)).expect("it is stopped");
    // Some of the decodes were left out.
    assert_eq!(stop(&mut scheduler, 0, ms(6)), (0, 40));
    let plan = step(&mut scheduler, &[], ms(7));
    assert_eq!(
        plan.batch.last(),
        Some(&ScheduledSession::Prefill { session: id(0), tokens: 160, last: true })
    );
    assert_eq!(plan.rows(), 192);
    // It counts, so nothing is left of the stop.
    assert_eq!((of(&scheduler, 0).context, of(&scheduler, 0).stop), (160, None));
}

#[test]
fn a_lost_context_is_computed_again_up_to_a_stop() {
    let mut scheduler = small(Box::new(Lru));
    waiting(&mut scheduler, 0, 130, ms(0));
    scheduler.event(id(0), SessionEvent::NextTurn { prompt: 101, max_tokens: 8 }, ms(1)).expect("it waits");
    assert_eq!(stop(&mut scheduler, 0, ms(1)), (101, 101));
    scheduler.state.discard(id(0));
    scheduler.event(id(0), SessionEvent::Resume, ms(2)).expect("it is stopped");
    let rows = [(); 4].map(|()| step(&mut scheduler, &[], ms(3)).rows());
    assert_eq!(rows, [128, 2, 101, 1]);
}

#[test]
fn reserved_pages_stay_with_a_session_that_is_rolled_back() {
    let mut scheduler = small(Box::new(NeverEvict));
    waiting(&mut scheduler, 0, 300, ms(0));
    for tokens in [200, 0] {
        scheduler.event(id(0), SessionEvent::Rollback { tokens }, ms(1)).expect("it waits");
        scheduler.state().audit();
        assert_eq!((of(&scheduler, 0).context, of(&scheduler, 0).device_pages()), (tokens, 64));
    }
    scheduler.event(id(0), SessionEvent::NextTurn { prompt: 50, max_tokens: 8 }, ms(2)).expect("it waits");
    assert_eq!(step(&mut scheduler, &[], ms(2)).rows(), 50);
}

#[test]
fn a_pause_within_a_step_keeps_what_the_step_did() {
    let mut scheduler = small(Box::new(Lru));
    scheduler.arrive(&arrival(0, 100, 128), ms(0)).expect("it fits");
    let plan = scheduler.schedule(ms(1));
    scheduler.event(id(0), SessionEvent::Pause, ms(1)).expect("it computes");
    scheduler.on_completed(&plan, &Outcome::default(), ms(2));
    let session = of(&scheduler, 0);
    assert_eq!((session.phase, session.context, session.prompt), (Phase::Paused, 100, 0));
    assert!(scheduler.schedule(ms(3)).batch.is_empty());
    scheduler.event(id(0), SessionEvent::Resume, ms(4)).expect("it is paused");
    assert_eq!(scheduler.schedule(ms(5)).batch, [ScheduledSession::Decode { session: id(0) }]);
}

#[test]
fn a_time_to_live_is_reviewed_when_it_ends() {
    let mut scheduler = small(Box::new(Ttl::new(ms(700))));
    waiting(&mut scheduler, 0, 600, ms(0));
    assert_eq!(step(&mut scheduler, &[], ms(1)).wake, Some(ms(700)));
    assert_eq!(step(&mut scheduler, &[], ms(700)).swap_out.len(), 1);
}

#[test]
fn a_lease_holds_demand_off_and_the_plan_wakes_at_its_end() {
    let mut scheduler = small(signal_policy());
    waiting(&mut scheduler, 0, 600, ms(0));
    // Copies of 38 pages both ways take 12.8 ms: a wait of 20 ms is not worth them.
    scheduler.signal(id(0), io_wait(Some(20)), ms(0));
    let end = of(&scheduler, 0).lease_until;
    assert!((ms(40)..ms(50)).contains(&end), "{end:?}");
    scheduler.arrive(&arrival(1, 600, 1_024), ms(1)).expect("it queues");
    let plan = step(&mut scheduler, &[], ms(1));
    assert!(plan.is_empty(), "{plan:?}");
    assert_eq!(plan.wake, Some(end));
    assert_eq!(step(&mut scheduler, &[], end).swap_out.len(), 1);
}

#[test]
fn only_missing_pages_are_taken_and_nobody_overtakes() {
    let mut scheduler = small(Box::new(Lru));
    for session in 0..3 {
        waiting(&mut scheduler, session, 250, ms(session));
    }
    // 16 pages are free, 38 are wanted: two sessions of 16 leave, not three.
    assert_eq!(scheduler.state().device_free(), 16);
    scheduler.arrive(&arrival(3, 600, 1_024), ms(10)).expect("it queues");
    scheduler.arrive(&arrival(4, 100, 1_024), ms(11)).expect("it queues");
    let plan = scheduler.schedule(ms(20));
    let moved: Vec<_> = plan.swap_out.iter().map(|copy| copy.session).collect();
    assert_eq!(moved, [id(0), id(1)]);
    assert!(plan.batch.is_empty() && plan.grants.is_empty(), "a smaller one went first: {plan:?}");
    scheduler.on_copied(&[id(0), id(1)].map(|session| CopyOutcome { session, ok: true }));
    let granted: Vec<_> = scheduler.schedule(ms(21)).grants.iter().map(|grant| grant.session).collect();
    assert_eq!(granted, [id(3), id(4)]);
}

#[test]
fn a_full_host_gives_up_who_will_be_away_for_longest() {
    let (mut capacity, cost) = small_machine();
    capacity.host_pages = 40;
    let mut scheduler = Scheduler::new(capacity, parts(signal_policy(), cost)).expect("a small machine");
    waiting(&mut scheduler, 0, 600, ms(0));
    scheduler.signal(id(0), io_wait(Some(600_000)), ms(0));
    scheduler.arrive(&arrival(1, 600, 1_024), ms(1)).expect("it queues");
    step(&mut scheduler, &[], ms(1));
    scheduler.on_copied(&[CopyOutcome { session: id(0), ok: true }]);
    while of(&scheduler, 1).prompt > 128 {
        step(&mut scheduler, &[], ms(2));
    }
    step(&mut scheduler, &[1], ms(2));
    scheduler.signal(id(1), io_wait(Some(30_000)), ms(2));
    scheduler.arrive(&arrival(2, 600, 1_024), ms(3)).expect("it queues");
    let plan = step(&mut scheduler, &[], ms(3));
    assert_eq!((plan.discard.as_slice(), plan.swap_out[0].session), ([id(0)].as_slice(), id(1)));
    assert_eq!((of(&scheduler, 0).residency(), of(&scheduler, 0).prompt), (Residency::Gone, 600));
}

#[test]
fn prefill_ends_at_multiples_of_the_chunk_in_the_context() {
    let mut scheduler = small(Box::new(Ttl::new(ms(0))));
    waiting(&mut scheduler, 0, 150, ms(0));
    scheduler.event(id(0), SessionEvent::NextTurn { prompt: 300, max_tokens: 8 }, ms(1)).expect("it waits");
    // The context has 150 tokens: 106 to 256, then a chunk, then the rest.
    let tokens: Vec<_> = (2..6).map(|at| step(&mut scheduler, &[], ms(at)).rows()).collect();
    assert_eq!(tokens, [106, 128, 66, 1]);
}

#[test]
fn a_picky_handler_is_overruled_up_to_the_end_of_the_chunk() {
    #[derive(Debug)]
    struct Unwilling;
    impl PhaseHandler for Unwilling {
        fn name(&self) -> &str {
            "unwilling"
        }
        fn order(&self) -> u32 {
            1
        }
        fn tokens(&self, _: &StepRoom, session: &Session) -> u64 {
            if session.context == 0 { 100 } else { 0 }
        }
    }
    let (capacity, cost) = small_machine();
    let parts = Parts { prefill: Box::new(Unwilling), ..parts(Box::new(Lru), cost) };
    let mut scheduler = Scheduler::new(capacity, parts).expect("a small machine");
    scheduler.arrive(&arrival(0, 300, 400), ms(0)).expect("it fits");
    let tokens: Vec<_> = (0..5).map(|at| step(&mut scheduler, &[], ms(at)).rows()).collect();
    assert_eq!(tokens, [100, 28, 128, 44, 1]);
}

/// Names of the full pages of a prompt whose first `shared` tokens everybody has; `who` has the others.
fn names(who: u64, shared: u32, tokens: u32) -> Vec<PageName> {
    let (mut names, own) = (Vec::new(), 1_000 * (1 + who as u32));
    let tokens: Vec<u32> = (0..tokens).map(|at| if at < shared { at } else { own + at }).collect();
    PageName::extend(&mut names, b"a team", &tokens, 16);
    names
}

/// A session arrives whose first `shared` tokens of `prompt` are everybody's.
fn arrive_sharing(scheduler: &mut Scheduler, session: u64, shared: u32, prompt: u32, now: Duration) {
    scheduler.arrive(&arrival(session, prompt.into(), 1_024), now).expect("it fits");
    scheduler.name_pages(id(session), names(session, shared, prompt));
}

#[test]
fn whole_chunks_that_others_computed_are_context() {
    let mut scheduler = small(Box::new(Lru));
    arrive_sharing(&mut scheduler, 0, 300, 300, ms(0));
    let tokens: Vec<_> = (0..2).map(|at| step(&mut scheduler, &[], ms(at)).rows()).collect();
    assert_eq!(tokens, [128, 172]);
    arrive_sharing(&mut scheduler, 1, 300, 300, ms(2));
    // 300 tokens are two chunks and a rest, which is not shared, nor is the first one's partial page.
    let plan = step(&mut scheduler, &[], ms(3));
    let grant = plan.grants.iter().find(|grant| grant.session == id(1)).expect("it is admitted");
    assert_eq!((grant.found, grant.pages, grant.fresh.len()), (256, 19, 3));
    assert_eq!(scheduler.state().device_free(), 64 - 19 - 3);
    assert_eq!((of(&scheduler, 1).context, of(&scheduler, 1).generated), (300, 1));
    let (first, second) = (of(&scheduler, 0), of(&scheduler, 1));
    assert_eq!(first.table().device()[..16], second.table().device()[..16]);
    assert_ne!(first.table().device()[16], second.table().device()[16]);
    // The last token of a prompt is computed, wherever it is.
    arrive_sharing(&mut scheduler, 2, 256, 256, ms(5));
    step(&mut scheduler, &[], ms(5));
    assert_eq!(of(&scheduler, 2).table().device()[..8], first.table().device()[..8]);
    assert_ne!(of(&scheduler, 2).table().device()[8], first.table().device()[8]);
    // A session that names nothing shares nothing.
    scheduler.arrive(&arrival(3, 100, 1_024), ms(6)).expect("it fits");
    assert_eq!(step(&mut scheduler, &[], ms(6)).grants[0].found, 0);
}

#[test]
fn a_step_takes_the_chunks_of_a_prompt_that_fit() {
    let (small, cost) = small_machine();
    // Room for two chunks beside the decodes of all others.
    let capacity = Capacity { rows: 2 * 128 + small.sequences - 1, ..small };
    let mut scheduler = Scheduler::new(capacity, parts(Box::new(Lru), cost)).expect("a machine");
    arrive_sharing(&mut scheduler, 0, 600, 600, ms(0));
    let tokens: Vec<_> = (0..4).map(|at| step(&mut scheduler, &[], ms(at)).rows()).collect();
    assert_eq!(tokens, [256, 256, 88, 1]);
    // All whole chunks are found by others, however many a step had.
    arrive_sharing(&mut scheduler, 1, 600, 600, ms(5));
    let plan = step(&mut scheduler, &[], ms(5));
    assert_eq!(plan.grants.iter().find(|grant| grant.session == id(1)).expect("it is admitted").found, 512);
}

#[test]
fn prefill_takes_fewer_rows_beside_decodes() {
    let (small, cost) = small_machine();
    let rows = 4 * 128 + small.sequences - 1;
    let rows_beside_decodes = Some(2 * 128 + small.sequences - 1);
    let capacity = Capacity { device_pages: 128, rows, rows_beside_decodes, ..small };
    let mut scheduler = Scheduler::new(capacity, parts(Box::new(Lru), cost)).expect("a machine");
    arrive_sharing(&mut scheduler, 0, 0, 512, ms(0));
    assert_eq!(step(&mut scheduler, &[], ms(0)).rows(), 512);
    // Beside the decode: two chunks of a prompt; its third and the first of another; the end of that.
    arrive_sharing(&mut scheduler, 1, 0, 384, ms(1));
    arrive_sharing(&mut scheduler, 2, 0, 300, ms(1));
    let rows: Vec<_> = (1..5).map(|at| step(&mut scheduler, &[], ms(at)).rows()).collect();
    assert_eq!(rows, [1 + 256, 1 + 256, 2 + 172, 3]);
    // A prompt's end that fits rows in which no session decodes comes with it.
    arrive_sharing(&mut scheduler, 3, 0, 300, ms(6));
    assert_eq!(step(&mut scheduler, &[], ms(6)).rows(), 3 + 300);
}

#[test]
fn what_was_not_computed_in_whole_chunks_is_neither_found_nor_shared() {
    let mut scheduler = small(Box::new(Ttl::new(ms(0))));
    arrive_sharing(&mut scheduler, 0, 400, 150, ms(0));
    step(&mut scheduler, &[0], ms(0));
    // Its next turn ends the second chunk, which another one computes as a whole.
    scheduler.event(id(0), SessionEvent::NextTurn { prompt: 250, max_tokens: 8 }, ms(1)).expect("it waits");
    scheduler.name_pages(id(0), names(0, 400, 400));
    (0..2).for_each(|at| drop(step(&mut scheduler, &[], ms(2 + at))));
    assert_eq!(of(&scheduler, 0).context, 400);
    arrive_sharing(&mut scheduler, 1, 400, 400, ms(6));
    assert_eq!(step(&mut scheduler, &[], ms(6)).grants[0].found, 128);
    step(&mut scheduler, &[], ms(7));
    step(&mut scheduler, &[], ms(8));
    // The first is preempted with what it has, and finds only what it had computed so.
    scheduler.state.discard(id(0));
    let plan = step(&mut scheduler, &[], ms(9));
    assert_eq!(plan.grants.iter().find(|grant| grant.session == id(0)).map(|grant| grant.found), Some(128));
    arrive_sharing(&mut scheduler, 2, 400, 400, ms(10));
    let plan = step(&mut scheduler, &[], ms(10));
    assert_eq!(plan.grants.iter().find(|grant| grant.session == id(2)).map(|grant| grant.found), Some(384));
}

/// Prompts of 512 tokens, three quarters of them in all sessions: a session alone takes 33 of 64 pages, and each
/// further one 9.
#[test]
fn a_shared_prefix_raises_admission_as_the_pages_say() {
    for (shared, at_once) in [(0, 1), (384, 1 + (64 - 33) / 9)] {
        let mut scheduler = small(Box::new(Lru));
        // One computes the prefix before the others come.
        arrive_sharing(&mut scheduler, 0, shared, 512, ms(0));
        (0..4).for_each(|at| drop(step(&mut scheduler, &[], ms(at))));
        (1..8).for_each(|session| arrive_sharing(&mut scheduler, session, shared, 512, ms(session)));
        let mut most = 0;
        for at in 10..18 {
            step(&mut scheduler, &[], ms(at));
            let resident = scheduler.state().sessions().filter(|s| s.residency() == Residency::Device);
            most = most.max(resident.count());
        }
        assert_eq!(most, at_once, "{shared} tokens shared");
    }
}

#[test]
fn pages_that_others_hold_are_not_free_and_leave_once() {
    let (mut capacity, cost) = small_machine();
    capacity.host_pages = 128;
    let mut scheduler = Scheduler::new(capacity, parts(Box::new(Lru), cost)).expect("a small machine");
    for session in 0..2 {
        arrive_sharing(&mut scheduler, session, 256, 300, ms(session));
        (0..3).for_each(|at| drop(step(&mut scheduler, &[], ms(at))));
        let ended = step(&mut scheduler, &[session], ms(3));
        assert_eq!(ended.batch.len(), 1);
    }
    assert_eq!(scheduler.state().device_free(), 64 - 19 - 3);
    // 57 pages are wanted and 42 are free. The first gives 3, which is not enough; the second what both hold.
    scheduler.arrive(&arrival(2, 900, 1_024), ms(10)).expect("it queues");
    let plan = step(&mut scheduler, &[], ms(10));
    let moved: Vec<_> = plan.swap_out.iter().map(|copy| (copy.session, copy.pages)).collect();
    assert_eq!(moved, [(id(0), 19), (id(1), 19)], "{plan:?}");
    scheduler.on_copied(&[id(0), id(1)].map(|session| CopyOutcome { session, ok: true }));
    scheduler.state().audit();
    assert_eq!(scheduler.state().device_free(), 64);
}

/// A machine whose sessions leave as soon as they wait, if the host has room.
fn leaving_at_once(host_pages: u32) -> Scheduler {
    let (small, cost) = small_machine();
    let capacity = Capacity { host_pages, ..small };
    Scheduler::new(capacity, parts(Box::new(Ttl::new(ms(0))), cost)).expect("a small machine")
}

/// A session of `prompt` tokens, the first `shared` of them everybody's, waits on the device.
fn waiting_sharing(scheduler: &mut Scheduler, session: u64, shared: u32, prompt: u32, now: Duration) {
    arrive_sharing(scheduler, session, shared, prompt, now);
    while of(scheduler, session).context < prompt.into() {
        step(scheduler, &[session], now);
    }
}

/// Plans, and ends all copies. Returns sessions that leave with their copied pages, and discarded ones.
fn moved(scheduler: &mut Scheduler, now: Duration) -> (Vec<(u64, u32)>, Vec<u64>) {
    let plan = step(scheduler, &[], now);
    let copies = plan.swap_out.iter().chain(&plan.swap_in);
    let copies: Vec<_> = copies.map(|copy| CopyOutcome { session: copy.session, ok: true }).collect();
    scheduler.on_copied(&copies);
    let left = plan.swap_out.iter().map(|copy| (copy.session.0, copy.pages)).collect();
    (left, plan.discard.iter().map(|session| session.0).collect())
}

#[test]
fn pages_that_the_host_has_need_no_room_there() {
    // The first one leaves with 19 pages. The second shares 16 of them, and its other three fit.
    let mut scheduler = leaving_at_once(22);
    for (session, pages) in [(0, 19), (1, 3)] {
        waiting_sharing(&mut scheduler, session, 256, 300, ms(session));
        let answer = scheduler.signal(id(session), Signal::Idle, ms(session));
        assert_eq!((answer.decision, answer.residency), (Decision::Swap, Residency::Device));
        assert_eq!(moved(&mut scheduler, ms(session)), (vec![(session, pages)], vec![]));
    }
    assert_eq!(scheduler.state().host_free(), 0);
}

#[test]
fn a_full_host_gives_up_only_what_makes_room() {
    // Two sessions on the host share 16 pages, and each has three more. One page is free.
    let full = || {
        let mut scheduler = leaving_at_once(23);
        for session in 0..2 {
            waiting_sharing(&mut scheduler, session, 256, 300, ms(session));
            assert_eq!(moved(&mut scheduler, ms(session)).0.len(), 1);
        }
        scheduler
    };
    // A session that leaves under demand: its shared tokens, and what is given up for its pages.
    let demand = |shared, prompt, pages: &[(u64, u32)], discarded: &[u64]| {
        let mut scheduler = full();
        waiting_sharing(&mut scheduler, 2, shared, prompt, ms(10));
        scheduler.arrive(&arrival(3, 1_000, 1_024), ms(20)).expect("it queues");
        assert_eq!(moved(&mut scheduler, ms(20)), (pages.to_vec(), discarded.to_vec()), "{prompt} tokens");
    };
    // One page of its own fits; for four, the session that has waited for longest goes.
    demand(256, 272, &[(2, 1)], &[]);
    demand(256, 320, &[(2, 4)], &[0]);
    // That one would give three pages and not 19, and both together 22.
    demand(0, 256, &[(2, 16)], &[0, 1]);
    demand(0, 384, &[], &[2]);
}

#[test]
fn a_fork_begins_with_its_parents_pages_and_writes_to_its_own() {
    let mut scheduler = small(Box::new(Lru));
    waiting(&mut scheduler, 0, 120, ms(0));
    assert_eq!(scheduler.state().device_free(), 64 - 8);
    // 100 more tokens after the 121 of the parent, whose last was not computed.
    scheduler.fork(id(0), &arrival(1, 221, 1_024), ms(1)).expect("it fits");
    let fork = of(&scheduler, 1);
    assert_eq!((fork.context, fork.prompt, fork.residency()), (120, 101, Residency::Device));
    assert_eq!(scheduler.state().device_free(), 64 - 8);
    let plan = step(&mut scheduler, &[], ms(1));
    // The partial page is copied; 221 tokens and one more are 14 pages.
    // All that is left fits one step: the end of a chunk, and a part of the next.
    assert_eq!((plan.duplicates.len(), plan.batch[0].tokens()), (1, 101));
    assert_eq!(plan.duplicates[0].from, of(&scheduler, 0).table().device()[7]);
    assert_eq!(plan.duplicates[0].to, of(&scheduler, 1).table().device()[7]);
    assert_eq!(scheduler.state().device_free(), 64 - 8 - 7);
    // A fork of a session that is away is computed from its tokens.
    scheduler.state.discard(id(0));
    scheduler.fork(id(0), &arrival(2, 221, 1_024), ms(2)).expect("it fits");
    assert_eq!((of(&scheduler, 2).context, of(&scheduler, 2).prompt), (0, 221));
}

#[test]
fn a_long_turn_that_is_preempted_is_not_refused_at_once() {
    let mut scheduler = small(Box::new(Lru));
    scheduler.arrive(&arrival(0, 600, 1_024), ms(0)).expect("it fits");
    (0..8).for_each(|at| drop(step(&mut scheduler, &[], ms(at * 1_500))));
    scheduler.arrive(&Arrival { priority: -1, ..arrival(1, 600, 1_024) }, ms(10_501)).expect("it queues");
    assert_eq!(step(&mut scheduler, &[], ms(10_502)).swap_out.len(), 1);
    scheduler.on_copied(&[CopyOutcome { session: id(0), ok: true }]);
    let plan = step(&mut scheduler, &[], ms(10_510));
    assert_eq!((plan.refused.len(), plan.batch[0].session()), (0, id(1)));
}

#[test]
fn growth_takes_no_more_from_those_who_compute_than_it_needs() {
    let mut scheduler = small(Box::new(Lru));
    // Four sessions of 16 pages fill the device; three more queue.
    for session in 0..7 {
        scheduler.arrive(&arrival(session, 255, 512), ms(session)).expect("it fits or queues");
    }
    let plans: Vec<_> = (10..40).map(|at| step(&mut scheduler, &[], ms(at))).collect();
    let moved = plans.iter().map(|plan| {
        let copied = plan.swap_out.iter().map(|copy| copy.session);
        copied.chain(plan.discard.iter().copied()).collect::<Vec<_>>()
    });
    // The first ones need a page each: the last one's 16 are enough, with any queue behind it.
    assert_eq!(moved.into_iter().find(|moved| !moved.is_empty()), Some(vec![id(3)]));
}

#[test]
fn a_full_host_makes_moving_dear() {
    let (mut capacity, cost) = small_machine();
    capacity.host_pages = 20;
    let mut scheduler = Scheduler::new(capacity, parts(signal_policy(), cost)).expect("a small machine");
    waiting(&mut scheduler, 0, 600, ms(0));
    // Copies of 38 pages both ways take 12.8 ms and to compute 600 tokens again 30 ms; twice the sum is 85 ms.
    let mut lease = |estimate| {
        let answer = scheduler.signal(id(0), io_wait(Some(estimate)), ms(0));
        (of(&scheduler, 0).lease_until.as_millis(), answer.why.to_string())
    };
    assert_eq!(lease(60), (145, "60 ms of wait left, moving would cost 42 ms".to_owned()));
    assert_eq!(lease(90), (0, "no session waits for pages".to_owned()));
}

#[test]
fn machines_that_cannot_run_anything_are_refused_with_the_remedy() {
    let (capacity, cost) = small_machine();
    let refusal = |capacity: Capacity| {
        let refused = Scheduler::new(capacity, parts(Box::new(Lru), cost)).expect_err("no machine");
        refused.to_string()
    };
    let no_page = refusal(Capacity { device_pages: 0, ..capacity });
    assert_eq!(no_page, "the device holds no KV page; raise the device budget");
    let narrow = refusal(Capacity { rows: 128, ..capacity });
    assert!(
        narrow.ends_with("cannot hold 63 decodes and a chunk of 128; raise rows to sequences - 1 + chunk")
    );
    assert_eq!(refusal(Capacity { rows_beside_decodes: Some(128), ..capacity }), narrow);
    assert_eq!(refusal(Capacity { chunk: 0, ..capacity }), "a chunk holds no token; set chunk to 1 or more");
    assert!(refusal(Capacity { page_tokens: 0, ..capacity }).contains("set page_tokens to 1 or more"));
    assert!(refusal(Capacity { sequences: 0, ..capacity }).contains("set sequences to 1 or more"));
}
