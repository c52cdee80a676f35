//! Swaps of KV caches between device and host memory: alone, both ways at once, and beside decoding with resident and
//! with streamed weights, which use the same link.

use crate::args::SwapArgs;
use crate::document::Document;
use crate::statistics::median;
use crate::subject::{self, Work};
use crate::{remark, report};
use anyhow::{Result, anyhow, ensure};
use djinn_device::Ops;
use djinn_engine::{Engine, Entry, Options, PassStats, Wanted, greedy};
use djinn_models::Model;
use djinn_vmu::{Arriving, Direction, NotMoved, Parked, Refusal, Sequence, Transfer};
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// The measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Swap {
    pub(crate) model: String,
    pub(crate) device: String,
    /// Tokens of each session's context.
    pub(crate) tokens: u32,
    /// Bytes of its keys and values.
    pub(crate) session_bytes: u64,
    /// Sessions that move each way at a time, beside decoding.
    pub(crate) moving: u32,
    /// Transfers while nothing is computed.
    pub(crate) transfers: Vec<Way>,
    pub(crate) modes: Vec<Mode>,
}

/// One kind of transfer; medians by the device's clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Way {
    pub(crate) name: String,
    /// Bytes copied.
    pub(crate) bytes: u64,
    /// 1e9 bytes/s from the first byte to the last.
    pub(crate) gbps: Option<f64>,
    /// From the call to the first byte.
    pub(crate) first_byte_us: Option<f64>,
    /// From the call until all bytes are free at the other end.
    pub(crate) total_ms: Option<f64>,
    /// Every transfer's total.
    pub(crate) samples_ms: Vec<f64>,
}

/// Decoding under one placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Mode {
    /// `streamed` or `resident`.
    pub(crate) name: String,
    pub(crate) vram_bytes: Option<u64>,
    pub(crate) streamed_bytes_per_pass: u64,
    /// Without swaps, then with.
    pub(crate) runs: Vec<Run>,
    /// Why there are none.
    pub(crate) failure: Option<String>,
}

/// One session that decodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// Whether others are swapped both ways meanwhile.
    pub(crate) swaps: bool,
    /// Median.
    pub(crate) token_ms: f64,
    /// Every token, with the host's look at the swaps before it.
    pub(crate) samples_ms: Vec<f64>,
    /// Weights, 1e9 bytes/s of the whole time; `None` where none stream.
    pub(crate) weights_gbps: Option<f64>,
    /// Swaps that ended within the time, 1e9 bytes/s of it.
    pub(crate) in_gbps: Option<f64>,
    pub(crate) out_gbps: Option<f64>,
}

/// `djinn-bench swap`.
pub(crate) fn run(args: &SwapArgs) -> Result<()> {
    subject::check_device(args.device.device)?;
    let model = subject::open(&args.model)?;
    let options = options(args, &model)?;
    let mut body = Swap {
        model: model.name.clone(),
        device: args.device.device.to_string(),
        tokens: args.tokens,
        session_bytes: 0,
        moving: args.moving,
        transfers: vec![],
        modes: vec![],
    };
    // The transfers alone are measured by whichever loads first.
    for name in ["streamed", "resident"] {
        let mut options = options.clone();
        if name == "streamed" {
            options.budget.vram = args.vram;
            options.budget.resident_fraction = args.vram.is_none().then_some(0.5);
        }
        let pinned = options.most_host_bytes(&model.graph);
        let vram = options.budget.vram;
        let work = Swapping { args, model: &model, options: &options, name, body: &mut body };
        if let Err(error) = subject::on_device(&args.device, vram, pinned, work) {
            let failure = Some(crate::one_line(&error));
            let (name, streamed_bytes_per_pass) = (name.to_owned(), 0);
            body.modes.push(Mode { name, vram_bytes: vram, streamed_bytes_per_pass, runs: vec![], failure });
        }
    }
    let document = Document::new("swap", args.device.device, body);
    if let Some(path) = &args.json {
        document.write(path)?;
    }
    print!("{}", report::swap(&document));
    let failures: Vec<&str> = document.body.modes.iter().filter_map(|mode| mode.failure.as_deref()).collect();
    ensure!(failures.is_empty(), "{}", failures.join("; "));
    Ok(())
}

/// Room for the session that decodes and for those that move both ways; on the host for the latter.
fn options(args: &SwapArgs, model: &Model) -> Result<Options> {
    let tokens = args.tokens as u64 + args.steps as u64 + 2;
    let options = subject::options(model, args.device.device, tokens)?;
    let sequences = 1 + 2 * args.moving;
    let host_pages = args.tokens.div_ceil(options.page_tokens).saturating_mul(2 * args.moving);
    Ok(Options { sequences, host_pages, ..options })
}

struct Swapping<'a> {
    args: &'a SwapArgs,
    model: &'a Model,
    options: &'a Options,
    name: &'a str,
    body: &'a mut Swap,
}

