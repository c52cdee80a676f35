//! Sessions that stop at breakpoints: they give the tokens that they would have given, whatever is done to them or to
//! others meanwhile, unless something was changed.

use super::sharing::{end_all, settle};
use super::*;
use djinn_engine::debug::{
    AtTtl, BreakCondition, Breakpoint, Captures, DebugSetup, Debugger, Filter, Look, Looked, Steering,
    TokenKind,
};
use djinn_engine::{Edit, Error, Happening, Opening, Origin, Turn};
use djinn_scheduler::{Residency, SessionEvent, SessionId};
use djinn_srg::Hook;
use std::sync::mpsc;

pub(crate) fn hooked(pages: u32, host_pages: u32) -> Options {
    Options { hook_bytes: 4 << 20, ..options(pages, host_pages) }
}

fn service(seed: u64, pages: u32) -> Service<SimDevice> {
    let config = SimConfig { seed, ..SimConfig::default() };
    serve(sim(config), "tiny-gqa", &hooked(pages, 40), &settings("lru"))
}

pub(crate) fn breakpoint<D: Ops>(service: &Service<D>, hook: &str) -> Breakpoint {
    Breakpoint {
        hook: service.hook(hook).expect("a hook of the model"),
        filter: Filter::default(),
        condition: None,
        pause: true,
        capture: false,
        hits: None,
        ttl: None,
        at_ttl: AtTtl::Resume,
    }
}

fn open<D: Ops>(service: &mut Service<D>, tokens: &[u32], max_tokens: u64, debug: DebugSetup) -> SessionId {
    let turn = Turn { tokens: tokens.to_vec(), max_tokens, ..Turn::default() };
    let origin = Origin::Salt(b"one".to_vec());
    service.open(Opening { turn, origin, debug, ..Opening::default() }).expect("there is room")
}

pub(crate) fn look<D: Ops>(service: &mut Service<D>, id: SessionId, look: Look) -> Looked {
    let (sender, looked) = mpsc::channel();
    service.look(id, look, Box::new(move |result| sender.send(result).expect("it is awaited")));
    settle(service);
    looked.try_recv().expect("it is answered").expect("it is allowed")
}

fn read<D: Ops>(service: &mut Service<D>, id: SessionId, hook: &str) -> Vec<f32> {
    let hooks = vec![service.hook(hook).expect("a hook of the model")];
    look(service, id, Look { hooks, ..Look::default() }).values.remove(0).1
}

fn generated<D: Ops>(service: &Service<D>, id: SessionId) -> Vec<u32> {
    let (tokens, by_model) = service.tokens(id).expect("it is open");
    by_model.into_iter().flat_map(|turn| tokens[turn.start as usize..turn.end as usize].to_vec()).collect()
}

/// Takes a session's keys and values from it: a neighbour needs all of 12 pages for a while.
fn lose_pages<D: Ops>(service: &mut Service<D>, id: SessionId) {
    let neighbour = open(service, &prompt(9, 85), 3, DebugSetup::default());
    settle(service);
    assert_eq!(service.state().session(id).expect("it lives").residency(), Residency::Gone);
    service.event(neighbour, SessionEvent::End).expect("it is open");
}

fn close_all<D: Ops>(mut service: Service<D>, pages: (u32, u32)) {
    for id in service.state().sessions().map(|session| session.id).collect::<Vec<_>>() {
        service.event(id, SessionEvent::End).expect("it is open");
    }
    settle(&mut service);
    end_all(service, pages);
}

