//! Decoding in batches: streamed weights cross the link once for all sequences of a pass.

use crate::args::SweepArgs;
use crate::document::Document;
use crate::statistics::median;
use crate::subject::{self, Work};
use crate::{remark, report};
use anyhow::{Result, ensure};
use djinn_device::Ops;
use djinn_engine::{Engine, Entry, Options, Wanted, greedy};
use djinn_models::Model;
use djinn_vmu::Sequence;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// The sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sweep {
    pub(crate) model: String,
    pub(crate) device: String,
    pub(crate) prompt: u32,
    pub(crate) tokens: u32,
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

/// One batch size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Batch {
    pub(crate) batch: u32,
    /// Median time of a pass.
    pub(crate) pass_ms: f64,
    /// Of all sequences together.
    pub(crate) tokens_per_s: f64,
    /// Beside the sweep's first batch size, usually 1.
    pub(crate) ratio: f64,
    /// Every pass.
    pub(crate) samples_ms: Vec<f64>,
}

/// `djinn-bench sweep`.
pub(crate) fn run(args: &SweepArgs) -> Result<()> {
    subject::check_device(args.device.device)?;
    let model = subject::open(&args.model)?;
    let options = options(args, &model)?;
    let mut body = Sweep {
        model: model.name.clone(),
        device: args.device.device.to_string(),
        prompt: args.prompt,
        tokens: args.tokens,
        modes: vec![],
    };
    let resident = (!args.skip_resident).then_some(("resident", None));
    for (name, vram) in [("streaming", Some(args.vram))].into_iter().chain(resident) {
        let mut options = options.clone();
        options.budget.vram = vram;
        let pinned = options.most_host_bytes(&model.graph);
        let work = Sweeping { args, model: &model, options: &options, name };
        let mode = subject::on_device(&args.device, vram, pinned, work);
        let failed = |error: anyhow::Error| Mode {
            name: name.to_owned(),
            vram_bytes: vram,
            streamed_bytes_per_pass: 0,
            batches: vec![],
            failure: Some(crate::one_line(&error)),
        };
        body.modes.push(mode.unwrap_or_else(failed));
    }
    let document = Document::new("sweep", args.device.device, body);
    if let Some(path) = &args.json {
        document.write(path)?;
    }
    print!("{}", report::sweep(&document));
    let failures: Vec<&str> = document.body.modes.iter().filter_map(|mode| mode.failure.as_deref()).collect();
    ensure!(failures.is_empty(), "{}", failures.join("; "));
    Ok(())
}

/// Room for the largest batch, the same for all of them, so that they share a placement.
fn options(args: &SweepArgs, model: &Model) -> Result<Options> {
    let most = args.batch.iter().copied().max().unwrap_or(1);
    let tokens = args.prompt as u64 + args.tokens as u64 + 2;
    let options = subject::options(model, args.device.device, tokens)?;
    Ok(Options { sequences: most, logit_rows: most, ..options })
}

struct Sweeping<'a> {
    args: &'a SweepArgs,
    model: &'a Model,
    options: &'a Options,
    name: &'a str,
}

impl Work for Sweeping<'_> {
    type Out = Mode;

    fn on<D: Ops>(self, device: D) -> Result<Mode> {
        let mut engine = subject::load(device, self.model, self.options)?;
        let mut batches: Vec<Batch> = Vec::new();
        for &batch in &self.args.batch {
            let samples_ms = decode(&mut engine, self.args, batch)?;
            let pass_ms = median(samples_ms.iter().copied()).expect("at least one pass");
            let tokens_per_s = batch as f64 / pass_ms * 1e3;
            let ratio = batches.first().map_or(1.0, |first| tokens_per_s / first.tokens_per_s);
            remark(&format!(
                "{}: batch {batch}: {pass_ms:.2} ms a pass, {tokens_per_s:.1} tokens/s",
                self.name
            ));
            batches.push(Batch { batch, pass_ms, tokens_per_s, ratio, samples_ms });
        }
        Ok(Mode {
            name: self.name.to_owned(),
            vram_bytes: self.options.budget.vram,
            streamed_bytes_per_pass: engine.plan().placement.streamed_bytes(),
            batches,
            failure: None,
        })
    }
}

/// Prefills `batch` sequences, each with a prompt of its own, and decodes them together; the passes' times, in
/// ms, sampling included.
fn decode<D: Ops>(engine: &mut Engine<D>, args: &SweepArgs, batch: u32) -> Result<Vec<f64>> {
    let vocab = engine.graph().vocab;
    let mut sequences: Vec<Sequence> = (0..batch).map(|_| Sequence::default()).collect();
    let mut next = Vec::new();
    let rows = engine.plan().stack.rows.rows as usize;
    for (index, sequence) in sequences.iter_mut().enumerate() {
        let prompt = subject::prompt(args.prompt, vocab, index as u64);
        let mut logits = Vec::new();
        for piece in prompt.chunks(rows) {
            logits = engine.step(&mut [Entry::new(sequence, piece, Wanted::Last)])?.0;
        }
        next.push(greedy(&logits, sequence.tokens() - 1)?);
    }
    let mut times = Vec::new();
    for pass in 0..=args.tokens {
        let start = Instant::now();
        let mut entries: Vec<Entry<'_>> = sequences
            .iter_mut()
            .zip(&next)
            .map(|(sequence, token)| Entry::new(sequence, std::slice::from_ref(token), Wanted::Last))
            .collect();
        let (logits, _) = engine.step(&mut entries)?;
        let rows = logits.chunks_exact(vocab as usize).zip(&sequences);
        let chosen = rows.map(|(row, sequence)| greedy(row, sequence.tokens() - 1));
        next = chosen.collect::<Result<_, _>>()?;
        if pass > 0 {
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    sequences.into_iter().for_each(|sequence| engine.release(sequence));
    Ok(times)
}
