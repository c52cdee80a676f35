//! Sessions of several turns, under every policy, short of pages.

use super::sharing::end_all;
use super::*;
use djinn_engine::{Happening, Opening, Turn};
use djinn_scheduler::{SessionEvent, SessionId, Signal};
use std::collections::BTreeMap;

/// A session's turns.
pub(crate) type Script = Vec<(Vec<u32>, u64)>;

/// Prompts below and above a chunk, with partial last pages, that end in mid-chunk.
pub(crate) fn scripts(count: u64) -> Vec<Script> {
    let turn = |session: u64, turn: u64| {
        let len = [3, 21, 37, 50, 8][(session + 2 * turn) as usize % 5];
        (prompt(10 * session + turn, if turn == 0 { len } else { 1 + len / 4 }), 4 + (session + turn) % 5)
    };
    (0..count).map(|session| (0..3).map(|at| turn(session, at)).collect()).collect()
}

/// Runs all scripts at once; each session's tokens by turn. Sessions wait a little between turns, and say so. After
/// every `pause` rounds another one is paused in what it does, so that others can have its pages, and the one before
/// goes on.
pub(crate) fn run<D: Ops>(
    service: &mut Service<D>,
    scripts: &[Script],
    pause: Option<u32>,
) -> Vec<Vec<Vec<u32>>> {
    let mut found: Vec<Vec<Vec<u32>>> = scripts.iter().map(|_| vec![Vec::new()]).collect();
    let mut which: BTreeMap<SessionId, usize> = BTreeMap::new();
    let turn = |(tokens, max_tokens): &(Vec<u32>, u64)| Turn {
        tokens: tokens.clone(),
        max_tokens: *max_tokens,
        ..Turn::default()
    };
    for (at, script) in scripts.iter().enumerate() {
        let opening = Opening { turn: turn(&script[0]), ..Opening::default() };
        which.insert(service.open(opening).expect("there is room to queue"), at);
    }
    // Rounds that a session waits before its next turn.
    let mut waiting: BTreeMap<SessionId, u32> = BTreeMap::new();
    let (mut paused, mut round): (Option<SessionId>, u32) = (None, 0);
    let mut left = scripts.len();
    let began = std::time::Instant::now();
    while left > 0 {
        assert!(began.elapsed() < Duration::from_secs(120), "{left} of {} sessions hang", scripts.len());
        for (id, happening) in service.advance().expect("the device is sound") {
            let at = which[&id];
            let Happening::Token { token, finish, .. } = happening else { panic!("{id}: {happening:?}") };
            found[at].last_mut().expect("a turn").push(token);
            if finish.is_some() {
                let estimated_resume_ms = Some(1 + id.0 % 3 * 40);
                service.signal(id, Signal::IoWait { tool: Some("bash".into()), estimated_resume_ms });
                waiting.insert(id, 3 + id.0 as u32 * 5 % 11);
            }
        }
        round += 1;
        if pause.is_some_and(|every| round.is_multiple_of(every)) {
            let before = paused.take();
            if let Some(id) = before {
                service.event(id, SessionEvent::Resume).expect("it is paused");
            }
            let computing =
                service.state().sessions().filter(|session| session.is_ready() && Some(session.id) != before);
            paused = computing.max_by_key(|session| session.context).map(|session| session.id);
            if let Some(id) = paused {
                service.event(id, SessionEvent::Pause).expect("it computes");
            }
        }
        for (id, rounds) in &mut waiting {
            *rounds = rounds.saturating_sub(1);
            if *rounds > 0 || paused == Some(*id) {
                continue;
            }
            let at = which[id];
            match scripts[at].get(found[at].len()) {
                Some(next) => {
                    service.turn(*id, turn(next)).expect("it waits");
                    found[at].push(Vec::new());
                }
                None => {
                    service.event(*id, SessionEvent::End).expect("it waits");
                    left -= 1;
                }
            }
        }
        waiting.retain(|id, rounds| *rounds > 0 || paused == Some(*id));
    }
    service.state().audit();
    found
}

