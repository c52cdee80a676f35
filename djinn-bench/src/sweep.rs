//! Decoding in batches: streamed weights cross the link once for all sequences of a pass.

use crate::args::SweepArgs;
use crate::document::Document;
use crate::statistics::median;
use crate::{model, remark, report};
use anyhow::{Result, ensure};
use djinn_device::{Draw, Ops};
use djinn_engine::{
    DeviceTimes, Engine, Entry, Finish, Happening, Opening, Options, Sampling, Service, SessionId, Turn,
    Wanted, chosen,
};
use djinn_host::{Needs, OnDevice, Setup};
use djinn_models::Model;
use djinn_scheduler::SessionEvent;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Instant;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sweep {
    pub(crate) model: String,
    pub(crate) device: String,
    pub(crate) prompt: u32,
    pub(crate) tokens: u32,
    /// Share of the streamed weights with which the CPU computes in steps of few tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_share: Option<f64>,
    pub(crate) modes: Vec<Mode>,
}

/// Batches under one placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Mode {
    /// `streaming` or `resident`.
    pub(crate) name: String,
    pub(crate) vram_bytes: Option<u64>,
    pub(crate) streamed_bytes_per_pass: u64,
    pub(crate) batches: Vec<Batch>,
    /// Why there are no batches.
    pub(crate) failure: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Batch {
    pub(crate) batch: u32,
    pub(crate) pass_ms: f64,
    /// Of all sequences together.
    pub(crate) tokens_per_s: f64,
    /// Beside the sweep's first batch size, usually 1.
    pub(crate) ratio: f64,
    pub(crate) samples_ms: Vec<f64>,
    /// The same sequences as sessions of a service, where weights are resident; not in older documents.
    pub(crate) served: Option<Served>,
}

/// Steps in which every session decodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Served {
    /// From the end of one step to the end of the next on the host, on average.
    pub(crate) step_ms: f64,
    /// Of the device's time, the part between steps; from 0 to 1.
    pub(crate) idle_share: f64,
    /// Steps that were enqueued while the one before was under way, of all; from 0 to 1.
    pub(crate) ahead_share: f64,
}

pub(crate) fn run(args: &SweepArgs) -> Result<()> {
    if let Some(top_p) = args.top_p {
        ensure!((0.0..=1.0).contains(&top_p), "--top-p is {top_p}; it must be between 0 and 1");
    }
    let (encoding, kv_dtype, cpu_share) = (args.encoding, args.kv_dtype, args.cpu_share);
    let mut setup = Setup { encoding, kv_dtype, cpu_share, ..args.device.setup()? };
    let model = model::open(&setup, &args.model)?;
    let mut body = Sweep {
        model: model::label(&model.name, args.encoding),
        device: setup.device.to_string(),
        prompt: args.prompt,
        tokens: args.tokens,
        cpu_share,
        modes: vec![],
    };
    let resident = (!args.skip_resident).then_some(("resident", None));
    let streaming = (!args.skip_streaming).then_some(("streaming", Some(args.vram)));
    for (name, vram) in streaming.into_iter().chain(resident) {
        setup.vram = vram;
        let options = options(&setup, args, &model)?;
        let needs = Needs::of(&model, &options);
        let work = Sweeping { args, model: &model, options: &options, name, vram };
        let mode = setup.on_device(needs, work);
        let failed = |error: anyhow::Error| Mode {
            name: name.to_owned(),
            vram_bytes: vram,
            streamed_bytes_per_pass: 0,
            batches: vec![],
            failure: Some(crate::one_line(error.as_ref())),
        };
        body.modes.push(mode.unwrap_or_else(failed));
    }
    let document = Document::new("sweep", setup.device, body);
    document.publish(args.json.as_deref(), report::sweep)?;
    let failures: Vec<&str> = document.body.modes.iter().filter_map(|mode| mode.failure.as_deref()).collect();
    ensure!(failures.is_empty(), "{}", failures.join("; "));
    Ok(())
}

/// Room for the largest batch, the same for all of them, so that they share a placement.
fn options(setup: &Setup, args: &SweepArgs, model: &Model) -> Result<Options> {
    let most = args.batch.iter().copied().max().unwrap_or(1);
    let tokens = u64::from(args.prompt) + u64::from(args.tokens) + 2;
    if setup.vram.is_some() {
        let options = setup.options_for(model, tokens)?;
        return Ok(Options { sequences: most, logit_rows: most, ..options });
    }
    // Sessions that are served may begin their second turns one after another, and go on until all were measured.
    let options = setup.options_for(model, tokens + u64::from(most) + 16)?;
    // Prefill chunks are whole pages where many sessions are served.
    let page = u64::from(options.page_tokens);
    let chunk = u64::from(options.prefill_rows).min(options.context) / page * page;
    let prefill_rows = chunk.max(page) as u32;
    Ok(Options { prefill_rows, ahead: !args.no_ahead, ..options.serving(most) })
}

struct Sweeping<'a> {
    args: &'a SweepArgs,
    model: &'a Model,
    options: &'a Options,
    name: &'a str,
    /// The cap that was asked for. Without one, sessions are served as well.
    vram: Option<u64>,
}