/// Every token of a session stops at several hooks; what is read is written back; meanwhile another session takes all
/// pages. The tokens are those of the session alone.
#[test]
fn a_session_that_stops_everywhere_gives_the_same_tokens() {
    let (tokens, other) = (prompt(3, 50), prompt(8, 45));
    let want = alone("tiny-gqa", &[(tokens.clone(), 9)]);
    for (seed, hook) in
        (0..).zip(["embed.hook_out", "blocks.0.attn.hook_out", "blocks.1.hook_out", "unembed.hook_out"])
    {
        let mut service = service(seed, 12);
        let debug = DebugSetup { breakpoints: vec![breakpoint(&service, hook)], steering: Vec::new() };
        let id = open(&mut service, &tokens, 9, debug);
        settle(&mut service);
        let mut stops = 0;
        while let Some(at) = service.paused_at(id) {
            stops += 1;
            assert_eq!(at.hook, hook);
            let values = read(&mut service, id, hook);
            let positions = match hook {
                "unembed.hook_out" => at.positions.end - 1..at.positions.end,
                _ => at.positions.clone(),
            };
            let own = service.hook(hook).expect("it is known");
            service.edit(id, vec![(own, positions, Edit::set(values))]).expect("it is stopped");
            if stops % 3 == 0 {
                // Someone else needs the pages.
                let neighbour = open(&mut service, &other, 4, DebugSetup::default());
                settle(&mut service);
                service.event(neighbour, SessionEvent::End).expect("it is open");
            }
            service.resume_until(id, None).expect("it is stopped");
            settle(&mut service);
        }
        // Two prefill chunks and eight generated tokens; logits are there for the prompt's last token alone.
        assert_eq!(stops, if hook == "unembed.hook_out" { 9 } else { 10 }, "{hook}");
        assert_eq!(generated(&service, id), want[0], "{hook}");
        close_all(service, (12, 40));
    }
}

/// A session that is stopped has no pages on the device once others want them, and goes on with the same tokens; also
/// where its pages were given up.
#[test]
fn a_stopped_session_gives_its_pages_away() {
    let tokens = prompt(5, 60);
    let want = alone("tiny-gqa", &[(tokens.clone(), 6)]);
    for host_pages in [0, 40] {
        let config = SimConfig { seed: 4, ..SimConfig::default() };
        let mut service = serve(sim(config), "tiny-gqa", &hooked(12, host_pages), &settings("lru"));
        let filter = Filter { tokens: TokenKind::Generated, steps: 2..3, ..Filter::default() };
        let stop = Breakpoint { filter, ..breakpoint(&service, "blocks.1.hook_resid_mid") };
        let id = open(&mut service, &tokens, 6, DebugSetup { breakpoints: vec![stop], steering: Vec::new() });
        settle(&mut service);
        let at = service.paused_at(id).expect("it stops");
        assert_eq!((at.positions.clone(), at.tokens.clone()), (61..62, vec![want[0][1]]));
        // What is written is kept though the pages are not.
        let before = read(&mut service, id, "blocks.0.hook_out");
        let own = service.hook("blocks.0.hook_out").expect("it is known");
        service.edit(id, vec![(own, at.positions, Edit::set(before))]).expect("it is stopped");
        let neighbour = open(&mut service, &prompt(9, 80), 3, DebugSetup::default());
        settle(&mut service);
        let residency = service.state().session(id).expect("it lives").residency();
        assert_eq!(residency, if host_pages == 0 { Residency::Gone } else { Residency::Host });
        service.event(neighbour, SessionEvent::End).expect("it is open");
        service.event(id, SessionEvent::Resume).expect("it is stopped");
        settle(&mut service);
        assert_eq!(generated(&service, id), want[0], "{host_pages} pages on the host");
        close_all(service, (12, host_pages));
    }
}

