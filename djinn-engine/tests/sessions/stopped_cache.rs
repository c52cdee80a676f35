//! Keys and values of stopped sessions that were computed before: what is written back changes no bit, what is changed changes
//! its own session alone, wherever its pages are.

use super::sharing::{end_all, settle};
use super::stopped::{breakpoint, hooked, look};
use super::*;
use djinn_device::DType;
use djinn_device::reference::{decode_vectors, encode_vectors};
use djinn_engine::debug::{
    Breakpoint, DebugSetup, Debugger, Filter, KvEdit, KvHalf, KvOp, KvRange, KvValues, Look, TokenKind,
};
use djinn_engine::{Error, Opening, Origin, Result, Turn};
use djinn_scheduler::{Residency, SessionEvent, SessionId};
use std::sync::mpsc;

const PROMPT: usize = 50;
const TOKENS: u64 = 9;

type Sim = Service<SimDevice>;

fn service(seed: u64, family: &str, host_pages: u32) -> Sim {
    let config = SimConfig { seed, ..SimConfig::default() };
    serve(sim(config), family, &hooked(14, host_pages), &settings("lru"))
}

/// A session that stops at some generated tokens.
fn open(service: &mut Sim, seed: u64, steps: &[u64]) -> SessionId {
    let stop = |step: &u64| {
        let filter = Filter { tokens: TokenKind::Generated, steps: *step..step + 1, ..Filter::default() };
        Breakpoint { filter, ..breakpoint(service, "blocks.1.hook_in") }
    };
    let breakpoints = steps.iter().map(stop).collect();
    let turn = Turn { tokens: prompt(seed, PROMPT), max_tokens: TOKENS, ..Turn::default() };
    let debug = DebugSetup { breakpoints, steering: Vec::new() };
    let origin = Origin::Salt(b"all".to_vec());
    let id = service.open(Opening { turn, origin, debug, ..Opening::default() }).expect("there is room");
    settle(service);
    id
}

fn edit(service: &mut Sim, id: SessionId, edit: KvEdit) -> Result<()> {
    let (sender, answered) = mpsc::channel();
    service.edit_cache(id, edit, Box::new(move |result| sender.send(result).expect("it is awaited")));
    settle(service);
    answered.try_recv().expect("it is answered")
}

fn cache(service: &mut Sim, id: SessionId, layer: u32, positions: std::ops::Range<u64>) -> KvValues {
    let caches = vec![KvRange { layer, positions }];
    look(service, id, Look { caches, ..Look::default() }).caches.remove(0)
}

/// The bits of the logits of the token at which it stopped.
fn logits(service: &mut Sim, id: SessionId) -> Vec<u32> {
    let looked = look(service, id, Look { logits: true, ..Look::default() });
    looked.logits.into_iter().map(f32::to_bits).collect()
}

/// Another session takes the pages of those that are stopped.
fn crowd(service: &mut Sim) {
    let turn = Turn { tokens: prompt(99, 90), max_tokens: 5, ..Turn::default() };
    let other = service.open(Opening { turn, ..Opening::default() }).expect("there is room");
    settle(service);
    service.event(other, SessionEvent::End).expect("it is open");
    settle(service);
}

/// Goes on to the end of the turn; all tokens.
fn finish(service: &mut Sim, id: SessionId) -> Vec<u32> {
    while service.paused_at(id).is_some() {
        service.resume_until(id, None).expect("it is stopped");
        settle(service);
    }
    service.tokens(id).expect("it is open").0
}

fn close(mut service: Sim, host_pages: u32) {
    for id in service.state().sessions().map(|session| session.id).collect::<Vec<_>>() {
        service.event(id, SessionEvent::End).expect("it is open");
    }
    settle(&mut service);
    end_all(service, (14, host_pages));
}

fn scaled(layer: u32, half: KvHalf, positions: std::ops::Range<u64>, factor: f32) -> KvEdit {
    KvEdit { range: KvRange { layer, positions }, half, op: KvOp::Scale(factor) }
}

/// Where the pages of a stopped session are: on the device, on the host, or nowhere.
const PLACES: [(Residency, u32); 3] = [(Residency::Device, 60), (Residency::Host, 60), (Residency::Gone, 0)];

