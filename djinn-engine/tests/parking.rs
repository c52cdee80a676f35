//! Forced parking: a session's tokens and the bytes of its keys and values are those of one that never left.

use djinn_cpu::{CpuConfig, CpuDevice, Math, SimConfig, SimDevice, SimFault, SimFaults};
use djinn_device::{DType, Ops};
use djinn_engine::{Budget, Engine, Entry, Error, Options, Pages, Sequence, Wanted, greedy};
use djinn_models::{Location, OpenOptions, open};
use djinn_scheduler::Residency;
use djinn_vmu::Direction;
use std::ops::ControlFlow;

const FAMILIES: [&str; 4] = ["tiny-gqa", "tiny-window", "tiny-mixtral", "tiny-gpt2"];

/// A sequence that leaves for host memory and comes back after every few steps.
struct Walk<D: Ops> {
    engine: Engine<D>,
    pages: Pages,
    sequence: Sequence,
    every: Option<u64>,
    steps: u64,
    parkings: u64,
}

impl<D: Ops> Walk<D> {
    fn load(device: D, family: &str, options: &Options, every: Option<u64>) -> Result<Self, Error> {
        let model =
            open(&Location::Synthetic(family.into()), &OpenOptions::default()).expect("a known shape");
        let go_on = &mut |_, _| ControlFlow::Continue(());
        let engine = Engine::load(device, model.graph, &*model.source, options, go_on)?;
        Ok(Walk {
            pages: engine.free_pages(),
            engine,
            sequence: Sequence::default(),
            every,
            steps: 0,
            parkings: 0,
        })
    }

    /// Brings the sequence to the end of `tokens` in pieces of 16; the logits of its last step.
    fn compute(&mut self, tokens: &[u32]) -> Result<Vec<f32>, Error> {
        let mut logits = Vec::new();
        while (self.sequence.tokens() as usize) < tokens.len() {
            let held = self.sequence.tokens() as usize;
            let piece = &tokens[held..tokens.len().min(held + 16)];
            let entry = Entry::new(&mut self.sequence, piece, Wanted::Last);
            logits = self.engine.step(&mut self.pages, &mut [entry])?.0;
            self.steps += 1;
            if held + piece.len() < tokens.len() && self.is_due() {
                self.park_and_restore()?;
            }
        }
        Ok(logits)
    }

    /// The token after `tokens`, after which the sequence may leave and come back.
    fn advance(&mut self, tokens: &[u32]) -> Result<u32, Error> {
        let logits = self.compute(tokens)?;
        let token = greedy(&logits, tokens.len() as u64 - 1).expect("sound weights");
        if self.is_due() {
            self.park_and_restore()?;
        }
        Ok(token)
    }

    fn is_due(&self) -> bool {
        self.every.is_some_and(|every| self.steps.is_multiple_of(every))
    }

    /// Whether it left and came back; without room on the host it stays, and one that cannot come back is lost.
    fn park_and_restore(&mut self) -> Result<bool, Error> {
        for direction in [Direction::Out, Direction::In] {
            if !self.engine.begin_swap(&mut self.pages, direction, 0, &mut self.sequence)? {
                return Ok(false);
            }
            for transfer in self.engine.settle_swaps()? {
                self.sequence.end_swap(&mut self.pages, &transfer);
                if transfer.fault.is_some() {
                    return Ok(false);
                }
            }
        }
        self.parkings += 1;
        Ok(true)
    }
}

/// Two turns of a conversation: prompts cut into pieces of 16, so that sequences are parked between them and with
/// partial last pages. Its tokens, its keys and values, and how often it left.
fn run<D: Ops>(
    device: D,
    family: &str,
    options: &Options,
    every: Option<u64>,
) -> Result<(Vec<u32>, Vec<u8>, u64), Error> {
    let mut walk = Walk::load(device, family, options, every)?;
    let mut tokens: Vec<u32> = (0..37).map(|i| (i * 37 + 11) % 256).collect();
    for _ in 0..2 {
        for _ in 0..9 {
            let token = walk.advance(&tokens)?;
            tokens.push(token);
        }
        tokens.extend([1, 2, 3]);
    }
    // One that was lost is computed again.
    walk.compute(&tokens[..tokens.len() - 4])?;
    let bytes = walk.engine.kv_bytes(&walk.sequence)?;
    Ok((tokens, bytes, walk.parkings))
}