/// What is changed at a stop is computed the same again when the pages were given up.
#[test]
fn a_change_outlives_its_keys_and_values() {
    let tokens = prompt(2, 44);
    let run = |lose: bool| {
        let config = SimConfig { seed: 9, ..SimConfig::default() };
        let mut service = serve(sim(config), "tiny-gqa", &hooked(12, 0), &settings("lru"));
        let filter = Filter { positions: 20..21, ..Filter::default() };
        let stop = Breakpoint { filter, ..breakpoint(&service, "blocks.0.hook_out") };
        let id = open(&mut service, &tokens, 4, DebugSetup { breakpoints: vec![stop], steering: Vec::new() });
        settle(&mut service);
        assert_eq!(service.paused_at(id).expect("it stops").hit, [20]);
        let own = service.hook("blocks.0.hook_out").expect("it is known");
        service.edit(id, vec![(own, 10..20, Edit::scale(-3.0))]).expect("it is stopped");
        let filter = Filter { tokens: TokenKind::Generated, steps: 2..3, ..Filter::default() };
        let again = Breakpoint { filter, ..breakpoint(&service, "blocks.1.hook_in") };
        service.set_breakpoint(id, again).expect("there is room");
        service.resume_until(id, None).expect("it is stopped");
        settle(&mut service);
        assert!(service.paused_at(id).is_some());
        if lose {
            lose_pages(&mut service, id);
        }
        service.resume_until(id, None).expect("it is stopped");
        settle(&mut service);
        assert_eq!(service.applied(id).expect("it lives"), [("edit".to_owned(), 10)]);
        let tokens = generated(&service, id);
        close_all(service, (12, 0));
        tokens
    };
    let changed = run(false);
    assert_eq!(changed, run(true));
    assert_ne!(changed, alone("tiny-gqa", &[(tokens.clone(), 4)])[0], "the change does something");
}

/// Changes that last give the tokens and logits of the same changes made at every stop, also where keys and values were
/// lost and computed again.
#[test]
fn lasting_changes_are_those_of_every_stop() {
    let tokens = prompt(13, 56);
    let run = |kind: TokenKind, lasts: bool, lose: bool| {
        let config = SimConfig { seed: 5, ..SimConfig::default() };
        let mut service = serve(sim(config), "tiny-gqa", &hooked(12, 0), &settings("lru"));
        let own = |hook: &str| service.hook(hook).expect("a hook of the model");
        let part = |hook: &str, columns| own(hook).part(columns).expect("it has them");
        let row = |hook: &Hook| (0..hook.columns.1).map(|at| (at % 7) as f32 - 3.0).collect::<Vec<_>>();
        let (keys, middle) = (part("blocks.1.attn.hook_k", 2..7), own("blocks.1.hook_resid_mid"));
        let (added, direction) = (Edit::add(row(&keys), 2.0), Edit::along(row(&middle), -1.0));
        let edits = [
            (part("blocks.0.attn.hook_z", 4..8), Edit::scale(0.0)),
            (part("blocks.0.mlp.hook_post", 3..4), Edit::set(vec![5.0])),
            (keys, added),
            (middle, direction),
            (own("blocks.1.hook_out"), Edit::clamp(-0.7, 0.9)),
            (part("unembed.hook_out", 1..2), Edit::scale(1.5)),
        ];
        let read = Breakpoint { pause: false, capture: true, ..breakpoint(&service, "unembed.hook_out") };
        let steps = if lasts { 3..4 } else { 0..u64::MAX };
        let stopping = if lasts { TokenKind::Generated } else { kind };
        let filter = Filter { tokens: stopping, steps, ..Filter::default() };
        let stop = Breakpoint { filter, ..breakpoint(&service, "embed.hook_out") };
        let name = || "lasting".to_owned();
        let lasting = edits.iter().cloned();
        let lasting = lasting.map(|(hook, edit)| Steering { name: name(), hook, edit, tokens: kind });
        let steering = if lasts { lasting.collect() } else { Vec::new() };
        let id = open(&mut service, &tokens, 6, DebugSetup { breakpoints: vec![read, stop], steering });
        settle(&mut service);
        while let Some(at) = service.paused_at(id) {
            if !lasts {
                let at = at.positions;
                let with_logits = |hook: &Hook| hook.name.starts_with("unembed");
                let here = |hook: &Hook| if with_logits(hook) { at.end - 1..at.end } else { at.clone() };
                let all = edits.iter().map(|(hook, edit)| (hook.clone(), here(hook), edit.clone()));
                service.edit(id, all.collect()).expect("it is stopped");
            }
            if lose {
                lose_pages(&mut service, id);
            }
            service.resume_until(id, None).expect("it is stopped");
            settle(&mut service);
        }
        let captured = service.take_captures(id).expect("it lives").captures;
        let logits: Vec<Vec<f32>> = captured.into_iter().map(|one| one.values).collect();
        let applied = service.applied(id).expect("it lives").remove(0).1;
        let said = (generated(&service, id), logits, applied);
        close_all(service, (12, 0));
        said
    };
    for (kind, changed) in [(TokenKind::Any, 56 + 5), (TokenKind::Generated, 5)] {
        let by_hand = run(kind, false, false);
        assert_eq!(by_hand.2, changed);
        assert_eq!(run(kind, true, false), by_hand, "{kind:?}");
        assert_eq!(run(kind, true, true), by_hand, "{kind:?}, computed again");
        assert_ne!(by_hand.0, alone("tiny-gqa", &[(tokens.clone(), 6)])[0], "they change something");
    }
}

