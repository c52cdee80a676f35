//! Memory for hooks: what a step could need is refused before, so that no step fails for it.

use super::sharing::{end_all, settle};
use super::stopped::{breakpoint, hooked};
use super::*;
use djinn_engine::debug::{
    Breakpoint, DebugSetup, Debugger, Filter, KvEdit, KvHalf, KvOp, KvRange, TokenKind,
};
use djinn_engine::{Edit, Error, Opening, Turn};
use djinn_scheduler::{Residency, SessionEvent, SessionId};
use std::sync::mpsc;

type Sim = Service<SimDevice>;

fn service(hook_bytes: u64, pages: u32) -> Sim {
    let config = SimConfig { seed: 1, ..SimConfig::default() };
    let options = Options { hook_bytes, ..hooked(pages, 0) };
    serve(sim(config), "tiny-gqa", &options, &settings("lru"))
}

fn plain(service: &mut Sim, tokens: Vec<u32>, max_tokens: u64) -> SessionId {
    let turn = Turn { tokens, max_tokens, ..Turn::default() };
    service.open(Opening { turn, ..Opening::default() }).expect("it needs no memory for hooks")
}

/// A session that is stopped at its second generated token.
fn stopped(service: &mut Sim, tokens: Vec<u32>) -> SessionId {
    let filter = Filter { tokens: TokenKind::Generated, steps: 2..3, ..Filter::default() };
    let breakpoints = vec![Breakpoint { filter, ..breakpoint(service, "blocks.1.hook_in") }];
    let turn = Turn { tokens, max_tokens: 9, ..Turn::default() };
    let debug = DebugSetup { breakpoints, steering: Vec::new() };
    let id = service.open(Opening { turn, debug, ..Opening::default() }).expect("there is room");
    settle(service);
    assert!(service.paused_at(id).is_some());
    id
}

/// A change of one token takes 736 bytes of a step of 44 rows. One session may have them all.
#[test]
fn a_fork_needs_the_memory_of_its_parents_changes() {
    let mut service = service(40_000, 48);
    let id = stopped(&mut service, prompt(3, 30));
    let at = service.paused_at(id).expect("it is stopped").positions;
    let hook = service.hook("blocks.0.hook_out").expect("a hook of the model");
    let full = |error: Error| matches!(error, Error::HookMemory { have: 40_000, .. });
    let too_many = vec![(hook.clone(), at.clone(), Edit::scale(1.01)); 40_000 / 736 + 1];
    assert!(full(service.edit(id, too_many).expect_err("they take more than all")));
    // None of these was made.
    let mut edits = 0;
    let refused = loop {
        match service.edit(id, vec![(hook.clone(), at.clone(), Edit::scale(1.01))]) {
            Ok(()) => edits += 1,
            Err(refused) => break refused,
        }
    };
    assert_eq!(edits, 40_000 / 736);
    assert!(full(refused));
    assert!(full(service.fork_paused(id).expect_err("its changes take all memory")));
    assert!(full(service.fork(id).expect_err("its changes take all memory")));
    plain(&mut service, prompt(9, 10), 60);
    service.resume_until(id, None).expect("it is stopped");
    settle(&mut service);
    end_all(service, (48, 0));
}

/// What waits to be changed takes memory once it is, and is written again after the pages were given up.
#[test]
fn changes_of_a_cache_that_wait_are_counted() {
    let mut service = service(45_000, 14);
    let id = stopped(&mut service, prompt(3, 50));
    let (sender, answers) = mpsc::channel();
    for _ in 0..12 {
        let sender = sender.clone();
        let range = KvRange { layer: 0, positions: 0..50 };
        let edit = KvEdit { range, half: KvHalf::Values, op: KvOp::Scale(1.01) };
        let answer = move |result: djinn_engine::Result<()>| sender.send(result).expect("it is awaited");
        service.edit_cache(id, edit, Box::new(answer));
    }
    settle(&mut service);
    drop(sender);
    let (accepted, refused): (Vec<_>, Vec<_>) = answers.iter().partition(Result::is_ok);
    assert!(!accepted.is_empty() && !refused.is_empty());
    assert!(refused.iter().all(|refused| matches!(refused, Err(Error::HookMemory { have: 45_000, .. }))));
    let other = plain(&mut service, prompt(98, 90), 4);
    settle(&mut service);
    service.event(other, SessionEvent::End).expect("it is open");
    settle(&mut service);
    assert_eq!(service.state().session(id).expect("it lives").residency(), Residency::Gone);
    service.resume_until(id, None).expect("it is stopped");
    settle(&mut service);
    end_all(service, (14, 0));
}
