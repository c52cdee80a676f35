//! A service on its own thread, with clients on others.

use super::*;
use djinn_engine::{Client, Happening, Opening, Turn, spawn};
use djinn_scheduler::{SessionEvent, SessionId, Signal, SignalOutcome};

fn start(policy: &'static str) -> (Client, std::thread::JoinHandle<djinn_engine::Result<()>>) {
    spawn(move || Ok(serve(cpu(), "tiny-gqa", &options(24, 24), &settings(policy)))).expect("it serves")
}

fn turn(tokens: Vec<u32>, max_tokens: u64) -> Turn {
    Turn { tokens, max_tokens, ..Turn::default() }
}

#[test]
fn clients_on_many_threads_get_their_own_tokens() {
    let (client, thread) = start("signal");
    std::thread::scope(|scope| {
        for at in 0..8 {
            let client = client.clone();
            scope.spawn(move || {
                let turns = [(prompt(at, 20 + at as usize), 6), (prompt(at + 100, 5), 4)];
                let expected = alone("tiny-gqa", &turns);
                let opening = Opening { turn: turn(turns[0].0.clone(), 6), ..Opening::default() };
                let (id, happenings) = client.open(opening).expect("it is admitted");
                let receive = || {
                    let mut tokens = Vec::new();
                    loop {
                        match happenings.recv().expect("the session lives") {
                            Happening::Token { token, finish, .. } => {
                                tokens.push(token);
                                if finish.is_some() {
                                    return tokens;
                                }
                            }
                            other => panic!("{other:?}"),
                        }
                    }
                };
                assert_eq!(receive(), expected[0]);
                let answer = client.signal(id, Signal::Idle).expect("it runs");
                assert_eq!(answer.outcome, SignalOutcome::Accepted);
                client.turn(id, turn(turns[1].0.clone(), 4)).expect("it waits");
                assert_eq!(receive(), expected[1]);
                client.event(id, SessionEvent::End).expect("it waits");
                assert!(happenings.recv().is_err(), "the channel closes with the session");
                let gone = client.signal(id, Signal::Idle).expect("it runs");
                assert_eq!(gone.outcome, SignalOutcome::Missing);
            });
        }
    });
    drop(client);
    thread.join().expect("no panic").expect("the device is sound");
}

/// A client that goes away without a word ends its session; others go on.
#[test]
fn a_lost_client_frees_its_pages() {
    let (client, thread) = start("none");
    let lost = client.open(Opening { turn: turn(prompt(1, 30), 60), ..Opening::default() });
    let (id, happenings) = lost.expect("it is admitted");
    assert!(matches!(happenings.recv(), Ok(Happening::Token { .. })));
    drop(happenings);
    // The policy reserves whole contexts: two more only fit once the first is gone.
    let others: Vec<_> = (2..4)
        .map(|at| {
            let opening = Opening { turn: turn(prompt(at, 30), 3), ..Opening::default() };
            client.open(opening).expect("it is admitted").1
        })
        .collect();
    for happenings in &others {
        let finished = |h: Happening| matches!(h, Happening::Token { finish: Some(_), .. });
        assert!(happenings.iter().any(finished));
    }
    assert_eq!(client.signal(id, Signal::Compute).expect("it runs").outcome, SignalOutcome::Missing);
    assert!(client.turn(SessionId(99), turn(vec![1], 1)).is_err());
    drop(client);
    thread.join().expect("no panic").expect("the device is sound");
}

/// Turns that their client ends, in the midst of a prompt or of an answer, leave a session that goes on.
#[test]
fn a_turn_that_is_ended_leaves_its_session() {
    let (client, thread) = start("signal");
    for tokens_first in [0, 2] {
        let opening = Opening { turn: turn(prompt(1, 90), 5), ..Opening::default() };
        let (id, happenings) = client.open(opening).expect("it is admitted");
        for _ in 0..tokens_first {
            assert!(matches!(happenings.recv(), Ok(Happening::Token { .. })));
        }
        client.event(id, SessionEvent::EndTurn).expect("it lives");
        let last = happenings.iter().find(|h| !matches!(h, Happening::Token { finish: None, .. }));
        let last = last.expect("it lives");
        assert!(matches!(last, Happening::TurnEnded | Happening::Token { .. }), "{last:?}");
        let kept = client.rollback(id, 30).expect("it waits");
        assert_eq!(kept, 30, "the CPU computes each row by itself");
        client.turn(id, turn(prompt(2, 9), 4)).expect("it waits");
        let next: Vec<u32> = happenings.iter().take(4).map(token).collect();
        let whole = [&prompt(1, 90)[..30], &prompt(2, 9)].concat();
        assert_eq!(next, alone("tiny-gqa", &[(whole, 4)])[0]);
        client.event(id, SessionEvent::End).expect("it waits");
    }
    drop(client);
    thread.join().expect("no panic").expect("the device is sound");
}

fn token(happening: Happening) -> u32 {
    match happening {
        Happening::Token { token, .. } => token,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_service_that_cannot_be_made_says_why() {
    let odd = Options { prefill_rows: 44, ..options(24, 0) };
    let made = spawn(move || {
        let engine = load(cpu(), "tiny-gqa", &odd);
        Service::new(engine, |capacity| Registry::default().scheduler(&settings("lru"), capacity, cost()))
    });
    let error = made.map(|_| ()).expect_err("44 rows are no whole pages").to_string();
    assert!(error.contains("page_tokens"), "{error}");
}