/// A look reads what a capture reads, at any hook, and its changes are its own.
#[test]
fn looks_read_what_captures_keep() {
    let tokens = prompt(6, 37);
    let hooks = ["blocks.0.hook_in", "blocks.1.attn.hook_out", "ln_final.hook_out"];
    let mut service = service(1, 20);
    let capture = |hook: &str| Breakpoint { pause: false, capture: true, ..breakpoint(&service, hook) };
    let breakpoints = hooks.iter().map(|hook| capture(hook)).collect();
    let reader = open(&mut service, &tokens, 5, DebugSetup { breakpoints, steering: Vec::new() });
    settle(&mut service);
    let Captures { captures, dropped: 0 } = service.take_captures(reader).expect("it lives") else {
        panic!("everything fits");
    };
    // The second block's input stops each of its tokens.
    let stop = breakpoint(&service, "blocks.1.hook_in");
    let id = open(&mut service, &tokens, 5, DebugSetup { breakpoints: vec![stop], steering: Vec::new() });
    settle(&mut service);
    let mut steps = 0;
    while let Some(at) = service.paused_at(id) {
        let wild = (service.hook("blocks.0.hook_in").expect("known"), at.positions.clone(), Edit::scale(5.0));
        let other = look(&mut service, id, Look { edits: vec![wild], logits: true, ..Look::default() });
        let plain = look(&mut service, id, Look { logits: true, ..Look::default() });
        assert_ne!(other.logits, plain.logits);
        for hook in hooks {
            let kept: Vec<_> = captures.iter().filter(|capture| capture.hook == hook).collect();
            let values = read(&mut service, id, hook);
            assert_eq!(values, kept[steps].values, "{hook} at {:?}", at.positions);
            assert_eq!(kept[steps].positions.last(), Some(&(at.positions.end - 1)));
        }
        steps += 1;
        service.resume_until(id, None).expect("it is stopped");
        settle(&mut service);
    }
    assert_eq!(steps, 5);
    assert_eq!(generated(&service, id), generated(&service, reader));
    close_all(service, (20, 40));
}

