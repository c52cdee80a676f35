//! Turns under a constraint: it is told each token once, wherever the session's pages have been.

use super::sharing::end_all;
use super::*;
use djinn_engine::debug::{DebugSetup, Debugger, Steering, TokenKind};
use djinn_engine::{
    Constraint, ConstraintError, Edit, Error, Finish, Happening, NoToken, Opening, Sampling, SessionId,
    TokenLogprobs, TokenMask, Turn,
};
use djinn_scheduler::{SessionEvent, Signal};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Allows tokens that leave the remainder of a count that each token moves; fails or is complete after some tokens.
#[derive(Clone, Debug)]
pub(super) struct Remainders {
    count: u32,
    told: Arc<Mutex<Vec<u32>>>,
    complete_after: usize,
    fail_after: usize,
}

impl Remainders {
    fn told(&self) -> usize {
        self.told.lock().expect("no panic").len()
    }
}

impl Constraint for Remainders {
    fn allow(&mut self, allowed: &mut TokenMask) -> Result<(), ConstraintError> {
        if self.told() >= self.fail_after {
            return Err(ConstraintError("a limit was met".to_owned()));
        }
        (0..allowed.vocab() as u32)
            .filter(|token| token % 7 == self.count % 7)
            .for_each(|t| allowed.insert(t));
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        assert_eq!(token % 7, self.count % 7, "only allowed tokens are chosen");
        self.count += 1 + token / 16;
        self.told.lock().expect("no panic").push(token);
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.told() >= self.complete_after
    }