impl OnDevice for Sweeping<'_> {
    type Out = Mode;
    type Error = anyhow::Error;

    fn on<D: Ops + 'static>(self, device: D) -> Result<Mode> {
        let mut engine = model::load(device, self.model, self.options)?;
        let mut batches: Vec<Batch> = Vec::new();
        for &batch in &self.args.batch {
            let samples_ms = decode(&mut engine, self.args, batch)?;
            let served = match self.vram {
                Some(_) => None,
                None => {
                    let served;
                    (engine, served) = serve(engine, self.args, batch)?;
                    Some(served)
                }
            };
            let pass_ms = median(samples_ms.iter().copied()).expect("at least one pass");
            let tokens_per_s = batch as f64 / pass_ms * 1e3;
            let ratio = batches.first().map_or(1.0, |first| tokens_per_s / first.tokens_per_s);
            remark(&format!(
                "{}: batch {batch}: {pass_ms:.2} ms a pass, {tokens_per_s:.1} tokens/s",
                self.name
            ));
            if let Some(Served { step_ms, idle_share, ahead_share }) = &served {
                remark(&format!(
                    "{}: batch {batch}, served: {step_ms:.2} ms a step, {:.1} % of them ahead, the device idle for {:.2} %",
                    self.name,
                    ahead_share * 100.0,
                    idle_share * 100.0
                ));
            }
            batches.push(Batch { batch, pass_ms, tokens_per_s, ratio, samples_ms, served });
        }
        Ok(Mode {
            name: self.name.to_owned(),
            vram_bytes: self.vram,
            streamed_bytes_per_pass: engine.plan().placement.streamed_bytes(),
            batches,
            failure: None,
        })
    }
}

/// Prefills `batch` sequences, each with a prompt of its own, and decodes them together; the passes' times, in
/// ms, sampling included.
fn decode<D: Ops>(engine: &mut Engine<D>, args: &SweepArgs, batch: u32) -> Result<Vec<f64>> {
    let (mut pages, mut sequences, mut next) = (engine.free_pages(), Vec::new(), Vec::new());
    for index in 0..batch {
        let (sequence, first) = model::prefilled(engine, &mut pages, args.prompt, index.into())?;
        sequences.push(sequence);
        next.push(first);
    }
    let warm = |top_p| Draw { temperature: 1.0, top_p, ..Draw::GREEDY };
    let draw = args.top_p.map_or(Draw::GREEDY, warm);
    let mut times = Vec::new();
    for pass in 0..=args.tokens {
        let start = Instant::now();
        let mut entries: Vec<Entry<'_>> = sequences
            .iter_mut()
            .zip(&next)
            .map(|(sequence, token)| {
                let position = sequence.tokens() as u32;
                let entry = Entry::new(sequence, std::slice::from_ref(token), Wanted::Nothing);
                Entry { choose: Some(Draw { position, ..draw }), ..entry }
            })
            .collect();
        engine.step(&mut pages, &mut entries)?;
        let drawn = engine.take_drawn().into_iter().zip(&sequences);
        next =
            drawn.map(|(drawn, sequence)| chosen(&drawn, sequence.tokens() - 1)).collect::<Result<_, _>>()?;
        if pass > 0 {
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    Ok(times)
}

/// Serves `batch` sessions as [`decode`] computes them; the steps in which all of them decode. Each has its prompt in a turn
/// of one token, and waits; then all go on at once.
fn serve<D: Ops>(engine: Engine<D>, args: &SweepArgs, batch: u32) -> Result<(Engine<D>, Served)> {
    let mut service = Service::single(engine)?;
    let vocab = service.engine().graph().vocab;
    let sampling = match args.top_p {
        Some(top_p) => Sampling { temperature: 1.0, top_p, ..Sampling::default() },
        None => Sampling::default(),
    };
    let room = service.engine().context() - u64::from(args.prompt) - 2;
    let turn =
        |tokens, max_tokens| Turn { tokens, max_tokens, sampling: sampling.clone(), ..Turn::default() };
    let mut sessions = Vec::new();
    for index in 0..batch {
        let turn = turn(model::prompt(args.prompt, vocab, index.into()), 1);
        sessions.push(service.open(Opening { turn, ..Opening::default() })?);
    }
    let all = |told: &BTreeSet<SessionId>, _: &DeviceTimes| told.len() == batch as usize;
    go_on_until(&mut service, all)?;
    for &id in &sessions {
        service.turn(id, turn(model::prompt(1, vocab, 0), room))?;
    }
    // One step more, since that in which the last goes on still computes its message.
    let gone_on = go_on_until(&mut service, all)?;
    let before = go_on_until(&mut service, |_, times| times.steps > gone_on.steps)?;
    let start = Instant::now();
    let after = go_on_until(&mut service, |_, times| times.steps >= before.steps + u64::from(args.tokens))?;
    let took = start.elapsed();
    for id in sessions {
        service.event(id, SessionEvent::End)?;
    }
    let times = after.since(&before);
    let served = Served {
        step_ms: took.as_secs_f64() * 1e3 / times.steps as f64,
        idle_share: times.idle_share(),
        ahead_share: times.ahead as f64 / times.steps as f64,
    };
    Ok((service.into_engine()?, served))
}

/// Goes on until there is `enough`: sessions that were told a token since this was called, and what the device did in all.
fn go_on_until<D: Ops>(
    service: &mut Service<D>,
    enough: impl Fn(&BTreeSet<SessionId>, &DeviceTimes) -> bool,
) -> Result<DeviceTimes> {
    let mut told = BTreeSet::new();
    while !enough(&told, &service.batcher().device_times()) {
        for (id, happening) in service.go_on()? {
            let Happening::Token { finish: None | Some(Finish::Length), .. } = happening else {
                anyhow::bail!("{id}: {happening:?}")
            };
            told.insert(id);
        }
    }
    Ok(service.batcher().device_times())
}
