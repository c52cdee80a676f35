//! Swaps of KV caches between device and host memory: alone, both ways at once, and beside decoding with resident and
//! with streamed weights, which use the same link.

use crate::args::SwapArgs;
use crate::document::Document;
use crate::model::{self, prefilled};
use crate::statistics::median;
use crate::{remark, report};
use anyhow::{Context, Result, bail, ensure};
use djinn_device::Ops;
use djinn_engine::{Engine, Entry, Options, Pages, PassStats, Sequence, Wanted, greedy};
use djinn_host::{Needs, OnDevice, Setup};
use djinn_models::Model;
use djinn_scheduler::Residency;
use djinn_vmu::{Direction, Transfer};
use serde::{Deserialize, Serialize};
use std::time::Instant;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Swap {
    pub(crate) model: String,
    pub(crate) device: String,
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

pub(crate) fn run(args: &SwapArgs) -> Result<()> {
    let mut setup = args.device.setup()?;
    let model = model::open(&setup, &args.model)?;
    let mut body = Swap {
        model: model.name.clone(),
        device: setup.device.to_string(),
        tokens: args.tokens,
        session_bytes: 0,
        moving: args.moving,
        transfers: vec![],
        modes: vec![],
    };
    // The transfers alone are measured by whichever loads first.
    for name in ["streamed", "resident"] {
        let streamed = name == "streamed";
        setup.vram = args.vram.filter(|_| streamed);
        setup.resident_fraction = (streamed && args.vram.is_none()).then_some(0.5);
        let options = options(&setup, args, &model)?;
        let needs = Needs::of(&model, &options);
        let work = Swapping { args, model: &model, options: &options, name, body: &mut body };
        if let Err(error) = setup.on_device(needs, work) {
            let failure = Some(crate::one_line(error.as_ref()));
            let (name, vram_bytes) = (name.to_owned(), setup.vram);
            body.modes.push(Mode { name, vram_bytes, streamed_bytes_per_pass: 0, runs: vec![], failure });
        }
    }
    let document = Document::new("swap", setup.device, body);
    document.publish(args.json.as_deref(), report::swap)?;
    let failures: Vec<&str> = document.body.modes.iter().filter_map(|mode| mode.failure.as_deref()).collect();
    ensure!(failures.is_empty(), "{}", failures.join("; "));
    Ok(())
}

/// Room for the session that decodes and for those that move both ways; on the host for the latter.
fn options(setup: &Setup, args: &SwapArgs, model: &Model) -> Result<Options> {
    let tokens = args.tokens as u64 + args.steps as u64 + 2;
    let options = setup.options_for(model, tokens)?;
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

impl OnDevice for Swapping<'_> {
    type Out = ();
    type Error = anyhow::Error;

    fn on<D: Ops + 'static>(self, device: D) -> Result<()> {
        let Swapping { args, model, options, name, body } = self;
        let engine = model::load(device, model, options)?;
        let mut bed = Bed { pages: engine.free_pages(), engine };
        let engine = &mut bed.engine;
        let streamed_bytes_per_pass = engine.plan().placement.streamed_bytes();
        ensure!(
            name != "streamed" || streamed_bytes_per_pass > 0,
            "all weights fit, so that none stream; lower --vram"
        );
        engine.warm_up(&mut bed.pages)?;
        let kv = engine.plan().kv;
        body.session_bytes = args.tokens.div_ceil(kv.page_tokens) as u64 * kv.page_bytes();
        let mut decoding = Decoding::begin(&mut bed, args)?;
        let mut movers = Movers::begin(&mut bed, args)?;
        if body.transfers.is_empty() {
            body.transfers = transfers(&mut bed, &mut movers, args.runs)?;
        }
        let alone = decoding.run(&mut bed, args, None)?;
        let beside = decoding.run(&mut bed, args, Some(&mut movers))?;
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

/// An engine, and who has its pages.
struct Bed<D: Ops> {
    engine: Engine<D>,
    pages: Pages,
}

/// The session that decodes, the same tokens in every run.
struct Decoding {
    sequence: Sequence,
    first: u32,
}

impl Decoding {
    fn begin<D: Ops>(bed: &mut Bed<D>, args: &SwapArgs) -> Result<Self> {
        let (sequence, first) = prefilled(&mut bed.engine, &mut bed.pages, args.tokens, 0)?;
        Ok(Decoding { sequence, first })
    }

    /// Decodes after the prompt, beside swaps where there are `movers`; what it took, and the tokens.
    fn run<D: Ops>(
        &mut self,
        bed: &mut Bed<D>,
        args: &SwapArgs,
        mut movers: Option<&mut Movers>,
    ) -> Result<(Run, Vec<u32>)> {
        bed.engine.truncate(&mut bed.pages, &mut self.sequence, args.tokens as u64);
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
                ended.extend(movers.turn(bed)?);
            }
            let token = tokens[tokens.len() - 1];
            let entry = Entry::new(&mut self.sequence, std::slice::from_ref(&token), Wanted::Last);
            let (logits, pass) = bed.engine.step(&mut bed.pages, &mut [entry])?;
            tokens.push(greedy(&logits, self.sequence.tokens() - 1)?);
            streamed.add(&pass);
            if step > 0 {
                samples_ms.push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
        // What ended within the last step is seen after it.
        let last = bed.engine.poll_swaps()?;
        let seconds = began.elapsed().as_secs_f64();
        if let Some(movers) = movers {
            movers.end(bed, &last)?;
            movers.settle(bed)?;
        }
        ended.extend(last);
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

/// Sessions that do nothing but move: half of them are on the device, half on the host. Tickets are their places.
struct Movers {
    sequences: Vec<Sequence>,
}

impl Movers {
    fn begin<D: Ops>(bed: &mut Bed<D>, args: &SwapArgs) -> Result<Self> {
        let mut movers = Movers { sequences: vec![] };
        for seed in 0..2 * args.moving as u64 {
            movers.sequences.push(prefilled(&mut bed.engine, &mut bed.pages, args.tokens, 1 + seed)?.0);
            if seed % 2 == 1 {
                movers.must_swap(bed, Direction::Out, seed as usize)?;
            }
        }
        movers.settle(bed)?;
        Ok(movers)
    }

    /// Begins to move a session. Whether there is room.
    fn swap<D: Ops>(&mut self, bed: &mut Bed<D>, direction: Direction, at: usize) -> Result<bool> {
        Ok(bed.engine.begin_swap(&mut bed.pages, direction, at as u64, &mut self.sequences[at])?)
    }

    fn must_swap<D: Ops>(&mut self, bed: &mut Bed<D>, direction: Direction, at: usize) -> Result<()> {
        ensure!(self.swap(bed, direction, at)?, "there is no room to move a session {direction:?}");
        Ok(())
    }

    fn end<D: Ops>(&mut self, bed: &mut Bed<D>, ended: &[Transfer]) -> Result<()> {
        for transfer in ended {
            self.sequences[transfer.ticket as usize].end_swap(&mut bed.pages, transfer);
            if let Some(fault) = transfer.fault {
                bail!("a session was not moved: {fault:?}");
            }
        }
        Ok(())
    }

    /// Sessions that have arrived leave again, as a whole, and those that left come back where there is room; the
    /// transfers that ended since the last look.
    fn turn<D: Ops>(&mut self, bed: &mut Bed<D>) -> Result<Vec<Transfer>> {
        let ended = bed.engine.poll_swaps()?;
        self.end(bed, &ended)?;
        bed.pages.forget_copies();
        for (from, direction) in [(Residency::Device, Direction::Out), (Residency::Host, Direction::In)] {
            for at in 0..self.sequences.len() {
                if self.sequences[at].residency() == from {
                    self.swap(bed, direction, at)?;
                }
            }
        }
        Ok(ended)
    }

    /// Waits for what is under way.
    fn settle<D: Ops>(&mut self, bed: &mut Bed<D>) -> Result<Vec<Transfer>> {
        let ended = bed.engine.settle_swaps()?;
        self.end(bed, &ended)?;
        Ok(ended)
    }

    fn any(&self, at: Residency) -> Result<usize> {
        let found = self.sequences.iter().position(|sequence| sequence.residency() == at);
        found.with_context(|| format!("half of the sessions are on the {at:?}"))
    }
}

/// Moves sessions out and back while nothing is computed: one session, then two that pass each other.
fn transfers<D: Ops>(bed: &mut Bed<D>, movers: &mut Movers, runs: u32) -> Result<Vec<Way>> {
    let names =
        ["park", "restore", "park again, unchanged", "park, both ways at once", "restore, both ways at once"];
    let mut samples: [Vec<Transfer>; 5] = Default::default();
    for _ in 0..runs {
        let (one, other) = (movers.any(Residency::Device)?, movers.any(Residency::Host)?);
        bed.pages.forget_copies();
        for (direction, sample) in [(Direction::Out, 0), (Direction::In, 1), (Direction::Out, 2)] {
            movers.must_swap(bed, direction, one)?;
            samples[sample].extend(movers.settle(bed)?);
        }
        movers.must_swap(bed, Direction::In, one)?;
        movers.settle(bed)?;
        bed.pages.forget_copies();
        movers.must_swap(bed, Direction::In, other)?;
        movers.must_swap(bed, Direction::Out, one)?;
        for ended in movers.settle(bed)? {
            samples[if ended.direction == Direction::Out { 3 } else { 4 }].push(ended);
        }
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
