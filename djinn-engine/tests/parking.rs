//! Forced parking: a session's tokens and the bytes of its keys and values are those of one that never left.

use djinn_device::{CpuConfig, CpuDevice, Math, Ops, SimConfig, SimDevice};
use djinn_engine::{Budget, Engine, Entry, Error, Options, Request, Session, Wanted};
use djinn_models::{Location, OpenOptions, open};
use djinn_vmu::Sequence;
use std::ops::ControlFlow;

const FAMILIES: [&str; 4] = ["tiny-gqa", "tiny-window", "tiny-mixtral", "tiny-gpt2"];

/// Two turns of a conversation: prompts cut into pieces of 16, so that sessions are parked between them and with
/// partial last pages.
fn run<D: Ops>(device: D, family: &str, options: &Options) -> Result<(Vec<u32>, Vec<u8>, u64), Error> {
    let model = open(&Location::Synthetic(family.into()), &OpenOptions::default()).expect("a known shape");
    let mut engine =
        Engine::load(device, model.graph, &*model.source, options, &mut |_, _| ControlFlow::Continue(()))?;
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
        Engine::load(cpu(), model.graph, &*model.source, &options, &mut |_, _| ControlFlow::Continue(()))
            .expect("it loads");
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
            Engine::load(
                device,
                model.graph,
                &*model.source,
                &options,
                &mut |_, _| ControlFlow::Continue(()),
            )
            .expect("it loads");
        engine.warm_up().expect("it runs");
        for _ in 0..3 {
            let mut session = Session::default();
            let request = Request { prompt: vec![7; 40], max_tokens: 4, ..Request::default() };
            engine.generate(&mut session, &request, &mut |_| ControlFlow::Continue(())).expect("it runs");
            engine.close(session);
        }
    }
}

/// Sequences go both ways beside the steps of another one, streamed or not, and nobody's results change.
#[test]
fn sequences_move_beside_the_steps_of_others() {
    let prompt = |of: u32| -> Vec<u32> { (0..24).map(|i| (i * 29 + of * 7 + 3) % 256).collect() };
    let life = |device: SimDevice, fraction: Option<f64>, swaps: bool| -> Result<_, Error> {
        let model = open(&Location::Synthetic("tiny-gqa".into()), &OpenOptions::default()).expect("known");
        let budget = Budget { resident_fraction: fraction, stream_check: swaps, ..Budget::default() };
        let options = Options { budget, sequences: 3, host_pages: 6, ..options(None) };
        let mut engine = Engine::load(device, model.graph, &*model.source, &options, &mut |_, _| {
            ControlFlow::Continue(())
        })?;
        let mut sequences = [0, 1, 2].map(|_| Sequence::default());
        for (of, sequence) in (0..).zip(&mut sequences) {
            for piece in prompt(of).chunks(16) {
                engine.step(&mut [Entry::new(sequence, piece, Wanted::Last)])?;
            }
        }
        let [mut one, first, second] = sequences;
        let (mut live, mut parked, mut arriving) = (vec![first, second], vec![], vec![]);
        let (mut logits, mut moved) = (Vec::new(), 0);
        for token in 0..12 {
            logits.push(engine.step(&mut [Entry::new(&mut one, &[token], Wanted::Last)])?.0);
            if !swaps {
                continue;
            }
            moved += engine.poll_swaps()?.len();
            match token % 3 {
                0 => parked.push(engine.park(live.remove(0))?.expect("room on the host")),
                1 => arriving.push(engine.restore(parked.remove(0))?.expect("room on the device")),
                _ => live.push(engine.resume(arriving.remove(0))?),
            }
        }
        moved += engine.settle_swaps()?.len();
        for sequence in &mut live {
            logits.push(engine.step(&mut [Entry::new(sequence, &[5], Wanted::Last)])?.0);
        }
        for sequence in live.into_iter().chain([one]) {
            engine.release(sequence);
        }
        Ok((logits, moved))
    };
    for seed in 0..60 {
        let fraction = [None, Some(0.0), Some(0.5)][seed as usize % 3];
        let alone = life(sim(SimConfig { seed, ..SimConfig::default() }), fraction, false).expect("it runs");
        let beside = life(sim(SimConfig { seed, ..SimConfig::default() }), fraction, true).expect("it runs");
        assert!(alone.0 == beside.0, "seed {seed}: other logits");
        assert_eq!(beside.1, 8, "seed {seed}: four ways there, four back");
    }
}

/// What can be given up is given up, and a failed copy stops the engine.
#[test]
fn parked_sequences_can_be_given_up() {
    let model = open(&Location::Synthetic("tiny-gqa".into()), &OpenOptions::default()).expect("known");
    let options = Options { sequences: 2, host_pages: 10, ..options(None) };
    let load = |config| {
        Engine::load(sim(config), model.graph.clone(), &*model.source, &options, &mut |_, _| {
            ControlFlow::Continue(())
        })
    };
    let mut engine = load(SimConfig::default()).expect("it loads");
    let grown = |engine: &mut Engine<SimDevice>| -> Result<Sequence, Error> {
        let mut sequence = Sequence::default();
        engine.step(&mut [Entry::new(&mut sequence, &[1; 16], Wanted::Last)])?;
        Ok(sequence)
    };
    // Ten pages of the device, one each: whatever is lost would be missed.
    for turn in 0..30 {
        let sequence = grown(&mut engine).expect("it runs");
        let parked = engine.park(sequence).expect("sound").expect("room");
        engine.settle_swaps().expect("sound");
        if turn % 2 == 0 {
            engine.discard(parked);
        } else {
            let arriving = engine.restore(parked).expect("sound").expect("room");
            engine.cancel(arriving);
        }
        engine.settle_swaps().expect("sound");
    }
    let copies = engine.unload().calls().copies;
    // The copies of a life are the same up to the first parking, whose copy fails.
    let mut failed = 0;
    for at in 1..=copies.min(40) {
        let Ok(mut engine) = load(SimConfig { fail_copy_at: Some(at), ..SimConfig::default() }) else {
            continue;
        };
        let Ok(sequence) = grown(&mut engine) else { continue };
        let outcome = engine.park(sequence).and_then(|parked| {
            engine.discard(parked.expect("room"));
            engine.settle_swaps()
        });
        if outcome.is_err() {
            failed += 1;
            assert!(matches!(grown(&mut engine), Err(Error::Stopped(_))), "copy {at}");
        }
    }
    assert!(failed > 0, "no parking failed");
}