impl Work for Swapping<'_> {
    type Out = ();

    fn on<D: Ops>(self, device: D) -> Result<()> {
        let Swapping { args, model, options, name, body } = self;
        let mut engine = subject::load(device, model, options)?;
        let streamed_bytes_per_pass = engine.plan().placement.streamed_bytes();
        ensure!(
            name != "streamed" || streamed_bytes_per_pass > 0,
            "all weights fit, so that none stream; lower --vram"
        );
        engine.warm_up()?;
        let kv = engine.plan().kv;
        body.session_bytes = args.tokens.div_ceil(kv.page_tokens) as u64 * kv.page_bytes();
        let mut decoding = Decoding::begin(&mut engine, args)?;
        let mut movers = Movers::begin(&mut engine, args)?;
        if body.transfers.is_empty() {
            body.transfers = transfers(&mut engine, &mut movers, args.runs)?;
        }
        let alone = decoding.run(&mut engine, args, None)?;
        let beside = decoding.run(&mut engine, args, Some(&mut movers))?;
        ensure!(alone.1 == beside.1, "the tokens beside swaps are others than without");
        for run in [&alone.0, &beside.0] {
            let beside = if run.swaps { "beside swaps" } else { "alone" };
            remark(&format!("{name}, {beside}: {:.2} ms per token", run.token_ms));
        }
        body.modes.push(Mode {
            name: name.to_owned(),
            vram_bytes: options.budget.vram,
            streamed_bytes_per_pass,
            runs: vec![alone.0, beside.0],
            failure: None,
        });
        Ok(())
    }
}

/// A sequence with a prompt of its own, and the token after it.
fn prefilled<D: Ops>(engine: &mut Engine<D>, tokens: u32, seed: u64) -> Result<(Sequence, u32)> {
    let mut sequence = Sequence::default();
    let rows = engine.plan().stack.rows.rows as usize;
    let mut logits = Vec::new();
    for piece in subject::prompt(tokens, engine.graph().vocab, seed).chunks(rows) {
        logits = engine.step(&mut [Entry::new(&mut sequence, piece, Wanted::Last)])?.0;
    }
    let first = greedy(&logits, sequence.tokens() - 1)?;
    Ok((sequence, first))
}

/// The session that decodes, the same tokens in every run.
struct Decoding {
    sequence: Sequence,
    first: u32,
}

impl Decoding {
    fn begin<D: Ops>(engine: &mut Engine<D>, args: &SwapArgs) -> Result<Self> {
        let (sequence, first) = prefilled(engine, args.tokens, 0)?;
        Ok(Decoding { sequence, first })
    }