fn bring(service: &mut Sim, id: SessionId, place: Residency) {
    if place != Residency::Device {
        crowd(service);
    }
    assert_eq!(service.state().session(id).expect("it lives").residency(), place);
}

#[test]
fn a_cache_that_is_written_back_changes_no_bit() {
    for (seed, family) in (0..).zip(["tiny-gqa", "tiny-falcon", "tiny-window"]) {
        for (place, host_pages) in PLACES {
            let mut service = service(seed, family, host_pages);
            let plain = open(&mut service, 3, &[3, 6]);
            let before = logits(&mut service, plain);
            let want = finish(&mut service, plain);
            service.event(plain, SessionEvent::End).expect("it is open");
            let id = open(&mut service, 3, &[3, 6]);
            for _ in 0..2 {
                let end = service.paused_at(id).expect("it stops").positions.start;
                bring(&mut service, id, place);
                // One read begins within a page, the other has all.
                for (layer, positions) in [(0, 5..end), (1, 0..end)] {
                    let KvValues { range, keys, values, kv_heads, head_dim } =
                        cache(&mut service, id, layer, positions);
                    let tokens = (range.positions.end - range.positions.start) as usize;
                    assert_eq!(keys.len(), tokens * (kv_heads * head_dim) as usize);
                    assert!(keys.iter().chain(&values).all(|x| x.is_finite()) && keys != values);
                    for (half, values) in [(KvHalf::Keys, keys), (KvHalf::Values, values)] {
                        let written = KvEdit { range: range.clone(), half, op: KvOp::Set(values) };
                        edit(&mut service, id, written).expect("it is stopped");
                    }
                }
                if end < PROMPT as u64 + 4 {
                    assert!(logits(&mut service, id) == before, "{family}, {place:?}");
                }
                bring(&mut service, id, place);
                service.resume_until(id, None).expect("it is stopped");
                settle(&mut service);
            }
            assert_eq!(finish(&mut service, id), want, "{family}, {place:?}");
            close(service, host_pages);
        }
    }
}

#[test]
fn a_changed_cache_changes_its_own_session_alone() {
    for (place, host_pages) in PLACES {
        let mut service = service(7, "tiny-gqa", host_pages);
        let id = open(&mut service, 5, &[3]);
        let before = logits(&mut service, id);
        let [same, other] = [(); 2].map(|()| service.fork_paused(id).expect("there is room"));
        bring(&mut service, other, place);
        // Its keys and values before, of both layers, and what is to become of them.
        let old = cache(&mut service, other, 0, 4..20);
        edit(&mut service, other, scaled(0, KvHalf::Values, 4..20, -3.0)).expect("it is stopped");
        let added = KvOp::Add(vec![0.5; old.keys.len()]);
        let more = KvEdit { range: old.range.clone(), half: KvHalf::Keys, op: added };
        edit(&mut service, other, more).expect("it is stopped");
        bring(&mut service, other, place);
        let new = cache(&mut service, other, 0, 4..20);
        assert_eq!(new.values, old.values.iter().map(|x| x * -3.0).collect::<Vec<_>>(), "{place:?}");
        assert_eq!(new.keys, old.keys.iter().map(|x| x + 0.5).collect::<Vec<_>>(), "{place:?}");
        assert_ne!(logits(&mut service, other), before, "{place:?}");
        // A fork of the changed one has the change.
        let heir = service.fork_paused(other).expect("there is room");
        for id in [id, same] {
            assert!(logits(&mut service, id) == before, "{place:?}: a neighbour changed");
            assert_eq!(cache(&mut service, id, 0, 4..20), old, "{place:?}");
        }
        assert_eq!(cache(&mut service, heir, 0, 4..20), new, "{place:?}");
        let changed = finish(&mut service, other);
        assert_eq!(finish(&mut service, heir), changed, "{place:?}");
        let want = finish(&mut service, id);
        assert_eq!(finish(&mut service, same), want, "{place:?}");
        // What was changed is found by no other of the same salt.
        let later = open(&mut service, 5, &[]);
        assert_eq!(service.tokens(later).expect("it is open").0, want, "{place:?}");
        close(service, host_pages);
    }
}

