//! A service on its own thread, with clients on others.

use super::sharing::{end_all, settle};
use super::*;
use djinn_cpu::{SimFault, SimFaults};
use djinn_engine::{Client, Error, Happening, Listener, Opening, Turn, spawn};
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

/// A service that is retired ends with the turns that run, or when their time is over; no other turn begins.
#[test]
fn a_service_that_is_retired_ends_with_its_turns() {
    let opening = || Opening { turn: turn(prompt(1, 30), 40), ..Opening::default() };
    for (within, ends) in [(Duration::from_secs(1000), true), (Duration::ZERO, false)] {
        let (client, thread) = start("signal");
        let idle = Opening { turn: turn(prompt(2, 9), 1), ..Opening::default() };
        let (idle, waits) = client.open(idle).expect("it is admitted");
        assert!(waits.recv().is_ok());
        let (sender, happenings) = crossbeam_channel::unbounded();
        // From the service's own thread, so that it comes in the midst of the turn.
        let retires = client.clone();
        let listener: Listener = Box::new(move |happening| {
            retires.retire("a test".to_owned(), within);
            sender.send(happening).is_ok()
        });
        client.begin_open(opening(), listener, drop);
        let tokens: Vec<_> = happenings.iter().collect();
        let is_last = |happening| matches!(happening, &Happening::Token { finish: Some(_), .. });
        assert_eq!(tokens.last().is_some_and(is_last), ends, "{tokens:?}");
        for refused in [client.open(opening()).map(drop), client.turn(idle, turn(vec![1], 1))] {
            let error = refused.expect_err("it ends");
            assert!(matches!(error, Error::Retired { .. } | Error::Stopped(_)), "{error}");
        }
        let ended = thread.join().expect("no panic");
        assert!(matches!(ended, Err(Error::Retired { why }) if why == "a test"));
    }
}

