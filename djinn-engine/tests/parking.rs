//! Forced parking: a session's tokens and the bytes of its keys and values are those of one that never left.

use djinn_device::{CpuConfig, CpuDevice, Math, Ops, SimConfig, SimDevice};
use djinn_engine::{Budget, Engine, Error, Options, Request, Session};
use djinn_models::{Location, OpenOptions, open};
use std::ops::ControlFlow;

const FAMILIES: [&str; 4] = ["tiny-gqa", "tiny-window", "tiny-mixtral", "tiny-gpt2"];

/// Two turns of a conversation: prompts cut into pieces of 16, so that sessions are parked between them and with
/// partial last pages.
fn run<D: Ops>(device: D, family: &str, options: &Options) -> Result<(Vec<u32>, Vec<u8>, u64), Error> {
    let model = open(&Location::Synthetic(family.into()), &OpenOptions::default()).expect("a known shape");
    let mut engine = Engine::load(device, model.graph, &*model.source, options, &mut |_, _| {})?;
    let mut session = Session::default();
    let mut tokens: Vec<u32> = (0..37).map(|i| (i * 37 + 11) % 256).collect();
    for _ in 0..2 {
        let request = Request { prompt: tokens.clone(), max_tokens: 9, ..Request::default() };
        let generated = engine.generate(&mut session, &request, &mut |_| ControlFlow::Continue(()))?;
        tokens.extend(generated.tokens);
        tokens.extend([1, 2, 3]);
    }
    let bytes = engine.kv_bytes(&session)?;
    engine.close(session);
    Ok((tokens, bytes, engine.parkings()))
}

fn options(every: Option<u32>) -> Options {
    Options { context: 80, prefill_rows: 16, force_park_every: every, ..Options::default() }
}

fn cpu() -> CpuDevice {
    CpuDevice::new(CpuConfig { threads: 2, ..CpuConfig::default() }).expect("threads")
}

fn sim(config: SimConfig) -> SimDevice {
    SimDevice::new(SimConfig { math: Math::Fast, ..config }).expect("a device")
}

#[test]
fn a_parked_session_goes_on_as_if_it_had_not_been() {
    for family in FAMILIES {
        let (tokens, bytes, parkings) = run(cpu(), family, &options(None)).expect("it runs");
        assert_eq!(parkings, 0);
        let model =
            open(&Location::Synthetic(family.into()), &OpenOptions::default()).expect("a known shape");
        let each = model.graph.kv.bytes_per_token(djinn_device::DType::F32);
        // The last token chosen in each turn is run in the next; the three after the last turn are not.
        assert_eq!(bytes.len() as u64, (tokens.len() as u64 - 4) * each);
        for every in [1, 2, 8] {
            let found = run(cpu(), family, &options(Some(every))).expect("it runs");
            assert!(found.0 == tokens && found.1 == bytes, "{family}, every {every}");
            assert!(found.2 >= 20 / u64::from(every), "{family}, every {every}: {} times", found.2);
        }
    }
}

/// In any order of events, beside streamed weights and replayed passes, with every page checked.
#[test]
fn no_order_of_events_changes_a_parked_session() {
    for (at, family) in FAMILIES.into_iter().enumerate() {
        let (tokens, bytes, _) = run(cpu(), family, &options(None)).expect("it runs");
        for seed in (at as u64..200).step_by(FAMILIES.len()) {
            let budget = Budget {
                resident_fraction: [None, Some(0.0), Some(0.5)][seed as usize % 3],
                stream_check: seed % 2 == 0,
                ..Budget::default()
            };
            let every = [1, 2, 8][seed as usize / 3 % 3];
            let options = Options { budget, replay: seed % 5 != 0, ..options(Some(every)) };
            let found =
                run(sim(SimConfig { seed, ..SimConfig::default() }), family, &options).expect("it runs");
            assert!(found.0 == tokens && found.1 == bytes, "{family}, seed {seed}, every {every}");
            assert!(found.2 > 0);
        }
    }
}

/// A copy that the device refuses leaves the session where it is; one that fails later stops the engine.
#[test]
fn copies_that_fail_give_an_error_or_the_same_tokens() {
    let family = "tiny-gqa";
    let (tokens, bytes, _) = run(cpu(), family, &options(None)).expect("it runs");
    let (mut refused, mut failed) = (0, 0);
    for seed in 0..60 {
        let (late, at) = (seed % 2 == 0, 1 + 3 * (seed / 2));
        let config = match late {
            true => SimConfig { seed, fail_copy_at: Some(at), ..SimConfig::default() },
            false => SimConfig { seed, refuse_copy_at: Some(at), ..SimConfig::default() },
        };
        match run(sim(config), family, &options(Some(1))) {
            Ok(found) => {
                assert_eq!(found.0, tokens, "seed {seed}, copy {at}");
                assert!(found.1 == bytes, "seed {seed}, copy {at} failed unnoticed");
                refused += u64::from(!late);
            }
            Err(error) => {
                assert!(!error.to_string().contains('\n'), "{error}");
                failed += 1;
            }
        }
    }
    assert!(refused > 5 && failed > 20, "{refused} refusals survived, {failed} failures");
}

/// Without room on the host nothing moves, and a discarded session is computed again.
#[test]
fn a_session_without_room_on_the_host_stays() {
    let model =
        open(&Location::Synthetic("tiny-gqa".into()), &OpenOptions::default()).expect("a known shape");
    let options = Options { host_pages: 1, ..options(None) };
    let mut engine =
        Engine::load(cpu(), model.graph, &*model.source, &options, &mut |_, _| {}).expect("it loads");
    let mut session = Session::default();
    let request = Request { prompt: vec![5; 30], max_tokens: 3, ..Request::default() };
    engine.generate(&mut session, &request, &mut |_| ControlFlow::Continue(())).expect("it runs");
    let before = engine.kv_bytes(&session).expect("it reads");
    assert!(!engine.park_and_restore(&mut session).expect("it is no error"), "two pages do not fit in one");
    assert!(engine.kv_bytes(&session).expect("it reads") == before);
    let request = Request { prompt: vec![5; 10], max_tokens: 1, ..request };
    engine.generate(&mut session, &request, &mut |_| ControlFlow::Continue(())).expect("it runs");
    assert!(engine.park_and_restore(&mut session).expect("it is no error"), "one page fits");
    assert_eq!(engine.parkings(), 1);
    engine.close(session);
}

/// Pages that copies still touch when a session ends are waited for, not missed, by the next.
#[test]
fn a_session_that_ends_after_parking_leaves_its_pages_to_the_next() {
    for seed in 0..40 {
        let model =
            open(&Location::Synthetic("tiny-gqa".into()), &OpenOptions::default()).expect("a known shape");
        let options = Options { context: 48, ..options(Some(1)) };
        let device = sim(SimConfig { seed, ..SimConfig::default() });
        let mut engine =
            Engine::load(device, model.graph, &*model.source, &options, &mut |_, _| {}).expect("it loads");
        engine.warm_up().expect("it runs");
        for _ in 0..3 {
            let mut session = Session::default();
            let request = Request { prompt: vec![7; 40], max_tokens: 4, ..Request::default() };
            engine.generate(&mut session, &request, &mut |_| ControlFlow::Continue(())).expect("it runs");
            engine.close(session);
        }
    }
}
