//! Turns that their client ends, and sessions that are rolled back: what follows is as if nothing else had been said.

use super::*;
use djinn_engine::{Error, Finish, Generate, Happening, Opening, SessionId, Turn};
use djinn_scheduler::{Phase, SessionEvent};

fn turn(tokens: Vec<u32>, max_tokens: u64) -> Turn {
    Turn { tokens, max_tokens, ..Turn::default() }
}

/// The tokens of a session up to the end of its turn.
fn tokens<D: Ops>(service: &mut Service<D>, id: SessionId) -> Vec<u32> {
    let mut found = Vec::new();
    let began = std::time::Instant::now();
    while began.elapsed() < Duration::from_secs(60) {
        for (session, happening) in service.advance().expect("the device is sound") {
            assert_eq!(session, id);
            let Happening::Token { token, finish, .. } = happening else { panic!("{happening:?}") };
            found.push(token);
            if finish.is_some() {
                return found;
            }
        }
    }
    panic!("no end after {} tokens", found.len());
}

/// Goes on until `done`, one thing at a time; what happened last.
fn until<D: Ops>(service: &mut Service<D>, done: impl Fn(&Service<D>) -> bool) {
    let began = std::time::Instant::now();
    while !done(service) {
        service.pump().expect("the device is sound");
        assert!(began.elapsed() < Duration::from_secs(60), "it does not come to that");
    }
}

fn context<D: Ops>(service: &Service<D>, id: SessionId) -> u64 {
    service.state().session(id).expect("it lives").context
}

/// Between two prefill chunks, with one under way, and in the midst of the answer.
#[test]
fn a_turn_that_is_ended_leaves_a_session_that_goes_on() {
    fn check<D: Ops>(device: impl Fn() -> D) {
        let (first, next) = (prompt(1, 75), prompt(2, 6));
        for (at, under_way) in [(0, false), (40, false), (40, true), (78, false), (78, true)] {
            let mut service = serve(device(), "tiny-gqa", &options(24, 0), &settings("signal"));
            let opening = Opening { turn: turn(first.clone(), 8), ..Opening::default() };
            let id = service.open(opening).expect("there is room");
            until(&mut service, |s| context(s, id) >= at && s.state().step().is_some() == under_way);
            service.event(id, SessionEvent::EndTurn).expect("it computes");
            let mut ended = false;
            until(&mut service, |s| !s.state().session(id).expect("it lives").is_ready());
            while let Some(happened) = service.pump().expect("the device is sound") {
                ended |= happened.contains(&(id, Happening::TurnEnded));
            }
            assert!(ended || under_way, "ended at {at} tokens");
            let known = service.batcher().tokens(id).expect("it lives").to_vec();
            assert_eq!(known[..75], first);
            service.turn(id, turn(next.clone(), 5)).expect("it waits");
            let found = tokens(&mut service, id);
            // Tokens that were generated before are decoded, so that they are computed one by one.
            let before = (first.clone(), (known.len() - 75) as u64);
            let expected = match before.1 {
                0 => alone_on(device(), "tiny-gqa", &[([&first[..], &next].concat(), 5)]),
                _ => alone_on(device(), "tiny-gqa", &[before, (next.clone(), 5)]),
            };
            assert_eq!(Some(&found), expected.last(), "ended at {at} tokens, a step under way: {under_way}");
            service.state().audit();
        }
    }
    check(cpu);
}