/// A paused turn runs as well: it may be resumed in time.
#[test]
fn a_service_that_is_retired_waits_for_paused_turns() {
    let (client, thread) = start("signal");
    let opening = Opening { turn: turn(prompt(1, 30), 40), ..Opening::default() };
    let (id, happenings) = client.open(opening).expect("it is admitted");
    assert!(matches!(happenings.recv(), Ok(Happening::Token { .. })));
    client.event(id, SessionEvent::Pause).expect("it runs");
    client.retire("a test".to_owned(), Duration::from_secs(1000));
    client.event(id, SessionEvent::Resume).expect("it is paused");
    let is_last = |happening: Happening| matches!(happening, Happening::Token { finish: Some(_), .. });
    assert!(happenings.iter().any(is_last));
    assert!(matches!(thread.join().expect("no panic"), Err(Error::Retired { .. })));
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

/// Tokens of a turn, its listener, and how many tokens it reads.
fn listener(most: usize) -> (Listener, crossbeam_channel::Receiver<(u32, Option<u64>)>) {
    let (sender, tokens) = crossbeam_channel::unbounded();
    let mut left = most;
    let listener = Box::new(move |happening| {
        if let Happening::Token { token, reused, .. } = happening {
            let _ = sender.send((token, reused));
            left -= 1;
        }
        left > 0
    });
    (listener, tokens)
}

/// A session whose listener is gone takes a prompt that goes on from what it has, or that leaves it; a prompt that comes
/// while the turn is about to end waits for that.
#[test]
fn a_session_that_outlives_its_listener_goes_on_from_what_is_the_same() {
    let (client, thread) = start("signal");
    let (whole, other) = (prompt(1, 60), [&prompt(1, 50)[..], &prompt(2, 10)].concat());
    for ended_by_client in [false, true] {
        let (heard, tokens) = listener(if ended_by_client { 1_000 } else { 2 });
        let (opened, id) = crossbeam_channel::bounded(1);
        let turn_of = |tokens: &[u32]| turn(tokens.to_vec(), 30);
        let opening = Opening { turn: turn_of(&whole), outlives_listener: true, ..Opening::default() };
        client.begin_open(opening, heard, move |id| opened.send(id).expect("it is awaited"));
        let id = id.recv().expect("it runs").expect("it is admitted");
        let first: Vec<u32> = tokens.iter().take(2).map(|(token, _)| token).collect();
        if ended_by_client {
            // The prompts below may come before the step is over.
            client.begin_event(id, SessionEvent::EndTurn, |_| ());
        }
        let mut conversation = [&whole[..], &first].concat();
        // The listener may hear its last token before the turn is ended.
        while !ended_by_client
            && client.signal(id, Signal::Idle).expect("it runs").outcome != SignalOutcome::Accepted
        {}
        for (prompt, kept) in [(&mut conversation, 61), (&mut other.clone(), 50)] {
            let (heard, tokens) = listener(30);
            let (begun, reused) = crossbeam_channel::bounded(1);
            client.begin_prompt(id, turn_of(prompt), 3, heard, move |at| begun.send(at).expect("awaited"));
            let at = reused.recv().expect("it runs").expect("it waits");
            assert_eq!(at, kept, "as many tokens are the same");
            let found: Vec<(u32, Option<u64>)> = tokens.iter().take(30).collect();
            assert_eq!((found[0].1, found[1].1), (Some(kept), None));
            let found: Vec<u32> = found.iter().map(|&(token, _)| token).collect();
            assert_eq!(found, alone("tiny-gqa", &[(prompt.clone(), 30)])[0]);
        }
        client.event(id, SessionEvent::End).expect("it waits");
    }
    drop(client);
    thread.join().expect("no panic").expect("the device is sound");
}

/// Two sessions that go on from one each get what a session of their own would get.
#[test]
fn a_fork_waits_for_a_turn_of_its_own() {
    let mut service = serve(cpu(), "tiny-gqa", &options(24, 0), &settings("signal"));
    let first = prompt(1, 43);
    let opening = Opening { turn: turn(first.clone(), 4), ..Opening::default() };
    let id = service.open(opening).expect("there is room");
    let answer: Vec<u32> = settle(&mut service).into_iter().map(|(_, token)| token).collect();
    let before = service.state().device_free();
    let fork = service.fork(id).expect("it lives");
    assert_eq!(service.state().device_free(), before, "pages are shared");
    assert!(settle(&mut service).is_empty(), "a fork computes nothing");
    for (session, more) in [(fork, prompt(2, 9)), (id, prompt(3, 7))] {
        let whole = [&first[..], &answer, &more].concat();
        assert_eq!(service.prompt(session, turn(whole.clone(), 5)).expect("it waits"), 46);
        let found: Vec<u32> = settle(&mut service).into_iter().map(|(_, token)| token).collect();
        assert_eq!(found, alone("tiny-gqa", &[(first.clone(), 4), (more, 5)])[1], "{session}");
    }
    assert!(service.fork(SessionId(99)).is_err());
    end_all(service, (24, 0));
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

/// No session computes, so nothing else would tell.
#[test]
fn a_service_ends_if_the_device_fails_in_a_request_for_logits() {
    let faults = SimFaults::default();
    let device = SimDevice::with_faults(SimConfig::default(), faults.clone()).expect("a device");
    let (client, thread) =
        spawn(move || Ok(serve(device, "tiny-gqa", &options(24, 0), &settings("lru")))).expect("it serves");
    let logits = || {
        let (answer, answered) = std::sync::mpsc::channel();
        client.begin_logits(prompt(1, 9), move |told| answer.send(told).expect("it is awaited"));
        answered.recv().expect("it is answered")
    };
    assert_eq!(logits().expect("the device is sound").len(), 9 * 256);
    faults.plant(5, SimFault::Call);
    assert!(matches!(logits(), Err(Error::Device(_))));
    assert!(matches!(thread.join().expect("no panic"), Err(Error::Stopped(_))));
}