/// A session goes from hook to hook of one token, and a condition says which tokens stop it.
#[test]
fn stops_go_from_hook_to_hook() {
    let tokens = prompt(4, 20);
    let want = alone("tiny-gqa", &[(tokens.clone(), 6)]).remove(0);
    let mut service = service(2, 20);
    let condition = Some(BreakCondition::Tokens(vec![want[2]]));
    let filter = Filter { tokens: TokenKind::Generated, ..Filter::default() };
    let stop = Breakpoint { filter, condition, hits: Some(1), ..breakpoint(&service, "blocks.0.hook_in") };
    let id = open(&mut service, &tokens, 6, DebugSetup { breakpoints: vec![stop], steering: Vec::new() });
    for hook in ["blocks.0.hook_in", "blocks.0.hook_resid_mid", "blocks.1.hook_in", "unembed.hook_out"] {
        if let Some(at) = service.paused_at(id) {
            assert_eq!(at.tokens[0], want[2]);
            let next = service.hook(hook).expect("known");
            service.resume_until(id, Some(next)).expect("it is stopped");
        }
        settle(&mut service);
        assert_eq!(service.paused_at(id).expect("it stops").hook, hook);
    }
    assert_eq!(service.breakpoints(id).expect("it lives")[0].2, 1, "it had one hit");
    service.resume_until(id, None).expect("it is stopped");
    settle(&mut service);
    assert_eq!(generated(&service, id), want);
    // An entropy is above 0, and below the most that a vocabulary of 256 tokens has.
    for (above, stops) in [(0.0, true), (5.6, false)] {
        let condition = Some(BreakCondition::Entropy { above });
        let stop = Breakpoint { condition, hits: Some(1), ..breakpoint(&service, "blocks.1.hook_out") };
        let id = open(
            &mut service,
            &prompt(7, 9),
            3,
            DebugSetup { breakpoints: vec![stop], steering: Vec::new() },
        );
        settle(&mut service);
        assert_eq!(service.paused_at(id).is_some(), stops, "entropy above {above}");
    }
    close_all(service, (20, 40));
}

/// Two continuations of one stop: the fork has its parent's tokens, and only a change tells them apart.
#[test]
fn a_fork_of_a_stopped_session_is_stopped_at_the_same_place() {
    let tokens = prompt(11, 50);
    let want = alone("tiny-gqa", &[(tokens.clone(), 7)]).remove(0);
    let mut service = service(3, 40);
    let filter = Filter { tokens: TokenKind::Generated, steps: 3..4, ..Filter::default() };
    let stop = Breakpoint { filter, ..breakpoint(&service, "blocks.1.hook_in") };
    let id = open(&mut service, &tokens, 7, DebugSetup { breakpoints: vec![stop], steering: Vec::new() });
    settle(&mut service);
    let free = service.state().device_free();
    let (same, other) = (service.fork_paused(id).expect("room"), service.fork_paused(id).expect("room"));
    assert_eq!(service.state().device_free(), free, "pages are shared");
    let places = [id, same, other].map(|id| service.paused_at(id).expect("it is stopped").positions);
    assert!(places.iter().all(|place| *place == places[0]));
    let hook = service.hook("blocks.1.hook_in").expect("known");
    service.edit(other, vec![(hook, places[0].clone(), Edit::scale(-4.0))]).expect("it is stopped");
    for id in [other, same, id] {
        service.resume_until(id, None).expect("it is stopped");
    }
    settle(&mut service);
    assert_eq!(generated(&service, id), want);
    assert_eq!(generated(&service, same), want);
    let changed = generated(&service, other);
    assert_eq!(changed[..3], want[..3]);
    assert_ne!(changed, want);
    close_all(service, (40, 40));
}

