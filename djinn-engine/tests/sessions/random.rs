//! Random events, ten thousand of them: whatever clients and copies do, pages come back, and no session is forgotten.

use super::sharing::{end_all, open_with, settle};
use super::stopped::{breakpoint, hooked};
use super::*;
use djinn_engine::debug::{AtTtl, Breakpoint, Debugger, Look, Looked};
use djinn_engine::{Edit, Error};
use djinn_engine::{Happening, Origin, Turn};
use djinn_scheduler::{SessionEvent, SessionId, Signal};
use proptest::prelude::*;

/// What clients do, to one of the sessions.
#[derive(Clone, Debug)]
enum Step {
    Open {
        len: usize,
        max_tokens: u64,
        salted: bool,
    },
    Fork(usize),
    ForkIdle(usize),
    Turn {
        who: usize,
        len: usize,
    },
    /// A turn with the whole conversation, which is the session's own up to there.
    Prompt {
        who: usize,
        same: usize,
        len: usize,
    },
    Signal {
        who: usize,
        ms: u64,
    },
    Pause(usize),
    Resume(usize),
    EndTurn(usize),
    Rollback {
        who: usize,
        tokens: u64,
    },
    Abort(usize),
    /// A breakpoint at a hook that is not the same for all.
    Break {
        who: usize,
        hook: usize,
        ms: u64,
        abort: bool,
    },
    /// A change of a session that is stopped, if it is.
    Write(usize),
    Look(usize),
    GoOn {
        who: usize,
        hook: usize,
    },
    ForkStopped(usize),
    Advance(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let who = 0usize..64;
    prop_oneof![
        2 => (1usize..60, 1u64..12, any::<bool>())
            .prop_map(|(len, max_tokens, salted)| Step::Open { len, max_tokens, salted }),
        1 => who.clone().prop_map(Step::Fork),
        1 => who.clone().prop_map(Step::ForkIdle),
        4 => (who.clone(), 0usize..90, 1usize..20)
            .prop_map(|(who, same, len)| Step::Prompt { who, same, len }),
        4 => (who.clone(), 1usize..20).prop_map(|(who, len)| Step::Turn { who, len }),
        3 => (who.clone(), 1u64..100_000).prop_map(|(who, ms)| Step::Signal { who, ms }),
        1 => who.clone().prop_map(Step::Pause),
        2 => who.clone().prop_map(Step::Resume),
        2 => who.clone().prop_map(Step::EndTurn),
        1 => (who.clone(), 0u64..90).prop_map(|(who, tokens)| Step::Rollback { who, tokens }),
        2 => who.clone().prop_map(Step::Abort),
        3 => (who.clone(), 0usize..1000, 0u64..4, any::<bool>())
            .prop_map(|(who, hook, ms, abort)| Step::Break { who, hook, ms, abort }),
        3 => who.clone().prop_map(Step::Write),
        3 => who.clone().prop_map(Step::Look),
        3 => (who.clone(), 0usize..1000).prop_map(|(who, hook)| Step::GoOn { who, hook }),
        1 => who.prop_map(Step::ForkStopped),
        12 => (1u8..6).prop_map(Step::Advance),
    ]
}

/// Sessions that were not ended by anybody, as far as their client knows.
struct World {
    service: Service<SimDevice>,
    open: Vec<SessionId>,
}

impl World {
    fn take(&mut self, step: Step) {
        let of = |open: &[SessionId], who: usize| open.get(who % open.len().max(1)).copied();
        match step {
            Step::Open { len, max_tokens, salted } if self.open.len() < 12 => {
                let origin = if salted { Origin::Salt(b"one".to_vec()) } else { Origin::Own };
                let seed = if salted { 3 } else { len as u64 };
                let tokens = prompt(seed, len);
                let id = open_with(&mut self.service, &tokens, max_tokens, origin);
                self.open.push(id);
            }
            Step::Open { .. } => {}
            Step::Fork(who) => {
                let Some(parent) = of(&self.open, who) else { return };
                let turn = Turn { tokens: vec![9, 8, 7], max_tokens: 3, ..Turn::default() };
                let origin = Origin::Fork(parent);
                let opening = djinn_engine::Opening { turn, origin, ..Default::default() };
                // The context may be full.
                self.open.extend(self.service.open(opening));
            }
            Step::Turn { who, len } => {
                let Some(id) = of(&self.open, who) else { return };
                let turn = Turn { tokens: prompt(7, len), max_tokens: 4, ..Turn::default() };
                // It may be busy, or have no room left.
                let _ = self.service.turn(id, turn);
            }
            Step::ForkIdle(who) => {
                let Some(parent) = of(&self.open, who) else { return };
                // The context may be full.
                let Ok(id) = self.service.fork(parent) else { return };
                let tokens = |id| self.service.batcher().tokens(id).map(<[u32]>::to_vec);
                assert_eq!(tokens(id), tokens(parent));
                self.open.push(id);
            }
            Step::Prompt { who, same, len } => {
                let Some(id) = of(&self.open, who) else { return };
                let Some(known) = self.service.batcher().tokens(id) else { return };
                let tokens = [&known[..same.min(known.len())], &prompt(11, len)].concat();
                let most = tokens.len() as u64 - 1;
                let turn = Turn { tokens, max_tokens: 4, ..Turn::default() };
                // It may be busy, or have no room left.
                if let Ok(reused) = self.service.prompt(id, turn) {
                    assert!(reused <= most, "{reused} of {most} tokens");
                }
            }
            Step::Signal { who, ms } => {
                let Some(id) = of(&self.open, who) else { return };
                let wait =
                    Signal::IoWait { tool: Some(format!("tool {}", ms % 5)), estimated_resume_ms: Some(ms) };
                self.service.signal(id, wait);
            }
            Step::Pause(who) => self.tell(who, SessionEvent::Pause),
            Step::Resume(who) => self.tell(who, SessionEvent::Resume),
            Step::EndTurn(who) => self.tell(who, SessionEvent::EndTurn),
            Step::Rollback { who, tokens } => {
                let Some(id) = of(&self.open, who) else { return };
                // It may be busy.
                let kept = self.service.rollback(id, tokens);
                assert!(kept.is_err() || kept.is_ok_and(|kept| kept <= tokens));
            }
            Step::Abort(who) => {
                if let Some(id) = of(&self.open, who) {
                    self.service.event(id, SessionEvent::Abort).expect("an open session can be aborted");
                    self.open.retain(|&open| open != id);
                }
            }
            Step::Break { who, hook, ms, abort } => {
                let Some(id) = of(&self.open, who) else { return };
                let hook = self.hook(hook);
                let at_ttl = if abort { AtTtl::Abort } else { AtTtl::Resume };
                // Without a time to live for every fourth.
                let ttl = (ms > 0).then(|| Duration::from_millis(ms));
                let stop = Breakpoint { ttl, at_ttl, hits: Some(2), ..breakpoint(&self.service, &hook.name) };
                // The session may have ended.
                let _ = self.service.set_breakpoint(id, stop);
            }
            Step::Write(who) => {
                let Some(id) = of(&self.open, who) else { return };
                let hook = self.hook(5);
                let positions = self.service.paused_at(id).map(|at| at.positions);
                let wrote =
                    self.service.edit(id, vec![(hook, positions.clone().unwrap_or(0..1), Edit::scale(0.5))]);
                match (wrote, positions) {
                    (Ok(()), Some(_)) | (Err(Error::NotPaused { .. }), None) => {}
                    (wrote, positions) => panic!("{id} at {positions:?}: {wrote:?}"),
                }
            }
            Step::Look(who) => {
                let Some(id) = of(&self.open, who) else { return };
                let look = Look { hooks: vec![self.hook(9)], logits: true, ..Look::default() };
                let stopped = self.service.paused_at(id).is_some();
                // It may end before it is answered.
                let answer = move |result: djinn_engine::Result<Looked>| match (result, stopped) {
                    (Ok(_), true) | (Err(Error::NotPaused { .. }), false) => {}
                    (result, _) => panic!("{id}: {result:?}"),
                };
                self.service.look(id, look, Box::new(answer));
            }
            Step::GoOn { who, hook } => {
                let Some(id) = of(&self.open, who) else { return };
                let stopped = self.service.paused_at(id).is_some();
                let until = (hook % 2 == 0).then(|| self.hook(hook));
                match (self.service.resume_until(id, until), stopped) {
                    (Ok(()), true) | (Err(Error::NotPaused { .. }), false) => {}
                    (result, _) => panic!("{id}: {result:?}"),
                }
            }
            Step::ForkStopped(who) => {
                let Some(id) = of(&self.open, who) else { return };
                // It may not be stopped, or there may be no room to queue.
                self.open.extend(self.service.fork_paused(id));
            }
            Step::Advance(times) => (0..times).for_each(|_| self.advance()),
        }
        self.service.state().audit();
    }