fn options() -> Options {
    Options { context: 80, prefill_rows: 16, host_pages: 5, ..Options::default() }
}

fn cpu() -> CpuDevice {
    CpuDevice::new(CpuConfig { threads: 2, ..CpuConfig::default() }).expect("threads")
}

fn sim(config: SimConfig) -> SimDevice {
    SimDevice::new(SimConfig { math: Math::Fast, ..config }).expect("a device")
}

#[test]
fn a_parked_session_goes_on_as_if_it_had_not_been() {
    let cases = FAMILIES.map(|family| (family, DType::F32)).into_iter().chain([("tiny-gqa", DType::Int8)]);
    for (family, kv_dtype) in cases {
        let options = Options { kv_dtype, ..options() };
        let (tokens, bytes, parkings) = run(cpu(), family, &options, None).expect("it runs");
        assert_eq!(parkings, 0);
        let model =
            open(&Location::Synthetic(family.into()), &OpenOptions::default()).expect("a known shape");
        let each = djinn_srg::KvPlan::new(&model.graph).token_bytes(kv_dtype);
        // The last token chosen in each turn is run in the next; the three after the last turn are not.
        assert_eq!(bytes.len() as u64, (tokens.len() as u64 - 4) * each);
        for every in [1, 2, 8] {
            let found = run(cpu(), family, &options, Some(every)).expect("it runs");
            assert!(found.0 == tokens && found.1 == bytes, "{family}, {kv_dtype}, every {every}");
            assert!(found.2 >= 20 / every, "{family}, every {every}: {} times", found.2);
        }
    }
}

/// In any order of events, beside streamed weights and replayed passes, with every page checked.
#[test]
fn no_order_of_events_changes_a_parked_session() {
    for (at, family) in FAMILIES.into_iter().enumerate() {
        let (tokens, bytes, _) = run(cpu(), family, &options(), None).expect("it runs");
        for seed in (at as u64..200).step_by(FAMILIES.len()) {
            let budget = Budget {
                resident_fraction: [None, Some(0.0), Some(0.5)][seed as usize % 3],
                stream_check: seed % 2 == 0,
                ..Budget::default()
            };
            let every = [1, 2, 8][seed as usize / 3 % 3];
            let options = Options { budget, replay: seed % 5 != 0, ..options() };
            let device = sim(SimConfig { seed, ..SimConfig::default() });
            let found = run(device, family, &options, Some(every)).expect("it runs");
            assert!(found.0 == tokens && found.1 == bytes, "{family}, seed {seed}, every {every}");
            assert!(found.2 > 0);
        }
    }
}

