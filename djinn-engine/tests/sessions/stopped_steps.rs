//! The steps of sessions that stop: the tokens of a stop are computed in one step until they count, and what is set while
//! steps are under way concerns every token that is computed after them.

use super::sharing::{end_all, settle};
use super::stopped::{breakpoint, hooked, look};
use super::*;
use djinn_engine::debug::{Breakpoint, DebugSetup, Debugger, Filter, Look, Steering, TokenKind};
use djinn_engine::{Edit, Error, Opening, Origin, Turn};
use djinn_scheduler::{Residency, SessionEvent, SessionId};
use std::ops::Range;

type Sim = Service<SimDevice>;

fn service(pages: u32) -> Sim {
    let config = SimConfig { seed: 1, ..SimConfig::default() };
    serve(sim(config), "tiny-gqa", &hooked(pages, 0), &settings("lru"))
}

fn open(service: &mut Sim, tokens: Vec<u32>, max_tokens: u64, breakpoints: Vec<Breakpoint>) -> SessionId {
    let turn = Turn { tokens, max_tokens, ..Turn::default() };
    let origin = Origin::Salt(b"one".to_vec());
    let debug = DebugSetup { breakpoints, steering: Vec::new() };
    service.open(Opening { turn, origin, debug, ..Opening::default() }).expect("there is room")
}

/// Stops each prompt.
fn at_prompts(service: &Sim) -> Breakpoint {
    let filter = Filter { tokens: TokenKind::Prompt, ..Filter::default() };
    Breakpoint { filter, ..breakpoint(service, "blocks.1.hook_in") }
}

fn looked_at(service: &mut Sim, id: SessionId) -> Range<u64> {
    let hooks = vec![service.hook("blocks.0.hook_out").expect("a hook of the model")];
    look(service, id, Look { hooks, ..Look::default() }).positions
}

/// Goes on to the end of the turn, without another stop. What the turns have generated.
fn finish(service: &mut Sim, id: SessionId) -> Vec<u32> {
    service.resume_until(id, None).expect("it is stopped");
    settle(service);
    assert_eq!(service.paused_at(id), None, "it stops once");
    let (tokens, by_model) = service.tokens(id).expect("it is open");
    by_model.into_iter().flat_map(|turn| tokens[turn.start as usize..turn.end as usize].to_vec()).collect()
}

/// The prompt is as long as a step without decodes.
#[test]
fn a_stop_that_fills_a_step_is_looked_at_beside_decodes() {
    let mut service = service(48);
    let stop = at_prompts(&service);
    let id = open(&mut service, prompt(3, 43), 9, vec![stop]);
    settle(&mut service);
    assert_eq!(service.paused_at(id).expect("it stops").positions, 0..43);
    let others: Vec<_> = (5..8).map(|seed| open(&mut service, prompt(seed, 4), 80, Vec::new())).collect();
    let generated = |service: &Sim, id| service.state().session(id).expect("it lives").generated;
    while others.iter().any(|&other| generated(&service, other) < 3) {
        service.advance().expect("it runs");
    }
    let hooks = vec![service.hook("blocks.0.hook_out").expect("a hook of the model")];
    let (sender, looked) = std::sync::mpsc::channel();
    for _ in 0..3 {
        let (sender, hooks) = (sender.clone(), hooks.clone());
        let answer = move |looked| sender.send(looked).expect("it is awaited");
        service.look(id, Look { hooks, ..Look::default() }, Box::new(answer));
    }
    service.resume_until(id, None).expect("it is stopped");
    // It waits for no other session to end.
    while service.state().session(id).expect("it lives").context == 0 {
        service.advance().expect("it runs");
    }
    assert!(others.iter().all(|&other| generated(&service, other) < 80));
    let positions: Vec<_> =
        looked.try_iter().map(|looked| looked.expect("it is allowed").positions).collect();
    assert_eq!(positions, [0..43, 0..43, 0..43]);
    settle(&mut service);
    assert_eq!(service.breakpoints(id).expect("it lives")[0].2, 1);
    let (tokens, _) = service.tokens(id).expect("it is open");
    assert_eq!(tokens[43..], alone("tiny-gqa", &[(prompt(3, 43), 9)])[0]);
    for (seed, other) in (5..).zip(others) {
        let (tokens, _) = service.tokens(other).expect("it is open");
        assert_eq!(tokens[4..], alone("tiny-gqa", &[(prompt(seed, 4), 80)])[0], "session {seed}");
    }
    end_all(service, (48, 0));
}