    fn tell(&mut self, who: usize, event: SessionEvent) {
        if let Some(&id) = self.open.get(who % self.open.len().max(1)) {
            // Not everybody can be paused or resumed.
            let _ = self.service.event(id, event);
        }
    }

    fn hook(&self, number: usize) -> djinn_srg::Hook {
        let hooks = self.service.hooks();
        hooks[number % hooks.len()].hook.clone()
    }

    fn advance(&mut self) {
        for (id, happening) in self.service.advance().expect("the device is sound") {
            if let Happening::Refused(_) | Happening::Expired = happening {
                self.open.retain(|&open| open != id);
            }
        }
    }
}

/// Goes on until nothing computes, sessions that stop included.
fn rest(service: &mut Service<SimDevice>) {
    for _ in 0..1_000_000 {
        service.advance().expect("the device is sound");
        let busy = service.state().sessions().any(|session| session.is_ready());
        if !busy && service.idle_for() != Some(Duration::ZERO) {
            return;
        }
    }
    panic!("no rest");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, max_shrink_iters: 60, ..ProptestConfig::default() })]

    #[test]
    fn pages_out_equal_pages_in(
        steps in proptest::collection::vec(step(), 500),
        seed in 0u64..1_000,
        policy in 0usize..4,
        refuse in (0usize..2, 0u64..20),
    ) {
        let refuse_copies_on = Some((SWAP_STREAMS[refuse.0], refuse.1));
        let config = SimConfig { seed, refuse_copies_on, ..SimConfig::default() };
        let settings = settings(["lru", "ttl", "signal", "predicted"][policy]);
        let service = serve(sim(config), "tiny-gqa", &hooked(20, 14), &settings);
        let mut world = World { service, open: Vec::new() };
        for step in steps {
            world.take(step);
        }
        // Everybody is let go on, and comes to rest or to another stop; then everybody leaves.
        for id in world.open.clone() {
            let _ = world.service.event(id, SessionEvent::Resume);
        }
        rest(&mut world.service);
        for session in world.service.state().sessions().map(|session| session.id).collect::<Vec<_>>() {
            world.service.event(session, SessionEvent::End).expect("it is at rest");
        }
        settle(&mut world.service);
        prop_assert_eq!(world.service.state().sessions().count(), 0);
        end_all(world.service, (20, 14));
    }
}
