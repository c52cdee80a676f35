//! Random stops, a thousand of them in a long run (`PROPTEST_CASES=1000`): sessions of any family stop anywhere, are looked
//! at, have what was read written back, lose their pages to others, and give the tokens and log-probabilities of sessions
//! that never stopped.

use super::sharing::end_all;
use super::stopped::{breakpoint, hooked, look};
use super::*;
use crate::shapes::FAMILIES;
use djinn_engine::debug::{Breakpoint, DebugSetup, Debugger, Filter, Look, TokenKind};
use djinn_engine::{Edit, Happening, Opening, Origin, Turn};
use djinn_scheduler::{SessionEvent, SessionId};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// What is done to a session that stopped, before it goes on.
#[derive(Clone, Debug)]
enum Deed {
    /// What is read at a hook is written back there.
    WriteBack(usize),
    /// It is looked at with changes that are not its own.
    Disturb(usize),
    /// Others take its pages.
    Crowd,
    /// It goes on to another hook first.
    Until(usize),
}

#[derive(Clone, Debug)]
struct Case {
    family: usize,
    seed: u64,
    streamed: bool,
    host_pages: bool,
    sessions: usize,
    hook: usize,
    tokens: TokenKind,
    deeds: Vec<Deed>,
}

fn case() -> impl Strategy<Value = Case> {
    let hook = 0usize..1_000;
    let deed = prop_oneof![
        4 => hook.clone().prop_map(Deed::WriteBack),
        2 => hook.clone().prop_map(Deed::Disturb),
        2 => Just(Deed::Crowd),
        2 => hook.clone().prop_map(Deed::Until),
    ];
    let tokens = prop_oneof![Just(TokenKind::Any), Just(TokenKind::Prompt), Just(TokenKind::Generated)];
    let sized = (0..FAMILIES.len(), 0u64..1_000, 1usize..4, hook);
    let placed = (any::<bool>(), any::<bool>(), tokens, proptest::collection::vec(deed, 1..8));
    (sized, placed).prop_map(|((family, seed, sessions, hook), (streamed, host_pages, tokens, deeds))| Case {
        family,
        seed,
        streamed,
        host_pages,
        sessions,
        hook,
        tokens,
        deeds,
    })
}

/// Tokens and the bits of their log-probabilities, by session.
type Said = BTreeMap<SessionId, Vec<(u32, u32)>>;

struct World {
    service: Service<SimDevice>,
    said: Said,
    pages: (u32, u32),
}

impl World {
    fn new(case: &Case) -> Self {
        let pages = (14, if case.host_pages { 60 } else { 0 });
        let mut options = hooked(pages.0, pages.1);
        options.budget.resident_fraction = case.streamed.then_some(0.3);
        let config = SimConfig { seed: case.seed, ..SimConfig::default() };
        let service = serve(sim(config), FAMILIES[case.family], &options, &settings("lru"));
        World { service, said: Said::new(), pages }
    }

    fn open(&mut self, seed: u64, len: usize, max_tokens: u64, debug: DebugSetup) -> SessionId {
        let turn = Turn { tokens: prompt(seed, len), max_tokens, logprobs: Some(0), ..Turn::default() };
        let origin = Origin::Salt(b"all".to_vec());
        self.service.open(Opening { turn, origin, debug, ..Opening::default() }).expect("there is room")
    }

    fn settle(&mut self) {
        for _ in 0..1_000_000 {
            for (id, happening) in self.service.advance().expect("the device is sound") {
                match happening {
                    Happening::Token { token, logprobs, .. } => {
                        let logprob = logprobs.expect("they are asked for").chosen;
                        self.said.entry(id).or_default().push((token, logprob.to_bits()));
                    }
                    Happening::Paused(_) | Happening::TurnEnded => {}
                    other => panic!("{id}: {other:?}"),
                }
            }
            let busy = self.service.state().sessions().any(|session| session.is_ready());
            if !busy && self.service.idle_for() != Some(Duration::ZERO) {
                return;
            }
        }
        panic!("no rest");
    }

    fn hook(&self, number: usize) -> djinn_engine::debug::HookPoint {
        let hooks = self.service.hooks();
        hooks[number % hooks.len()].clone()
    }

    fn do_to(&mut self, id: SessionId, deed: &Deed) {
        let Some(at) = self.service.paused_at(id) else { return };
        match *deed {
            Deed::WriteBack(number) => {
                let point = self.hook(number);
                let hooks = vec![point.hook.clone()];
                let values =
                    look(&mut self.service, id, Look { hooks, ..Look::default() }).values.remove(0).1;
                let rows = values.len() as u64 / point.width;
                let positions = at.positions.end - rows..at.positions.end;
                self.service
                    .edit(id, vec![(point.hook, positions, Edit::set(values))])
                    .expect("it is stopped");
            }
            Deed::Disturb(number) => {
                let point = self.hook(number);
                let last = at.positions.end - 1..at.positions.end;
                let edits = vec![(point.hook, last, Edit::scale(-7.0))];
                look(&mut self.service, id, Look { edits, logits: true, ..Look::default() });
            }
            Deed::Crowd => {
                let other = self.open(900, 80, 2, DebugSetup::default());
                self.settle();
                self.service.event(other, SessionEvent::End).expect("it is open");
                self.said.remove(&other);
            }
            Deed::Until(number) => {
                let hook = self.hook(number).hook;
                self.service.resume_until(id, Some(hook)).expect("it is stopped");
            }
        }
        self.settle();
    }
}

/// All that the case's sessions say, with stops or without.
fn run(case: &Case, stops: bool) -> Said {
    let mut world = World::new(case);
    let mut ids = Vec::new();
    for number in 0..case.sessions {
        let hook = world.hook(case.hook + number).hook.name;
        let filter = Filter { tokens: case.tokens, ..Filter::default() };
        let stop = Breakpoint { filter, ..breakpoint(&world.service, &hook) };
        let breakpoints = if stops { vec![stop] } else { Vec::new() };
        let seed = case.seed % 50 + number as u64;
        let debug = DebugSetup { breakpoints, steering: Vec::new() };
        ids.push(world.open(seed, 20 + 17 * number, 5, debug));
    }
    world.settle();
    for (&id, deed) in ids.iter().cycle().zip(case.deeds.iter().cycle()).take(40 * ids.len()) {
        if ids.iter().all(|&id| world.service.paused_at(id).is_none()) {
            break;
        }
        world.do_to(id, deed);
        if world.service.paused_at(id).is_some() {
            world.service.resume_until(id, None).expect("it is stopped");
            world.settle();
        }
    }
    // Those that stop more often than that go on without.
    for &id in &ids {
        for (breakpoint, ..) in world.service.breakpoints(id).expect("it lives") {
            world.service.clear_breakpoint(id, breakpoint).expect("it lives");
        }
        while world.service.paused_at(id).is_some() {
            world.service.resume_until(id, None).expect("it is stopped");
            world.settle();
        }
    }
    for &id in &ids {
        world.service.event(id, SessionEvent::End).expect("it is open");
    }
    world.settle();
    let World { service, mut said, pages } = world;
    end_all(service, pages);
    said.retain(|id, _| ids.contains(id));
    let numbered = ids.iter().enumerate().map(|(at, id)| (SessionId(at as u64), said[id].clone()));
    numbered.collect()
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 60, ..ProptestConfig::default() })]

    #[test]
    fn stops_change_no_bit(case in case()) {
        prop_assert_eq!(run(&case, true), run(&case, false));
    }
}