    /// Decodes after the prompt, beside swaps where there are `movers`; what it took, and the tokens.
    fn run<D: Ops>(
        &mut self,
        engine: &mut Engine<D>,
        args: &SwapArgs,
        mut movers: Option<&mut Movers>,
    ) -> Result<(Run, Vec<u32>)> {
        engine.truncate(&mut self.sequence, args.tokens as u64);
        let swaps = movers.is_some();
        let (mut samples_ms, mut tokens) = (Vec::new(), vec![self.first]);
        let (mut streamed, mut ended) = (PassStats::default(), Vec::new());
        // The first step is not counted: copies get going.
        let mut began = Instant::now();
        for step in 0..=args.steps {
            let start = Instant::now();
            if step == 1 {
                (began, ended, streamed) = (start, Vec::new(), PassStats::default());
            }
            if let Some(movers) = &mut movers {
                ended.extend(movers.turn(engine)?);
            }
            let token = tokens[tokens.len() - 1];
            let entry = Entry::new(&mut self.sequence, std::slice::from_ref(&token), Wanted::Last);
            let (logits, pass) = engine.step(&mut [entry])?;
            tokens.push(greedy(&logits, self.sequence.tokens() - 1)?);
            streamed.add(&pass);
            if step > 0 {
                samples_ms.push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
        // What ended within the last step is seen after it.
        ended.extend(engine.poll_swaps()?);
        let seconds = began.elapsed().as_secs_f64();
        if let Some(movers) = movers {
            movers.stop(engine)?;
        }
        let rate = |bytes: u64| (bytes > 0).then(|| bytes as f64 / seconds / 1e9);
        let moved = |direction| rate(bytes(&ended, direction));
        let run = Run {
            swaps,
            token_ms: median(samples_ms.iter().copied()).expect("at least one step"),
            samples_ms,
            weights_gbps: rate(streamed.streamed_bytes),
            in_gbps: moved(Direction::In),
            out_gbps: moved(Direction::Out),
        };
        Ok((run, tokens))
    }
}

fn bytes(transfers: &[Transfer], direction: Direction) -> u64 {
    transfers.iter().filter(|one| one.direction == direction).map(|one| one.bytes).sum()
}

/// Sessions that do nothing but move: half of them are on the device, half on the host.
struct Movers {
    live: Vec<Sequence>,
    parked: Vec<Parked>,
    arriving: Vec<Arriving>,
}

impl Movers {
    fn begin<D: Ops>(engine: &mut Engine<D>, args: &SwapArgs) -> Result<Self> {
        let mut movers = Movers { live: vec![], parked: vec![], arriving: vec![] };
        for seed in 0..2 * args.moving as u64 {
            let (sequence, _) = prefilled(engine, args.tokens, 1 + seed)?;
            match seed % 2 {
                0 => movers.live.push(sequence),
                _ => movers.parked.push(parked(engine.park(sequence)?)?),
            }
        }
        engine.settle_swaps()?;
        Ok(movers)
    }

    /// Whoever has arrived leaves again, as a whole, and whoever left comes back where there is room; the transfers
    /// that ended since the last look.
    fn turn<D: Ops>(&mut self, engine: &mut Engine<D>) -> Result<Vec<Transfer>> {
        let ended = engine.poll_swaps()?;
        for one in std::mem::take(&mut self.arriving) {
            if engine.has_arrived(&one) {
                self.live.push(engine.resume(one)?);
            } else {
                self.arriving.push(one);
            }
        }
        engine.forget_copies();
        for one in std::mem::take(&mut self.live) {
            match engine.park(one)? {
                Ok(parked) => self.parked.push(parked),
                Err(not_moved) => self.live.push(stays(not_moved)?),
            }
        }
        for one in std::mem::take(&mut self.parked) {
            match engine.restore(one)? {
                Ok(arriving) => self.arriving.push(arriving),
                Err(not_moved) => self.parked.push(stays(not_moved)?),
            }
        }
        Ok(ended)
    }

    /// Waits for what is under way.
    fn stop<D: Ops>(&mut self, engine: &mut Engine<D>) -> Result<()> {
        engine.settle_swaps()?;
        for one in std::mem::take(&mut self.arriving) {
            self.live.push(engine.resume(one)?);
        }
        Ok(())
    }
}

fn parked(outcome: Result<Parked, NotMoved<Sequence>>) -> Result<Parked> {
    outcome.map_err(|not_moved| anyhow!("a session was not parked: {:?}", not_moved.why))
}

/// A sequence that waits for room; any other refusal is a failure.
fn stays<S>(not_moved: NotMoved<S>) -> Result<S> {
    match not_moved.why {
        Refusal::HostFull(_) | Refusal::PagesFull(_) => Ok(not_moved.sequence),
        why => Err(anyhow!("a session was not moved: {why:?}")),
    }
}

/// Parks and restores while nothing is computed: one session, then two that pass each other.
fn transfers<D: Ops>(engine: &mut Engine<D>, movers: &mut Movers, runs: u32) -> Result<Vec<Way>> {
    let names =
        ["park", "restore", "park again, unchanged", "park, both ways at once", "restore, both ways at once"];
    let mut samples: [Vec<Transfer>; 5] = Default::default();
    for _ in 0..runs {
        let one = movers.live.pop().expect("half of the movers are on the device");
        let other = movers.parked.remove(0);
        let there_and_back = |engine: &mut Engine<D>, one: Sequence| -> Result<_> {
            let parked = parked(engine.park(one)?)?;
            let out = engine.settle_swaps()?;
            let arriving = engine.restore(parked)?.map_err(|n| anyhow!("not restored: {:?}", n.why))?;
            let back = engine.settle_swaps()?;
            Ok((engine.resume(arriving)?, out, back))
        };
        engine.forget_copies();
        let (one, out, back) = there_and_back(engine, one)?;
        samples[0].extend(out);
        samples[1].extend(back);
        let (one, out, _) = there_and_back(engine, one)?;
        samples[2].extend(out);
        engine.forget_copies();
        let arriving = engine.restore(other)?.map_err(|n| anyhow!("not restored: {:?}", n.why))?;
        movers.parked.push(parked(engine.park(one)?)?);
        for ended in engine.settle_swaps()? {
            samples[if ended.direction == Direction::Out { 3 } else { 4 }].push(ended);
        }
        movers.live.push(engine.resume(arriving)?);
    }
    Ok(names.into_iter().zip(&samples).map(|(name, transfers)| way(name, transfers)).collect())
}

fn way(name: &str, transfers: &[Transfer]) -> Way {
    let seconds = |of: fn(&Transfer) -> Option<std::time::Duration>| -> Vec<f64> {
        transfers.iter().filter_map(of).map(|time| time.as_secs_f64()).collect()
    };
    let bytes = transfers.first().map_or(0, |one| one.bytes);
    let moved = median(seconds(Transfer::moved)).filter(|&seconds| bytes > 0 && seconds > 0.0);
    let total = seconds(Transfer::total);
    Way {
        name: name.to_owned(),
        bytes,
        gbps: moved.map(|seconds| bytes as f64 / seconds / 1e9),
        first_byte_us: median(seconds(Transfer::first_byte)).map(|seconds| seconds * 1e6),
        total_ms: median(total.iter().copied()).map(|seconds| seconds * 1e3),
        samples_ms: total.iter().map(|seconds| seconds * 1e3).collect(),
    }
}