/// The stop begins within what would be a step of the lost context.
#[test]
fn a_stop_in_a_later_prompt_is_looked_at_after_its_pages_were_given_up() {
    let mut service = service(14);
    let id = open(&mut service, prompt(3, 30), 1, Vec::new());
    settle(&mut service);
    let stop = at_prompts(&service);
    service.set_breakpoint(id, stop).expect("there is room");
    service.turn(id, Turn { tokens: prompt(4, 40), max_tokens: 9, ..Turn::default() }).expect("it waits");
    settle(&mut service);
    assert_eq!(service.paused_at(id).expect("it stops").positions, 30..71);
    for _ in 0..2 {
        let other = open(&mut service, prompt(99, 90), 5, Vec::new());
        settle(&mut service);
        service.event(other, SessionEvent::End).expect("it is open");
        settle(&mut service);
        assert_eq!(service.state().session(id).expect("it lives").residency(), Residency::Gone);
        assert_eq!(looked_at(&mut service, id), 30..71);
    }
    let want = alone("tiny-gqa", &[(prompt(3, 30), 1), (prompt(4, 40), 9)]);
    assert_eq!(finish(&mut service, id), want.concat());
    end_all(service, (14, 0));
}

/// Two steps are under way when it is set, and the first one ends the turn.
#[test]
fn what_is_set_before_a_dropped_step_concerns_its_token() {
    let tokens = prompt(3, 20);
    let want = alone("tiny-gqa", &[(tokens.clone(), 9)]);
    let stop = want[0][5];
    assert!(!want[0][..5].contains(&stop));
    let mut service = service(48);
    let turn = Turn { tokens, max_tokens: 60, stop_tokens: vec![stop], ..Turn::default() };
    let id = service.open(Opening { turn, ..Opening::default() }).expect("there is room");
    let known = |service: &Sim| service.tokens(id).expect("it is open").0.len();
    while service.state().session(id).expect("it lives").in_step < 2 || known(&service) < 25 {
        service.pump().expect("it runs");
        assert!(known(&service) < 26, "there are two steps under way");
    }
    let read = Breakpoint { pause: false, capture: true, ..breakpoint(&service, "blocks.1.hook_in") };
    service.set_breakpoint(id, read).expect("there is room");
    let hook = service.hook("blocks.0.hook_out").expect("a hook of the model");
    let (name, edit) = ("test".to_owned(), Edit::scale(1.5));
    let steering = Steering { name, hook, edit, tokens: TokenKind::Any };
    service.steer(id, vec![steering]).expect("there is room");
    settle(&mut service);
    assert_eq!((service.state().session(id).expect("it lives").context, known(&service)), (25, 26));
    service.turn(id, Turn { tokens: prompt(4, 3), max_tokens: 2, ..Turn::default() }).expect("it waits");
    settle(&mut service);
    let captures = service.take_captures(id).expect("it is open").captures;
    let captured: Vec<u64> = captures.into_iter().flat_map(|capture| capture.positions).collect();
    assert_eq!(captured, [25, 26, 27, 28, 29]);
    assert_eq!(service.applied(id).expect("it is open"), [("test".to_owned(), 5)]);
    end_all(service, (48, 0));
}

/// No debugger could let it go on.
#[test]
fn generating_ends_at_a_breakpoint_with_an_error() {
    let mut service = service(48);
    let stop = at_prompts(&service);
    let id = open(&mut service, prompt(3, 9), 1, Vec::new());
    settle(&mut service);
    let stop = service.set_breakpoint(id, stop).expect("there is room");
    let (tokens, _) = service.tokens(id).expect("it is open");
    let request = Request { prompt: [tokens, prompt(4, 5)].concat(), max_tokens: 4, ..Request::default() };
    let mut session = Some(id);
    let go_on = &mut |_| ControlFlow::Continue(());
    assert!(matches!(service.generate(&mut session, &request, go_on), Err(Error::Option(_))));
    assert_eq!(session, Some(id));
    service.clear_breakpoint(id, stop).expect("it lives");
    let generated = service.generate(&mut session, &request, go_on).expect("it runs");
    assert_eq!(generated.tokens, alone("tiny-gqa", &[(prompt(3, 9), 1), (prompt(4, 5), 4)])[1]);
    end_all(service, (48, 0));
}
