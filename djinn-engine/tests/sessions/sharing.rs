//! Prefixes shared by salt, and forks.

use super::*;
use djinn_engine::{Happening, Opening, Origin, Turn};
use djinn_scheduler::{SessionEvent, SessionId};

/// Advances until nothing is left to do; the tokens that came.
pub(crate) fn settle<D: Ops>(service: &mut Service<D>) -> Vec<(SessionId, u32)> {
    let mut tokens = Vec::new();
    let began = std::time::Instant::now();
    while began.elapsed() < Duration::from_secs(60) {
        for (id, happening) in service.advance().expect("the device is sound") {
            match happening {
                Happening::Token { token, .. } => tokens.push((id, token)),
                Happening::TurnEnded | Happening::Paused(_) => {}
                other => panic!("{id}: {other:?}"),
            }
        }
        // A wake-up for a lease or a restore may be far away; nothing computes then.
        if service.idle_for() != Some(Duration::ZERO)
            && service.state().sessions().all(|session| !session.is_ready())
        {
            return tokens;
        }
    }
    let state = service.state();
    let of = |s: &djinn_scheduler::Session| (s.id.0, s.phase, s.residency(), s.context, s.prompt, s.in_step);
    let sessions: Vec<_> = state.sessions().map(of).collect();
    panic!("no rest: {} pages free, {} on the host, {sessions:?}", state.device_free(), state.host_free());
}

pub(crate) fn open_with<D: Ops>(
    service: &mut Service<D>,
    tokens: &[u32],
    max_tokens: u64,
    origin: Origin,
) -> SessionId {
    let turn = Turn { tokens: tokens.to_vec(), max_tokens, ..Turn::default() };
    service.open(Opening { turn, origin, ..Opening::default() }).expect("there is room to queue")
}

/// Ends all sessions; every page is free then.
pub(crate) fn end_all<D: Ops>(mut service: Service<D>, pages: (u32, u32)) {
    let ids: Vec<SessionId> = service.state().sessions().map(|session| session.id).collect();
    for id in ids {
        // One that is ending already is missing to its client.
        let _missing = service.event(id, SessionEvent::Abort);
    }
    settle(&mut service);
    service.state().audit();
    assert_eq!((service.state().device_free(), service.state().host_free()), pages, "pages leaked");
    service.into_engine().expect("the device is sound");
}

fn of(id: SessionId, tokens: &[(SessionId, u32)]) -> Vec<u32> {
    tokens.iter().filter(|(session, _)| *session == id).map(|(_, token)| *token).collect()
}

#[test]
fn equal_salts_share_whole_chunks() {
    let family = "tiny-gqa";
    let salt = || Origin::Salt(b"a team".to_vec());
    let first = prompt(5, 45);
    let second = [&first[..40], &prompt(6, 7)[..]].concat();
    let mut service = serve(cpu(), family, &options(24, 0), &settings("lru"));
    let a = open_with(&mut service, &first, 4, salt());
    let before = settle(&mut service);
    assert_eq!(of(a, &before), alone(family, &[(first.clone(), 4)])[0]);
    let free = service.state().device_free();
    let b = open_with(&mut service, &second, 4, salt());
    let stranger = open_with(&mut service, &second, 4, Origin::Salt(b"another".to_vec()));
    let tokens = settle(&mut service);
    let expected = alone(family, &[(second.clone(), 4)]);
    assert_eq!((of(b, &tokens), of(stranger, &tokens)), (expected[0].clone(), expected[0].clone()));
    // 50 tokens take 7 pages; a chunk of 40 tokens, 5 pages, is that of the first session.
    let taken = free - service.state().device_free();
    assert_eq!(taken, 2 + 7, "pages taken by one that shares and one that does not");
    // A session that is alone in the end keeps what it shares.
    service.event(a, SessionEvent::End).expect("it waits");
    let more = Turn { tokens: prompt(7, 5), max_tokens: 3, ..Turn::default() };
    service.turn(b, more).expect("it waits");
    let tokens = settle(&mut service);
    assert_eq!(of(b, &tokens), alone(family, &[(second, 4), (prompt(7, 5), 3)])[1]);
}

/// Sessions that share pages leave the device with them, and find them again.
#[test]
fn shared_pages_of_parked_sessions_are_accounted_for() {
    parked_sessions_share_pages(DType::F32);
}

#[test]
fn shared_pages_of_int8_are_as_those_of_floats() {
    parked_sessions_share_pages(DType::Int8);
}

fn parked_sessions_share_pages(kv_dtype: DType) {
    let family = "tiny-gqa";
    let alone = |turns: &[(Vec<u32>, u64)]| alone_in(kv_dtype, cpu(), family, turns);
    let salt = || Origin::Salt(b"a team".to_vec());
    let prefix = prompt(5, 48);
    let options = Options { kv_dtype, ..options(24, 24) };
    let mut service = serve(cpu(), family, &options, &settings("lru"));
    let ids: Vec<SessionId> = (0..3)
        .map(|at| {
            let tokens = [&prefix[..], &prompt(50 + at, 4)[..]].concat();
            let id = open_with(&mut service, &tokens, 2, salt());
            settle(&mut service);
            id
        })
        .collect();
    assert_eq!(24 - service.state().device_free(), 5 + 3 * 2, "the prefix is there once");
    // A stranger who needs nearly everything sends them away.
    let all = prompt(9, 88);
    let stranger = open_with(&mut service, &all, 4, Origin::Own);
    let tokens = settle(&mut service);
    assert_eq!(of(stranger, &tokens), alone(&[(all, 4)])[0]);
    service.state().audit();
    for (at, id) in (0..).zip(ids) {
        service
            .turn(id, Turn { tokens: prompt(60 + at, 3), max_tokens: 3, ..Turn::default() })
            .expect("it waits");
        let tokens = settle(&mut service);
        let first = [&prefix[..], &prompt(50 + at, 4)[..]].concat();
        assert_eq!(of(id, &tokens), alone(&[(first, 2), (prompt(60 + at, 3), 3)])[1], "session {at}");
    }
    end_all(service, (24, 24));
}

#[test]
fn forks_go_their_own_ways() {
    let family = "tiny-gqa";
    for (pages, policy, kv_dtype) in
        [(36, "lru", DType::F32), (16, "ttl", DType::F32), (16, "ttl", DType::Int8)]
    {
        let options = Options { kv_dtype, ..options(pages, 24) };
        let mut service = serve(cpu(), family, &options, &settings(policy));
        let first = prompt(5, 27);
        let parent = open_with(&mut service, &first, 5, Origin::Own);
        let answer = of(parent, &settle(&mut service));
        let free = service.state().device_free();
        let forks: Vec<SessionId> =
            (0..2).map(|at| open_with(&mut service, &prompt(20 + at, 6), 4, Origin::Fork(parent))).collect();
        service
            .turn(parent, Turn { tokens: prompt(30, 6), max_tokens: 4, ..Turn::default() })
            .expect("it waits");
        let tokens = settle(&mut service);
        for (id, seed) in [(forks[0], 20), (forks[1], 21), (parent, 30)] {
            let both = [(first.clone(), 5), (prompt(seed, 6), 4)];
            let expected = alone_in(kv_dtype, cpu(), family, &both);
            assert_eq!(of(id, &tokens), expected[1], "{policy}, {kv_dtype}: {id} of {answer:?}");
        }
        if pages == 36 {
            // 41 tokens are 6 pages; forks share the first three.
            assert_eq!(free - service.state().device_free(), 2 + 2 * 3, "pages of two forks");
        }
        end_all(service, (pages, 24));
    }
}
