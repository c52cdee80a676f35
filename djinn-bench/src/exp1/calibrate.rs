//! Times of the machine with the model: decode steps over batch and context, prefill, copies each way.

use super::room::{LEAST_CHUNK, Room, grid};
use crate::probe::Probe;
use crate::remark;
use crate::statistics::median;
use anyhow::{Context, Result};
use djinn_device::Ops;
use djinn_engine::{Engine, Entry, Options, Pages, Sequence, Wanted};
use djinn_scheduler::CostModel;
use djinn_scheduler::sim::{Profile, StepTimes};
use std::time::{Duration, Instant};

/// Steps that are not timed, in which a device captures what it replays then, and steps that are.
const WARM: u64 = 3;
const TIMED: u64 = 6;
/// Copies are timed for so long at least.
const SPAN: Duration = Duration::from_millis(100);

/// Measures a profile of an engine that has no sessions yet.
pub(super) fn measure<D: Ops>(engine: &mut Engine<D>, room: &Room, options: &Options) -> Result<Profile> {
    let fit = options.pages.unwrap_or_default() / room.context_pages;
    let most = options.sequences.min(fit).max(1);
    let sizes = batches(most);
    let room_for_steps = options.context.saturating_sub(WARM + TIMED).max(1);
    let contexts = vec![room_for_steps.div_ceil(4), room_for_steps];
    let chunk = engine.planned_prompt_rows() as usize;
    let mut filled = Filled::new(engine, most, chunk);
    let mut ms = vec![Vec::new(); sizes.len()];
    for &context in &contexts {
        remark(&format!("measuring steps of 1 to {most} sessions after {context} tokens each"));
        filled.grow(context)?;
        for (row, &batch) in ms.iter_mut().zip(&sizes) {
            row.push(filled.decode(batch, context)? * 1e3);
        }
    }
    let decode = StepTimes { sizes, contexts, ms };
    let step_s = decode.step(most, room_for_steps as f64).as_secs_f64();
    remark("measuring the link, alone and beside steps");
    let probe = Probe::new(filled.engine.device(), room.probe_bytes)?;
    let slowed = rates(&probe, filled.engine.device())
        .and_then(|rates| Ok((rates, filled.beside_copies(&probe, most, rates.both, step_s)?)));
    probe.free(filled.engine.device());
    let (rates, slowed_s) = slowed?;
    let prefill_tokens_per_s = filled.prefilled as f64 / filled.prefill_s;
    remark("measuring chunks of prompts");
    let chunk = filled.chunks(room_for_steps, decode.step(1, room_for_steps as f64).as_secs_f64())?;
    let cost = CostModel {
        page_bytes: room.page_bytes,
        out_bytes_per_s: rates.out,
        in_bytes_per_s: rates.back,
        prefill_tokens_per_s,
    };
    let profile = Profile {
        cost,
        both_ways_bytes_per_s: rates.both,
        slowed_by_copies: (slowed_s / step_s).clamp(1.0, 100.0),
        decode,
        chunk: Some(chunk),
    };
    profile.check().context("what was measured is no profile")?;
    Ok(profile)
}

/// Numbers of sessions whose steps are timed: powers of two, and one more from 16 on, where a device may go over to
/// another way of computing products.
fn batches(most: u32) -> Vec<u32> {
    let beside = |batch: u32| [batch, if batch < 16 { batch } else { most.min(batch + 1) }];
    let mut batches: Vec<u32> = grid(1, most).into_iter().flat_map(beside).collect();
    batches.dedup();
    batches
}

/// Sequences that are filled with tokens.
struct Filled<'a, D: Ops> {
    engine: &'a mut Engine<D>,
    pages: Pages,
    sequences: Vec<Sequence>,
    /// Tokens of a prompt that a step takes.
    chunk: usize,
    prefilled: u64,
    prefill_s: f64,
}

impl<'a, D: Ops> Filled<'a, D> {
    fn new(engine: &'a mut Engine<D>, sequences: u32, chunk: usize) -> Self {
        let sequences = (0..sequences).map(|_| Sequence::default()).collect();
        Filled { pages: engine.free_pages(), engine, sequences, chunk, prefilled: 0, prefill_s: 0.0 }
    }

    /// Prefills every sequence up to `context` tokens, chunk by chunk.
    fn grow(&mut self, context: u64) -> Result<()> {
        let vocab = self.engine.graph().vocab;
        for sequence in &mut self.sequences {
            let tokens: Vec<u32> = (sequence.tokens()..context).map(|at| (at * 37 % vocab) as u32).collect();
            for piece in tokens.chunks(self.chunk) {
                let start = Instant::now();
                self.engine.step(&mut self.pages, &mut [Entry::new(sequence, piece, Wanted::Last)])?;
                self.prefill_s += start.elapsed().as_secs_f64();
                self.prefilled += piece.len() as u64;
            }
        }
        Ok(())
    }