    fn boxed_clone(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

pub(super) fn constraint(complete_after: usize, fail_after: usize) -> (Remainders, Arc<Mutex<Vec<u32>>>) {
    let told = Arc::default();
    (Remainders { count: 3, told: Arc::clone(&told), complete_after, fail_after }, told)
}

fn turn(tokens: Vec<u32>, max_tokens: u64, constraint: Option<Remainders>) -> Turn {
    Turn {
        tokens,
        max_tokens,
        sampling: Sampling { temperature: 0.8, frequency_penalty: 0.5, seed: 9, ..Sampling::default() },
        constraint: constraint.map(|constraint| Box::new(constraint) as Box<dyn Constraint>),
        logprobs: Some(2),
        ..Turn::default()
    }
}

type Tokens = Vec<(u32, TokenLogprobs)>;

/// Two turns of each session, the first under a constraint, the second under another one after a rollback. What came,
/// turn by turn.
fn run<D: Ops>(service: &mut Service<D>, count: u64, pause: bool) -> Vec<Vec<Tokens>> {
    let mut found: BTreeMap<SessionId, Vec<Tokens>> = BTreeMap::new();
    let mut told = BTreeMap::new();
    for at in 0..count {
        let (constraint, log) = constraint(usize::MAX, usize::MAX);
        let turn = turn(prompt(at, 12 + 9 * at as usize), 14, Some(constraint));
        let id = service.open(Opening { turn, ..Opening::default() }).expect("there is room to queue");
        found.insert(id, vec![Vec::new()]);
        told.insert(id, vec![log]);
    }
    let (mut left, mut round, mut paused) = (count, 0, None);
    let began = std::time::Instant::now();
    while left > 0 {
        assert!(began.elapsed() < Duration::from_secs(120), "{left} of {count} sessions hang");
        for (id, happening) in service.advance().expect("the device is sound") {
            let Happening::Token { token, finish, logprobs, .. } = happening else {
                panic!("{id}: {happening:?}")
            };
            let turns = found.get_mut(&id).expect("it was opened");
            turns.last_mut().expect("a turn").push((token, *logprobs.expect("asked for")));
            if finish.is_none() {
                continue;
            }
            assert_eq!(finish, Some(Finish::Length));
            if turns.len() == 2 {
                left -= 1;
                service.signal(id, Signal::IoWait { tool: None, estimated_resume_ms: Some(60_000) });
                continue;
            }
            if paused == Some(id) {
                service.event(id, SessionEvent::Resume).expect("it is paused");
                paused = None;
            }
            // The end of the first turn is forgotten, and its constraint with it.
            let kept = service.batcher().tokens(id).expect("it lives").len() as u64 - 3;
            service.rollback(id, kept).expect("it waits");
            let (constraint, log) = constraint(usize::MAX, usize::MAX);
            service.turn(id, self::turn(prompt(id.0, 5), 9, Some(constraint))).expect("it waits");
            turns.push(Vec::new());
            told.get_mut(&id).expect("it was opened").push(log);
        }
        round += 1;
        if pause && round % 2 == 0 {
            let before = paused.take();
            if let Some(id) = before {
                service.event(id, SessionEvent::Resume).expect("it is paused");
            }
            let ready = service.state().sessions().filter(|s| s.is_ready() && Some(s.id) != before);
            paused = ready.max_by_key(|session| session.context).map(|session| session.id);
            if let Some(id) = paused {
                service.event(id, SessionEvent::Pause).expect("it computes");
            }
        }
    }
    for (id, turns) in &found {
        for (turn, told) in turns.iter().zip(&told[id]) {
            let tokens: Vec<u32> = turn.iter().map(|(token, _)| *token).collect();
            assert_eq!(*told.lock().expect("no panic"), tokens, "{id}: told other tokens than came");
        }
    }
    found.into_values().collect()
}

#[test]
fn a_constraint_is_told_each_token_once_wherever_pages_are() {
    let family = "tiny-gqa";
    // With room for all: nothing moves.
    let mut service = serve(sim(SimConfig::default()), family, &options(96, 0), &settings("none"));
    let expected = run(&mut service, 5, false);
    assert!(expected.iter().all(|turns| turns[0].len() == 14 && turns[1].len() == 9));
    end_all(service, (96, 0));
    let mut moved = 0;
    for seed in 0..24 {
        // Without host pages, sessions that give their pages up are computed again.
        let pages = (16, [12, 0][seed as usize % 2]);
        let config = SimConfig { seed, ..SimConfig::default() };
        let policy = ["lru", "signal", "predicted"][seed as usize % 3];
        let mut service = serve(sim(config), family, &options(pages.0, pages.1), &settings(policy));
        assert_eq!(run(&mut service, 5, seed % 3 != 0), expected, "seed {seed}, {policy}");
        moved += service.engine().swap_stats().back.bytes;
        end_all(service, pages);
    }
    assert!(moved > 0, "no page came back from the host");
}

/// What happens to one session under a constraint, until its turn is over.
fn one<D: Ops>(service: &mut Service<D>, constraint: Remainders) -> (SessionId, Vec<Happening>) {
    let opening = Opening { turn: turn(prompt(2, 20), 10, Some(constraint)), ..Opening::default() };
    let id = service.open(opening).expect("there is room");
    let mut happened = Vec::new();
    let over = |h: &Happening| !matches!(h, Happening::Token { finish: None, .. });
    while !happened.last().is_some_and(over) {
        happened.extend(service.advance().expect("the device is sound").into_iter().map(|(_, h)| h));
    }
    (id, happened)
}

#[test]
fn a_constraint_ends_its_turn_or_its_session() {
    let mut service = serve(cpu(), "tiny-gqa", &options(48, 0), &settings("lru"));
    let (complete, told) = constraint(4, usize::MAX);
    let (id, happened) = one(&mut service, complete);
    assert_eq!((happened.len(), told.lock().expect("no panic").len()), (4, 4));
    assert!(matches!(happened[3], Happening::Token { finish: Some(Finish::Complete), .. }), "{happened:?}");
    // The session goes on, without a constraint.
    service.turn(id, turn(vec![1, 2, 3], 2, None)).expect("it waits");
    assert_eq!(sharing::settle(&mut service).len(), 2);
    let (failing, _) = constraint(usize::MAX, 3);
    let (id, happened) = one(&mut service, failing);
    let reason = "the constraint on the output failed: a limit was met";
    assert!(
        matches!(&happened[3], Happening::Failed(why @ NoToken::Constraint(_)) if why.to_string() == reason)
    );
    assert!(service.state().session(id).is_none());
    end_all(service, (48, 0));
}

#[test]
fn turns_that_ask_for_too_much_are_refused() {
    let mut service = serve(cpu(), "tiny-gqa", &options(48, 0), &settings("lru"));
    let fine = turn(prompt(2, 20), 3, None);
    let bias = |token| Sampling { logit_bias: [(token, 1.0)].into(), ..Sampling::default() };
    let wrong = [
        (Turn { logprobs: Some(21), ..fine.clone() }, "logprobs is 21"),
        (Turn { sampling: bias(256), ..fine.clone() }, "token 256 is outside the vocabulary"),
    ];
    for (turn, why) in wrong {
        let error: Error = service.open(Opening { turn, ..Opening::default() }).expect_err(why);
        assert!(error.to_string().contains(why), "{error}");
    }
    let turn = Turn { sampling: bias(255), ..fine };
    service.open(Opening { turn, ..Opening::default() }).expect("the last token of 256");
    assert_eq!(sharing::settle(&mut service).len(), 3);
    end_all(service, (48, 0));
}

/// The step after which no token is possible has no logits to change.
#[test]
fn a_constraint_that_fails_with_changed_logits_ends_its_session_alone() {
    let mut service = serve(sim(SimConfig::default()), "tiny-gqa", &stopped::hooked(48, 0), &settings("lru"));
    let neighbour = turn(prompt(9, 10), 40, None);
    let neighbour = service.open(Opening { turn: neighbour, ..Opening::default() }).expect("there is room");
    let hook = service.hook("unembed.hook_out").expect("a hook of the model");
    let (name, edit) = ("test".to_owned(), Edit::scale(1.5));
    let steering = vec![Steering { name, hook, edit, tokens: TokenKind::Any }];
    let (failing, _) = constraint(usize::MAX, 3);
    let debug = DebugSetup { breakpoints: Vec::new(), steering };
    let turn = turn(prompt(3, 20), 9, Some(failing));
    let id = service.open(Opening { turn, debug, ..Opening::default() }).expect("there is room");
    let (mut failed, mut tokens) = (0, 0);
    while tokens < 40 {
        for (of, happening) in service.advance().expect("the device is sound") {
            match happening {
                Happening::Token { .. } => tokens += u64::from(of == neighbour),
                Happening::Failed(NoToken::Constraint(_)) if of == id => failed += 1,
                other => panic!("{of}: {other:?}"),
            }
        }
    }
    assert_eq!(failed, 1);
    end_all(service, (48, 0));
}