fn compare(found: &[Vec<Vec<u32>>], expected: &[Vec<Vec<u32>>], what: &str) {
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found, expected, "{what}, session {at}");
    }
}

const POLICIES: [&str; 5] = ["none", "lru", "ttl", "signal", "predicted"];

#[test]
fn sessions_get_the_tokens_that_they_would_get_alone() {
    for (at, family) in ["tiny-gqa", "tiny-mixtral", "tiny-gpt2"].into_iter().enumerate() {
        let scripts = scripts(9);
        let expected: Vec<_> = scripts.iter().map(|script| alone(family, script)).collect();
        for policy in POLICIES {
            // Two contexts on the device and two on the host: the rest queues, leaves, or is computed again.
            let pages = (2 * CONTEXT as u32 / PAGE, if at == 1 { 3 } else { 2 * CONTEXT as u32 / PAGE });
            let mut service = serve(cpu(), family, &options(pages.0, pages.1), &settings(policy));
            let found = run(&mut service, &scripts, None);
            compare(&found, &expected, &format!("{family}, {policy}"));
            end_all(service, pages);
        }
    }
}

#[test]
fn no_order_of_events_changes_a_session() {
    let family = "tiny-gqa";
    let scripts = scripts(6);
    let alone = |script: &Script| alone_on(sim(SimConfig::default()), family, script);
    let expected: Vec<_> = scripts.iter().map(alone).collect();
    let mut moved = 0;
    for seed in 0..200 {
        let policy = POLICIES[seed as usize % POLICIES.len()];
        let refuses = seed % 4 == 3;
        // Without host pages there are no streams of pages to refuse copies on.
        let pages = (16, [16, 4, if refuses { 12 } else { 0 }][seed as usize % 3]);
        let options = Options {
            budget: Budget {
                resident_fraction: [None, Some(0.0), Some(0.5)][seed as usize / 3 % 3],
                stream_check: seed % 2 == 0,
                ..Budget::default()
            },
            replay: seed % 5 != 0,
            ..options(pages.0, pages.1)
        };
        // Calls that the device refuses: a copy that does not leave, or does not come back.
        let config = SimConfig {
            seed,
            refuse_copies_on: refuses.then_some((SWAP_STREAMS[seed as usize / 4 % 2], seed % 7)),
            ..SimConfig::default()
        };
        let mut service = serve(sim(config), family, &options, &settings(policy));
        let pause = [None, Some(1), Some(2), Some(8)][seed as usize / 2 % 4];
        let found = run(&mut service, &scripts, pause);
        compare(&found, &expected, &format!("seed {seed}, {policy}"));
        moved += service.engine().swap_stats().back.bytes;
        let host = service.batcher().engine().plan().kv.host_pages;
        end_all(service, (pages.0, host));
    }
    assert!(moved > 0, "no session left and came back");
}

/// A copy that fails late breaks the device: one clear error, and no hang.
#[test]
fn a_device_that_fails_ends_the_service() {
    let scripts = scripts(6);
    let mut failed = 0;
    for seed in 0..12 {
        let config = SimConfig { seed, fail_copy_at: Some(40 + 13 * seed), ..SimConfig::default() };
        let mut service = serve(sim(config), "tiny-gqa", &options(16, 16), &settings("ttl"));
        for script in &scripts {
            let (tokens, max_tokens) = script[0].clone();
            let turn = Turn { tokens, max_tokens: max_tokens + 20, ..Turn::default() };
            service.open(Opening { turn, ..Opening::default() }).expect("there is room to queue");
        }
        let began = std::time::Instant::now();
        while began.elapsed() < Duration::from_secs(60) {
            match service.advance() {
                Ok(_) if service.idle_for().is_none() => break,
                Ok(_) => {}
                Err(error) => {
                    failed += 1;
                    assert!(!error.to_string().contains('\n'), "{error}");
                    assert!(service.advance().is_err(), "a service that failed stays failed");
                    break;
                }
            }
        }
    }
    assert!(failed > 3, "{failed} runs met the planned failure");
}
