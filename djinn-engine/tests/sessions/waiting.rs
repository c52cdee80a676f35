//! Liveness: whatever the demand, each session finishes or is refused.

use super::sharing::end_all;
use super::*;
use djinn_engine::{Happening, Opening, Turn};
use djinn_scheduler::{SessionEvent, Signal};
use std::collections::BTreeSet;

/// Four times as much as device and host hold, and everybody waits for a tool with the longest estimate.
#[test]
fn demand_beyond_all_memory_ends() {
    for policy in ["none", "lru", "ttl", "signal", "predicted"] {
        let mut settings = settings(policy);
        settings.rules.queue_timeout = Duration::from_millis(150);
        settings.rules.max_lease = Duration::from_millis(20);
        // A session may take 6 pages; device and host hold 4 sessions' worth.
        let mut service = serve(cpu(), "tiny-gqa", &options(12, 12), &settings);
        let mut open = BTreeSet::new();
        let mut ended = BTreeSet::new();
        for at in 0..16 {
            let turn = Turn { tokens: prompt(at, 40), max_tokens: 4, ..Turn::default() };
            let opened = service.open(Opening { turn, limit: Some(48), ..Opening::default() });
            open.insert(opened.expect("there is room to queue"));
        }
        let (mut refused, mut second) = (0, BTreeSet::new());
        let began = std::time::Instant::now();
        while ended.len() < open.len() {
            assert!(began.elapsed() < Duration::from_secs(60), "{policy}: {} of 16 ended", ended.len());
            for (id, happening) in service.advance().expect("the device is sound") {
                match happening {
                    Happening::Refused(_) => {
                        refused += 1;
                        ended.insert(id);
                    }
                    Happening::Token { finish: Some(_), .. } if second.contains(&id) => {
                        service.event(id, SessionEvent::End).expect("it waits");
                        ended.insert(id);
                    }
                    Happening::Token { finish: Some(_), .. } => {
                        let wait = Signal::IoWait { tool: None, estimated_resume_ms: Some(3_600_000) };
                        service.signal(id, wait);
                        second.insert(id);
                        service
                            .turn(id, Turn { tokens: vec![1, 2], max_tokens: 2, ..Turn::default() })
                            .expect("it waits");
                    }
                    Happening::Token { .. } => {}
                    other => panic!("{id}: {other:?}"),
                }
            }
        }
        assert!(refused < 16, "{policy} refused everybody");
        end_all(service, (12, 12));
    }
}

#[test]
fn a_session_that_can_never_fit_is_refused_at_once() {
    let mut service = serve(cpu(), "tiny-gqa", &options(4, 0), &settings("signal"));
    let turn = Turn { tokens: prompt(1, 40), max_tokens: 4, ..Turn::default() };
    let error =
        service.open(Opening { turn: turn.clone(), ..Opening::default() }).expect_err("12 pages of 4");
    assert!(error.to_string().contains("12 KV pages"), "{error}");
    let small = Turn { tokens: prompt(1, 4), ..turn.clone() };
    service.open(Opening { turn: small, limit: Some(32), ..Opening::default() }).expect("four pages fit");
    for (turn, says) in [
        (Turn { tokens: vec![], ..turn.clone() }, "empty"),
        (Turn { max_tokens: 0, ..turn.clone() }, "max_tokens"),
        (Turn { tokens: vec![256], ..turn }, "vocabulary"),
    ] {
        let opening = Opening { turn, limit: Some(32), ..Opening::default() };
        let error = service.open(opening).expect_err(says).to_string();
        assert!(error.contains(says), "{error}");
    }
    assert_eq!(service.state().sessions().count(), 1, "what is refused leaves nothing behind");
}
