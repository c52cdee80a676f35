//! What no client can ask for, since it is refused before.

use super::{Happening, Opening};
use crate::batcher::tests::{service, turn};
use crate::debug::{Breakpoint, Debugger, Filter};
use crate::{Error, NoToken};
use djinn_scheduler::SessionEvent;

/// Without memory for hooks nothing can be read.
#[test]
fn work_at_hooks_that_cannot_be_done_fails_its_session_alone() {
    let mut service = service();
    let open = |first| Opening { turn: turn(first, 30, 9), ..Opening::default() };
    let [failing, other] = [1, 90].map(|first| service.open(open(first)).expect("there is room"));
    let hook = service.hook("blocks.1.hook_in").expect("a hook of the model");
    let (filter, ttl, at_ttl) = (Filter::default(), None, Default::default());
    let capture =
        Breakpoint { hook, filter, condition: None, pause: false, capture: true, hits: None, ttl, at_ttl };
    let refused = service.set_breakpoint(failing, capture.clone());
    assert!(matches!(refused, Err(Error::HookMemory { have: 0, .. })), "{refused:?}");
    service.batcher.record_mut(failing).expect("it is open").arm(capture);
    let (mut tokens, mut failures) = (0, Vec::new());
    for _ in 0..1_000_000 {
        for (id, happening) in service.advance().expect("the device is sound") {
            match happening {
                Happening::Token { .. } if id == other => tokens += 1,
                Happening::Failed(why) if id == failing => failures.push(why),
                happening => panic!("{id}: {happening:?}"),
            }
        }
        if tokens == 9 {
            break;
        }
    }
    assert_eq!(tokens, 9, "the other session goes on");
    assert!(
        matches!(&*failures, [NoToken::Intervention { hook, .. }] if hook == "blocks.1.hook_in"),
        "{failures:?}"
    );
    assert!(service.state().session(failing).is_none(), "it is gone");
    service.event(other, SessionEvent::End).expect("it waits");
    service.advance().expect("the device is sound");
    service.state().audit();
}