/// What is projected out has no part left, and what is clamped is within its bounds; both only where they were asked for.
#[test]
fn a_cache_is_clamped_and_loses_a_direction() {
    let mut service = service(9, "tiny-gqa", 0);
    let id = open(&mut service, 5, &[3]);
    let old = cache(&mut service, id, 1, 0..20);
    let width = (old.kv_heads * old.head_dim) as usize;
    // The length of a direction does not matter.
    let direction: Vec<f32> = (0..width).map(|i| 1e3 * ((i % 5) as f32 - 1.5)).collect();
    let clamped = KvEdit { op: KvOp::Clamp(-0.01, f32::INFINITY), ..scaled(1, KvHalf::Keys, 4..12, 1.0) };
    let projected =
        KvEdit { op: KvOp::ProjectOut(direction.clone()), ..scaled(1, KvHalf::Values, 4..12, 1.0) };
    for change in [clamped, projected] {
        edit(&mut service, id, change).expect("it is stopped");
    }
    let new = cache(&mut service, id, 1, 0..20);
    let part = |row: &[f32]| row.iter().zip(&direction).map(|(x, along)| x * along).sum::<f32>();
    let mut most = [0.0f32; 2];
    for token in 0..20 {
        let row = |values: &[f32]| values[token * width..][..width].to_vec();
        let (keys, values) = (row(&old.keys), row(&old.values));
        if (4..12).contains(&token) {
            assert_eq!(row(&new.keys), keys.iter().map(|x| x.max(-0.01)).collect::<Vec<_>>());
            most = [most[0].max(part(&values).abs()), most[1].max(part(&row(&new.values)).abs())];
        } else {
            assert!(row(&new.keys) == keys && row(&new.values) == values, "token {token}");
        }
    }
    assert!(old.keys.iter().any(|&x| x < -0.01) && most[1] < 0.02 * most[0], "{most:?}");
    finish(&mut service, id);
    close(service, 0);
}

/// Two changes at two contexts are computed the same again when keys and values were given up.
#[test]
fn a_changed_cache_outlives_its_pages() {
    let run = |loses: bool| {
        let mut service = service(11, "tiny-gqa", 0);
        let id = open(&mut service, 2, &[2, 5]);
        edit(&mut service, id, scaled(1, KvHalf::Keys, 30..45, 4.0)).expect("it is stopped");
        edit(&mut service, id, scaled(0, KvHalf::Values, 0..9, -2.0)).expect("it is stopped");
        if loses {
            bring(&mut service, id, Residency::Gone);
        }
        service.resume_until(id, None).expect("it is stopped");
        settle(&mut service);
        let end = service.paused_at(id).expect("it stops").positions.start;
        edit(&mut service, id, scaled(0, KvHalf::Keys, 20..end, 0.5)).expect("it is stopped");
        if loses {
            bring(&mut service, id, Residency::Gone);
        }
        let caches = [0, 1].map(|layer| cache(&mut service, id, layer, 0..end));
        let (logits, tokens) = (logits(&mut service, id), finish(&mut service, id));
        close(service, 0);
        (caches, logits, tokens)
    };
    let (kept, lost) = (run(false), run(true));
    assert!(kept == lost);
    assert_ne!(kept.2, {
        let mut service = service(11, "tiny-gqa", 0);
        let id = open(&mut service, 2, &[]);
        service.tokens(id).expect("it is open").0
    });
}