/// Steering of generated tokens alone leaves the prompt's keys and values; sessions of equal steering share a prefix
/// under one salt, others do not; neighbours are left alone.
#[test]
fn steering_changes_its_own_session_alone() {
    let tokens = prompt(13, 56);
    let want = alone("tiny-gqa", &[(tokens.clone(), 6)]).remove(0);
    let mut service = service(5, 60);
    let hook = service.hook("blocks.0.hook_out").expect("known");
    let vector: Vec<f32> = (0..hook.columns.1).map(|at| (at % 7) as f32 - 3.0).collect();
    let steering = |strength: f32, tokens| Steering {
        name: "test".to_owned(),
        hook: hook.clone(),
        edit: Edit::add(vector.clone(), strength),
        tokens,
    };
    let setup = |steering| DebugSetup { breakpoints: Vec::new(), steering: vec![steering] };
    let mut run = |debug| {
        let id = open(&mut service, &tokens, 6, debug);
        settle(&mut service);
        let reused = service.state().session(id).expect("it lives").reused;
        (generated(&service, id), service.applied(id).expect("it lives"), reused.expect("it has computed"))
    };
    assert_eq!(run(DebugSetup::default()), (want.clone(), Vec::new(), 0));
    assert_eq!(run(DebugSetup::default()).2, 40, "a plain neighbour finds the prefix");
    let (tokens_of_zero, ..) = run(setup(steering(0.0, TokenKind::Any)));
    assert_eq!(tokens_of_zero, want, "a vector of strength 0 changes nothing");
    let (steered, applied, reused) = run(setup(steering(4.0, TokenKind::Any)));
    assert_ne!(steered, want);
    assert_eq!((applied, reused), (vec![("test".to_owned(), 56 + 5)], 0));
    assert_eq!(run(setup(steering(4.0, TokenKind::Any))).2, 40, "equal steering shares");
    let (_, applied, _) = run(setup(steering(4.0, TokenKind::Generated)));
    assert_eq!(applied, [("test".to_owned(), 5)]);
    // Equal changes of other columns are other changes.
    for columns in [0..8, 8..16] {
        let hook = hook.part(columns).expect("it has them");
        let part = Steering { hook, edit: Edit::scale(0.0), ..steering(1.0, TokenKind::Any) };
        assert_eq!(run(setup(part.clone())).2, 0);
        assert_eq!(run(setup(part)).2, 40);
    }
    assert_eq!(run(DebugSetup::default()), (want, Vec::new(), 40));
    close_all(service, (60, 40));
}