    /// One step of the first `batch` sequences, in seconds.
    fn step(&mut self, batch: u32) -> Result<f64> {
        let entry = |sequence| Entry::new(sequence, &[1], Wanted::Last);
        let start = Instant::now();
        let mut entries: Vec<_> = self.sequences[..batch as usize].iter_mut().map(entry).collect();
        self.engine.step(&mut self.pages, &mut entries)?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// The median of steps at `context` tokens, in seconds; sequences are as before then.
    fn decode(&mut self, batch: u32, context: u64) -> Result<f64> {
        let mut times = Vec::new();
        for step in 0..WARM + TIMED {
            let seconds = self.step(batch)?;
            times.extend((step >= WARM).then_some(seconds));
        }
        for sequence in &mut self.sequences[..batch as usize] {
            self.engine.truncate(&mut self.pages, sequence, context);
        }
        Ok(median(times).unwrap_or_default())
    }

    /// What chunks of a prompt add to a step, over their size and the tokens before them; all sequences have `tokens`.
    /// Consumes the last sequence's tokens.
    fn chunks(&mut self, tokens: u64, decode_s: f64) -> Result<StepTimes> {
        let most = (self.chunk as u64).min(tokens);
        let sizes = grid(LEAST_CHUNK, most as u32);
        let contexts = if most < tokens { vec![0, tokens - most] } else { vec![0] };
        let mut ms = vec![vec![0.0; contexts.len()]; sizes.len()];
        // The deepest first: a sequence can be shortened.
        for (column, &context) in contexts.iter().enumerate().rev() {
            for (row, &size) in ms.iter_mut().zip(&sizes) {
                row[column] = (self.beside_decode(size, context, decode_s)? * 1e3).max(1e-3);
            }
        }
        Ok(StepTimes { sizes, contexts, ms })
    }

    /// What a chunk of `size` tokens after `context` adds to a step in which one sequence decodes, which takes
    /// `decode_s` alone; what it takes by itself, where only one sequence fits.
    fn beside_decode(&mut self, size: u32, context: u64, decode_s: f64) -> Result<f64> {
        let (last, others) = self.sequences.split_last_mut().expect("there is one");
        let mut one = others.first_mut();
        let before = one.as_ref().map_or(0, |sequence| sequence.tokens());
        let alone_s = if one.is_some() { decode_s } else { 0.0 };
        let piece: Vec<u32> = (0..size).map(|at| at % 31).collect();
        let mut times = Vec::new();
        for step in 0..WARM + TIMED {
            self.engine.truncate(&mut self.pages, last, context);
            let decodes = one.iter_mut().map(|one| Entry::new(one, &[1], Wanted::Last));
            let start = Instant::now();
            let mut entries: Vec<_> = decodes.chain([Entry::new(last, &piece, Wanted::Last)]).collect();
            self.engine.step(&mut self.pages, &mut entries)?;
            times.extend((step >= WARM).then(|| start.elapsed().as_secs_f64() - alone_s));
            one.iter_mut().for_each(|one| self.engine.truncate(&mut self.pages, one, before));
        }
        Ok(median(times).unwrap_or_default())
    }

    /// The median of steps while copies run both ways.
    fn beside_copies(&mut self, probe: &Probe, batch: u32, rate: f64, step_s: f64) -> Result<f64> {
        // Enough to outlast a step, within reason.
        let copies = (1.5 * step_s * rate / probe.bytes as f64).ceil().clamp(1.0, 1_000.0) as u32;
        let mut times = Vec::new();
        for _ in 0..TIMED {
            for _ in 0..copies {
                probe.both(self.engine.device())?;
            }
            times.push(self.step(batch)?);
            probe.sync(self.engine.device())?;
        }
        Ok(median(times).unwrap_or_default())
    }
}

/// Bytes per second.
#[derive(Clone, Copy, Debug)]
struct Rates {
    out: f64,
    back: f64,
    /// Each way while both are busy.
    both: f64,
}

fn rates<D: Ops>(probe: &Probe, device: &D) -> Result<Rates> {
    let rate = |copy| probe.rate(device, copy, SPAN);
    Ok(Rates { out: rate(Probe::down)?, back: rate(Probe::up)?, both: rate(Probe::both)? })
}

#[cfg(test)]
mod tests {
    use super::batches;

    #[test]
    fn batches_ascend_to_the_most() {
        assert_eq!(batches(1), [1]);
        assert_eq!(batches(14), [1, 2, 4, 8, 14]);
        assert_eq!(batches(49), [1, 2, 4, 8, 16, 17, 32, 33, 49]);
        for most in 1..300 {
            let batches = batches(most);
            assert!(batches.is_sorted_by(|a, b| a < b) && batches.last() == Some(&most), "{batches:?}");
        }
    }
}