/// A copy that the device refuses leaves the session where it is; one that fails later stops the engine.
#[test]
fn copies_that_fail_give_an_error_or_the_same_tokens() {
    let family = "tiny-gqa";
    let (tokens, bytes, _) = run(cpu(), family, &options(), None).expect("it runs");
    let (mut refused, mut failed) = (0, 0);
    for seed in 0..60 {
        let (late, at) = (seed % 2 == 0, 1 + 3 * (seed / 2));
        let config = match late {
            true => SimConfig { seed, fail_copy_at: Some(at), ..SimConfig::default() },
            false => SimConfig { seed, refuse_copy_at: Some(at), ..SimConfig::default() },
        };
        match run(sim(config), family, &options(), Some(1)) {
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

/// Without room on the host nothing moves.
#[test]
fn a_sequence_without_room_on_the_host_stays() {
    let options = Options { host_pages: 1, ..options() };
    let mut walk = Walk::load(cpu(), "tiny-gqa", &options, None).expect("it loads");
    walk.advance(&[5; 32]).expect("it runs");
    let before = walk.engine.kv_bytes(&walk.sequence).expect("it reads");
    assert!(!walk.park_and_restore().expect("it is no error"), "two pages do not fit in one");
    assert!(walk.engine.kv_bytes(&walk.sequence).expect("it reads") == before);
    walk.engine.truncate(&mut walk.pages, &mut walk.sequence, 10);
    assert!(walk.park_and_restore().expect("it is no error"), "one page fits");
    assert_eq!(walk.parkings, 1);
}

/// Pages that copies still touch when a sequence ends are waited for, not missed, by the next.
#[test]
fn a_sequence_that_ends_after_parking_leaves_its_pages_to_the_next() {
    for seed in 0..40 {
        let options = Options { context: 48, ..options() };
        let device = sim(SimConfig { seed, ..SimConfig::default() });
        let mut walk = Walk::load(device, "tiny-gqa", &options, Some(1)).expect("it loads");
        walk.engine.warm_up(&mut walk.pages).expect("it runs");
        for _ in 0..3 {
            let mut tokens = vec![7; 40];
            for _ in 0..4 {
                let token = walk.advance(&tokens).expect("it runs");
                tokens.push(token);
            }
            std::mem::take(&mut walk.sequence).release(&mut walk.pages);
        }
    }
}

/// Sequences go both ways beside the steps of another one, streamed or not, and no result changes.
#[test]
fn sequences_move_beside_the_steps_of_others() {
    let prompt = |of: u32| -> Vec<u32> { (0..24).map(|i| (i * 29 + of * 7 + 3) % 256).collect() };
    let life = |device: SimDevice, fraction: Option<f64>, swaps: bool| -> Result<_, Error> {
        let model = open(&Location::Synthetic("tiny-gqa".into()), &OpenOptions::default()).expect("known");
        let budget = Budget { resident_fraction: fraction, stream_check: swaps, ..Budget::default() };
        let options = Options { budget, sequences: 3, host_pages: 6, ..options() };
        let mut engine = Engine::load(device, model.graph, &*model.source, &options, &mut |_, _| {
            ControlFlow::Continue(())
        })?;
        let (mut pages, mut sequences) = (engine.free_pages(), [0, 1, 2].map(|_| Sequence::default()));
        for (of, sequence) in (0..).zip(&mut sequences) {
            for piece in prompt(of).chunks(16) {
                engine.step(&mut pages, &mut [Entry::new(sequence, piece, Wanted::Last)])?;
            }
        }
        let (mut logits, mut moved) = (Vec::new(), 0);
        for _ in 0..12 {
            let [one, others @ ..] = &mut sequences;
            logits.push(engine.step(&mut pages, &mut [Entry::new(one, &[7], Wanted::Last)])?.0);
            if !swaps {
                continue;
            }
            for transfer in engine.poll_swaps()? {
                others[transfer.ticket as usize].end_swap(&mut pages, &transfer);
                moved += 1;
            }
            for (ticket, sequence) in (0..).zip(others) {
                let _under_way = match sequence.residency() {
                    Residency::Device => engine.begin_swap(&mut pages, Direction::Out, ticket, sequence)?,
                    Residency::Host => engine.begin_swap(&mut pages, Direction::In, ticket, sequence)?,
                    _ => true,
                };
            }
        }
        let [_, others @ ..] = &mut sequences;
        while others.iter().any(|sequence| sequence.residency() != Residency::Device) {
            for transfer in engine.settle_swaps()? {
                others[transfer.ticket as usize].end_swap(&mut pages, &transfer);
                moved += 1;
            }
            for (ticket, sequence) in (0..).zip(&mut *others) {
                if sequence.residency() == Residency::Host {
                    assert!(
                        engine.begin_swap(&mut pages, Direction::In, ticket, sequence)?,
                        "room on the device"
                    );
                }
            }
        }
        for sequence in others {
            logits.push(engine.step(&mut pages, &mut [Entry::new(sequence, &[5], Wanted::Last)])?.0);
        }
        Ok((logits, moved))
    };
    for seed in 0..60 {
        let fraction = [None, Some(0.0), Some(0.5)][seed as usize % 3];
        let alone = life(sim(SimConfig { seed, ..SimConfig::default() }), fraction, false).expect("it runs");
        let beside = life(sim(SimConfig { seed, ..SimConfig::default() }), fraction, true).expect("it runs");
        assert!(alone.0 == beside.0, "seed {seed}: other logits");
        assert!(beside.1 >= 4 && beside.1 % 2 == 0, "seed {seed}: {} ways there and back", beside.1);
    }
}

/// What can be given up is given up, and a failed copy stops the engine.
#[test]
fn parked_sequences_can_be_given_up() {
    let model = open(&Location::Synthetic("tiny-gqa".into()), &OpenOptions::default()).expect("known");
    let options = Options { sequences: 2, host_pages: 10, ..options() };
    let load = |config| {
        let engine = Engine::load(sim(config), model.graph.clone(), &*model.source, &options, &mut |_, _| {
            ControlFlow::Continue(())
        });
        engine.map(|engine| (engine.free_pages(), engine)).map(|(pages, engine)| (engine, pages))
    };
    let mut walker = load(SimConfig::default()).expect("it loads");
    type Walker = (Engine<SimDevice>, Pages);
    let there = |(engine, pages): &mut Walker, sequence: &mut Sequence| -> Result<bool, Error> {
        let begun = engine.begin_swap(pages, Direction::Out, 0, sequence)?;
        engine.settle_swaps()?.iter().for_each(|transfer| sequence.end_swap(pages, transfer));
        Ok(begun)
    };
    let grown = |(engine, pages): &mut Walker| -> Result<Sequence, Error> {
        let mut sequence = Sequence::default();
        engine.step(pages, &mut [Entry::new(&mut sequence, &[1; 16], Wanted::Last)])?;
        Ok(sequence)
    };
    // Ten pages of the device, one each: whatever is lost would be missed.
    for turn in 0..30 {
        let mut sequence = grown(&mut walker).expect("it runs");
        assert!(there(&mut walker, &mut sequence).expect("sound"), "room on the host");
        if turn % 2 == 1 {
            let (engine, pages) = &mut walker;
            let begun = engine.begin_swap(pages, Direction::In, 0, &mut sequence);
            assert!(begun.expect("sound"), "room on the device");
            let ended = engine.settle_swaps().expect("sound");
            sequence.end_swap(pages, &ended[0]);
        }
        sequence.release(&mut walker.1);
    }
    let copies = walker.0.unload().calls().copies;
    // The copies of a life are the same up to the first parking, whose copy fails.
    let mut failed = 0;
    for at in 1..=copies.min(40) {
        let Ok(mut walker) = load(SimConfig { fail_copy_at: Some(at), ..SimConfig::default() }) else {
            continue;
        };
        let Ok(mut sequence) = grown(&mut walker) else { continue };
        let outcome = there(&mut walker, &mut sequence);
        if outcome.is_err() {
            failed += 1;
            assert!(matches!(grown(&mut walker), Err(Error::Stopped(_))), "copy {at}");
        }
    }
    assert!(failed > 0, "no parking failed");
}

/// The rates that policies weigh are of ways that pages really took, and nothing is left of the measurement.
#[test]
fn rates_are_measured_and_leave_nothing() {
    for host_pages in [0, 5] {
        let options = Options { host_pages, ..options() };
        let mut walk = Walk::load(sim(SimConfig::default()), "tiny-gqa", &options, None).expect("it loads");
        let free = (walk.pages.device_free(), walk.pages.host_free());
        let cost = walk.engine.measure_cost(&mut walk.pages).expect("it runs");
        assert_eq!((walk.pages.device_free(), walk.pages.host_free()), free);
        assert!(cost.prefill_tokens_per_s > 0.0 && cost.out_bytes_per_s > 0.0 && cost.in_bytes_per_s > 0.0);
        let moved = walk.engine.swap_stats();
        let ways = u64::from(host_pages > 0);
        assert_eq!((moved.out.transfers, moved.back.transfers), (ways, ways), "{host_pages} host pages");
        assert_eq!(cost.page_bytes, walk.engine.plan().kv.page_bytes());
    }
}

/// A copy that fails while rates are measured is an error.
#[test]
fn a_device_that_fails_while_rates_are_measured_is_told() {
    let options = Options { host_pages: 5, ..options() };
    let (mut call, mut failed) = (1, 0);
    loop {
        let faults = SimFaults::default();
        let device = SimDevice::with_faults(SimConfig::default(), faults.clone()).expect("a device");
        let mut walk = Walk::load(device, "tiny-gqa", &options, None).expect("it loads");
        faults.plant(call, SimFault::Call);
        if walk.engine.measure_cost(&mut walk.pages).is_ok() {
            break;
        }
        (call, failed) = (call + 1, failed + 1);
    }
    assert!(failed > 10, "few calls can fail: {failed}");
}
