//! Refusals of the engine that no command brings about.

use super::*;
use djinn_host::{DeviceName, Generation, Setup};
use std::ops::ControlFlow;

/// A debugger of a tiny model, with a breakpoint at which the session `main` is stopped.
fn stopped(test: impl FnOnce(&mut Debug<'_>)) {
    let setup = Setup { device: DeviceName::Cpu, threads: Some(1), ..Setup::default() };
    let model = setup.open("synthetic:tiny?layers=2").unwrap();
    let request = Generation { greedy: true, ..Generation::default() }.request(&model, vec![1, 2, 3]);
    let options = Options { hook_bytes: 1 << 20, ..setup.options(&model, 64).serving(SESSIONS) };
    let engine = djinn_host::load(&model, &setup, &options, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let interrupt = Interrupt::default();
    let mut debug = Debug::new(engine, Speech::raw(&model), request, &[], &interrupt);
    hear(&mut debug, "break blocks.0.hook_out");
    hear(&mut debug, "run");
    test(&mut debug);
}

fn hear(debug: &mut Debug<'_>, line: &str) {
    assert!(debug.hear(line).unwrap(), "{line}");
}

#[test]
fn a_breakpoint_that_one_session_refuses_is_armed_in_none() {
    stopped(|debug| {
        hear(debug, "fork other");
        let [main, other] = [0, 1].map(|place| debug.sessions[place].id);
        debug.engine.close(Some(other)).unwrap();
        assert!(debug.hear("break blocks.1.hook_out").is_err(), "the engine has lost the second session");
        assert_eq!(debug.engine.breakpoints(main).unwrap().len(), 1);
        assert_eq!((debug.breakpoints.len(), debug.sessions[0].armed.len()), (1, 1));
    });
}

#[test]
fn a_fork_that_refuses_a_breakpoint_is_closed() {
    stopped(|debug| {
        let main = debug.sessions[0].id;
        // The engine refuses it.
        debug.breakpoints[0].breakpoint.hits = Some(0);
        assert!(debug.hear("fork other").is_err());
        assert_eq!(debug.sessions.len(), 1);
        let fork = djinn_engine::SessionId(main.0 + 1);
        assert!(debug.engine.breakpoints(fork).is_err(), "the engine has a session that is not listed");
    });
}