#[test]
fn changes_of_a_cache_that_cannot_be_are_refused() {
    let mut service = service(1, "tiny-gqa", 0);
    let id = open(&mut service, 4, &[2]);
    let end = service.paused_at(id).expect("it stops").positions.start;
    let set = |values: Vec<f32>| KvEdit { op: KvOp::Set(values), ..scaled(0, KvHalf::Keys, 0..2, 1.0) };
    let width = cache(&mut service, id, 0, 0..1).keys.len();
    for (change, why) in [
        (scaled(99, KvHalf::Keys, 0..1, 2.0), "no hook `blocks.99`"),
        (scaled(0, KvHalf::Keys, 3..3, 2.0), "of positions 0 to"),
        (scaled(0, KvHalf::Keys, 0..end + 1, 2.0), "of positions 0 to"),
        (scaled(0, KvHalf::Keys, 0..2, f32::NAN), "not finite"),
        (scaled(0, KvHalf::Values, 0..2, f32::MAX), "larger than"),
        (set(vec![0.0; 5]), "5 values; 2 tokens"),
        (KvEdit { op: KvOp::Clamp(1.0, -1.0), ..set(vec![]) }, "1 to -1 are no bounds"),
        (KvEdit { op: KvOp::Clamp(f32::NAN, 1.0), ..set(vec![]) }, "no bounds"),
        (KvEdit { op: KvOp::ProjectOut(vec![1.0; 5]), ..set(vec![]) }, "5 values; 2 tokens"),
        (KvEdit { op: KvOp::ProjectOut(vec![0.0; width]), ..set(vec![]) }, "length 0"),
    ] {
        let error = edit(&mut service, id, change).expect_err(why).to_string();
        assert!(error.contains(why), "{error}");
    }
    let tokens = finish(&mut service, id);
    assert_eq!(tokens[PROMPT..], alone("tiny-gqa", &[(prompt(4, PROMPT), TOKENS)])[0]);
    let running = edit(&mut service, id, scaled(0, KvHalf::Keys, 0..2, 2.0));
    assert!(matches!(running, Err(Error::NotPaused { .. })));
    close(service, 0);
}

#[test]
fn a_cache_of_int8_is_read_exactly_and_rounds_what_is_written() {
    let options = Options { kv_dtype: DType::Int8, ..hooked(14, 0) };
    let mut service = serve(sim(SimConfig::default()), "tiny-gqa", &options, &settings("lru"));
    let id = open(&mut service, 4, &[2]);
    let KvValues { keys, values, head_dim, .. } = cache(&mut service, id, 0, 3..21);
    let rounded = |values: &[f32]| {
        let bytes = encode_vectors(values, DType::Int8, head_dim as usize);
        decode_vectors(&bytes, DType::Int8, head_dim as usize)
    };
    // What was rounded has 255 numbers at most, in steps of one size.
    let vectors = || keys.chunks_exact(head_dim as usize).chain(values.chunks_exact(head_dim as usize));
    for vector in vectors() {
        let step = vector.iter().fold(0.0, |a: f32, x| a.max(x.abs())) / 127.0;
        assert!(
            step > 0.0 && vector.iter().all(|x| (x / step - (x / step).round()).abs() < 1e-3),
            "{vector:?}"
        );
    }
    // Across pages, each number another.
    let new: Vec<f32> = (0..keys.len()).map(|i| (i as f32 * 0.37).sin() * (1.0 + i as f32)).collect();
    let set = |new| KvEdit { op: KvOp::Set(new), ..scaled(0, KvHalf::Keys, 3..21, 1.0) };
    edit(&mut service, id, set(new.clone())).expect("it is stopped");
    let read = cache(&mut service, id, 0, 3..21);
    assert!(read.keys == rounded(&new) && read.values == values);
    let beside = cache(&mut service, id, 0, 0..3);
    assert!(beside.keys.iter().all(|x| x.is_finite() && x.abs() < 50.0));
    finish(&mut service, id);
    close(service, 0);
}

/// Breakpoints and steering of a fork come to what it has from its parent.
#[test]
fn a_fork_with_breakpoints_has_its_parents_changes() {
    let mut service = service(13, "tiny-gqa", 0);
    let id = open(&mut service, 5, &[3]);
    edit(&mut service, id, scaled(0, KvHalf::Values, 4..20, -3.0)).expect("it is stopped");
    finish(&mut service, id);
    let mut forks = Vec::new();
    for breakpoints in [Vec::new(), vec![breakpoint(&service, "blocks.1.hook_in")]] {
        let turn = Turn { tokens: prompt(6, 3), max_tokens: 4, ..Turn::default() };
        let (origin, debug) = (Origin::Fork(id), DebugSetup { breakpoints, steering: Vec::new() });
        let fork =
            service.open(Opening { turn, origin, debug, ..Opening::default() }).expect("there is room");
        settle(&mut service);
        if let Some(at) = service.paused_at(fork) {
            assert!(at.positions.start >= PROMPT as u64 + TOKENS - 1, "it stops at its own tokens");
            bring(&mut service, fork, Residency::Gone);
        }
        forks.push(finish(&mut service, fork));
        service.event(fork, SessionEvent::End).expect("it is open");
        settle(&mut service);
    }
    assert_eq!(forks[0], forks[1]);
    close(service, 0);
}
