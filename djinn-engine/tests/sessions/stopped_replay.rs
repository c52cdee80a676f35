//! Steps in which sessions stop, or are read, are replayed like those before them.

use super::sharing::{end_all, settle};
use super::stopped::{breakpoint, hooked};
use super::*;
use djinn_engine::debug::{
    BreakCondition, Breakpoint, Captures, DebugSetup, Debugger, Filter, Steering, TokenKind,
};
use djinn_engine::{Edit, Happening, Opening, Turn};
use djinn_scheduler::{SessionEvent, SessionId};

const TOKENS: u64 = 24;

fn service(seed: u64, options: &Options) -> Service<SimDevice> {
    serve(sim(SimConfig { seed, ..SimConfig::default() }), "tiny-gqa", options, &settings("lru"))
}

/// Three sessions, the first with `debug`.
fn open(service: &mut Service<SimDevice>, debug: DebugSetup) -> [SessionId; 3] {
    let mut debug = Some(debug);
    [1, 2, 3].map(|seed| {
        let turn = Turn { tokens: prompt(seed, 9), max_tokens: TOKENS, ..Turn::default() };
        let debug = debug.take().unwrap_or_default();
        service.open(Opening { turn, debug, ..Opening::default() }).expect("there is room")
    })
}

fn close(mut service: Service<SimDevice>, ids: &[SessionId]) {
    for &id in ids {
        service.event(id, SessionEvent::End).expect("it is open");
    }
    settle(&mut service);
    end_all(service, (40, 0));
}

/// A step in which a session stops without being read is replayed as the steps before were.
#[test]
fn a_step_with_a_stop_is_replayed() {
    let anything = Some(BreakCondition::Tokens((0..256).collect()));
    let uncertain = Some(BreakCondition::Entropy { above: 0.0 });
    for (seed, condition) in (0..).zip([None, anything, uncertain]) {
        let mut service = service(seed, &hooked(40, 0));
        let filter = Filter { tokens: TokenKind::Generated, steps: 12..13, ..Filter::default() };
        let stop = Breakpoint {
            filter,
            condition: condition.clone(),
            hits: Some(1),
            ..breakpoint(&service, "blocks.1.hook_resid_mid")
        };
        let ids = open(&mut service, DebugSetup { breakpoints: vec![stop], ..DebugSetup::default() });
        let (mut replayed, mut stops) = (0, 0);
        while service.state().sessions().any(|session| session.is_ready()) {
            // One part at a time: a step begins, or it ends.
            let happened = service.pump().expect("the device is sound").unwrap_or_default();
            let now = service.engine().replayed_passes();
            if happened.iter().any(|(_, what)| matches!(what, Happening::Paused(_))) {
                assert_eq!(now, replayed + 1, "{condition:?}: the step was not replayed");
                stops += 1;
                service.resume_until(ids[0], None).expect("it is stopped");
            }
            if !happened.is_empty() {
                replayed = now;
            }
        }
        assert_eq!(stops, 1, "{condition:?}");
        close(service, &ids);
    }
}

/// What captures and probes read, and what steering makes of tokens, is the same where steps are replayed.
#[test]
fn steps_that_read_and_change_are_replayed() {
    let run = |replay: bool| {
        let mut service = service(5, &Options { replay, ..hooked(40, 0) });
        let filter = Filter { tokens: TokenKind::Generated, ..Filter::default() };
        let plain = Breakpoint { filter, ..breakpoint(&service, "blocks.0.hook_out") };
        let width = plain.hook.columns.1 as usize;
        let never = Some(BreakCondition::Probe { direction: vec![1.0; width], above: f32::MAX });
        let probe = Breakpoint { condition: never, ..plain.clone() };
        let capture = Breakpoint {
            hook: service.hook("blocks.1.attn.hook_z").expect("a hook of the model"),
            pause: false,
            capture: true,
            ..plain.clone()
        };
        let steering = Steering {
            name: "test".to_owned(),
            hook: plain.hook.clone(),
            edit: Edit::add((0..width).map(|at| (at % 5) as f32 - 2.0).collect(), 0.5),
            tokens: TokenKind::Any,
        };
        let debug = DebugSetup { breakpoints: vec![probe, capture], steering: vec![steering] };
        let ids = open(&mut service, debug);
        settle(&mut service);
        let tokens = ids.map(|id| service.tokens(id).expect("it is open").0);
        let captures = service.take_captures(ids[0]).expect("it is open");
        let replayed = service.engine().replayed_passes();
        close(service, &ids);
        (tokens, captures, replayed)
    };
    let (want, enqueued, none) = run(false);
    let (got, captures, replayed) = run(true);
    assert_eq!((got, &captures), (want, &enqueued));
    let Captures { captures, dropped: 0 } = captures else { panic!("everything fits") };
    assert_eq!(captures.len() as u64, TOKENS - 1, "the last token is not computed");
    assert!(captures.windows(2).all(|pair| pair[0].values != pair[1].values), "each has its own values");
    // The prompts' step and those until a pass was captured are enqueued.
    assert!(none == 0 && replayed >= TOKENS / 2, "{replayed} passes were replayed");
}