/// What cannot be is refused, and leaves the session as it was.
#[test]
fn refusals_name_what_is_wrong() {
    let tokens = prompt(1, 10);
    let mut service = service(6, 20);
    let id = open(&mut service, &tokens, 4, DebugSetup::default());
    settle(&mut service);
    let hook = service.hook("blocks.0.hook_out").expect("known");
    let far = SessionId(99);
    let text = |error: Error| error.to_string();
    assert_eq!(
        text(service.hook("blocks.9.hook_out").unwrap_err()),
        "the model has no hook `blocks.9.hook_out`"
    );
    assert_eq!(text(service.resume_until(id, None).unwrap_err()), "session 1 is not stopped at a breakpoint");
    let refused = service.edit(id, vec![(hook.clone(), 0..1, Edit::scale(2.0))]);
    assert_eq!(text(refused.unwrap_err()), "session 1 is not stopped at a breakpoint");
    assert!(matches!(service.fork_paused(far), Err(Error::NoSession { session: 99 })));
    let plain = breakpoint(&service, "blocks.0.hook_out");
    let condition = Some(BreakCondition::Probe { direction: vec![1.0; 3], above: 0.0 });
    let wrong = Breakpoint { condition, ..plain.clone() };
    assert!(text(service.set_breakpoint(id, wrong).unwrap_err()).contains("the probe has 3 values"));
    let nothing = Breakpoint { pause: false, ..plain.clone() };
    assert!(text(service.set_breakpoint(id, nothing).unwrap_err()).contains("does nothing"));
    // A stopped session has one chunk of ten tokens.
    let debug = DebugSetup { breakpoints: vec![plain.clone()], steering: Vec::new() };
    let stopped = open(&mut service, &prompt(20, 10), 4, debug.clone());
    settle(&mut service);
    for (positions, edit, why) in [
        (0..11, Edit::scale(2.0), "the session is stopped at positions 0 to 10"),
        (0..1, Edit::add(vec![f32::NAN; hook.columns.1 as usize], 1.0), "not finite"),
        (0..2, Edit::set(vec![0.0; 5]), "has 5 values"),
    ] {
        let error = text(service.edit(stopped, vec![(hook.clone(), positions, edit)]).unwrap_err());
        assert!(error.contains(why), "{error}");
    }
    // The last token alone has logits.
    let logits = service.hook("unembed.hook_out").expect("known");
    let each = Edit::set(vec![0.0; 10 * logits.columns.1 as usize]);
    let error = text(service.edit(stopped, vec![(logits.clone(), 0..10, each.clone())]).unwrap_err());
    assert!(error.contains("positions 9 to 10"), "{error}");
    let (sender, looked) = mpsc::channel();
    let seen = Look { edits: vec![(logits, 0..10, each)], logits: true, ..Look::default() };
    service.look(stopped, seen, Box::new(move |result| sender.send(result).expect("it is awaited")));
    settle(&mut service);
    assert_eq!(text(looked.recv().expect("it is answered").unwrap_err()), error);
    assert_eq!(service.applied(stopped).expect("it lives"), []);
    let steering = |hook: &Hook, edit| {
        vec![Steering { name: "s".to_owned(), hook: hook.clone(), edit, tokens: TokenKind::Any }]
    };
    let beyond = Hook { columns: (hook.columns.0 + 1, hook.columns.1), ..hook.clone() };
    let refused = service.steer(id, steering(&beyond, Edit::scale(2.0)));
    assert!(matches!(refused, Err(Error::UnknownHook(_))), "{refused:?}");
    let some = hook.part(1..4).expect("it has them");
    let error = text(service.steer(id, steering(&some, Edit::set(vec![0.0; 2]))).unwrap_err());
    assert!(error.contains("has 2 values"), "{error}");
    // Memory for hooks is checked before anything is armed.
    let config = SimConfig::default();
    let small = Options { hook_bytes: 20_000, ..hooked(20, 0) };
    let mut small = serve(sim(config), "tiny-gqa", &small, &settings("lru"));
    let turn = Turn { tokens: tokens.clone(), max_tokens: 2, ..Turn::default() };
    let whole = Breakpoint { capture: true, ..breakpoint(&small, "unembed.hook_out") };
    let opening =
        Opening { turn, debug: DebugSetup { breakpoints: vec![whole], ..debug }, ..Opening::default() };
    assert!(matches!(small.open(opening), Err(Error::HookMemory { have: 20_000, .. })));
    assert_eq!(small.state().sessions().count(), 0);
    close_all(small, (20, 0));
    close_all(service, (20, 40));
}

/// A stop that lasts too long ends as its breakpoint says.
#[test]
fn stops_end_by_themselves() {
    let tokens = prompt(1, 10);
    for at_ttl in [AtTtl::Resume, AtTtl::Abort] {
        let mut service = service(7, 20);
        let ttl = Some(Duration::from_millis(5));
        let stop = Breakpoint { ttl, at_ttl, hits: Some(1), ..breakpoint(&service, "blocks.0.hook_in") };
        let id = open(&mut service, &tokens, 4, DebugSetup { breakpoints: vec![stop], steering: Vec::new() });
        let mut seen = Vec::new();
        let is_over = |happening: &Happening| {
            matches!(happening, Happening::Expired | Happening::Token { finish: Some(_), .. })
        };
        while !seen.last().is_some_and(is_over) {
            seen.extend(service.advance().expect("it runs").into_iter().map(|(_, happening)| happening));
        }
        assert!(matches!(&seen[0], Happening::Paused(at) if at.ttl == ttl));
        match at_ttl {
            AtTtl::Resume => {
                assert_eq!(generated(&service, id), alone("tiny-gqa", &[(tokens.clone(), 4)])[0])
            }
            AtTtl::Abort => assert!(service.paused_at(id).is_none() && service.tokens(id).is_err()),
        }
        close_all(service, (20, 40));
    }
}