/// A rollback on a device whose products depend on their rows goes to where a prefill chunk began.
#[test]
fn a_rolled_back_session_is_one_that_never_went_on() {
    fn check<D: Ops>(device: impl Fn() -> D, kept: &[(u64, u64)]) {
        for &(tokens_asked, expected) in kept {
            let (first, next) = (prompt(1, 75), prompt(2, 12));
            let mut service = serve(device(), "tiny-gqa", &options(24, 0), &settings("signal"));
            let opening = Opening { turn: turn(first.clone(), 4), ..Opening::default() };
            let id = service.open(opening).expect("there is room");
            let answer = tokens(&mut service, id);
            let kept = service.rollback(id, tokens_asked).expect("it waits");
            assert_eq!(kept, expected, "{tokens_asked} tokens");
            service.state().audit();
            service.turn(id, turn(next.clone(), 5)).expect("it waits");
            let found = tokens(&mut service, id);
            let whole = [&first[..], &answer].concat();
            let whole = [&whole[..kept as usize], &next].concat();
            let alone = alone_on(device(), "tiny-gqa", &[(whole, 5)]);
            assert_eq!(found, alone[0], "{tokens_asked} tokens");
        }
    }
    check(cpu, &[(0, 0), (1, 1), (39, 39), (40, 40), (60, 60), (75, 75), (78, 78), (500, 79)]);
    check(|| sim(SimConfig::default()), &[(0, 0), (39, 0), (40, 40), (60, 40)]);
}

#[test]
fn what_computes_is_not_rolled_back_and_what_waits_has_no_turn_to_end() {
    let mut service = serve(cpu(), "tiny-gqa", &options(24, 0), &settings("signal"));
    let id = service.open(Opening { turn: turn(prompt(1, 20), 3), ..Opening::default() }).expect("room");
    assert!(service.rollback(id, 3).is_err());
    assert_eq!(tokens(&mut service, id).len(), 3);
    service.event(id, SessionEvent::EndTurn).expect("nothing is to be ended");
    assert!(service.advance().expect("sound").is_empty());
    assert_eq!(service.state().session(id).expect("it lives").phase, Phase::Idle);
    assert!(service.rollback(SessionId(99), 3).is_err());
    let mut single = Service::single(service.into_engine().expect("sound")).expect("it serves");
    let request = Request { prompt: prompt(1, 20), max_tokens: 9, ..Request::default() };
    let mut session = None;
    let mut left = |_| ControlFlow::Break(());
    let cancelled = single.generate(&mut session, &request, &mut left).expect("it runs");
    assert_eq!((cancelled.finish, cancelled.tokens.len()), (Finish::Cancelled, 0));
}

/// Under a policy that gives each session its pages for good, others cannot take them after a rollback.
#[test]
fn a_rolled_back_session_keeps_its_reserved_pages() {
    let mut service = serve(sim(SimConfig::default()), "tiny-gqa", &options(24, 0), &settings("none"));
    let opening =
        |seed, limit| Opening { turn: turn(prompt(seed, 40), 3), limit: Some(limit), ..Opening::default() };
    let [id, _] = [1, 2].map(|seed| service.open(opening(seed, 96)).expect("there is room"));
    sharing::settle(&mut service);
    // The first chunk goes as a whole.
    assert_eq!(service.rollback(id, 16).expect("it waits"), 0);
    assert_eq!(service.state().session(id).expect("it lives").device_pages(), 12);
    let other = service.open(opening(3, 80)).expect("it queues");
    service.turn(id, turn(prompt(4, 20), 3)).expect("it waits");
    assert_eq!(tokens(&mut service, id), alone("tiny-gqa", &[(prompt(4, 20), 3)])[0]);
    assert_eq!(service.state().session(other).expect("it lives").device_pages(), 0);
}

#[test]
fn a_prompt_that_is_refused_costs_its_session_nothing() {
    let mut service = serve(sim(SimConfig::default()), "tiny-gqa", &options(24, 0), &settings("lru"));
    let id = service.open(Opening { turn: turn(prompt(1, 20), 3), ..Opening::default() }).expect("room");
    tokens(&mut service, id);
    let known = service.batcher().tokens(id).expect("it lives").to_vec();
    let refused = service.prompt(id, turn(prompt(2, 90), 30)).expect_err("the context has 96");
    assert!(matches!(refused, Error::Scheduler(djinn_scheduler::Error::TooLong { limit: 96, .. })));
    assert_eq!(service.batcher().tokens(id), Some(&*known));
}
